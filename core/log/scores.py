"""Values on one scale: the score on [0, 1], by bounds or learnt; the spans of several goals, and their Pareto front.

Notation: v = sign * value, so that larger is always better. score = (v - low) / (high - low), clipped to [0, 1]; a
value that is not finite scores 0. One vector dominates another if it is at least as good in every goal and better in
one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array, Mask
from haltune._utils.checks import LARGEST

from .problem import Goal

_HEADROOM = 0.25  # of the distance from low to best: for better values that are not found yet


@dataclass(frozen=True, slots=True)
class Scale:
    """An affine map; `low` and `high` are in units of sign * value."""

    low: float
    high: float
    sign: float

    def score(self, values: ArrayLike) -> Array:
        v = self.sign * np.asarray(values, dtype=np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            scores = (v - self.low) / (self.high - self.low)
        return np.where(np.isfinite(v), np.clip(scores, 0.0, 1.0), 0.0)

    def raw(self, scores: ArrayLike) -> Array:
        """Return the values of scores of any shape: the inverse of `score` without its clipping."""
        found = self.sign * (self.low + np.asarray(scores, dtype=np.float64) * (self.high - self.low))
        return np.asarray(found)


def measured(values: ArrayLike) -> Array:
    """Return values of any shape for models: NaN if a value is not finite or its size is above 1e60.

    All values that are fitted, averaged or subtracted pass through here: a loss of 1e150 is as wrong as an infinite
    one. Other values do not change. Trials are ranked by the reported values.
    """
    found = np.asarray(values, dtype=np.float64)
    return np.where(np.abs(found) <= LARGEST, found, np.nan)


def plausible(targets: ArrayLike, reach: float = 1e9) -> Array:
    """Return v (n,), with NaN for a value much further below the best than the median is: `reach` times as far.

    For an even number, the better of the two medians counts. The distance is at least `reach` times the best's size, so
    that nothing is removed if half of the trials have the same result. A value beyond it would set a model's scale.
    """
    v = np.array(targets, dtype=np.float64)
    known = v[~np.isnan(v)]
    if not len(known):
        return v
    best = known.max()
    gaps = np.sort(best - known)
    farthest = reach * max(gaps[(len(gaps) - 1) // 2], abs(best))
    return np.where(best - v > farthest, np.nan, v) if farthest > 0.0 else v


def given(goal: Goal) -> Scale | None:
    if goal.bounds is None:
        return None
    low, high = sorted(goal.sign * b for b in goal.bounds)
    return Scale(low, high, goal.sign)


def learn(firsts: Sequence[float], best: float, sign: float) -> Scale | None:
    """Return a scale learnt from values: 0 at a typical first epoch, 1 somewhat above the best.

    firsts: the first finite v of each trial; best: the largest of all. The gap from best to 0 is the median of
    best - first (of two middle ones the better), but at most ten times the lower quartile. Trials that diverge
    therefore cannot stretch the scale if they are up to half, and by at most a factor of ten if up to three quarters.
    None without values.
    """
    if not len(firsts) or best == -np.inf:
        return None
    best = min(max(best, -LARGEST), LARGEST)
    gaps = np.sort(best - np.clip(np.asarray(firsts, dtype=np.float64), -LARGEST, LARGEST))
    median, quartile = gaps[(len(gaps) - 1) // 2], gaps[(len(gaps) - 1) // 4]
    gap = min(median, 10.0 * quartile) if quartile > 0 else median
    return _within(best, gap, sign)


@dataclass(frozen=True, slots=True)
class Span:
    """The scale of one of several goals for scalarization; in units of sign * value, low <= worst < high."""

    low: float  # where curves start
    worst: float  # on the Pareto front
    high: float  # somewhat above the best
    sign: float

    @classmethod
    def before(cls, goal: Goal, scale: Scale | None = None) -> Span:
        """Return the span without a front: from a known scale, from bounds, or [0, 1]."""
        known = scale or given(goal) or Scale(0.0, 1.0, goal.sign)
        return cls(known.low, known.low, known.high, goal.sign)

    @property
    def unit(self) -> float:
        return self.high - self.worst

    def outgrown_by(self, new: Span) -> bool:
        ends = Scale(self.worst, self.high, self.sign), Scale(new.worst, new.high, new.sign)
        return outgrown(*ends) or abs(new.low - self.low) > 0.25 * (self.high - self.low)


def learn_spans(vectors: Array, on_front: Mask, firsts: Array, goals: Sequence[Goal]) -> dict[str, Span]:
    """Return `learn_from_front` by metric. vectors: (n, goals) finite sign * value; firsts: (goals, trials) or NaN."""
    known = [row[~np.isnan(row)].tolist() for row in firsts]
    every = zip(goals, vectors.T, known, strict=True) if len(vectors) else ()
    return {goal.metric: learn_from_front(column, on_front, row, goal) for goal, column, row in every}


def learn_from_front(column: Array, on_front: Mask, firsts: Sequence[float], goal: Goal) -> Span:
    """Return the span of a goal, learnt from the results of trials.

    column: (n,) finite sign * value; firsts: the first value of each trial. The scale comes from the Pareto front. A
    scale from all trials would shrink as the search samples near one goal's best, which would attract it there even
    more. The number of trials at one end of the front does not move this scale. It is at most ten times the median gap
    of the front, so that a diverged trial that is best in another goal cannot stretch it. If the front has no gap, all
    trials are used.
    """
    best = float(column.max())
    gaps = next((g for c in (column[on_front], column) if len(g := _gaps(best, c))), np.zeros(1))
    ends = _within(best, min(gaps[-1], 10.0 * gaps[(len(gaps) - 1) // 2]), goal.sign)
    curves = given(goal) or learn(firsts, best, goal.sign)
    return Span(ends.low if curves is None else min(curves.low, ends.low), ends.low, ends.high, goal.sign)


def _gaps(best: float, column: Array) -> Array:
    """Return the ascending gaps below the best that exceed rounding errors."""
    gaps = np.sort(best - column)
    return np.asarray(gaps[gaps > 1e-9 * abs(best)])


def _within(best: float, gap: float, sign: float) -> Scale:
    if not gap > 1e-9 * abs(best):  # a constant metric: any width works
        gap = 0.1 * abs(best) or 1e-6
    return Scale(float(best - gap), float(best + _HEADROOM * gap), sign)


def outgrown(old: Scale | None, new: Scale) -> bool:
    """Return whether `new` differs from `old`: the best value came near its top, or the bottom moved."""
    if old is None:
        return True
    span = old.high - old.low
    used = (new.high - old.low) / span  # 1 if nothing changed
    return not 0.8 < used < 1.15 or abs(new.low - old.low) > 0.25 * span


# -- the Pareto front --------------------------------------------------------------------------------


def dominates(one: Array, others: Array) -> Mask:
    """Return (n,) true where a vector (m,) dominates one of others (n, m); larger is better."""
    return np.asarray((one >= others).all(axis=-1) & (one > others).any(axis=-1))


def non_dominated(vectors: Array) -> Mask:
    """Return (n,) true where no other vector (n, m) dominates; larger is better. Equal vectors do not dominate.

    Vectors are sorted by the first goal, then by the second, and so on. A vector that dominates another then comes
    before it, so it is enough to compare with the front found so far.
    """
    found = np.zeros(len(vectors), dtype=bool)
    front = np.empty((0, vectors.shape[1]))
    for i in np.lexsort(-vectors.T[::-1]):
        one = vectors[i]
        if not ((front >= one).all(axis=1) & (front > one).any(axis=1)).any():
            found[i] = True
            front = np.vstack([front, one])
    return found
