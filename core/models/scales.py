"""Maps from heights to the targets of a model. A height is sign * value, so larger is better.

Metrics are skewed: many configurations are bad and alike, and good ones differ by little. How skewed, differs between
trainings. Two maps are used.

`LogRegrets` is a family with one parameter, the offset c. With r = (best - height) / (best - median),

    z = -log(1 + r / c),    target = SIZE (z - z(median)) / deviation of z

A small c spreads the values near the best, a large one keeps their distances. A search learns c with its kernel, by the
likelihood of its own heights: the density of the targets times the slope of the map at each height (Snelson, Rasmussen
and Ghahramani 2004, "Warped Gaussian processes").

`NormalScores` needs no fit: z = Phi^-1(rank) among all heights, and in part the height itself. Models of final values
use it, where each height stands for a share of the space.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtri

from haltune._utils.arrays import Array

from .curve_rows import CurveTable

SIZE = 0.4  # of a target's deviation: the priors of the stage process are for targets of about this size
LOWEST = -4.0 * SIZE
_WORST = 20.0  # times as far below the best as the median is: worse heights count as this one


def bottom(known: Array) -> float:
    """Return the height that all worse ones count as; known: (n,) finite heights."""
    return float(known.max()) - _WORST * _width(known)


def _width(known: Array) -> float:
    """Return the distance from the best to the median of heights (n,); if they are equal, to the worst."""
    return float(known.max() - np.median(known)) or float(np.ptp(known))


# -- log regrets, with a learnt offset

OFFSET = 0.3  # median of the prior of c
_OFFSET_SD = 1.5  # deviation of log c
OFFSETS = (0.01, 100.0)  # limits of c


@dataclass(frozen=True)
class LogRegrets:
    """The monotone map between heights and targets for one offset; straight above the best height."""

    best: float
    width: float  # from the best to the median height
    offset: float
    middle: float  # z of the median
    deviation: float  # of z

    def regrets(self, heights: Array) -> Array:
        """Return r of finite heights of any shape; of the worst ones the largest that counts."""
        return np.asarray(np.minimum((self.best - heights) / self.width, _WORST))

    def targets(self, heights: Array) -> Array:
        """Return the targets of finite heights of any shape."""
        r = self.regrets(heights)
        z = np.where(r < 0.0, -r / self.offset, -np.log1p(np.maximum(r, 0.0) / self.offset))
        return np.asarray(np.maximum(SIZE * (z - self.middle) / self.deviation, LOWEST))

    def height(self, targets: Array) -> Array:
        """Return the heights of targets: the inverse."""
        z = np.asarray(targets) * self.deviation / SIZE + self.middle
        r = self.offset * np.where(z > 0.0, -z, np.expm1(np.maximum(-z, 0.0)))
        return np.asarray(self.best - self.width * r)


@dataclass(frozen=True)
class Heights:
    """The heights of a study's rows, and the family of maps from them."""

    known: Array  # (n,) finite: one that diverged is below the worst by a width
    lowest: float  # the height that one which diverged counts as

    @classmethod
    def of(cls, rows: CurveTable) -> Heights | None:
        """Return None while no two finite heights differ."""
        finite = rows.height[np.isfinite(rows.height)]
        if not len(finite) or np.ptp(finite) == 0.0:
            return None
        lowest = float(finite.min()) - float(finite.max() - np.median(finite))
        return cls(np.where(np.isfinite(rows.height), rows.height, lowest), lowest)

    @cached_property
    def _width(self) -> float:
        return _width(self.known)

    @cached_property
    def _regrets(self) -> Array:
        return np.asarray(np.minimum((self.known.max() - self.known) / self._width, _WORST))

    @cached_property
    def _middle(self) -> float:
        return float(np.median(self._regrets))

    def map(self, offset: float = OFFSET) -> LogRegrets:
        z, middle = -np.log1p(self._regrets / offset), -math.log1p(self._middle / offset)
        return LogRegrets(float(self.known.max()), self._width, offset, middle, float(z.std()))

    def likelihood(self, heights: Array, log_offset: float) -> tuple[Array, Array, float, float]:
        """Return the targets (m,) of heights (m,), the log density that the map and the prior of c add, and slopes.

        The order is: targets, their slope by log c, the log density, its slope by log c. Heights that count as the
        worst, and those that diverged, add nothing: there the map is flat.
        """
        c = math.exp(log_offset)
        scale, every = self.map(c), self._regrets
        z, dz = -np.log1p(every / c), every / (c + every)
        d_deviation = float(((z - z.mean()) * (dz - dz.mean())).mean()) / scale.deviation
        d_middle = self._middle / (c + self._middle)
        r, targets = scale.regrets(heights), scale.targets(heights)
        slope = SIZE * (r / (c + r) - d_middle) / scale.deviation - targets * d_deviation / scale.deviation
        slope[targets <= LOWEST] = 0.0
        within = r[(heights > self.lowest) & (r < _WORST)]
        off = (log_offset - math.log(OFFSET)) / _OFFSET_SD
        added = -len(within) * math.log(scale.deviation) - np.log(c + within).sum() - 0.5 * off**2
        d_added = -len(within) * d_deviation / scale.deviation - (c / (c + within)).sum() - off / _OFFSET_SD
        return targets, slope, float(added), float(d_added)


