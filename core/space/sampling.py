"""Sampling a space: points of a design, of which those count whose configuration is allowed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from haltune._utils.arrays import Array
from haltune.errors import InvalidSpace

from .designs import batches

_TRIES = 100_000  # points that are tried for each configuration found, at least, before sampling gives up
Passing = Callable[[Array], list[dict[str, Any]]]  # points (m, width) of a design -> those that are allowed


def spread_out(
    n: int, rng: np.random.Generator, design: str, width: int, passing: Passing, named: Sequence[str]
) -> list[dict[str, Any]]:
    """n configurations. named: the constraints. Raises InvalidSpace when too few points pass."""
    found, tried = _drawn(n, rng, design, width, passing, max(_TRIES, 100 * n))
    if len(found) < n:
        whose = ", ".join(map(repr, named)) or "bounds that cross"
        most = "nothing" if not found else f"only {len(found):,} of {n:,} wanted"
        raise InvalidSpace(
            f"Of {tried:,} points of the space, {most} passed ({whose}). Loosen this, or say it with bounds "
            f"that name other parameters and conditions, which need no luck."
        )
    return found


def spread_out_up_to(
    n: int, rng: np.random.Generator, design: str, width: int, passing: Passing
) -> list[dict[str, Any]]:
    """At most n configurations, of some 20 n points."""
    return _drawn(n, rng, design, width, passing, 20 * n)[0]


def _drawn(
    n: int, rng: np.random.Generator, design: str, width: int, passing: Passing, patience: int
) -> tuple[list[dict[str, Any]], int]:
    """At most n that pass, of `patience` points or somewhat more; and the points tried."""
    found: list[dict[str, Any]] = []
    tried = 0
    for points in batches(design, n, width, rng):
        if len(found) >= n or tried >= patience:
            break
        found += passing(points)
        tried += len(points)
    return found[:n], tried
