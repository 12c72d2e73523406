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

from .gp import Posterior, Priors, as_targets, condition_on, solve_lower, standard, subset
from .kernels import Kernel, KernelName, as_points, check_kind, profile, squared_distances

_BURN, _THIN = 24, 8  # steps before the first draw, and from one to the next
_JITTER = 1e-10  # of the variance, in the search alone: a theta that still fails is as unlikely as any
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
    """log p(z | theta) and m, the mean of the constant; minus infinity outside the priors' bounds."""

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


def _slice(
    evidence: _LogDensity, theta: Array, level: float, rng: np.random.Generator
) -> tuple[Array, float]:
    """One step of elliptical slice sampling: theta and its log density."""
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
