"""TruVaR's choice: stages, confidence sets, members and reductions (Bogunovic et al. 2016, algorithms 1 and 2).

A stage is the paper's epoch (here an epoch is part of a training). Stage i starts at time t_(i). In it a point is
known if sqrt(beta_(i)) sigma is at most eta_(i); both change from stage to stage:

    eta_(i) = eta r^(i-1),  beta_(i) = a log(|D| t_(i)^2),  t_(1) = 1,  t_(i+1) = t + 1

after t observations. Deviations are in units of the prior's: k(x, x) = 1. (14) needs
beta = 2 log(|D| C^2 pi^2 / (6 delta c_min^2)) with C the cost at the end of the stage. `theorem` takes the cost so far
instead, with which lemma C.1 holds at every time.

The stages are read from the decisions in the log. If members may come back, they are a function of the current
posterior. If not, they are the intersection over all decisions, recomputed from the first that is not cached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import numpy as np
from numpy.random import Generator
from scipy.linalg import blas

from haltune._utils.arrays import Array, Indices, Mask
from haltune._utils.memo import Memo
from haltune.gp import Posterior
from haltune.gp.gp import solve_lower
from haltune.gp.kernels import input_gradient
from haltune.log.events import Event, Started
from haltune.log.history import History
from haltune.log.policy import FinishedTrials, fold_over
from haltune.policies.acquisition import maximise
from haltune.policies.costs import CostOptions, GPCost, KnownCost, fit_gp, full_cost, within_reach

from .belief import Level, SiteBelief, SiteSurrogate, data_keys

_REFIT_COSTS = 10  # finished trials between fits of the costs


@dataclass(frozen=True, slots=True)
class Stage:
    number: int = 1  # i
    since: int = 1  # t_(i)


@dataclass(frozen=True, slots=True)
class Confidence:
    """Confidence bounds by stage. a: factor of beta; delta: probability that the bound of `theorem` fails."""

    a: float
    beta_form: Literal["practical", "theorem", "constant"] = "practical"  # constant: beta is a
    delta: float = 0.1
    eta: float = 1.0  # of the first stage, prior deviations; 0: all variance always counts
    r: float = 0.1
    slack: float = 0.0  # the paper's delta-bar
    floor: float = 1e-6  # lower limit of eta, prior deviations; without it noiseless data would lower eta without end

    def eta_of(self, stage: Stage) -> float:
        return self.eta * self.r ** (stage.number - 1)

    def beta_of(self, stage: Stage, size: int, spent: float) -> float:
        """Return beta_(i) for `size` points. spent: cost so far over the smallest cost, used by `theorem`."""
        if self.beta_form == "theorem":
            return 2.0 * math.log(size * max(spent, 1.0) ** 2 * math.pi**2 / (6.0 * self.delta))
        if self.beta_form == "constant":
            return self.a
        # A single point has log 1 = 0: it would count as known before any observation.
        return self.a * math.log(max(size, 2) * stage.since**2)

    def after(self, stage: Stage, widest: float, seen: int, size: int, spent: float) -> Stage:
        """Return the stage after `seen` observations; widest: the largest deviation of a member, prior deviations."""
        while self.eta_of(stage) > self.floor:
            width = math.sqrt(self.beta_of(stage, size, spent)) * widest
            if width > (1.0 + self.slack) * self.eta_of(stage):
                break
            stage = Stage(stage.number + 1, seen + 1)
        return stage

    def accuracy(self, stage: Stage) -> float:
        """Return epsilon = 4 (1 + slack) eta of the last complete stage, prior deviations (theorem 3.1); inf before."""
        if stage.number == 1:
            return math.inf
        return 4.0 * (1.0 + self.slack) * self.eta_of(Stage(stage.number - 1))


def potential_maximisers(mean: Array, width: Array, among: Mask) -> Mask:
    """Return (5): points among these whose upper bound reaches the best lower bound. width (n,): sqrt(beta) sigma."""
    best = float(np.max(mean - width, where=among, initial=-np.inf))
    return np.asarray(among & (mean + width >= best))


@dataclass(frozen=True, slots=True)
class Aim:
    """Goal of the search: a threshold, in units of the target, or the maximum if neither is given. Larger is better.

    share: the threshold is this share of the maximum of f (Gotovos et al. 2013, section 5).
    """

    threshold: float | None = None
    share: float | None = None

    @classmethod
    def of(cls, threshold: float | None, implicit: float | None, sign: float) -> Aim:
        """Build from the options, in units of the metric. A loss is good below best / implicit."""
        share = None if implicit is None else implicit if sign > 0 else 1.0 / implicit
        return cls(None if threshold is None else sign * threshold, share)

    @property
    def sets(self) -> bool:
        return self.threshold is not None or self.share is not None

    def between(self, mean: Array, width: Array) -> tuple[float, float]:
        """Return bounds of the threshold: [h, h], or the interval given by the bounds on the maximum."""
        if self.threshold is not None or self.share is None:
            h = -math.inf if self.threshold is None else self.threshold
            return h, h
        ends = self.share * float((mean - width).max()), self.share * float((mean + width).max())
        return min(ends), max(ends)

    def open(self, mean: Array, width: Array, among: Mask) -> Mask:
        """Return the points among these that are not settled: (5), or (6), those that may be on either side."""
        if not self.sets:
            return potential_maximisers(mean, width, among)
        low, high = self.between(mean, width)
        return np.asarray(among & (mean + width >= low) & (mean - width <= high))

    def members(self, mean: Array, width: Array, among: Mask) -> Mask:
        """Return M: the open points; under an implicit threshold also those that may be the maximum that sets it."""
        found = self.open(mean, width, among)
        if self.share is None or not found.any():
            return found
        return found | potential_maximisers(mean, width, np.ones_like(found))


@dataclass(frozen=True)
class Prices:
    """Cost of an observation: 1, a function (config) or (config, previous), or learnt; times the level's cost."""

    options: CostOptions
    learnt: bool
    levels: tuple[Level, ...]
    _fits: Memo[GPCost] = field(default_factory=lambda: Memo(1), repr=False, compare=False)

    def of(self, history: History, finished: FinishedTrials, points: Array) -> Array:
        """Return costs (k, n) at points (n, dim) for each level."""
        factors = np.array([level.cost for level in self.levels])[:, None]
        model = self.model(history, finished)
        if model is None:
            return factors * np.ones(len(points))
        own = model.predict(points, self.options.standing(history)).median
        return factors * np.maximum(own, 1e-12)  # because reductions are divided by the cost

    def model(self, history: History, finished: FinishedTrials) -> GPCost | KnownCost | None:
        """Return the model of a configuration's cost at a level of cost 1; None: 1."""
        if self.options.cost is not None:
            return KnownCost(self.options.cost, history.problem.space)
        unit = self.options.unit(history)
        costs = [(id, c) for id in finished if (c := full_cost(history, id, unit)) > 0.0]
        if not self.learnt or not costs:
            return None
        costs = costs[: max(len(costs) - len(costs) % _REFIT_COSTS, min(len(costs), _REFIT_COSTS))]
        points = history.points[[id for id, _ in costs]]
        relative = np.array([c / self._factor(history, id) for id, c in costs])

        def fitted() -> GPCost:
            return fit_gp(points, within_reach(relative), rng=history.rng("fit", len(costs), 2))

        key = history.seed, history.problem.space, points.tobytes(), relative.tobytes()
        return self._fits(key, fitted)

    def spent(self, history: History, ids: FinishedTrials, least: float) -> float:
        """Return the cost of these trials, in units of the least cost of an observation."""
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
    """A past decision: the number of observations before it, their cost, and its stage."""

    seen: int
    spent: float  # in units of the least cost of an observation
    stage: Stage


