"""Facts of a search: one `Row` for each trial, and the totals. All figures and pages are made from them.

If a search has more than MOST_TRIALS trials, figures show a sample. Half of it are the best trials, in the order of
haltune.log.scores. The other half is evenly spaced over the numbers of the other trials, so that a new trial changes
few of them. Totals count all trials. A curve has at most FINEST points, all curves together at most POINTS. A longer
curve keeps its ends, and the highest and the lowest point of each part of equal length, so that no peak is lost.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from haltune._utils import disk
from haltune.display import counted, short
from haltune.errors import InvalidInput
from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.outcomes import OUTCOMES, Comparisons, Savings, outcome_of, saved_epochs, trained_again
from haltune.log.problem import Problem
from haltune.log.records import Best, OnFront, TrialRecord
from haltune.log.spending import Outcome
from haltune.study.explain import Audit
from haltune.study.view import StudyView

from .story import Story

MOST_TRIALS = 2000  # trials: more are slow to draw and too many to look at
POINTS = 60_000  # of all curves
FINEST = 2000  # points of a curve: more than a screen has pixels
_GOLDEN = (5.0**0.5 - 1.0) / 2.0
_FEWEST_POINTS = 20  # points of a curve


@dataclass(frozen=True)
class Row:
    """A trial as it is shown. Texts are as the user typed them, so the caller must escape them."""

    record: TrialRecord
    leads: bool  # it has the best configuration, or is on the Pareto front
    kind: str  # its outcome, one of haltune.log.outcomes.OUTCOMES
    outcome: str  # the outcome in words
    value: float | None  # the value that counts; NaN if it has none, None before its first report
    reason: str  # one sentence, or ""
    evidence: Mapping[str, str]  # the verdict's main numbers, in words
    saved: float  # epochs of a full training that it did not train
    now: str = ""  # if it was stopped or paused at a rung: its present rank there
    several: bool = False  # the study has several goals

    @property
    def praise(self) -> str:
        """Text to append to its outcome."""
        return (", on the front" if self.several else ", the best") * self.leads

    @property
    def group(self) -> str:
        """Its style, a key of GROUP_STYLES: "best", or its outcome."""
        return "best" if self.leads else self.kind

    @cached_property
    def ending(self) -> tuple[float, float] | None:
        """(epoch, value) of the last finite value of the curve; None if there is none."""
        found = np.flatnonzero(np.isfinite(self.record.values))
        if not len(found):
            return None
        return float(self.record.epochs[found[-1]]), float(self.record.values[found[-1]])


@dataclass(frozen=True)
class KeptCheckpoints:
    count: int
    size: int  # bytes
    folder: str
    waiting: bool  # some are of trials that may continue


@dataclass(frozen=True)
class Digest:
    """Facts of a whole search."""

    problem: Problem
    history: History
    name: str
    rows: tuple[Row, ...]  # of all trials, or of the shown ones
    comparisons: Comparisons  # of all trials
    counts: Mapping[str, int]  # outcome -> number of all trials with it
    best: Best | None  # in the first goal
    trained: float  # epochs, each counted once
    again: float  # further epochs, which were lost and trained again
    savings: Savings  # of full trainings
    seconds: float  # wall-clock time while a worker held any trial
    outcome: str  # one sentence; "" if only a history is known
    over: bool
    held: bool = False  # stopped for now by a user
    idle: bool = False  # not over, but no process trains
    # first and last epoch of trials that were paused and not continued
    left: tuple[float, float] | None = None
    lifted: bool = False  # a larger budget may continue them
    kept: KeptCheckpoints | None = None  # None if only a history is known, or if there are none
    front: tuple[OnFront, ...] = ()  # if the study has several goals
    in_points: Callable[[], History | None] = lambda: None  # see `judged`
    audit: Audit | None = None  # None if no trials are audited, or if only a history is known

    @cached_property
    def judged(self) -> History | None:
        """The history in points, as models need it; None if only a history in another unit is known."""
        return self.in_points()

    @cached_property
    def levels(self) -> bool:
        """True if trials were measured at levels of noise."""
        return any("level" in row.record.tags for row in self.rows)

    @property
    def saved_share(self) -> float:
        return self.savings.epochs / self.whole if self.whole else 0.0

    @property
    def whole(self) -> float:
        return self.trained + self.savings.epochs + self.savings.itself

    @property
    def states(self) -> str:
        """The number of trials in each state: "6 trained in full, 13 stopped early"."""
        found = ((self.counts.get(kind, 0), words) for kind, words in OUTCOMES.items())
        return ", ".join(f"{counted(n)} {words[n > 1]}" for n, words in found if n)

    @property
    def trials(self) -> int:
        return sum(self.counts.values())


Source = StudyView | History  # a study, opened to search or for reading; or the history folded from its log


def digest(source: Source, most: int | None = None) -> Digest:
    """Return the facts of a study, read up to its newest event, or of a history.

    `most` limits the trials with a row. Raises InvalidInput for other sources.
    """
    study = source if isinstance(source, StudyView) else None
    if study is not None:
        study.sync()
        history, outcome, lost = study.history, study.outcome, study.lost
    elif isinstance(source, History):
        history, lost = source, frozenset()
        outcome = Outcome(history.finished is not None, history.finished or "")
    else:
        raise InvalidInput(f"A report needs a Study or its history. You gave {source!r}.")
    problem, best, trials = history.problem, history.best(), history.trials
    over = outcome.final
    front = tuple(history.on_front(id) for id in history.front()) if problem.further else ()
    shown: Sequence[int] = range(len(trials)) if most is None else shown_trials(history, most)
    if most and len(shown) < len(trials):  # the front may be bad in the goal that ranks
        shown = sorted({*shown, *(run.trial for run in front[:most])})
    lead = {run.trial for run in front} if problem.further else {best.trial if best else None}
    comparisons, again = Comparisons(history, over), trained_again(history)
    left = [t.epoch for t in trials if t.status is Status.PAUSED] if over else []
    audit = study.audit() if study is not None and problem.plain else None
    return Digest(
        problem=problem,
        history=history,
        name=study.name if study is not None else "study",
        rows=tuple(_row(comparisons, trials[id], lead, lost) for id in shown),
        comparisons=comparisons,
        counts=Counter(outcome_of(t, problem, over, lost).kind for t in trials),
        best=best,
        front=front,
        trained=history.spent.epochs - again,
        again=again,
        savings=Savings.of(history, over),
        seconds=history.spent.time,
        outcome=outcome.reason,
        over=outcome.over,
        held=outcome.held,
        idle=study is not None and study.idle,
        left=(min(left), max(left)) if left else None,
        lifted=history.finished is None,
        kept=_kept(study) if study is not None else None,
        in_points=lambda: study.judged if study else history if problem.in_points() is problem else None,
        audit=audit if audit and audit.share else None,
    )


def need_study(source: object) -> StudyView:
    """Return the source if it has a log. Raises InvalidInput otherwise."""
    if not isinstance(source, StudyView):
        raise InvalidInput(f"This report reads the log of a Study. You gave {source!r}. Give the Study.")
    return source


def story_of(source: object) -> Story:
    """Read a study up to its newest event and return its story. Raises InvalidInput as `need_study`."""
    study = need_study(source)
    study.sync()
    return Story(study.history.problem).fold(study.events())


def _kept(source: StudyView) -> KeptCheckpoints | None:
    """Return the checkpoints of trials that may continue and of the best: from the log, so that all ranks agree."""
    waiting = source.history.with_status(Status.PAUSED, Status.INTERRUPTED)
    paths = [t.checkpoint for t in waiting if t.checkpoint is not None]
    some = bool(paths)
    leads = source.pareto_front() if source.history.problem.further else [source.best]
    files = [(run.checkpoint, source.history.trial(run.trial).checkpoint) for run in leads if run is not None]
    paths += [path for kept in files for path in kept if path is not None]
    there = [Path(path) for path in dict.fromkeys(paths) if not source.checkpoints.missing(path)]
    size = sum(disk.size(file) for path in there for file in (path, *disk.siblings(path)))
    return KeptCheckpoints(len(there), size, str(source.checkpoints.folder), some) if there else None


def _row(comparisons: Comparisons, t: TrialRecord, lead: Container[int | None], lost: Set[int]) -> Row:
    history, over = comparisons.history, comparisons.over
    ended = t.status in (Status.STOPPED, Status.PAUSED, Status.INTERRUPTED)  # otherwise the trial declined the pause
    verdict = t.verdict if ended and t.verdict and t.verdict.stops else None
    found, values = outcome_of(t, history.problem, over, lost), t.counting(history.problem.goal)
    evidence = verdict.evidence if verdict else {}
    numbers = [(k, v) for k, v in evidence.items() if type(v) in (int, float) and math.isfinite(v)]
    silent = len(t.values) > 0 and not np.isfinite(t.values).any()
    return Row(
        record=t,
        leads=t.id in lead,
        kind=found.kind,
        outcome=found.words,
        value=float(values[-1]) if len(values) else None,
        reason=comparisons.reason(t) or "no value was finite" * silent,
        now=comparisons.now(t),
        evidence={k.replace("_", " "): short(v) for k, v in numbers[:6]},
        saved=saved_epochs(t, history.problem, over),
        several=bool(history.problem.further),
    )


def shown_trials(history: History, most: int) -> list[int]:
    if len(history) <= most:
        return list(range(len(history)))
    best = [id for group in history.ranked() for id in group][: most // 2]
    others = np.setdiff1d(np.arange(len(history)), best)
    # the lowest fractional parts of multiples of the golden ratio: evenly spaced, and a new trial changes one of them
    spread = others[np.argsort(others * _GOLDEN % 1.0, kind="stable")[: most - len(best)]]
    return sorted([*best, *spread.tolist()])


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """Return at most `most` of `count` indices: the middles of parts of equal length."""
    most = min(count, most)
    return (2 * np.arange(most) + 1) * count // (2 * most) if most else np.arange(0)


def most_points(curves: int) -> int:
    """Return the most points drawn for each curve if there are this many curves."""
    return min(FINEST, max(_FEWEST_POINTS, POINTS // max(1, curves)))


def points(record: TrialRecord, curves: int) -> NDArray[np.int64]:
    """Return the indices of a trial's reports to draw if there are this many curves."""
    values = record.values
    count, most = len(values), most_points(curves)
    if count <= most:
        return np.arange(count)
    width = -(-count // (most // 2 - 2))
    parts = np.full(-(-count // width) * width, np.nan)
    parts[:count] = np.where(np.isfinite(values), values, np.nan)
    table, first = parts.reshape(-1, width), np.arange(0, count, width)
    known = np.isfinite(table)  # a part without a finite value keeps its first point, which is a gap
    lowest = first + np.where(known, table, np.inf).argmin(axis=1)
    highest = first + np.where(known, table, -np.inf).argmax(axis=1)
    finite = np.flatnonzero(np.isfinite(values))
    ends = np.concatenate([[0, count - 1], finite[:1], finite[-1:]])
    return np.unique(np.concatenate([lowest, highest, ends])).astype(np.int64)
