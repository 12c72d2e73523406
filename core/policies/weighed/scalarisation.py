"""One number of several goals, by weights: the augmented Tchebycheff function (Knowles 2006, ParEGO).

Notation: z_i the score of goal i, (sign_i v_i - low_i) / (high_i - low_i), not clipped; c_i = 1 - z_i; w the weights,
at least 0, of sum 1. The number is

    1 - (max_i w_i c_i + rho mean_i c_i) / (max_i w_i + rho),   rho = 0.05,

0 where all goals are at their worst and 1 where all are at their best. It grows in every goal, whatever the weights: a
vector that dominates another has the larger number under all of them. ParEGO weighs the mean, too; then a goal of
weight 0 would not count at all, and its numbers could not tell a vector from one that dominates it.

What is beyond a constraint is -s / (1 + s) of its violation s: below 0, the lower the further it is beyond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise
from math import comb

from haltune._utils.words import short
from haltune.log.history import History
from haltune.log.problem import Goal, Maximize, Problem
from haltune.log.problem.constraints import violation
from haltune.log.scores import Scale

RHO = 0.05
_MOST = 11  # weights that are drawn from; ParEGO has as many for two goals
Weights = tuple[float, ...]


def lattice(goals: int) -> tuple[Weights, ...]:
    """All weights whose parts are multiples of 1 / s, s as large as gives at most 11 of them; one goal has one."""
    if goals == 1:
        return ((1.0,),)
    steps = next(s for s in range(_MOST, 0, -1) if s == 1 or comb(s + goals - 1, goals - 1) <= _MOST)
    found = []
    for cuts in combinations(range(steps + goals - 1), goals - 1):
        ends = (-1, *cuts, steps + goals - 1)
        found.append(tuple((b - a - 1) / steps for a, b in pairwise(ends)))
    return tuple(found) if steps > 1 else (*found, (1.0 / goals,) * goals)


@dataclass(frozen=True)
class Scalarisation:
    """What a vector comes to under weights and scales; with one goal its own value, unless it breaks a constraint."""

    problem: Problem
    weights: Weights
    scales: tuple[Scale | None, ...]  # of each goal; None: none is known yet, and values stand as they are

    @classmethod
    def at(cls, history: History, weights: Weights) -> Scalarisation:
        """By the scales in force."""
        problem = history.problem
        return cls(problem, weights, (history.scale, *map(history.scale_further, problem.further)))

    @cached_property
    def goal(self) -> Goal:
        """What is left to a policy for one goal."""
        if not self.problem.further:
            return self.problem.goal
        told = " and ".join(
            f"{short(w, 2)} {g.metric}" for w, g in zip(self.weights, self.problem.goals, strict=True) if w
        )
        return Maximize(f"the score of {told}", (0.0, 1.0))

    def of(self, problem: Problem) -> Problem:
        """The problem for one goal."""
        return replace(problem, goal=self.goal, further=(), constraints=())

    def value(self, latest: Callable[[str], float]) -> float:
        """Of one report; latest: what it says of a metric, or where it says nothing what stood before."""
        vector = [latest(goal.metric) for goal in self.problem.goals]
        found = self._weighed(vector) if self.problem.further else vector[0]
        if math.isnan(found) or not (beyond := violation(self.problem.constraints, latest)):
            return found
        scale = self._scale(0) if not self.problem.further else Scale(0.0, 1.0, 1.0)
        return float(scale.raw(-beyond / (1.0 + beyond) if math.isfinite(beyond) else -1.0))

    def _weighed(self, vector: Sequence[float]) -> float:
        if not all(map(math.isfinite, vector)):
            return math.nan
        scales = [self._scale(i) for i in range(len(vector))]
        costs = [1.0 - (s.sign * v - s.low) / (s.high - s.low) for s, v in zip(scales, vector, strict=True)]
        worst = max(w * cost for w, cost in zip(self.weights, costs, strict=True))
        return 1.0 - (worst + RHO * sum(costs) / len(costs)) / (max(self.weights) + RHO)

    def _scale(self, i: int) -> Scale:
        return self.scales[i] or Scale(0.0, 1.0, self.problem.goals[i].sign)