@dataclass
class TruVaRState:
    """The trials that ended and the past decisions, in log order."""

    finished: FinishedTrials = ()
    looks: tuple[Look, ...] = ()

    @property
    def stage(self) -> Stage:
        return self.looks[-1].stage if self.looks else Stage()

    def take(self, event: Event) -> None:
        if isinstance(event, Started) and "stage" in event.evidence:
            e = event.evidence
            look = Look(int(e["seen"]), float(e["spent"]), Stage(int(e["stage"]), int(e["since"])))
            self.looks = (*self.looks, look)
        self.finished = fold_over(self.finished, event)


@dataclass(eq=False)
class MemberSet:
    """Algorithm 2 over the posteriors of a surrogate. threshold, implicit: as the policy's, in units of the metric."""

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
        """Return M_t (n,), with the beta of the last decision's stage.

        If members do not come back, it is among those that all decisions so far left, from the last that is cached.
        """
        looks = state.looks if self.monotone and belief.sites.fixed else ()
        known, cached = len(looks), None
        while known and (cached := self._sets.get(_key(history, state.finished, looks[:known]))) is None:
            known -= 1
        aim, among = self.aim_of(history), np.ones(len(belief.sites), dtype=np.bool_) if cached is None else cached
        before = looks[known - 1].stage if known else Stage()
        for look in looks[known:]:
            if (then := self.surrogate.belief(history, state.finished[: look.seen])) is not None:
                among = aim.members(then.field.mean, self.width(before, then, look.spent), among)
            before = look.stage
        return aim.members(belief.field.mean, self.width(state.stage, belief, spent), among)

    def open(self, history: History, state: TruVaRState, belief: SiteBelief, spent: float) -> Mask:
        """Return the members that are not settled (not those that only set an implicit threshold)."""
        every, width = self.members(history, state, belief, spent), self.width(state.stage, belief, spent)
        return self.aim_of(history).open(belief.field.mean, width, every)

    def why_no_share(self, history: History, belief: SiteBelief) -> str | None:
        """Return why the implicit threshold divides nothing, or None if it does."""
        best, aim = float(belief.field.mean.max()), self.aim_of(history)
        if aim.share is None or aim.share * best <= best:
            return None
        return (
            f"implicit={self.implicit} is a share of the best value, which is about "
            f"{history.problem.goal.sign * best:.3g}. A share needs values above 0: give a threshold instead."
        )

    def for_threshold(self, threshold: float | None) -> MemberSet:
        """Return the same surrogate for another threshold, or None for the maximum."""
        confidence = Confidence(0.5 if threshold is None else 1.0)
        matters = partial(may_matter, confidence, threshold, None, self.surrogate.count)
        surrogate = replace(self.surrogate, sets=threshold is not None, threshold=threshold, matters=matters)
        return MemberSet(confidence, threshold, None, surrogate, self.prices, monotone=False)

    def root(self, stage: Stage, belief: SiteBelief, spent: float) -> float:
        return math.sqrt(self.confidence.beta_of(stage, self._size(belief), spent))

    def width(self, stage: Stage, belief: SiteBelief, spent: float) -> Array:
        """Return sqrt(beta) sigma (n,)."""
        return self.root(stage, belief, spent) * np.sqrt(belief.field.variance)

    def advance(self, stage: Stage, belief: SiteBelief, members: Mask, spent: float) -> Stage:
        """Return the stage after these members: the same or a later one."""
        widest = float(np.sqrt(belief.field.variance[members].max())) / belief.scale
        return self.confidence.after(stage, widest, belief.seen, self._size(belief), spent)

    def accuracy(self, history: History, stage: Stage, belief: SiteBelief) -> float:
        """Return epsilon of definition 3.1 after the last complete stage, units of the target; inf before one.

        Everything left is within epsilon of the best, or within epsilon / 2 of the threshold. An implicit threshold
        adds its share of the error of the best: members are known to w = (1 + slack) eta, so the best to 2 w, the
        threshold to 2 |share| w, and an open point is at most 2 w (1 + |share|) from it.
        """
        share = self.aim_of(history).share
        return self.confidence.accuracy(stage) * belief.scale * (1.0 if share is None else 1.0 + abs(share))

    def spent(self, history: History, state: TruVaRState, belief: SiteBelief) -> float:
        """Return the cost of the observations in units of the least cost, or their number if beta needs no cost."""
        if self.confidence.beta_form != "theorem":
            return float(belief.seen)
        least = float(self.prices.of(history, state.finished, belief.sites.points).min())
        return self.prices.spent(history, state.finished, least)

    def cache_members(self, history: History, state: TruVaRState, look: Look, members: Mask) -> None:
        if self.monotone and self.surrogate.sites_of(history.problem) is not None:
            self._sets.put(_key(history, state.finished, (*state.looks, look)), members)

    def _size(self, belief: SiteBelief) -> int:
        """Return |D|; corollary 3.2 counts every level."""
        return len(belief.sites) * (len(self.surrogate.levels) if self.confidence.beta_form == "theorem" else 1)


