"""Values on one scale: the score on [0, 1], by bounds or learnt; the spans of several goals, and their Pareto front.

Notation: v = sign * value, so that larger is always better; score = (v - low) / (high - low),
clipped to [0, 1]; what is not finite scores 0. One vector dominates another when it is at least as good in every goal,
and better in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array, Mask
from haltune._utils.checks import LARGEST

from .problem import Goal

FALL = 0.05  # of the scale: a curve that ends so far below its best is judged by its best
_HEADROOM = 0.25  # of the span between low and the best: room for what has not been found yet


@dataclass(frozen=True, slots=True)
class Scale:
    """An affine map; `low` and `high` are in units of sign * value."""

    low: float
    high: float
    sign: float

    def score(self, values: ArrayLike) -> Array:
        """Scores on [0, 1] of raw values of any shape."""
        v = self.sign * np.asarray(values, dtype=np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            scores = (v - self.low) / (self.high - self.low)
        return np.where(np.isfinite(v), np.clip(scores, 0.0, 1.0), 0.0)

    def raw(self, scores: ArrayLike) -> Array:
        """Raw values of scores of any shape: what `score` takes back, where it clips nothing."""
        found = self.sign * (self.low + np.asarray(scores, dtype=np.float64) * (self.high - self.low))
        return np.asarray(found)


def measured(values: ArrayLike) -> Array:
    """Return values of any shape for models: NaN where a value is not finite, or beyond 1e60 in size.

    All values that are fitted, averaged or subtracted come through here: a loss of 1e150 is as wrong as an infinite
    one, of either sign. All other values pass as they are; trials are ranked by the values that were reported.
    """
    found = np.asarray(values, dtype=np.float64)
    return np.where(np.abs(found) <= LARGEST, found, np.nan)


def plausible(targets: ArrayLike, reach: float = 1e9) -> Array:
    """Measured v (n,), NaN also where one lies `reach` times as far below the best as the median does.

    Of an even number of them the better median; and `reach` times the best's own size, so that nothing is cut if half
    of the trials have the same result. A value that is farther would set the scale of all others in a model.
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
    """The scale of a goal with bounds; None when it has none."""
    if goal.bounds is None:
        return None
    low, high = sorted(goal.sign * b for b in goal.bounds)
    return Scale(low, high, goal.sign)


def learn(firsts: Sequence[float], best: float, sign: float) -> Scale | None:
    """A scale from what was seen: 0 at a typical first epoch, 1 somewhat above the best.

    firsts: the first v of each trial that is measured; best: the largest of all. The gap from
    best to 0 is the median of best - first, the better of the two middle ones when their number
    is even, and at most ten times its lower quartile. So trials that diverge cannot stretch the
    scale: not when up to half of them do, and by no more than tenfold when up to three in four do.
    None before anything was measured.
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

    low: float  # where curves begin
    worst: float  # of the front
    high: float  # somewhat above the best
    sign: float

    @classmethod
    def before(cls, goal: Goal, scale: Scale | None = None) -> Span:
        """Before there is a front: by a scale that is known, by bounds, or by values as they stand."""
        known = scale or given(goal) or Scale(0.0, 1.0, goal.sign)
        return cls(known.low, known.low, known.high, goal.sign)

    @property
    def unit(self) -> float:
        """From the worst to the best."""
        return self.high - self.worst

    def outgrown_by(self, new: Span) -> bool:
        """See `outgrown`."""
        ends = Scale(self.worst, self.high, self.sign), Scale(new.worst, new.high, new.sign)
        return outgrown(*ends) or abs(new.low - self.low) > 0.25 * (self.high - self.low)


def learn_spans(vectors: Array, on_front: Mask, firsts: Array, goals: Sequence[Goal]) -> dict[str, Span]:
    """By metric: `learn_from_front`; vectors: (n, goals) sign * value, measured; firsts: (goals, trials), NaN: none."""
    known = [row[~np.isnan(row)].tolist() for row in firsts]
    every = zip(goals, vectors.T, known, strict=True) if len(vectors) else ()
    return {goal.metric: learn_from_front(column, on_front, row, goal) for goal, column, row in every}


def learn_from_front(column: Array, on_front: Mask, firsts: Sequence[float], goal: Goal) -> Span:
    """Learn the span of a goal from the results of trials.

    column: (n,) sign * value, all measured; firsts: of each trial the first. A unit by the spread of all trials would
    shrink as a search looks where one goal is at its best, and make it look there the more; the number of trials at one
    end of the front does not move this one. It is at most ten times the median gap of the front, so that a trial which
    diverged and is the best in another goal cannot stretch it; if the front has no gap, all trials take its place.
    """
    best = float(column.max())
    gaps = next((g for c in (column[on_front], column) if len(g := _gaps(best, c))), np.zeros(1))
    ends = _within(best, min(gaps[-1], 10.0 * gaps[(len(gaps) - 1) // 2]), goal.sign)
    curves = given(goal) or learn(firsts, best, goal.sign)
    return Span(ends.low if curves is None else min(curves.low, ends.low), ends.low, ends.high, goal.sign)


def _gaps(best: float, column: Array) -> Array:
    """Ascending, of those below the best by more than the last digits."""
    gaps = np.sort(best - column)
    return np.asarray(gaps[gaps > 1e-9 * abs(best)])


def _within(best: float, gap: float, sign: float) -> Scale:
    if not gap > 1e-9 * abs(best):  # a constant metric: any width will do
        gap = max(0.1 * abs(best), 1e-6)
    return Scale(float(best - gap), float(best + _HEADROOM * gap), sign)


def outgrown(old: Scale | None, new: Scale) -> bool:
    """True when `new` differs from `old`: the best neared its top, or the bottom moved."""
    if old is None:
        return True
    span = old.high - old.low
    used = (new.high - old.low) / span  # 1 when nothing changed
    return not 0.8 < used < 1.15 or abs(new.low - old.low) > 0.25 * span


# -- which of several vectors no other dominates: the Pareto front -----------------------------------


def dominates(one: Array, others: Array) -> Mask:
    """(n,) whether a vector (m,), larger better, dominates each of others (n, m)."""
    return np.asarray((one >= others).all(axis=-1) & (one > others).any(axis=-1))


def non_dominated(vectors: Array) -> Mask:
    """(n,) True where no other of the vectors (n, m), larger better, dominates; equal ones do not dominate each other.

    The best in the first goal come first, of equals those that are better in the second, and so on: then what dominates
    a vector stands before it, and it is enough to look at those that are on the front already.
    """
    found = np.zeros(len(vectors), dtype=bool)
    front = np.empty((0, vectors.shape[1]))
    for i in np.lexsort(-vectors.T[::-1]):
        one = vectors[i]
        if not ((front >= one).all(axis=1) & (front > one).any(axis=1)).any():
            found[i] = True
            front = np.vstack([front, one])
    return found
