"""Tables: many configurations as columns, read from configurations or from the cube and written to either.

An inactive parameter is absent from its configuration. In the cube it sits in the middle: 0.5 on a
single coordinate, 1/k on the k coordinates of a one-hot choice, which is equally far from each of its
options; so a Gaussian process sees all configurations without it as alike.

A bound that names an inactive parameter falls back to the outermost value that parameter could have.
Bounds that cross in a row (they can when low, say, is another parameter) leave the row without a valid
configuration: `valid` says so; its value is the lower bound then.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array, Mask
from haltune.errors import InvalidInput, InvalidSpace

from .axes import Column
from .layout import MISSING, Layout, Parameter, full, suggestion

Config = dict[str, Any]


@dataclass
class Table:
    """Columns that grow parameter by parameter, in order of evaluation."""

    count: int
    columns: dict[str, Column] = field(default_factory=dict)  # (count,) each; arbitrary where inactive
    active: dict[str, Mask] = field(default_factory=dict)
    lows: dict[str, Column] = field(default_factory=dict)
    highs: dict[str, Column] = field(default_factory=dict)
    crossed: dict[str, Mask] = field(default_factory=dict)  # active, and without a value between its bounds

    @property
    def valid(self) -> Mask:
        """(count,) whether every active parameter has a value within its bounds."""
        valid = np.ones(self.count, dtype=np.bool_)
        for crossed in self.crossed.values():
            valid &= ~crossed
        return valid

    def open(self, parameter: Parameter) -> None:
        """Settles where a parameter is active and what its bounds are there."""
        name = parameter.name
        active = np.ones(self.count, dtype=np.bool_)
        for condition in parameter.conditions:
            active &= self.active[condition.parent] & condition.holds(self.columns[condition.parent])
        low = self._bound(parameter, parameter.low_of, 0, self.columns)
        high = self._bound(parameter, parameter.high_of, 1, self.columns)
        self.active[name], self.crossed[name] = active, active & (low > high)
        self.lows[name], self.highs[name] = low, np.maximum(low, high)

    def rows(self, keep: Mask) -> "Table":
        """The rows where keep is true."""
        parts = (self.columns, self.active, self.lows, self.highs, self.crossed)
        return Table(
            int(keep.sum()), *({name: column[keep] for name, column in part.items()} for part in parts)
        )

    def _bound(
        self, parameter: Parameter, other: str | None, side: int, columns: Mapping[str, Column]
    ) -> Column:
        outermost = full(parameter.hull[side], parameter.domain, self.count)
        if other is None:
            return outermost
        return np.where(self.active[other], columns[other], outermost).astype(outermost.dtype)


def read_cube(layout: Layout, u: Array) -> Table:
    """(n, dim) points of the unit cube to a table."""
    table = Table(len(u))
    for p in layout.ordered:
        table.open(p)
        table.columns[p.name] = p.axis.decode(u[:, p.columns], table.lows[p.name], table.highs[p.name])
    return table


def read_configs(layout: Layout, configs: Sequence[Mapping[str, Any]]) -> Table:
    """Configurations to a table of canonical values. Raises InvalidSpace for one that is not of the space."""
    table, raw = Table(len(configs)), dict[str, Column]()
    _check_names(layout, configs)
    for p in layout.ordered:
        table.open(p)
        _check_crossed(table, p)
        values = _present(table, p, configs)
        active = table.active[p.name]
        column = table.lows[p.name].copy()
        column[active] = p.axis.read(p.name, values) if values else p.axis.blank
        raw[p.name] = column
        _check_bounds(table, p, raw)
        table.columns[p.name] = p.axis.settle(column, table.lows[p.name], table.highs[p.name])
    return table


def write_cube(layout: Layout, table: Table) -> Array:
    """A table to (n, dim) points, inactive parameters in the middle."""
    u = np.empty((table.count, layout.dim))
    for p in layout.coordinates:
        low, high, active = table.lows[p.name], table.highs[p.name], table.active[p.name]
        encoded = p.axis.encode(table.columns[p.name], low, high)
        u[:, p.columns] = np.where(active[:, None], encoded, p.axis.centre)
    return u


def write_configs(layout: Layout, table: Table) -> list[Config]:
    """A table to configurations, each with its active parameters in the order they were declared."""
    axes = {p.name: p.axis for p in layout.ordered}
    lists = [axes[name].write(table.columns[name]) for name in layout.names]
    if all(mask.all() for mask in table.active.values()):
        return [dict(zip(layout.names, row, strict=True)) for row in zip(*lists, strict=True)]
    masks = np.column_stack([table.active[name] for name in layout.names]).tolist()
    return [
        {name: value for name, value, active in zip(layout.names, row, mask, strict=True) if active}
        for row, mask in zip(zip(*lists, strict=True), masks, strict=True)
    ]


def _check_names(layout: Layout, configs: Sequence[Mapping[str, Any]]) -> None:
    known = set(layout.names)
    for config in configs:
        if not isinstance(config, Mapping):
            raise InvalidSpace(f"A configuration maps names to values, like a dict; got {config!r}.")
        for name in config.keys() - known:
            raise InvalidSpace(f"{name!r} is no parameter of this space. {suggestion(name, layout.names)}")


def _present(table: Table, p: Parameter, configs: Sequence[Mapping[str, Any]]) -> list[Any]:
    """The values where active. A constant may be left out: there is only one thing it can be, or was."""
    active = table.active[p.name].tolist()
    values = [
        config.get(p.name, p.absent) for config, is_active in zip(configs, active, strict=True) if is_active
    ]
    for config, is_active in zip(configs, active, strict=True):
        if is_active and p.absent is MISSING and p.name not in config:
            raise InvalidSpace(
                f"{p.name!r} is missing from the configuration {dict(config)!r}. Give it a value."
            )
        if not is_active and p.name in config:
            raise InvalidSpace(
                f"{p.name!r} is given as {config[p.name]!r}, but it is active only when "
                f"{_spoken(p)}. Leave it out of this configuration."
            )
    return values


def _spoken(p: Parameter) -> str:
    return " and ".join(
        f"{k!r} is {' or '.join(map(repr, values))}" for k, values in (p.domain.when or {}).items()
    )


def _check_crossed(table: Table, p: Parameter) -> None:
    for row in np.flatnonzero(table.crossed[p.name])[:1]:
        named = " and ".join(repr(name) for name in (p.low_of, p.high_of) if name)
        raise InvalidSpace(
            f"{p.name!r} has no value left: its lower bound is {table.lows[p.name][row]}, above its upper "
            f"bound, for this value of {named}. Choose another value there."
        )


def _check_bounds(table: Table, p: Parameter, raw: Mapping[str, Column]) -> None:
    """A value may equal a bound's value before that one was put on its grid: both mean the same."""
    column, active = raw[p.name], table.active[p.name]
    low = np.minimum(table.lows[p.name], table._bound(p, p.low_of, 0, raw))
    high = np.maximum(table.highs[p.name], table._bound(p, p.high_of, 1, raw))
    for row in np.flatnonzero(active & ((column < low) | (column > high)))[:1]:
        raise InvalidSpace(f"{p.name!r} is {column[row]}, but must lie in [{low[row]}, {high[row]}].")


def cube_points(u: ArrayLike, dim: int) -> Array:
    """Points (n, dim), moved into the cube where they lie outside. Raises InvalidInput for other shapes and NaN."""
    points = np.asarray(u, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != dim:
        raise InvalidInput(f"Points of this space have {dim} coordinates; got the shape {points.shape}.")
    if np.isnan(points).any():
        raise InvalidInput("A point of the unit cube holds NaN. Coordinates are numbers from 0 to 1.")
    return np.clip(points, 0.0, 1.0)
