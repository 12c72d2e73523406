"""What policies over an `Outlook` do alike: begin, end, count pending trials as seen, price, and word a start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array, Mask
from haltune._utils.checks import check_whole, is_number, within
from haltune._utils.memo import Memo
from haltune.errors import InvalidInput, NotSupported
from haltune.gp import Kernel
from haltune.log.decisions import Finish, Move, Start
from haltune.log.folds import Finished
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.policies.costs.gp_models import fit_gp
from haltune.policies.costs.models import CostModel, KnownCost, name_of, within_reach
from haltune.policies.costs.observed import full_cost
from haltune.policies.costs.remaining import RemainingBudget
from haltune.policies.random import fresh

from .belief.belief import Belief, Matters, Outlook
from .belief.field import field_of
from .belief.levels import ONLY, Level, levels_from
from .belief.places import LARGEST, is_grid

if TYPE_CHECKING:
    from .members import Narrowing, Progress

_REFIT = 10  # finished trials between fits of the costs


class Surveying(Policy[Any]):
    """The options of a policy over an outlook, with what they are where it has them not."""

    kernel: Any
    mean: float
    noise: Any
    refit_every: int
    initial: int | None
    grid: Any
    representers: int
    threshold: float | None = None
    implicit: float | None = None
    levels: Sequence[Level | Mapping[str, Any]] = ()
    cost: Callable[..., float] | None = None
    cost_model: str | None = None


@dataclass(frozen=True)
class Prices:
    """What an observation costs: 1, a function (config) or (config, previous), or learnt; times its level's cost."""

    remaining: RemainingBudget
    learnt: bool
    levels: tuple[Level, ...]
    _fits: Memo[CostModel] = field(default_factory=lambda: Memo(1), repr=False, compare=False)

    def of(self, history: History, finished: Finished, points: Array) -> Array:
        """(k, n) at points (n, dim) for each level."""
        factors = np.array([level.cost for level in self.levels])[:, None]
        model = self.model(history, finished)
        if model is None:
            return factors * np.ones(len(points))
        own = model.predict(points, self.remaining.standing(history)).median
        return factors * np.maximum(own, 1e-12)  # what is free is divided by, too

    def model(self, history: History, finished: Finished) -> CostModel | None:
        """The cost of a configuration at a level of cost 1; None: 1."""
        if self.remaining.cost is not None:
            return KnownCost(self.remaining.cost, history.problem.space)
        unit = self.remaining.unit(history)
        costs = [(id, c) for id in finished if (c := full_cost(history, id, unit)) > 0.0]
        if not self.learnt or not costs:
            return None
        costs = costs[: max(len(costs) - len(costs) % _REFIT, min(len(costs), _REFIT))]

        def fitted() -> CostModel:
            relative = within_reach(np.array([c / self._factor(history, id) for id, c in costs]))
            points = [history.point(id) for id, _ in costs]
            return fit_gp(points, relative, rng=history.rng("fit", len(costs), 2))

        return self._fits((history.seed, tuple(costs)), fitted)

    def spent(self, history: History, ids: Finished, least: float) -> float:
        """What these trials cost, in units of the least cost an observation can have."""
        if self.remaining.cost is None:
            return float(sum(self._factor(history, id) for id in ids)) / least
        model = KnownCost(self.remaining.cost, history.problem.space)
        after = [None, *(history.trial(id).config for id in ids)]
        own = [
            model.of([history.trial(id).config], before)[0] for id, before in zip(ids, after, strict=False)
        ]
        return float(sum(c * self._factor(history, id) for id, c in zip(ids, own, strict=True))) / least

    def _factor(self, history: History, id: int) -> float:
        name = history.trial(id).tags.get("level")
        return next((level.cost for level in self.levels if level.name == name), 1.0)


@dataclass(frozen=True, eq=False)
class Standing:
    """What a decision goes by."""

    belief: Belief
    spent: float
    members: Mask  # (n,), not empty


