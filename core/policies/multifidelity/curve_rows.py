"""What a model of all epochs learns from, folded from the log.

A row is what a trial counts for by an epoch, NaN where it diverged. Of each trial these are the first at or after the
epochs 1, 3, 9, 27, ... and the last before it paused or ended: a curve says little more in between. Rows keep the order
of the log. A trial that begins again, from a checkpoint or anew, loses the rows after that, as the history forgets
them; reports that come late or belong to an attempt that was superseded are none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array, Indices
from haltune.log import events as ev
from haltune.log.events import Event, Status
from haltune.log.history import History
from haltune.log.problem import Goal
from haltune.log.scores import measured
from haltune.space import Space
from haltune.space.domains import Float, bounding

CurveRow = tuple[int, float, float]  # trial, epochs, raw value
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
        return CurveTable(self.trial[:count], self.epoch[:count], self.value[:count])


@dataclass(slots=True)
class TrialRows:
    attempt: int = 1
    held: bool = True  # by a worker: what is reported after that is not in its curve
    at: float = 0.0  # epochs of its last report
    value: float | None = None  # that it counts for by its last report in this attempt
    saved: float = 0.0  # epochs of its last checkpoint
    top: float = math.nan  # its best finite value
    kept: float = math.nan  # `top` at its last checkpoint
    rows: list[tuple[float, int]] = field(default_factory=list)  # epochs and number of each of its rows


class CurveRows:
    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.rows: dict[int, CurveRow] = {}  # by their numbers
        self.count = 0  # rows that ever were: the next one's number
        self.trials: dict[int, TrialRows] = {}
        self._table: CurveTable | None = None  # of these rows, once it was asked for

    def __repr__(self) -> str:
        return f"CurveRows({self.rows}, {self.trials})"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def table(self) -> CurveTable:
        if self._table is None:
            trial, epoch, value = np.array(list(self.rows.values()), dtype=np.float64).reshape(len(self), 3).T
            self._table = CurveTable(trial.astype(np.intp), epoch, measured(value))
        return self._table

    def take(self, event: Event) -> None:
        if isinstance(event, ev.Started):
            self.trials[event.trial] = TrialRows()
        if not isinstance(event, ev.TrialEvent) or (t := self.trials.get(event.trial)) is None:
            return
        if isinstance(event, ev.Resumed):
            self._resumed(t, event)
        elif not isinstance(event, ev.AttemptEvent) or event.attempt != t.attempt or not t.held:
            return  # superseded, or late
        elif isinstance(event, ev.Reported):
            self._reported(t, event)
        elif isinstance(event, ev.Checkpointed):
            t.saved, t.kept = event.epoch, t.top
        elif isinstance(event, ev.Ended | ev.Expired):
            t.held = False
            self._ended(t, event.trial, event.status)

    def _resumed(self, t: TrialRows, e: ev.Resumed) -> None:
        """What came after the checkpoint is trained again."""
        saved, top = (0.0, math.nan) if e.anew else (t.saved, t.kept)
        kept = [row for row in t.rows if row[0] <= saved]
        for row in t.rows:
            if row[0] > saved:
                del self.rows[row[1]]
                self._table = None
        self.trials[e.trial] = TrialRows(e.attempt, True, saved, None, saved, top, top, kept)

    def _reported(self, t: TrialRows, e: ev.Reported) -> None:
        if e.epoch <= t.at:
            return  # seen before
        marked = _marked(t.at, e.epoch)
        t.at, t.top = e.epoch, e.value if self.goal.better(e.value, t.top) else t.top
        t.value = t.top if self.goal.of == "best" and math.isfinite(e.value) else e.value
        if marked:
            self._add(t, e.trial, t.value)

    def _ended(self, t: TrialRows, trial: int, status: Status) -> None:
        """Its last value counts, unless that epoch is trained again. One that failed without any diverged."""
        if status is Status.FAILED and not t.rows:
            t.at = max(1.0, t.at)
            self._add(t, trial, math.nan)
        known = bool(t.rows) and t.rows[-1][0] >= t.at
        if not (known or status in (Status.FAILED, Status.INTERRUPTED) or t.value is None):
            self._add(t, trial, t.value)

    def _add(self, t: TrialRows, trial: int, value: float) -> None:
        t.rows.append((t.at, self.count))
        self.rows[self.count] = (trial, t.at, value)
        self.count += 1
        self._table = None


def _marked(before: float, epoch: float) -> bool:
    """Whether 1, 3, 9, 27, ... lies after one epoch and not after the other."""
    mark = 1
    while mark <= before:
        mark *= _EPOCH_RATIO
    return mark <= epoch


_BEST_TRIALS = 5  # best trials that have neighbours among the candidates
_NEIGHBOUR_DEVIATION = 0.15  # deviation of a neighbour in the unit cube


def candidates(
    history: History, rows: CurveTable, count: int, rng: Generator, others: Array | None = None
) -> Array:
    """(n, d) random configurations, and neighbours of the best trials in about half of their coordinates.

    A third of `count` are neighbours, of `others` (k, d) as well, which are candidates themselves. All configurations,
    in a space with no more.
    """
    space, near = history.problem.space, count // 3
    if space.size is not None and space.size <= count:
        return space.encode_many(space.enumerate())
    tops = history.points[_best_trials(rows, history.problem.goal.sign)]
    others = np.empty((0, space.dim)) if others is None else others
    tops = np.vstack([tops, others])
    anywhere = rng.random((count - near, space.dim))
    base = tops[rng.integers(len(tops), size=near)]
    moved = base + (rng.random(base.shape) < 0.5) * rng.normal(0.0, _NEIGHBOUR_DEVIATION, base.shape)
    points = np.vstack([anywhere, np.clip(moved, 0.0, 1.0), others])
    return points if _free(space) else space.encode_many(space.decode_many(points))


def _best_trials(rows: CurveTable, sign: float) -> Indices:
    """The trials of the best values, best first, of equals the lower number; what is not finite last."""
    score = np.where(np.isfinite(rows.value), -sign * rows.value, np.inf)
    ranked = rows.trial[np.lexsort((rows.trial, score))]
    _, first = np.unique(ranked, return_index=True)
    return ranked[np.sort(first)[:_BEST_TRIALS]]


def first_untried(history: History, points: Array, value: Array) -> tuple[int, dict[str, Any]] | None:
    """The point (n, d) of largest value (n,) whose configuration breaks no constraint and was not tried, and that one.

    None when there is none. They are asked one by one, for it is slow.
    """
    space = history.problem.space
    for i in np.argsort(-value, kind="stable"):
        config = space.decode(points[i])
        if space.contains(config) and space.key_of_canonical(config) not in history.tried:
            return int(i), config
    return None


def _free(space: Space) -> bool:
    """True when a point and its configuration are one: all coordinates are numbers that depend on no other."""
    return all(isinstance(d, Float) and not d.when and not bounding(d) for d in space.parameters.values())


_ROWS_BETWEEN_FITS = (8, 100)  # rows between fits: a fifth of those there are, within these


def median_and_best(values: Array, first: Array, sign: float) -> tuple[float, float] | None:
    """sign * value: the median of the first trials' measured values, and the best of all (n,).

    The median is of all where none of the first trials' is finite. None when none of all is.
    """
    v = sign * values[np.isfinite(values)]
    if not len(v):
        return None
    early = sign * first[np.isfinite(first)]
    return float(np.median(early if len(early) else v)), float(v.max())


@dataclass(frozen=True, slots=True)
class TargetScale:
    """Targets of the model: 0 at the median of the first trials, 1 at the best so far, and nothing below -1.

    So runs that diverge are as bad as any, by however much they do; were they the scale, all others would look equal.
    The median is that of trials which were not chosen for their promise: among those that are, -1 would be close by.
    """

    sign: float  # of the goal
    centre: float  # sign * value
    width: float

    @classmethod
    def of(cls, values: Array, first: Array, sign: float) -> TargetScale | None:
        """From measured values (n,), and those of them that the first trials had; None when none is finite."""
        if (found := median_and_best(values, first, sign)) is None:
            return None
        centre, best = found
        width = best - centre
        return cls(sign, centre, width if width > 0 else max(abs(centre), 1.0))

    def targets(self, values: Array) -> Array:
        """Of measured values (n,); what is not finite is at the bottom."""
        v = np.where(np.isfinite(values), self.sign * values, -np.inf)
        with np.errstate(over="ignore"):  # divided by a small width
            return np.clip((v - self.centre) / self.width, -1.0, _ABOVE)

    def value(self, target: float) -> float:
        return self.sign * (self.centre + self.width * target)


_ABOVE = 10.0  # a first median and best that are nearly equal must not make the next value enormous


def fitted(count: int, first: int) -> int:
    """The last number of rows at which hyperparameters were fitted."""
    m, (least, most) = first, _ROWS_BETWEEN_FITS
    while (following := m + min(most, max(least, m // 5))) <= count:
        m = following
    return min(m, count)
