"""Sites, as spatial statistics says: the finitely many configurations over which a policy holds a belief.

All configurations of a small finite space, a mesh or a list that the user gave; else representers: Sobol points, half
of which are drawn anew among the configurations that still matter whenever the kernel is learnt again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array, Mask
from haltune.errors import InvalidInput
from haltune.log.decisions import Config
from haltune.space import Space

MOST_SITES = 20_000  # configurations that are looked at one by one
_NEIGHBOUR_DEVIATION = 0.05  # deviation of the steps around members, in the unit cube

GridOption = int | Sequence[Mapping[str, Any]] | None


@dataclass(frozen=True, eq=False)
class Sites:
    """n configurations of a space."""

    configs: Sequence[Config]
    keys: Sequence[str]
    points: Array  # (n, dim)
    fixed: bool  # True: all there is to choose from; False: they represent a space that is larger

    def __len__(self) -> int:
        return len(self.configs)

    @cached_property
    def number(self) -> Mapping[str, int]:
        """The site of a configuration by its key."""
        return {key: i for i, key in enumerate(self.keys)}

    def tried(self, keys: frozenset[str] | set[str]) -> Mask:
        """(n,) which of them are among these keys."""
        return np.array([key in keys for key in self.keys])


def sites_of(space: Space, configs: Sequence[Config], fixed: bool) -> Sites:
    """Configurations, without repetitions, in order."""
    distinct = dict(zip(space.keys(configs), configs, strict=True))
    return Sites([*distinct.values()], [*distinct], space.encode_many([*distinct.values()]), fixed)


def fixed_sites(space: Space, grid: GridOption) -> Sites | None:
    """All there is to choose from: a list, a mesh, or a small finite space; None where representers are needed.

    grid: configurations; or how many values a continuous parameter takes on a mesh; None leaves it to the space.
    Raises InvalidInput for configurations that are not of the space, and for more than 20,000 of them.
    """
    if isinstance(grid, int):
        found = space.mesh(grid, MOST_SITES)
    elif grid is not None:
        found = [dict(config) for config in grid]
        strange = [config for config in found if not space.contains(config)]
        if strange or not found:
            said = f"{strange[0]!r} is not a configuration of the space" if strange else "it is empty"
            raise InvalidInput(f"grid: {said}")
        found = space.canonical_many(found)
    elif space.size is not None and space.size <= MOST_SITES:
        found = space.enumerate()
    else:
        return None
    if len(found) > MOST_SITES:
        raise InvalidInput(
            f"grid: {len(found):,} configurations, and {MOST_SITES:,} at most can be looked at"
        )
    return sites_of(space, found, True)


def representers(space: Space, count: int, rng: Generator, matters: Callable[[Array], Mask] | None) -> Sites:
    """About `count` Sobol configurations; up to half of them are such that matter, drawn near those if they are few.

    matters: points (m, dim) -> (m,) whether they may still be what is looked for; None: nothing is known.
    """
    spread = space.sample_up_to(count, rng, "sobol")
    if matters is None:
        return sites_of(space, spread, False)
    pool = space.sample_up_to(8 * count, rng, "sobol")
    points = space.encode_many(pool)
    close = [pool[i] for i in np.flatnonzero(matters(points))]
    if 0 < len(close) < count // 2:
        centres = space.encode_many(close)[rng.integers(len(close), size=4 * count)]
        moved = centres + _NEIGHBOUR_DEVIATION * rng.standard_normal(centres.shape) * space.continuous
        near = space.decode_many(np.clip(moved, 0.0, 1.0))
        kept = matters(space.encode_many(near))
        close += [config for config, keep in zip(near, kept, strict=True) if keep and space.contains(config)]
    half = close[: count // 2]
    return sites_of(space, [*half, *spread[: count - len(half)]], False)


def is_grid(grid: Any) -> bool:
    """Whether it is a number of values, or a list of mappings."""
    if isinstance(grid, (bool, str)) or not isinstance(grid, (int, Sequence)):
        return False
    return isinstance(grid, int) or all(isinstance(config, Mapping) for config in grid)


def grid_to_json(grid: GridOption) -> Any:
    """A number as it is; a list by its length and a digest of its configurations."""
    if grid is None or isinstance(grid, int):
        return grid
    text = "\n".join(sorted(repr(sorted(config.items())) for config in grid))
    return {"configurations": len(grid), "digest": sha256(text.encode()).hexdigest()[:16]}
