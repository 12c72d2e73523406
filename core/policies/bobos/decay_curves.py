"""Learning curves: from the errors of the first epochs to simulated paths of the rest.

Notation (BO-BOS, section 3.2 and appendix B; the kernel is freeze-thaw's, Swersky et al. 2014)

    errors   (n0,)              validation errors 1 - score of epochs 1..n0, in [0, 1], lower is better
    horizon  N                  the epoch at which a full training ends
    paths    (N - n0, count)    simulated errors of epochs n0+1..N, one column a path, no observation noise

A zero-mean GP with the kernel of equation (5) is fitted to the errors by maximum likelihood and its
posterior is sampled. The paper's "Gamma conjugate" fit of alpha and beta predicts error -> 0 for every
curve; the likelihood does not. It has a ridge, alpha / beta = const, so a fit is judged by its likelihood
and never by its parameters.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import cho_factor, cho_solve

from haltune._utils.arrays import Array, Array32, Mask
from haltune.errors import InvalidInput

MIN_NOISE = 1e-4  # variance; at 1e-3 every plateau still looks like decay and a flat bad run is never stopped
_LOG_BOUNDS = np.log([[1e-3, 1e2], [1e-2, 1e4], [MIN_NOISE, 1.0]])  # alpha, beta, noise
_STARTS = 3  # best points of the screening grid, each polished by L-BFGS-B
_NEGLIGIBLE = 1e-10  # posterior variance the low-rank sampler may drop in all: 1e-5 in sd


@dataclass(frozen=True)
class Paths:
    """Simulated curves of epochs start+1..start+len(values), one column each."""

    start: int  # n0, the epochs already observed
    values: Array32  # (horizon - start, count) errors of the curve itself

    @property
    def horizon(self) -> int:
        return self.start + len(self.values)

    @property
    def count(self) -> int:
        return int(self.values.shape[1])

    @cached_property
    def inside(self) -> Mask:
        """(count,) whether a path stays in [0, 1], where errors live, at every epoch."""
        return np.asarray((self.values.min(axis=0) >= 0.0) & (self.values.max(axis=0) <= 1.0))

    def kept(self) -> "Paths":
        """Only the paths that stay in [0, 1]."""
        if self.inside.all():
            return self
        # not values[:, inside]: that turns epochs into columns, and reading an epoch takes five times longer
        return Paths(self.start, np.compress(self.inside, self.values, axis=1))


@dataclass(frozen=True)
class DecayFit:
    """Maximum-likelihood parameters of the exponential-decay GP for one curve."""

    alpha: float  # shape of the Gamma prior over decay rates
    beta: float  # its rate, in epochs
    noise: float  # variance of the observation noise, at least MIN_NOISE


def checked_errors(errors: ArrayLike) -> Array:
    """Errors as a float64 vector. Raises InvalidInput unless it is (n0,), n0 >= 1, finite and in [0, 1]."""
    values = np.asarray(errors, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise InvalidInput(
            f"errors has shape {values.shape}; give one error per epoch, shape (n0,) with n0 >= 1."
        )
    bad = ~((values >= 0.0) & (values <= 1.0))
    if bad.any():
        epoch = int(np.argmax(bad)) + 1
        raise InvalidInput(
            f"The error of epoch {epoch} is {values[epoch - 1]}; errors are finite and in [0, 1]. "
            "Map scores to [0, 1] first, and count what is not finite as the worst error, 1."
        )
    return values


def decay_kernel(n: ArrayLike, m: ArrayLike, alpha: float, beta: float) -> Array:
    """k(n, m) = beta^alpha / (n + m + beta)^alpha, equation (5); (len(n), len(m)). Epochs count from 1."""
    total = np.add.outer(np.asarray(n, dtype=np.float64), np.asarray(m, dtype=np.float64))
    # as exp(-alpha log1p(.)): beta^alpha alone overflows on the ridge where both are large
    return np.asarray(np.exp(-alpha * np.log1p(total / beta)))


def fit_decay(errors: ArrayLike) -> DecayFit:
    """Bounded multi-start maximum likelihood of (alpha, beta, noise) given errors (n0,).

    A batched grid screens the box; L-BFGS-B with the analytic gradient polishes its best points.
    """
    from scipy.optimize import minimize  # slow to import, and many a process fits nothing

    y = checked_errors(errors)
    options: dict[str, Any] = {"method": "L-BFGS-B", "jac": True, "bounds": _LOG_BOUNDS}
    polished = [minimize(_loss, start, (y,), **options) for start in _screen(y)]
    best = min(polished, key=lambda result: float(result.fun))
    alpha, beta, noise = np.exp(np.clip(best.x, _LOG_BOUNDS[:, 0], _LOG_BOUNDS[:, 1]))
    return DecayFit(float(alpha), float(beta), max(float(noise), MIN_NOISE))


def _screen(y: Array) -> Array:
    """(_STARTS, 3) logarithms of the likeliest points of a coarse grid: one eigh serves every noise level."""
    alphas, betas, noises = (np.linspace(low, high, 10) for low, high in _LOG_BOUNDS)
    epochs = np.arange(1, len(y) + 1)
    decay = np.log1p(np.add.outer(epochs, epochs) / np.exp(betas)[:, None, None])
    values, vectors = np.linalg.eigh(np.exp(-np.exp(alphas)[:, None, None, None] * decay))
    variance = np.maximum(values, 0.0)[..., None, :] + np.exp(noises)[:, None]
    projected = np.einsum("i,abij->abj", y, vectors)[..., None, :]
    score = np.sum(projected**2 / variance + np.log(variance), axis=-1)
    order = np.argsort(score, axis=None, kind="stable")[:_STARTS]
    a, b, s = np.unravel_index(order, score.shape)
    return np.stack([alphas[a], betas[b], noises[s]], axis=1)


def _loss(log_parameters: Array, y: Array) -> tuple[float, Array]:
    """Negative log marginal likelihood of y and its gradient in (log alpha, log beta, log noise)."""
    alpha, beta, noise = np.exp(log_parameters)
    epochs = np.arange(1.0, len(y) + 1.0)
    total = np.add.outer(epochs, epochs)
    kernel = decay_kernel(epochs, epochs, alpha, beta)
    identity = np.eye(len(y))
    factor = cho_factor(kernel + noise * identity, lower=True)
    weights = cho_solve(factor, y)
    inner = cho_solve(factor, identity) - np.outer(weights, weights)
    by_alpha = -alpha * np.log1p(total / beta) * kernel
    by_beta = alpha * total / (total + beta) * kernel
    gradient = 0.5 * np.array([(inner * by_alpha).sum(), (inner * by_beta).sum(), noise * np.trace(inner)])
    value = 0.5 * float(y @ weights) + float(np.log(np.diag(factor[0])).sum())
    return value + 0.5 * len(y) * float(np.log(2.0 * np.pi)), gradient


def decay_posterior(errors: ArrayLike, horizon: int, fit: DecayFit) -> tuple[Array, Array]:
    """Mean (m,) and covariance (m, m) of the noise-free curve at epochs n0+1..horizon, m = horizon - n0."""
    y = checked_errors(errors)
    seen = np.arange(1, len(y) + 1)
    ahead = np.arange(len(y) + 1, horizon + 1)
    gram = decay_kernel(seen, seen, fit.alpha, fit.beta) + fit.noise * np.eye(len(y))
    cross = decay_kernel(seen, ahead, fit.alpha, fit.beta)
    solved = cho_solve(cho_factor(gram, lower=True), np.column_stack([y, cross]))
    covariance = decay_kernel(ahead, ahead, fit.alpha, fit.beta) - cross.T @ solved[:, 1:]
    return cross.T @ solved[:, 0], 0.5 * (covariance + covariance.T)


def conditional_paths(
    errors: ArrayLike, horizon: int, count: int, rng: np.random.Generator, fit: DecayFit | None = None
) -> Paths:
    """Draw `count` noise-free curves of epochs n0+1..horizon from the GP posterior given errors (n0,).

    The posterior covariance is numerically of rank 3 to 6, so the draw is one thin product in float32.
    Raises InvalidInput when the errors leave [0, 1] or the horizon is not beyond them.
    """
    y = checked_errors(errors)
    check_sizes(len(y), horizon, count)
    mean, covariance = decay_posterior(y, horizon, fit or fit_decay(y))
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, 0.0)  # rounding makes the many zero eigenvalues slightly negative
    keep = np.cumsum(values) > _NEGLIGIBLE
    root = (vectors[:, keep] * np.sqrt(values[keep])).astype(np.float32)
    normal = rng.standard_normal((root.shape[1], count), dtype=np.float32)
    drawn = root @ normal
    drawn += mean.astype(np.float32)[:, None]
    return Paths(len(y), drawn)


def check_sizes(start: int, horizon: int, count: int) -> None:
    """Raise InvalidInput unless there is at least one epoch to simulate and one path to draw."""
    if horizon <= start:
        raise InvalidInput(
            f"{start} errors leave nothing to simulate up to horizon {horizon}; give fewer than {horizon}."
        )
    if count < 1:
        raise InvalidInput(f"count is {count}; draw at least one path (thousands, to decide from them).")