def may_matter(
    confidence: Confidence, threshold: float | None, implicit: float | None, size: int, posterior: Posterior,
    seen: int, sign: float, points: Array,
) -> Mask:  # fmt: skip
    """Return which points (m, dim) may be members after `seen` observations, if a stage of `size` points started."""
    mean, variance = posterior.predict(points)
    width = np.sqrt(confidence.beta_of(Stage(1, seen + 1), size, seen + 1.0) * variance)
    return Aim.of(threshold, implicit, sign).members(mean, width, np.ones(len(points), dtype=np.bool_))


def _key(history: History, finished: FinishedTrials, looks: tuple[Look, ...]) -> Any:
    return history.problem, history.seed, looks, data_keys(history, finished[: looks[-1].seen])


# -- reductions ----------------------------------------------------------------------------------

# Truncated variance reduction: the observation with the largest reduction, per cost, of the variances that still count.
#
# Notation (Bogunovic, Scarlett, Krause, Cevher, "Truncated Variance Reduction", NIPS 2016): M are the members, v_i the
# posterior variance of f at point i, C the posterior covariance, e = eta^2 / beta the floor below which a variance no
# longer counts, `over` d_i = max(v_i - e, 0) in M and 0 outside. Equation (3),
#
#     sum_M max(v_i, e) - sum_M max(v_i - C_ij^2 / (noise_j + v_j), e),
#
# with the rank-one form (18) of the variance after observing j, is term by term
#
#     sum over the rows with d_i > 0 of  min(C_ij^2 / (noise_j + v_j), d_i),
#
# which has no cancellation and never touches saturated rows. `noise` may be a matrix (k, n): a row for each noise
# level. Over fixed sites all are compared. If representers replace a larger space, the sum is over them and the
# observation is searched in the whole space (their appendix A).

