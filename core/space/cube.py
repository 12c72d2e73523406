"""Exact map between configurations and the unit cube, for many configurations at a time.

A `Layout` holds the parameters in order of evaluation: each follows the parents of its condition and the parameters
that its bounds name. A `Table` holds many configurations as columns: floats, ints, or, for a choice, indices of its
options. Each parameter's `Axis` maps its column (n,) to coordinates u (n, width) in [0, 1]:

linear float   value = low + u (high - low), snapped to its grid
log float      value = low (high / low)^u, snapped to its grid
int            `count` cells of equal width; a value sits in the middle of its cell
log int        cells [log(v - 1/2), log(v + 1/2)]; a value sits at log v
ordered choice like an int over the options' indices
choice         one-hot: decoded as the largest coordinate

A configuration does not contain its inactive parameters. In the cube they sit in the middle: 0.5 on a single
coordinate, 1/k on the k coordinates of a one-hot choice, which is equally far from each option. A Gaussian process
therefore sees all configurations without the parameter as alike. If a bound names an inactive parameter, the bound is
the outermost value of that parameter. If low is another parameter, the bounds of a row can cross. Such a row has no
valid configuration: `valid` is false and the value is the lower bound.
"""

from __future__ import annotations

import copy
import difflib
import math
import numbers
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from haltune._utils.arrays import Array, Mask
from haltune.display import plural
from haltune.errors import InvalidInput, InvalidSpace

from .domains import (
    LARGEST_INT,
    Choice,
    Constant,
    Domain,
    Float,
    Int,
    as_float,
    bounding,
    options_of,
    plain_value,
    token,
)  # fmt: skip

Config = dict[str, Any]
Column = NDArray[Any]  # float64, or int64 for ints and indices
Hull = tuple[float, float]  # outermost low and high; for a choice, the first and last index
MISSING: Any = object()
MOST_ROWS = 100_000  # rows of a listed space
_STRAIGHT = 1.0001  # below this ratio a logarithm is linear to 1e-4 and merges neighbouring doubles


# Decimal grids. A coordinate cannot represent every double: `low + u * (high - low)` is off by an ulp or two. Floats
# therefore lie on a decimal grid, much coarser than that error and much finer than any hyperparameter needs.
# The members for bounds [low, high] are `low`, `high` and the grid points more than 0.6 of a step from both. A value
# within 0.4 of a step of a member is therefore snapped back to it.

_DIGITS = 11  # for |log x| up to 745, exp(log x) is off by up to 6e-13 of x: too close to the limit of 12 digits
_LOWEST = -323  # the exponent of the smallest power of ten that is a double
_POWERS: Array = np.array([float(f"1e{e}") for e in range(_LOWEST, 309)])
_EXACT = 22  # 10**22 is the largest power of ten that a double represents exactly


@dataclass(frozen=True)
class DecimalGrid:
    """Multiples of 10**exponent, for linear floats; an exponent below -323 means every double."""

    exponent: int

    @classmethod
    def spanning(cls, low: float, high: float) -> DecimalGrid:
        """Return the grid for [low, high]: a step of at least 1e-12 of the range and 1e-14 of the largest magnitude."""
        step = max((high - low) * 1e-12, max(abs(low), abs(high)) * 1e-14)
        return cls(math.ceil(math.log10(step) - 1e-9) if step > 0 else _LOWEST - 1)

    def snap(self, x: Array, low: Array, high: Array) -> Array:
        """The member nearest to x, within [low, high]; shapes broadcast."""
        exponent = self.exponent
        if exponent < _LOWEST:
            return np.clip(x, low, high) + 0.0
        if -_EXACT <= exponent < 0:
            scale = 10.0**-exponent
            rounded = np.asarray(np.rint(x * scale) / scale)
        elif 0 <= exponent <= _EXACT:
            scale = 10.0**exponent
            rounded = np.asarray(np.rint(x / scale) * scale)
        else:
            rounded = np.array([round(value, -exponent) for value in x.tolist()], dtype=np.float64)
        return _between(x, rounded, float(_POWERS[exponent - _LOWEST]), low, high)


@dataclass(frozen=True)
class SignificantGrid:
    """Positive numbers with 11 significant digits, for logarithmic floats."""

    def snap(self, x: Array, low: Array, high: Array) -> Array:
        """Return the member nearest to x > 0, within [low, high]; shapes broadcast."""
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
    """Return floor(log10 x), exact also at powers of ten, where a computed logarithm can fall on either side."""
    return np.searchsorted(_POWERS, x, side="right").astype(np.int64) - 1 + _LOWEST


def _between(x: Array, rounded: Array, step: Array | float, low: Array, high: Array) -> Array:
    margin = 0.6 * np.asarray(step)
    at_low, at_high = rounded - low <= margin, high - rounded <= margin
    nearer = np.where(x - low <= high - x, low, high)
    inner = np.where(at_low, low, np.where(at_high, high, rounded))
    return np.asarray(np.where(at_low & at_high, nearer, inner) + 0.0)


