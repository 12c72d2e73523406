"""Exact Gaussian processes: immutable posteriors, and the fit of their hyperparameters.

Notation: f ~ GP(constant, kernel), y_i = f(x_i) + N(0, noise + point_noise_i). K is the covariance of the targets, L
its Cholesky factor (lower, in Fortran order), `whitened` L^-1 (y - constant), `weights` w = K^-1 (y - constant).
Equations: Rasmussen and Williams (2006), algorithm 2.1 for the posterior, 5.8 and 5.9 for the likelihood. Variances
are of f, without the noise of a new observation.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import cos, inf, log, pi, sin, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import blas, lapack

from haltune._utils.arrays import Array, Indices
from haltune.errors import InvalidInput

from .kernels import Kernel, KernelName, as_points, check_kind, input_gradient, profile, row_blocks, squared_distances

_JITTERS = (0.0, *(10.0**power for power in range(-12, 0)))  # relative to the signal variance
_EPS = float(np.finfo(np.float64).eps)
_ROWS = 256  # points predicted at a time, to limit memory
_ROUGH = 200  # observations on which the starts of a fit are compared


def factorise(matrix: Array, scale: float) -> tuple[Array, float]:
    """Return the lower factor L (n, n) of matrix + jitter * I, and the jitter: 0, or 1e-12, ..., 0.1 times scale.

    LAPACK also accepts pivots that are only rounding errors, and predictions would be divided by them. So every pivot
    must be above n eps scale.
    Raises InvalidInput if the matrix is not finite, or far from positive semidefinite.
    """
    if not np.isfinite(matrix).all():
        raise InvalidInput(
            "A covariance matrix has NaN or infinity: targets, noise or inputs are too large. Scale them down."
        )
    size = len(matrix)
    if size == 0:
        return np.zeros((0, 0), order="F"), 0.0
    diagonal = matrix.diagonal()
    for jitter in _JITTERS:
        shifted = np.array(matrix.T, order="F")  # the matrix is symmetric, and its transpose in C order copies faster
        shifted.flat[:: size + 1] = diagonal + jitter * scale
        factor, info = lapack.dpotrf(shifted, lower=1, clean=1, overwrite_a=1)
        if info == 0 and _well_conditioned(factor.diagonal(), scale):
            return factor, jitter * scale
    raise InvalidInput("A covariance matrix is not positive definite even with jitter. Check for negative variances.")


def _well_conditioned(pivots: Array, scale: float) -> bool:
    return float(pivots.min()) ** 2 > len(pivots) * _EPS * scale


def solve_lower(factor: Array, right: Array, *, transposed: bool = False) -> Array:
    """Return L^-1 right, or L^-T right: right is (n,) or (n, m), L (n, n) lower in Fortran order."""
    if len(factor) == 0 or right.size == 0:
        return right.copy()
    solution, _ = lapack.dtrtrs(factor, right, lower=1, trans=int(transposed))
    return np.asarray(solution)


class Prediction(NamedTuple):
    """Posterior mean and variance (m,) of f, and their gradients (m, d) with respect to the inputs."""

    mean: Array
    variance: Array
    mean_gradient: Array
    variance_gradient: Array


@dataclass(frozen=True, eq=False)
class Posterior:
    """A Gaussian process after n observations. Build it with `condition_on` or `fit`, extend it with `condition`.

    Arrays are read-only. Without observations it is the prior. Methods at X (m, d) raise InvalidInput for a wrong shape
    or non-finite X.
    """

    kernel: Kernel
    constant: float  # prior mean, in units of the target
    noise: float  # variance of every observation, in squared units of the target
    X: Array  # (n, d)
    y: Array  # (n,)
    point_noise: Array  # (n,), variances on top of `noise`
    factor: Array  # (n, n), L
    whitened: Array  # (n,), L^-1 (y - constant)
    jitter: float  # the largest variance added to the diagonal to factorise; 0 if none was needed

    def __post_init__(self) -> None:
        for array in (self.X, self.y, self.point_noise, self.factor, self.whitened):
            array.setflags(write=False)

    @property
    def n(self) -> int:
        return len(self.y)

    @property
    def dim(self) -> int:
        return len(self.kernel.lengthscales)

    @cached_property
    def weights(self) -> Array:
        """K^-1 (y - constant), (n,); computed on demand, because chains of `condition` do not need it."""
        weights = solve_lower(self.factor, self.whitened, transposed=True)
        weights.setflags(write=False)
        return weights

    @cached_property
    def log_marginal_likelihood(self) -> float:
        """log p(y) = -1/2 |L^-1 (y - constant)|^2 - sum_i log L_ii - n/2 log 2 pi."""
        determinant = float(np.log(self.factor.diagonal()).sum())
        return -0.5 * float(self.whitened @ self.whitened) - determinant - 0.5 * self.n * log(2 * pi)

    def mean(self, X: ArrayLike) -> Array:
        """Return the posterior mean (m,) at X (m, d)."""
        points = as_points(X, self.dim)
        return np.asarray(self.constant + self.kernel(points, self.X) @ self.weights)

    def variance(self, X: ArrayLike) -> Array:
        """Return the posterior variance (m,) of f at X (m, d), never below zero."""
        return self.predict(X)[1]

    def predict(self, X: ArrayLike) -> tuple[Array, Array]:
        """Return posterior mean and variance of f at X (m, d), each (m,)."""
        points = as_points(X, self.dim)
        mean, variance = np.empty(len(points)), np.empty(len(points))
        for first in range(0, len(points), _ROWS):
            rows = slice(first, first + _ROWS)
            cross = self.kernel(points[rows], self.X)
            mean[rows] = self.constant + cross @ self.weights
            variance[rows] = self._variance(solve_lower(self.factor, cross.T))
        return mean, variance

    def predict_with_gradient(self, X: ArrayLike) -> Prediction:
        """Return mean, variance and their gradients with respect to X (m, d)."""
        points = as_points(X, self.dim)
        cross, slope = self.kernel.with_slope(points, self.X)
        half = solve_lower(self.factor, cross.T)
        full = solve_lower(self.factor, half, transposed=True)
        scales = self.kernel.lengthscales
        by_mean = input_gradient(slope * self.weights, points, self.X, scales)
        by_variance = -2.0 * input_gradient(slope * full.T, points, self.X, scales)
        return Prediction(self.constant + cross @ self.weights, self._variance(half), by_mean, by_variance)

    def covariance(self, X: ArrayLike, other: ArrayLike | None = None) -> Array:
        """Return the posterior covariance (m, k) of f between X (m, d) and other (k, d); default: X itself."""
        points = as_points(X, self.dim)
        half = solve_lower(self.factor, self.kernel(points, self.X).T)
        if other is None:
            return np.asarray(self.kernel(points) - half.T @ half)
        others = as_points(other, self.dim, "other")
        return np.asarray(
            self.kernel(points, others) - half.T @ solve_lower(self.factor, self.kernel(others, self.X).T)
        )

    def sample(self, X: ArrayLike, count: int, rng: np.random.Generator) -> Array:
        """Draw joint samples (count, m) of f at X (m, d). Raises InvalidInput if count < 0."""
        if count < 0:
            raise InvalidInput(f"count={count} is not a number of draws. Give 0 or more.")
        points = as_points(X, self.dim)
        root, _ = factorise(self.covariance(points), self.kernel.variance)
        return np.asarray(self.mean(points) + rng.standard_normal((count, len(points))) @ root.T)

    def condition(self, x: ArrayLike, y: ArrayLike, noise: ArrayLike | None = None) -> "Posterior":
        """Return the posterior after further observations: x (d,) with a number y, or x (m, d) with y (m,).

        Hyperparameters stay. O(n^2) per point. The same observations in the same order give the same bits.

        Args:
            x: Inputs.
            y: Targets.
            noise: Variances in addition to the posterior's own, one for all or (m,). Default: none.

        Raises:
            InvalidInput: On wrong shapes, non-finite values or negative noise.
        """
        points = as_points(np.atleast_2d(np.asarray(x)), self.dim, "x")
        targets = as_targets(y, len(points))
        extra = as_noise(noise, len(points))
        corner = self.kernel(points)
        corner.flat[:: len(points) + 1] += self.noise + extra
        # the factor of [[K, cross], [cross', corner]], in which old entries keep their bits
        rows = solve_lower(self.factor, self.kernel(self.X, points)).T
        corner_factor, jitter = factorise(corner - rows @ rows.T, self.kernel.variance)
        factor = np.zeros((self.n + len(points), self.n + len(points)), order="F")
        factor[: self.n, : self.n] = self.factor
        factor[self.n :, : self.n] = rows
        factor[self.n :, self.n :] = corner_factor
        whitened = solve_lower(corner_factor, targets - self.constant - rows @ self.whitened)
        return replace(
            self,
            X=np.concatenate([self.X, points]),
            y=np.concatenate([self.y, targets]),
            point_noise=np.concatenate([self.point_noise, extra]),
            factor=factor,
            whitened=np.concatenate([self.whitened, whitened]),
            jitter=max(self.jitter, jitter),
        )

    def _variance(self, half: Array) -> Array:
        explained = np.einsum("ij,ij->j", half, half)
        # A variance that rounds below zero would make the deviation NaN.
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
    """Return the posterior of GP(constant, kernel) given targets y (n,) at X (n, d), in O(n^3).

    Args:
        kernel: The kernel with its hyperparameters.
        X: (n, d) inputs, in the units of the kernel's lengthscales.
        y: (n,) targets.
        noise: The variance of every observation, in squared units of the target.
        constant: The prior mean, in units of the target. Default: 0.
        point_noise: Variances in addition to `noise`, one for all or (n,). Default: none.

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
    return Posterior(kernel, centre, own, points.copy(), targets.copy(), extra, factor, whitened, jitter)


