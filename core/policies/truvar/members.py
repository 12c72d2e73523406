"""Stages, confidence sets and members of TruVaR (Bogunovic et al. 2016, algorithms 1 and 2), replayed from the log.

A stage is the paper's epoch (an epoch here is one of a training). In stage i, which began at time t_(i), points
count as known once sqrt(beta_(i)) sigma is at most eta_(i); both change from stage to stage:

    eta_(i) = eta r^(i-1),  beta_(i) = a log(|D| t_(i)^2),  t_(1) = 1,  t_(i+1) = t + 1

after t observations. All deviations here are in units of the prior's: k(x, x) = 1. (14) asks for
beta = 2 log(|D| C^2 pi^2 / (6 delta c_min^2)) with C the cost by the end of the stage: `theorem` takes the cost
spent by now, so that lemma C.1 holds at every time.

The stages are what the log's decisions recorded. Members that may come back are a function of the belief now; those
that may not are the intersection over all decisions, made again from the first one that is not in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np

from haltune._utils.arrays import Array, Mask
from haltune._utils.memo import Memo
from haltune.gp import Posterior
from haltune.log.events import Event, Started
from haltune.log.history import History
from haltune.log.policy import FinishedTrials, fold_over
from haltune.policies.costs import CostOptions, GPCost, KnownCost, fit_gp, full_cost, within_reach

from .belief import Level, SiteBelief, SiteSurrogate, data_keys

_REFIT_COSTS = 10  # finished trials between fits of the costs


@dataclass(frozen=True, slots=True)
class Stage:
    number: int = 1  # i
    since: int = 1  # t_(i)


@dataclass(frozen=True, slots=True)
class Confidence:
    """How stages narrow. a: factor of beta; delta: probability that `theorem` may fail."""

    a: float
    beta_form: Literal["practical", "theorem", "constant"] = "practical"  # constant: beta is a
    delta: float = 0.1
    eta: float = 1.0  # of the first stage, prior deviations; 0: all variance counts, always
    r: float = 0.1
    slack: float = 0.0  # the paper's delta-bar
    floor: float = 1e-6  # prior deviations: eta goes no lower, or noiseless data would lower it for ever

    def eta_of(self, stage: Stage) -> float:
        return self.eta * self.r ** (stage.number - 1)

    def beta_of(self, stage: Stage, size: int, spent: float) -> float:
        """beta_(i) for `size` points; spent: cost by now over the smallest cost, for `theorem` alone."""
        if self.beta_form == "theorem":
            return 2.0 * math.log(size * max(spent, 1.0) ** 2 * math.pi**2 / (6.0 * self.delta))
        if self.beta_form == "constant":
            return self.a
        # A single point has log 1 = 0: it would count as known before it was seen.
        return self.a * math.log(max(size, 2) * stage.since**2)

    def after(self, stage: Stage, widest: float, seen: int, size: int, spent: float) -> Stage:
        """The stage after `seen` observations; widest: the largest deviation of a member, prior deviations."""
        while self.eta_of(stage) > self.floor:
            width = math.sqrt(self.beta_of(stage, size, spent)) * widest
            if width > (1.0 + self.slack) * self.eta_of(stage):
                break
            stage = Stage(stage.number + 1, seen + 1)
        return stage

    def accuracy(self, stage: Stage) -> float:
        """epsilon = 4 (1 + slack) eta of the last stage that ended, prior deviations (theorem 3.1); inf before."""
        if stage.number == 1:
            return math.inf
        return 4.0 * (1.0 + self.slack) * self.eta_of(Stage(stage.number - 1))


def potential_maximisers(mean: Array, width: Array, among: Mask) -> Mask:
    """(5): the points among these whose upper bound reaches the best lower bound; width = sqrt(beta) sigma, (n,)."""
    best = float(np.max(mean - width, where=among, initial=-np.inf))
    return np.asarray(among & (mean + width >= best))


def unclassified(mean: Array, width: Array, low: float, high: float, among: Mask) -> Mask:
    """(6): the points among these not yet known to lie above or below a threshold somewhere in [low, high]."""
    return np.asarray(among & (mean + width >= low) & (mean - width <= high))


@dataclass(frozen=True, slots=True)
class Aim:
    """What is looked for. Larger is better; threshold in units of the target; neither: the maximum.

    share: the threshold is this times the maximum of f (Gotovos et al. 2013, section 5).
    """

    threshold: float | None = None
    share: float | None = None

    @classmethod
    def of(cls, threshold: float | None, implicit: float | None, sign: float) -> Aim:
        """From the options, in units of the metric. A loss is good below best / implicit."""
        share = None if implicit is None else implicit if sign > 0 else 1.0 / implicit
        return cls(None if threshold is None else sign * threshold, share)

    @property
    def sets(self) -> bool:
        return self.threshold is not None or self.share is not None

    def between(self, mean: Array, width: Array) -> tuple[float, float]:
        """Where the threshold lies: [h, h], or the interval that the bounds on the maximum leave."""
        if self.threshold is not None or self.share is None:
            h = -math.inf if self.threshold is None else self.threshold
            return h, h
        ends = self.share * float((mean - width).max()), self.share * float((mean + width).max())
        return min(ends), max(ends)

    def open(self, mean: Array, width: Array, among: Mask) -> Mask:
        """The points among these that are not settled: (5) or (6)."""
        if not self.sets:
            return potential_maximisers(mean, width, among)
        low, high = self.between(mean, width)
        return unclassified(mean, width, low, high, among)

    def members(self, mean: Array, width: Array, among: Mask) -> Mask:
        """M: the open points; under an implicit threshold also those that may be the maximum that sets it."""
        found = self.open(mean, width, among)
        if self.share is None or not found.any():
            return found
        return found | potential_maximisers(mean, width, np.ones_like(found))


@dataclass(frozen=True)
class Prices:
    """What an observation costs: 1, a function (config) or (config, previous), or learnt; times its level's cost."""

    options: CostOptions
    learnt: bool
    levels: tuple[Level, ...]
    _fits: Memo[GPCost] = field(default_factory=lambda: Memo(1), repr=False, compare=False)

    def of(self, history: History, finished: FinishedTrials, points: Array) -> Array:
        """(k, n) at points (n, dim) for each level."""
        factors = np.array([level.cost for level in self.levels])[:, None]
        model = self.model(history, finished)
        if model is None:
            return factors * np.ones(len(points))
        own = model.predict(points, self.options.standing(history)).median
        return factors * np.maximum(own, 1e-12)  # what is free is divided by, too

    def model(self, history: History, finished: FinishedTrials) -> GPCost | KnownCost | None:
        """The cost of a configuration at a level of cost 1; None: 1."""
        if self.options.cost is not None:
            return KnownCost(self.options.cost, history.problem.space)
        unit = self.options.unit(history)
        costs = [(id, c) for id in finished if (c := full_cost(history, id, unit)) > 0.0]
        if not self.learnt or not costs:
            return None
        costs = costs[: max(len(costs) - len(costs) % _REFIT_COSTS, min(len(costs), _REFIT_COSTS))]

        def fitted() -> GPCost:
            relative = within_reach(np.array([c / self._factor(history, id) for id, c in costs]))
            points = np.array([history.points[id] for id, _ in costs])
            return fit_gp(points, relative, rng=history.rng("fit", len(costs), 2))

        return self._fits((history.seed, history.problem.space, tuple(costs)), fitted)

    def spent(self, history: History, ids: FinishedTrials, least: float) -> float:
        """The cost of these trials, in units of the least cost an observation can have."""
        factors = [self._factor(history, id) for id in ids]
        if self.options.cost is None:
            return float(sum(factors)) / least
        model, previous, costs = KnownCost(self.options.cost, history.problem.space), None, []
        for id in ids:
            config = history.trial(id).config
            costs.append(model.of([config], previous)[0])
            previous = config
        return float(sum(c * factor for c, factor in zip(costs, factors, strict=True))) / least

    def _factor(self, history: History, id: int) -> float:
        name = history.trial(id).tags.get("level")
        return next((level.cost for level in self.levels if level.name == name), 1.0)