# Axes: one parameter's column and its coordinates. Bounds are arrays, so that each row may have its own.


class _Axis:
    continuous: bool = False
    dtype: Any = np.int64

    def spread(self, coordinate: Array) -> Array:
        """Return coordinates (n, width) from one design coordinate (n,)."""
        return coordinate[:, None]

    def settle(self, column: Column, low: Column, high: Column) -> Column:
        """Return the column snapped to its grid; ints and indices need no grid."""
        return column

    def write(self, column: Column) -> list[Any]:
        return list(column.tolist())


@dataclass(frozen=True)
class FloatAxis(_Axis):
    """One coordinate, linear or logarithmic."""

    grid: DecimalGrid | SignificantGrid
    log: bool
    before: tuple[tuple[DecimalGrid | SignificantGrid, float, float], ...] = ()  # with bounds, of narrower spaces
    width, centre, continuous, dtype = 1, 0.5, True, np.float64

    def encode(self, column: Column, low: Column, high: Column) -> Array:
        wide = high > low
        u = np.asarray(np.where(wide, (column - low) / np.where(wide, high - low, 1.0), 0.5))
        if self.log:
            curved = high > low * _STRAIGHT
            safe_low, safe_high = np.where(curved, low, 1.0), np.where(curved, high, math.e)
            logs = np.log(np.where(curved, column, 1.0)) - np.log(safe_low)
            u = np.where(curved, logs / (np.log(safe_high) - np.log(safe_low)), u)
        return np.asarray(np.clip(u, 0.0, 1.0))[:, None]

    def decode(self, u: Array, low: Column, high: Column) -> Column:
        x = low + u[:, 0] * (high - low)
        if self.log:
            start = np.log(low)
            x = np.where(high > low * _STRAIGHT, np.exp(start + u[:, 0] * (np.log(high) - start)), x)
        return self.grid.snap(x, low, high)

    def read(self, name: str, values: list[Any]) -> Column:
        """Return numbers as a column. Raises InvalidSpace for anything that is not a finite number."""
        for value in values if not set(map(type, values)) <= {float, int} else ():
            if isinstance(value, bool) or not isinstance(value, numbers.Real):
                raise InvalidSpace(f"{name!r} must be a number; got {value!r} ({type(value).__name__}).")
        try:
            column = np.array(values, dtype=np.float64)
        except OverflowError:
            column = np.array([as_float(value) for value in values], dtype=np.float64)
        if not np.isfinite(column).all():
            raise InvalidSpace(f"{name!r} must be finite; got {column[~np.isfinite(column)][0]}.")
        return column

    def settle(self, column: Column, low: Column, high: Column) -> Column:
        """Return the column snapped to the grid. In a widened space, values on an earlier grid do not move."""
        column = np.clip(column, low, high) if self.log else column
        settled = self.grid.snap(column, low, high)
        for grid, least, most in self.before:
            there = grid.snap(np.clip(column, least, most), np.asarray(least), np.asarray(most))
            stays = (low <= column) & (column <= high) & (there == column)
            settled = np.where(stays, column, settled)
        return settled


@dataclass(frozen=True)
class IntAxis(_Axis):
    """One coordinate, cut into cells."""

    log: bool
    width, centre = 1, 0.5

    def encode(self, column: Column, low: Column, high: Column) -> Array:
        if not self.log:
            return ((column - low + 0.5) / (high - low + 1.0))[:, None]
        start = np.log(low - 0.5)
        return np.asarray((np.log(column) - start) / (np.log(high + 0.5) - start))[:, None]

    def decode(self, u: Array, low: Column, high: Column) -> Column:
        if not self.log:
            index = np.floor(u[:, 0] * (high - low + 1.0)).astype(np.int64)
            return np.asarray(low + np.minimum(index, high - low))
        start = np.log(low - 0.5)
        x = np.exp(start + u[:, 0] * (np.log(high + 0.5) - start))
        return np.asarray(np.clip(np.rint(x).astype(np.int64), low, high))

    def read(self, name: str, values: list[Any]) -> Column:
        for value in values if set(map(type, values)) != {int} else ():
            if isinstance(value, bool) or not isinstance(value, numbers.Integral):
                raise InvalidSpace(f"{name!r} must be an int; got {value!r} ({type(value).__name__}).")
        for value in values:
            if abs(value) > LARGEST_INT:
                raise InvalidSpace(f"{name!r} is {value}, which is outside its bounds. Use a smaller number.")
        return np.array(values, dtype=np.int64)