def standing(
    policy: Surveying, narrowing: Narrowing, state: Progress, history: History, rng: Generator
) -> Standing | Move:
    """What is known, or a move that needs no more: of the initial design, or the end when nothing is open.

    Nothing open after few observations says more of the kernel learnt from them: all places stay members then.
    """
    belief, initial = narrowing.outlook.belief(history, state.finished), first_of(policy)
    if belief is None or len(history) < initial:
        return begin(history, narrowing.outlook, initial, rng)
    spent = narrowing.spent(history, state, belief)
    members = narrowing.members(history, state, belief, spent)
    if enough(policy, belief):
        if not members.any():
            classified = f"all {len(belief.places)} configurations are classified"
            return Finish(narrowing.vain(history, belief) or classified)
        if narrowing.aims.sets and belief.field.variance[members].max() <= belief.exact:
            near = narrowing.root(state.stage, belief, spent) * belief.exact**0.5
            return Finish(f"{int(members.sum())} configurations lie within {near:.2g} of the threshold")
    return Standing(belief, spent, members if members.any() else ~members)


def begin(history: History, outlook: Outlook, count: int, rng: Generator) -> Start:
    """The next of `count` trials at scrambled Sobol configurations, moved to the nearest place not tried.

    Where levels have to be estimated, the first configuration is measured twice at each of them.
    """
    repeated = _estimated(outlook.levels)
    plan = [(0, level) for level in repeated for _ in range(2)]
    cheap = min(outlook.levels, key=lambda level: level.cost)
    initial = count - max(len(plan) - 1, 0)  # configurations
    plan += [(k, cheap) for k in range(bool(repeated), initial)]
    number = len(history)
    k, level = plan[number] if number < len(plan) else (number, cheap)
    space = history.problem.space
    design = space.sample_up_to(max(initial, 1), history.rng("design"), design="sobol")
    config: Mapping[str, Any] = design[k] if k < len(design) else fresh(history, rng)
    places = outlook.places_of(history.problem)
    again = number < len(repeated) * 2
    if places is not None:
        apart = np.linalg.norm(places.points - space.encode(config), axis=1)
        tried = places.tried(history.tried)
        config = places.configs[int(np.argmin(apart + np.where(tried & (not again), 1e3, 0.0)))]
    elif not again and space.key(config) in history.tried:
        config = fresh(history, rng)
    return Start(config, tags=tags_of(level), reason=f"initial design of {len(plan)}")


def with_pending(history: History, belief: Belief, outlook: Outlook) -> Belief:
    """The belief as if the trials that run had come out at their mean: their neighbours are less uncertain."""
    pending = history.pending
    if not pending:
        return belief
    levels = [outlook.level_of(history, trial.id) for trial in pending]
    if not belief.places.fixed:
        points = np.array([history.point(trial.id) for trial in pending])
        noise = belief.noise[levels].mean(axis=1)
        posterior = belief.posterior.condition(points, belief.posterior.mean(points), noise)
        return replace(belief, posterior=posterior, field=field_of(posterior, belief.places.points))
    believed = belief.field.copy()
    for trial, level in zip(pending, levels, strict=True):
        place = belief.places.number.get(history.problem.space.key(trial.config))
        if place is not None:
            believed.observe(place, float(believed.mean[place]), float(belief.noise[level, place]))
    return replace(belief, field=believed)


def check_survey(name: str, policy: Surveying) -> None:
    """Raise InvalidInput for options that all policies over an outlook have, where they are not what they can be."""
    check_whole(name, 1, refit_every=policy.refit_every)
    check_whole(name, 8, representers=policy.representers)
    if policy.initial is not None:
        check_whole(name, 0, initial=policy.initial)
    noise, levels = policy.noise, _levels(policy)
    if isinstance(noise, Mapping) or isinstance(policy.grid, Mapping):
        raise NotSupported(
            f"{name} has a noise function or a list of configurations, of which a log keeps a name or a digest alone: "
            "build the policy with it in your program"
        )
    if policy.representers > LARGEST:
        raise InvalidInput(f"{name}(representers={policy.representers!r}): at most {LARGEST:,}")
    if not (policy.grid is None or is_grid(policy.grid)):
        raise InvalidInput(
            f"{name}(grid={policy.grid!r}): how many values a continuous parameter takes, or a list of configurations"
        )
    if not is_number(policy.mean):
        raise InvalidInput(f"{name}(mean={policy.mean!r}): a finite value of the metric")
    if not (noise is None or callable(noise) or noise == 0 or within(noise, 0.0)):
        raise InvalidInput(f"{name}(noise={noise!r}): a variance, 0 or more, or None to learn it")
    if isinstance(policy.kernel, Kernel):
        unknown = any(level.noise is None for level in levels) if levels else noise is None
        if unknown:
            raise InvalidInput(
                f"{name}: a given kernel comes with known noise: give noise=, or that of all levels"
            )


