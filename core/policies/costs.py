"""Cost of a training, and the remaining budget of a search.

Notation: log c(x) ~ N(m(x), s(x)^2) at a point x of the unit cube, so that costs are positive and errors are factors.
exp(m) is the median, exp(m + s^2 / 2) the mean, exp(m + s z_p) the p-quantile. s is 0 where the cost is known. Lee et
al. (2021), section 6, model log costs by a Gaussian process. Where its hyperparameters are uncertain there are several
with equal probability, and a cost is a mixture of log-normals: one log-normal with its moments misses the probability
of fitting a budget by up to 0.1.

There are four kinds of budget, each with its own cost: `seconds` (the tightest of wall-clock time, worker time and
money), `cost` (reported by trials), `epochs` and `trials`. Costs in seconds include all that a worker spends on a
trial: start-up, training, validation, checkpoints, deciding. The cost of a stopped trial is scaled up to a full
training. The mean share of a training before a stop is learnt too.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri

from haltune._utils.arrays import Array, Mask
from haltune._utils.memo import Memo
from haltune.display import amount, numeral
from haltune.errors import InvalidInput, NotSupported
from haltune.gp import Posterior, fit, sample
from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.policy import FinishedTrials, name_of
from haltune.log.problem import Problem
from haltune.space import Space

CostFunction = Callable[..., float]  # (config) or (config, previous); previous is None at the first trial
CostOption = str | Sequence[str] | CostFunction
LogCost = Callable[[Array], tuple[Array, Array]]  # points (m, d) -> log cost (m,) and its derivatives (m, d)
EARLY = 50  # up to so many finished trials the model is refitted at each: with little data an old fit misleads
SLACK = 1.0 + 1e-9  # so that rounding does not forbid a plan that spends exactly the remaining budget
UNITS = {"seconds": "s", "cost": "of cost", "epochs": "epochs", "trials": "trials"}


def in_units(problem: Problem, count: float, unit: str, digits: int = 6) -> str:
    """Format an amount, of one trial or several, in a unit of UNITS. Epochs are converted as budgets are to points."""
    if unit != "epochs":
        return amount(count, UNITS[unit], digits)
    count = count if problem.grid is None else count * problem.grid.mean
    return f"{numeral(count)} {problem.unit if count == 1 else problem.units}"


_LEAST_COST = 1e-12  # lower bound of a cost, so that its logarithm is finite
_NOISES = np.geomspace(1e-4, 2.0, 24) ** 2  # residual variances of log cost to fit a line with
_SLOPE = 3.0  # prior deviation of a slope: e^3 is a factor of 20 across the cube
_LARGEST_LOG = 700.0  # exp of 710 overflows
_BISECTIONS = 30  # of a quantile of a mixture: to 1e-9 of the distance between the parts
_DIFFERENCE_STEP = 1e-4  # of central differences, in the cube


# -- what trials cost --------------------------------------------------------------------------


def full_cost(history: History, id: int, unit: str) -> float:
    """Return the cost of a finished trial scaled up to a full training; 0 if it failed or reported no cost.

    A training that ended by itself is a full one.
    """
    trial, horizon = history.trial(id), history.problem.max_epochs
    if trial.status is Status.FAILED:
        return 0.0
    trained, cut = trial.epoch, trial.status is not Status.COMPLETED or trial.partial
    more = horizon / trained - 1.0 if cut and horizon and 0 < trained < horizon else 0.0
    if unit == "cost":
        return (history.cost(id) or 0.0) * (1.0 + more)
    seconds = float(trial.seconds.sum())
    return max(history.worker_seconds(id), seconds) + more * seconds  # a test's clock may stand still


def trained_share(history: History, finished: FinishedTrials, by_itself: bool = False) -> float:
    """Return the mean share of a full training that a trial trains before it is stopped; 1 if none was.

    by_itself: the share of max_epochs, which trainings that end by themselves lower too. One imaginary full training is
    added to the mean. The paper assumes deterministic costs and has no such share.
    """
    if (horizon := history.problem.max_epochs) is None:
        return 1.0
    ended = [t for id in finished if (t := history.trial(id)).status is not Status.FAILED]
    stopped = [t for t in ended if t.status is Status.STOPPED or (by_itself and not t.partial)]
    missing = math.fsum(1.0 - t.epoch / horizon for t in stopped)
    return max(1.0 - missing / (len(ended) + 1.0), 1e-3)


def within_reach(costs: Array) -> Array:
    """Limit costs (n,) to a billion times their median, so that a clock that jumped does not set the scale."""
    return np.minimum(costs, 1e9 * float(np.median(costs))) if len(costs) else costs


# -- models of costs ---------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PredictedCost:
    """Costs of m points: mixtures of k log-normals with equal weights; (m,) arrays are one log-normal each."""

    centres: Array  # (k, m) medians of log cost
    deviations: Array  # (k, m) of the log cost of a single training, noise included

    def __post_init__(self) -> None:
        object.__setattr__(self, "centres", np.atleast_2d(self.centres))
        object.__setattr__(self, "deviations", np.atleast_2d(self.deviations))

    @property
    def log_median(self) -> Array:
        return self._log_quantile(0.5)

    @property
    def median(self) -> Array:
        return self.quantile(0.5)

    @property
    def mean(self) -> Array:
        return _exp(log_mean(self.centres + 0.5 * self.deviations**2))

    def quantile(self, share: float) -> Array:
        """Return the costs (m,) that a training stays below with probability `share`, in (0, 1)."""
        return _exp(self._log_quantile(share))

    def below(self, limit: float) -> Array:
        """Return the probability (m,) that a training costs at most `limit` > 0."""
        off = math.log(limit) - self.centres
        # A known cost that equals the limit is within it, whatever the rounding.
        sure = np.where(off >= -1e-9, np.inf, -np.inf)
        return np.asarray(ndtr(np.divide(off, self.deviations, out=sure, where=self.deviations > 0.0)).mean(axis=0))

    def _log_quantile(self, share: float) -> Array:
        """Return the log quantile (m,); of a mixture by bisection between the quantiles of its parts."""
        each = self.centres + self.deviations * float(ndtri(share))
        low, high = each.min(axis=0), each.max(axis=0)
        spread = np.maximum(self.deviations, 1e-12)
        for _ in range(_BISECTIONS * (len(each) > 1)):
            middle = 0.5 * (low + high)
            enough = ndtr((middle - self.centres) / spread).mean(axis=0) >= share
            low, high = np.where(enough, low, middle), np.where(enough, middle, high)
        return np.asarray(high)


def log_mean(logs: Array) -> Array:
    """Return log of the mean over the rows of exp(logs) (k, m), without overflow; of one row exactly that row."""
    most = logs.max(axis=0)
    return np.asarray(most + np.log(np.exp(logs - most).mean(axis=0)))


def _exp(log_cost: Array) -> Array:
    return np.asarray(np.exp(np.minimum(log_cost, _LARGEST_LOG)))


def _log(costs: Array) -> Array:
    return np.log(np.maximum(costs, _LEAST_COST))


@dataclass(frozen=True, eq=False)
class GPCost:
    """Equally probable Gaussian processes on log cost."""

    parts: tuple[Posterior, ...]

    def predict(self, points: Array, after: Array | None = None) -> PredictedCost:
        """Predict costs of a single training, noise included."""
        found = [part.predict(points) for part in self.parts]
        variances = [variance + part.noise for (_, variance), part in zip(found, self.parts, strict=True)]
        return PredictedCost(np.array([mean for mean, _ in found]), np.sqrt(variances))

    def gradient(self, points: Array, after: Array | None = None) -> tuple[Array, Array]:
        """Return the log median q (m,) of the mixture, and its derivatives (m, d). after: as for `predict`.

        Of F(q) = 1/2 with F the mean of Phi((q - m_k) / s_k): dq = sum_k w_k (dm_k + z_k ds_k) / sum_k w_k, where
        z_k = (q - m_k) / s_k and w_k = phi(z_k) / s_k.
        """
        means, variances, slopes, steeper = self._parts(points)
        spread = np.sqrt(variances)
        value = PredictedCost(means, spread).log_median
        z = (value - means) / spread
        weights = np.exp(0.5 * ((z**2).min(axis=0) - z**2)) / spread
        weights /= weights.sum(axis=0)
        moved = slopes + (0.5 * z / spread)[:, :, None] * steeper
        return value, np.einsum("km,kmd->md", weights, moved)

    def expected(self, points: Array) -> tuple[Array, Array]:
        """Return the log mean (m,) of the mixture, log of the mean over k of exp(m_k + s_k^2 / 2), and derivatives."""
        means, variances, slopes, steeper = self._parts(points)
        logs = means + 0.5 * variances
        value = log_mean(logs)
        weights = np.exp(logs - value) / len(logs)
        return value, np.einsum("km,kmd->md", weights, slopes + 0.5 * steeper)

    def _parts(self, points: Array) -> tuple[Array, Array, Array, Array]:
        """Return means and variances (k, m) of log costs, noise included, and their derivatives (k, m, d)."""
        found = [part.predict_with_gradient(points) for part in self.parts]
        noises = np.array([part.noise for part in self.parts])[:, None]
        return (
            np.array([one.mean for one in found]), np.array([one.variance for one in found]) + noises,
            np.array([one.mean_gradient for one in found]), np.array([one.variance_gradient for one in found]),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class LineCost:
    """Linear log cost: log c(x) = weights . (1, x_S - 1/2) + N(0, noise), a power law in log-scaled parameters."""

    columns: tuple[int, ...]  # S, coordinates of the cube
    weights: Array  # (1 + |S|,)
    covariance: Array  # of the weights
    noise: float  # variance

    def predict(self, points: Array, after: Array | None = None) -> PredictedCost:
        design = _design(points, self.columns)
        spread = np.einsum("ij,jk,ik->i", design, self.covariance, design) + self.noise
        return PredictedCost(design @ self.weights, np.sqrt(spread))

    def expected(self, points: Array) -> tuple[Array, Array]:
        design, slopes = _design(points, self.columns), np.zeros_like(points)
        slopes[:, list(self.columns)] = self.weights[1:]
        slopes[:, list(self.columns)] += (design @ self.covariance)[:, 1:]
        return design @ self.weights + 0.5 * self.predict(points).deviations[0] ** 2, slopes


@dataclass(frozen=True, eq=False)
class KnownCost:
    """A function of the configuration, or of it and the previous one (None at first), taken as exact.

    If the function raises, or returns a number that is negative or not finite, InvalidInput names the configuration.
    """

    function: CostFunction
    space: Space

    # Cached: it is needed for every configuration, and reading a signature takes longer than most functions.
    @cached_property
    def moves(self) -> bool:
        """True when the cost depends on the previous configuration."""
        return takes_previous(self.function)

    def predict(self, points: Array, after: Array | None = None) -> PredictedCost:
        """Return exact costs: the deviation is 0. after: the point (d,) of the previous configuration."""
        previous = None if after is None else self.space.whole.decode(after)
        costs = self.of(self.space.whole.decode_many(points), previous)
        return PredictedCost(_log(costs), np.zeros(len(costs)))

    def of(self, configs: Sequence[Mapping[str, Any]], previous: Mapping[str, Any] | None = None) -> Array:
        return np.array([self._one(dict(config), previous) for config in configs], dtype=np.float64)

    def gradient(self, points: Array, after: Array | None = None) -> tuple[Array, Array]:
        """Return the log cost and its central differences, 0 along discrete parameters. after: as for `predict`."""
        value, slopes = self.predict(points, after).log_median, np.zeros_like(points)
        for k in np.flatnonzero(self.space.continuous):
            shift = np.zeros(points.shape[1])
            shift[k] = _DIFFERENCE_STEP
            up, down = np.minimum(points + shift, 1.0), np.maximum(points - shift, 0.0)
            rise = self.predict(up, after).log_median - self.predict(down, after).log_median
            slopes[:, k] = rise / (up - down)[:, k]
        return value, slopes

    expected = gradient  # the cost is exact, so the mean is the median

    def _one(self, config: dict[str, Any], previous: Mapping[str, Any] | None) -> float:
        try:
            cost = float(self.function(*((config, previous) if self.moves else (config,))))
        except Exception as error:
            raise InvalidInput(
                f"The cost function {name_of(self.function)!r} raised {type(error).__name__}({error}) for {config!r}. "
                "A parameter that is inactive is missing from the configuration: use config.get(name)."
            ) from error
        if not (np.isfinite(cost) and cost >= 0.0):
            raise InvalidInput(
                f"The cost function {name_of(self.function)!r} returned {cost} for {config!r}. "
                "A cost must be finite and not negative."
            )
        return cost


@dataclass(frozen=True, eq=False)
class ScaledCost:
    """Scaled function: log c(x) = log g(x) + offset + N(0, noise), with offset and noise learnt from trials."""

    shape: KnownCost
    offset: float
    deviation: float  # of a single training's log cost, including the uncertainty of the offset

    def predict(self, points: Array, after: Array | None = None) -> PredictedCost:
        log_shape = self.shape.predict(points, after).log_median
        return PredictedCost(log_shape + self.offset, np.full(len(log_shape), self.deviation))

    def expected(self, points: Array) -> tuple[Array, Array]:
        value, slopes = self.shape.gradient(points)
        return value + self.offset + 0.5 * self.deviation**2, slopes


CostModel = GPCost | LineCost | KnownCost | ScaledCost


def fit_gp(points: Array, costs: Array, rng: np.random.Generator | None = None) -> GPCost:
    """Fit the most probable Gaussian process to the logarithms of costs (n,) > 0 at points (n, d), n >= 1."""
    return GPCost((fit(points, _log(costs), rng=rng, learn_from=400),))


def sample_gp(points: Array, costs: Array, count: int = 6, rng: np.random.Generator | None = None) -> GPCost:
    """Draw `count` Gaussian processes from the posterior over their hyperparameters.

    After few trainings many lengthscales are probable, and the most probable one misleads about distant costs.
    """
    return GPCost(tuple(sample(points, _log(costs), count=count, rng=rng)))


def fit_line(points: Array, costs: Array, columns: Sequence[int]) -> LineCost:
    """Fit a Bayesian linear regression of log costs (n,) on the given coordinates of points (n, d), n >= 1.

    Prior: slopes N(0, 3^2), intercept almost free. Of 24 residual variances the one of largest marginal likelihood.
    """
    targets = _log(costs)
    design = _design(points, tuple(columns))
    prior = np.array([1e4] + [_SLOPE**2] * len(columns))
    centred = targets - targets.mean()
    scaled = prior[:, None] * design.T

    def evidence(noise: float) -> float:
        """Return log N(centred; 0, D P D' + noise I), D the design and P the prior, up to a constant.

        In O(n): |D P D' + noise I| = noise^n |I + P D'D / noise|, and the misfit is that of the mean weights.
        """
        inner = np.eye(len(prior)) + scaled @ design / noise
        _, determinant = np.linalg.slogdet(inner)
        mean = np.linalg.solve(inner, scaled @ centred / noise)
        misfit = float(np.sum((centred - design @ mean) ** 2)) / noise + float(np.sum(mean**2 / prior))
        return -0.5 * (len(targets) * math.log(noise) + float(determinant) + misfit)

    noise = float(max(_NOISES[::-1], key=lambda noise: evidence(float(noise))))
    precision = design.T @ design / noise + np.diag(1.0 / prior)
    covariance: Array = np.linalg.inv(precision).astype(np.float64)
    weights = covariance @ (design.T @ centred) / noise
    weights[0] += targets.mean()
    return LineCost(tuple(columns), weights, covariance, noise)


def fit_scale(shape: KnownCost, points: Array, costs: Array) -> ScaledCost:
    """Learn the scale of a function from costs (n,) at points (n, d), n >= 0.

    Prior: log offset ~ N(0, 1); the residual variance is 0.1^2 with the weight of one trial.
    Raises InvalidInput when the function depends on the previous configuration.
    """
    if shape.moves:
        raise InvalidInput(
            f"cost_model={name_of(shape.function)} takes the previous configuration, so its scale cannot be learnt. "
            "Give a function of the configuration alone, or give the exact cost instead of a cost_model."
        )
    rest = _log(costs) - shape.predict(points).log_median if len(points) else np.zeros(0)
    around = float(np.sum((rest - rest.mean()) ** 2)) if len(rest) else 0.0
    noise = (0.1**2 + around) / (1.0 + max(len(rest) - 1, 0))
    variance = 1.0 / (1.0 + len(rest) / noise)  # of the offset
    return ScaledCost(shape, variance * float(rest.sum()) / noise, float(np.sqrt(variance + noise)))


def takes_previous(function: CostFunction) -> bool:
    """Return True for f(config, previous), False for f(config); raise InvalidInput for more arguments."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    needed = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    if len(needed) > 2:
        raise InvalidInput(
            f"The cost function {name_of(function)!r} takes {len(needed)} arguments. Write it as f(config) or "
            "f(config, previous)."
        )
    return len(needed) == 2


def _design(points: Array, columns: tuple[int, ...]) -> Array:
    """Return the design (n, 1 + |S|), centred so that intercept and slopes are nearly independent."""
    return np.column_stack([np.ones(len(points)), points[:, list(columns)] - 0.5])


# -- remaining budget --------------------------------------------------------------------------


@dataclass(frozen=True)
class Left:
    """The remaining amount of one budget."""

    unit: str  # a key of UNITS
    amount: float  # less the expected costs of running trials
    limit: float
    aside: float = 0.0  # the expected costs of running trials

    @property
    def share(self) -> float:
        return min(max(self.amount / self.limit, 0.0), 1.0)


@dataclass(frozen=True, eq=False)
class PlanningBudget:
    """Remaining amounts of b budgets, and the costs of m points in each."""

    left: Array  # (b,), infinite: no limit
    first: Array  # (b, m), of a point as the next trial
    after: Array | None = None  # (b, m, m), of the column's point after the row's; None: the same as `first`

    @property
    def then(self) -> Array:
        """Costs (b, m or 1, m) of a further step, by the previous point."""
        return np.asarray(self.first[:, None, :] if self.after is None else self.after)

    def affordable(self) -> Mask:
        """Return the points (m,) that every budget can pay for now."""
        return np.asarray((self.first <= self.left[:, None] * SLACK).all(axis=0))

    def price(self, costs: Array) -> Array:
        """Combine costs (b, ...) to one (...,): the largest share of a remaining budget. With one budget, its cost."""
        finite = np.isfinite(self.left) & (self.left > 0)
        if len(self.left) == 1 or not finite.any():
            return np.asarray(costs[0])
        shape = (-1,) + (1,) * (costs.ndim - 1)
        return np.asarray((costs[finite] / self.left[finite].reshape(shape)).max(axis=0))


@dataclass(frozen=True)
class CostOptions:
    """A policy's options about costs, as for EI (cost: its cost_function) and Rollout.

    Raises InvalidInput for other values, and NotSupported for a function that a log recorded only by name.
    """

    name: str  # of the policy, for its errors
    cost: CostFunction | None = None
    cost_model: CostOption = "gp"
    affordable: float = 0.5
    refit_every: int = 10
    fits: Memo[CostModel] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        model = self.cost_model
        for option in (self.cost, model):
            if isinstance(option, dict):
                raise NotSupported(
                    f"{self.name} uses the function {option.get('function')!r}, and a log records only its name. "
                    "Build the policy with this function in your program."
                )
        if self.cost is not None and not callable(self.cost):
            raise InvalidInput(
                f"{self.name} got the cost {self.cost!r}. Give a function of the configuration, or None to learn costs."
            )
        if self.cost is not None:
            takes_previous(self.cost)  # raises for more arguments
        listed = isinstance(model, (list, tuple)) and all(isinstance(name, str) for name in model)
        if model != "gp" and not callable(model) and not listed:
            raise InvalidInput(
                f"{self.name}(cost_model={model!r}) is not a cost model. Give 'gp', a list of parameters in which log "
                "cost is linear, or a function of the configuration."
            )
        if not 0.0 < self.affordable < 1.0:
            raise InvalidInput(
                f"{self.name}(affordable={self.affordable!r}) is not a probability. Give a number between 0 and 1, "
                "such as 0.5."
            )
        object.__setattr__(self, "fits", Memo(4))  # the last two in each unit; each is as large as all data

    @property
    def columns(self) -> Sequence[str] | None:
        """The parameters in which log cost is linear; None for another cost model."""
        return None if isinstance(self.cost_model, str) or callable(self.cost_model) else self.cost_model

    def check(self, problem: Problem) -> None:
        known, columns = problem.space.columns, self.columns
        if columns is not None and (not columns or any(name not in known for name in columns)):
            raise InvalidInput(
                f"{self.name}(cost_model={list(columns)!r}) needs parameters of the space. Give some of {list(known)}."
            )

    def unit(self, history: History) -> str:
        """Return "cost" if the budget limits it, or if trials report it and no time is limited; else "seconds"."""
        budget = history.budget
        if budget is not None and (budget.time or budget.worker_time or budget.money) and not budget.cost:
            return "seconds"
        reported = any(history.cost(id) is not None for id in range(min(len(history), 3)))
        return "cost" if reported or (budget is not None and budget.cost) else "seconds"

    def standing(self, history: History) -> Array | None:
        """Return the point of the last trial started if the cost depends on it, else None."""
        moving = self.cost is not None and takes_previous(self.cost)
        return history.points[len(history) - 1] if moving and len(history) else None


class RemainingBudget:
    """Costs and remaining budgets of a search after its finished trials. A policy plans with them."""

    def __init__(self, options: CostOptions, history: History, finished: FinishedTrials) -> None:
        self.options, self.history, self.finished = options, history, finished
        self.unit, self.standing = options.unit(history), options.standing(history)
        self.share = trained_share(history, finished)

    def model(self, unit: str) -> CostModel | None:
        """Return the model of the cost of a full training; None if no cost is known yet."""
        options, history, space = self.options, self.history, self.history.problem.space
        own = unit == self.unit
        if options.cost is not None and own:
            return KnownCost(options.cost, space)
        shape = KnownCost(options.cost_model, space) if callable(options.cost_model) and own else None
        costs = [(id, c) for id in self.finished if (c := full_cost(history, id, unit)) > 0.0]
        if not costs and shape is None:
            return None
        x = history.points[[id for id, _ in costs]]

        def learnt() -> CostModel:
            c = within_reach(np.array([cost for _, cost in costs]))
            if shape is not None:
                return fit_scale(shape, x, c)
            if options.columns is not None:
                return fit_line(x, c, [k for n in options.columns for k in range(space.dim)[space.columns[n]]])
            n = len(costs)
            fitted = n if n <= EARLY else max(EARLY, n - n % options.refit_every)
            model = sample_gp(x[:fitted], c[:fitted], rng=history.rng("fit", fitted, 1))
            if fitted == n:
                return model
            return GPCost(tuple(part.condition(x[fitted:], _log(c[fitted:])) for part in model.parts))

        return options.fits((history.seed, space, unit, tuple(costs), x.tobytes()), learnt)

    @cached_property
    def lefts(self) -> list[Left]:
        """The remaining amounts of all limited budgets, less the expected costs of running trials.

        Budgets that are spent by the second are represented by the tightest. Wall-clock time is not reduced, because
        workers spend it together.
        """
        budget, spent = self.history.budget, self.history.spent
        if budget is None:
            return []
        aside, seconds, found = self._aside("seconds"), [], []
        if budget.time is not None:
            seconds.append(Left("seconds", float(budget.time) - spent.time, float(budget.time)))
        for whole in (budget.worker_time, spent.payable(budget)):
            if whole is not None:
                limit = min(max(float(whole), 1e-300), 1e300)  # so that shares of it are finite at any price
                seconds.append(Left("seconds", limit - spent.worker_time - aside, limit, aside))
        if seconds:
            found.append(min(seconds, key=lambda left: left.amount))
        for unit, most, gone in (("cost", budget.cost, spent.cost), ("epochs", budget.epochs, spent.epochs)):
            if most is not None:
                aside = self._aside(unit)
                found.append(Left(unit, most - gone - aside, most, aside))
        if budget.trials is not None:
            found.append(Left("trials", float(budget.trials - spent.trials), float(budget.trials)))
        return found

    def _aside(self, unit: str) -> float:
        """Return the expected remaining cost of pending trials."""
        history, pending = self.history, self.history.pending
        costs = self.costs(unit, history.points[[t.id for t in pending]]) if pending else None
        if costs is None:
            return 0.0
        if unit == "epochs":
            gone = [t.epoch for t in pending]
        else:
            gone = [history.worker_seconds(t.id) if unit == "seconds" else history.cost(t.id) or 0.0 for t in pending]
        return float(np.maximum(costs - gone, 0.0).sum())

    def costs(self, unit: str, points: Array, after: Array | None = None, expected: bool = False) -> Array | None:
        """Return the planned (or expected) costs (m,) of trials at points (m, dim); None if no cost is known."""
        if unit == "trials":
            return np.ones(len(points))
        if unit == "epochs":
            horizon = self.history.problem.max_epochs
            share = trained_share(self.history, self.finished, by_itself=True)
            return None if horizon is None else np.full(len(points), horizon * share)
        if (model := self.model(unit)) is None:
            return None
        found = model.predict(points, after)
        return self.share * (found.mean if expected else found.quantile(self.options.affordable))

    def log_cost(self) -> LogCost | None:
        """Return log expected cost with derivatives, for a maximiser; None if no cost is known."""
        model, standing = self.model(self.unit), self.standing
        if model is None or standing is None:
            return None if model is None else model.expected
        return lambda points: (np.log(model.predict(points, standing).mean), np.zeros_like(points))

    def planning(self, points: Array, lefts: Sequence[Left], pairs: bool = True) -> PlanningBudget:
        """Return the budgets, in the order of `lefts`, and the costs of points (m, dim) in each.

        Unknown costs count as 0. Without a budget there is no limit, and costs are only divided by.
        pairs: False leaves out the costs from point to point, when a cost depends on the previous configuration.
        """
        units, amounts, first = self._of_each(points, lefts, expected=False)
        function, space = self.options.cost, self.history.problem.space
        if function is None or not (pairs and takes_previous(function)):
            return PlanningBudget(amounts, first)
        known, configs = KnownCost(function, space), space.whole.decode_many(points)
        moved = self.share * np.array([known.of(configs, previous) for previous in configs])
        after = [
            moved if unit == self.unit else np.tile(row, (len(points), 1))
            for unit, row in zip(units, first, strict=True)
        ]
        return PlanningBudget(amounts, first, np.array(after))

    def joined(self, budget: PlanningBudget, points: Array, further: Array, lefts: Sequence[Left]) -> PlanningBudget:
        """Return `planning` of points (m, dim), which is `budget`, and of further points (k, dim)."""
        if budget.after is not None:
            return self.planning(np.vstack([points, further]), lefts)
        return PlanningBudget(budget.left, np.hstack([budget.first, self.planning(further, lefts).first]))

    def price(self, points: Array, lefts: Sequence[Left]) -> Array:
        """Return one expected cost (m,) of trials at points (m, dim); of several budgets the largest share."""
        _, amounts, costs = self._of_each(points, lefts, expected=True)
        return PlanningBudget(amounts, costs).price(costs)

    def _of_each(self, points: Array, lefts: Sequence[Left], expected: bool) -> tuple[list[str], Array, Array]:
        """Return the unit, remaining amount (b,) and costs (b, m) of each budget."""
        units = [left.unit for left in lefts] or [self.unit]
        found = [self.costs(unit, points, self.standing, expected) for unit in units]
        costs = np.array([np.zeros(len(points)) if row is None else row for row in found])
        return units, np.array([left.amount for left in lefts] or [math.inf]), costs

    def chance(self, points: Array, lefts: Sequence[Left]) -> Array:
        """Return the probability (m,) that a trial at points (m, dim) fits the remaining budget; others are lost."""
        least = np.ones(len(points))
        for left in lefts:
            model = self.model(left.unit) if left.unit in ("seconds", "cost") else None
            if model is not None and left.amount > 0.0:
                least = np.minimum(least, model.predict(points, self.standing).below(left.amount / self.share))
        return least
