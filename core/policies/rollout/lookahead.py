"""The value of a next evaluation when the search continues after it, within what is left of its budget: rollout.

After Lee et al. (2021), "A nonmyopic approach to cost-constrained Bayesian optimization", sections 4 and 5, with larger
better. A Gaussian process has a mean and a covariance on m points; y* is the best value seen, tau what is left,

    Lambda_h(x) = E[ sum_{t < h} (y_{t+1} - y*_t)^+ ],      x_0 = x, x_1 ... x_{h-1} chosen by the base policy:

the point of largest expected improvement per cost, at the last step of largest expected improvement. Only points that
what is left can pay for are chosen from ("restrict"); in the paper's text ("terminate") the base policy chooses among
all, and a trajectory ends where it cannot pay. A step is the last when h says so; under "restrict" also when nothing
would be affordable after any choice. Trajectories that end early count with what they found.

The rewards enter as conditional expectations, EI(x_t) given the path so far, so that Lambda_1 = EI exactly and the last
step is never sampled. The posterior after x_0 has the same variance for every y, and conditioning is of rank one:

    row = cov(x_t, .) / s,    s^2 = var(x_t) + noise,    mean += row z,    var -= row^2,    y = mean(x_t) + s z.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.polynomial.hermite_e import hermegauss
from scipy.special import ndtri

from haltune._utils.arrays import Array, Indices, Mask
from haltune.policies.acquisition import expected_improvement
from haltune.policies.costs import SLACK, PlanningBudget
from haltune.space.space import batches

Infeasible: TypeAlias = Literal["restrict", "terminate"]
_CHUNK = 400_000  # numbers in the largest array of a step: more leaves the cache
_KNOWN = 1e-12  # of the largest variance: what is known as well as this teaches nothing


@dataclass(frozen=True, eq=False)
class JointNormal:
    """A joint normal distribution of values at m points, larger values better."""

    mean: Array  # (m,)
    covariance: Array  # (m, m)
    best: float  # y*
    noise: float = 0.0  # variance of an observation; rewards are of observations, as in the paper


def hermite(nodes: int) -> tuple[Array, Array]:
    """(nodes, 1) points and (nodes,) weights of Gauss-Hermite quadrature for one standard normal: what h = 2 needs."""
    points, weights = hermegauss(nodes)
    return points[:, None], np.asarray(weights / weights.sum())


def sobol_normals(paths: int, steps: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """(paths, steps) scrambled Sobol points made normal, and equal weights (paths,); paths is best a power of 2."""
    uniform = next(batches("sobol", paths, steps, rng))[:paths]
    return np.asarray(ndtri(np.clip(uniform, 1e-9, 1 - 1e-9))), np.full(paths, 1.0 / paths)


def rollout(
    belief: JointNormal,
    budget: PlanningBudget,
    horizon: int,
    nodes: tuple[Array, Array] | None = None,
    candidates: Sequence[int] | Indices | None = None,
    infeasible: Infeasible = "restrict",
) -> Array:
    """Return Lambda_h at candidates (k,), indices of the m points, all by default; 0 where one cannot be paid.

    nodes: points (p, h - 1 or more) and weights (p,) of the integral over z_0 ... z_{h-2}, the same for all candidates
    (common random numbers): `hermite` for h = 2, `sobol_normals` beyond; None where h = 1.
    """
    chosen = np.arange(len(belief.mean)) if candidates is None else np.asarray(candidates, dtype=np.intp)
    variance = np.maximum(belief.covariance.diagonal() + belief.noise, 0.0)
    value = np.where(budget.affordable(), expected_improvement(belief.mean, variance, belief.best), 0.0)[
        chosen
    ]
    if horizon == 1 or nodes is None:
        return value
    planner = _Planner(belief, budget, horizon, nodes[0], nodes[1], infeasible)
    size = max(1, _CHUNK // (len(nodes[1]) * len(belief.mean)))
    paid = np.flatnonzero(budget.affordable()[chosen])
    for first in range(0, len(paid), size):
        some = paid[first : first + size]
        value[some] += planner.future(chosen[some])
    return value


def base_choice(
    belief: JointNormal, budget: PlanningBudget, horizon: int, infeasible: Infeasible = "restrict"
) -> int | None:
    """The base policy's point with `horizon` steps to go; None when it cannot pay. The first of equals."""
    able = budget.affordable()
    variance = np.maximum(belief.covariance.diagonal() + belief.noise, 0.0)
    gain = expected_improvement(belief.mean, variance, belief.best)
    after = _pairs(budget.first, budget.then)
    restrict = infeasible == "restrict"
    goes_on = not restrict or bool((after <= budget.left[:, None] * SLACK).all(axis=0).any())
    score = gain / np.maximum(budget.price(budget.first), 1e-300) if horizon > 1 and goes_on else gain
    choice = int(np.argmax(np.where(able, score, -np.inf) if restrict else score))
    return choice if able[choice] else None


