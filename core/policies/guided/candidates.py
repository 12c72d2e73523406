"""The configurations that a model compares: anywhere in the space, and near the best that was seen."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array, Indices
from haltune.log.history import History
from haltune.space import Space
from haltune.space.domains import Float, bounding

from .curve_rows import CurveTable

_BEST_TRIALS = 5  # best trials that have neighbours among the candidates
_NEIGHBOUR_DEVIATION = 0.15  # deviation of a neighbour in the unit cube


def candidates(
    history: History, rows: CurveTable, count: int, rng: Generator, others: Array | None = None
) -> Array:
    """(n, d) random configurations, and neighbours of the best trials in about half of their coordinates.

    A third of `count` are neighbours, of `others` (k, d) as well, which are candidates themselves. All configurations,
    in a space with no more.
    """
    space, near = history.problem.space, count // 3
    if space.size is not None and space.size <= count:
        return space.encode_many(space.enumerate())
    tops = history.points[_best_trials(rows, history.problem.goal.sign)]
    others = np.empty((0, space.dim)) if others is None else others
    tops = np.vstack([tops, others])
    anywhere = rng.random((count - near, space.dim))
    base = tops[rng.integers(len(tops), size=near)]
    moved = base + (rng.random(base.shape) < 0.5) * rng.normal(0.0, _NEIGHBOUR_DEVIATION, base.shape)
    points = np.vstack([anywhere, np.clip(moved, 0.0, 1.0), others])
    return points if _free(space) else space.encode_many(space.decode_many(points))


def _best_trials(rows: CurveTable, sign: float) -> Indices:
    """The trials of the best values, best first, of equals the lower number; what is not finite last."""
    score = np.where(np.isfinite(rows.value), -sign * rows.value, np.inf)
    ranked = rows.trial[np.lexsort((rows.trial, score))]
    _, first = np.unique(ranked, return_index=True)
    return ranked[np.sort(first)[:_BEST_TRIALS]]


def first_untried(history: History, points: Array, value: Array) -> tuple[int, dict[str, Any]] | None:
    """The point (n, d) of largest value (n,) whose configuration breaks no constraint and was not tried, and that one.

    None when there is none. They are asked one by one, for it is slow.
    """
    space = history.problem.space
    for i in np.argsort(-value, kind="stable"):
        config = space.decode(points[i])
        if space.contains(config) and space.key_of_canonical(config) not in history.tried:
            return int(i), config
    return None


def _free(space: Space) -> bool:
    """True when a point and its configuration are one: all coordinates are numbers that depend on no other."""
    return all(isinstance(d, Float) and not d.when and not bounding(d) for d in space.parameters.values())