@dataclass(frozen=True)
class OptionAxis(_Axis):
    """Options by index: one coordinate each, one for all if ordered, none for a constant."""

    options: tuple[Any, ...]
    width: int
    ordered: bool = False

    @property
    def centre(self) -> float:
        """Return the coordinate that is equally far from all options."""
        return 0.5 if self.ordered else 1.0 / len(self.options)

    def encode(self, column: Column, low: Column, high: Column) -> Array:
        if self.ordered:
            return ((column + 0.5) / len(self.options))[:, None]
        return np.asarray(np.eye(len(self.options), self.width)[column])

    def decode(self, u: Array, low: Column, high: Column) -> Column:
        if self.width == 0:
            return np.zeros(len(u), dtype=np.int64)
        return self._cell(u[:, 0]) if self.ordered else np.argmax(u, axis=1)

    def spread(self, coordinate: Array) -> Array:
        """Return (n, width) from (n,): one design coordinate picks the option, so that designs balance options."""
        if self.ordered:
            return super().spread(coordinate)
        return self.encode(self._cell(coordinate), coordinate, coordinate)

    def nearest(self, u: Array, options: Sequence[Any]) -> Column:
        """Return, as `decode`, the nearest of some options: of the largest coordinate among theirs, or of the order."""
        allowed = np.sort(self.read("", list(options)))
        if self.width and not self.ordered:
            return np.asarray(allowed[np.argmax(u[:, allowed], axis=1)])
        apart = np.abs(self.decode(u, allowed, allowed)[:, None] - allowed)
        return np.asarray(allowed[np.argmin(apart, axis=1)])

    def read(self, name: str, values: list[Any]) -> Column:
        quick = self._quick
        try:
            found = [quick[type(value), value] for value in values]
        except (KeyError, TypeError):  # an equal value of another type, a list, or no option
            found = [self._index(name, value) for value in values]
        return np.array(found, dtype=np.int64)

    def write(self, column: Column) -> list[Any]:
        """Return the options. Lists are copied, so that no trial can change the space."""
        chosen = [self.options[index] for index in column.tolist()]
        nested = any(isinstance(option, list | tuple) for option in self.options)
        return copy.deepcopy(chosen) if nested else chosen

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
        try:
            return self._tokens[token(plain_value(value, name))]
        except (InvalidSpace, KeyError):
            allowed = ", ".join(map(repr, self.options[:12])) + (", ..." if len(self.options) > 12 else "")
            raise InvalidSpace(f"{name!r} must be one of {allowed}; got {value!r}.") from None


# Conditions: when a parameter is active.

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    ">": operator.gt, ">=": operator.ge, "<": operator.lt,
    "<=": operator.le, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@dataclass(frozen=True)
class Condition:
    """Active if the parent's column passes one of the tests."""

    parent: str
    tests: tuple[tuple[str, float], ...]  # (comparison, operand), alternatives

    def holds(self, column: Column) -> Mask:
        passed = np.zeros(len(column), dtype=np.bool_)
        for sign, operand in self.tests:
            passed |= _COMPARE[sign](column, operand)
        return passed


def _condition(name: str, parent: str, values: list[Any], domain: Domain, hull: Hull) -> Condition:
    if options := options_of(domain):
        index = {token(option): i for i, option in enumerate(options)}
        for value in values:
            if token(value) not in index:
                several = isinstance(value, tuple) and index.keys() >= {*map(token, value)}
                use = f"Use one of its values: {', '.join(map(repr, options))}."
                use = f"Several values are a list: {list(value)!r}." if several else use
                raise InvalidSpace(f"The condition of {name!r} never holds: {parent!r} is never {value!r}. {use}")
        return Condition(parent, tuple(("==", index[token(value)]) for value in values))
    whole = isinstance(domain, Int)
    return Condition(parent, tuple(_comparison(name, parent, value, whole, *hull) for value in values))


def _comparison(name: str, parent: str, value: Any, whole: bool, low: float, high: float) -> tuple[str, float]:
    sign, operand = value if isinstance(value, tuple) and len(value) == 2 else ("==", value)
    known = isinstance(sign, str) and sign in _COMPARE
    if not known or isinstance(operand, bool) or not isinstance(operand, int | float):
        raise InvalidSpace(
            f"Cannot read the condition {value!r} of {name!r} on the number {parent!r}. Use a number, or a comparison "
            f'such as (">", 6), with one of {" ".join(_COMPARE)}.'
        )
    if sign == "==":
        possible = low <= operand <= high and not (whole and operand != int(operand))
    elif sign == "!=":
        possible = not low == high == operand
    else:
        possible = bool(_COMPARE[sign](high if sign[0] == ">" else low, operand))
    if not possible:
        wanted = operand if sign == "==" else f"{sign} {operand}"
        raise InvalidSpace(
            f"The condition of {name!r} never holds: {parent!r} is never {wanted}. It lies in [{low}, {high}]."
        )
    return sign, operand


# The layout: how the parameters of a space depend on each other.