def as_targets(y: ArrayLike, count: int) -> Array:
    """Return targets as (count,) float64, checked: finite and at most 1e100 in size, so that squares stay finite."""
    targets = _vector(y, "y")
    if targets.shape != (count,):
        raise InvalidInput(f"y has shape {targets.shape}. Give one target per point: shape ({count},).")
    if not bool(np.all(np.abs(targets) <= 1e100)):
        raise InvalidInput("y has NaN, infinity or sizes above 1e100. Leave failed observations out.")
    return targets


def as_noise(noise: ArrayLike | None, count: int) -> Array:
    """Return noise variances as (count,) float64, checked: finite, not negative. None is 0; one number is for all."""
    if noise is None:
        return np.zeros(count)
    given = _vector(noise, "noise")
    if given.shape not in ((1,), (count,)):
        raise InvalidInput(f"noise has shape {given.shape}. Give one variance, or one per point: shape ({count},).")
    if not bool(np.all((given >= 0) & (given <= 1e200))):
        raise InvalidInput("noise must be finite and not negative. Give variances, not deviations.")
    return np.broadcast_to(given, (count,)).copy()


def _vector(values: ArrayLike, name: str) -> Array:
    try:
        return np.atleast_1d(np.asarray(values, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name} is not made of numbers: {error}. Give numbers.") from error


def subset(X: ArrayLike, y: ArrayLike, limit: int = 2000) -> Indices:
    """Return ascending indices of at most `limit` of the observations y (n,), larger is better, at X (n, d).

    All are kept while n <= limit. Of more, a quarter are the best, because the next proposal depends on them; a quarter
    the latest, because they show what the search does now; the rest fill the space greedily, each the point farthest
    from all kept ones, so that every visited region stays known. Deterministic; O(limit n d).

    Args:
        X: (n, d) inputs.
        y: (n,) targets, in the order of observation.
        limit: The largest number to keep. Default: 2000.

    Raises:
        InvalidInput: When limit < 1, or on wrong shapes or non-finite values.

    Example:
        >>> subset([[0.0], [0.1], [0.9], [1.0]], [1.0, 0.0, 0.0, 0.0], limit=2).tolist()
        [0, 3]
    """
    points = as_points(X)
    targets = as_targets(y, len(points))
    if limit < 1:
        raise InvalidInput(f"limit={limit} keeps no observation. Give 1 or more.")
    if len(points) <= limit:
        return np.arange(len(points))
    quarter = limit // 4
    best = np.argsort(-targets, kind="stable")[: max(quarter, 1)]
    kept = np.union1d(best, np.arange(len(points) - quarter, len(points)))
    norms = np.einsum("ij,ij->i", points, points)
    nearest = np.full(len(points), np.inf)  # squared distance to the nearest kept point, up to rounding
    chosen = kept.tolist()
    for position in range(limit):
        if position == len(chosen):
            chosen.append(int(np.argmax(nearest)))  # ties go to the earliest
        index = chosen[position]
        np.minimum(nearest, norms - 2.0 * (points @ points[index]) + norms[index], out=nearest)
        nearest[index] = -np.inf
    return np.sort(chosen)


@dataclass(frozen=True)
class LogNormal:
    """Log-normal prior: log theta ~ N(location, spread^2), restricted to low <= theta <= high.

    Densities are of theta itself, as in GPyTorch.

    Args:
        location: The mean of log theta.
        spread: The standard deviation of log theta.
        low: The smallest theta.
        high: The largest theta.

    Raises:
        InvalidInput: If the spread or the bounds are not positive, or low is above high.

    Example:
        >>> LogNormal(0.0, 1.0, 1e-3, 1e3).mode
        -1.0
    """

    location: float  # mean of log theta
    spread: float  # standard deviation of log theta
    low: float
    high: float

    def __post_init__(self) -> None:
        if not (0 < self.spread < np.inf and 0 < self.low <= self.high < np.inf and np.isfinite(self.location)):
            raise InvalidInput(
                f"{self} is not a prior. It needs a finite location, a positive spread and 0 < low <= high."
            )

    @property
    def mode(self) -> float:
        """The log of the most likely theta inside the bounds: location - spread^2, clipped."""
        return float(np.clip(self.location - self.spread**2, log(self.low), log(self.high)))

    def log_density(self, log_theta: float) -> float:
        standard = (log_theta - self.location) / self.spread
        return -0.5 * standard**2 - log_theta - log(self.spread) - 0.5 * log(2 * pi)

    def slope(self, log_theta: float) -> float:
        return (self.location - log_theta) / self.spread**2 - 1.0


@dataclass(frozen=True)
class Priors:
    """Priors for targets of mean 0 and deviation 1. A number instead of a prior fixes that variance.

    Args:
        lengthscale: Of each coordinate.
        variance: Of the signal.
        noise: Of an observation.

    Example:
        >>> Priors.default(1).noise.location
        -4.0
    """

    lengthscale: LogNormal
    variance: LogNormal | float
    noise: LogNormal | float

    @classmethod
    def default(cls, dim: int) -> "Priors":
        """Return weakly informative priors for dim input coordinates in the unit cube.

        Lengthscales grow with the dimension, so that a GP in many coordinates starts smooth. They and the noise are
        from Hvarfner et al. 2024, "Vanilla Bayesian Optimization Performs Great in High Dimensions". The mode of the
        signal variance is 1, the variance of standardised targets.
        """
        return cls(
            lengthscale=LogNormal(sqrt(2) + 0.5 * log(max(dim, 1)), sqrt(3), 0.02, 1e3),
            variance=LogNormal(1.0, 1.0, 1e-2, 1e3),
            noise=LogNormal(-4.0, 1.0, 1e-6, 10.0),
        )

    def free(self, dim: int) -> list[LogNormal]:
        """Return the priors of the free entries of theta = log(lengthscales..., variance, noise)."""
        variances = [prior for prior in (self.variance, self.noise) if isinstance(prior, LogNormal)]
        return [self.lengthscale] * dim + variances

    def unpack(self, theta: Array, dim: int) -> tuple[Array, float, float]:
        rest = [float(value) for value in np.exp(theta[dim:])]
        variance = rest.pop(0) if isinstance(self.variance, LogNormal) else self.variance
        noise = rest.pop(0) if isinstance(self.noise, LogNormal) else self.noise
        return np.exp(theta[:dim]), variance, noise

    def pack(self, lengthscales: Array, by_variance: float, by_noise: float) -> Array:
        """Return values of the hyperparameters as a vector like theta, without the fixed ones."""
        rest = [(self.variance, by_variance), (self.noise, by_noise)]
        return np.array([*lengthscales, *(value for prior, value in rest if isinstance(prior, LogNormal))])


class Evaluation(NamedTuple):
    """Log marginal likelihood, the constant mean that it is for, and derivatives by log hyperparameters."""

    value: float
    constant: float
    by_lengthscales: Array  # (d,)
    by_variance: float
    by_noise: float


class Likelihood:
    """Log marginal likelihood of targets y (n,) at X (n, d); evaluations share its working memory.

        log p(y) = -1/2 (y - constant)' w - 1/2 log |K| - n/2 log 2 pi
        d log p / d theta = 1/2 tr((w w' - K^-1) dK / d theta)

    The constant mean is not an argument: its best value for K is (1' K^-1 y) / (1' K^-1 1), where the total derivative
    equals the partial one (envelope theorem). Only half of each symmetric matrix is filled: the upper in C order, which
    LAPACK reads as the lower.
    """

    def __init__(self, kind: KernelName, X: Array, y: Array, point_noise: Array) -> None:
        self.kind: KernelName = kind
        self.X = X - X.mean(axis=0)  # near the origin, where |a|^2 + |b|^2 - 2 a.b cancels least
        self.y = y
        self.point_noise = point_noise
        self._matrix = np.zeros((len(y), len(y)))  # K, then its factor, then its inverse
        self._slope = np.zeros((len(y), len(y)))
        # rows, and the columns from their first one on: together the upper half
        self._blocks = [(rows, slice(rows.start, len(y))) for rows in row_blocks(len(y), len(y))]

    def __call__(self, lengthscales: Array, variance: float, noise: float) -> Evaluation:
        """Evaluate with one O(n^3) factorisation. Raises InvalidInput if K cannot be factorised even with jitter."""
        scaled = self.X / lengthscales
        noises = self._factorise(scaled, variance, noise + self.point_noise)
        factor = self._matrix.T
        determinant = float(np.log(factor.diagonal()).sum())
        solved, _ = lapack.dpotrs(factor, np.column_stack([self.y, np.ones(len(self.y))]), lower=1)
        constant = float(solved[:, 0].sum() / solved[:, 1].sum())
        weights = solved[:, 0] - constant * solved[:, 1]
        misfit = float((self.y - constant) @ weights)
        # dpotri turns the factor into K^-1 in place; every derivative is then a sum against it.
        lapack.dpotri(factor, lower=1, overwrite_c=1)
        diagonal = weights**2 - self._matrix.diagonal()
        # tr(w w' K - K^-1 K) = misfit - n, so the signal's part needs no second pass over K.
        signal = misfit - len(self.y) - float(noises @ diagonal)
        return Evaluation(
            value=-0.5 * misfit - determinant - 0.5 * len(self.y) * log(2 * pi),
            constant=constant,
            by_lengthscales=0.5 * variance * self._pull(weights, scaled),
            by_variance=0.5 * signal,
            by_noise=0.5 * noise * float(diagonal.sum()),
        )

    def _factorise(self, scaled: Array, variance: float, noises: Array) -> Array:
        """Store L in the matrix and h in the slope; return the variances (n,) on the diagonal, jitter included."""
        for jitter in _JITTERS:
            for rows, columns in self._blocks:
                squared = squared_distances(scaled[rows], scaled[columns])
                np.fill_diagonal(squared, 0.0)
                correlation, slope = profile(self.kind, squared)
                np.multiply(correlation, variance, out=self._matrix[rows, columns])
                self._slope[rows, columns] = slope
            shifted = noises + jitter * variance
            self._matrix.flat[:: len(noises) + 1] += shifted
            _, info = lapack.dpotrf(self._matrix.T, lower=1, clean=0, overwrite_a=1)
            if info == 0 and _well_conditioned(self._matrix.diagonal(), variance):
                return shifted
        raise InvalidInput("The covariance of the targets cannot be factorised. Check for extreme inputs or noise.")

    def _pull(self, weights: Array, scaled: Array) -> Array:
        """Return sum_ij S_ij (z_ik - z_jk)^2, (d,), S = (w w' - K^-1) h; overwrites the slope.

        Computed as 2 (sum_i r_i z_ik^2 - z_k' S z_k), r the row sums: one symmetric product, no distance matrices.
        """
        for rows, columns in self._blocks:
            pull = np.multiply.outer(weights[rows], weights[columns])
            pull -= self._matrix[rows, columns]
            # At distance zero the exact contribution is 0, but the diagonal's large entries would add rounding.
            np.fill_diagonal(pull, 0.0)
            self._slope[rows, columns] *= pull
        padded = np.empty((len(scaled), scaled.shape[1] + 1), order="F")
        padded[:, 0] = 1.0
        padded[:, 1:] = scaled
        products = blas.dsymm(1.0, self._slope.T, padded, lower=1)
        sums = products[:, :1] * scaled - products[:, 1:]
        return np.asarray(2.0 * np.einsum("ij,ij->j", sums, scaled))


def fit(
    X: ArrayLike,
    y: ArrayLike,
    *,
    kernel: KernelName = "matern52",
    point_noise: ArrayLike | None = None,
    priors: Priors | None = None,
    starts: int = 3,
    rng: np.random.Generator | None = None,
    limit: int = 2000,
    learn_from: int = 500,
) -> Posterior:
    """Fit hyperparameters by maximum a posteriori; return the posterior of targets y (n,) at X (n, d).

    Targets are standardised for the search; the result is in their own units. Constant targets keep the scale 1.

    Args:
        X: (n, d) inputs, in the unit cube for the default priors.
        y: (n,) targets.
        kernel: "matern52", "matern32" or "se". Default: "matern52".
        point_noise: Known variances, one or (n,), in addition to the fitted one. Default: none.
        priors: For standardised targets. Default: Priors.default(d).
        starts: Number of starts: the first at the prior's mode, the others drawn from the prior. Default: 3.
        rng: Generator for the starts. Default: np.random.default_rng(0).
        limit: Of more observations a `subset` of this size is kept. Default: 2000.
        learn_from: Hyperparameters are learnt from a subset of at most this size. Default: 500.

    Raises:
        InvalidInput: On an unknown kernel, wrong shapes, non-finite values, no observations or starts < 1.

    Example:
        >>> x = np.linspace(0.0, 1.0, 12)[:, None]
        >>> mean, variance = fit(x, np.sin(6.0 * x[:, 0])).predict([[0.5]])
        >>> round(float(mean[0]), 1), float(variance[0]) < 0.01
        (0.1, True)
    """
    check_kind(kernel)
    points = as_points(X)
    targets = as_targets(y, len(points))
    extra = as_noise(point_noise, len(points))
    if len(points) == 0 or starts < 1:
        raise InvalidInput(
            f"fit got {len(points)} observations and starts={starts}. Give 1 observation and 1 start, or more."
        )
    kept = subset(points, targets, limit)
    points, targets, extra = points[kept], targets[kept], extra[kept]
    learnt = subset(points, targets, learn_from)
    centre, scale = standard(targets[learnt])
    standardised = points[learnt], (targets[learnt] - centre) / scale, extra[learnt] / scale**2
    likelihood = Likelihood(kernel, *standardised)
    dim, priors = points.shape[1], priors or Priors.default(points.shape[1])
    theta = np.zeros(0)
    if free := priors.free(dim):
        modes = np.array([prior.mode for prior in free])
        spreads = np.array([min(prior.spread, 1.0) for prior in free])
        rng = rng or np.random.default_rng(0)
        begin = [modes, *(modes + spreads * rng.standard_normal((starts - 1, len(modes))))]
        # short searches from all starts, on few observations; the best continues to convergence on all
        few = subset(likelihood.X, likelihood.y, _ROUGH)
        rough = likelihood
        if len(few) < len(learnt):
            rough = Likelihood(kernel, likelihood.X[few], *(a[few] for a in standardised[1:]))
        short = [_descend(rough, priors, start, iterations=10, tolerance=1e-4) for start in begin]
        best = min(short, key=lambda found: found[0])[1]
        theta = _descend(likelihood, priors, best, iterations=200, tolerance=1e-9)[1]
    scales, variance, noise = priors.unpack(theta, dim)
    constant = centre + scale * likelihood(scales, variance, noise).constant
    fitted = Kernel(kernel, variance * scale**2, scales)
    return condition_on(fitted, points, targets, noise=noise * scale**2, constant=constant, point_noise=extra)


def standard(targets: Array) -> tuple[float, float]:
    """Return mean and deviation of targets; the deviation is 1 if the targets are constant up to rounding."""
    centre = float(targets.mean())
    scale = float(targets.std())
    flat = scale <= 1e-14 * float(np.abs(targets).max()) or scale < 1e-100
    return centre, 1.0 if flat else scale


def _descend(
    likelihood: Likelihood, priors: Priors, start: Array, iterations: int, tolerance: float
) -> tuple[float, Array]:
    """Minimise minus the log posterior density by L-BFGS-B within the priors' bounds; return it and theta."""
    from scipy.optimize import minimize  # slow to import, and many processes never fit

    dim = likelihood.X.shape[1]
    free: Sequence[LogNormal] = priors.free(dim)
    bounds = np.array([(log(prior.low), log(prior.high)) for prior in free])

    def objective(theta: Array) -> tuple[float, Array]:
        found = likelihood(*priors.unpack(theta, dim))
        value = found.value
        gradient = priors.pack(found.by_lengthscales, found.by_variance, found.by_noise)
        for position, prior in enumerate(free):
            value += prior.log_density(float(theta[position]))
            gradient[position] += prior.slope(float(theta[position]))
        return -value, -gradient

    options = {"maxiter": iterations, "ftol": tolerance, "gtol": 1e-5, "maxcor": 20}  # ftol: relative decrease
    start = np.clip(start, bounds[:, 0], bounds[:, 1])
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds, options=options)
    return float(found.fun), np.asarray(found.x)


