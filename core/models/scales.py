"""Maps from heights to the targets of a model. A height is sign * value, so larger is better.

Metrics are skewed: many configurations are bad and alike, and good ones differ by little. How skewed, differs between
trainings. Two maps are used.

`Regrets` is a family of power transforms (Box and Cox 1964) with two parameters, the offset c and the power p. With
r = (best - height) / (best - median),

    z = -((1 + r / c)^p - 1) / p,    target = SIZE (z - z(median)) / deviation of z

p = 1 keeps distances; p = 0 is the log regret -log(1 + r / c), which spreads values near the best the more, the smaller
c is; below 0 the worst become alike. A search learns both with its kernel, by the likelihood of its own heights: the
density of the targets times the slope of the map at each height (Snelson, Rasmussen and Ghahramani 2004, "Warped
Gaussian processes").

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


# -- regrets, with a learnt offset and power

Shape = tuple[float, float]  # log c and p
USUAL: Shape = (math.log(0.3), 0.0)  # means of the prior
_SHAPE_SD = (1.5, 0.5)  # its deviations
SHAPES = ((math.log(0.01), math.log(100.0)), (-2.0, 1.0))  # limits
_LOG = 1e-6  # powers so near to 0 are 0


def _z(r: Array, shape: Shape) -> Array:
    log, p = np.log1p(r * math.exp(-shape[0])), shape[1]
    return np.asarray(-log if abs(p) < _LOG else -np.expm1(p * log) / p)


def _slopes(r: Array, shape: Shape) -> Array:
    """Return the slopes of z by log c and by p, (2, ...)."""
    c, p = math.exp(shape[0]), shape[1]
    log = np.log1p(r / c)
    if abs(p) < _LOG:
        by_power = -0.5 * log**2
    else:
        by_power = (np.expm1(p * log) / p - log * np.exp(p * log)) / p
    return np.stack([np.exp(p * log) * r / (c + r), by_power])


@dataclass(frozen=True)
class Regrets:
    """The monotone map between heights and targets for one shape; straight above the best height."""

    best: float
    width: float  # from the best to the median height
    shape: Shape
    middle: float  # z of the median
    deviation: float  # of z

    def targets(self, heights: Array) -> Array:
        """Return the targets of finite heights of any shape."""
        r = np.minimum((self.best - heights) / self.width, _WORST)
        z = np.where(r < 0.0, -r * math.exp(-self.shape[0]), _z(np.maximum(r, 0.0), self.shape))
        return np.asarray(np.maximum(SIZE * (z - self.middle) / self.deviation, LOWEST))

    def height(self, targets: Array) -> Array:
        """Return the heights of targets: the inverse. Targets below those of the worst height give that height."""
        (log_c, p), z = self.shape, np.asarray(targets) * self.deviation / SIZE + self.middle
        below = np.minimum(z, 0.0)
        if abs(p) < _LOG:
            log = -below
        else:
            with np.errstate(divide="ignore"):
                log = np.log(np.maximum(1.0 - p * below, 0.0)) / p
        log = np.minimum(log, math.log1p(_WORST * math.exp(-log_c)))
        r = math.exp(log_c) * np.where(z > 0.0, -z, np.expm1(log))
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
    def _median(self) -> Array:
        return np.asarray(np.median(self._regrets))

    def map(self, shape: Shape = USUAL) -> Regrets:
        z, middle = _z(self._regrets, shape), float(_z(self._median, shape))
        return Regrets(float(self.known.max()), self._width, shape, middle, float(z.std()))

    def likelihood(self, heights: Array, shape: Shape) -> tuple[Array, Array, float, Array]:
        """Return the targets (m,) of heights (m,), the log density that the map and its prior add, and slopes.

        The order is: targets, their slopes (2, m) by the shape, the log density, its slopes (2,). Heights that count as
        the worst, and those that diverged, add nothing: there the map is flat.
        """
        scale, (log_c, p) = self.map(shape), shape
        z, dz = _z(self._regrets, shape), _slopes(self._regrets, shape)
        centred = dz - dz.mean(axis=1, keepdims=True)
        d_deviation = (centred * (z - z.mean())).mean(axis=1) / scale.deviation
        r = np.minimum((scale.best - heights) / scale.width, _WORST)
        targets = scale.targets(heights)
        moved = SIZE * (_slopes(r, shape) - _slopes(self._median, shape)[:, None])
        slopes = (moved - np.outer(d_deviation, targets)) / scale.deviation
        slopes[:, targets <= LOWEST] = 0.0
        within = r[(heights > self.lowest) & (r < _WORST)]
        log, n = np.log1p(within * math.exp(-log_c)), len(within)
        off = (np.array(shape) - USUAL) / _SHAPE_SD
        added = (p - 1.0) * log.sum() - n * (log_c + math.log(scale.deviation)) - 0.5 * off @ off
        by_offset = (1.0 - p) * (within / (math.exp(log_c) + within)).sum() - n
        d_added = np.array([by_offset, log.sum()]) - n * d_deviation / scale.deviation - off / _SHAPE_SD
        return targets, slopes, float(added), d_added


# -- normal scores

_LINEAR = 0.4  # of a target: the part that is the height itself
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
        inside = np.interp(v, self.heights, self.scores)
        return np.asarray(np.maximum(inside + low / self.below + high / self.above, LOWEST))

    def height(self, targets: Array) -> Array:
        """Return the heights of targets: the inverse."""
        low, high = np.minimum(targets - self.scores[0], 0.0), np.maximum(targets - self.scores[-1], 0.0)
        return np.asarray(np.interp(targets, self.scores, self.heights) + low * self.below + high * self.above)
