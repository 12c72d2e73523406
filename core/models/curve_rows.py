"""The values of trials that a model learns from, folded from the log.

A row is the value of a trial at an epoch, NaN where it diverged. Each trial has a row for its first report at or after
each of the epochs 1, 3, 9, ... (times the first rung), and for its last before it paused or ended: the values in
between add little. If a training ends by itself, its last value is that of a full training. Rows keep the order of the
log. A trial that starts again, or resumes from a checkpoint, loses its later rows, as in the history. Late reports, and
those of a superseded attempt, are left out. A value that its program gave up is no longer the best.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from operator import itemgetter

import numpy as np

from haltune._utils.arrays import Array, Indices, Mask
from haltune.log import events as ev
from haltune.log.events import Event, Status
from haltune.log.problem import Goal
from haltune.log.scores import measured

CurveRow = tuple[int, float, float]  # trial, epochs, raw value
_EPOCH_RATIO = 3  # ratio of the epochs of rows


@dataclass(frozen=True, slots=True)
class CurveTable:
    """Rows as arrays (n,), with heights: sign * value, larger is better, NaN where it diverged (see log.scores)."""

    trial: Indices
    epoch: Array
    height: Array

    def __len__(self) -> int:
        return len(self.trial)

    @property
    def key(self) -> tuple[bytes, ...]:
        return (self.trial.tobytes(), self.epoch.tobytes(), self.height.tobytes())

    def at(self, kept: slice | Mask) -> CurveTable:
        return CurveTable(self.trial[kept], self.epoch[kept], self.height[kept])


@dataclass(slots=True)
class TrialRows:
    attempt: int = 1
    held: bool = True  # by a worker; later reports are not in its curve
    partial: bool = False  # never a full training
    at: float = 0.0  # epochs of its last report
    value: float | None = None  # with which it counts after its last report; None: it has none
    saved: float = 0.0  # epochs of its last checkpoint
    top: float = math.nan  # its best finite value
    kept: tuple[float, float | None] = (math.nan, None)  # `top` and `value` at its last checkpoint
    rows: list[tuple[float, int]] = field(default_factory=list)  # epochs and number of each of its rows
    bests: list[tuple[float, float, float]] = field(default_factory=list)  # epochs, value and `trained` of each `best`


class CurveRows:
    def __init__(self, goal: Goal, first: int = 1, end: float = 0.0, full: float = 0.0) -> None:
        """Keep a row at the epochs first, 3 first, 9 first, ...; the best value is one at epoch `end` or later.

        full: epochs of a full training; 0: a training that ends by itself counts at its own last epoch.
        """
        self.goal, self.first, self.end, self.full = goal, first, end, full
        self.rows: dict[int, CurveRow] = {}  # by their numbers
        self.count = 0  # of all rows ever: the number of the next
        self.trials: dict[int, TrialRows] = {}
        self.trained = 0.0  # epochs of all trials
        self.best, self.best_at = math.nan, 0.0  # the best value, and `trained` then
        self._table: CurveTable | None = None  # of these rows; None: not made yet

    def __repr__(self) -> str:
        return f"CurveRows({self.rows}, {self.trials})"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def table(self) -> CurveTable:
        if self._table is None:
            trial, epoch, value = np.array(list(self.rows.values()), dtype=np.float64).reshape(len(self), 3).T
            self._table = CurveTable(trial.astype(np.intp), epoch, self.goal.sign * measured(value))
        return self._table

    def take(self, event: Event) -> None:
        if isinstance(event, ev.Started):
            self.trials[event.trial] = TrialRows(partial=event.partial)
        if not isinstance(event, ev.TrialEvent) or (t := self.trials.get(event.trial)) is None:
            return
        if isinstance(event, ev.Resumed):
            self._resumed(t, event)
        elif not isinstance(event, ev.AttemptEvent) or event.attempt != t.attempt or not t.held:
            return  # superseded, or late
        elif isinstance(event, ev.Reported):
            self._reported(t, event)
        elif isinstance(event, ev.Checkpointed):
            t.saved, t.kept = event.epoch, (t.top, t.value)
        elif isinstance(event, ev.Ended | ev.Expired):
            t.held = False
            self._ended(t, event.trial, event.status)

    def _resumed(self, t: TrialRows, e: ev.Resumed) -> None:
        """Forget the rows after the checkpoint: these epochs are trained again."""
        saved, kept = (0.0, (math.nan, None)) if e.anew else (t.saved, t.kept)
        for epoch, number in t.rows:
            if epoch > saved:
                del self.rows[number]
                self._table = None
        t.rows = [row for row in t.rows if row[0] <= saved]
        t.attempt, t.held, t.at, t.saved, t.kept = e.attempt, True, saved, saved, kept
        t.top, t.value = kept
        bests = [best for best in t.bests if best[0] <= saved or not e.given_up]
        if len(bests) < len(t.bests):
            t.bests = bests
            self.best, self.best_at = math.nan, 0.0
            for _, value, at in sorted((best for t in self.trials.values() for best in t.bests), key=itemgetter(2)):
                self._beats(value, at)

    def _reported(self, t: TrialRows, e: ev.Reported) -> None:
        if e.epoch <= t.at:
            return  # seen before
        marked = _marked(t.at, e.epoch, self.first)
        self.trained += 0.0 if e.copied else e.epoch - t.at
        if e.epoch >= self.end:
            self._full(t, e.epoch, e.value)
        t.at, t.top = e.epoch, e.value if self.goal.better(e.value, t.top) else t.top
        t.value = t.top if self.goal.of == "best" and math.isfinite(t.top) else e.value
        if marked:
            self._add(t, e.trial, t.value)

    def _ended(self, t: TrialRows, trial: int, status: Status) -> None:
        """Add the last value, unless its epoch is trained again; a failed trial diverged, even after a good value.

        Otherwise the search would propose again what runs out of memory after some epochs.
        """
        if status is Status.FAILED:
            t.at = max(1.0, t.at)
            self._add(t, trial, math.nan)
        elif status is not Status.INTERRUPTED and t.value is not None:
            if status is Status.COMPLETED and t.at < self.full and not t.partial:
                t.at = self.full
                self._full(t, t.at, t.value)
            if not t.rows or t.rows[-1][0] < t.at:
                self._add(t, trial, t.value)

    def _full(self, t: TrialRows, epoch: float, value: float) -> None:
        """Record a value that may be the best."""
        if self.goal.better(value, t.bests[-1][1] if t.bests else math.nan):
            t.bests.append((epoch, value, self.trained))
        self._beats(value, self.trained)

    def _beats(self, value: float, at: float) -> None:
        if self.goal.better(value, self.best):
            self.best, self.best_at = value, at

    def _add(self, t: TrialRows, trial: int, value: float) -> None:
        t.rows.append((t.at, self.count))
        self.rows[self.count] = (trial, t.at, value)
        self.count += 1
        self._table = None


def _marked(before: float, epoch: float, mark: int) -> bool:
    """Return whether one of mark, 3 mark, 9 mark, ... lies in (before, epoch]."""
    while mark <= before:
        mark *= _EPOCH_RATIO
    return mark <= epoch
