"""Which observations a Gaussian process keeps when there are too many for an exact one."""

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array, Indices
from haltune.errors import InvalidInput

from .kernels import as_points
from .posterior import as_targets


def subset(X: ArrayLike, y: ArrayLike, limit: int = 2000) -> Indices:
    """Indices, ascending, of at most `limit` of the observations y (n,), larger is better, at X (n, d).

    All of them while n <= limit. Beyond: a quarter are the best, because the next proposal is decided near
    them; a quarter the latest, because they say what the search does now; the rest fill the space greedily,
    each the point farthest from all kept ones, so that no region already seen looks unknown. Deterministic;
    O(limit n d).

    Args:
        X: (n, d) inputs.
        y: (n,) targets, in the order in which they were seen.
        limit: At most so many are kept. Default: 2000.

    Raises:
        InvalidInput: When limit < 1, or on wrong shapes or non-finite values.

    Example:
        >>> subset([[0.0], [0.1], [0.9], [1.0]], [1.0, 0.0, 0.0, 0.0], limit=2).tolist()
        [0, 3]
    """
    points = as_points(X)
    targets = as_targets(y, len(points))
    if limit < 1:
        raise InvalidInput(f"limit must keep 1 observation or more, not {limit}")
    if len(points) <= limit:
        return np.arange(len(points))
    quarter = limit // 4
    best = np.argsort(-targets, kind="stable")[: max(quarter, 1)]
    latest = np.arange(len(points) - quarter, len(points))
    kept = np.union1d(best, latest)
    return np.sort(np.concatenate([kept, _fill(points, kept, limit - len(kept))]))


def _fill(points: Array, kept: Indices, count: int) -> Indices:
    """`count` further indices, each farthest from all before it; ties go to the earliest."""
    norms = np.einsum("ij,ij->i", points, points)
    nearest = np.full(len(points), np.inf)
    for index in kept:
        np.minimum(nearest, _squared(points, norms, int(index)), out=nearest)
    nearest[kept] = -np.inf
    chosen = np.empty(count, dtype=np.intp)
    for position in range(count):
        index = int(np.argmax(nearest))
        chosen[position] = index
        np.minimum(nearest, _squared(points, norms, index), out=nearest)
        nearest[index] = -np.inf
    return chosen


def _squared(points: Array, norms: Array, index: int) -> Array:
    """Squared distances (n,) from one of the points to all, up to rounding."""
    return np.asarray(norms - 2.0 * (points @ points[index]) + norms[index])
