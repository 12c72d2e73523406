"""What a training will cost, in seconds or any unit of the user's: learnt from trials, or known in advance.

Notation: log c(x) ~ N(m(x), s(x)^2) at a point x of the unit cube, so that costs stay positive and errors are factors.
exp(m) is the median, exp(m + s^2 / 2) the mean, exp(m + s z_p) the p-quantile. s is 0 where the cost is known.

Models share one question, `predict`: Gaussian processes on log cost (`gp_models`), a line in chosen coordinates
(`fit_line`), a function of the configuration whose scale is learnt (`fit_scale`), and a function taken at its word
(`KnownCost`), which may ask for the previous configuration too.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from haltune._utils.arrays import Array
from haltune.errors import InvalidInput
from haltune.gp.kernels import as_points
from haltune.log.policy import name_of
from haltune.space import Space

CostFunction = Callable[..., float]  # (config) or (config, previous); previous is None before the first trial
_LEAST_COST = 1e-12  # costs are taken at least this large: nothing is free, and its logarithm stays finite
_NOISES = np.geomspace(1e-4, 2.0, 24) ** 2  # residual variances of log cost that a line is fitted with
_SLOPE = 3.0  # prior deviation of a slope: e^3 is a factor of 20 across the cube
_REACH = 1e9
_DEAREST = 700.0  # log cost; exp of 710 overflows
_DIFFERENCE_STEP = 1e-4  # of the cube: a function's derivatives are differences


@dataclass(frozen=True, eq=False)
class PredictedCost:
    """Log-normal costs of m points."""

    log_median: Array  # (m,)
    deviation: Array  # (m,), of log cost, that of a single training: noise included

    @property
    def median(self) -> Array:
        """(m,) exp(m)."""
        return _cost(self.log_median)

    @property
    def mean(self) -> Array:
        """(m,) exp(m + s^2 / 2)."""
        return _cost(self.log_median + 0.5 * self.deviation**2)

    def quantile(self, share: float) -> Array:
        """(m,) what a training stays below with this probability. Raises InvalidInput outside (0, 1)."""
        if not 0.0 < share < 1.0:
            raise InvalidInput(f"a quantile belongs to a probability between 0 and 1, not {share!r}")
        return _cost(self.log_median + self.deviation * float(ndtri(share)))

    def below(self, limit: float) -> Array:
        """(m,) the probability that a training takes no more than a positive limit."""
        off = log(limit) - self.log_median
        # Of a known cost, which rounding may not make unaffordable where it is all that is left.
        sure = np.where(off >= -1e-9, np.inf, -np.inf)
        return np.asarray(ndtr(np.divide(off, self.deviation, out=sure, where=self.deviation > 0.0)))

    def times(self, factor: float) -> "PredictedCost":
        """Every cost multiplied by a positive number."""
        return PredictedCost(self.log_median + log(factor), self.deviation)


def _cost(log_cost: Array) -> Array:
    """exp, of numbers that doubles hold: beyond is dearer than any budget all the same."""
    return np.asarray(np.exp(np.minimum(log_cost, _DEAREST)))


class CostModel(Protocol):
    """The belief about costs."""

    def predict(self, points: Array, after: Array | None = None) -> PredictedCost:
        """Costs at points (m, d), for a search that stands at `after` (d,); None: that has not begun."""
        ...

    def gradient(self, points: Array) -> tuple[Array, Array]:
        """Log median (m,) and its derivatives (m, d): what `acquisition.Surface` subtracts."""
        ...

    def expected(self, points: Array) -> tuple[Array, Array]:
        """Log mean (m,) and its derivatives (m, d): a gain per cost is a ratio of expectations."""
        ...


@dataclass(frozen=True, eq=False)
class LineCost:
    """log c(x) = weights . (1, x_S - 1/2) + N(0, noise): a power law in parameters on a logarithmic scale."""

    columns: tuple[int, ...]  # S, coordinates of the cube
    weights: Array  # (1 + |S|,)
    covariance: Array  # of the weights
    noise: float  # variance

    def predict(self, points: Array, after: Array | None = None) -> PredictedCost:
        """The line, and how sure it is."""
        design = _design(as_points(points), self.columns)
        spread = np.einsum("ij,jk,ik->i", design, self.covariance, design) + self.noise
        return PredictedCost(design @ self.weights, np.sqrt(spread))

    def gradient(self, points: Array) -> tuple[Array, Array]:
        """The line and its constant slopes."""
        slopes = np.zeros_like(points)
        slopes[:, list(self.columns)] = self.weights[1:]
        return _design(points, self.columns) @ self.weights, slopes

    def expected(self, points: Array) -> tuple[Array, Array]:
        """The line, and half of its variance."""
        value, slopes = self.gradient(points)
        pulled = _design(points, self.columns) @ self.covariance
        slopes[:, list(self.columns)] += pulled[:, 1:]
        return value + 0.5 * self.predict(points).deviation ** 2, slopes


@dataclass(frozen=True, eq=False)
class KnownCost:
    """A function of the configuration, or of it and the previous one (None at first), taken at its word.

    Raises InvalidInput, naming the configuration, when the function raises or answers anything but a finite
    number that is not negative.
    """

    function: CostFunction
    space: Space

    # Kept: it is asked for every configuration, and a signature takes longer than most functions.
    @cached_property
    def moves(self) -> bool:
        """True when the cost depends on the previous configuration."""
        return takes_previous(self.function)

    def predict(self, points: Array, after: Array | None = None) -> PredictedCost:
        """Exact: the deviation is 0."""
        previous = None if after is None else self.space.decode(after)
        costs = self.of(self.space.decode_many(points), previous)
        return PredictedCost(np.log(np.maximum(costs, _LEAST_COST)), np.zeros(len(costs)))

    def of(self, configs: Sequence[Mapping[str, Any]], previous: Mapping[str, Any] | None = None) -> Array:
        """(m,) costs of configurations."""
        return np.array([self._one(dict(config), previous) for config in configs], dtype=np.float64)

    def between(self, points: Array) -> Array:
        """(m, m) costs of the column's point after the row's."""
        configs = self.space.decode_many(points)
        return np.array([self.of(configs, previous) for previous in configs])

    def gradient(self, points: Array) -> tuple[Array, Array]:
        """Before the first trial; central differences, 0 across the steps of discrete parameters."""
        value, slopes = self.predict(points).log_median, np.zeros_like(points)
        for k in np.flatnonzero(self.space.continuous):
            shift = np.zeros(points.shape[1])
            shift[k] = _DIFFERENCE_STEP
            up, down = np.minimum(points + shift, 1.0), np.maximum(points - shift, 0.0)
            rise = self.predict(up).log_median - self.predict(down).log_median
            slopes[:, k] = rise / (up - down)[:, k]
        return value, slopes

    def expected(self, points: Array) -> tuple[Array, Array]:
        """The median: it is exact."""
        return self.gradient(points)

    def _one(self, config: dict[str, Any], previous: Mapping[str, Any] | None) -> float:
        try:
            arguments = (config, previous) if self.moves else (config,)
            cost = float(self.function(*arguments))
        except Exception as error:
            raise InvalidInput(
                f"the cost function {name_of(self.function)!r} raised {type(error).__name__}({error}) for {config!r}; "
                "an inactive parameter is absent, use config.get(name)"
            ) from error
        if not (np.isfinite(cost) and cost >= 0.0):
            raise InvalidInput(
                f"the cost function {name_of(self.function)!r} says {cost} for {config!r}; "
                "a cost is finite and not negative"
            )
        return cost


@dataclass(frozen=True, eq=False)
class ScaledCost:
    """log c(x) = log g(x) + offset + N(0, noise): a function's shape, with scale and error learnt from trials."""

    shape: KnownCost
    offset: float
    deviation: float  # of a single training's log cost, the offset's own included

    def predict(self, points: Array, after: Array | None = None) -> PredictedCost:
        """The function, rescaled."""
        log_shape = self.shape.predict(points, after).log_median
        return PredictedCost(log_shape + self.offset, np.full(len(log_shape), self.deviation))

    def gradient(self, points: Array) -> tuple[Array, Array]:
        """That of the function."""
        value, slopes = self.shape.gradient(points)
        return value + self.offset, slopes

    def expected(self, points: Array) -> tuple[Array, Array]:
        """That of the function, and half the variance."""
        value, slopes = self.gradient(points)
        return value + 0.5 * self.deviation**2, slopes


