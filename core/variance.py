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
from numpy.typing import NDArray
from scipy.linalg import blas

from .gp.kernels import Array

Indices = NDArray[np.intp]
Rows = Callable[[Indices], Array]  # indices (b,) of points -> their covariances (b, n) with all candidates
_ROWS = 32  # of about 2,500 columns: block and scratch stay in the second-level cache
_TINY = 1e-300  # divides 0 by it instead of by 0: a point known exactly takes nothing off


def excess(variance: Array, floor: float, members: NDArray[np.bool_]) -> Array:
    """d (n,): by how much each variance is above the floor; 0 where it is not, and outside the members."""
    return np.where(members, np.maximum(variance - floor, 0.0), 0.0)


def truncated_reduction(rows: Rows, variance: Array, noise: Array, over: Array) -> Array:
    """The reduction (k, n) by each of n candidates at each of k noise levels.

    rows: covariances of points with the candidates, by blocks. variance: (n,) of the candidates. noise:
    (k, n) variances of an observation of each. over: (m,) excess of the m points that `rows` knows.
    O(k u n) for u unsaturated points.
    """
    inverse = 1.0 / np.maximum(noise + variance, _TINY)
    total = np.zeros_like(inverse)
    square, scratch = (
        np.empty((_ROWS, len(variance))),
        np.empty((min(len(inverse), 2) - 1, _ROWS, len(variance))),
    )
    for block in blocks(np.flatnonzero(over > 0.0)):
        size = len(block)
        cross = rows(block)
        np.multiply(cross, cross, out=square[:size])
        for level, scale in enumerate(inverse):
            last = level == len(inverse) - 1  # in place: one block less in the cache
            part = square[:size] if last else scratch[0, :size]
            np.multiply(square[:size], scale, out=part)
            np.minimum(part, over[block, None], out=part)
            total[level] += _ONES[:size] @ part  # by BLAS: twice as fast as a sum
    return total


def anticipated_reduction(
    rows: Rows,
    variance: Array,
    noise: Array,
    over: Array,
    floor: float,
    kept: Callable[[Array, Indices], NDArray[np.bool_]],
) -> Array:
    """The same (k, n), the second sum of (3) over the members that each observation would leave (appendix A).

    kept: variances (b, n) of the points of a block after each observation -> (b, n) whether each would stay
    a member if the observation came out at its mean. A member that would leave counts whole, max(v, e).
    """
    members = np.flatnonzero(over >= 0.0)  # over is negative outside the members
    inverse = 1.0 / np.maximum(noise + variance, _TINY)
    total = np.zeros_like(inverse)
    for block in blocks(members):
        cross = rows(block)
        own = over[block, None] + floor  # max(v_i, e)
        for level, scale in enumerate(inverse):
            drop = cross * cross * scale
            stays = kept(drop, block)
            total[level] += np.where(stays, np.minimum(drop, over[block, None]), own).sum(axis=0)
    return total


def blocks(indices: Indices) -> Iterator[Indices]:
    """Pieces of indices (m,) of at most `_ROWS` entries."""
    for first in range(0, len(indices), _ROWS):
        yield indices[first : first + _ROWS]


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


_ONES = np.ones(_ROWS)
