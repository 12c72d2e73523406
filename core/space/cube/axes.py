"""Axes: the maps between one parameter's column of values and its coordinates in the unit cube, vectorised.

A column holds floats, ints, or, for a choice, indices of its options. u: (n, width) in [0, 1]. Bounds
are arrays that broadcast against the column, so each row may have its own.

linear float   value = low + u (high - low), snapped to its grid
log float      value = low (high / low)^u, snapped to its grid
int            `count` cells of equal width; a value sits in the middle of its cell
log int        cells [log(v - 1/2), log(v + 1/2)]; a value sits at log v
ordered choice like an int over the options' indices
choice         one-hot: decoded as the largest coordinate
"""

import copy
import math
import numbers
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from haltune._utils.arrays import Array
from haltune.errors import InvalidSpace

from ..domains import LARGEST_INT, Constant, Domain, Float, Int
from ..values import as_float, is_mutable, plain_value, token
from .decimals import DecimalGrid, SignificantGrid

Column = NDArray[Any]  # float64, or int64 for ints and indices
Grid = DecimalGrid | SignificantGrid
_STRAIGHT = 1.0001  # below this ratio a logarithm is a line to 1e-4 and blurs neighbouring doubles


class Axis(Protocol):
    """What a space needs to know of one parameter."""

    @property
    def width(self) -> int: ...
    @property
    def continuous(self) -> bool: ...
    @property
    def centre(self) -> float: ...
    @property
    def blank(self) -> Column: ...
    def encode(self, column: Column, low: Column, high: Column) -> Array: ...
    def decode(self, u: Array, low: Column, high: Column) -> Column: ...
    def spread(self, coordinate: Array) -> Array: ...
    def read(self, name: str, values: list[Any]) -> Column: ...
    def settle(self, column: Column, low: Column, high: Column) -> Column: ...
    def write(self, column: Column) -> list[Any]: ...


def axis_of(domain: Domain, low: float, high: float) -> Axis:
    """The axis of a domain whose outermost bounds are low and high."""
    if isinstance(domain, Float):
        return FloatAxis(SignificantGrid() if domain.log else DecimalGrid.spanning(low, high), domain.log)
    if isinstance(domain, Int):
        return IntAxis(domain.log)
    if isinstance(domain, Constant):
        return OptionAxis((domain.value,), 0)
    return OptionAxis(domain.options, 1 if domain.ordered else len(domain.options), domain.ordered)


@dataclass(frozen=True)
class FloatAxis:
    """One coordinate, linear or logarithmic."""

    grid: Grid
    log: bool
    width: int = 1
    continuous: bool = True
    centre: float = 0.5
    before: tuple[tuple[Grid, float, float], ...] = ()  # and bounds, of narrower spaces; see widening

    @property
    def blank(self) -> Column:
        """An empty column."""
        return np.empty(0)

    def encode(self, column: Column, low: Column, high: Column) -> Array:
        """(n,) to (n, 1)."""
        u = _share(column, low, high)
        if self.log:
            curved = high > low * _STRAIGHT
            safe_low, safe_high = np.where(curved, low, 1.0), np.where(curved, high, math.e)
            logs = np.log(np.where(curved, column, 1.0)) - np.log(safe_low)
            u = np.where(curved, logs / (np.log(safe_high) - np.log(safe_low)), u)
        return np.asarray(np.clip(u, 0.0, 1.0))[:, None]

    def decode(self, u: Array, low: Column, high: Column) -> Column:
        """(n, 1) to (n,)."""
        x = low + u[:, 0] * (high - low)
        if self.log:
            start = np.log(low)
            x = np.where(high > low * _STRAIGHT, np.exp(start + u[:, 0] * (np.log(high) - start)), x)
        return self.grid.snap(x, low, high)

    def spread(self, coordinate: Array) -> Array:
        """(n,) to (n, 1), as it is."""
        return coordinate[:, None]

    def read(self, name: str, values: list[Any]) -> Column:
        """Numbers to a column. Raises InvalidSpace for anything else, NaN and infinity included."""
        for value in values if not set(map(type, values)) <= {float, int} else ():
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise InvalidSpace(f"{name!r} must be a number; got {value!r} ({type(value).__name__}).")
        column = np.array([as_float(value) for value in values], dtype=np.float64)
        if not np.isfinite(column).all():
            raise InvalidSpace(f"{name!r} must be finite; got {column[~np.isfinite(column)][0]}.")
        return column

    def settle(self, column: Column, low: Column, high: Column) -> Column:
        """The column on the grid; what lies on the grid of a space that was widened stays there."""
        column = np.clip(column, low, high) if self.log else column
        settled = self.grid.snap(column, low, high)
        for grid, least, most in self.before:
            there = grid.snap(np.clip(column, least, most), np.asarray(least), np.asarray(most))
            stays = (low <= column) & (column <= high) & (there == column)
            settled = np.where(stays, column, settled)
        return settled

    def write(self, column: Column) -> list[Any]:
        """Plain Python floats."""
        return list(column.tolist())


