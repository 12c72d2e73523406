"""Expected improvement, and what it becomes when trainings cost different times.

EI(x) = E[(f(x) - y*)^+], y* the best score of a trained configuration (Jones et al. 1998). EI per cost divides by the
expected cost c(x) (Snoek et al. 2012); cost cooling by c(x)^alpha, alpha the share of the budget that is left,
so that a search begins cheap and ends with what is best (Lee et al. 2020). All are maximised in logarithms. They look
one step ahead: `Rollout` plans.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from numpy.random import Generator

from haltune._utils.arrays import Array
from haltune._utils.checks import MOST_POINTS, check_whole
from haltune._utils.words import amount
from haltune.log.decisions import Move, Start
from haltune.log.events import Event
from haltune.log.fold import FinishedTrials, fold_over
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.policies.costs.remaining import UNITS, CostOption, LogCost, RemainingBudget

from .acquisition import Surface, log_ei
from .gpucb import initial_design
from .improvement import Improvement, ImprovementSurrogate, cheap_design
from .maximiser import Proposal, maximise


def improve(
    history: History,
    improvement: Improvement,
    rng: Generator,
    log_cost: LogCost | None = None,
    candidates: int = 1024,
) -> Proposal:
    """The configuration not tried yet of largest log EI - log cost."""
    surface = Surface(
        improvement.posterior,
        lambda mean, variance: log_ei(mean, variance, improvement.best),
        log_cost=log_cost,
    )
    top = history.best()
    around = [top.config] if top else []
    space = history.problem.space
    return maximise(surface, space, rng, tried=history.tried, around=around, candidates=candidates)


@dataclass(frozen=True)
class _Greedy:
    """One step ahead: what the three policies share."""

    name: str
    initial: int
    refit_every: int
    remaining: RemainingBudget | None = None
    surrogate: ImprovementSurrogate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_whole(self.name, 1, MOST_POINTS, initial=self.initial)
        check_whole(self.name, 1, refit_every=self.refit_every)
        object.__setattr__(self, "surrogate", ImprovementSurrogate(self.refit_every))

    def propose(self, state: FinishedTrials, history: History, rng: Generator, alpha: float) -> Start:
        """The initial design, then the largest EI / cost^alpha."""
        improvement = self.surrogate.improvement(history, state)
        if len(history) < self.initial or improvement is None:
            if self.remaining is None:
                return initial_design(history, self.initial, rng)
            return cheap_design(history, self.remaining.log_cost(history, state), rng)
        choice = improve(history, improvement, rng, self._log_cost(history, state, alpha))
        point = history.problem.space.encode(choice.config)[None]
        hopes = improvement.hopes(point)
        told = improvement.told(hopes, history.problem.goal.metric)
        evidence = {"ei": float(improvement.expected(point)[0]), **hopes, "alpha": alpha}
        reason = f"largest expected improvement: {told}"
        if self.remaining is not None and (cost := self._cost(history, state, point)) is not None:
            evidence["cost"] = cost
            power = "" if alpha == 1.0 else f"^{alpha:.2f}"
            unit = UNITS[self.remaining.unit(history)]
            reason = f"largest expected improvement per cost{power}: {told}, for {amount(cost, unit, 3)}"
        if choice.exhausted:
            reason += "; every configuration found has been tried, this one is trained again"
        return Start(choice.config, reason=reason, evidence=evidence)

    def _log_cost(self, history: History, state: FinishedTrials, alpha: float) -> LogCost | None:
        log_cost = None if self.remaining is None else self.remaining.log_cost(history, state)
        if log_cost is None:
            return None

        def cooled(points: Array) -> tuple[Array, Array]:
            value, slopes = log_cost(points)
            return alpha * value, alpha * slopes

        return cooled

    def _cost(self, history: History, state: FinishedTrials, point: Array) -> float | None:
        if self.remaining is None:
            return None
        model = self.remaining.model(history, state, self.remaining.unit(history))
        return (
            None if model is None else float(model.predict(point, self.remaining.standing(history)).mean[0])
        )


@dataclass(frozen=True)
class EI(Policy[FinishedTrials]):
    """Expected improvement, whatever it costs; every trial trains in full.

    Trials that run count as observed at their mean.

    Args:
        initial: Sobol configurations before the first fit. Default: 4.
        refit_every: finished trials, beyond 50, between fits of the kernel. Default: 10.

    Raises:
        InvalidInput: for options outside these.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import EI
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, EI(initial=2), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        3
    """

    initial: int = 4
    refit_every: int = 10
    _greedy: _Greedy = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_greedy", _Greedy("EI", self.initial, self.refit_every))

    def start(self, problem: Problem) -> FinishedTrials:
        """No trial has finished."""
        return ()

    def fold(self, state: FinishedTrials, event: Event) -> FinishedTrials:
        """The trials that ended, in log order."""
        return fold_over(state, event)

    def propose(self, state: FinishedTrials, history: History, rng: Generator) -> Move:
        """The initial design, then the largest expected improvement."""
        return self._greedy.propose(state, history, rng, 0.0)


@dataclass(frozen=True)
class _PerCost(Policy[FinishedTrials]):
    """EI / cost^alpha: what the two policies share, which differ in alpha."""

    initial: int = 3
    refit_every: int = 10
    cost: Callable[..., float] | None = None
    cost_model: CostOption = "gp"
    _remaining: RemainingBudget = field(init=False, repr=False, compare=False)
    _greedy: _Greedy = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = type(self).__name__
        remaining = RemainingBudget(name, self.cost, self.cost_model, refit_every=self.refit_every)
        object.__setattr__(self, "_remaining", remaining)
        object.__setattr__(self, "_greedy", _Greedy(name, self.initial, self.refit_every, remaining))

    def start(self, problem: Problem) -> FinishedTrials:
        """No trial has finished. Raises InvalidInput when the cost model does not suit the space."""
        self._remaining.check(problem)
        return ()

    def fold(self, state: FinishedTrials, event: Event) -> FinishedTrials:
        """The trials that ended, in log order."""
        return fold_over(state, event)

    def propose(self, state: FinishedTrials, history: History, rng: Generator) -> Move:
        """The initial design, then the largest EI / cost^alpha."""
        return self._greedy.propose(state, history, rng, self._alpha(state, history))

    def _alpha(self, state: FinishedTrials, history: History) -> float:
        return 1.0


@dataclass(frozen=True)
class EIPerCost(_PerCost):
    """Expected improvement per expected cost; every trial trains in full.

    Args:
        initial: trials of a design in the middle of the space, cheap and far from each other. Default: 3.
        refit_every: finished trials, beyond 50, between fits of the kernel. Default: 10.
        cost: what a configuration costs, where it is known in advance: a function (config) or (config, previous
            config, None before the first trial) to a number that is not negative, in the unit of the budget
            (seconds, or what trials report as cost). Default: None, costs are learnt.
        cost_model: how costs are learnt else: "gp", a Gaussian process of their logarithms; a list of parameters in
            which log cost is linear; or a function (config) whose scale is learnt. Learnt from what trials report
            as `cost`, or from their seconds. Default: "gp".

    Raises:
        InvalidInput: for options outside these, and when the cost model does not suit the space.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import EIPerCost
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, EIPerCost(initial=2, cost_model=["lr"]), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        3
    """


@dataclass(frozen=True)
class CostCooledEI(_PerCost):
    """EI per cost that cools: EI / cost^alpha, where alpha is the share of the budget that is left.

    So a search begins cheap and ends with what is best. Of several budgets the one with the smallest share left
    counts.

    Args:
        initial: trials of a design in the middle of the space, cheap and far from each other. Default: 3.
        refit_every: finished trials, beyond 50, between fits of the kernel. Default: 10.
        cost: what a configuration costs, where it is known in advance: a function (config) or (config, previous
            config, None before the first trial) to a number that is not negative, in the unit of the budget
            (seconds, or what trials report as cost). Default: None, costs are learnt.
        cost_model: how costs are learnt else: "gp", a Gaussian process of their logarithms; a list of parameters in
            which log cost is linear; or a function (config) whose scale is learnt. Learnt from what trials report
            as `cost`, or from their seconds. Default: "gp".

    Raises:
        InvalidInput: for options outside these, and when the cost model does not suit the space.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import CostCooledEI
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, CostCooledEI(initial=2), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        3
    """

    plans = True  # by the study's budget

    def _alpha(self, state: FinishedTrials, history: History) -> float:
        return min((left.share for left in self._remaining.lefts(history, state)), default=1.0)