def outlook_of(policy: Surveying, matters: Matters | None = None) -> Outlook:
    """The belief that a policy's options describe."""
    only = ONLY if policy.noise is None else replace(ONLY, noise=0.0)
    return Outlook(
        policy.kernel, policy.mean, policy.noise, _levels(policy) or (only,), policy.refit_every,
        max(1, first_of(policy)), policy.grid, policy.representers,
        policy.threshold is not None or policy.implicit is not None, policy.threshold, matters,
    )  # fmt: skip


def first_of(policy: Surveying) -> int:
    """Trials before the first decision: the initial configurations, and repeats of the first."""
    given = 1 if isinstance(policy.kernel, Kernel) else 3
    initial = given if policy.initial is None else int(policy.initial)
    repeats = 2 * len(_estimated(_levels(policy)))
    return initial + max(repeats - 1, 0)


def _estimated(levels: tuple[Level, ...]) -> list[Level]:
    """The levels whose noise repeats have to tell; a single one's is learnt with the kernel."""
    return [level for level in levels if level.noise is None] if len(levels) > 1 else []


def check_threshold(name: str, threshold: float | None, problem: Problem) -> None:
    """Raise InvalidInput for a threshold that no value of the metric can be on both sides of."""
    goal = problem.goal
    if (
        threshold is not None
        and goal.bounds is not None
        and not goal.bounds[0] <= threshold <= goal.bounds[1]
    ):
        low, high = goal.bounds
        raise InvalidInput(f"{name}(threshold={threshold:g}): {goal.metric} goes from {low:g} to {high:g}")


def enough(policy: Surveying, belief: Belief) -> bool:
    """Whether so much was seen that nothing may be left: a kernel learnt from less is a guess that can be too sure."""
    coordinates = belief.places.points.shape[1]
    return isinstance(policy.kernel, Kernel) or belief.seen >= min(5 * (coordinates + 1), len(belief.places))


def _levels(policy: Surveying) -> tuple[Level, ...]:
    return levels_from(policy.levels)


def prices_of(name: str, policy: Surveying, levels: tuple[Level, ...]) -> Prices:
    """What observations cost. Raises InvalidInput for a cost that is neither a function nor learnt."""
    if policy.cost_model not in (None, "gp"):
        raise InvalidInput(f"{name}(cost_model={policy.cost_model!r}): 'gp' to learn costs, or None")
    return Prices(RemainingBudget(name, policy.cost), policy.cost_model == "gp", levels)


def function_to_json(option: Any) -> Any:
    """A function by its name; what else it is as it is."""
    return {"function": name_of(option)} if callable(option) else option


def tags_of(level: Level) -> dict[str, Any]:
    """What tells a training its level."""
    return {} if level.name == ONLY.name else {"level": level.name}


def kernel_from(name: str, kernel: Any) -> Any:
    """A kernel, its kind, or either from JSON. Raises InvalidInput for anything else."""
    if isinstance(kernel, Mapping):
        return Kernel(kernel["kind"], float(kernel["variance"]), np.array(kernel["lengthscales"]))
    if isinstance(kernel, Kernel) or kernel in ("se", "matern32", "matern52"):
        return kernel
    raise InvalidInput(
        f"{name}(kernel={kernel!r}): 'se', 'matern32' or 'matern52' to learn one, or a haltune.gp.Kernel"
    )


def kernel_to_json(kernel: Any) -> Any:
    """The inverse of `kernel_from`."""
    if not isinstance(kernel, Kernel):
        return kernel
    return {"kind": kernel.kind, "variance": kernel.variance, "lengthscales": kernel.lengthscales.tolist()}
