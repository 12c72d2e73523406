"""Rollout: plan several trials ahead within the remaining budget (Lee et al. 2021).

From "A nonmyopic approach to cost-constrained Bayesian optimization", sections 4 and 5, with larger better. A Gaussian
process has a mean and a covariance on m points; y* is the best value so far, tau the remaining budget,

    Lambda_h(x) = E[ sum_{t < h} (y_{t+1} - y*_t)^+ ],      x_0 = x, x_1 ... x_{h-1} chosen by the base policy:

the point with the largest expected improvement per cost; at the last step, with the largest expected improvement.
Under "restrict" the base policy chooses among the affordable points. Under "terminate" (the paper's text) it chooses
among all, and a trajectory ends at the first that is not affordable. Step h is the last; under "restrict" also a step
after which nothing would be affordable. Trajectories that end early count with what they found.

The rewards are conditional expectations, EI(x_t) given the path so far. So Lambda_1 = EI exactly, and the last step is
never sampled. The posterior after x_0 has the same variance for every y, and conditioning has rank one:

    row = cov(x_t, .) / s,    s^2 = var(x_t) + noise,    mean += row z,    var -= row^2,    y = mean(x_t) + s z.

Values have the Gaussian process of EI (`bayesopt.ImprovementSurrogate`). Log costs have a few, whose hyperparameters
are drawn from their posterior (`costs`). Planning and launching share one rule: a point is affordable if a trial there
fits the remaining budget with probability `affordable`. If no point is affordable, the search ends with a reason.

Beyond the paper, which assumes deterministic costs and one worker: pending trials count as observed at their mean, and
their expected costs are reserved. Under `Halting` costs are scaled by the mean share of a training before a stop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from numpy.random import Generator
from scipy.optimize import minimize
from scipy.special import ndtri

from haltune._utils.arrays import Array, Indices, Mask
from haltune._utils.checks import MOST_POINTS, check_whole
from haltune.display import plural
from haltune.errors import InvalidInput
from haltune.gp import Posterior
from haltune.log.decisions import Finish, Move, Start, Verdict, Wait, continue_, stop
from haltune.log.history import History
from haltune.log.policy import FinishedTrials, OverTrials
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord
from haltune.space.space import batches

from .acquisition import expected_improvement, maximise
from .bayesopt import AGAIN, ImprovementSurrogate, cheap_design, improve
from .costs import SLACK, CostOption, CostOptions, Left, PlanningBudget, RemainingBudget, in_units

Infeasible = Literal["restrict", "terminate"]
Nodes = tuple[Array, Array]  # points (p, h - 1 or more) of the integral over z_0 ... z_{h-2}, and weights (p,)
_CHUNK = 400_000  # numbers in the largest array of a step: more leaves the cache
_KNOWN = 1e-12  # of the largest variance: a point of smaller variance is taken as known
_NODES = 8  # of Gauss-Hermite quadrature, for horizon 2
_CUT = 256  # paths for horizon 2 under "terminate": its value has jumps, which quadrature misses
_LISTED = 2048  # a space of at most so many configurations is listed; from larger ones so many are drawn
_TOPS, _NEAR = 4, 12  # best configurations, and new neighbours of each
_STARTS = 5  # of L-BFGS-B, as in the paper
_STEPS, _DIFFERENCE = 15, 1e-4  # iterations from each start, and the step of its differences, in the cube
_SCALES = np.array([0.02, 0.08])  # of the neighbours, in the cube


# -- the value of a next step --------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class JointNormal:
    """A joint normal distribution of values at m points, larger values better."""

    mean: Array  # (m,)
    covariance: Array  # (m, m)
    best: float  # y*
    noise: float = 0.0  # variance of an observation: rewards are of observations, as in the paper; `Rollout` gives 0

    def joined(self, posterior: Posterior, points: Array, further: Array) -> JointNormal:
        """Return the values at `points` (m, d), which these are, and at `further` (k, d), by the same posterior."""
        across = posterior.covariance(points, further)
        covariance = np.block([[self.covariance, across], [across.T, posterior.covariance(further)]])
        return replace(self, mean=np.append(self.mean, posterior.mean(further)), covariance=covariance)


def hermite(nodes: int) -> Nodes:
    """Return points (nodes, 1) and weights (nodes,) of Gauss-Hermite quadrature for one standard normal, for h = 2."""
    points, weights = hermegauss(nodes)
    return points[:, None], np.asarray(weights / weights.sum())


def sobol_normals(paths: int, steps: int, rng: Generator) -> Nodes:
    """Return scrambled Sobol points made normal (paths, steps), and equal weights; paths is best a power of 2."""
    uniform = next(batches("sobol", paths, steps, rng))[:paths]
    return np.asarray(ndtri(np.clip(uniform, 1e-9, 1 - 1e-9))), np.full(paths, 1.0 / paths)


def rollout(
    belief: JointNormal,
    budget: PlanningBudget,
    horizon: int,
    nodes: Nodes | None = None,
    candidates: Sequence[int] | Indices | None = None,
    infeasible: Infeasible = "restrict",
) -> Array:
    """Return Lambda_h at candidates (k,), indices of the m points (default: all); 0 where one is not affordable.

    nodes: common random numbers of all candidates: `hermite` for h = 2, `sobol_normals` beyond; None for h = 1.
    """
    chosen = np.arange(len(belief.mean)) if candidates is None else np.asarray(candidates, dtype=np.intp)
    variance = np.maximum(belief.covariance.diagonal() + belief.noise, 0.0)
    able, gain = budget.affordable(), expected_improvement(belief.mean, variance, belief.best)
    value = np.where(able, gain, 0.0)[chosen]
    if horizon == 1 or nodes is None:
        return value
    planner = _Planner(belief, budget, horizon, nodes, infeasible == "restrict")
    size = max(1, _CHUNK // (len(nodes[1]) * len(belief.mean)))
    paid = np.flatnonzero(able[chosen])
    for first in range(0, len(paid), size):
        some = paid[first : first + size]
        value[some] += planner.future(chosen[some])
    return value


def base_choice(belief: JointNormal, budget: PlanningBudget, horizon: int, infeasible: Infeasible) -> int:
    """Return the base policy's point with `horizon` steps to go, the first of equals; it may not be affordable."""
    able = budget.affordable()
    variance = np.maximum(belief.covariance.diagonal() + belief.noise, 0.0)
    gain = expected_improvement(belief.mean, variance, belief.best)
    after = _pairs(budget.first, budget.then)
    restrict = infeasible == "restrict"
    continues = not restrict or bool((after <= budget.left[:, None] * SLACK).all(axis=0).any())
    score = gain / np.maximum(budget.price(budget.first), 1e-300) if horizon > 1 and continues else gain
    return int(np.argmax(np.where(able, score, -np.inf) if restrict else score))


