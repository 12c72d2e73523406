"""Several goals and constraints, by a policy for one goal.

The policy sees a log in which each report is one number: the scalarization of the goals under some weights. So it
answers as in a study of that one goal.

- Proposals: weights are drawn with the study's seed from a lattice of at most 11. Weights that point into a wide gap of
  the Pareto front have a larger probability (`chances`).
- Verdicts: a trial keeps the weights that it started under, in its tags. If the policy would keep the trial under any
  weights of the lattice, the trial continues; the weights under which it leads most are tried first. If the policy
  would stop it under all of them, it still continues while it is on the Pareto front of its epoch.
- If training does not change a metric and a trial's first report breaks a constraint on it, the trial stops.

The scalarization is the augmented Tchebycheff function (Knowles 2006, ParEGO). Notation: c_i the cost of goal i,
(high_i - sign_i v_i) / (high_i - worst_i), 1 at the front's worst and 0 slightly beyond its best; r_i the same at
low_i, where curves start; w the weights, at least 0, of sum 1. The number is

    1 - (max_i w_i c_i + rho mean_i c_i) / (max_i w_i r_i + rho mean_i r_i),   rho = 0.05,

0 where all goals have the value at which curves start, and 1 where all are beyond their best. It grows with every goal:
a vector that dominates another has the larger number under any weights. (ParEGO weights the mean, too; then a goal of
weight 0 would not count.) A report that violates constraints by s in total has -s / (1 + s), below 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, pairwise
from typing import Any

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array
from haltune.display import short
from haltune.errors import InvalidInput
from haltune.log.decisions import FULL, Action, Move, Resume, Start, Verdict, Wait, stop
from haltune.log.events import Event, Reported, Rescaled
from haltune.log.history import History
from haltune.log.outcomes import front_at
from haltune.log.policy import Fold, Policy, Wrapper, in_words
from haltune.log.problem import Goal, Maximize, Problem, latest, violation
from haltune.log.records import TrialRecord
from haltune.log.scores import Scale, Span, non_dominated

Weights = tuple[float, ...]
RHO = 0.05
WEIGHTS = "weights"  # key in a trial's tags: the weights of the goals, in their order
_MOST_WEIGHTS = 11  # of the lattice; ParEGO has as many for two goals
_STEP = 0.2  # share of a ray by which its next point is assumed to be nearer to 0
_WORST = 1.25  # reference point of the hypervolume; the front's worst cost is 1
_EVEN = 0.2  # share of draws that is uniform, because the front may continue beyond its ends
_LEAST = 1e-3  # replaces a weight of 0, whose ray has no end


# -- scalarization -----------------------------------------------------------------------------


def lattice(goals: int) -> tuple[Weights, ...]:
    """Return all weights whose parts are multiples of 1 / s, for the largest s that gives at most 11."""
    if goals == 1:
        return ((1.0,),)
    counts = range(_MOST_WEIGHTS, 0, -1)
    steps = next(s for s in counts if s == 1 or math.comb(s + goals - 1, goals - 1) <= _MOST_WEIGHTS)
    found = []
    for cuts in combinations(range(steps + goals - 1), goals - 1):
        ends = (-1, *cuts, steps + goals - 1)
        found.append(tuple((b - a - 1) / steps for a, b in pairwise(ends)))
    return tuple(found) if steps > 1 else (*found, (1.0 / goals,) * goals)


def in_goals(weights: Weights, problem: Problem) -> str:
    """Format weights: 0.7 acc and 0.3 ms."""
    return " and ".join(f"{short(w, 2)} {g.metric}" for w, g in zip(weights, problem.goals, strict=True) if w)


@dataclass(frozen=True)
class Scalarization:
    """Scalarization of a report under weights and scales; of one goal the value, unless it breaks constraints."""

    problem: Problem
    weights: Weights
    spans: tuple[Span, ...]  # of each goal; empty with one goal
    scale: Scale | None = None  # of one goal; None while there is no scale

    @classmethod
    def at(cls, history: History, weights: Weights) -> Scalarization:
        problem = history.problem
        spans = tuple(map(history.span, problem.goals)) if problem.further else ()
        return cls(problem, weights, spans, None if spans else history.scale)

    def of(self, problem: Problem) -> Problem:
        goal: Goal = problem.goal
        if self.problem.further:
            goal = Maximize(f"the score of {in_goals(self.weights, self.problem)}", (0.0, 1.0))
        return replace(problem, goal=goal, further=(), constraints=())

    def value(self, latest: Callable[[str], float]) -> float:
        """Return the number of one report. latest: returns the last known value of a metric."""
        vector = [latest(goal.metric) for goal in self.problem.goals]
        if not self.problem.further:
            found, scale = vector[0], self.scale or Scale(0.0, 1.0, self.problem.goal.sign)
        else:
            found, scale = math.nan, Scale(0.0, 1.0, 1.0)
            if all(map(math.isfinite, vector)):
                costs = [(s.high - s.sign * v) / s.unit for s, v in zip(self.spans, vector, strict=True)]
                found = 1.0 - self._sum(costs) / self._reach
        if math.isnan(found) or not (beyond := violation(self.problem.constraints, latest)):
            return found
        return float(scale.raw(-beyond / (1.0 + beyond) if math.isfinite(beyond) else -1.0))

    def costs(self, vectors: Array) -> Array:
        """Return c (n, goals) of vectors (n, goals) of sign * value."""
        high, unit = np.array([s.high for s in self.spans]), np.array([s.unit for s in self.spans])
        return np.asarray((high - vectors) / unit)

    @cached_property
    def _reach(self) -> float:
        return self._sum([(s.high - s.low) / s.unit for s in self.spans])

    def _sum(self, costs: Sequence[float]) -> float:
        worst = max(w * cost for w, cost in zip(self.weights, costs, strict=True))
        return worst + RHO * sum(costs) / len(costs)


# -- the next weights --------------------------------------------------------------------------


def chances(history: History, known: Sequence[Weights]) -> Array:
    """Return the probability of each weight vector (weights,); uniform until the front has two points."""
    even = np.full(len(known), 1.0 / len(known))
    vectors = history.vectors() if history.problem.further else np.empty((0, 1))
    front = vectors[non_dominated(vectors)]
    if len(front) < 2:
        return even
    found = hypervolume_gains(Scalarization.at(history, known[0]).costs(front), np.array(known))
    return _EVEN * even + (1.0 - _EVEN) * found / found.sum() if found.sum() > 0.0 else even


def hypervolume_gains(costs: Array, weights: Array) -> Array:
    """Return the hypervolume that a point on each ray would add (weights,). costs: (n, goals) of the front.

    The best vector under w lies on the ray c_i = t / w_i, and the front reaches t = min_j max_i w_i C_ji. The point is
    a fifth nearer to 0 than that. What it adds to the volume that the front dominates, below costs of 1.25, is bounded
    from above by min_j (V(p) - V(max(p, C_j))), V(p) = prod_i max(0, 1.25 - p_i), which is cheap.
    """
    w = np.maximum(weights, _LEAST)[:, None, :]
    reached = (w * costs).max(axis=2).min(axis=1)
    points = (1.0 - _STEP) * reached[:, None] / w[:, 0, :]
    own, shared = _volume(points), _volume(np.maximum(points[:, None, :], costs))
    return np.asarray((own[:, None] - shared).min(axis=1))


def _volume(points: Array) -> Array:
    return np.asarray(np.maximum(0.0, _WORST - points).prod(axis=-1))


# -- the log under one scalarization -----------------------------------------------------------


class View:
    """The log folded under one scalarization, up to the event read last."""

    def __init__(self, problem: Problem, policy: Policy[Any], by: Scalarization) -> None:
        self.by, self.taken = by, 0
        self.fold = Fold(by.of(problem), policy)
        self.history = self.fold.history  # of the one goal

    def read(self, events: list[Event]) -> None:
        for event in events[self.taken :]:
            if isinstance(event, Rescaled) and self.by.problem.further:
                self.history.position += 1  # the scalarized goal has its own scale
            elif isinstance(event, Reported):
                reported = {self.by.problem.goal.metric: event.value, **event.metrics}
                self.fold.take(replace(event, value=self._value(event.trial, reported)))
            else:
                self.fold.take(event)
            self.taken += 1

    def _value(self, trial: int, reported: dict[str, float]) -> float:
        """Scalarize a report. Every report has all goals; a constrained metric may have been reported earlier."""
        goals = [goal.metric for goal in self.by.problem.goals]

        def last(metric: str) -> float:
            value = reported.get(metric, math.nan)
            return value if metric in goals or not math.isnan(value) else self.history.latest(trial, metric)

        return self.by.value(last)

    def lead(self, trial: TrialRecord) -> float:
        """Return how far the report to be judged is above the incumbent of other trials; -inf if unknown."""
        lead = float(self.seen(trial).values[-1]) - self.history.incumbent(exclude=trial.id)
        return lead if math.isfinite(lead) else -math.inf

    def seen(self, trial: TrialRecord) -> TrialRecord:
        """Return a trial, whose last entry is the report to be judged, as its policy sees it."""
        reported = {name: float(column[-1]) for name, column in trial.metrics.items()}
        reported[self.by.problem.goal.metric] = float(trial.values[-1])
        value = self._value(trial.id, reported)
        before, scale = self.history.trial(trial.id), self.history.scale_of(trial.id)
        score = math.nan if scale is None else float(scale.score(value))
        return replace(trial, values=_longer(before.values, value), scores=_longer(before.scores, score))


def _longer(column: Array, last: float) -> Array:
    longer = np.append(column, last)
    longer.flags.writeable = False
    return longer


class Views:
    """State of a search for several goals: the log, and its views, each updated when it is needed."""

    def __init__(self, problem: Problem, policy: Policy[Any]) -> None:
        self.problem, self.policy = problem, policy
        self.events: list[Event] = []
        self.views: dict[Weights, View] = {}

    def view(self, history: History, weights: Weights) -> View:
        """Return the view under some weights. If the scales changed, all views are built again."""
        by = Scalarization.at(history, weights)
        if any((view.by.spans, view.by.scale) != (by.spans, by.scale) for view in self.views.values()):
            self.views.clear()
        found = self.views.pop(weights, None) or View(self.problem, self.policy, by)
        found.read(self.events)
        self.views[weights] = found  # unless Ctrl-C left it half changed
        return found

    def __repr__(self) -> str:
        return f"Views({len(self.events)} events)"


# -- the policy --------------------------------------------------------------------------------


class SeveralGoals(Wrapper):
    """A policy for one goal, applied to several goals or constraints. `Study` creates it."""

    def __init__(self, policy: Policy[Any]) -> None:
        self.policy = policy

    def __repr__(self) -> str:
        return in_words(self.policy)

    def inside(self, state: Views) -> Any:
        raise InvalidInput(
            "A search for several goals has one state for each weight vector. Ask it, not the policy inside."
        )

    def start(self, problem: Problem) -> Views:
        if problem.further and not self.policy.several_goals:
            raise InvalidInput(
                f"{in_words(self.policy)} searches for one goal, but the problem has {len(problem.goals)}. Use "
                "MultiFidelity() (the default), BOBOS(), Halting(RandomSearch()), GPUCB(), EI() or "
                "Hyperband(asynchronous=True)."
            )
        spans = tuple(map(Span.before, problem.goals))
        nothing = Scalarization(problem, lattice(len(problem.goals))[0], spans)
        self.policy.start(nothing.of(problem))
        return Views(problem, self.policy)

    def fold(self, state: Views, event: Event) -> Views:
        state.events.append(event)
        return state

    def propose(self, state: Views, history: History, rng: Generator) -> Move:
        """Return the move under weights that are drawn; if it trains nothing, the first one under others that does.

        So the search ends only if it ends under all weights.
        """
        problem, known = history.problem, lattice(len(history.problem.goals))
        drawn = int(history.rng("weights", history.moves).choice(len(known), p=chances(history, known)))
        idle: list[Move] = []
        for weights in (*known[drawn:], *known[:drawn]):
            view = state.view(history, weights)
            move = self.policy.propose(view.fold.state, view.history, deepcopy(rng))
            if not isinstance(move, Start | Resume):
                idle.append(move)
                continue
            if not problem.further:
                return move
            if isinstance(move, Start):
                return replace(move, tags={**move.tags, WEIGHTS: list(weights)})
            trial = history.trial(move.trial)
            reason = f"{front_at(history, trial)[0]}; under {in_goals(weights, problem)}: {move.reason}"
            return replace(move, tags={**move.tags, WEIGHTS: trial.tags[WEIGHTS]}, reason=reason)
        return next((move for move in idle if isinstance(move, Wait)), idle[0])

    def judge(self, state: Views, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """Return the verdict under the trial's own weights; STOP only under all weights and off the Pareto front."""
        problem = history.problem
        for constraint in problem.constraints:
            value = latest(trial.column(constraint.metric, problem.goal).tolist())
            if not constraint.changes and constraint.violation(value) > 0.0:
                return stop(
                    f"{constraint.metric} = {short(value, 6)} breaks the constraint {constraint}, and training does "
                    "not change it; if it does, set Constraint(..., changes=True)"
                )
        known = lattice(len(problem.goals))
        if not problem.further:
            return self._judged(state.view(history, known[0]), trial, rng)
        own = tuple(trial.tags[WEIGHTS])
        verdict = self._judged(state.view(history, own), trial, rng)
        if FULL in verdict.evidence or (verdict.action is Action.CONTINUE and not verdict.evidence):
            return verdict
        verdict = replace(verdict, reason=f"under its weights {in_goals(own, problem)}: {verdict.reason}")
        if verdict.action is Action.STOP:
            others = [state.view(history, weights) for weights in known if weights != own]
            for view in sorted(others, key=lambda view: view.lead(trial), reverse=True):
                if (other := self._judged(view, trial, rng)).action is not Action.STOP:
                    keeps = f"continues under the weights {in_goals(view.by.weights, problem)}: {other.reason}"
                    evidence = {**other.evidence, "kept_by": list(view.by.weights)}
                    verdict = replace(other, reason=f"{keeps}; {verdict.reason}", evidence=evidence)
                    break
        if not verdict.stops:
            return verdict
        rank, behind = front_at(history, trial)
        if verdict.action is not Action.STOP or behind:
            return replace(verdict, reason=f"{rank}; {verdict.reason}")
        evidence = {**verdict.evidence, "kept_by": "front"}
        reason = f"{rank}, so it continues; {verdict.reason}"
        return Verdict(Action.CONTINUE, reason, evidence, problem.max_epochs)

    def _judged(self, view: View, trial: TrialRecord, rng: Generator) -> Verdict:
        """Return the verdict in a view, without a warning, which would name the view's goal instead of the study's."""
        verdict = self.policy.judge(view.fold.state, view.history, view.seen(trial), deepcopy(rng))
        return replace(verdict, evidence={name: v for name, v in verdict.evidence.items() if name != "warning"})

    def alive(self, state: Views) -> frozenset[int] | None:
        return None

    def with_prior_studies(self, studies: Sequence[Any]) -> Policy[Any]:
        raise InvalidInput("learn_from= needs one goal and no constraints. Leave it out.")
