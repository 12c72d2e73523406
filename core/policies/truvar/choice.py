"""Choosing the observation that takes most off the truncated variances, per cost: equation (3) of TruVaR.

Over fixed sites all are compared; where representers stand for a larger space, the sum is over them and the
observation is looked for everywhere (appendix A there).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array, Indices, Mask
from haltune.gp import Posterior
from haltune.gp.gp import solve_lower
from haltune.gp.kernels import input_gradient
from haltune.log.history import History
from haltune.policies.bayesopt.maximiser import maximise
from haltune.policies.costs.models import CostModel

from .belief.belief import SiteBelief
from .belief.levels import Level
from .stages import Aim
from .variance import (
    CovarianceRows,
    anticipated_reduction,
    best_ratio,
    blocks,
    excess_variance,
    truncated_reduction,
)

_ROUNDING = 1e-12  # of the prior variance: a reduction this small is rounding


@dataclass(frozen=True, eq=False)
class Question:
    """All that the choice depends on."""

    belief: SiteBelief  # pending trials counted as seen
    members: Mask  # (n,)
    eta: float  # units of the target
    root: float  # sqrt(beta)
    aim: Aim
    cost: Array  # (k, n) at the sites
    candidates: str | int
    anticipate: bool = False
    learnt: bool = False  # the kernel is

    @property
    def settled(self) -> bool:
        """True when one configuration alone may be the best, by a kernel that more of it would not put to the test."""
        return self.learnt and not self.aim.sets and int(self.members.sum()) == 1

    @property
    def floor(self) -> float:
        """e = eta^2 / beta, squared units of the target."""
        return (self.eta / self.root) ** 2

    @property
    def over(self) -> Array:
        """(n,) excess variances."""
        return excess_variance(self.belief.field.variance, self.floor, self.members)

    @property
    def upper(self) -> Array:
        """(n,) upper confidence bounds."""
        return self.belief.field.mean + self.root * np.sqrt(self.belief.field.variance)


@dataclass(frozen=True)
class Observation:
    """What to observe."""

    level: int
    config: Mapping[str, Any]
    reduction: float  # squared units of the target
    cost: float
    nothing: bool = False  # True: no observation takes anything off; this one is of highest upper bound


def choose_site(question: Question, tried: Mask) -> Observation:
    """The best of the sites. tried: (n,) which were started already, for when nothing takes anything off."""
    field, sites = question.belief.field, question.belief.sites
    allowed = np.flatnonzero(_allowed(question))
    variance, noise, cost = (
        field.variance[allowed],
        question.belief.noise[:, allowed],
        question.cost[:, allowed],
    )
    all_of_them = len(allowed) == len(sites)

    def rows(block: Indices) -> Array:
        cross = field.rows(block)
        return cross if all_of_them else cross[:, allowed]

    if question.anticipate:
        reduction = _anticipated(question, rows, variance, noise)
    else:
        reduction = truncated_reduction(rows, variance, noise, question.over)
    if question.settled or not reduction.max() > _ROUNDING * field.prior:
        return _otherwise(question, tried)
    level, site = best_ratio(reduction, cost)
    config = sites.configs[allowed[site]]
    return Observation(level, config, float(reduction[level, site]), float(cost[level, site]))


def _allowed(question: Question) -> Mask:
    """(n,) what may be observed."""
    if question.candidates == "members":
        return question.members
    if isinstance(question.candidates, int):
        keep = np.zeros(len(question.members), dtype=np.bool_)
        keep[np.argsort(-question.upper, kind="stable")[: question.candidates]] = True
        return keep
    return np.ones(len(question.members), dtype=np.bool_)


def _otherwise(question: Question, tried: Mask) -> Observation:
    """Nothing that matters is uncertain: the site of highest upper bound that was not tried, or of all."""
    among = ~tried if not tried.all() else np.ones_like(tried)
    site = int(np.argmax(np.where(among, question.upper, -np.inf)))
    level = int(np.argmin(question.cost[:, site]))
    return Observation(
        level, question.belief.sites.configs[site], 0.0, float(question.cost[level, site]), True
    )


def _anticipated(question: Question, rows: CovarianceRows, variance: Array, noise: Array) -> Array:
    """Appendix A: members that would be settled if the observation came out at its mean count whole.

    The best lower bound after each observation is itself a maximum over all sites: computed first.
    """
    field, root = question.belief.field, question.root
    every = np.arange(len(question.members))
    after = [_lower_after(question, rows, variance, own, every) for own in noise]
    low, high = question.aim.between(field.mean, root * np.sqrt(field.variance))
    found = []
    for own, best in zip(noise, after, strict=True):

        def kept(drop: Array, block: Indices, best: Array = best) -> Mask:
            width = root * np.sqrt(np.maximum(field.variance[block, None] - drop, 0.0))
            mean = field.mean[block, None]
            if question.aim.sets:
                return np.asarray((mean + width >= low) & (mean - width <= high))
            return np.asarray(mean + width >= best)

        over = np.where(question.members, question.over, -1.0)
        found.append(anticipated_reduction(rows, variance, own[None], over, question.floor, kept)[0])
    return np.array(found)


def _lower_after(
    question: Question, rows: CovarianceRows, variance: Array, noise: Array, every: Any
) -> Array:
    """(m,) the best lower bound of all sites after each of m observations; unused for level sets."""
    best = np.full(len(variance), -np.inf)
    if question.aim.sets:
        return best
    field = question.belief.field
    for block in blocks(every, len(variance)):
        drop = rows(block) ** 2 / np.maximum(noise + variance, 1e-300)
        width = question.root * np.sqrt(np.maximum(field.variance[block, None] - drop, 0.0))
        np.maximum(best, (field.mean[block, None] - width).max(axis=0), out=best)
    return best


@dataclass(frozen=True, eq=False)
class ReductionSurface:
    """Reduction per cost as a function of the point observed, for `maximise`; noise is that of one level."""

    posterior: Posterior
    points: Array  # (m, dim) that matter
    over: Array  # (m,) their excess
    noise: float
    cost: CostModel | None
    after: Array | None  # where the search stands, for costs that depend on it

    @classmethod
    def of(
        cls, question: Question, noise: float, cost: CostModel | None, after: Array | None
    ) -> ReductionSurface:
        """With the unsaturated representers alone."""
        kept = question.over > 0.0
        belief = question.belief
        return cls(belief.posterior, belief.sites.points[kept], question.over[kept], noise, cost, after)

    def __call__(self, points: Array, /) -> tuple[Array, Array]:
        """Values (q,) and gradients (q, dim) at points (q, dim).

        With C the covariance of the m representers and a point, s = noise + v: the terms that are not clipped
        are C^2 / s, whose gradient is 2 C / s dC - C^2 / s^2 dv, and C = k(R, x) - A' k(X, x), A = K^-1 k(X, R).
        """
        p, scales = self.posterior, self.posterior.kernel.lengthscales
        near, near_slope = p.kernel.with_slope(points, self.points)
        seen, seen_slope = p.kernel.with_slope(points, p.X)
        half = solve_lower(p.factor, p.kernel(p.X, self.points))
        solved = solve_lower(p.factor, half, transposed=True)
        cross = near - seen @ solved
        found = p.predict_with_gradient(points)
        total = np.maximum(found.variance + self.noise, 1e-300)[:, None]
        part = cross**2 / total
        free = part < self.over
        value = np.minimum(part, self.over).sum(axis=1)
        pull = np.where(free, 2.0 * cross / total, 0.0)
        gradient = input_gradient(pull * near_slope, points, self.points, scales)
        gradient -= input_gradient((pull @ solved.T) * seen_slope, points, p.X, scales)
        gradient -= (np.where(free, part, 0.0).sum(axis=1) / total[:, 0])[:, None] * found.variance_gradient
        return self._per_cost(points, value, gradient)

    def _per_cost(self, points: Array, value: Array, gradient: Array) -> tuple[Array, Array]:
        if self.cost is None:
            return value, gradient
        price = self.cost.predict(points, self.after).median
        _, slopes = self.cost.gradient(points)
        return value / price, (gradient - value[:, None] * slopes) / price[:, None]


def choose_anywhere(
    question: Question,
    history: History,
    levels: tuple[Level, ...],
    cost: CostModel | None,
    after: Array | None,
    rng: Generator,
) -> Observation:
    """The best configuration of the space, at the best level: first over the representers, then uphill from there.

    Of the representers alone where candidates are limited to some of them, or noise differs from point to point.
    """
    field, sites, noise = question.belief.field, question.belief.sites, question.belief.noise
    if question.candidates != "all" or question.anticipate or (noise != noise[:, :1]).any():
        return choose_site(question, sites.tried(history.tried))
    reduction = truncated_reduction(field.rows, field.variance, noise, question.over)
    if question.settled or not reduction.max() > _ROUNDING * field.prior:
        return _otherwise(question, sites.tried(history.tried))
    ratio = reduction / question.cost
    level = int(np.argmax(ratio.max(axis=1)))
    around = [sites.configs[i] for i in np.argsort(-ratio[level], kind="stable")[:4]]
    surface = ReductionSurface.of(question, float(noise[level, 0]), cost, after)
    found = maximise(surface, history.problem.space, rng, tried=history.tried, around=around, candidates=256)
    price = (
        1.0
        if cost is None
        else float(cost.predict(history.problem.space.encode(found.config)[None], after).median[0])
    )
    return Observation(level, found.config, found.value * price, price * levels[level].cost)
