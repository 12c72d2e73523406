"""Several goals, and constraints, by a policy for one goal.

The policy for one goal is asked in the log as it would read had each trial reported one number: the scalarization of
its goals under some weights. So its answer is the one that it would have given in a study of that one goal.

- Proposals: weights are drawn for each question, by the study's seed, from a lattice of at most 11, with larger
  probability the wider the gap of the front is that they point into (`chances`).
- Judgements: a trial keeps the weights that it started under, in its tags. If the policy would keep the trial under any
  weights of the lattice, it is kept: the weights under which it leads most, or lags least, are asked first. If the
  policy would stop it under all of them, it still continues while it is on the front of its epoch.
- A trial whose first report is beyond a constraint that training does not change is stopped there.

The scalarization is the augmented Tchebycheff function (Knowles 2006, ParEGO). Notation: c_i the cost of goal i,
(high_i - sign_i v_i) / (high_i - worst_i), 1 at the front's worst and 0 somewhat beyond its best; r_i the same where
curves start, at low_i; w the weights, at least 0, of sum 1. The number is

    1 - (max_i w_i c_i + rho mean_i c_i) / (max_i w_i r_i + rho mean_i r_i),   rho = 0.05,

0 where all goals are where curves start, and 1 where all are beyond their best. It grows in every goal, whatever the
weights: a vector that dominates another has the larger number under all of them. (ParEGO weights the mean, too; then a
goal of weight 0 would not count at all.) What is beyond a constraint is -s / (1 + s) of its violation s, below 0.
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
WEIGHTS = "weights"  # in a trial's tags: of the goals, in their order
_MOST_WEIGHTS = 11  # weights that are drawn from; ParEGO has as many for two goals
_STEP = 0.2  # of a ray: how much nearer to 0 the next point on it is assumed to be
_WORST = 1.25  # the cost below which volume counts: the front's worst, as its scales are learnt
_EVEN = 0.2  # of the draws: the front may continue beyond its ends
_LEAST = 1e-3  # for a weight of 0, whose ray has no end


# -- scalarization -----------------------------------------------------------------------------


def lattice(goals: int) -> tuple[Weights, ...]:
    """All weights whose parts are multiples of 1 / s, s as large as gives at most 11 of them; one goal has one."""
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
    """Weights in words: 0.7 acc and 0.3 ms."""
    return " and ".join(f"{short(w, 2)} {g.metric}" for w, g in zip(weights, problem.goals, strict=True) if w)


@dataclass(frozen=True)
class Scalarization:
    """The number of a vector under weights and scales; with one goal its own value, unless it breaks a constraint."""

    problem: Problem
    weights: Weights
    spans: tuple[Span, ...]  # of each of several goals
    scale: Scale | None = None  # of one goal; None: none is known yet, and values stand as they are

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
        """The number of one report; latest: the last known value of a metric."""
        vector = [latest(goal.metric) for goal in self.problem.goals]
        found = vector[0]
        if self.problem.further and not all(map(math.isfinite, vector)):
            found = math.nan
        elif self.problem.further:
            costs = [(s.high - s.sign * v) / s.unit for s, v in zip(self.spans, vector, strict=True)]
            found = 1.0 - self._sum(costs) / self._reach
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

    @cached_property
    def _reach(self) -> float:
        return self._sum([(s.high - s.low) / s.unit for s in self.spans])

    def _sum(self, costs: Sequence[float]) -> float:
        worst = max(w * cost for w, cost in zip(self.weights, costs, strict=True))
        return worst + RHO * sum(costs) / len(costs)


# -- which weights are asked next --------------------------------------------------------------


def chances(history: History, known: Sequence[Weights]) -> Array:
    """(weights,) the probability to be asked next; all alike while there is no front of two or more."""
    even = np.full(len(known), 1.0 / len(known))
    vectors = history.vectors() if history.problem.further else np.empty((0, 1))
    front = vectors[non_dominated(vectors)]
    if len(front) < 2:
        return even
    found = rooms(Scalarization.at(history, known[0]).costs(front), np.array(known))
    return _EVEN * even + (1.0 - _EVEN) * found / found.sum() if found.sum() > 0.0 else even


def rooms(costs: Array, weights: Array) -> Array:
    """(weights,) the volume that a point on the ray of each would add to the front's; costs: (n, goals) of the front.

    The best vector under w lies on the ray c_i = t / w_i, and the front has come to t = min_j max_i w_i C_ji on it. The
    room there is the volume that a point a fifth nearer to 0 on the ray would add to what the front dominates, below
    costs of 1.25: bounded from above by min_j (V(p) - V(max(p, C_j))), V(p) = prod_i max(0, 1.25 - p_i), which needs
    but one pass. Weights of one goal alone have none where its best is found; those between distant points have much.
    """
    w = np.maximum(weights, _LEAST)[:, None, :]
    reached = (w * costs).max(axis=2).min(axis=1)
    points = (1.0 - _STEP) * reached[:, None] / w[:, 0, :]
    own, shared = _volume(points), _volume(np.maximum(points[:, None, :], costs))
    return np.asarray((own[:, None] - shared).min(axis=1))


def _volume(points: Array) -> Array:
    return np.asarray(np.maximum(0.0, _WORST - points).prod(axis=-1))


# -- the log of one goal -----------------------------------------------------------------------


class View:
    """A log folded under one scalarization, as far as it was read."""

    def __init__(self, problem: Problem, policy: Policy[Any], by: Scalarization) -> None:
        self.by, self.taken = by, 0
        self.fold = Fold(by.of(problem), policy)
        self.history = self.fold.history  # of the one goal

    def read(self, events: list[Event]) -> None:
        for event in events[self.taken :]:
            if isinstance(event, Rescaled) and self.by.problem.further:
                self.history.position += 1  # the one goal has a scale of its own
            elif isinstance(event, Reported):
                reported = {self.by.problem.goal.metric: event.value, **event.metrics}
                self.fold.take(replace(event, value=self._value(event.trial, reported)))
            else:
                self.fold.take(event)
            self.taken += 1

    def _value(self, trial: int, reported: dict[str, float]) -> float:
        """A goal is in every report; a metric that is only limited may have been reported before."""
        goals = [goal.metric for goal in self.by.problem.goals]

        def last(metric: str) -> float:
            value = reported.get(metric, math.nan)
            return value if metric in goals or not math.isnan(value) else self.history.latest(trial, metric)

        return self.by.value(last)

    def lead(self, trial: TrialRecord) -> float:
        """How far the report to be judged lies above the incumbent of the others; minus infinity where unknown."""
        lead = float(self.seen(trial).values[-1]) - self.history.incumbent(exclude=trial.id)
        return lead if math.isfinite(lead) else -math.inf

    def seen(self, trial: TrialRecord) -> TrialRecord:
        """A trial whose last entry is the report to be judged, as its policy sees it."""
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
    """The state of a search for several goals: the log, and the views of it, each read as far as it was asked."""

    def __init__(self, problem: Problem, policy: Policy[Any]) -> None:
        self.problem, self.policy = problem, policy
        self.events: list[Event] = []
        self.views: dict[Weights, View] = {}

    def view(self, history: History, weights: Weights) -> View:
        """The log under some weights; under other scales than before all views are made anew."""
        by = Scalarization.at(history, weights)
        if any((view.by.spans, view.by.scale) != (by.spans, by.scale) for view in self.views.values()):
            self.views.clear()
        if weights not in self.views:
            self.views[weights] = View(self.problem, self.policy, by)
        found = self.views[weights]
        found.read(self.events)
        return found

    def __repr__(self) -> str:
        return f"Views({len(self.events)} events)"


# -- the policy --------------------------------------------------------------------------------


class SeveralGoals(Wrapper):
    """A policy for one goal that searches for several. Studies of several goals or with constraints make it."""

    def __init__(self, policy: Policy[Any]) -> None:
        self.policy = policy

    def __repr__(self) -> str:
        return in_words(self.policy)

    def inside(self, state: Views) -> Any:
        raise InvalidInput("A search for several goals has a state for each weights. Ask it, not the policy inside.")

    def start(self, problem: Problem) -> Views:
        if problem.further and not self.policy.several_goals:
            raise InvalidInput(
                f"{in_words(self.policy)} searches for one goal, and the problem has {len(problem.goals)}. Use "
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
        """The move under weights that are drawn; where that is to wait, under the first others that have another."""
        known = lattice(len(history.problem.goals))
        drawn = int(history.rng("weights", history.moves).choice(len(known), p=chances(history, known)))
        asked = (self._proposed(state, history, w, rng) for w in (*known[drawn:], *known[:drawn]))
        first = next(asked)
        if not isinstance(first, Wait):
            return first
        return next((move for move in asked if not isinstance(move, Wait)), first)

    def _proposed(self, state: Views, history: History, weights: Weights, rng: Generator) -> Move:
        view = state.view(history, weights)
        move = self.policy.propose(view.fold.state, view.history, deepcopy(rng))
        if not history.problem.further or not isinstance(move, Start | Resume):
            return move
        if isinstance(move, Start):
            return replace(move, tags={**move.tags, WEIGHTS: list(weights)})
        trial = history.trial(move.trial)
        reason = f"{front_at(history, trial)[0]}; by {in_goals(weights, history.problem)}, {move.reason}"
        return replace(move, tags={**move.tags, WEIGHTS: trial.tags[WEIGHTS]}, reason=reason)

    def judge(self, state: Views, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """The verdict under the trial's own weights; STOP only under all weights, and never on the front."""
        problem = history.problem
        for constraint in problem.constraints:
            value = latest(trial.column(constraint.metric, problem.goal).tolist())
            if not constraint.changes and constraint.violation(value) > 0.0:
                return stop(
                    f"{constraint.metric} = {short(value, 6)}, and allowed is {constraint}: training does not change "
                    "it (where it does: Constraint(..., changes=True))"
                )
        if not problem.further:
            return self._judged(state.view(history, lattice(1)[0]), trial, rng)
        verdict = self._under_all(state, history, trial, rng)
        if not verdict.stops or FULL in verdict.evidence:
            return verdict
        place, behind = front_at(history, trial)
        if verdict.action is not Action.STOP or behind:
            return replace(verdict, reason=f"{place}; {verdict.reason}")
        evidence = {**verdict.evidence, "kept_by": "front"}
        reason = f"{place}, so it continues; {verdict.reason}"
        return Verdict(Action.CONTINUE, reason, evidence, problem.max_epochs)

    def _under_all(self, state: Views, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """The verdict under its own weights, or where that is STOP the first under others that is not."""
        known, problem = lattice(len(history.problem.goals)), history.problem
        own = tuple(trial.tags[WEIGHTS])
        verdict = self._judged(state.view(history, own), trial, rng)
        if FULL in verdict.evidence or (verdict.action is Action.CONTINUE and not verdict.evidence):
            return verdict
        by = f"its weights, {in_goals(own, problem)}: {verdict.reason}"
        if verdict.action is not Action.STOP:
            return replace(verdict, reason=f"by {by}")
        others = [state.view(history, weights) for weights in known if weights != own]
        for view in sorted(others, key=lambda view: view.lead(trial), reverse=True):
            if (other := self._judged(view, trial, rng)).action is not Action.STOP:
                reason = f"kept by the weights {in_goals(view.by.weights, problem)}: {other.reason}"
                evidence = {**other.evidence, "kept_by": list(view.by.weights)}
                return replace(other, reason=f"{reason}; by {by}", evidence=evidence)
        return replace(verdict, reason=f"by {by}")

    def _judged(self, view: View, trial: TrialRecord, rng: Generator) -> Verdict:
        return self.policy.judge(view.fold.state, view.history, view.seen(trial), deepcopy(rng))

    def alive(self, state: Views) -> frozenset[int] | None:
        return None

    def taught_by(self, studies: Sequence[Any]) -> Policy[Any]:
        raise InvalidInput("learn_from= needs one goal and no constraints. Leave it out.")
