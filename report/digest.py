"""What a search did, as plain facts: one `Row` a trial, and the totals. Everything shown is made from these."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Set
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from haltune._utils import disk
from haltune._utils.words import counted, short
from haltune.errors import InvalidInput
from haltune.log.comparison import Comparisons
from haltune.log.events import Status
from haltune.log.fate import FATES, Savings, fate_of, saved_epochs, trained_again
from haltune.log.history import History
from haltune.log.problem import Problem
from haltune.log.records import Best, OnFront, TrialRecord
from haltune.log.spending import Outcome
from haltune.study.results import Results
from haltune.study.telling.audit import Audit

from .sample import shown_trials
from .story import Story

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class Row:
    """One trial as it is shown. Texts are as the user typed them: whoever prints them escapes them."""

    record: TrialRecord
    leads: bool  # it holds the best configuration found, or is on the front of several goals
    kind: str  # what became of it, one of haltune.log.fate.FATES
    outcome: str  # the same in a few words
    value: float | None  # that it counts for, NaN when it has none; None before its first report
    reason: str  # one sentence, "" when there is nothing to say
    evidence: Mapping[str, str]  # the verdict's main numbers, in words
    saved: float  # epochs of a full training it did not need
    now: str = ""  # where it was cut at a rung: its rank there, as of now
    several: bool = False  # goals

    @property
    def praise(self) -> str:
        """To be added to what became of it."""
        return (", on the front" if self.several else ", the best") * self.leads

    @property
    def group(self) -> str:
        """How it is drawn: "best", or what became of it."""
        return "best" if self.leads else self.kind

    @cached_property
    def ending(self) -> tuple[float, float] | None:
        """(epoch, value) of the last finite value of the curve; None when there is none."""
        found = np.flatnonzero(np.isfinite(self.record.values))
        if not len(found):
            return None
        return float(self.record.epochs[found[-1]]), float(self.record.values[found[-1]])


@dataclass(frozen=True)
class KeptCheckpoints:
    """Checkpoints on the disk."""

    count: int
    size: int  # bytes
    folder: str
    waiting: bool  # some are of trials that may continue


@dataclass(frozen=True)
class Digest:
    """A whole search."""

    problem: Problem
    history: History
    name: str
    rows: tuple[Row, ...]  # of all trials, or of those that are shown
    comparisons: Comparisons  # of all trials
    counts: Mapping[str, int]  # of all trials: of each of haltune.log.fate.FATES how many
    best: Best | None  # by the first goal, of several
    trained: float  # epochs, each once
    again: float  # more epochs, that were lost and trained again
    savings: Savings  # of full trainings
    seconds: float  # wall-clock while any trial was held
    outcome: str  # one sentence, "" when only a history is known
    over: bool
    held: bool = False  # over for a while: somebody stopped it
    idle: bool = False  # not over, and nobody trains now
    left: tuple[float, float] | None = (
        None  # epochs, from and to, of trials that were paused and not continued
    )
    lifted: bool = False  # a larger budget may continue them
    kept: KeptCheckpoints | None = None  # where more than a history is known, and there is one
    front: tuple[OnFront, ...] = ()  # of several goals
    audit: Audit | None = None  # where a share of the runs is audited, and more than a history is known

    @cached_property
    def levels(self) -> bool:
        """True when trials were measured at levels of noise."""
        return any("level" in row.record.tags for row in self.rows)

    @property
    def saved_share(self) -> float:
        """Saved epochs as a share of those of full trainings."""
        return self.savings.epochs / self.whole if self.whole else 0.0

    @property
    def whole(self) -> float:
        """Epochs of full trainings."""
        return self.trained + self.savings.epochs + self.savings.itself

    @property
    def states(self) -> str:
        """How many trials are in which state: "6 trained in full, 13 stopped early"."""
        found = ((self.counts.get(kind, 0), words) for kind, words in FATES.items())
        return ", ".join(f"{counted(n)} {words[n > 1]}" for n, words in found if n)

    @property
    def trials(self) -> int:
        """How many there are, shown or not."""
        return sum(self.counts.values())


Source = Results | History  # a study, opened to search or to look at, or what was folded of its log


def digest(source: Source, most: int | None = None) -> Digest:
    """The facts of a study, read up to its newest event, or of a history. most: the trials that get a row, if not all.

    Raises InvalidInput for anything else.
    """
    if isinstance(source, Results):
        source.sync()
        facts = _digest(source.history, source.name, source.outcome, most, source.lost)
        audit = source.audit() if facts.problem.plain else None
        return replace(
            facts, audit=audit if audit and audit.share else None, kept=_kept(source), idle=source.idle
        )
    if isinstance(source, History):
        return _digest(source, "study", Outcome(source.finished is not None, source.finished or ""), most)
    raise InvalidInput(f"a report is made of a Study or its history, not of {source!r}")


def need_study(source: object) -> Results:
    """The source, which has a log to read. Raises InvalidInput for others."""
    if not isinstance(source, Results):
        raise InvalidInput(f"this is drawn from the log of a Study, not from {source!r}")
    return source


def story_of(source: object) -> Story:
    """What happened in a study, which is read up to its newest event. Raises InvalidInput as `need_study`."""
    study = need_study(source)
    study.sync()
    return Story(study.history.problem).fold(study.events())


def _kept(source: Results) -> KeptCheckpoints | None:
    """Of trials that may continue, and of the best one: as the log has them, so that all ranks tell the same."""
    waiting = source.history.with_status(Status.PAUSED, Status.INTERRUPTED)
    paths = [t.checkpoint for t in waiting if t.checkpoint is not None]
    some = bool(paths)
    leads = source.pareto_front() if source.history.problem.further else [source.best]
    paths += [run.checkpoint for run in leads if run is not None and run.checkpoint is not None]
    there = [Path(path) for path in dict.fromkeys(paths) if not source.checkpoints.missing(path)]
    sizes = [disk.size(path) for path in there]
    return KeptCheckpoints(len(sizes), sum(sizes), str(source.checkpoints.folder), some) if sizes else None


def _digest(
    history: History, name: str, outcome: Outcome, most: int | None, lost: Set[int] = frozenset()
) -> Digest:
    best, trials, over = history.best(), history.trials, outcome.over and not outcome.held
    shown = range(len(trials)) if most is None else shown_trials(history, most)
    front = tuple(history.on_front(id) for id in history.front()) if history.problem.further else ()
    lead = {run.trial for run in front} if history.problem.further else {best.trial if best else None}
    comparisons, again = Comparisons(history, over), trained_again(history)
    left = [t.epoch for t in trials if t.status is Status.PAUSED] if over else []
    return Digest(
        problem=history.problem,
        history=history,
        name=name,
        rows=tuple(_row(comparisons, trials[id], lead, lost) for id in shown),
        comparisons=comparisons,
        counts=Counter(fate_of(t, history.problem, over, lost).kind for t in trials),
        best=best,
        front=front,
        trained=history.spent.epochs - again,
        again=again,
        savings=Savings.of(history, over),
        seconds=history.spent.time,
        outcome=outcome.reason,
        over=outcome.over,
        held=outcome.held,
        left=(min(left), max(left)) if left else None,
        lifted=history.finished is None,
    )


def _row(comparisons: Comparisons, t: TrialRecord, lead: Container[int | None], lost: Set[int]) -> Row:
    history, over = comparisons.history, comparisons.over
    ended = t.status in (Status.STOPPED, Status.PAUSED, Status.INTERRUPTED)  # else a pause that was declined
    verdict = t.verdict if ended and t.verdict and t.verdict.stops else None
    fate, values = fate_of(t, history.problem, over, lost), t.counting(history.problem.goal)
    return Row(
        record=t,
        leads=t.id in lead,
        kind=fate.kind,
        outcome=fate.words,
        value=float(values[-1]) if len(values) else None,
        reason=comparisons.reason(t) or _silence(t),
        now=comparisons.now(t),
        evidence=_numbers(verdict.evidence) if verdict else {},
        saved=saved_epochs(t, history.problem, over),
        several=bool(history.problem.further),
    )


def _silence(t: TrialRecord) -> str:
    if len(t.values) and not np.isfinite(t.values).any():
        return "no value was finite"
    return ""


def _numbers(evidence: Mapping[str, object]) -> dict[str, str]:
    """The first few single numbers of the evidence."""
    numbers = {k: v for k, v in evidence.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
    return {k.replace("_", " "): short(v) for k, v in list(numbers.items())[:6] if math.isfinite(v)}
