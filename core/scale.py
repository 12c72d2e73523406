"""The map from a metric's own units to a score on [0, 1], given by bounds or learnt.

Notation: v = sign * value, so that larger is always better; score = (v - low) / (high - low),
clipped to [0, 1]; what is not finite scores 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .problem import Goal

_HUGE = 1e300  # beyond it differences would overflow
FALL = 0.05  # of the scale: a curve that ends so far below its best is judged by its best
_HEADROOM = 0.25  # of the span between low and the best: room for what has not been found yet


@dataclass(frozen=True, slots=True)
class Scale:
    """An affine map; `low` and `high` are in units of sign * value."""

    low: float
    high: float
    sign: float

    def score(self, values: ArrayLike) -> NDArray[np.float64]:
        """Scores on [0, 1] of raw values of any shape."""
        v = self.sign * np.asarray(values, dtype=np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            scores = (v - self.low) / (self.high - self.low)
        return np.where(np.isfinite(v), np.clip(scores, 0.0, 1.0), 0.0)


def given(goal: Goal) -> Scale | None:
    """The scale of a goal with bounds; None when it has none."""
    if goal.bounds is None:
        return None
    low, high = sorted(goal.sign * b for b in goal.bounds)
    return Scale(low, high, goal.sign)


def learn(firsts: Sequence[float], best: float, sign: float) -> Scale | None:
    """A scale from what was seen: 0 at a typical first epoch, 1 somewhat above the best.

    firsts: the first finite v of each trial; best: the largest finite v of all. The gap from
    best to 0 is the median of best - first, the better of the two middle ones when their number
    is even, and at most ten times its lower quartile. So runs that diverge cannot stretch the
    scale: not when up to half of them do, and by no more than tenfold when up to three in four do.
    None before anything finite was seen.
    """
    if not len(firsts):
        return None
    best = min(max(best, -_HUGE), _HUGE)
    gaps = np.sort(best - np.clip(np.asarray(firsts, dtype=np.float64), -_HUGE, _HUGE))
    median, quartile = gaps[(len(gaps) - 1) // 2], gaps[(len(gaps) - 1) // 4]
    gap = min(median, 10.0 * quartile) if quartile > 0 else median
    if not gap > 1e-9 * abs(best):  # a constant metric: any width will do
        gap = max(0.1 * abs(best), 1e-6)
    return Scale(float(best - gap), float(best + _HEADROOM * gap), sign)


def outgrown(old: Scale | None, new: Scale) -> bool:
    """True when `new` says something that `old` does not: the best neared its top, or the bottom moved."""
    if old is None:
        return True
    span = old.high - old.low
    used = (new.high - old.low) / span  # 1 when nothing changed
    return not 0.8 < used < 1.15 or abs(new.low - old.low) > 0.25 * span
