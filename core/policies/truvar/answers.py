"""Results of a search with TruVaR's posterior: a level set with rules, or the configurations that may be the best.

Probabilities are of the posterior under the learnt kernel; the practical beta of the policy guarantees none. Rules
describe a region of a space by boxes of parameters, found by repeated cuts (as in PRIM).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from haltune._utils.arrays import Array, Mask
from haltune._utils.checks import is_number
from haltune._utils.signals import undisturbed
from haltune._utils.threads import one_thread
from haltune.display import plural, preformatted, visible
from haltune.errors import InvalidInput
from haltune.gp.gp import factorise
from haltune.log.decisions import Config
from haltune.log.events import Event
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.space import Space
from haltune.space.domains import Choice, Constant

from .belief import SiteBelief
from .choice import Look, MemberSet, Stage, TruVaRState
from .policy import TruVaR, check_threshold

_DRAWS = 2000  # joint samples
_JOINT = 500  # configurations that are sampled together: those with the highest upper bounds
_CUTS = 20  # of a number, compared at each step
_GAIN = 1.005  # a cut must raise the measure by this factor; smaller gains only make the rule longer
_WORTH = 0.05  # share of the region that a further rule must add
_BETA2 = 0.25  # beta^2 of F_beta


@dataclass(frozen=True)
class Rule:
    """A box: parameter -> (lowest, highest), or a list of the allowed options; others have no condition."""

    conditions: Mapping[str, Any]
    coverage: float  # share of the region that is in the box
    precision: float  # share of the box that is in the region

    def holds(self, config: Mapping[str, Any]) -> bool:
        """Return True if a configuration is in the box. A parameter that it does not have is not checked."""
        return all(_fits(config[name], kept) for name, kept in self.conditions.items() if name in config)

    def __str__(self) -> str:
        conditions = " and ".join(_condition(name, kept) for name, kept in self.conditions.items()) or "anything"
        return visible(f"{conditions}  (covers {self.coverage:.0%} of the region, precision {self.precision:.0%})")


def describe(space: Space, configs: Sequence[Mapping[str, Any]], probability: Array, most: int = 3) -> tuple[Rule, ...]:
    """Return at most `most` rules for a region, to which each of n configurations belongs with a probability (n,).

    Later rules describe what earlier rules leave. There is none if the region is empty in expectation.
    """
    columns: dict[str, NDArray[Any]] = {}
    for name, domain in space.parameters.items():
        if not isinstance(domain, Constant):
            columns[name] = np.fromiter((config.get(name) for config in configs), object, len(configs))
    choices = {n for n, d in space.parameters.items() if isinstance(d, Choice)}
    total, left = float(probability.sum()), probability.copy()
    rules: list[Rule] = []
    while len(rules) < most and left.sum() > _WORTH * total and total > 0.5:
        box, conditions = _grown(columns, choices, left)
        inside = float(probability[box].sum())
        if left[box].sum() < _WORTH * total or inside < 0.5 * box.sum():
            break
        rules.append(Rule(conditions, inside / total, inside / float(box.sum())))
        left = np.where(box, 0.0, left)
    return tuple(rules)


Cut = tuple[str, str, Mask]  # parameter, side, and the configurations that are kept


def _grown(columns: Mapping[str, NDArray[Any]], choices: set[str], weight: Array) -> tuple[Mask, dict[str, Any]]:
    box = np.ones(len(weight), dtype=np.bool_)
    best = _measure(box, weight)
    made: set[tuple[str, str]] = set()
    while True:
        cuts = [cut for name, column in columns.items() for cut in _cuts(name, column, name in choices, box)]
        scored = [(_measure(box & kept, weight), i) for i, (_, _, kept) in enumerate(cuts)]
        value, index = max(scored, key=lambda s: (s[0], -s[1]), default=(0.0, 0))
        if not value > best * _GAIN:
            return box, _conditions(columns, made, box)
        name, side, kept = cuts[index]
        box, best = box & kept, value
        made.add((name, side))


def _cuts(name: str, column: NDArray[Any], choice: bool, box: Mask) -> list[Cut]:
    """Return the cuts that are possible. A configuration without the parameter is always kept."""
    absent = _absent(column)
    inside = column[box & ~absent]
    if choice:
        options = {repr(v): v for v in inside}
        shown = np.array([repr(value) for value in column], dtype=object)
        return [(name, "", absent | (shown != option)) for option in options] if len(options) > 1 else []
    values = np.unique(inside.astype(np.float64))
    if len(values) < 2:
        return []
    number = np.where(absent, np.nan, column).astype(np.float64)
    steps = values[np.unique(np.linspace(0, len(values) - 1, _CUTS).astype(int))]
    low = [(name, "low", absent | (number >= v)) for v in steps[1:]]
    return low + [(name, "high", absent | (number <= v)) for v in steps[:-1]]


def _measure(box: Mask, weight: Array) -> float:
    inside, total, size = float(weight[box].sum()), float(weight.sum()), float(box.sum())
    return (1.0 + _BETA2) * inside / (_BETA2 * total + size) if size else 0.0


def _conditions(columns: Mapping[str, NDArray[Any]], made: set[tuple[str, str]], box: Mask) -> dict[str, Any]:
    """Return the conditions on each parameter after the cuts; None at an end that was not cut."""
    found: dict[str, Any] = {}
    for name, column in columns.items():
        inside = column[box & ~_absent(column)]
        if (name, "") in made:
            found[name] = list({repr(v): v for v in inside}.values())
        elif {(name, "low"), (name, "high")} & made:
            low = min(inside) if (name, "low") in made else None
            found[name] = (low, max(inside) if (name, "high") in made else None)
    return found


def _fits(value: Any, kept: Any) -> bool:
    if isinstance(kept, list):
        return value in kept
    low, high = kept
    return bool((low is None or value >= low) and (high is None or value <= high))


def _condition(name: str, kept: Any) -> str:
    if isinstance(kept, list):
        return f"{name} is {' or '.join(map(repr, kept))}"
    low, high = kept
    if low is None or high is None:
        return f"{name} <= {high:.4g}" if low is None else f"{name} >= {low:.4g}"
    if low == high:
        return f"{name} = {low:.4g}"
    return f"{low:.4g} <= {name} <= {high:.4g}"


def _absent(column: NDArray[Any]) -> Mask:
    return np.array([value is None for value in column], dtype=np.bool_)


@dataclass(frozen=True, eq=False)
class LevelSet:
    """Which of n configurations reach a threshold. Arrays are (n,), values in units of the metric."""

    space: Space
    metric: str
    threshold: float  # an implicit one at the best mean
    larger: bool  # True: high is above the threshold; False, for a goal to minimise: below
    configs: Sequence[Config]
    probability: Array  # that it reaches the threshold
    mean: Array
    sd: Array
    open: Mask  # not settled by the policy's confidence bounds

    @property
    def reaches(self) -> Mask:
        """(n,) True if the mean reaches the threshold, settled or not."""
        return self.mean >= self.threshold if self.larger else self.mean <= self.threshold

    @property
    def high(self) -> list[tuple[Config, float]]:
        """Configurations that reach it, with the probability; the most certain first."""
        return self._listed(~self.open & self.reaches, -self.probability)

    @property
    def low(self) -> list[tuple[Config, float]]:
        """Configurations that do not, with the probability that they do; the most certain first."""
        return self._listed(~self.open & ~self.reaches, self.probability)

    @property
    def undecided(self) -> list[tuple[Config, float]]:
        """Configurations that are not settled, with the probability that they reach it; the likeliest first."""
        return self._listed(self.open, -self.probability)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """Boxes that describe the high region, each with coverage and precision."""
        return describe(self.space, self.configs, self.probability)

    def boundary(self, across: str, along: str) -> tuple[Array, Array, Array]:
        """Return values of two parameters and the highest probability (rows: `along`) over all others: for contours."""
        pairs = [(c.get(across), c.get(along)) for c in self.configs]
        there = [(x, y) for x, y in pairs if x is not None and y is not None]
        xs, ys = sorted({x for x, _ in there}), sorted({y for _, y in there})
        if not xs or not ys:
            raise InvalidInput(
                f"No configuration has both parameters {across!r} and {along!r}. Give two parameters of the space."
            )
        field = np.full((len(ys), len(xs)), np.nan)
        for (x, y), p in zip(pairs, self.probability, strict=True):
            if x is not None and y is not None:
                i, j = ys.index(y), xs.index(x)
                field[i, j] = p if np.isnan(field[i, j]) else max(field[i, j], p)
        return np.array(xs), np.array(ys), field

    def _repr_html_(self) -> str:
        return preformatted(self)

    def __str__(self) -> str:
        n, side = len(self.configs), "at least" if self.larger else "at most"
        counts = f"{len(self.high)} reach it, {len(self.low)} do not, {len(self.undecided)} are undecided"
        lines = [f"{self.metric} {side} {self.threshold:.4g}: of {plural(n, 'configuration')}, {counts}."]
        if self.rules:
            lines[0] += " Rules for the region (undecided configurations count by probability):"
        return visible("\n".join(lines + [f"  {rule}" for rule in self.rules]))

    __repr__ = __str__  # the dataclass's own would list hundreds of configurations

    def _listed(self, among: Mask, order: Array) -> list[tuple[Config, float]]:
        ranked = np.argsort(order, kind="stable")
        return [(self.configs[i], float(self.probability[i])) for i in ranked if among[i]]


@dataclass(frozen=True, eq=False)
class Maximisers:
    """The configurations that may be the best by the policy's bounds; arrays (m,), in order of decreasing mean."""

    configs: Sequence[Config]
    mean: Array  # units of the metric
    sd: Array
    probability: Array  # to be the best of all, from joint samples
    epsilon: float  # 4 (1 + slack) eta of the last complete stage; inf before
    shortfall: Array  # (draws,) joint samples of the first one's distance to the best, units of the metric
    space: Space
    metric: str
    others: Sequence[Config]  # sites that are not the best by these bounds
    others_mean: Array  # units of the metric

    def epsilon_at(self, probability: float) -> float:
        """Return the distance to the best that the first keeps with a probability; InvalidInput outside (0, 1)."""
        if not 0.0 < probability < 1.0:
            raise InvalidInput(f"probability={probability!r} is not between 0 and 1. Give one, such as 0.95.")
        return float(np.quantile(self.shortfall, probability))

    def _repr_html_(self) -> str:
        return preformatted(self)

    def __str__(self) -> str:
        return (
            f"{plural(len(self.configs), 'configuration')} may be the best; {dict(self.configs[0])} is within "
            f"{self.epsilon_at(0.95):.3g} of it with probability 0.95"
        )

    __repr__ = __str__


