"""Rollout: plan under the budget that is left (Lee et al. 2021).

The value of a next configuration is its expected improvement, plus that of the steps which the base policy could still
take and pay after it: `lookahead` computes it, this module decides. Results have the Gaussian process of EI
(`bayesopt.ImprovementSurrogate`), log costs a few whose hyperparameters are drawn from their posterior (`costs`).
One rule says what is affordable, for planning and for launching: a trial keeps to what is left with probability
`affordable`. When nothing is, the search ends, and the reason says what is left.

Beyond the paper, whose theory has deterministic costs and one worker: pending trials count as observed at their mean,
their expected costs are set aside; under `Halting` the cost is that of the mean share of a training before a stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array, Indices
from haltune._utils.checks import MOST_POINTS, check_whole
from haltune.display import amount, plural
from haltune.errors import InvalidInput
from haltune.log.decisions import Finish, Move, Start, Verdict, Wait, go_on, stop
from haltune.log.events import Event
from haltune.log.history import History
from haltune.log.policy import FinishedTrials, Policy, fold_over
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord
from haltune.policies.acquisition import maximise
from haltune.policies.bayesopt import AGAIN, Improvement, ImprovementSurrogate, cheap_design, improve
from haltune.policies.costs import UNITS, CostOption, Left, PlanningBudget, RemainingBudget

from .lookahead import Infeasible, JointNormal, base_choice, hermite, rollout, sobol_normals

Config = dict[str, Any]
_NODES = 8  # of Gauss-Hermite quadrature, for horizon 2
_CUT = 256  # paths for horizon 2 under "terminate": its value jumps, which quadrature does not see
_LISTED = 2048  # a space with no more configurations is screened whole, of others so many are drawn
_TOPS, _NEAR = 4, 12  # configurations that are looked around, and neighbours of each
_SCALES = np.array([0.02, 0.08])  # of the neighbours, in the cube


@dataclass(frozen=True, eq=False)
class Pool:
    """Configurations to plan with, and their points, none twice."""

    configs: list[Config]
    points: Array  # (m, dim)

    @classmethod
    def of(cls, history: History, first: Sequence[Config], rng: Generator) -> Pool:
        """`first`, then the whole space in random order or a Sobol sample; tried ones only if there is no other."""
        space = history.problem.space
        small = space.size is not None and space.size <= _LISTED
        drawn = space.enumerate() if small else space.sample_up_to(_LISTED, rng, "sobol")
        order = rng.permutation(len(drawn)) if small else np.arange(len(drawn))  # the first fill the space
        configs = [dict(config) for config in (*first, *(drawn[i] for i in order))]
        keys = space.keys(configs)
        fresh = [i for i in _firsts(keys) if keys[i] not in history.tried] or _firsts(keys)
        chosen = [configs[i] for i in fresh]
        return cls(chosen, space.encode_many(chosen))

    def around(self, value: Array, history: History, rng: Generator) -> Pool:
        """New neighbours of those of largest value: normal steps, and any option of what is not a number."""
        space = history.problem.space
        tops = self.points[np.argsort(-value, kind="stable")[:_TOPS]]
        scales = np.repeat(_SCALES, _NEAR // len(_SCALES))[None, :, None]
        moved = tops[:, None, :] + scales * rng.standard_normal((len(tops), _NEAR, space.dim))
        configs = space.decode_many(moved.reshape(-1, space.dim)) if space.dim else []
        known = set(space.keys(self.configs)) | history.tried
        keys = space.keys(configs) if configs else []
        fresh = [configs[i] for i in _firsts(keys) if keys[i] not in known]
        fresh = [config for config in fresh if space.contains(config)]
        return Pool(fresh, space.encode_many(fresh) if fresh else np.zeros((0, space.dim)))


def _firsts(keys: Sequence[str]) -> list[int]:
    """The first position of each key."""
    return sorted({key: i for i, key in reversed(list(enumerate(keys)))}.values())


def screened(gain: Array, budget: PlanningBudget, count: int) -> Indices:
    """Positions, ascending, of at most `count` of m points: the affordable ones of largest EI (m,) per cost, a third,
    of largest EI, another, and else the first of all, which fill the space."""
    able = budget.affordable()
    price = np.maximum(budget.price(budget.first), 1e-300)
    kept = np.zeros(len(gain), dtype=np.bool_)
    for score in (gain / price, gain):
        order = np.argsort(np.where(able & ~kept, -score, np.inf), kind="stable")
        kept[order[: count // 3]] = True
    rest = np.flatnonzero(~kept)[: max(0, count - int(kept.sum()))]
    return np.sort(np.concatenate([np.flatnonzero(kept), rest]))


@dataclass(frozen=True)
class Rollout(Policy[FinishedTrials]):
    """Rollout: plans several trials ahead within the budget that is left (Lee et al. 2021).

    Every trial trains in full. Costs are planned in the units of the study's budget: time, worker time, money,
    cost, epochs and trials are all kept. A plan counts with the probability that its first trial ends in time,
    because one that does not is lost.

    Args:
        horizon: steps planned, the next itself included; 1 is expected improvement of what is affordable. Default:
            2.
        affordable: probability with which a trial must keep to what is left, in planning and launching: 0.5 is the
            median of the learnt cost, 0.9 is cautious. Default: 0.5.
        infeasible: "restrict" plans with what is affordable alone, "terminate" is the paper's text. Default:
            "restrict".
        cooled: count what is left after the plan, too. While it pays for `horizon` trainings of the configuration
            of largest expected improvement, take the step that adds most per expected cost to the value of the base
            policy without it, (Lambda_h(x) - Lambda_{h-1}(base)) / E[cost]; once the plan reaches the end of the
            budget, the step of largest Lambda_h. False is the paper's rule, Lambda_h throughout, which spends freely
            while much is left. Default: True.
        initial: trials of a design in the middle of the space, cheap and far from each other. Default: 3.
        cost: the cost of a configuration, where you know it: a function (config) or (config, previous
            config, None before the first trial) to a number that is not negative, in the unit of the budget
            (seconds, or what trials report as cost). Default: None, costs are learnt.
        cost_model: how costs are learnt: "gp", a Gaussian process of their logarithms; a list of parameters in
            which log cost is linear; or a function (config) whose scale is learnt. Learnt from what trials report
            as `cost`, or from their seconds. Default: "gp".
        refit_every: finished trials, beyond 50, between fits. Default: 10.
        paths: simulated futures, beyond horizon 2. Default: 64.
        points: configurations that are planned with. Default: 192.

    Raises:
        InvalidInput: for options outside these, and when the cost model does not suit the space.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import Rollout
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, Rollout(initial=2, points=16), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        3
    """

    horizon: int = 2
    affordable: float = 0.5
    infeasible: Infeasible = "restrict"
    cooled: bool = True
    initial: int = 3
    cost: Callable[..., float] | None = None
    cost_model: CostOption = "gp"
    refit_every: int = 10
    paths: int = 64
    points: int = 192
    plans = True  # by the study's budget
    _remaining: RemainingBudget = field(init=False, repr=False, compare=False)
    _surrogate: ImprovementSurrogate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_whole("Rollout", 1, horizon=self.horizon, refit_every=self.refit_every)
        check_whole("Rollout", 1, MOST_POINTS, initial=self.initial, paths=self.paths, points=self.points)
        if not isinstance(self.cooled, bool):
            raise InvalidInput(f"Rollout(cooled={self.cooled!r}): give True or False")
        if self.infeasible not in ("restrict", "terminate"):
            raise InvalidInput(f"Rollout(infeasible={self.infeasible!r}): give 'restrict' or 'terminate'")
        remaining = RemainingBudget("Rollout", self.cost, self.cost_model, self.affordable, self.refit_every)
        object.__setattr__(self, "_remaining", remaining)
        object.__setattr__(self, "_surrogate", ImprovementSurrogate(self.refit_every))

    def start(self, problem: Problem) -> FinishedTrials:
        """No trial has finished. Raises InvalidInput when the cost model does not suit the space."""
        self._remaining.check(problem)
        return ()

    def fold(self, state: FinishedTrials, event: Event) -> FinishedTrials:
        """The trials that ended, in log order."""
        return fold_over(state, event)

    def propose(self, state: FinishedTrials, history: History, rng: Generator) -> Move:
        """The affordable configuration of largest Lambda_h; Finish when there is none."""
        lefts = self._remaining.lefts(history, state)
        if (end := _spent(history, lefts)) is not None:
            return end
        improvement = self._surrogate.improvement(history, state)
        if len(history) < self.initial or improvement is None:
            return self._design(state, history, lefts, rng)
        return self._planned(state, history, improvement, lefts, rng)

    def judge(self, state: FinishedTrials, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """Every trial goes on, unless time would run out within its next epoch."""
        budget = history.budget
        epoch = float(np.max(trial.epoch_seconds[-2:], initial=0.0))
        if budget is None or budget.time is None or not len(trial.epochs):
            return go_on("rollout trains every configuration in full")
        now = history.now + float(trial.seconds[-1])
        left = float(budget.time) - history.spent_at(trial.id, now, 0.0).time
        if left < epoch:
            return stop(f"an epoch takes {epoch:.3g} s, and {max(left, 0.0):.3g} s are left", left=left)
        return go_on("rollout trains every configuration in full", left=left)

    def _design(self, state: FinishedTrials, history: History, lefts: list[Left], rng: Generator) -> Move:
        """The next of the initial design, or the cheapest configuration where that is not affordable."""
        move = cheap_design(history, self._remaining.log_cost(history, state), rng)
        point = history.problem.space.encode(move.config)[None]
        budget = self._remaining.planning(history, state, point, lefts, pairs=False)
        if budget.affordable()[0]:
            return move
        if not len(history) and len(others := [left for left in lefts if left.unit != "epochs"]) < len(lefts):
            return self._design(
                state, history, others, rng
            )  # too few epochs for one training pay for a part of it
        return self._cheapest(state, history, lefts, rng)

    def _cheapest(self, state: FinishedTrials, history: History, lefts: list[Left], rng: Generator) -> Move:
        """The configuration of least predicted cost that was not tried, or any while costs are unknown."""
        log_cost = self._remaining.log_cost(history, state)

        def descent(points: Array) -> tuple[Array, Array]:
            if log_cost is None:
                return np.zeros(len(points)), np.zeros_like(points)
            value, slopes = log_cost(points)
            return -value, -slopes

        config = maximise(descent, history.problem.space, rng, tried=history.tried).config
        point = history.problem.space.encode(config)[None]
        budget = self._remaining.planning(history, state, point, lefts, pairs=False)
        if budget.affordable()[0]:
            return Start(config, reason="the cheapest configuration: what is left pays for little else")
        return _unaffordable(history, lefts, budget.first[:, 0])

    def _planned(
        self,
        state: FinishedTrials,
        history: History,
        improvement: Improvement,
        lefts: list[Left],
        rng: Generator,
    ) -> Move:
        """The best of a screened pool, then of neighbours of its best."""
        costs = (self._remaining.log_cost(history, state), None)
        tops = [improve(history, improvement, rng, cost, candidates=512) for cost in costs]
        pool = Pool.of(history, [top.config for top in tops], rng)
        budget = self._remaining.planning(history, state, pool.points, lefts, pairs=False)
        if not budget.affordable().any():
            return self._cheapest(state, history, lefts, rng)
        gain = improvement.expected(pool.points)
        alpha, best = self._alpha(budget, gain), improvement.best
        kept = screened(gain, budget, self.points)
        pool = Pool([pool.configs[i] for i in kept], pool.points[kept])
        posterior, nodes = improvement.posterior, self._nodes(rng)

        def valued(pool: Pool, some: Indices) -> tuple[PlanningBudget, Array, Array]:
            budget = self._remaining.planning(history, state, pool.points, lefts)
            belief = JointNormal(posterior.mean(pool.points), posterior.covariance(pool.points), best)
            value = rollout(belief, budget, self.horizon, nodes, some, self.infeasible)
            value *= self._remaining.chance(history, state, pool.points[some], lefts)
            whole, added = np.zeros(len(pool.points)), np.full(len(pool.points), -np.inf)
            whole[some] = value
            more = value - self._without(belief, budget, nodes)
            price = np.maximum(self._remaining.price(history, state, pool.points[some], lefts), 1e-300)
            added[some] = np.where(more > 0.0, more / price**alpha, more)  # of losses the smallest
            return budget, whole, np.where(budget.affordable(), added, -np.inf)

        budget, value, added = valued(pool, np.arange(len(pool.points)))
        if len((near := pool.around(added, history, rng)).configs):
            first = np.argsort(-added, kind="stable")[: len(near.configs)]
            some = np.concatenate([np.sort(first), len(pool.points) + np.arange(len(near.configs))])
            pool = Pool([*pool.configs, *near.configs], np.vstack([pool.points, near.points]))
            budget, value, added = valued(pool, some)
        chosen = int(np.argmax(added))
        point = pool.points[chosen : chosen + 1]
        prediction = improvement.prediction(point)
        own = float(improvement.expected(point)[0])
        evidence = {
            "value": float(value[chosen]),
            "ei": own,
            **prediction,
            "horizon": self.horizon,
            "alpha": alpha,
        }
        words = improvement.in_words(prediction, history.problem.goal.metric)
        return _worded(
            pool.configs[chosen], evidence, words, budget.first[:, chosen], lefts, tops[0].exhausted
        )

    def _without(
        self, belief: JointNormal, budget: PlanningBudget, nodes: tuple[Array, Array] | None
    ) -> float:
        """What the base policy is worth with a step less: a plan that begins with a useless step adds nothing to it.

        Without it a useless training that costs next to nothing would have all the worth of what comes after it.
        """
        if self.horizon == 1:
            return 0.0
        base = base_choice(belief, budget, self.horizon - 1, self.infeasible)
        if base is None:
            return 0.0
        return float(rollout(belief, budget, self.horizon - 1, nodes, [base], self.infeasible)[0])

    def _alpha(self, budget: PlanningBudget, gain: Array) -> float:
        """The power of cost that plans are divided by: 1, or 0 where they reach the end of what is left.

        They do when it pays for fewer than `horizon` trainings, or two, of what expected improvement (m,) would choose.
        """
        if not self.cooled:
            return 0.0
        dear = int(np.argmax(np.where(budget.affordable(), gain, -np.inf)))
        return float((budget.left >= max(self.horizon, 2) * budget.first[:, dear]).all())

    def _nodes(self, rng: Generator) -> tuple[Array, Array] | None:
        if self.horizon == 1:
            return None
        if self.horizon == 2 and self.infeasible == "restrict":
            return hermite(_NODES)
        paths = max(self.paths, _CUT) if self.infeasible == "terminate" else self.paths
        return sobol_normals(paths, self.horizon - 1, rng)


def _worded(
    config: dict[str, Any],
    evidence: dict[str, Any],
    words: str,
    costs: Array,
    lefts: list[Left],
    exhausted: bool,
) -> Start:
    reason = words
    if evidence["horizon"] > 1 and evidence["ei"] > 0.0:
        gain, ahead = evidence["value"] / evidence["ei"], plural(evidence["horizon"], "step")
        reason += f"; worth {gain:.3g} times that in {ahead}"
    reason += ", the most per cost" if evidence["alpha"] else ", the most that what is left buys"
    if lefts:
        pairs = zip(costs, lefts, strict=True)
        taken = ", ".join(
            f"{cost:.3g} of the {amount(left.amount, UNITS[left.unit], 4)} left" for cost, left in pairs
        )
        reason += f"; takes {taken}"
    reason += AGAIN * exhausted
    left = [left.amount for left in lefts]
    return Start(config, reason=reason, evidence={**evidence, "cost": costs.tolist(), "left": left})


def _spent(history: History, lefts: list[Left]) -> Move | None:
    """Wait or Finish where a budget has nothing left at all."""
    empty = [left for left in lefts if left.amount <= 0.0]
    if not empty:
        return None
    if history.running:
        return Wait(f"what is left of {UNITS[empty[0].unit]} is set aside for the trials that run")
    return Finish(f"nothing is left of the budget of {amount(empty[0].limit, UNITS[empty[0].unit])}")


def _unaffordable(history: History, lefts: list[Left], costs: Array) -> Move:
    left, cost = next((left, cost) for left, cost in zip(lefts, costs, strict=True) if cost > left.amount)
    unit = UNITS[left.unit]
    if history.running and left.aside > 0.0:
        return Wait(
            f"{amount(left.amount, unit, 3)} left beside the trials that run is too little to start another"
        )
    return Finish(
        f"nothing is affordable: {left.amount:.4g} of {amount(left.limit, unit)} are left, and the cheapest "
        f"configuration is expected to take {amount(cost, unit, 4)}"
    )