def _pairs(first: Array, then: Array) -> Array:
    """(b, ..., m) what a point costs together with the cheapest other point after it: two steps."""
    costs = np.array(np.broadcast_to(then, (then.shape[0], then.shape[2], then.shape[2])))
    costs[:, np.arange(costs.shape[1]), np.arange(costs.shape[1])] = np.inf
    return np.asarray(first + costs.min(axis=2).reshape((len(costs),) + (1,) * (first.ndim - 2) + (-1,)))


class _Planner:
    """The paths of some candidates at a time: k candidates, p paths each, m points."""

    def __init__(
        self,
        belief: JointNormal,
        budget: PlanningBudget,
        horizon: int,
        z: Array,
        weights: Array,
        infeasible: Infeasible,
    ) -> None:
        self.belief, self.horizon, self.z, self.weights = belief, horizon, z, weights
        self.restrict = infeasible == "restrict"
        self.left, self.first, self.then = budget.left * SLACK, budget.first, budget.then
        self.moving = budget.after is not None
        self.price = np.maximum(budget.price(self.then), 1e-300)  # (m or 1, m)
        self.pairs = _pairs(self.then, self.then)  # (b, m or 1, m)
        self.known_below = _KNOWN * float(np.max(belief.covariance.diagonal(), initial=0.0))

    def future(self, candidates: Indices) -> Array:
        """(k,) what the base policy is expected to add after each."""
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
        """The base policy's step on every path (k, p): its expected improvement, the point, what is left."""
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
        left = np.where(pays[..., None], left - np.moveaxis(cost, 0, -1), -np.inf)  # who cannot pay is done
        return gain, point, left

    def _price(self, left: Array, here: Indices) -> Array:
        """By what EI is divided (k, p, m): the price; under "restrict" 1 where no choice leaves enough for another."""
        price = self.price[here] if self.moving else self.price
        if not self.restrict:
            return price
        return np.where(self._within(self.pairs, left, here).any(axis=2, keepdims=True), price, 1.0)

    def _within(self, costs: Array, left: Array, here: Indices) -> Mask:
        """(k, p, m), or (k, 1, m) where all paths of a candidate have spent the same: costs that can be paid."""
        if not self.moving and (left == left[:, :1]).all():
            left = left[:, :1]
        able = np.ones((*left.shape[:2], costs.shape[2]), dtype=np.bool_)
        for budget, cost in enumerate(costs):
            able &= (cost[here] if self.moving else cost) <= left[..., budget, None]
        return able

    def _moved(
        self, mean: Array, variance: Array, best: Array, rows: list[Array], here: Indices, z: Array
    ) -> tuple[Array, Array, Array, list[Array]]:
        """Every path after observing its point."""
        covariance = self.belief.covariance[here]  # (k, p, m)
        for row in rows:
            at = np.take_along_axis(np.broadcast_to(row, covariance.shape), here[..., None], axis=2)
            covariance -= at * row
        row, spread = self._observed(covariance, here)
        seen = np.take_along_axis(mean, here[..., None], axis=2)[..., 0] + spread * z
        return mean + row * z[:, None], variance - row**2, np.maximum(best, seen), [*rows, row]

    def _observed(self, covariance: Array, here: Indices) -> tuple[Array, Array]:
        """cov / s (..., m) and s (...,) of the observed points; 0 where there is nothing to learn."""
        own = np.take_along_axis(covariance, here[..., None], axis=-1)[..., 0] + self.belief.noise
        known = own <= self.known_below
        spread = np.where(known, 0.0, np.sqrt(np.maximum(own, 0.0)))
        return covariance / np.where(known, np.inf, spread)[..., None], spread