def level_set(history: History, log: Iterable[Event], policy: Policy[Any], threshold: float | None = None) -> LevelSet:
    """Return the level set of a search at the policy's own threshold or another.

    If the policy has no surrogate over sites, TruVaR's is used. Raises InvalidInput without a threshold, if the best
    value has no share to reach, and if too few trials have finished.
    """
    own = policy.part(MemberSet) if history.problem.plain else None  # with several goals each weight vector has its own
    if threshold is None and (own is None or not own.sets):
        raise InvalidInput(f"{type(policy).__name__} has no threshold. Give one: study.level_set(threshold=0.92).")
    if threshold is not None and not is_number(threshold):
        raise InvalidInput(
            f"level_set(threshold={threshold!r}) is not a number. Give a finite value of the metric, such as 0.92."
        )
    check_threshold("level_set", threshold, history.problem)
    member_set, state, belief = _known(history, log, own, threshold, as_asked=threshold is None)
    if (why := member_set.why_no_share(history, belief)) is not None:
        raise InvalidInput(why)
    spent = member_set.spent(history, state, belief)
    sign, field = history.problem.goal.sign, belief.field
    sd = np.sqrt(field.variance)
    aim, _ = member_set.aim_of(history).between(field.mean, 0.0 * sd)
    probability = ndtr((field.mean - aim) / np.maximum(sd, 1e-12 * belief.scale))
    return LevelSet(
        history.problem.space, history.problem.goal.metric, sign * aim, sign > 0, belief.sites.configs,
        np.asarray(probability), sign * field.mean, sd, member_set.open(history, state, belief, spent),
    )  # fmt: skip


