"""Counting and listing the configurations of a finite space.

The product of all values that the parameters could have is laid out as a table; kept are the rows
whose active values lie within their bounds, once for each setting of the inactive ones.
"""

import math

import numpy as np

from ..errors import InvalidSpace
from .layout import Layout, Parameter
from .tables import Config, Table, write_configs

LARGEST = 100_000  # rows laid out


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
    if size is None or size > LARGEST:
        said = "has a continuous parameter" if size is None else f"has up to {size:,} configurations"
        raise InvalidSpace(
            f"The space {said}; only up to {LARGEST:,} can be listed. Use sample(n, rng) instead."
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


def _count(parameter: Parameter) -> int | None:
    low, high = parameter.hull
    if parameter.axis.continuous:
        return 1 if low == high else None
    return int(high - low) + 1