# -- draws of the hyperparameters ----------------------------------------------------------------

# Hyperparameters drawn from their posterior: after few observations many others than those of `fit` are probable.
#
# Notation: theta = log(lengthscales..., variance, noise), the free ones. A log-normal prior is a normal one of theta,
# within its bounds. Targets z are standardised; their constant mean has a flat prior and is integrated out (Rasmussen
# and Williams 2006, equation 2.45), with q = 1' K^-1 1 and m = 1' K^-1 z / q:
#
#     log p(z | theta) = -1/2 (z - m)' K^-1 (z - m) - 1/2 log |K| - 1/2 log q + constant.
#
# Elliptical slice sampling (Murray, Adams and MacKay 2010) keeps the posterior under a normal prior invariant and has
# nothing to tune: each step draws an ellipse through theta and takes a point on it that is likely enough.

_BURN, _THIN = 24, 8  # steps before the first draw, and between draws
_CHAIN_JITTER = 1e-10  # of the variance; a theta that still fails has density 0
_SHRINKS = 60  # of a bracket, each to two thirds on average: after so many only theta itself is left


def sample(
    X: ArrayLike,
    y: ArrayLike,
    *,
    count: int = 6,
    kernel: KernelName = "matern52",
    priors: Priors | None = None,
    rng: np.random.Generator | None = None,
    limit: int = 2000,
    learn_from: int = 200,
) -> tuple[Posterior, ...]:
    """Return `count` equally probable posteriors of targets y (n,) at X (n, d), with sampled hyperparameters.

    Targets are standardised for the chain; the results are in their own units. Constant targets keep the scale 1.

    Args:
        X: (n, d) inputs, in the unit cube for the default priors.
        y: (n,) targets.
        count: Number of draws. Default: 6.
        kernel: As in `fit`. Default: "matern52".
        priors: For standardised targets. Default: Priors.default(d).
        rng: Generator of the chain. Default: np.random.default_rng(0).
        limit: Of more observations a `subset` of this size is kept. Default: 2000.
        learn_from: Hyperparameters are learnt from a `subset` of at most this size. Default: 200.

    Raises:
        InvalidInput: On an unknown kernel, wrong shapes, non-finite values, no observations or count < 1.

    Example:
        >>> x = np.linspace(0.0, 1.0, 12)[:, None]
        >>> [round(float(p.mean([[0.5]])[0]), 1) for p in sample(x, np.sin(6.0 * x[:, 0]), count=3)]
        [0.1, 0.1, 0.1]
    """
    check_kind(kernel)
    points = as_points(X)
    targets = as_targets(y, len(points))
    if len(points) == 0 or count < 1:
        raise InvalidInput(f"sample got {len(points)} observations and count={count}. Give 1 of each or more.")
    kept = subset(points, targets, limit)
    points, targets = points[kept], targets[kept]
    learnt = subset(points, targets, learn_from)
    centre, scale = standard(targets[learnt])
    evidence = _LogDensity(
        kernel, points[learnt], (targets[learnt] - centre) / scale, priors or Priors.default(points.shape[1])
    )
    rng = rng or np.random.default_rng(0)
    theta = np.clip(evidence.location, evidence.low, evidence.high)
    level = evidence(theta)[0]
    drawn = []
    for step in range(1, _BURN + count * _THIN + 1):
        theta, level = _slice(evidence, theta, level, rng)
        if step > _BURN and (step - _BURN) % _THIN == 0:
            scales, variance, noise = evidence.priors.unpack(theta, points.shape[1])
            constant = centre + scale * evidence(theta)[1]
            own = Kernel(kernel, variance * scale**2, scales)
            drawn.append(condition_on(own, points, targets, noise=noise * scale**2, constant=constant))
    return tuple(drawn)


