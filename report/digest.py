"""What a search did, as plain facts: one `Row` a trial, and the totals. Everything shown is made from these."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from haltune.decisions import Action
from haltune.errors import InvalidInput
from haltune.events import Status
from haltune.explain import saved_epochs, saved_seconds
from haltune.history import Best, History, TrialRecord
from haltune.problem import Problem
from haltune.study import Study

from .wording import short

if TYPE_CHECKING:
    from collections.abc import Mapping

_WORDS = {
    Status.COMPLETED: "trained in full",
    Status.STOPPED: "stopped early",
    Status.PAUSED: "paused",
    Status.FAILED: "failed",
    Status.INTERRUPTED: "interrupted",
    Status.RUNNING: "running",
}


@dataclass(frozen=True)
class Row:
    """One trial as it is shown. Texts are as the user typed them: whoever prints them escapes them."""

    record: TrialRecord
    leads: bool  # it holds the best configuration found
    outcome: str  # a few words
    reason: str  # one sentence, "" when there is nothing to say
    evidence: Mapping[str, str]  # the verdict's main numbers, in words
    saved: float  # epochs of a full training it did not need

    @property
    def group(self) -> str:
        """How it is drawn: "best", or its status."""
        return "best" if self.leads else str(self.record.status)

    @property
    def ending(self) -> tuple[float, float] | None:
        """(epoch, value) of the last finite value of the curve; None when there is none."""
        found = np.flatnonzero(np.isfinite(self.record.values))
        if not len(found):
            return None
        return float(self.record.epochs[found[-1]]), float(self.record.values[found[-1]])


@dataclass(frozen=True)
class Digest:
    """A whole search."""

    problem: Problem
    name: str
    rows: tuple[Row, ...]
    best: Best | None
    trained: float  # epochs, superseded attempts included
    saved: float  # epochs that stopped trials did not need
    saved_seconds: float  # about
    seconds: float  # wall-clock while any trial was held
    outcome: str  # one sentence, "" when only a history is known
    over: bool

    @cached_property
    def levels(self) -> bool:
        """True when trials were measured at levels of noise."""
        return any("level" in row.record.tags for row in self.rows)

    @property
    def saved_share(self) -> float:
        """Saved epochs as a share of saved and trained ones."""
        return self.saved / total if (total := self.saved + self.trained) else 0.0

    @property
    def states(self) -> str:
        """How many trials are in which state: "6 trained in full, 13 stopped early"."""
        counts = Counter(r.record.status for r in self.rows)
        return ", ".join(f"{counts[status]} {word}" for status, word in _WORDS.items() if counts[status])


def digest(source: Study | History) -> Digest:
    """The facts of a study, read up to its newest event, or of a history.

    Raises InvalidInput for anything else.
    """
    if isinstance(source, Study):
        source.sync()
        outcome = source.outcome
        return _digest(source.history, source.name, outcome.reason, outcome.over)
    if isinstance(source, History):
        return _digest(source, "study", source.finished or "", source.finished is not None)
    raise InvalidInput(f"a report is made of a Study or its history, not of {source!r}")


def _digest(history: History, name: str, outcome: str, over: bool) -> Digest:
    best, trials = history.best(), history.trials
    return Digest(
        problem=history.problem,
        name=name,
        rows=tuple(_row(history, t, best) for t in trials),
        best=best,
        trained=history.spent.epochs,
        saved=sum(saved_epochs(history, t) for t in trials),
        saved_seconds=sum(saved_seconds(history, t) for t in trials),
        seconds=history.spent.time,
        outcome=outcome,
        over=over,
    )


def _row(history: History, t: TrialRecord, best: Best | None) -> Row:
    verdict = t.verdict if t.verdict and t.verdict.action in (Action.STOP, Action.PAUSE) else None
    return Row(
        record=t,
        leads=best is not None and best.trial == t.id,
        outcome=_WORDS[t.status],
        reason=t.error or (verdict.reason if verdict else _silence(t)),
        evidence=_numbers(verdict.evidence) if verdict else {},
        saved=saved_epochs(history, t),
    )


def _silence(t: TrialRecord) -> str:
    if len(t.values) and not np.isfinite(t.values).any():
        return "no value was finite"
    return ""


def _numbers(evidence: Mapping[str, object]) -> dict[str, str]:
    """The first few single numbers of the evidence."""
    numbers = {k: v for k, v in evidence.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}
    return {k.replace("_", " "): short(v) for k, v in list(numbers.items())[:6] if math.isfinite(v)}