@dataclass(frozen=True)
class Parameter:
    name: str
    domain: Domain
    axis: FloatAxis | IntAxis | OptionAxis
    columns: slice  # its coordinates in the unit cube
    conditions: tuple[Condition, ...]
    hull: Hull  # the widest interval that its bounds allow
    bounds: tuple[str | None, str | None]  # the parameters that are its lower and upper bound
    absent: Any  # its value in a configuration without it: the value of a constant, else MISSING

    @cached_property
    def fixed(self) -> bool:
        """True if its bounds are the same in every configuration."""
        return self.bounds == (None, None)

    @property
    def count(self) -> int | None:
        """The number of values within its hull, or None if it is continuous."""
        low, high = self.hull
        if self.axis.continuous:
            return 1 if low == high else None
        return int(high - low) + 1


@dataclass(frozen=True)
class Layout:
    ordered: tuple[Parameter, ...]
    names: tuple[str, ...]  # in the order they were given
    dim: int

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        return {p.name: p for p in self.ordered}

    @cached_property
    def coordinates(self) -> tuple[Parameter, ...]:
        return tuple(sorted((p for p in self.ordered if p.axis.width), key=lambda p: p.columns.start))

    @property
    def size(self) -> int | None:
        """The number of combinations without conditions and named bounds, or None if a parameter is continuous."""
        counts = [p.count for p in self.ordered]
        return None if None in counts else math.prod(count for count in counts if count is not None)


def layout_of(domains: Mapping[str, Domain]) -> Layout:
    """Return the layout, after a check of how the parameters depend on each other.

    Raises InvalidSpace for a reference to an unknown or unfit parameter, a circular dependence, an impossible
    condition or a range that is always empty.
    """
    if not domains:
        raise InvalidSpace("The space has no parameter. Give at least one, such as Space({'seed': 0}).")
    for name, domain in domains.items():
        _check_references(name, domain, domains)
    order: dict[str, None] = {}

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            circle = " -> ".join([*path[path.index(name) :], name])
            raise InvalidSpace(f"The parameters depend on each other in a circle: {circle}. Remove one of these steps.")
        if name not in order:
            for other in (*(domains[name].when or {}), *bounding(domains[name])):
                visit(other, [*path, name])
            order[name] = None

    for name in domains:
        visit(name, [])
    columns, start = {}, 0
    for name, domain in domains.items():
        one_hot = len(domain.options) if isinstance(domain, Choice) and not domain.ordered else 1
        width = 0 if isinstance(domain, Constant) else one_hot
        columns[name] = slice(start, start + width)
        start += width
    done: dict[str, Parameter] = {}
    for name in order:
        done[name] = _parameter(name, domains[name], done, columns[name])
    return Layout(tuple(done.values()), tuple(domains), start)


def _number(domain: Domain) -> float | None:
    """Return the value of a numeric constant, which can serve as a bound."""
    value = domain.value if isinstance(domain, Constant) else None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _suggestion(name: str, names: Iterable[str]) -> str:
    known = list(names)
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"The parameters are {', '.join(map(repr, known))}."


def _check_references(name: str, domain: Domain, domains: Mapping[str, Domain]) -> None:
    for parent in domain.when or {}:
        if parent not in domains:
            raise InvalidSpace(f"{name!r} depends on {parent!r}, which is no parameter. {_suggestion(parent, domains)}")
    for bound in bounding(domain):
        if bound not in domains:
            raise InvalidSpace(f"{name!r} has the bound {bound!r}, no parameter. {_suggestion(bound, domains)}")
        other = domains[bound]
        number = _number(other)
        if isinstance(domain, Int) and not isinstance(other, Int) and not isinstance(number, int):
            raise InvalidSpace(f"{name!r} is an Int, but its bound {bound!r} is not. Use an Int or a whole constant.")
        if not isinstance(other, Float | Int) and number is None:
            kind = "a choice" if isinstance(other, Choice) else "not a number"
            raise InvalidSpace(
                f"{name!r} has the bound {bound!r}, which is {kind}. Use a number, or the name of a Float or an Int."
            )


def _parameter(name: str, domain: Domain, done: Mapping[str, Parameter], columns: slice) -> Parameter:
    """Return one parameter. `done` holds the parameters that it depends on."""
    bounds: tuple[str | None, str | None] = (None, None)
    low: float
    high: float
    if isinstance(domain, Float | Int):
        ends, free = [], []
        for side, end in enumerate((domain.low, domain.high)):
            number = _number(done[end].domain) if isinstance(end, str) else end
            ends.append(done[str(end)].hull[side] if number is None else number)
            free.append(end if isinstance(end, str) and not isinstance(done[end].domain, Constant) else None)
        (low, high), bounds = ends, (free[0], free[1])
        try:
            domain.check(low, high)
        except InvalidSpace as error:
            raise InvalidSpace(f"The parameter {name!r} may have no valid value: {error}") from None
    else:
        low, high = 0, len(options_of(domain)) - 1
    axis: FloatAxis | IntAxis | OptionAxis
    if isinstance(domain, Float):
        low, high = float(low), float(high)
        axis = FloatAxis(SignificantGrid() if domain.log else DecimalGrid.spanning(low, high), domain.log)
    elif isinstance(domain, Int):
        axis = IntAxis(domain.log)
    else:
        ordered = isinstance(domain, Choice) and domain.ordered
        axis = OptionAxis(options_of(domain), columns.stop - columns.start, ordered)
    conditions = tuple(
        _condition(name, p, values, done[p].domain, done[p].hull) for p, values in (domain.when or {}).items()
    )
    absent = domain.value if isinstance(domain, Constant) else MISSING
    return Parameter(name, domain, axis, columns, conditions, (low, high), bounds, absent)


