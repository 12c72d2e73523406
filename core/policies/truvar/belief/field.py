"""A Gaussian process on finitely many points: their means, variances and covariances, and what follows from them.

Up to `DENSE` points the covariance matrix is kept and changes by rank-one steps; beyond, only the factor
half = L^-1 k(X, points) is, and covariances are made block by block when they are asked for.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from haltune._utils.arrays import Array, Indices
from haltune.gp import Posterior
from haltune.gp.gp import solve_lower

from ..variance import downdate

DENSE = 5000  # points: a matrix of 200 MB


class Field(Protocol):
    """A belief about f at n points. `observed` belongs to whoever made the field: it changes it in place."""

    mean: Array  # (n,)
    variance: Array  # (n,), without noise
    prior: float  # the variance of f before any observation

    def rows(self, block: Indices) -> Array:
        """Covariances (b, n) of the points of a block with all points."""
        ...

    def observe(self, index: int, target: float, noise: float) -> None:
        """A target seen at a point with this noise variance."""
        ...

    def copy(self) -> Field:
        """Another that may change without this one."""
        ...


def field_of(posterior: Posterior, points: Array) -> Field:
    """The field of a posterior at points (n, d)."""
    return _Dense.of(posterior, points) if len(points) <= DENSE else _Blocked(posterior, points)


class _Dense:
    """The covariance matrix itself."""

    def __init__(self, mean: Array, covariance: Array, prior: float) -> None:
        self.mean, self.covariance, self.prior = mean, covariance, prior
        self.variance = np.maximum(covariance.diagonal(), 0.0)

    @classmethod
    def of(cls, posterior: Posterior, points: Array) -> _Dense:
        covariance = np.ascontiguousarray(posterior.covariance(points))
        return cls(posterior.mean(points), covariance, posterior.kernel.variance)

    def rows(self, block: Indices) -> Array:
        first, last = int(block[0]), int(block[-1])
        return self.covariance[first : last + 1] if last - first + 1 == len(block) else self.covariance[block]

    def observe(self, index: int, target: float, noise: float) -> None:
        column = downdate(self.covariance, index, noise)
        total = noise + column[index]
        if total > 0.0:
            self.mean = self.mean + column * ((target - self.mean[index]) / total)
        self.variance = np.maximum(self.covariance.diagonal(), 0.0)

    def copy(self) -> _Dense:
        return _Dense(self.mean, self.covariance.copy(), self.prior)


class _Blocked:
    """The posterior and half (t, n); memory O(t n) for t observations."""

    def __init__(self, posterior: Posterior, points: Array, half: Array | None = None) -> None:
        self.posterior, self.points, self.prior = posterior, points, posterior.kernel.variance
        cross = posterior.kernel(posterior.X, points)
        self.half = solve_lower(posterior.factor, cross) if half is None else half
        self._settle()

    def _settle(self) -> None:
        self.mean = self.posterior.constant + self.posterior.whitened @ self.half
        self.variance = np.maximum(self.prior - np.einsum("ij,ij->j", self.half, self.half), 0.0)

    def rows(self, block: Indices) -> Array:
        covariance = self.posterior.kernel(self.points[block], self.points)
        covariance -= self.half[:, block].T @ self.half
        return covariance

    def observe(self, index: int, target: float, noise: float) -> None:
        extra = max(noise - self.posterior.noise, 0.0)
        self.posterior = self.posterior.condition(self.points[index], target, extra)
        pivot = float(self.posterior.factor[-1, -1])
        self.half = np.vstack([self.half, self.rows(np.array([index]))[0] / pivot])
        self._settle()

    def copy(self) -> _Blocked:
        return _Blocked(self.posterior, self.points, self.half)