def fit_line(X: ArrayLike, costs: ArrayLike, columns: Sequence[int]) -> LineCost:
    """Bayesian linear regression of log costs (n,) on the given coordinates of X (n, d), n >= 1.

    Slopes are N(0, 3^2) beforehand, the intercept is almost free; of 24 residual variances the one of largest
    marginal likelihood. Raises InvalidInput as `log_costs`.
    """
    points = as_points(X)
    targets = log_costs(costs, len(points))
    design = _design(points, tuple(columns))
    prior = np.array([1e4] + [_SLOPE**2] * len(columns))
    centred = targets - targets.mean()
    best = max(_NOISES[::-1], key=lambda noise: _evidence(design, centred, prior, float(noise)))
    noise = float(best)
    precision = design.T @ design / noise + np.diag(1.0 / prior)
    covariance: Array = np.linalg.inv(precision).astype(np.float64)
    weights = covariance @ (design.T @ centred) / noise
    weights[0] += targets.mean()
    return LineCost(tuple(columns), weights, covariance, noise)


def fit_scale(shape: KnownCost, points: ArrayLike, costs: ArrayLike) -> ScaledCost:
    """The scale of a function from the costs (n,) seen at points (n, d); n may be 0: then it is trusted within e.

    log offset ~ N(0, 1) beforehand; the residual variance has the weight of one trial at 0.1^2 beforehand.
    Raises InvalidInput as `log_costs`, and when the function asks for the previous configuration.
    """
    if shape.moves:
        raise InvalidInput(
            f"cost_model={name_of(shape.function)}: a model whose scale is learnt takes the configuration alone; "
            "give a cost that depends on the previous one as cost="
        )
    places = as_points(points)
    rest = log_costs(costs, len(places)) - shape.predict(places).log_median if len(places) else np.zeros(0)
    around = float(np.sum((rest - rest.mean()) ** 2)) if len(rest) else 0.0
    noise = (0.1**2 + around) / (1.0 + max(len(rest) - 1, 0))
    variance = 1.0 / (1.0 + len(rest) / noise)  # of the offset
    return ScaledCost(shape, variance * float(rest.sum()) / noise, float(np.sqrt(variance + noise)))


