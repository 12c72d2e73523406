"""Truncated variance reduction: the observation that takes most off the variances that still matter, per cost.

Notation (Bogunovic, Scarlett, Krause, Cevher, "Truncated Variance Reduction", NIPS 2016): M are the points that
matter, v_i the posterior variance of f at point i, C the posterior covariance, e the floor below which a
variance counts no more (eta^2 / beta there), `over` d_i = max(v_i - e, 0) in M and 0 outside. Equation (3),

    sum_M max(v_i, e) - sum_M max(v_i - C_ij^2 / (noise_j + v_j), e),

with the rank-one form (18) of the variance after observing j, is term by term

    sum over the rows with d_i > 0 of  min(C_ij^2 / (noise_j + v_j), d_i),

in which nothing cancels and saturated rows are never touched. `noise` may be a matrix (k, n): one row for each noise
level. Over fixed sites all are compared; where representers stand for a larger space, the sum is over them and the
observation is looked for everywhere (appendix A there).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.linalg import blas

from haltune._utils.arrays import Array, Indices, Mask
from haltune.gp import Posterior
from haltune.gp.gp import solve_lower
from haltune.gp.kernels import input_gradient
from haltune.log.history import History
from haltune.policies.acquisition import maximise
from haltune.policies.costs import GPCost, KnownCost

from .belief import Level, SiteBelief
from .members import Aim

CovarianceRows = Callable[
    [Indices], Array
]  # indices (b,) of points -> covariances (b, n) with all candidates
_ENTRIES, _THIN = 40_000, 16  # of a block, and its fewest rows: it stays in the second-level cache
_NO_ZERO = 1e-300  # divides 0 by it instead of by 0: a point known exactly takes nothing off
_ROUNDING = 1e-12  # of the prior variance: a reduction this small is rounding


def excess_variance(variance: Array, floor: float, members: Mask) -> Array:
    """d (n,): by how much each variance is above the floor; 0 where it is not, and outside the members."""
    return np.where(members, np.maximum(variance - floor, 0.0), 0.0)


def truncated_reduction(rows: CovarianceRows, variance: Array, noise: Array, over: Array) -> Array:
    """The reduction (k, n) by each of n candidates at each of k noise levels.

    rows: covariances of points with the candidates, by blocks. variance: (n,) of the candidates. noise:
    (k, n) variances of an observation of each. over: (m,) excess of the m points that `rows` knows.
    O(k u n) for u unsaturated points.
    """
    scale = np.maximum(noise + variance, _NO_ZERO)
    total = np.zeros_like(scale)
    # The divisor is taken out of the sum, min(C^2, d s) / s, and d s made by BLAS: passes over whole blocks are
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
    """The same (k, n), the second sum of (3) over the members that each observation would leave (appendix A).

    kept: variances (b, n) of the points of a block after each observation -> (b, n) whether each would stay
    a member if the observation came out at its mean. A member that would leave counts whole, max(v, e).
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
    """Pieces of indices (m,): rows of a block with so many columns."""
    size = _size(columns)
    for first in range(0, len(indices), size):
        yield indices[first : first + size]


def _size(columns: int) -> int:
    return max(_THIN, _ENTRIES // max(columns, 1))


def best_ratio(reduction: Array, cost: Array) -> tuple[int, int]:
    """(level, candidate) of the largest reduction per cost, both (k, n); the first of those equal up to rounding.

    Sums whose terms have all saturated differ by their last bits only, which carry no information.
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
    nothing: bool = False  # True: no observation takes anything off; this one is of highest upper bound


@dataclass(frozen=True, eq=False)
class ObservationChoice:
    """All that the choice of an observation depends on."""

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
    def floor(self) -> float:
        """e = eta^2 / beta, squared units of the target."""
        return (self.eta / self.root) ** 2

    @cached_property
    def over(self) -> Array:
        """(n,) excess variances."""
        return excess_variance(self.belief.field.variance, self.floor, self.members)

    @property
    def upper(self) -> Array:
        return self.belief.field.mean + self.root * np.sqrt(self.belief.field.variance)

    def of_sites(self, tried: Mask) -> Observation:
        """The best of the sites. tried: (n,) which were started already, for when nothing takes anything off."""
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
        """The best configuration of the space, at the best level: first over the representers, then uphill.

        Of the representers alone where candidates are limited to some of them, or noise differs from point to point.
        after: the configuration that the search stands at, for costs that depend on it.
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
        surface = ReductionSurface(
            self.belief.posterior, sites.points[kept], self.over[kept], float(noise[level, 0]), cost, after
        )
        found = maximise(surface, space, rng, tried=history.tried, around=around, candidates=256)
        price = 1.0
        if cost is not None:
            price = float(cost.predict(space.encode(found.config)[None], after).median[0])
        return Observation(level, found.config, found.value * price, price * levels[level].cost)

    def _nothing_gained(self, reduction: Array) -> bool:
        """Also where one configuration alone may be the best, by a kernel that more of it would not put to the test."""
        settled = self.learnt and not self.aim.sets and int(self.members.sum()) == 1
        return settled or not reduction.max() > _ROUNDING * self.belief.field.prior

    def _otherwise(self, tried: Mask) -> Observation:
        """The site of highest upper bound that was not tried, or of all."""
        among = ~tried if not tried.all() else np.ones_like(tried)
        site = int(np.argmax(np.where(among, self.upper, -np.inf)))
        level = int(np.argmin(self.cost[:, site]))
        return Observation(level, self.belief.sites.configs[site], 0.0, float(self.cost[level, site]), True)

    def _anticipated(self, rows: CovarianceRows, variance: Array, noise: Array) -> Array:
        """Appendix A: members that would be settled if the observation came out at its mean count whole.

        The best lower bound after each observation is itself a maximum over all sites: computed first.
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
    """Reduction per cost as a function of the point observed, for `maximise`; noise is that of one level."""

    posterior: Posterior
    points: Array  # (m, dim) that matter
    over: Array  # (m,) their excess
    noise: float
    cost: GPCost | KnownCost | None
    after: Array | None  # where the search stands, for costs that depend on it

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
        total = np.maximum(found.variance + self.noise, _NO_ZERO)[:, None]
        part = cross**2 / total
        free = part < self.over
        value = np.minimum(part, self.over).sum(axis=1)
        pull = np.where(free, 2.0 * cross / total, 0.0)
        gradient = input_gradient(pull * near_slope, points, self.points, scales)
        gradient -= input_gradient((pull @ solved.T) * seen_slope, points, p.X, scales)
        gradient -= (np.where(free, part, 0.0).sum(axis=1) / total[:, 0])[:, None] * found.variance_gradient
        if self.cost is None:
            return value, gradient
        price = self.cost.predict(points, self.after).median
        _, slopes = self.cost.gradient(points)
        return value / price, (gradient - value[:, None] * slopes) / price[:, None]
