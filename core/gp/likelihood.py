"""The log marginal likelihood of a Gaussian process as a function of its hyperparameters, with its gradient.

Notation: K = variance * R + diag(noise + point_noise), R the correlations; w = K^-1 (y - constant). Then
(Rasmussen and Williams 2006, equations 5.8 and 5.9)

    log p(y) = -1/2 (y - constant)' w - 1/2 log |K| - n/2 log 2 pi
    d log p / d theta = 1/2 tr((w w' - K^-1) dK / d theta)

The constant mean is not an argument: for each K its best value is known, (1' K^-1 y) / (1' K^-1 1), and there
the gradient by the others is the partial one (envelope theorem).
"""

from dataclasses import dataclass
from math import log, pi

import numpy as np
from scipy.linalg import lapack

from haltune._utils.arrays import Array
from haltune.errors import InvalidInput

from .cholesky import JITTERS, well_conditioned
from .kernels import KernelName, lengthscale_gradient, profile, row_blocks, squared_distances


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The log marginal likelihood, the constant mean it is for, and derivatives by log hyperparameters."""

    value: float
    constant: float
    by_lengthscales: Array  # (d,)
    by_variance: float
    by_noise: float


class Likelihood:
    """The log marginal likelihood of targets y (n,) at X (n, d); evaluations share its working memory.

    Only half of each symmetric matrix is ever filled: upper in C order, which LAPACK sees as lower.
    """

    def __init__(self, kind: KernelName, X: Array, y: Array, point_noise: Array) -> None:
        self.kind: KernelName = kind
        self.X = X - X.mean(axis=0)  # near the origin, where |a|^2 + |b|^2 - 2 a.b cancels least
        self.y = y
        self.point_noise = point_noise
        self._matrix = np.zeros((len(y), len(y)))  # K, then its factor, then its inverse
        self._slope = np.zeros((len(y), len(y)))

    def __call__(self, lengthscales: Array, variance: float, noise: float) -> Evaluation:
        """One O(n^3) factorisation. Raises InvalidInput when K cannot be factorised even with jitter."""
        scaled = self.X / lengthscales
        noises = self._factorise(scaled, variance, noise + self.point_noise)
        factor = self._matrix.T
        determinant = float(np.log(factor.diagonal()).sum())
        solved, _ = lapack.dpotrs(factor, np.column_stack([self.y, np.ones(len(self.y))]), lower=1)
        constant = float(solved[:, 0].sum() / solved[:, 1].sum())
        weights = solved[:, 0] - constant * solved[:, 1]
        misfit = float((self.y - constant) @ weights)
        # dpotri makes K^-1 of the factor in place, so that every derivative is a sum against it.
        lapack.dpotri(factor, lower=1, overwrite_c=1)
        diagonal = weights**2 - self._matrix.diagonal()
        # tr(w w' K - K^-1 K) = misfit - n, so the signal's share needs no second pass over K.
        signal = misfit - len(self.y) - float(noises @ diagonal)
        return Evaluation(
            value=-0.5 * misfit - determinant - 0.5 * len(self.y) * log(2 * pi),
            constant=constant,
            by_lengthscales=0.5 * variance * self._pull(weights, scaled),
            by_variance=0.5 * signal,
            by_noise=0.5 * noise * float(diagonal.sum()),
        )

    def _factorise(self, scaled: Array, variance: float, noises: Array) -> Array:
        """Leaves L in the matrix and h in the slope; the variances (n,) on the diagonal, jitter included."""
        for jitter in JITTERS:
            self._fill(scaled, variance)
            shifted = noises + jitter * variance
            self._matrix.flat[:: len(noises) + 1] += shifted
            _, info = lapack.dpotrf(self._matrix.T, lower=1, clean=0, overwrite_a=1)
            if info == 0 and well_conditioned(self._matrix.diagonal(), variance):
                return shifted
        raise InvalidInput("the covariance of the targets cannot be factorised; are inputs or noise extreme?")

    def _fill(self, scaled: Array, variance: float) -> None:
        for rows, columns in self._blocks():
            squared = squared_distances(scaled[rows], scaled[columns])
            np.fill_diagonal(squared, 0.0)
            correlation, slope = profile(self.kind, squared)
            np.multiply(correlation, variance, out=self._matrix[rows, columns])
            self._slope[rows, columns] = slope

    def _pull(self, weights: Array, scaled: Array) -> Array:
        """sum_ij (w w' - K^-1)_ij h_ij (z_ik - z_jk)^2, (d,); the slope's memory is used up."""
        for rows, columns in self._blocks():
            pull = np.multiply.outer(weights[rows], weights[columns])
            pull -= self._matrix[rows, columns]
            # Distance zero: only rounding could come of the diagonal, whose entries are the largest.
            np.fill_diagonal(pull, 0.0)
            self._slope[rows, columns] *= pull
        return lengthscale_gradient(self._slope.T, scaled)

    def _blocks(self) -> list[tuple[slice, slice]]:
        """Rows, and the columns from their first on: together the upper half."""
        count = len(self.y)
        return [(rows, slice(rows.start, count)) for rows in row_blocks(count, count)]
