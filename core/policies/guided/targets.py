"""What a model of all epochs is to foretell: values on a scale of their own; and when it learns its hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from haltune._utils.arrays import Array

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
        """The metric that a target stands for."""
        return self.sign * (self.centre + self.width * target)


_ABOVE = 10.0  # a first median and best that are nearly equal must not make the next value enormous


def fitted(count: int, first: int) -> int:
    """The last number of rows at which hyperparameters were fitted."""
    m, (least, most) = first, _ROWS_BETWEEN_FITS
    while (following := m + min(most, max(least, m // 5))) <= count:
        m = following
    return min(m, count)
