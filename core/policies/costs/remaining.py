"""What is left of a search's budget, and what a trial would take of it.

Up to four budgets are told apart, each with a cost of its own: `seconds` (the tightest of wall-clock time, worker time
and money), `cost` (what trials report), `epochs` and `trials`. Costs in seconds cover everything a worker spends on a
trial: start-up, training, validation, checkpoints, deciding. A trial that was stopped early teaches its cost in full,
scaled up, and how much of a training is trained on average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.memo import Memo
from haltune.errors import InvalidInput, NotSupported
from haltune.log.fold import FinishedTrials
from haltune.log.history import History
from haltune.log.problem import Budget, Problem
from haltune.log.spending import Spent

from .budgets import Means
from .gp_models import sample_gp
from .models import CostModel, KnownCost, fit_line, fit_scale, takes_previous, within_reach
from .observed import full_cost, taken, trained_share

CostOption = str | Sequence[str] | Callable[..., float]
LogCost = Callable[[Array], tuple[Array, Array]]
EARLY = 50  # finished trials, each of which is a fit
_LEAST_SECONDS, _MOST_SECONDS = (
    1e-300,
    1e300,
)  # seconds of a budget of money: shares of it are numbers whatever the price
UNITS = {"seconds": "s", "cost": "of cost", "epochs": "epochs", "trials": "trials"}


@dataclass(frozen=True)
class Left:
    """What may still be spent of one budget."""

    unit: str  # a key of UNITS
    amount: float  # beside what running trials are expected to take
    limit: float
    aside: float = 0.0  # for running trials

    @property
    def share(self) -> float:
        """Of the limit, from 0 to 1."""
        return min(max(self.amount / self.limit, 0.0), 1.0)


@dataclass(frozen=True)
class RemainingBudget:
    """Costs as a policy was told to see them.

    cost: a function (config) or (config, previous), known in advance, exact. cost_model: how costs are learnt:
    "gp", names of parameters in which log cost is linear, or a function whose scale is learnt. Both are in the unit of
    the budget: what trials report where it limits `cost`, or where they report it and it limits no time, else seconds.
    affordable: the probability with which a trial keeps to what is left.

    Raises InvalidInput for anything else, NotSupported for a function that only its name is left of.
    """

    name: str  # of the policy, for its errors
    cost: Callable[..., float] | None = None
    cost_model: CostOption = "gp"
    affordable: float = 0.5
    refit_every: int = 10
    _fits: Memo[CostModel] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for option in (self.cost, self.cost_model):
            if isinstance(option, dict):
                raise NotSupported(
                    f"{self.name} holds the function {option.get('function')!r}, and a log keeps its name alone: "
                    "build the policy with it in your program"
                )
        if self.cost is not None and not callable(self.cost):
            raise InvalidInput(f"{self.name}(cost={self.cost!r}): a function of the configuration, or None")
        if callable(self.cost):
            takes_previous(self.cost)
        model = self.cost_model
        listed = isinstance(model, (list, tuple)) and all(isinstance(name, str) for name in model)
        if model != "gp" and not callable(model) and not listed:
            raise InvalidInput(
                f"{self.name}(cost_model={self.cost_model!r}): 'gp', a list of parameters in which log cost is linear, "
                "or a function of the configuration"
            )
        if not 0.0 < self.affordable < 1.0:
            raise InvalidInput(f"{self.name}(affordable={self.affordable!r}): a probability between 0 and 1")
        object.__setattr__(self, "_fits", Memo(2 * self.refit_every + 1))

    def check(self, problem: Problem) -> None:
        """Raises InvalidInput when the cost model names a parameter that the space does not have."""
        if not isinstance(self.cost_model, str) and not callable(self.cost_model):
            strange = [name for name in self.cost_model if name not in problem.space.columns]
            if strange or not self.cost_model:
                raise InvalidInput(
                    f"{self.name}(cost_model={list(self.cost_model)!r}): parameters of the space, "
                    f"of {list(problem.space.columns)}"
                )

    # -- beliefs -----------------------------------------------------------------------

    def unit(self, history: History) -> str:
        """What `cost` and `cost_model` count: "cost" or "seconds"."""
        budget = history.budget
        if budget is not None and (budget.time or budget.worker_time or budget.money) and not budget.cost:
            return "seconds"
        reported = any(history.cost(id) is not None for id in range(min(len(history), 3)))
        return "cost" if reported or (budget is not None and budget.cost) else "seconds"

    def model(self, history: History, finished: FinishedTrials, unit: str) -> CostModel | None:
        """The belief about the cost of a full training; None while nothing is known of it."""
        own = unit == self.unit(history)
        space = history.problem.space
        if self.cost is not None and own:
            return KnownCost(self.cost, space)
        shape = KnownCost(self.cost_model, space) if callable(self.cost_model) and own else None
        costs = [(id, c) for id in finished if (c := full_cost(history, id, unit)) > 0.0]
        if not costs and shape is None:
            return None
        key = (history.seed, space, unit, tuple(costs))
        return self._fits(key, partial(self._learnt, history, costs, shape))

    def _learnt(self, history: History, costs: list[tuple[int, float]], shape: KnownCost | None) -> CostModel:
        space = history.problem.space
        x = history.points[[id for id, _ in costs]]
        c = within_reach(np.array([cost for _, cost in costs]))
        if shape is not None:
            return fit_scale(shape, x, c)
        if not isinstance(self.cost_model, str) and not callable(self.cost_model):
            columns = [k for name in self.cost_model for k in range(space.dim)[space.columns[name]]]
            return fit_line(x, c, columns)
        n = len(costs)  # every one of the first fifty is a fit, as of the results: an old one misleads
        fitted = n if n <= EARLY else max(EARLY, n - n % self.refit_every)
        model = sample_gp(x[:fitted], c[:fitted], rng=history.rng("fit", fitted, 1))
        return model if fitted == n else model.extended(x[fitted:], c[fitted:])

    # -- what is left ------------------------------------------------------------------

    def lefts(self, history: History, finished: FinishedTrials) -> list[Left]:
        """What is left of each budget that is limited, running trials' expected costs set aside."""
        budget, spent = history.budget, history.spent
        if budget is None:
            return []
        aside = {unit: self._aside(history, finished, unit) for unit in ("seconds", "cost", "epochs")}
        found = []
        if seconds := _seconds(budget, spent, aside["seconds"]):
            found.append(min(seconds, key=lambda left: left.amount))
        for unit, limit, gone in (("cost", budget.cost, spent.cost), ("epochs", budget.epochs, spent.epochs)):
            if limit is not None:
                found.append(Left(unit, limit - gone - aside[unit], limit, aside[unit]))
        if budget.trials is not None:
            found.append(Left("trials", float(budget.trials - spent.trials), float(budget.trials)))
        return found

    def _aside(self, history: History, finished: FinishedTrials, unit: str) -> float:
        """What the trials that run, or wait to be offered again, are still expected to take."""
        pending = history.pending
        if not pending:
            return 0.0
        costs = self.costs(history, finished, unit, history.points[[t.id for t in pending]])
        gone = [taken(history, t, unit) for t in pending]
        return 0.0 if costs is None else float(np.maximum(costs - gone, 0.0).sum())

    def costs(
        self,
        history: History,
        finished: FinishedTrials,
        unit: str,
        points: Array,
        after: Array | None = None,
        expected: bool = False,
    ) -> Array | None:
        """(m,) what trials at points (m, dim) are planned to take, or expected to; None while nothing is known."""
        share = trained_share(history, finished)
        if unit == "trials":
            return np.ones(len(points))
        if unit == "epochs":
            horizon = history.problem.max_epochs
            return None if horizon is None else np.full(len(points), horizon * share)
        model = self.model(history, finished, unit)
        if model is None:
            return None
        found = model.predict(points, after)
        return share * (found.mean if expected else found.quantile(self.affordable))

    def log_cost(self, history: History, finished: FinishedTrials) -> LogCost | None:
        """Log expected cost (m,) and its derivatives (m, d) for a maximiser; None while nothing is known of it."""
        model = self.model(history, finished, self.unit(history))
        standing = self.standing(history)
        if model is None:
            return None

        def from_here(points: Array) -> tuple[Array, Array]:
            return np.log(model.predict(points, standing).mean), np.zeros_like(points)

        return model.expected if standing is None else from_here

    def means(
        self,
        history: History,
        finished: FinishedTrials,
        points: Array,
        lefts: Sequence[Left],
        pairs: bool = True,
    ) -> Means:
        """The budgets, in the order of `lefts`, and what points (m, dim) take of each, for the planner.

        What nothing is known of costs nothing. Without a budget none is limited, and costs only weigh.
        pairs: False leaves out the costs from point to point, of a cost that depends on the one before.
        """
        units = [left.unit for left in lefts] or [self.unit(history)]
        amounts = np.array([left.amount for left in lefts] or [math.inf])
        after = self.standing(history)
        found = [self.costs(history, finished, unit, points, after) for unit in units]
        first = np.array([np.zeros(len(points)) if row is None else row for row in found])
        if not (self.moving and pairs):
            return Means(amounts, first)
        own, share = self.unit(history), trained_share(history, finished)
        moved = share * KnownCost(self._known(), history.problem.space).between(points)
        rows = zip(units, first, strict=True)
        return Means(
            amounts,
            first,
            np.array([moved if unit == own else np.tile(row, (len(points), 1)) for unit, row in rows]),
        )

    def price(
        self, history: History, finished: FinishedTrials, points: Array, lefts: Sequence[Left]
    ) -> Array:
        """(m,) one expected cost of a trial at points (m, dim): with several budgets a share of what is left."""
        units, after = [left.unit for left in lefts] or [self.unit(history)], self.standing(history)
        found = [self.costs(history, finished, unit, points, after, expected=True) for unit in units]
        costs = np.array([np.zeros(len(points)) if row is None else row for row in found])
        return Means(np.array([left.amount for left in lefts] or [math.inf]), costs).price(costs)

    def chance(
        self, history: History, finished: FinishedTrials, points: Array, lefts: Sequence[Left]
    ) -> Array:
        """(m,) how probable it is that a trial at points (m, dim) keeps to what is left: one that does not is lost."""
        least, after = np.ones(len(points)), self.standing(history)
        share = trained_share(history, finished)
        for left in lefts:
            model = self.model(history, finished, left.unit) if left.unit in ("seconds", "cost") else None
            if model is not None and left.amount > 0.0:
                least = np.minimum(least, model.predict(points, after).below(left.amount / share))
        return least

    @property
    def moving(self) -> bool:
        """True when the cost depends on the configuration before."""
        return self.cost is not None and takes_previous(self.cost)

    def standing(self, history: History) -> Array | None:
        """Where a search stands whose costs depend on it: the configuration that was started last."""
        return history.points[len(history) - 1] if self.moving and len(history) else None

    def _known(self) -> Callable[..., float]:
        assert self.cost is not None
        return self.cost


def _seconds(budget: Budget, spent: Spent, aside: float) -> list[Left]:
    """The budgets that are spent by the second. Wall-clock time workers spend together: nothing is set aside."""
    found = []
    if budget.time is not None:
        found.append(Left("seconds", float(budget.time) - spent.time, float(budget.time)))
    if budget.worker_time is not None:
        limit = float(budget.worker_time)
        found.append(Left("seconds", limit - spent.worker_time - aside, limit, aside))
    if budget.money is not None and budget.price:
        limit = min(max(budget.money / budget.price * 3600.0, _LEAST_SECONDS), _MOST_SECONDS)
        found.append(Left("seconds", limit - spent.worker_time - aside, limit, aside))
    return found
