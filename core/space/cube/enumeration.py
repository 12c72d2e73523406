"""Counting and listing the configurations of a finite space.

The product of all values that the parameters could have is laid out as a table; kept are the rows
whose active values lie within their bounds, once for each setting of the inactive ones.
"""

import math

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.words import plural
from haltune.errors import InvalidInput, InvalidSpace

from .layout import Layout, Parameter
from .tables import Config, Table, write_configs

MOST_ROWS = 100_000  # rows laid out


def hull_size(layout: Layout) -> int | None:
    """The number of combinations, conditions and named bounds ignored; None where one is continuous."""
    counts = [_count(parameter) for parameter in layout.ordered]
    return None if None in counts else math.prod(count for count in counts if count is not None)


def is_product(layout: Layout) -> bool:
    """Whether the combinations are the configurations, as far as constraints allow them."""
    return not any(p.conditions or p.low_of or p.high_of for p in layout.ordered)


def configurations(layout: Layout) -> list[Config]:
    """All configurations but for constraints, the last parameter fastest. Raises InvalidSpace if too many."""
    size = hull_size(layout)
    if size is None or size > MOST_ROWS:
        said = "has a continuous parameter" if size is None else f"has up to {plural(size, 'configuration')}"
        raise InvalidSpace(
            f"The space {said}; only up to {MOST_ROWS:,} can be listed. Use sample(n, rng) instead."
        )
    ordered = [next(p for p in layout.ordered if p.name == name) for name in layout.names]
    grids = np.unravel_index(np.arange(size), [_count(p) or 1 for p in ordered])
    table, keep = Table(size), np.ones(size, dtype=np.bool_)
    offsets = dict(zip(layout.names, grids, strict=True))
    for p in layout.ordered:
        table.open(p)
        column = (p.hull[0] + offsets[p.name]).astype(p.axis.blank.dtype)
        table.columns[p.name] = column
        within = (table.lows[p.name] <= column) & (column <= table.highs[p.name])
        keep &= np.where(table.active[p.name], within & ~table.crossed[p.name], offsets[p.name] == 0)
    return write_configs(layout, table.rows(keep))


def mesh_axes(layout: Layout, levels: int, most: int) -> list[Array]:
    """The nodes of a mesh along each design coordinate. Raises InvalidInput for levels < 2 and for too many nodes."""
    if isinstance(levels, bool) or levels < 2:
        raise InvalidInput(f"a mesh has 2 levels or more along each continuous parameter, not {levels!r}")
    counts = [_count(p) for p in layout.coordinates]
    nodes = [
        levels if count is None else count if p.axis.width > 1 else min(count, levels)
        for p, count in zip(layout.coordinates, counts, strict=True)
    ]
    if math.prod(nodes) > most:
        raise InvalidInput(
            f"a mesh of {' x '.join(map(str, nodes))} has {math.prod(nodes):,} nodes; at most {most:,} fit: use fewer"
        )
    return [_nodes(p, n, count) for p, n, count in zip(layout.coordinates, nodes, counts, strict=True)]


def _nodes(parameter: Parameter, number: int, count: int | None) -> Array:
    """Evenly spread over the cube; those of all values where there are no more."""
    if number != count:
        return np.linspace(0.0, 1.0, number)
    if parameter.axis.width > 1:  # options without an order: a design coordinate picks one
        return (np.arange(count) + 0.5) / count
    low, high = (np.full(number, end, dtype=parameter.axis.blank.dtype) for end in parameter.hull)
    values = low + np.arange(number, dtype=low.dtype)
    return np.asarray(parameter.axis.encode(values, low, high)[:, 0])


def _count(parameter: Parameter) -> int | None:
    low, high = parameter.hull
    if parameter.axis.continuous:
        return 1 if low == high else None
    return int(high - low) + 1