CovarianceRows = Callable[[Indices], Array]  # indices (b,) of points -> covariances (b, n) with all candidates
_ENTRIES, _THIN = 40_000, 16  # entries of a block, so that it stays in the second-level cache, and its fewest rows
_NO_ZERO = 1e-300  # smallest divisor, for a point that is known exactly and reduces nothing
_ROUNDING = 1e-12  # of the prior variance: a smaller reduction is rounding


def excess_variance(variance: Array, floor: float, members: Mask) -> Array:
    """Return d (n,), the excess of each variance over the floor; 0 outside the members."""
    return np.where(members, np.maximum(variance - floor, 0.0), 0.0)


def truncated_reduction(rows: CovarianceRows, variance: Array, noise: Array, over: Array) -> Array:
    """Return the reduction (k, n) by each of n candidates at each of k noise levels.

    rows: covariances of points with the candidates, by blocks. variance: (n,) of the candidates. noise:
    (k, n) variances of an observation of each. over: (m,) excess of the m points of `rows`.
    O(k u n) for u unsaturated points.
    """
    scale = np.maximum(noise + variance, _NO_ZERO)
    total = np.zeros_like(scale)
    # The divisor s is taken out of the sum, min(C^2, d s) / s, and BLAS computes d s: passes over whole blocks are
    # twice as fast as those that repeat a row or a column.
    square, bound = np.empty((2, _size(len(variance)), len(variance)))
    for block in _blocks(np.flatnonzero(over > 0.0), len(variance)):
        squares, bounds = square[: len(block)], bound[: len(block)]
        np.square(rows(block), out=squares)
        for level, own in enumerate(scale):
            blas.dgemm(1.0, own[:, None], over[None, block], 0.0, bounds.T, overwrite_c=1)
            np.minimum(squares, bounds, out=bounds)
            total[level] += np.ones(len(block)) @ bounds  # by BLAS: twice as fast as a sum
    return np.asarray(total / scale)


def anticipated_reduction(
    rows: CovarianceRows,
    variance: Array,
    noise: Array,
    over: Array,
    floor: float,
    kept: Callable[[Array, Indices], Mask],
) -> Array:
    """Return the reduction (k, n) with the second sum of (3) over the members after each observation (appendix A).

    kept: variances (b, n) of the points of a block after each observation -> (b, n) True if the point would stay a
    member if the observation equals its mean. A member that would leave counts with its whole max(v, e).
    """
    members = np.flatnonzero(over >= 0.0)  # over is negative outside the members
    inverse = 1.0 / np.maximum(noise + variance, _NO_ZERO)
    total = np.zeros_like(inverse)
    for block in _blocks(members, len(variance)):
        cross = rows(block)
        own = over[block, None] + floor  # max(v_i, e)
        for level, scale in enumerate(inverse):
            drop = cross * cross * scale
            stays = kept(drop, block)
            total[level] += np.where(stays, np.minimum(drop, over[block, None]), own).sum(axis=0)
    return total


