"""One number of several goals, by weights: the augmented Tchebycheff function (Knowles 2006, ParEGO).

Notation: c_i the cost of goal i, (high_i - sign_i v_i) / (high_i - worst_i), 1 at the front's worst and 0 somewhat
beyond its best; r_i the same where curves begin, at low_i; w the weights, at least 0, of sum 1. The number is

    1 - (max_i w_i c_i + rho mean_i c_i) / (max_i w_i r_i + rho mean_i r_i),   rho = 0.05,

0 where all goals are where curves begin, so that a policy sees these whole, and 1 where all are beyond their best.
Goals are weighed against each other by what the front has of them, however far below it runs begin. It grows in every
goal, whatever the weights: a vector that dominates another has the larger number under all of them. ParEGO weighs the
mean, too; then a goal of weight 0 would not count at all, and could not tell a vector from one that dominates it.

What is beyond a constraint is -s / (1 + s) of its violation s: below 0, the lower the further it is beyond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise
from math import comb

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.words import short
from haltune.log.history import History
from haltune.log.problem import Goal, Maximize, Problem
from haltune.log.problem.constraints import violation
from haltune.log.scores import Scale, Span

RHO = 0.05
_MOST_WEIGHTS = 11  # weights that are drawn from; ParEGO has as many for two goals
Weights = tuple[float, ...]


def lattice(goals: int) -> tuple[Weights, ...]:
    """All weights whose parts are multiples of 1 / s, s as large as gives at most 11 of them; one goal has one."""
    if goals == 1:
        return ((1.0,),)
    steps = next(
        s for s in range(_MOST_WEIGHTS, 0, -1) if s == 1 or comb(s + goals - 1, goals - 1) <= _MOST_WEIGHTS
    )
    found = []
    for cuts in combinations(range(steps + goals - 1), goals - 1):
        ends = (-1, *cuts, steps + goals - 1)
        found.append(tuple((b - a - 1) / steps for a, b in pairwise(ends)))
    return tuple(found) if steps > 1 else (*found, (1.0 / goals,) * goals)


def named(weights: Weights, problem: Problem) -> str:
    """Weights in words: 0.7 acc and 0.3 ms."""
    return " and ".join(f"{short(w, 2)} {g.metric}" for w, g in zip(weights, problem.goals, strict=True) if w)


@dataclass(frozen=True)
class Scalarisation:
    """What a vector comes to under weights and scales; with one goal its own value, unless it breaks a constraint."""

    problem: Problem
    weights: Weights
    spans: tuple[Span, ...]  # of each of several goals
    scale: Scale | None = None  # of one goal; None: none is known yet, and values stand as they are

    @classmethod
    def at(cls, history: History, weights: Weights) -> Scalarisation:
        """By the scales in force."""
        problem = history.problem
        spans = tuple(map(history.span, problem.goals)) if problem.further else ()
        return cls(problem, weights, spans, None if spans else history.scale)

    @cached_property
    def goal(self) -> Goal:
        """What is left to a policy for one goal."""
        if not self.problem.further:
            return self.problem.goal
        return Maximize(f"the score of {named(self.weights, self.problem)}", (0.0, 1.0))

    def of(self, problem: Problem) -> Problem:
        """The problem for one goal."""
        return replace(problem, goal=self.goal, further=(), constraints=())

    def value(self, latest: Callable[[str], float]) -> float:
        """Of one report; latest: what it says of a metric, or where it says nothing what stood before."""
        vector = [latest(goal.metric) for goal in self.problem.goals]
        found = self._weighed(vector) if self.problem.further else vector[0]
        if math.isnan(found) or not (beyond := violation(self.problem.constraints, latest)):
            return found
        scale = Scale(0.0, 1.0, 1.0)
        if not self.problem.further:
            scale = self.scale or Scale(0.0, 1.0, self.problem.goal.sign)
        return float(scale.raw(-beyond / (1.0 + beyond) if math.isfinite(beyond) else -1.0))

    def costs(self, vectors: Array) -> Array:
        """(n, goals) c of vectors (n, goals) of sign * value."""
        high, unit = np.array([s.high for s in self.spans]), np.array([s.unit for s in self.spans])
        return np.asarray((high - vectors) / unit)

    def _weighed(self, vector: Sequence[float]) -> float:
        if not all(map(math.isfinite, vector)):
            return math.nan
        costs = [(s.high - s.sign * v) / s.unit for s, v in zip(self.spans, vector, strict=True)]
        return 1.0 - self._sum(costs) / self._reach

    @cached_property
    def _reach(self) -> float:
        return self._sum([(s.high - s.low) / s.unit for s in self.spans])

    def _sum(self, costs: Sequence[float]) -> float:
        worst = max(w * cost for w, cost in zip(self.weights, costs, strict=True))
        return worst + RHO * sum(costs) / len(costs)
