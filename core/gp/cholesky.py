"""Cholesky factors that report their jitter and grow by rows: K = L L', L lower and in Fortran order."""

import numpy as np
from scipy.linalg import lapack

from haltune._utils.arrays import Array
from haltune.errors import InvalidInput

JITTERS = (0.0, *(10.0**power for power in range(-12, 0)))  # relative to the signal variance
_EPS = float(np.finfo(np.float64).eps)


def factorise(matrix: Array, scale: float) -> tuple[Array, float]:
    """Lower factor L (n, n) of matrix + jitter * I and that jitter, the smallest of 0, 1e-12, ..., 0.1
    times scale.

    A factor counts only when every pivot is above rounding, n eps scale: LAPACK also succeeds on pivots
    that are rounding errors, and the predictions would then be their inverses.
    Raises InvalidInput when the matrix is not finite, or not nearly positive semidefinite.
    """
    if not np.isfinite(matrix).all():
        raise InvalidInput(
            "a covariance matrix holds NaN or infinity: targets, noise or inputs are too large"
        )
    size = len(matrix)
    if size == 0:
        return np.zeros((0, 0), order="F"), 0.0
    diagonal = matrix.diagonal()
    for jitter in JITTERS:
        shifted = np.array(matrix.T, order="F")  # symmetric, and a transpose in C order copies straight
        shifted.flat[:: size + 1] = diagonal + jitter * scale
        factor, info = lapack.dpotrf(shifted, lower=1, clean=1, overwrite_a=1)
        if info == 0 and well_conditioned(factor.diagonal(), scale):
            return factor, jitter * scale
    raise InvalidInput(
        "a covariance matrix is not positive definite even with jitter; are variances negative?"
    )


def well_conditioned(pivots: Array, scale: float) -> bool:
    """Whether all pivots (n,) of a factor are above rounding, so that they are more than chance."""
    return float(pivots.min()) ** 2 > len(pivots) * _EPS * scale


def solve_lower(factor: Array, right: Array, *, transposed: bool = False) -> Array:
    """L^-1 right, or L^-T right: right is (n,) or (n, m), L (n, n) lower in Fortran order."""
    if len(factor) == 0 or right.size == 0:
        return right.copy()
    solution, _ = lapack.dtrtrs(factor, right, lower=1, trans=int(transposed))
    return np.asarray(solution)


def extend(factor: Array, cross: Array, corner: Array, scale: float) -> tuple[Array, Array, float]:
    """The factor of [[K, cross], [cross', corner]] from that of K, in O(n^2 m): returns (L, its new rows,
    jitter).

    cross is (n, m), corner (m, m) with its noise; the new rows are (m, n). Old entries keep their bits.
    """
    old, new = cross.shape
    rows = solve_lower(factor, cross).T
    corner_factor, jitter = factorise(corner - rows @ rows.T, scale)
    extended = np.zeros((old + new, old + new), order="F")
    extended[:old, :old] = factor
    extended[old:, :old] = rows
    extended[old:, old:] = corner_factor
    return extended, rows, jitter