class _LogDensity:
    """log p(z | theta) and m, the mean of the constant; -inf outside the priors' bounds."""

    def __init__(self, kind: KernelName, X: Array, z: Array, priors: Priors) -> None:
        self.kind: KernelName = kind
        self.X = X - X.mean(axis=0)
        self.priors, self.dim = priors, X.shape[1]
        self.both = np.asfortranarray(np.column_stack([z, np.ones(len(z))]))
        free = priors.free(self.dim)
        self.location = np.array([prior.location for prior in free])
        self.spread = np.array([prior.spread for prior in free])
        self.low = np.log([prior.low for prior in free])
        self.high = np.log([prior.high for prior in free])

    def __call__(self, theta: Array) -> tuple[float, float]:
        if (theta < self.low).any() or (theta > self.high).any():
            return -inf, 0.0
        scales, variance, noise = self.priors.unpack(theta, self.dim)
        scaled = self.X / scales
        squared = squared_distances(scaled, scaled)
        squared.flat[:: len(squared) + 1] = 0.0
        covariance = variance * profile(self.kind, squared)[0]
        covariance.flat[:: len(squared) + 1] += noise + _CHAIN_JITTER * variance
        try:
            factor = np.asfortranarray(np.linalg.cholesky(covariance))
        except np.linalg.LinAlgError:
            return -inf, 0.0
        half = solve_lower(factor, self.both)
        q = float(half[:, 1] @ half[:, 1])
        m = float(half[:, 1] @ half[:, 0]) / q
        rest = half[:, 0] - m * half[:, 1]
        determinant = float(np.log(factor.diagonal()).sum())
        return -0.5 * float(rest @ rest) - determinant - 0.5 * log(q), m


def _slice(evidence: _LogDensity, theta: Array, level: float, rng: np.random.Generator) -> tuple[Array, float]:
    """Take one step of elliptical slice sampling; return theta and its log density."""
    centred = theta - evidence.location
    other = evidence.spread * rng.standard_normal(len(theta))
    least = level + log(max(rng.random(), 1e-300))
    angle = rng.uniform(0.0, 2.0 * pi)
    low, high = angle - 2.0 * pi, angle
    for _ in range(_SHRINKS):
        proposed = evidence.location + centred * cos(angle) + other * sin(angle)
        found, _ = evidence(proposed)
        if found > least:
            return proposed, found
        low, high = (angle, high) if angle < 0.0 else (low, angle)
        angle = rng.uniform(low, high)
    return theta, level
