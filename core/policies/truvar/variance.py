"""Truncated variance reduction: what one more observation takes off the variances that still matter.

Notation (Bogunovic, Scarlett, Krause, Cevher, "Truncated Variance Reduction", NIPS 2016): M are the points that
matter, v_i the posterior variance of f at point i, C the posterior covariance, e the floor below which a
variance counts no more (eta^2 / beta there), `excess` d_i = max(v_i - e, 0) in M and 0 outside. Equation (3),

    sum_M max(v_i, e) - sum_M max(v_i - C_ij^2 / (noise_j + v_j), e),

with the rank-one form (18) of the variance after observing j, is term by term

    sum over the rows with d_i > 0 of  min(C_ij^2 / (noise_j + v_j), d_i),

in which nothing cancels and saturated rows are never touched. `noise` may be a matrix (k, n): one row a noise
level that can be chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from scipy.linalg import blas

from haltune._utils.arrays import Array, Indices, Mask

CovarianceRows = Callable[
    [Indices], Array
]  # indices (b,) of points -> their covariances (b, n) with all candidates
_ENTRIES, _THIN = 40_000, 16  # of a block, and its fewest rows
_NO_ZERO = 1e-300  # divides 0 by it instead of by 0: a point known exactly takes nothing off


def excess_variance(variance: Array, floor: float, members: Mask) -> Array:
    """d (n,): by how much each variance is above the floor; 0 where it is not, and outside the members."""
    return np.where(members, np.maximum(variance - floor, 0.0), 0.0)


def truncated_reduction(rows: CovarianceRows, variance: Array, noise: Array, over: Array) -> Array:
    """The reduction (k, n) by each of n candidates at each of k noise levels.

    rows: covariances of points with the candidates, by blocks. variance: (n,) of the candidates. noise:
    (k, n) variances of an observation of each. over: (m,) excess of the m points that `rows` knows.
    O(k u n) for u unsaturated points.
    """
    scale = np.maximum(noise + variance, _NO_ZERO)
    total = np.zeros_like(scale)
    # The divisor is taken out of the sum, min(C^2, d s) / s, and d s made by BLAS: passes over whole blocks are
    # twice as fast as those that repeat a row or a column.
    square, bound = np.empty((2, _size(len(variance)), len(variance)))
    for block in blocks(np.flatnonzero(over > 0.0), len(variance)):
        squares, bounds = square[: len(block)], bound[: len(block)]
        np.square(rows(block), out=squares)
        for level, own in enumerate(scale):
            blas.dgemm(1.0, own[:, None], over[None, block], 0.0, bounds.T, overwrite_c=1)
            np.minimum(squares, bounds, out=bounds)
            total[level] += np.ones(len(block)) @ bounds  # by BLAS: twice as fast as a sum
    return np.asarray(total / scale)


def anticipated_reduction(
    rows: CovarianceRows,
    variance: Array,
    noise: Array,
    over: Array,
    floor: float,
    kept: Callable[[Array, Indices], Mask],
) -> Array:
    """The same (k, n), the second sum of (3) over the members that each observation would leave (appendix A).

    kept: variances (b, n) of the points of a block after each observation -> (b, n) whether each would stay
    a member if the observation came out at its mean. A member that would leave counts whole, max(v, e).
    """
    members = np.flatnonzero(over >= 0.0)  # over is negative outside the members
    inverse = 1.0 / np.maximum(noise + variance, _NO_ZERO)
    total = np.zeros_like(inverse)
    for block in blocks(members, len(variance)):
        cross = rows(block)
        own = over[block, None] + floor  # max(v_i, e)
        for level, scale in enumerate(inverse):
            drop = cross * cross * scale
            stays = kept(drop, block)
            total[level] += np.where(stays, np.minimum(drop, over[block, None]), own).sum(axis=0)
    return total


def blocks(indices: Indices, columns: int) -> Iterator[Indices]:
    """Pieces of indices (m,): rows of a block with so many columns."""
    size = _size(columns)
    for first in range(0, len(indices), size):
        yield indices[first : first + size]


def _size(columns: int) -> int:
    """Rows of a block: it and the scratch stay in the second-level cache, unless that made the blocks thin."""
    return max(_THIN, _ENTRIES // max(columns, 1))


def downdate(covariance: Array, index: int, noise: float) -> Array:
    """Observe point `index` with a noise variance: C -= c c' / (noise + c_index), in place; returns that c (n,).

    covariance is (n, n), symmetric, in C order. Kept in float64: the errors of such steps add up.
    """
    column: Array = covariance[index].copy()
    total = noise + column[index]
    if total > 0.0:
        # C is symmetric, so that its transpose, which Fortran sees, is C itself: updated without a copy.
        blas.dger(-1.0 / total, column, column, a=covariance.T, overwrite_a=1)
    return column


def best_ratio(reduction: Array, cost: Array) -> tuple[int, int]:
    """(level, candidate) of the largest reduction per cost, both (k, n); the first of those equal up to rounding.

    Sums whose terms have all saturated differ by their last bits only, which say nothing.
    """
    ratio = reduction / cost
    level, candidate = np.unravel_index(int(np.argmax(ratio >= ratio.max() * (1.0 - 1e-12))), ratio.shape)
    return int(level), int(candidate)
