"""What a model of all epochs learns from, folded from the log.

A row is what a trial counts for by an epoch, NaN where it diverged. Of each trial these are the first at or after the
epochs 1, 3, 9, 27, ... and the last before it paused or ended: a curve says little more in between. Rows keep the order
of the log. A trial that begins again, from a checkpoint or anew, loses the rows after that, as the history forgets
them; reports that come late or belong to an attempt that was superseded are none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from haltune._utils.arrays import Array, Indices
from haltune.log import events as ev
from haltune.log.events import Event, Status
from haltune.log.problem import Goal
from haltune.log.scores import measured
from haltune.policies.hyperband.persistent import Sparse

CurveRow = tuple[int, float, float]  # trial, epochs, raw value
Chunk = dict[int, CurveRow]
_EPOCH_RATIO = 3  # ratio of the epochs at which a curve is looked at


@dataclass(frozen=True, slots=True)
class CurveTable:
    """Rows as arrays (n,), with values as models take them (see log.scores)."""

    trial: Indices
    epoch: Array
    value: Array

    def __len__(self) -> int:
        return len(self.trial)

    def upto(self, count: int) -> CurveTable:
        """The first rows."""
        return CurveTable(self.trial[:count], self.epoch[:count], self.value[:count])


class Gathered:
    """The arrays of chunks of rows; versions of a mapping share all but one, so that little is read anew."""

    def __init__(self) -> None:
        self._kept: dict[
            int, tuple[Chunk, Array]
        ] = {}  # by identity; the chunk is held, so that it stays its own

    def table(self, chunks: tuple[Chunk, ...]) -> CurveTable:
        """All rows of some chunks in their order."""
        before = self._kept
        self._kept = {id(c): before.get(id(c)) or (c, _columns(c)) for c in chunks}
        parts = [columns for _, columns in self._kept.values()]
        trial, epoch, value = np.hstack(parts) if parts else np.empty((3, 0))
        return CurveTable(trial.astype(np.intp), epoch, measured(value))


def _columns(chunk: Chunk) -> Array:
    return np.array(list(chunk.values()), dtype=np.float64).reshape(len(chunk), 3).T


@dataclass(frozen=True, slots=True)
class TrialRows:
    """One trial."""

    attempt: int = 1
    held: bool = True  # by a worker: what is reported after that is not in its curve
    at: float = 0.0  # epochs of its last report
    value: float | None = None  # that it counts for by its last report in this attempt
    saved: float = 0.0  # epochs of its last checkpoint
    top: float = math.nan  # its best finite value
    kept: float = math.nan  # `top` at its last checkpoint
    rows: tuple[tuple[float, int], ...] = ()  # epochs and number of each of its rows


@dataclass(frozen=True, slots=True)
class CurveRows:
    """All rows so far; a value that is never changed."""

    goal: Goal
    rows: Sparse[CurveRow] = field(default_factory=Sparse)  # by their numbers
    count: int = 0  # rows that ever were: the next one's number
    trials: Sparse[TrialRows] = field(default_factory=Sparse)
    gathered: Gathered = field(default_factory=Gathered, repr=False, compare=False)

    def __len__(self) -> int:
        return self.rows.size

    @property
    def listed(self) -> list[CurveRow]:
        """The rows in the order of the log."""
        return [row for i in self.rows if (row := self.rows.get(i)) is not None]

    @property
    def table(self) -> CurveTable:
        """The same as arrays."""
        return self.gathered.table(self.rows.chunks)

    def fold(self, event: Event) -> CurveRows:
        """What is known after `event`."""
        if isinstance(event, ev.Started):
            return replace(self, trials=self.trials.put(event.trial, TrialRows()))
        if not isinstance(event, ev.TrialEvent) or (watched := self.trials.get(event.trial)) is None:
            return self
        if isinstance(event, ev.Resumed):
            return self._resumed(watched, event)
        if not isinstance(event, ev.AttemptEvent) or event.attempt != watched.attempt or not watched.held:
            return self  # superseded, or late
        if isinstance(event, ev.Reported):
            return self._reported(watched, event)
        if isinstance(event, ev.Checkpointed):
            return self._put(event.trial, replace(watched, saved=event.epoch, kept=watched.top))
        if isinstance(event, ev.Ended | ev.Expired):
            return self._let_go(event.trial, replace(watched, held=False), event.status)
        return self

    def _resumed(self, watched: TrialRows, e: ev.Resumed) -> CurveRows:
        """What came after the checkpoint is trained again."""
        saved, kept_top = (0.0, math.nan) if e.anew else (watched.saved, watched.kept)
        rows, kept = self.rows, []
        for epoch, number in watched.rows:
            if epoch <= saved:
                kept.append((epoch, number))
            else:
                rows = rows.drop(number)
        again = TrialRows(e.attempt, True, saved, None, saved, kept_top, kept_top, tuple(kept))
        return replace(self, rows=rows)._put(e.trial, again)

    def _reported(self, watched: TrialRows, e: ev.Reported) -> CurveRows:
        if e.epoch <= watched.at:
            return self  # seen before
        marked = _marked(watched.at, e.epoch)
        top = e.value if self.goal.better(e.value, watched.top) else watched.top
        value = top if self.goal.of == "best" and math.isfinite(e.value) else e.value
        watched = replace(watched, at=e.epoch, value=value, top=top)
        return self._add(e.trial, watched, value) if marked else self._put(e.trial, watched)

    def _let_go(self, trial: int, watched: TrialRows, status: Status) -> CurveRows:
        """Its last value counts, unless that epoch is trained again. One that failed without any diverged."""
        if status is Status.FAILED and not watched.rows:
            return self._add(trial, replace(watched, at=max(1.0, watched.at)), math.nan)
        known = bool(watched.rows) and watched.rows[-1][0] >= watched.at
        if known or status in (Status.FAILED, Status.INTERRUPTED) or watched.value is None:
            return self._put(trial, watched)
        return self._add(trial, watched, watched.value)

    def _add(self, trial: int, watched: TrialRows, value: float) -> CurveRows:
        """One row more, at the trial's last epoch."""
        watched = replace(watched, rows=(*watched.rows, (watched.at, self.count)))
        rows = self.rows.put(self.count, (trial, watched.at, value))
        return replace(self, rows=rows, count=self.count + 1)._put(trial, watched)

    def _put(self, trial: int, watched: TrialRows) -> CurveRows:
        return replace(self, trials=self.trials.put(trial, watched))


def _marked(before: float, epoch: float) -> bool:
    """Whether 1, 3, 9, 27, ... lies after one epoch and not after the other."""
    mark = 1
    while mark <= before:
        mark *= _EPOCH_RATIO
    return mark <= epoch