def takes_previous(function: CostFunction) -> bool:
    """Whether a cost function wants (config, previous). Raises InvalidInput when it takes neither one nor two."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    if len(needed) > 2:
        raise InvalidInput(
            f"the cost function {name_of(function)!r} takes {len(needed)} arguments: (config) or (config, previous)"
        )
    return len(needed) == 2


def log_costs(costs: ArrayLike, count: int) -> Array:
    """(count,) logarithms. Raises InvalidInput on another shape, and on costs that are not positive and finite."""
    values = np.asarray(costs, dtype=np.float64)
    if values.shape != (count,):
        raise InvalidInput(f"one cost a point, shape ({count},), not {values.shape}")
    if not bool(np.all((values > 0) & np.isfinite(values))):
        raise InvalidInput("costs are positive and finite; leave trials without a cost out")
    return np.log(np.maximum(values, _LEAST_COST))


def within_reach(costs: Array) -> Array:
    """Costs (n,) of which none counts for more than a billion times their median.

    One clock that jumped must not set the scale that all others are learnt on.
    """
    return np.minimum(costs, _REACH * float(np.median(costs))) if len(costs) else costs


def _design(points: Array, columns: tuple[int, ...]) -> Array:
    """(n, 1 + |S|); centred, so that intercept and slopes are nearly independent."""
    return np.column_stack([np.ones(len(points)), points[:, list(columns)] - 0.5])


def _evidence(design: Array, targets: Array, prior: Array, noise: float) -> float:
    """log N(targets; 0, design diag(prior) design' + noise I), up to a constant."""
    covariance = (design * prior) @ design.T + noise * np.eye(len(targets))
    _, determinant = np.linalg.slogdet(covariance)
    return -0.5 * float(determinant) - 0.5 * float(targets @ np.linalg.solve(covariance, targets))