def maximisers(history: History, log: Iterable[Event], policy: Policy[Any]) -> Maximisers:
    """Return the configurations that may be the best. Raises InvalidInput if too few trials have finished."""
    own = policy.part(MemberSet) if history.problem.plain else None
    member_set, state, belief = _known(history, log, own, None, as_asked=False)
    spent = member_set.spent(history, state, belief)
    among = member_set.members(history, state, belief, spent)
    stage = member_set.advance(state.stage, belief, among, spent)
    members, others = np.flatnonzero(among), np.flatnonzero(~among)
    members = members[np.argsort(-belief.field.mean[members], kind="stable")]
    # joint samples of the `_JOINT` highest upper bounds, members or not; the rest count as never the best
    field, rng = belief.field, history.rng("design", 2)
    upper = field.mean + 3.0 * np.sqrt(field.variance)
    drawn = np.unique(np.concatenate([members[:1], np.argsort(-upper, kind="stable")[:_JOINT]]))
    root, _ = factorise(field.rows(drawn)[:, drawn], field.prior)
    draws = field.mean[drawn] + rng.standard_normal((_DRAWS, len(drawn))) @ root.T
    best = np.bincount(drawn[np.argmax(draws, axis=1)], minlength=len(field.mean)) / _DRAWS
    shortfall = draws.max(axis=1) - draws[:, int(np.searchsorted(drawn, members[0]))]
    mean = history.problem.goal.sign * field.mean
    return Maximisers(
        [belief.sites.configs[int(i)] for i in members], mean[members], np.sqrt(field.variance[members]), best[members],
        member_set.confidence.accuracy(stage) * belief.scale, shortfall,
        history.problem.space, history.problem.goal.metric,
        [belief.sites.configs[int(i)] for i in others], mean[others],
    )  # fmt: skip


def _known(
    history: History, log: Iterable[Event], own: MemberSet | None, threshold: float | None, as_asked: bool
) -> tuple[MemberSet, TruVaRState, SiteBelief]:
    """Return the posterior after a log. If the goal is not the policy's own, a stage starts now."""
    member_set = own or TruVaR(initial=1).part(MemberSet)
    assert member_set is not None
    with undisturbed, one_thread, undisturbed.heard:
        state = TruVaRState()
        for event in log:
            state.take(event)
        if not as_asked and (member_set.threshold, member_set.implicit) != (threshold, None):
            member_set, seen = member_set.for_threshold(threshold), len(state.finished)
            state = TruVaRState(state.finished, (Look(seen, float(seen), Stage(1, seen + 1)),))
        belief = member_set.surrogate.belief(history, state.finished)
    if belief is None:
        raise InvalidInput("Too few trials have finished for a model. Ask again when more have.")
    return member_set, state, belief