# Tables: many configurations, read from configurations or from the cube, and written to either.


@dataclass
class Table:
    """Columns that are added parameter by parameter, in order of evaluation."""

    count: int
    columns: dict[str, Column] = field(default_factory=dict)  # (count,) each; arbitrary where inactive
    active: dict[str, Mask] = field(default_factory=dict)
    lows: dict[str, Column] = field(default_factory=dict)
    highs: dict[str, Column] = field(default_factory=dict)
    crossed: dict[str, Mask] = field(default_factory=dict)  # active, but with no value between its bounds

    @property
    def valid(self) -> Mask:
        """(count,) true if every active parameter has a value within its bounds."""
        return np.asarray(~np.logical_or.reduce([*self.crossed.values()]))

    def open(self, parameter: Parameter) -> tuple[Column, Column, Mask]:
        """Add what the columns before it say of a parameter; return its bounds, and where it is active."""
        name = parameter.name
        active = np.ones(self.count, dtype=np.bool_)
        for condition in parameter.conditions:
            active &= self.active[condition.parent] & condition.holds(self.columns[condition.parent])
        low, high = self.bounds(parameter)
        self.active[name], self.crossed[name] = active, active & (low > high)
        self.lows[name], self.highs[name] = low, np.maximum(low, high)
        return low, self.highs[name], active

    def bounds(
        self, parameter: Parameter, axis: _Axis | None = None, columns: Mapping[str, Column] | None = None
    ) -> list[Column]:
        """Return the lower and the upper bounds (count,), as numbers of the axis; its own by default.

        columns: the parameters that are bounds; by default those of the table.
        """
        constant = isinstance(parameter.domain, Constant) and axis is not None
        found = []
        for end, other in zip(parameter.hull, parameter.bounds, strict=True):
            bound = np.full(self.count, parameter.absent if constant else end, dtype=(axis or parameter.axis).dtype)
            if other is not None:
                values = (self.columns if columns is None else columns)[other]
                bound = np.where(self.active[other], values, bound).astype(bound.dtype)
            found.append(bound)
        return found

    def rows(self, keep: Mask) -> Table:
        if keep.all():
            return self
        parts = (self.columns, self.active, self.lows, self.highs, self.crossed)
        return Table(int(keep.sum()), *[{name: column[keep] for name, column in part.items()} for part in parts])


def read_cube(layout: Layout, u: Array, inner: Layout | None = None) -> Table:
    """Return the configurations at points (n, dim); with an inner layout the nearest ones in it, bound by bound."""
    table, within = Table(len(u)), {} if inner is None else inner.by_name
    for p in layout.ordered:
        low, high, active = table.open(p)
        point = u[:, p.columns]
        if (q := within.get(p.name)) is None:
            table.columns[p.name] = p.axis.decode(point, low, high)
        elif isinstance(p.axis, OptionAxis):
            table.columns[p.name] = p.axis.nearest(point, options_of(q.domain))
        else:
            least, most = table.bounds(q, p.axis)
            least, most = np.maximum(low, least), np.minimum(high, most)
            table.crossed[p.name] |= active & (least > most)
            column = p.axis.decode(point, low, high)
            table.columns[p.name] = np.clip(column, least, np.maximum(least, most)).astype(column.dtype)
    return table


def inner_box(layout: Layout, inner: Layout | None) -> Array:
    """Return the lowest and highest coordinates (2, dim) of an inner layout; 0 and 1 where they differ by row."""
    box, within = np.repeat([[0.0], [1.0]], layout.dim, axis=1), {} if inner is None else inner.by_name
    for p in layout.coordinates:
        q = within.get(p.name)
        if q is None:
            continue
        if isinstance(p.axis, OptionAxis):
            indices = p.axis.read(p.name, list(options_of(q.domain)))
            if not p.axis.ordered:
                box[1, p.columns] = np.isin(np.arange(p.axis.width), indices)
                continue
            ends = [indices.min() - 0.5, indices.max() + 0.5]  # the outer sides of their cells
        else:
            ends = [q.absent] * 2 if isinstance(q.domain, Constant) else list(q.hull)
            if isinstance(p.axis, IntAxis) and ends[0] < ends[1]:
                ends = [ends[0] - 0.5, ends[1] + 0.5]
        if p.fixed:
            low, high = (np.full(2, end, dtype=np.float64) for end in p.hull)
            box[:, p.columns] = p.axis.encode(np.array(ends, dtype=np.float64), low, high)
    return box