# -- normal scores

_LINEAR = 0.4  # of a target: the part that is the height itself
_HIGHEST = 100.0 * SIZE  # of a target: the square of a larger one can overflow
_REACH = 4.0  # normal scores beyond the best trial that reach the best possible value


@dataclass(frozen=True)
class NormalScores:
    """A monotone map between heights and targets, straight beyond the heights that were seen."""

    heights: Array  # (k,) ascending
    scores: Array  # (k,)
    below: float  # height a score, beyond the ends
    above: float

    @classmethod
    def of(cls, heights: Array, shares: Array | None = None, top: float = -math.inf) -> NormalScores:
        """Make the map from finite heights (n,) of which two differ.

        shares: (n,) of the space, their sum 1; None: equal ones. top: the best possible height, where that is known.
        """
        u, which = np.unique(heights, return_inverse=True)
        share = np.bincount(which, np.full(len(heights), 1 / len(heights)) if shares is None else shares)
        ranks = np.cumsum(share) - 0.5 * share
        near = np.maximum(u, bottom(heights))
        unit = (near - near[0]) / (near[-1] - near[0])  # squares of tiny differences would be 0
        straight = (unit - np.interp(0.5, ranks, unit)) / math.sqrt(share @ np.square(unit - share @ unit))
        scores = SIZE * ((1.0 - _LINEAR) * ndtri(ranks) + _LINEAR * straight)
        k = max(1, len(u) // 4)  # a quarter of the heights gives the slope beyond an end, or all where its scores agree

        def slope(first: int, last: int) -> float:
            rise = scores[last] - scores[first]
            return float((u[last] - u[first]) / rise if rise > 0.0 else (u[-1] - u[0]) / (scores[-1] - scores[0]))

        return cls(u, scores, slope(0, k), max(slope(-1 - k, -1), (top - u[-1]) / (_REACH * SIZE)))

    def targets(self, heights: Array) -> Array:
        """Return the targets of heights of any shape; those that are not finite get the lowest."""
        v = np.where(np.isfinite(heights), heights, self.heights[0])
        low, high = np.minimum(v - self.heights[0], 0.0), np.maximum(v - self.heights[-1], 0.0)
        with np.errstate(over="ignore"):  # far beyond an end with tiny differences
            target = np.interp(v, self.heights, self.scores) + low / self.below + high / self.above
        return np.asarray(np.clip(target, LOWEST, _HIGHEST))

    def height(self, targets: Array) -> Array:
        """Return the heights of targets: the inverse."""
        low, high = np.minimum(targets - self.scores[0], 0.0), np.maximum(targets - self.scores[-1], 0.0)
        return np.asarray(np.interp(targets, self.scores, self.heights) + low * self.below + high * self.above)
