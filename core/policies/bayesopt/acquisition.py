"""Acquisition functions: what a next observation is worth, from a posterior's mean and variance. Larger is
better.

Notation: sigma = sqrt(variance), z = (mean - best) / sigma, phi and Phi the normal density and distribution.
Each function returns a `Score`: the values and their derivatives by mean and variance, from which a
`Surface` over a posterior makes gradients by the inputs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import floor, inf, log, log10, pi, sqrt
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from scipy.special import erfcx, ndtr

from haltune._utils.arrays import Array
from haltune._utils.words import short
from haltune.errors import InvalidInput
from haltune.gp.gp import Posterior
from haltune.log.history import History

_SMALLEST = (
    1e-30  # variances are taken at least this large, so that a point seen without noise has a finite z
)


class Score(NamedTuple):
    """Values of an acquisition function and their derivatives by posterior mean and variance, each (m,)."""

    value: Array
    by_mean: Array
    by_variance: Array

    def gradient(self, mean_gradient: Array, variance_gradient: Array) -> Array:
        """The gradient by the inputs (m, d), by the chain rule, from those of mean and variance (m, d)."""
        return self.by_mean[:, None] * mean_gradient + self.by_variance[:, None] * variance_gradient


def ucb(mean: Array, variance: Array, beta: float) -> Score:
    """mean + sqrt(beta) sigma, GP-UCB of Srinivas et al. (2010). Raises InvalidInput when beta < 0."""
    if not 0 <= beta < np.inf:
        raise InvalidInput(f"beta weighs the uncertainty and must be finite and not negative, not {beta}")
    deviation = np.sqrt(np.maximum(variance, _SMALLEST))
    root = sqrt(beta)
    return Score(mean + root * deviation, np.ones_like(mean), 0.5 * root / deviation)


def expected_improvement(mean: Array, variance: Array, best: Array | float) -> Array:
    """sigma (phi(z) + z Phi(z)), for arrays of any shapes that broadcast."""
    deviation = np.sqrt(np.maximum(variance, 1e-30))
    z = (mean - best) / deviation
    value = z * ndtr(z)
    z *= z
    z *= -0.5
    np.exp(z, out=z)
    z *= 0.3989422804014327  # 1 / sqrt(2 pi)
    value += z
    value *= deviation
    return np.asarray(np.maximum(value, 0.0, out=value))


def log_ei(mean: Array, variance: Array, best: float) -> Score:
    """log E[max(f - best, 0)] and its derivatives, accurate in relative terms for every z (Ament et al.
    2023).

    With h = phi(z) + z Phi(z): log EI = log sigma + log h, d log EI / d mean = Phi / (sigma h) and
    d log EI / d sigma = phi / (sigma h).
    """
    variance = np.maximum(variance, _SMALLEST)
    deviation = np.sqrt(variance)
    z = (mean - best) / deviation
    log_h, by_z, by_deviation = _log_h(z)
    return Score(np.log(deviation) + log_h, by_z / deviation, 0.5 * by_deviation / variance)


def _log_h(z: Array) -> tuple[Array, Array, Array]:
    """log h, Phi / h and phi / h for h(z) = phi(z) + z Phi(z), by three formulas, one for each range of z."""
    upper = np.maximum(z, -1.0)
    density = np.exp(-0.5 * upper * upper) / sqrt(2 * pi)
    height = density + upper * ndtr(upper)
    middle = np.clip(z, -30.0, -1.0)
    mills = sqrt(pi / 2) * erfcx(-middle / sqrt(2))  # Phi / phi, without either of them underflowing
    lower = np.minimum(z, -30.0)
    # 1 + z mills cancels down to z^-2 far out; the asymptotic series of Phi / phi has the difference itself.
    inverse = lower**-2.0
    series = inverse * (
        1 - 3 * inverse * (1 - 5 * inverse * (1 - 7 * inverse * (1 - 9 * inverse * (1 - 11 * inverse))))
    )
    quotient = np.where(z > -30.0, 1.0 + middle * mills, series)
    ratio = np.where(z > -30.0, mills, (series - 1.0) / lower)
    with_tail = -0.5 * z * z - 0.5 * log(2 * pi) + np.log(quotient)
    near = z > -1.0
    return (
        np.where(near, np.log(height), with_tail),
        np.where(near, ndtr(upper) / height, ratio / quotient),
        np.where(near, density / height, 1.0 / quotient),
    )


class Acquisition(Protocol):
    """Anything to maximise: unit-cube points (m, dim) -> values (m,) and gradients (m, dim)."""

    def __call__(self, points: Array, /) -> tuple[Array, Array]: ...


LogCostSurface: TypeAlias = Callable[[Array], tuple[Array, Array]]


@dataclass(frozen=True)
class Surface:
    """An acquisition function over a posterior: a point of the search space -> its value and gradient.

    score: mean and variance -> Score, such as `lambda mean, variance: log_ei(mean, variance, best)`.
    at: further coordinates of the posterior, appended to every point and held (the epoch, for a posterior
    over configurations and epochs). log_cost: points (m, dim) -> log cost (m,) and its gradient (m, dim),
    subtracted.
    """

    posterior: Posterior
    score: Callable[[Array, Array], Score]
    at: tuple[float, ...] = ()
    log_cost: LogCostSurface | None = None

    def values(self, points: Array) -> Array:
        """Values (m,) at points (m, dim); half the work of values and gradients."""
        mean, variance = self.posterior.predict(self._complete(points))
        value = self.score(mean, variance).value
        return value if self.log_cost is None else value - self.log_cost(points)[0]

    def __call__(self, points: Array, /) -> tuple[Array, Array]:
        mean, variance, by_mean, by_variance = self.posterior.predict_with_gradient(self._complete(points))
        score = self.score(mean, variance)
        gradient = score.gradient(by_mean, by_variance)[:, : points.shape[1]]
        if self.log_cost is None:
            return score.value, gradient
        cost, cost_gradient = self.log_cost(points)
        return score.value - cost, gradient - cost_gradient

    def _complete(self, points: Array) -> Array:
        return np.hstack([points, np.tile(np.array(self.at), (len(points), 1))]) if self.at else points


def chosen_to(history: History, mean: float, deviation: float, seen: str = "") -> str:
    """Say what a choice is made for: it exploits if the predicted value itself beats the best, else it explores.

    Before a trial is complete the best has trained less than what is predicted, so nothing is compared with it.

    Args:
        history: The trials.
        mean: Predicted for a full training, the metric's unit.
        deviation: Likewise.
        seen: What the prediction is made from, in words.
    """
    goal, best = history.problem.goal, history.best()
    low, high = goal.bounds or (-inf, inf)
    mean, source = min(max(mean, low), high), f" in full training, from {seen}" * bool(seen)
    predicted = f"predicts {goal.metric} {_rounded(mean, deviation)} ± {deviation:.2g}{source}"
    if goal.bounds and 2 * deviation >= high - low:
        predicted = f"{goal.metric} may be anything from {low:g} to {high:g}{source}"
    if best is None:
        return f"chosen to explore: {predicted}"
    complete = history.trial(best.trial).complete
    purpose = "exploit" if complete and goal.better(mean, than=best.value) else "explore"
    where = "" if complete else f" at epoch {best.epoch:g}"
    return f"chosen to {purpose}: {predicted}; the best so far is {short(best.value)}{where}"


def _rounded(mean: float, deviation: float) -> str:
    """To the last digit of a deviation of two digits; four digits beside one that is very small or large."""
    decimals = 1 - floor(log10(deviation)) if 1e-9 < deviation < inf else 99
    return f"{mean:.{decimals}f}" if 0 <= decimals <= 6 else short(mean)
