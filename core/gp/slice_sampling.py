"""Hyperparameters drawn from their posterior: `fit` takes the most probable, and few observations leave many probable.

Notation: theta = log(lengthscales..., variance, noise), the free ones. A log-normal prior is a normal one of theta,
within its bounds. Targets z are standardised; their constant mean has a flat prior and is integrated out (Rasmussen
and Williams 2006, equation 2.45), with q = 1' K^-1 1 and m = 1' K^-1 z / q:

    log p(z | theta) = -1/2 (z - m)' K^-1 (z - m) - 1/2 log |K| - 1/2 log q + constant.

Elliptical slice sampling (Murray, Adams and MacKay 2010) leaves the posterior as it is under every normal prior, and
has nothing to tune: each step draws an ellipse through theta and takes a point of it that is likely enough.
"""

from math import cos, inf, log, pi, sin

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array
from haltune.errors import InvalidInput

from .cholesky import solve_lower
from .fit import standard
from .kernels import Kernel, KernelName, as_points, check_kind, profile, squared_distances
from .posterior import Posterior, as_targets, condition_on
from .priors import LogNormal, Priors
from .subset import subset

_BURN, _THIN = 24, 8  # steps before the first draw, and from one to the next
_JITTER = (
    1e-10  # of the variance: added in the search alone, where a theta that still fails is as unlikely as any
)
_SHRINKS = 60  # of a bracket, each to two thirds on average: what is left then is the point itself


def sample(
    X: ArrayLike,
    y: ArrayLike,
    *,
    count: int = 6,
    kernel: KernelName = "matern52",
    priors: Priors | None = None,
    rng: np.random.Generator | None = None,
    learn_from: int = 200,
) -> tuple[Posterior, ...]:
    """`count` posteriors of targets y (n,) at X (n, d), hyperparameters drawn from theirs: equally probable beliefs.

    Targets are standardised for the chain, the results are in their own units; constant ones keep the scale 1.

    Args:
        X: (n, d) inputs, in the unit cube where the default priors are to suit.
        y: (n,) targets.
        count: Draws. Default: 6.
        kernel: As in `fit`. Default: "matern52".
        priors: For standardised targets. Default: Priors.default(d).
        rng: Of the chain. Default: np.random.default_rng(0).
        learn_from: Beyond so many observations hyperparameters are learnt from a `subset`. Default: 200.

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
        raise InvalidInput(f"sample needs 1 observation and 1 draw or more, not {len(points)} and {count}")
    learnt = subset(points, targets, learn_from)
    centre, scale = standard(targets[learnt])
    evidence = _LogDensity(
        kernel, points[learnt], (targets[learnt] - centre) / scale, priors or Priors.default(points.shape[1])
    )
    drawn = _chain(evidence, count, rng or np.random.default_rng(0))
    return tuple(_posterior(evidence, theta, points, targets, centre, scale) for theta in drawn)


class _LogDensity:
    """log p(z | theta), for theta within the bounds of its prior."""

    def __init__(self, kind: KernelName, X: Array, z: Array, priors: Priors) -> None:
        self.kind: KernelName = kind
        self.X = X - X.mean(axis=0)
        self.z, self.priors, self.dim = z, priors, X.shape[1]
        self.both = np.asfortranarray(np.column_stack([z, np.ones(len(z))]))
        variances = [prior for prior in (priors.variance, priors.noise) if isinstance(prior, LogNormal)]
        free = [priors.lengthscale] * self.dim + variances
        self.location = np.array([prior.location for prior in free])
        self.spread = np.array([prior.spread for prior in free])
        self.low = np.log([prior.low for prior in free])
        self.high = np.log([prior.high for prior in free])

    def unpack(self, theta: Array) -> tuple[Array, float, float]:
        """Lengthscales (d,), variance and noise."""
        rest = [float(value) for value in np.exp(theta[self.dim :])]
        variance = rest.pop(0) if isinstance(self.priors.variance, LogNormal) else self.priors.variance
        noise = rest.pop(0) if isinstance(self.priors.noise, LogNormal) else self.priors.noise
        return np.exp(theta[: self.dim]), variance, noise

    def __call__(self, theta: Array) -> float:
        """Minus infinity outside the bounds, and where K cannot be factorised."""
        if (theta < self.low).any() or (theta > self.high).any():
            return -inf
        return self._parts(theta)[0]

    def constant(self, theta: Array) -> float:
        """m, the mean of the constant."""
        return self._parts(theta)[1]

    def _parts(self, theta: Array) -> tuple[float, float]:
        scales, variance, noise = self.unpack(theta)
        scaled = self.X / scales
        squared = squared_distances(scaled, scaled)
        squared.flat[:: len(squared) + 1] = 0.0
        covariance = variance * profile(self.kind, squared)[0]
        covariance.flat[:: len(squared) + 1] += noise + _JITTER * variance
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


def _chain(evidence: _LogDensity, count: int, rng: np.random.Generator) -> list[Array]:
    """Draws of theta, from a start where the prior is largest in the middle of what is usual for cubes."""
    theta = np.clip(evidence.location, evidence.low, evidence.high)
    level, drawn = evidence(theta), []
    for step in range(1, _BURN + count * _THIN + 1):
        theta, level = _slice(evidence, theta, level, rng)
        if step > _BURN and (step - _BURN) % _THIN == 0:
            drawn.append(theta)
    return drawn


def _slice(
    evidence: _LogDensity, theta: Array, level: float, rng: np.random.Generator
) -> tuple[Array, float]:
    """One step: theta and its evidence."""
    centred = theta - evidence.location
    other = evidence.spread * rng.standard_normal(len(theta))
    least = level + log(max(rng.random(), 1e-300))
    angle = rng.uniform(0.0, 2.0 * pi)
    low, high = angle - 2.0 * pi, angle
    for _ in range(_SHRINKS):
        proposed = evidence.location + centred * cos(angle) + other * sin(angle)
        found = evidence(proposed)
        if found > least:
            return proposed, found
        low, high = (angle, high) if angle < 0.0 else (low, angle)
        angle = rng.uniform(low, high)
    return theta, level


def _posterior(
    evidence: _LogDensity, theta: Array, points: Array, targets: Array, centre: float, scale: float
) -> Posterior:
    scales, variance, noise = evidence.unpack(theta)
    constant = centre + scale * evidence.constant(theta)
    own = Kernel(evidence.kind, variance * scale**2, scales)
    return condition_on(own, points, targets, noise=noise * scale**2, constant=constant)