def _pairs(first: Array, then: Array) -> Array:
    """Return the costs (b, ..., m) of two steps: a point and the cheapest other point after it."""
    costs = np.array(np.broadcast_to(then, (then.shape[0], then.shape[2], then.shape[2])))
    costs[:, np.arange(costs.shape[1]), np.arange(costs.shape[1])] = np.inf
    return np.asarray(first + costs.min(axis=2).reshape((len(costs),) + (1,) * (first.ndim - 2) + (-1,)))


class _Planner:
    """Simulated paths of some candidates at a time: k candidates, p paths each, m points."""

    def __init__(self, belief: JointNormal, budget: PlanningBudget, horizon: int, nodes: Nodes, restrict: bool) -> None:
        self.belief, self.horizon, self.restrict = belief, horizon, restrict
        self.z, self.weights = nodes
        self.left, self.first, self.then = budget.left * SLACK, budget.first, budget.then
        self.moving = budget.after is not None
        self.price = np.maximum(budget.price(self.then), 1e-300)  # (m or 1, m)
        self.pairs = _pairs(self.then, self.then)  # (b, m or 1, m)
        self.known_below = _KNOWN * float(np.max(belief.covariance.diagonal(), initial=0.0))

    def future(self, candidates: Indices) -> Array:
        """Return what the base policy is expected to add after each candidate (k,)."""
        count, paths = len(candidates), len(self.weights)
        row, spread = self._observed(self.belief.covariance[candidates], candidates)
        z = self.z[:, 0]
        mean = self.belief.mean + row[:, None, :] * z[:, None]
        seen = self.belief.mean[candidates, None] + spread[:, None] * z
        best = np.maximum(seen, self.belief.best)
        variance = (self.belief.covariance.diagonal() - row**2)[:, None, :]
        rows = [row[:, None, :]]
        left = np.repeat((self.left - self.first[:, candidates].T)[:, None, :], paths, axis=1)
        here = np.repeat(candidates[:, None], paths, axis=1)
        total = np.zeros((count, paths))
        for step in range(1, self.horizon):
            last = step == self.horizon - 1
            gain, here, left = self._chosen(mean, variance, best, left, here, last)
            total += gain
            if last:
                break
            mean, variance, best, rows = self._moved(mean, variance, best, rows, here, self.z[:, step])
        return np.asarray(total @ self.weights)

    def _chosen(
        self, mean: Array, variance: Array, best: Array, left: Array, here: Indices, last: bool
    ) -> tuple[Array, Indices, Array]:
        """Take the base policy's step on each path (k, p): expected improvement, point, remaining budget."""
        noisy = np.maximum(variance + self.belief.noise, 0.0)
        gain = expected_improvement(mean, noisy, best[..., None])
        able = self._within(self.then, left, here)
        score = gain if last else gain / self._price(left, here)
        if self.restrict:
            score = np.where(able, score, -1.0)
        point = np.argmax(score, axis=2)
        pays = np.take_along_axis(np.broadcast_to(able, gain.shape), point[..., None], axis=2)[..., 0]
        gain = np.where(pays, np.take_along_axis(gain, point[..., None], axis=2)[..., 0], 0.0)
        cost = self.then[:, here if self.moving else 0, point]  # (b, k, p)
        left = np.where(pays[..., None], left - np.moveaxis(cost, 0, -1), -np.inf)  # a path that cannot pay ends
        return gain, point, left

    def _price(self, left: Array, here: Indices) -> Array:
        """Return the divisor of EI (k, p, m): the price; under "restrict" 1 at the last affordable step."""
        price = self.price[here] if self.moving else self.price
        if not self.restrict:
            return price
        return np.where(self._within(self.pairs, left, here).any(axis=2, keepdims=True), price, 1.0)

    def _within(self, costs: Array, left: Array, here: Indices) -> Mask:
        """Return which costs are affordable (k, p, m), or (k, 1, m) if all paths of a candidate have spent the same."""
        if not self.moving and (left == left[:, :1]).all():
            left = left[:, :1]
        able = np.ones((*left.shape[:2], costs.shape[2]), dtype=np.bool_)
        for budget, cost in enumerate(costs):
            able &= (cost[here] if self.moving else cost) <= left[..., budget, None]
        return able

    def _moved(
        self, mean: Array, variance: Array, best: Array, rows: list[Array], here: Indices, z: Array
    ) -> tuple[Array, Array, Array, list[Array]]:
        """Condition each path on its point."""
        covariance = self.belief.covariance[here]  # (k, p, m)
        for row in rows:
            at = np.take_along_axis(np.broadcast_to(row, covariance.shape), here[..., None], axis=2)
            covariance -= at * row
        row, spread = self._observed(covariance, here)
        seen = np.take_along_axis(mean, here[..., None], axis=2)[..., 0] + spread * z
        return mean + row * z[:, None], variance - row**2, np.maximum(best, seen), [*rows, row]

    def _observed(self, covariance: Array, here: Indices) -> tuple[Array, Array]:
        """Return cov / s (..., m) and s (...,) of the observed points; 0 where the value is known."""
        own = np.take_along_axis(covariance, here[..., None], axis=-1)[..., 0] + self.belief.noise
        known = own <= self.known_below
        spread = np.where(known, 0.0, np.sqrt(np.maximum(own, 0.0)))
        return covariance / np.where(known, np.inf, spread)[..., None], spread