@dataclass(frozen=True, slots=True)
class Look:
    """A decision that was made: after how many observations, what they had cost, and the stage it found."""

    seen: int
    spent: float  # in units of the least cost of an observation
    stage: Stage


@dataclass
class TruVaRState:
    """The trials that ended, and the decisions that were made, in log order."""

    finished: FinishedTrials = ()
    looks: tuple[Look, ...] = ()

    @property
    def stage(self) -> Stage:
        return self.looks[-1].stage if self.looks else Stage()

    def take(self, event: Event) -> None:
        """Take up the next event of the log."""
        if isinstance(event, Started) and "stage" in event.evidence:
            e = event.evidence
            look = Look(int(e["seen"]), float(e["spent"]), Stage(int(e["stage"]), int(e["since"])))
            self.looks = (*self.looks, look)
        self.finished = fold_over(self.finished, event)


@dataclass(eq=False)
class MemberSet:
    """Algorithm 2 over the beliefs of a surrogate. threshold, implicit: what is looked for, units of the metric."""

    confidence: Confidence
    threshold: float | None
    implicit: float | None
    surrogate: SiteSurrogate
    prices: Prices
    monotone: bool
    _sets: Memo[Mask] = field(default_factory=lambda: Memo(5))

    @property
    def sets(self) -> bool:
        return self.threshold is not None or self.implicit is not None

    def aim_of(self, history: History) -> Aim:
        return Aim.of(self.threshold, self.implicit, history.problem.goal.sign)

    def members(self, history: History, state: TruVaRState, belief: SiteBelief, spent: float) -> Mask:
        """M_t (n,), with the beta of the stage that the last decision found."""
        among = np.ones(len(belief.sites), dtype=np.bool_)
        if self.monotone and belief.sites.fixed:
            among = self._standing(history, state)
        return self._found(history, belief, state.stage, spent, among)

    def open(self, history: History, state: TruVaRState, belief: SiteBelief, spent: float) -> Mask:
        """The members that are not settled; under an implicit threshold others may set it."""
        every = self.members(history, state, belief, spent)
        width = self.root(state.stage, belief, spent) * np.sqrt(belief.field.variance)
        return self.aim_of(history).open(belief.field.mean, width, every)

    def vain(self, history: History, belief: SiteBelief) -> str | None:
        """Why no share of the best divides good from bad, if none does."""
        best, aim = float(belief.field.mean.max()), self.aim_of(history)
        if aim.share is None or aim.share * best <= best:
            return None
        return (
            f"implicit={self.implicit} is a share of the best, and the best is about "
            f"{history.problem.goal.sign * best:.3g}: a share needs values above 0; give a threshold instead"
        )

    def towards(self, threshold: float | None) -> MemberSet:
        """The same beliefs for another question."""
        confidence = Confidence(0.5 if threshold is None else 1.0)
        matters = partial(may_matter, confidence, threshold, None, self.surrogate.count)
        surrogate = replace(self.surrogate, sets=threshold is not None, threshold=threshold, matters=matters)
        return MemberSet(confidence, threshold, None, surrogate, self.prices, monotone=False)

    def root(self, stage: Stage, belief: SiteBelief, spent: float) -> float:
        return math.sqrt(self.confidence.beta_of(stage, self._size(belief), spent))

    def advance(self, stage: Stage, belief: SiteBelief, members: Mask, spent: float) -> Stage:
        """The stage that these members begin, or the same."""
        widest = float(np.sqrt(belief.field.variance[members].max())) / belief.scale
        return self.confidence.after(stage, widest, belief.seen, self._size(belief), spent)

    def spent(self, history: History, state: TruVaRState, belief: SiteBelief) -> float:
        """The cost of the observations, in units of the least cost; their number where beta does not need it."""
        if self.confidence.beta_form != "theorem":
            return float(belief.seen)
        least = float(self.prices.of(history, state.finished, belief.sites.points).min())
        return self.prices.spent(history, state.finished, least)

    def remember(self, history: History, state: TruVaRState, look: Look, members: Mask) -> None:
        """Save the next decision the way back to these members."""
        if self.monotone:
            self._sets.put(_key(history, state.finished, (*state.looks, look)), members)

    def _size(self, belief: SiteBelief) -> int:
        """|D|, of which corollary 3.2 counts every level."""
        return len(belief.sites) * (
            len(self.surrogate.levels) if self.confidence.beta_form == "theorem" else 1
        )

    def _found(self, history: History, belief: SiteBelief, stage: Stage, spent: float, among: Mask) -> Mask:
        width = self.root(stage, belief, spent) * np.sqrt(belief.field.variance)
        return self.aim_of(history).members(belief.field.mean, width, among)

    def _standing(self, history: History, state: TruVaRState) -> Mask:
        """The members that the decisions so far left: from the last of them that is in memory."""
        known, found = len(state.looks), None
        while known and (found := self._sets.get(_key(history, state.finished, state.looks[:known]))) is None:
            known -= 1
        every = np.ones(len(self.surrogate.sites_of(history.problem) or ()), dtype=np.bool_)
        among = every if found is None else found
        for number in range(known, len(state.looks)):
            look = state.looks[number]
            belief = self.surrogate.belief(history, state.finished[: look.seen])
            before = state.looks[number - 1].stage if number else Stage()
            if belief is not None:
                among = self._found(history, belief, before, look.spent, among)
        return among


def may_matter(
    confidence: Confidence, threshold: float | None, implicit: float | None, size: int, posterior: Posterior,
    points: Array, seen: int, sign: float,
) -> Mask:  # fmt: skip
    """Which points (m, dim) may be members after `seen` observations, as if a stage of `size` points began."""
    mean, variance = posterior.predict(points)
    width = np.sqrt(confidence.beta_of(Stage(1, seen + 1), size, seen + 1.0) * variance)
    return Aim.of(threshold, implicit, sign).members(mean, width, np.ones(len(points), dtype=np.bool_))


def _key(history: History, finished: FinishedTrials, looks: tuple[Look, ...]) -> Any:
    return history.problem, history.seed, looks, data_keys(history, finished[: looks[-1].seen])