def write_cube(layout: Layout, table: Table) -> Array:
    u = np.empty((table.count, layout.dim))
    for p in layout.coordinates:
        low, high, active = table.lows[p.name], table.highs[p.name], table.active[p.name]
        encoded = p.axis.encode(table.columns[p.name], low, high)
        u[:, p.columns] = np.where(active[:, None], encoded, p.axis.centre)
    return u


def read_configs(layout: Layout, configs: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of canonical values. Raises InvalidSpace for a configuration outside the space."""
    table, raw, known = Table(len(configs)), dict[str, Column](), set(layout.names)
    for config in configs:
        if not isinstance(config, Mapping):
            raise InvalidSpace(f"A configuration is a dict of names and values; got {config!r}.")
        for name in config.keys() - known:
            raise InvalidSpace(f"The space has no parameter {name!r}. {_suggestion(name, layout.names)}")
    for p in layout.ordered:
        low, high, active = table.open(p)
        for row in np.flatnonzero(table.crossed[p.name])[:1]:
            named = " and ".join(repr(name) for name in p.bounds if name)
            raise InvalidSpace(
                f"{p.name!r} has no valid value: its lower bound {low[row]} is above its upper bound, because of the "
                f"value of {named}. Use another value there."
            )
        values = _active_values(p, active.tolist(), configs)
        raw[p.name] = column = low.copy()
        column[active] = p.axis.read(p.name, values) if values else np.empty(0, dtype=p.axis.dtype)
        # A value may equal a bound as it was before it was snapped to its grid: both mean the same.
        least, most = low, high
        if not p.fixed:
            least, most = table.bounds(p, columns=raw)
            least, most = np.minimum(low, least), np.maximum(high, most)
        for row in np.flatnonzero(active & ((column < least) | (column > most)))[:1]:
            raise InvalidSpace(f"{p.name!r} is {column[row]}. Use a value in [{least[row]}, {most[row]}].")
        table.columns[p.name] = p.axis.settle(column, low, high)
    return table


def _active_values(p: Parameter, active: list[bool], configs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the values where the parameter is active. A constant may be missing, because its value is known."""
    values = []
    for config, is_active in zip(configs, active, strict=True):
        if is_active:
            value = config.get(p.name, p.absent)
            if value is MISSING:
                raise InvalidSpace(f"The configuration {dict(config)!r} has no {p.name!r}. Give it a value.")
            values.append(value)
        elif p.name in config:
            when = (f"{k!r} is {' or '.join(map(repr, v))}" for k, v in (p.domain.when or {}).items())
            raise InvalidSpace(
                f"{p.name!r} is {config[p.name]!r}, but it is active only when "
                f"{' and '.join(when)}. Remove it from this configuration."
            )
    return values


def write_configs(layout: Layout, table: Table) -> list[Config]:
    lists = [layout.by_name[name].axis.write(table.columns[name]) for name in layout.names]
    if np.all([*table.active.values()]):
        return [dict(zip(layout.names, row, strict=True)) for row in zip(*lists, strict=True)]
    masks = np.column_stack([table.active[name] for name in layout.names]).tolist()
    return [
        {name: value for name, value, active in zip(layout.names, row, mask, strict=True) if active}
        for row, mask in zip(zip(*lists, strict=True), masks, strict=True)
    ]


def cube_points(u: ArrayLike, dim: int) -> Array:
    """Return points (n, dim), clipped to the unit cube. Raises InvalidInput for another shape or NaN."""
    points = np.asarray(u, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != dim:
        raise InvalidInput(f"Points of this space have {dim} coordinates; the shape given is {points.shape}.")
    if np.isnan(points).any():
        raise InvalidInput("A point of the unit cube contains NaN. Use coordinates from 0 to 1.")
    return np.clip(points, 0.0, 1.0)


# Listing a finite space, and a mesh over any space.


def configurations(layout: Layout) -> list[Config]:
    """Return all configurations without a check of constraints; the last parameter varies fastest.

    Raises InvalidSpace if there are too many. The table starts with the product of all values. It keeps each row whose
    active values lie within their bounds, once for each setting of the inactive parameters.
    """
    size = layout.size
    if size is None or size > MOST_ROWS:
        found = "has a continuous parameter" if size is None else f"has up to {plural(size, 'configuration')}"
        raise InvalidSpace(f"Cannot list the space: it {found}; the limit is {MOST_ROWS:,}. Use sample(n, rng).")
    grids = np.unravel_index(np.arange(size), [layout.by_name[name].count or 1 for name in layout.names])
    table, keep = Table(size), np.ones(size, dtype=np.bool_)
    offsets = dict(zip(layout.names, grids, strict=True))
    for p in layout.ordered:
        low, high, active = table.open(p)
        table.columns[p.name] = column = (p.hull[0] + offsets[p.name]).astype(p.axis.dtype)
        within = (low <= column) & (column <= high)
        keep &= np.where(active, within & ~table.crossed[p.name], offsets[p.name] == 0)
    return write_configs(layout, table.rows(keep))


def mesh_axes(layout: Layout, levels: int, most: int) -> list[Array]:
    """Return the mesh nodes along each design coordinate. Raises InvalidInput for levels < 2 or too many nodes."""
    if isinstance(levels, bool) or levels < 2:
        raise InvalidInput(f"levels={levels!r}: a mesh needs at least 2 levels for each continuous parameter")
    nodes = [
        levels if p.count is None else p.count if p.axis.width > 1 else min(p.count, levels) for p in layout.coordinates
    ]
    if math.prod(nodes) > most:
        raise InvalidInput(
            f"a mesh of {' x '.join(map(str, nodes))} has {math.prod(nodes):,} nodes; the limit is {most:,}: use fewer"
        )
    found = []
    for p, number in zip(layout.coordinates, nodes, strict=True):
        if number != p.count:
            found.append(np.linspace(0.0, 1.0, number))
        elif p.axis.width > 1:  # unordered options: one design coordinate picks the option
            found.append((np.arange(number) + 0.5) / number)
        else:
            low, high = (np.full(number, end, dtype=p.axis.dtype) for end in p.hull)
            found.append(p.axis.encode(low + np.arange(number, dtype=low.dtype), low, high)[:, 0])
    return found


# Changing the space of a search. A layout that contains an older one continues its search: widening. A range may grow
# at both ends. A choice may gain options. A constant may become a choice or a range that contains it. A condition may
# gain values that its parent could not have before. A new parameter must be inactive in every earlier configuration, or
# be a constant. The kind, the scale, the bounds that name parameters and the order of the old parameters must not
# change.
#
# Any other change is a widening to the smallest layout that contains both, `cover`, of which the search uses an inner
# layout: narrowing. There a range or a choice may also become a constant, and a parameter may be missing if the inner
# layout makes it inactive.
#
# Values are compared by their repr, in which 1 differs from 1.0 and a tuple from a list, as in a log.


def widened(new: Layout, old: Layout) -> Layout:
    """Return the new layout such that configurations of the old one, which it contains, keep their exact values."""
    kept = []
    for p in new.ordered:
        if (was := old.by_name.get(p.name)) is not None:
            before = was.axis.before if isinstance(was.axis, FloatAxis) else ()
            p = replace(_also_on(p, was, *before), absent=was.absent)
        kept.append(p)
    return replace(new, ordered=tuple(kept))


def holding(layout: Layout, inner: Layout) -> Layout:
    """Return the layout such that configurations of an inner one keep their exact values."""
    within = inner.by_name
    kept = (_also_on(p, within[p.name]) if p.name in within else p for p in layout.ordered)
    return replace(layout, ordered=tuple(kept))


def _also_on(p: Parameter, other: Parameter, *before: tuple[DecimalGrid | SignificantGrid, float, float]) -> Parameter:
    """Return the parameter such that the values of another one, and those on further grids, do not move."""
    if not isinstance(p.axis, FloatAxis):
        return p
    if isinstance(other.axis, FloatAxis):
        own = (other.axis.grid, *other.hull)
    else:  # a constant
        own = (p.axis.grid, float(other.absent), float(other.absent))
    return replace(p, axis=replace(p.axis, before=tuple(dict.fromkeys((*p.axis.before, *before, own)))))


def cover(new: Layout, old: Layout) -> dict[str, Domain]:
    """Return the domains of the smallest space that contains both layouts, where they can be joined.

    A domain that cannot be joined is the new one, and a missing parameter that is still active is missing: `lacking`
    of the old layout names both.
    """

    def never(parent: str, value: Any) -> bool:
        """Return whether a condition on `parent` cannot hold in the new layout."""
        if parent not in new.by_name:
            return gone(parent)
        return not _could_hold(new.by_name[parent], old.by_name[parent].domain, value)

    def gone(name: str) -> bool:
        """Return whether an old parameter is missing in the new layout, which makes it inactive."""
        when = old.by_name[name].domain.when or {}
        return name not in new.by_name and any(
            all(never(parent, value) for value in values) for parent, values in when.items()
        )

    found: dict[str, Domain] = {}
    for name in _merged(new.names, [n for n in old.names if n in new.by_name or gone(n)]) or new.names:
        if name not in new.by_name or name not in old.by_name:
            found[name] = (new.by_name.get(name) or old.by_name[name]).domain
            continue
        domain, was = new.by_name[name].domain, old.by_name[name].domain
        joined, mine, theirs = _joined(domain, was), domain.when or {}, was.when or {}
        if joined is None or mine.keys() != theirs.keys():
            found[name] = domain
            continue
        when: dict[str, list[Any]] = {}
        for parent, values in mine.items():
            texts = list(map(repr, values))
            when[parent] = values + [v for v in theirs[parent] if repr(v) not in texts and never(parent, v)]
        found[name] = replace(joined, when=when)
    return found


def _joined(new: Domain, old: Domain) -> Domain | None:
    """Return the smallest domain that contains two, without the condition; None if there is none.

    It is the new one, without its condition, if that contains the old one.
    """
    if isinstance(old, Constant):
        return replace(new, when=None) if _has(new, old) else None
    if isinstance(old, Choice):
        return _joined_choice(new, old)
    if isinstance(new, Constant):
        value = _number(new)
        if value is None or not (isinstance(value, int) or isinstance(old, Float)):
            return None
        low, high = (end if isinstance(end, str) else value for end in (old.low, old.high))
    elif isinstance(new, Choice) or type(new) is not type(old) or new.log != old.log:
        return None
    else:
        low, high = new.low, new.high
    if any((isinstance(a, str) or isinstance(b, str)) and a != b for a, b in ((low, old.low), (high, old.high))):
        return None
    ends: list[Any] = [a if a == b else outer(a, b) for a, b, outer in ((low, old.low, min), (high, old.high, max))]
    try:
        return type(old)(*ends, log=old.log)
    except InvalidSpace:  # too wide, or a constant of 0 on a logarithmic scale
        return None


def _has(domain: Domain, constant: Constant) -> bool:
    """Return whether the constant's value is one of the domain's in every configuration."""
    if isinstance(domain, Choice | Constant):
        return repr(constant.value) in map(repr, options_of(domain))
    value, low, high = _number(constant), domain.low, domain.high
    if value is None or isinstance(low, str) or isinstance(high, str):
        return False
    return (isinstance(value, int) or isinstance(domain, Float)) and low <= value <= high


def _joined_choice(new: Domain, old: Choice) -> Choice | None:
    options = options_of(new)
    if not options or (isinstance(new, Choice) and new.ordered != old.ordered):
        return None
    by_text = {repr(option): option for option in (*old.options, *options)}
    texts, before = [repr(option) for option in options], [repr(option) for option in old.options]
    merged = _merged(texts, before) if old.ordered else [*texts, *(text for text in before if text not in texts)]
    try:
        return None if merged is None else Choice([by_text[text] for text in merged], ordered=old.ordered)
    except InvalidSpace:  # 1 and 1.0
        return None


def _merged(new: Sequence[str], old: Sequence[str]) -> list[str] | None:
    """Return the names of both in the order of each, or None if these differ."""
    found, position = list(old), 0
    for name in new:
        if name not in found:
            found.insert(position, name)
        elif found.index(name) < position:
            return None
        position = found.index(name) + 1
    return found


def _could_hold(parent: Parameter, other: Domain, value: Any) -> bool:
    """Return whether a condition on `parent` could hold, which is the domain `other` in another layout."""
    hull = (parent.domain.value,) * 2 if isinstance(parent.domain, Constant) else parent.hull
    try:
        _condition("", parent.name, [value], parent.domain if options_of(other) else other, hull)
    except InvalidSpace:
        return False
    return True


def lacking(new: Layout, old: Layout) -> list[str]:
    """Return the reasons why `new` does not contain `old`; empty if it does."""
    before, now = old.by_name, new.by_name

    def could_hold(parent: str, value: Any) -> bool:
        return _could_hold(before[parent], now[parent].domain, value)

    def is_idle(name: str) -> bool:
        """Return whether a new parameter is inactive in every configuration of the old layout."""
        return any(
            not any(could_hold(parent, value) for value in values) if parent in before else is_idle(parent)
            for parent, values in (now[name].domain.when or {}).items()
        )

    def keeps_condition(name: str) -> bool:
        """Return whether the condition keeps its parents, and gains only values that these could not have before."""
        was, is_now = before[name].domain.when or {}, now[name].domain.when or {}
        if was.keys() != is_now.keys():
            return False
        for parent, values in is_now.items():
            texts = list(map(repr, was[parent]))
            more = [value for value in values if repr(value) not in texts]
            if set(texts) - set(map(repr, values)) or any(could_hold(parent, value) for value in more):
                return False
        return True

    found = [f"{name!r} is missing" for name in old.names if name not in now]
    for name, p in now.items():
        if name not in before:
            if not isinstance(p.domain, Constant) and not is_idle(name):
                value = p.domain.options[0] if isinstance(p.domain, Choice) else p.domain.low
                found.append(
                    f"{name!r} is new, and its value in earlier trials is unknown. Open the study once with that "
                    f"value, such as Study(space | {{{name!r}: {value!r}}}, ...), and then with this space"
                )
        elif _joined(p.domain, before[name].domain) != replace(p.domain, when=None) or not keeps_condition(name):
            found.append(f"{name!r} was {before[name].domain!r} and is {p.domain!r}")
    if not found and [n for n in new.names if n in before] != list(old.names):
        found.append(f"the order was {', '.join(old.names)}")
    return found
