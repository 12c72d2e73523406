"""Decimal grids: the floats a parameter may take, chosen so that the way to the cube and back is exact.

A unit-cube coordinate cannot carry every double: `low + u * (high - low)` is off by an ulp or two. So
values live on a decimal grid far coarser than that error and far finer than any hyperparameter needs.
The members for bounds [low, high] are `low`, `high` and the grid points more than 0.6 of a step from
both; so a member is found again from anything closer to it than 0.4 of a step.

`DecimalGrid(exponent)`  multiples of 10**exponent, for linear parameters
`SignificantGrid()`      11 significant digits, for logarithmic ones: with |log x| up to 745 the error of
                         exp(log x) reaches 6e-13 of x, which 12 digits would only just bear
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from haltune._utils.arrays import Array

_DIGITS = 11
_LOWEST = -323  # the exponent of the smallest power of ten that is a double
_POWERS: Array = np.array([float(f"1e{e}") for e in range(_LOWEST, 309)])
_EXACT = 22  # 10**22 is the largest power of ten a double holds exactly


@dataclass(frozen=True)
class DecimalGrid:
    """Multiples of 10**exponent; an exponent under -323 means every double."""

    exponent: int

    @classmethod
    def spanning(cls, low: float, high: float) -> "DecimalGrid":
        """The grid for [low, high]: at least 1e-12 of the range and 1e-14 of the largest magnitude."""
        step = max((high - low) * 1e-12, max(abs(low), abs(high)) * 1e-14)
        return cls(math.ceil(math.log10(step) - 1e-9) if step > 0 else _LOWEST - 1)

    def snap(self, x: Array, low: Array, high: Array) -> Array:
        """The member nearest to x, within [low, high]; shapes broadcast."""
        if self.exponent < _LOWEST:
            return np.clip(x, low, high) + 0.0
        step = float(_POWERS[self.exponent - _LOWEST])
        return _between(x, _rounded(x, self.exponent), step, low, high)


@dataclass(frozen=True)
class SignificantGrid:
    """Positive numbers of 11 significant digits."""

    def snap(self, x: Array, low: Array, high: Array) -> Array:
        """The member nearest to x > 0, within [low, high]; shapes broadcast."""
        exponents = _decade(x) - (_DIGITS - 1)
        near = np.abs(exponents) <= _EXACT
        scale = _POWERS[np.where(near, np.abs(exponents), 0) - _LOWEST]
        fine = exponents < 0
        count = np.rint(np.where(fine, x * scale, x / scale))
        rounded = np.where(fine, count / scale, count * scale)
        if not near.all():
            rounded[~near] = [float(f"{value:.{_DIGITS - 1}e}") for value in x[~near].tolist()]
        # The step is that of the rounded value's decade: taken from x it would differ on the two sides
        # of a power of ten, and snapping twice could then give another value than snapping once.
        index = _decade(rounded) - (_DIGITS - 1) - _LOWEST
        step = np.where(index >= 0, _POWERS[np.maximum(index, 0)], 0.0)
        return _between(x, rounded, step, low, high)


def _decade(x: Array) -> NDArray[np.int64]:
    """floor(log10 x), exact also at the powers of ten, where a logarithm may land on either side."""
    return np.searchsorted(_POWERS, x, side="right").astype(np.int64) - 1 + _LOWEST


def _rounded(x: Array, exponent: int) -> Array:
    """x to the nearest multiple of 10**exponent, as the double that the decimal literal denotes."""
    if -_EXACT <= exponent < 0:
        scale = 10.0**-exponent
        return np.asarray(np.rint(x * scale) / scale)
    if 0 <= exponent <= _EXACT:
        scale = 10.0**exponent
        return np.asarray(np.rint(x / scale) * scale)
    return np.array([round(value, -exponent) for value in x.tolist()], dtype=np.float64)


def _between(x: Array, rounded: Array, step: Array | float, low: Array, high: Array) -> Array:
    margin = 0.6 * np.asarray(step)
    at_low, at_high = rounded - low <= margin, high - rounded <= margin
    nearer = np.where(x - low <= high - x, low, high)
    inner = np.where(at_low, low, np.where(at_high, high, rounded))
    return np.asarray(np.where(at_low & at_high, nearer, inner) + 0.0)