def _blocks(indices: Indices, columns: int) -> Iterator[Indices]:
    """Split indices (m,) into blocks, for rows with this many columns."""
    size = _size(columns)
    for first in range(0, len(indices), size):
        yield indices[first : first + size]


def _size(columns: int) -> int:
    return max(_THIN, _ENTRIES // max(columns, 1))


def best_ratio(reduction: Array, cost: Array) -> tuple[int, int]:
    """Return (level, candidate) of the largest reduction per cost, both (k, n); the first of equals up to rounding.

    Sums whose terms have all saturated differ only by rounding.
    """
    ratio = reduction / cost
    level, candidate = np.unravel_index(int(np.argmax(ratio >= ratio.max() * (1.0 - 1e-12))), ratio.shape)
    return int(level), int(candidate)


@dataclass(frozen=True)
class Observation:
    level: int
    config: Mapping[str, Any]
    reduction: float  # squared units of the target
    cost: float
    nothing: bool = False  # True: no observation reduces the variance; this one has the highest upper bound


@dataclass(frozen=True, eq=False)
class ObservationChoice:
    """Choice of the next observation, and all that it depends on."""

    belief: SiteBelief  # pending trials count as observed
    members: Mask  # (n,)
    eta: float  # units of the target
    root: float  # sqrt(beta)
    aim: Aim
    cost: Array  # (k, n) at the sites
    candidates: str | int
    anticipate: bool = False
    learnt: bool = False  # True: the kernel is learnt

    @property
    def floor(self) -> float:
        """e = eta^2 / beta, squared units of the target."""
        return (self.eta / self.root) ** 2

    @cached_property
    def over(self) -> Array:
        return excess_variance(self.belief.field.variance, self.floor, self.members)

    @property
    def upper(self) -> Array:
        return self.belief.field.mean + self.root * np.sqrt(self.belief.field.variance)

    def of_sites(self, tried: Mask) -> Observation:
        """Return the best of the sites. tried: (n,) sites that were started, to avoid if nothing reduces variance."""
        field, sites = self.belief.field, self.belief.sites
        allowed = np.arange(len(sites))
        if self.candidates == "members":
            allowed = np.flatnonzero(self.members)
        elif isinstance(self.candidates, int):
            allowed = np.sort(np.argsort(-self.upper, kind="stable")[: self.candidates])
        variance, noise = field.variance[allowed], self.belief.noise[:, allowed]

        def rows(block: Indices) -> Array:
            cross = field.rows(block)
            return cross if len(allowed) == len(sites) else cross[:, allowed]

        if self.anticipate:
            reduction = self._anticipated(rows, variance, noise)
        else:
            reduction = truncated_reduction(rows, variance, noise, self.over)
        if self._nothing_gained(reduction):
            return self._otherwise(tried)
        cost = self.cost[:, allowed]
        level, site = best_ratio(reduction, cost)
        config = sites.configs[allowed[site]]
        return Observation(level, config, float(reduction[level, site]), float(cost[level, site]))

    def anywhere(
        self,
        history: History,
        levels: tuple[Level, ...],
        cost: GPCost | KnownCost | None,
        after: Array | None,
        rng: Generator,
    ) -> Observation:
        """Return the best configuration of the space at the best level: first over representers, then by ascent.

        Only representers are compared if candidates are limited to some of them or noise differs between points.
        after: the previous configuration, for costs that depend on it.
        """
        field, sites, noise = self.belief.field, self.belief.sites, self.belief.noise
        if self.candidates != "all" or self.anticipate or (noise != noise[:, :1]).any():
            return self.of_sites(sites.tried(history.tried))
        reduction = truncated_reduction(field.rows, field.variance, noise, self.over)
        if self._nothing_gained(reduction):
            return self._otherwise(sites.tried(history.tried))
        ratio = reduction / self.cost
        level = int(np.argmax(ratio.max(axis=1)))
        around = [sites.configs[i] for i in np.argsort(-ratio[level], kind="stable")[:4]]
        space, kept = history.problem.space, self.over > 0.0
        unit = float(ratio[level].max()) * levels[level].cost
        surface = ReductionSurface(
            self.belief.posterior, sites.points[kept], self.over[kept], float(noise[level, 0]), cost, after, unit
        )
        found = maximise(surface, space, rng, tried=history.tried, around=around, candidates=256)
        price = 1.0
        if cost is not None:
            price = float(cost.predict(space.encode(found.config)[None], after).median[0])
        return Observation(level, found.config, found.value * unit * price, price * levels[level].cost)

    def _nothing_gained(self, reduction: Array) -> bool:
        """Return True if no reduction is above rounding, or if only one member remains under a learnt kernel."""
        settled = self.learnt and not self.aim.sets and int(self.members.sum()) == 1
        return settled or not reduction.max() > _ROUNDING * self.belief.field.prior

    def _otherwise(self, tried: Mask) -> Observation:
        """Return the untried site with the highest upper bound; if all were tried, the site with the highest."""
        among = ~tried if not tried.all() else np.ones_like(tried)
        site = int(np.argmax(np.where(among, self.upper, -np.inf)))
        level = int(np.argmin(self.cost[:, site]))
        return Observation(level, self.belief.sites.configs[site], 0.0, float(self.cost[level, site]), True)

    def _anticipated(self, rows: CovarianceRows, variance: Array, noise: Array) -> Array:
        """Return reductions by appendix A: members that an observation at its mean would settle count whole.

        The best lower bound after each observation is itself a maximum over all sites, so it is computed first.
        """
        field, root, every = self.belief.field, self.root, np.arange(len(self.members))
        low, high = self.aim.between(field.mean, root * np.sqrt(field.variance))
        over = np.where(self.members, self.over, -1.0)
        found = []
        for own in noise:
            best = np.full(len(variance), -np.inf)
            for block in () if self.aim.sets else _blocks(every, len(variance)):
                drop = rows(block) ** 2 / np.maximum(own + variance, _NO_ZERO)
                width = root * np.sqrt(np.maximum(field.variance[block, None] - drop, 0.0))
                np.maximum(best, (field.mean[block, None] - width).max(axis=0), out=best)

            def kept(drop: Array, block: Indices, best: Array = best) -> Mask:
                width = root * np.sqrt(np.maximum(field.variance[block, None] - drop, 0.0))
                mean = field.mean[block, None]
                if self.aim.sets:
                    return np.asarray((mean + width >= low) & (mean - width <= high))
                return np.asarray(mean + width >= best)

            found.append(anticipated_reduction(rows, variance, own[None], over, self.floor, kept)[0])
        return np.array(found)


@dataclass(frozen=True, eq=False)
class ReductionSurface:
    """Reduction per cost as a function of the observed point, for `maximise`, at one noise level.

    It is in units of the best representer's, because the tolerances of an ascent suit values of about 1.
    """

    posterior: Posterior
    points: Array  # (m, dim) members with excess variance
    over: Array  # (m,) their excess
    noise: float
    cost: GPCost | KnownCost | None
    after: Array | None  # the previous configuration, for costs that depend on it
    unit: float = 1.0  # squared units of the target per cost

    def __call__(self, points: Array, /) -> tuple[Array, Array]:
        """Return values (q,) and gradients (q, dim) at points (q, dim).

        With C the covariance of the m representers and a point, s = noise + v: a term that is not clipped is C^2 / s
        with gradient 2 C / s dC - C^2 / s^2 dv, and C = k(R, x) - A' k(X, x), A = K^-1 k(X, R).
        """
        p, scales = self.posterior, self.posterior.kernel.lengthscales
        near, near_slope = p.kernel.with_slope(points, self.points)
        seen, seen_slope = p.kernel.with_slope(points, p.X)
        half = solve_lower(p.factor, p.kernel(p.X, self.points))
        solved = solve_lower(p.factor, half, transposed=True)
        cross = near - seen @ solved
        found = p.predict_with_gradient(points)
        total = np.maximum(found.variance + self.noise, _NO_ZERO)[:, None]
        part = cross**2 / total
        free = part < self.over
        value = np.minimum(part, self.over).sum(axis=1)
        pull = np.where(free, 2.0 * cross / total, 0.0)
        gradient = input_gradient(pull * near_slope, points, self.points, scales)
        gradient -= input_gradient((pull @ solved.T) * seen_slope, points, p.X, scales)
        gradient -= (np.where(free, part, 0.0).sum(axis=1) / total[:, 0])[:, None] * found.variance_gradient
        value, gradient = value / self.unit, gradient / self.unit
        if self.cost is None:
            return value, gradient
        price = self.cost.predict(points, self.after).median
        _, slopes = self.cost.gradient(points, self.after)
        return value / price, (gradient - value[:, None] * slopes) / price[:, None]