# -- the policy ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Pool:
    """Distinct configurations to plan with, and their points."""

    configs: list[dict[str, Any]]
    points: Array  # (m, dim)

    @classmethod
    def of(cls, history: History, first: Sequence[dict[str, Any]], rng: Generator) -> Pool:
        """Take `first`, then the whole space in random order or a Sobol sample; tried ones only if all are tried."""
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
        """Return new neighbours of the best: normal steps of numbers, any option of other parameters."""
        space = history.problem.space
        tops = self.points[np.argsort(-value, kind="stable")[:_TOPS]]
        scales = np.repeat(_SCALES, _NEAR // len(_SCALES))[None, :, None]
        moved = tops[:, None, :] + scales * rng.standard_normal((len(tops), _NEAR, space.dim))
        return self._new(moved.reshape(len(tops) * _NEAR, space.dim), history)

    def climbed(self, value: Array, of: Callable[[Array], Array], history: History) -> Pool:
        """Return new configurations at the tops that L-BFGS-B reaches from the five best, over continuous parameters.

        of: points (k, dim) -> values (k,).
        """
        space = history.problem.space
        starts = self.points[np.argsort(-value, kind="stable")[:_STARTS]]
        return self._new(ascended(of, starts, np.flatnonzero(space.continuous), space.box), history)

    def _new(self, points: Array, history: History) -> Pool:
        """Return the configurations at points (k, dim) that are in the space, not in this pool and not tried."""
        space = history.problem.space
        configs = space.decode_many(points) if points.size else []
        known, keys = set(space.keys(self.configs)) | history.tried, space.keys(configs) if configs else []
        fresh = [configs[i] for i in _firsts(keys) if keys[i] not in known and space.contains(configs[i])]
        return Pool(fresh, space.encode_many(fresh) if fresh else np.zeros((0, space.dim)))


def ascended(of: Callable[[Array], Array], starts: Array, free: Indices, box: Array) -> Array:
    """Return where L-BFGS-B goes from each start (k, dim) in a box (2, dim); only the coordinates `free` (f,) move.

    of: points (q, dim) -> values (q,), to maximise; a point and its differences are one call.
    """
    found, bounds = np.clip(starts, *box), list(zip(*box[:, free].tolist(), strict=True))
    if not len(free):
        return found[:0]
    for row, start in enumerate(found.copy()):

        def falls(x: Array, start: Array = start) -> tuple[float, Array]:
            steps = np.where(x < 0.5, _DIFFERENCE, -_DIFFERENCE)  # inside the cube
            points = np.tile(start, (1 + len(free), 1))
            points[:, free] = np.vstack([x, x + np.diag(steps)])
            values = of(points)
            return -float(values[0]), -(values[1:] - values[0]) / steps

        ended = minimize(
            falls, start[free], jac=True, method="L-BFGS-B", bounds=bounds,
            options={"maxiter": _STEPS},
        )  # fmt: skip
        found[row, free] = np.clip(ended.x, *box[:, free])
    return found


def _firsts(keys: Sequence[str]) -> list[int]:
    return sorted({key: i for i, key in reversed(list(enumerate(keys)))}.values())


def screened(gain: Array, budget: PlanningBudget, count: int) -> Indices:
    """Return at most `count` positions of m points, ascending: a third with the largest EI (m,) per cost, a third with
    the largest EI, both affordable, and the first of the others, which fill the space."""
    able = budget.affordable()
    price = np.maximum(budget.price(budget.first), 1e-300)
    kept = np.zeros(len(gain), dtype=np.bool_)
    for score in (gain / price, gain):
        order = np.argsort(np.where(able & ~kept, -score, np.inf), kind="stable")
        kept[order[: count // 3]] = True
    rest = np.flatnonzero(~kept)[: max(0, count - int(kept.sum()))]
    return np.sort(np.concatenate([np.flatnonzero(kept), rest]))


@dataclass(frozen=True)
class Rollout(OverTrials):
    """Rollout: plans several trials ahead within the remaining budget (Lee et al. 2021).

    Every trial trains in full. The plan keeps to every budget of the study: time, worker time, money, cost, epochs and
    trials. Its value is multiplied by the probability that its first trial ends in time, because a trial that does not
    is lost.

    Args:
        horizon: number of planned steps, the next one included. 1 looks at no further step: the expected improvement of
            affordable configurations, per cost until the end of the budget, or never with cooled=False. Default: 2.
        affordable: probability with which a trial must fit the remaining budget, in planning and launching: 0.5 is the
            median of the learnt cost, 0.9 is cautious. Default: 0.5.
        infeasible: "restrict" plans with affordable configurations only, "terminate" is the paper's text. Default:
            "restrict".
        cooled: take the budget after the plan into account. While the budget pays for `horizon` trainings of the
            configuration with the largest expected improvement, take the step with the largest
            (Lambda_h(x) - Lambda_{h-1}(base)) / E[cost]: what it adds to the base policy's value, per cost. Afterwards
            take the step with the largest Lambda_h. False is the paper's rule: always the largest Lambda_h, by L-BFGS-B
            from five starts, which spends freely while much is left. Default: True.
        initial: number of first trials in the middle of the space, cheap and far from each other. Default: 3.
        cost: known cost of a configuration: a function (config) or (config, previous config) to a number of at least
            0, in the unit of the budget (seconds, or the cost that trials report). The previous config is None at the
            first trial. Default: None, costs are learnt.
        cost_model: how costs are learnt: "gp", a list of parameters, or a function, as for EI. Default: "gp".
        refit_every: finished trials, beyond 50, between fits. Default: 10.
        paths: number of simulated paths beyond horizon 2; under "terminate", with any horizon, at least 256. Default:
            64.
        points: number of configurations to plan with. Default: 192.

    Raises:
        InvalidInput: for other values, and when the cost model does not fit the space.

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
    _costs: CostOptions = field(init=False, repr=False, compare=False)
    _surrogate: ImprovementSurrogate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_whole("Rollout", 1, horizon=self.horizon, refit_every=self.refit_every)
        check_whole("Rollout", 1, MOST_POINTS, initial=self.initial, paths=self.paths, points=self.points)
        if self.infeasible not in ("restrict", "terminate"):
            raise InvalidInput(
                f"Rollout(infeasible={self.infeasible!r}) is not allowed. Give 'restrict' or 'terminate'."
            )
        costs = CostOptions("Rollout", self.cost, self.cost_model, self.affordable, self.refit_every)
        object.__setattr__(self, "_costs", costs)
        object.__setattr__(self, "_surrogate", ImprovementSurrogate(self.refit_every))

    def start(self, problem: Problem) -> FinishedTrials:
        self._costs.check(problem)
        return ()

    def propose(self, state: FinishedTrials, history: History, rng: Generator) -> Move:
        """Return the initial design, then the best plan of a screened pool and of the neighbours of its best."""
        remaining = RemainingBudget(self._costs, history, state)
        lefts = remaining.lefts
        if empty := [left for left in lefts if left.amount <= 0.0]:
            limit = in_units(history.problem, empty[0].limit, empty[0].unit)
            if history.running:
                return Wait(f"the rest of the budget of {limit} is reserved for the running trials")
            return Finish(f"the budget of {limit} is spent")
        improvement = self._surrogate.improvement(history, state)
        if len(history) < self.initial or improvement is None:
            return self._design(remaining, lefts, rng)
        tops = [improve(history, improvement, rng, cost, candidates=512) for cost in (remaining.log_cost(), None)]
        pool = Pool.of(history, [top.config for top in tops], rng)
        budget = remaining.planning(pool.points, lefts, pairs=False)
        if not budget.affordable().any():
            return self._cheapest(remaining, lefts, rng)
        gain = improvement.expected(pool.points)
        alpha = self._alpha(budget, gain)
        kept = screened(gain, budget, self.points)
        pool = Pool([pool.configs[i] for i in kept], pool.points[kept])
        posterior = improvement.posterior
        nodes: Nodes | None = None
        if self.horizon == 2 and self.infeasible == "restrict":
            nodes = hermite(_NODES)
        elif self.horizon > 1:
            paths = max(self.paths, _CUT) if self.infeasible == "terminate" else self.paths
            nodes = sobol_normals(paths, self.horizon - 1, rng)

        def valued(pool: Pool, some: Indices) -> tuple[PlanningBudget, Array, Array]:
            budget = remaining.planning(pool.points, lefts)
            belief = JointNormal(posterior.mean(pool.points), posterior.covariance(pool.points), improvement.best)
            value = rollout(belief, budget, self.horizon, nodes, some, self.infeasible)
            value *= remaining.chance(pool.points[some], lefts)
            whole, added = np.zeros(len(pool.points)), np.full(len(pool.points), -np.inf)
            whole[some] = value
            more = value - self._without(belief, budget, nodes)
            price = np.maximum(remaining.price(pool.points[some], lefts), 1e-300)
            added[some] = np.where(more > 0.0, more / price**alpha, more)  # a loss is not divided
            return budget, whole, np.where(budget.affordable(), added, -np.inf)

        budget, value, added = valued(pool, np.arange(len(pool.points)))
        if self.cooled:
            near = pool.around(added, history, rng)
        else:
            belief = JointNormal(posterior.mean(pool.points), posterior.covariance(pool.points), improvement.best)

            def of(points: Array, pool: Pool = pool, budget: PlanningBudget = budget) -> Array:
                both, own = belief.joined(posterior, pool.points, points), np.arange(len(points)) + len(pool.points)
                more = remaining.joined(budget, pool.points, points, lefts)
                value = rollout(both, more, self.horizon, nodes, own, self.infeasible)
                return np.asarray(value * remaining.chance(points, lefts))

            near = pool.climbed(added, of, history)
        if len(near.configs):
            first = np.argsort(-added, kind="stable")[: len(near.configs)]
            some = np.concatenate([np.sort(first), len(pool.points) + np.arange(len(near.configs))])
            pool = Pool([*pool.configs, *near.configs], np.vstack([pool.points, near.points]))
            budget, value, added = valued(pool, some)
        chosen = int(np.argmax(added))
        point, costs = pool.points[chosen : chosen + 1], budget.first[:, chosen]
        prediction, own = improvement.prediction(point), float(improvement.expected(point)[0])
        reason = improvement.in_words(prediction, history.problem.goal.metric)
        if self.horizon > 1 and own > 0.0:
            reason += f"; in {plural(self.horizon, 'step')} {float(value[chosen]) / own:.3g} times that"
        reason += ", the largest gain per cost" if alpha else ", the largest gain that is affordable"
        if lefts:
            said = partial(in_units, history.problem)
            taken = (
                f"{said(cost, left.unit, 3).split()[0]} of the {said(left.amount, left.unit, 4)} left"
                for cost, left in zip(costs, lefts, strict=True)
            )
            reason += f"; takes {', '.join(taken)}"
        evidence = {
            "value": float(value[chosen]), "ei": own, **prediction, "horizon": self.horizon, "alpha": alpha,
            "cost": costs.tolist(), "left": [left.amount for left in lefts],
        }  # fmt: skip
        return Start(pool.configs[chosen], reason=reason + AGAIN * tops[0].exhausted, evidence=evidence)

    def judge(self, state: FinishedTrials, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """STOP if the budget of time does not pay for another epoch."""
        budget = history.budget
        epoch = float(np.max(trial.epoch_seconds[-2:], initial=0.0))
        if budget is None or budget.time is None or not len(trial.epochs):
            return continue_("rollout trains each configuration in full")
        now = history.now + float(trial.seconds[-1])
        left = float(budget.time) - history.spent_at(trial.id, now, 0.0).time
        if left < epoch:
            return stop(
                f"training for {history.problem.amount(1)} takes {epoch:.3g} s, and {max(left, 0.0):.3g} s are left",
                left=left,
            )
        return continue_("rollout trains each configuration in full", left=left)

    def _design(self, remaining: RemainingBudget, lefts: list[Left], rng: Generator) -> Move:
        """Return the next of the initial design, or the cheapest configuration if that is not affordable."""
        history = remaining.history
        move = cheap_design(history, remaining.log_cost(), rng)
        point = history.problem.space.encode(move.config)[None]
        if remaining.planning(point, lefts, pairs=False).affordable()[0]:
            return move
        if not len(history) and len(others := [left for left in lefts if left.unit != "epochs"]) < len(lefts):
            return self._design(remaining, others, rng)  # no full training is affordable, but a part of one is
        return self._cheapest(remaining, lefts, rng)

    def _cheapest(self, remaining: RemainingBudget, lefts: list[Left], rng: Generator) -> Move:
        """Return the untried configuration of least predicted cost, or any while costs are unknown."""
        history, log_cost = remaining.history, remaining.log_cost()

        def descent(points: Array) -> tuple[Array, Array]:
            if log_cost is None:
                return np.zeros(len(points)), np.zeros_like(points)
            value, slopes = log_cost(points)
            return -value, -slopes

        config = maximise(descent, history.problem.space, rng, tried=history.tried).config
        point = history.problem.space.encode(config)[None]
        budget = remaining.planning(point, lefts, pairs=False)
        if budget.affordable()[0]:
            return Start(config, reason="the cheapest configuration: hardly any other is affordable")
        costs = budget.first[:, 0]
        left, cost = next((left, c) for left, c in zip(lefts, costs, strict=True) if c > left.amount)
        said = partial(in_units, history.problem, unit=left.unit)
        if history.running and left.aside > 0.0:
            little = f"{said(left.amount, digits=3)} left after the running trials is too little"
            return Wait(f"{little} to start another")
        return Finish(
            f"nothing is affordable: {said(left.amount, digits=4).split()[0]} of {said(left.limit)} are left, and the "
            f"cheapest configuration is expected to take {said(cost, digits=4)}"
        )

    def _without(self, belief: JointNormal, budget: PlanningBudget, nodes: Nodes | None) -> float:
        """Return the base policy's value with one step less.

        Plans are compared with it. If they were not, a useless training that costs almost nothing would have the whole
        value of the steps after it.
        """
        if self.horizon == 1:
            return 0.0
        base = base_choice(belief, budget, self.horizon - 1, self.infeasible)
        return float(rollout(belief, budget, self.horizon - 1, nodes, [base], self.infeasible)[0])

    def _alpha(self, budget: PlanningBudget, gain: Array) -> float:
        """Return the power of cost to divide plans by: 1, or 0 when plans reach the end of the budget.

        They do when it pays for fewer than `horizon` trainings, or two, of what expected improvement (m,) would choose.
        """
        if not self.cooled:
            return 0.0
        expensive = int(np.argmax(np.where(budget.affordable(), gain, -np.inf)))
        return float((budget.left >= max(self.horizon, 2) * budget.first[:, expensive]).all())