@dataclass(frozen=True)
class IntAxis:
    """One coordinate cut into cells."""

    log: bool
    width: int = 1
    continuous: bool = False
    centre: float = 0.5

    @property
    def blank(self) -> Column:
        """An empty column."""
        return np.empty(0, dtype=np.int64)

    def encode(self, column: Column, low: Column, high: Column) -> Array:
        """(n,) to (n, 1)."""
        if not self.log:
            return ((column - low + 0.5) / (high - low + 1.0))[:, None]
        start = np.log(low - 0.5)
        return np.asarray((np.log(column) - start) / (np.log(high + 0.5) - start))[:, None]

    def decode(self, u: Array, low: Column, high: Column) -> Column:
        """(n, 1) to (n,)."""
        if not self.log:
            index = np.floor(u[:, 0] * (high - low + 1.0)).astype(np.int64)
            return np.asarray(low + np.minimum(index, high - low))
        start = np.log(low - 0.5)
        x = np.exp(start + u[:, 0] * (np.log(high + 0.5) - start))
        return np.asarray(np.clip(np.rint(x).astype(np.int64), low, high))

    def spread(self, coordinate: Array) -> Array:
        """(n,) to (n, 1), as it is."""
        return coordinate[:, None]

    def read(self, name: str, values: list[Any]) -> Column:
        """Ints to a column. Raises InvalidSpace for anything else, bools and 3.0 included."""
        for value in values if set(map(type, values)) != {int} else ():
            if isinstance(value, bool) or not isinstance(value, numbers.Integral):
                raise InvalidSpace(f"{name!r} must be an int; got {value!r} ({type(value).__name__}).")
        for value in values:
            if abs(value) > LARGEST_INT:
                raise InvalidSpace(f"{name!r} is {value}, out of its bounds.")
        return np.array(values, dtype=np.int64)

    def settle(self, column: Column, low: Column, high: Column) -> Column:
        """The column as it is: ints need no grid."""
        return column

    def write(self, column: Column) -> list[Any]:
        """Plain Python ints."""
        return list(column.tolist())


@dataclass(frozen=True)
class OptionAxis:
    """Options by index: a coordinate each, one for all if ordered, none for a constant."""

    options: tuple[Any, ...]
    width: int
    ordered: bool = False
    continuous: bool = False

    @property
    def centre(self) -> float:
        """The point as far from each option as from any other."""
        return 0.5 if self.ordered else 1.0 / len(self.options)

    @property
    def blank(self) -> Column:
        """An empty column."""
        return np.empty(0, dtype=np.int64)

    def encode(self, column: Column, low: Column, high: Column) -> Array:
        """(n,) to (n, width)."""
        if self.ordered:
            return ((column + 0.5) / len(self.options))[:, None]
        return np.asarray(np.eye(len(self.options), self.width)[column])

    def decode(self, u: Array, low: Column, high: Column) -> Column:
        """(n, width) to (n,)."""
        if self.width == 0:
            return np.zeros(len(u), dtype=np.int64)
        return self._cell(u[:, 0]) if self.ordered else np.argmax(u, axis=1)

    def spread(self, coordinate: Array) -> Array:
        """(n,) to (n, width): one design coordinate picks the option, so that designs balance options."""
        return (
            coordinate[:, None]
            if self.ordered
            else self.encode(self._cell(coordinate), self.blank, self.blank)
        )

    def read(self, name: str, values: list[Any]) -> Column:
        """Options to their indices. Raises InvalidSpace for a value that is not an option."""
        return np.array([self._index(name, value) for value in values], dtype=np.int64)

    def settle(self, column: Column, low: Column, high: Column) -> Column:
        """The column as it is."""
        return column

    def write(self, column: Column) -> list[Any]:
        """The options themselves; lists are copied, so that no trial can change the space."""
        chosen = [self.options[index] for index in column.tolist()]
        return copy.deepcopy(chosen) if any(map(is_mutable, self.options)) else chosen

    def _cell(self, coordinate: Array) -> Column:
        count = len(self.options)
        return np.minimum(np.floor(coordinate * count).astype(np.int64), count - 1)

    @cached_property
    def _quick(self) -> dict[tuple[type, Any], int]:
        return {(type(o), o): i for i, o in enumerate(self.options) if not isinstance(o, list | tuple)}

    @cached_property
    def _tokens(self) -> dict[str, int]:
        return {token(option): index for index, option in enumerate(self.options)}

    def _index(self, name: str, value: Any) -> int:
        if not isinstance(value, list | tuple):
            quick = self._quick.get((type(value), value)) if value.__hash__ else None
            if quick is not None:
                return quick
        try:
            return self._tokens[token(plain_value(value, name))]
        except (InvalidSpace, KeyError):
            allowed = ", ".join(map(repr, self.options[:12])) + (", ..." if len(self.options) > 12 else "")
            raise InvalidSpace(f"{name!r} must be one of {allowed}; got {value!r}.") from None


def _share(column: Column, low: Column, high: Column) -> Array:
    wide = high > low
    return np.asarray(np.where(wide, (column - low) / np.where(wide, high - low, 1.0), 0.5))
