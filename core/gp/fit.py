"""Fitting a Gaussian process: the hyperparameters of largest posterior density, found in log space.

Notation: theta = log(lengthscales..., variance, noise), the free ones. The objective is the log marginal
likelihood of the standardised targets (`likelihood`) plus the log priors (`priors`).
"""

from math import log

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array
from haltune.errors import InvalidInput

from .kernels import Kernel, KernelName, as_points, check_kind
from .likelihood import Likelihood
from .posterior import Posterior, as_noise, as_targets, condition_on
from .priors import LogNormal, Priors
from .subset import subset

_ROUGH = 200  # observations that starts are compared on


def fit(
    X: ArrayLike,
    y: ArrayLike,
    *,
    kernel: KernelName = "matern52",
    point_noise: ArrayLike | None = None,
    priors: Priors | None = None,
    starts: int = 3,
    rng: np.random.Generator | None = None,
    start_from: Posterior | None = None,
    limit: int = 2000,
    learn_from: int = 500,
) -> Posterior:
    """The posterior of targets y (n,) at X (n, d) under the most probable hyperparameters.

    Targets are standardised for the search, the result is in their own units; constant ones keep the scale 1.

    Args:
        X: (n, d) inputs, in the unit cube where the default priors are to suit.
        y: (n,) targets.
        kernel: "matern52", "matern32" or "se". Default: "matern52".
        point_noise: Known variances, one or (n,), on top of the fitted one. Default: none.
        priors: For standardised targets. Default: Priors.default(d).
        starts: Of the search: the first at the prior's mode, the others drawn from the prior. Default: 3.
        rng: What draws them. Default: np.random.default_rng(0).
        start_from: A posterior whose hyperparameters are one more start. Default: none.
        limit: Beyond so many observations a `subset` is kept. Default: 2000.
        learn_from: Hyperparameters are learnt from a subset of so many. Default: 500.

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
        raise InvalidInput(f"fit needs 1 observation and 1 start or more, not {len(points)} and {starts}")
    kept = subset(points, targets, limit)
    points, targets, extra = points[kept], targets[kept], extra[kept]
    learnt = subset(points, targets, learn_from)
    centre, scale = standard(targets[learnt])
    likelihood = Likelihood(
        kernel, points[learnt], (targets[learnt] - centre) / scale, extra[learnt] / scale**2
    )
    objective = _NegativeLogPosterior(likelihood, priors or Priors.default(points.shape[1]))
    theta = _search(objective, _starts(objective, starts, rng or np.random.default_rng(0), start_from, scale))
    scales, variance, noise = objective.unpack(theta)
    constant = centre + scale * likelihood(scales, variance, noise).constant
    fitted = Kernel(kernel, variance * scale**2, scales)
    return condition_on(fitted, points, targets, noise=noise * scale**2, constant=constant, point_noise=extra)


class _NegativeLogPosterior:
    """Minus the log posterior density of theta, with its gradient, for standardised targets."""

    def __init__(self, likelihood: Likelihood, priors: Priors) -> None:
        self.likelihood = likelihood
        self.priors = priors
        self.dim = likelihood.X.shape[1]
        variances = [prior for prior in (priors.variance, priors.noise) if isinstance(prior, LogNormal)]
        self.free = [priors.lengthscale] * self.dim + variances  # the prior of each entry of theta

    def unpack(self, theta: Array) -> tuple[Array, float, float]:
        """Lengthscales (d,), variance and noise."""
        values = [float(value) for value in np.exp(theta[self.dim :])]
        variance = values.pop(0) if isinstance(self.priors.variance, LogNormal) else self.priors.variance
        noise = values.pop(0) if isinstance(self.priors.noise, LogNormal) else self.priors.noise
        return np.exp(theta[: self.dim]), variance, noise

    def pack(self, lengthscales: Array, by_variance: float, by_noise: float) -> Array:
        """A vector like theta of quantities that belong to the hyperparameters."""
        rest = [(self.priors.variance, by_variance), (self.priors.noise, by_noise)]
        return np.array([*lengthscales, *(value for prior, value in rest if isinstance(prior, LogNormal))])

    def rough(self) -> "_NegativeLogPosterior":
        """The same of a subset small enough that which hill is highest is found out in no time."""
        whole = self.likelihood
        kept = subset(whole.X, whole.y, _ROUGH)
        if len(kept) == len(whole.y):
            return self
        return _NegativeLogPosterior(
            Likelihood(whole.kind, whole.X[kept], whole.y[kept], whole.point_noise[kept]), self.priors
        )

    def descent(self, theta: Array) -> tuple[float, Array]:
        """Minus the log posterior density at theta, and its gradient."""
        found = self.likelihood(*self.unpack(theta))
        value = found.value
        gradient = self.pack(found.by_lengthscales, found.by_variance, found.by_noise)
        for position, prior in enumerate(self.free):
            value += prior.log_density(float(theta[position]))
            gradient[position] += prior.slope(float(theta[position]))
        return -value, -gradient


def standard(targets: Array) -> tuple[float, float]:
    """Mean and deviation of targets; the deviation counts as 1 when it is zero up to rounding."""
    centre = float(targets.mean())
    scale = float(targets.std())
    flat = scale <= 1e-14 * float(np.abs(targets).max()) or scale < 1e-100
    return centre, 1.0 if flat else scale


def _starts(
    objective: _NegativeLogPosterior,
    count: int,
    rng: np.random.Generator,
    start_from: Posterior | None,
    scale: float,
) -> list[Array]:
    """Start points: the prior's mode, draws around it, and the hyperparameters of an earlier posterior."""
    modes = np.array([prior.mode for prior in objective.free])
    spreads = np.array([min(prior.spread, 1.0) for prior in objective.free])
    starts = [modes, *(modes + spreads * rng.standard_normal((count - 1, len(modes))))]
    if start_from is not None:
        if start_from.dim != objective.dim:
            raise InvalidInput(
                f"start_from has {start_from.dim} coordinates and X {objective.dim}; they must agree"
            )
        given = start_from.kernel
        variances = np.maximum([given.variance, start_from.noise], 1e-300) / scale**2
        starts.append(np.log(objective.pack(given.lengthscales, *variances)))
    low, high = np.array(_bounds(objective.free)).reshape(-1, 2).T
    return [np.clip(start, low, high) for start in starts]


def _bounds(free: list[LogNormal]) -> list[tuple[float, float]]:
    return [(log(prior.low), log(prior.high)) for prior in free]


def _search(objective: _NegativeLogPosterior, starts: list[Array]) -> Array:
    """The best theta of short searches from every start, on few observations, followed to convergence on all."""
    if not len(starts[0]):
        return starts[0]
    rough = objective.rough()
    short = [_descend(rough, start, iterations=10, tolerance=1e-4) for start in starts]
    best = min(short, key=lambda found: found[0])[1]
    return _descend(objective, best, iterations=200, tolerance=1e-9)[1]


def _descend(
    objective: _NegativeLogPosterior, start: Array, iterations: int, tolerance: float
) -> tuple[float, Array]:
    """The value and theta that L-BFGS-B ends at; `tolerance` is the relative decrease that ends it."""
    from scipy.optimize import minimize  # slow to import, and many a process fits nothing

    found = minimize(
        objective.descent,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=_bounds(objective.free),
        options={"maxiter": iterations, "ftol": tolerance, "gtol": 1e-5, "maxcor": 20},
    )
    return float(found.fun), np.asarray(found.x)
