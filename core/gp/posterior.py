"""Exact Gaussian process posteriors, as values that never change: conditioning returns a new one.

Notation: f ~ GP(constant, kernel), y_i = f(x_i) + N(0, noise + point_noise_i). K is the covariance of the
targets, L its Cholesky factor, `whitened` L^-1 (y - constant), `weights` K^-1 (y - constant).
Equations: Rasmussen and Williams (2006), algorithm 2.1. Variances are of f, without the noise of a new
observation.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import log, pi
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array
from haltune.errors import InvalidInput

from .cholesky import extend, factorise, solve_lower
from .kernels import Kernel, as_points, input_gradient

_ROWS = 256  # predicted at a time: enough for fast solves, and memory stays bounded however many are asked


class Prediction(NamedTuple):
    """Posterior mean and variance (m,) of f, and their gradients (m, d) by the inputs."""

    mean: Array
    variance: Array
    mean_gradient: Array
    variance_gradient: Array


@dataclass(frozen=True, eq=False)
class Posterior:
    """A Gaussian process given n observations; build it with `condition_on` or `fit`, extend it with
    `condition`.

    Arrays are read-only. Zero observations are allowed: then it is the prior.
    """

    kernel: Kernel
    constant: float  # prior mean, in units of the target
    noise: float  # variance of every observation, in squared units of the target
    X: Array  # (n, d)
    y: Array  # (n,)
    point_noise: Array  # (n,), variances on top of `noise`
    factor: Array  # (n, n), L
    whitened: Array  # (n,), L^-1 (y - constant)
    jitter: float  # the largest variance added to the diagonal to factorise; 0 when none was needed

    @property
    def n(self) -> int:
        """Number of observations."""
        return len(self.y)

    @property
    def dim(self) -> int:
        """Number of input coordinates."""
        return len(self.kernel.lengthscales)

    @cached_property
    def weights(self) -> Array:
        """K^-1 (y - constant), (n,); computed when first needed: chains of `condition` do not pay for it."""
        return _frozen(solve_lower(self.factor, self.whitened, transposed=True))

    @cached_property
    def log_marginal_likelihood(self) -> float:
        """log p(y) = -1/2 |L^-1 (y - constant)|^2 - sum_i log L_ii - n/2 log 2 pi."""
        determinant = float(np.log(self.factor.diagonal()).sum())
        return -0.5 * float(self.whitened @ self.whitened) - determinant - 0.5 * self.n * log(2 * pi)

    def mean(self, X: ArrayLike) -> Array:
        """Posterior mean (m,) at X (m, d). Raises InvalidInput on a wrong shape or non-finite X."""
        points = as_points(X, self.dim)
        return np.asarray(self.constant + self.kernel(points, self.X) @ self.weights)

    def variance(self, X: ArrayLike) -> Array:
        """Posterior variance (m,) of f at X (m, d), never below zero. Raises InvalidInput as `mean`."""
        return self.predict(X)[1]

    def predict(self, X: ArrayLike) -> tuple[Array, Array]:
        """Posterior mean and variance of f at X (m, d), each (m,). Raises InvalidInput as `mean`."""
        points = as_points(X, self.dim)
        mean, variance = np.empty(len(points)), np.empty(len(points))
        for first in range(0, len(points), _ROWS):
            rows = slice(first, first + _ROWS)
            cross = self.kernel(points[rows], self.X)
            mean[rows] = self.constant + cross @ self.weights
            variance[rows] = self._variance(solve_lower(self.factor, cross.T))
        return mean, variance

    def predict_with_gradient(self, X: ArrayLike) -> Prediction:
        """Mean, variance and their gradients by the inputs at X (m, d). Raises InvalidInput as `mean`."""
        points = as_points(X, self.dim)
        cross, slope = self.kernel.with_slope(points, self.X)
        half = solve_lower(self.factor, cross.T)
        full = solve_lower(self.factor, half, transposed=True)
        scales = self.kernel.lengthscales
        by_mean = input_gradient(slope * self.weights, points, self.X, scales)
        by_variance = -2.0 * input_gradient(slope * full.T, points, self.X, scales)
        return Prediction(self.constant + cross @ self.weights, self._variance(half), by_mean, by_variance)

    def covariance(self, X: ArrayLike) -> Array:
        """Posterior covariance (m, m) of f at X (m, d). Raises InvalidInput as `mean`."""
        points = as_points(X, self.dim)
        half = solve_lower(self.factor, self.kernel(points, self.X).T)
        return np.asarray(self.kernel(points) - half.T @ half)

    def sample(self, X: ArrayLike, count: int, rng: np.random.Generator) -> Array:
        """Joint draws (count, m) of f at X (m, d). Raises InvalidInput as `mean`, and when count < 0."""
        if count < 0:
            raise InvalidInput(f"count must be 0 or more draws, not {count}")
        points = as_points(X, self.dim)
        root, _ = factorise(self.covariance(points), self.kernel.variance)
        return np.asarray(self.mean(points) + rng.standard_normal((count, len(points))) @ root.T)

    def condition(self, x: ArrayLike, y: ArrayLike, noise: ArrayLike | None = None) -> "Posterior":
        """The posterior after further observations: x (d,) with y a number, or x (m, d) with y (m,).

        Hyperparameters stay. O(n^2) per point. The same observations in the same order give the same bits.

        Args:
            x: Where they were made.
            y: What was observed.
            noise: Variances on top of the posterior's own, one for all or (m,). Default: none.

        Raises:
            InvalidInput: On wrong shapes, non-finite values or negative noise.
        """
        points = as_points(np.atleast_2d(np.asarray(x)), self.dim, "x")
        targets = as_targets(y, len(points))
        extra = as_noise(noise, len(points))
        corner = self.kernel(points)
        corner.flat[:: len(points) + 1] += self.noise + extra
        cross = self.kernel(self.X, points)
        factor, rows, jitter = extend(self.factor, cross, corner, self.kernel.variance)
        corner_factor = np.asfortranarray(factor[self.n :, self.n :])
        whitened = solve_lower(corner_factor, targets - self.constant - rows @ self.whitened)
        return replace(
            self,
            X=_frozen(np.concatenate([self.X, points])),
            y=_frozen(np.concatenate([self.y, targets])),
            point_noise=_frozen(np.concatenate([self.point_noise, extra])),
            factor=_frozen(factor),
            whitened=_frozen(np.concatenate([self.whitened, whitened])),
            jitter=max(self.jitter, jitter),
        )

    def _variance(self, half: Array) -> Array:
        explained = np.einsum("ij,ij->j", half, half)
        # Rounding below zero would make a NaN of the deviation.
        return np.asarray(np.maximum(self.kernel.variance - explained, 0.0))


def condition_on(
    kernel: Kernel,
    X: ArrayLike,
    y: ArrayLike,
    *,
    noise: float,
    constant: float = 0.0,
    point_noise: ArrayLike | None = None,
) -> Posterior:
    """The posterior of GP(constant, kernel) given targets y (n,) at X (n, d), in O(n^3).

    Args:
        kernel: With its hyperparameters.
        X: (n, d) inputs, in the units of the kernel's lengthscales.
        y: (n,) targets.
        noise: The variance of every observation, in squared units of the target.
        constant: The prior mean, in units of the target. Default: 0.
        point_noise: Variances on top of `noise`, one for all or (n,). Default: none.

    Raises:
        InvalidInput: On wrong shapes, non-finite values or negative noise.

    Example:
        >>> posterior = condition_on(Kernel("se", 1.0, [0.3]), [[0.2]], [1.5], noise=1e-9)
        >>> round(float(posterior.mean([[0.2]])[0]), 6)
        1.5
    """
    points = as_points(X, len(kernel.lengthscales))
    targets = as_targets(y, len(points))
    extra = as_noise(point_noise, len(points))
    own = float(as_noise(noise, 1)[0])
    centre = float(as_targets(constant, 1)[0])
    covariance = kernel(points)
    covariance.flat[:: len(points) + 1] += own + extra
    factor, jitter = factorise(covariance, kernel.variance)
    whitened = solve_lower(factor, targets - centre)
    return Posterior(
        kernel=kernel,
        constant=centre,
        noise=own,
        X=_frozen(points.copy()),
        y=_frozen(targets.copy()),
        point_noise=_frozen(extra),
        factor=_frozen(factor),
        whitened=_frozen(whitened),
        jitter=jitter,
    )


def as_targets(y: ArrayLike, count: int) -> Array:
    """Targets as (count,) float64, checked: finite and at most 1e100 in size, so that squares stay finite."""
    targets = _vector(y, "y")
    if targets.shape != (count,):
        raise InvalidInput(f"y must hold one target per point, shape ({count},), not {targets.shape}")
    if not bool(np.all(np.abs(targets) <= 1e100)):
        raise InvalidInput("y holds NaN, infinity or sizes above 1e100; leave failed observations out")
    return targets


def as_noise(noise: ArrayLike | None, count: int) -> Array:
    """Noise variances as (count,) float64, checked: finite, not negative. None is zero, one is for all."""
    if noise is None:
        return np.zeros(count)
    given = _vector(noise, "noise")
    if given.shape not in ((1,), (count,)):
        raise InvalidInput(
            f"noise must be one variance or one per point, shape ({count},), not {given.shape}"
        )
    if not bool(np.all((given >= 0) & (given <= 1e200))):
        raise InvalidInput(
            "noise variances must be finite and not negative; they are variances, not deviations"
        )
    return np.broadcast_to(given, (count,)).copy()


def _vector(values: ArrayLike, name: str) -> Array:
    try:
        return np.atleast_1d(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} must be numbers: {error}") from error


def _frozen(array: Array) -> Array:
    array.setflags(write=False)
    return array
