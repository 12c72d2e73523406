"""A policy for one goal that searches for several, and within constraints.

Whatever it is asked, a policy for one goal is asked of the log as it would read had its runs had one number each: what
their vectors come to under some weights (`scalarisation`, `weighed_log`). So its answer is the one that it would have
given in a study of that one goal, and all that is known of it holds.

- What begins, and what goes on: weights are drawn for each question, by the study's seed, from a lattice of at most 11,
  the rather the wider the gap of the front is that they look into (`gaps`).
- A trial keeps the weights that it started under, in its tags: it is judged under these. If the policy would keep the
  trial under any weights of the lattice, it is kept: the weights under which it leads most, or lags least, are asked
  first. If the policy would stop it under all of them, it still continues while it is on the front of its epoch.
- A run whose first report is beyond a constraint that training does not change is stopped there.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any

from numpy.random import Generator

from haltune._utils.words import short
from haltune.errors import InvalidInput
from haltune.log.comparison import front_at
from haltune.log.decisions import FULL, Action, Move, Resume, Start, Verdict, Wait, stop
from haltune.log.events import Event
from haltune.log.history import History
from haltune.log.policy import Policy, Wrapper, in_words
from haltune.log.problem import Problem
from haltune.log.problem.constraints import latest
from haltune.log.records import TrialRecord
from haltune.log.scores import Span

from .gaps import chances
from .scalarisation import Scalarisation, Weights, lattice, named
from .weighed_log import LogPrefix, View, WeighedLog

WEIGHTS = "weights"  # in a trial's tags: of the goals, in their order


class Weighed(Wrapper):
    """See above. policy: for one goal. Studies of several goals, or with constraints, make it themselves."""

    def __init__(self, policy: Policy[Any]) -> None:
        self.policy = policy

    def __repr__(self) -> str:
        return in_words(self.policy)

    def inside(self, state: LogPrefix) -> Any:
        """Of several goals there are several: none by itself."""
        raise InvalidInput(
            "a search for several goals has a state for each weights: ask it, not the policy inside"
        )

    def start(self, problem: Problem) -> LogPrefix:
        """An empty log. Raises InvalidInput for a policy that cannot search for it."""
        if problem.further and not self.policy.several_goals:
            raise InvalidInput(
                f"{in_words(self.policy)} searches for one goal, and the problem has {len(problem.goals)}: "
                "MultiFidelity(), the default, BOBOS(), Halting(RandomSearch()), GPUCB(), EI() and "
                "Hyperband(asynchronous=True) search for several"
            )
        spans = tuple(map(Span.before, problem.goals))
        nothing = Scalarisation(problem, lattice(len(problem.goals))[0], spans)
        self.policy.start(nothing.of(problem))
        return LogPrefix(WeighedLog(problem, self.policy))

    def fold(self, state: LogPrefix, event: Event) -> LogPrefix:
        """The log with one event more."""
        return state.after(event)

    def propose(self, state: LogPrefix, history: History, rng: Generator) -> Move:
        """The move under weights that are drawn; where that is to wait, under the first others that have another."""
        known = lattice(len(history.problem.goals))
        drawn = int(history.rng("weights", history.moves).choice(len(known), p=chances(history, known)))
        asked = (self._proposed(state, history, w, rng) for w in (*known[drawn:], *known[:drawn]))
        first = next(asked)
        if not isinstance(first, Wait):
            return first
        return next((move for move in asked if not isinstance(move, Wait)), first)

    def _proposed(self, state: LogPrefix, history: History, weights: Weights, rng: Generator) -> Move:
        view = state.view(history, weights)
        move = self.policy.propose(view.fold.state, view.history, deepcopy(rng))
        if not history.problem.further or not isinstance(move, Start | Resume):
            return move
        if isinstance(move, Start):
            return replace(move, tags={**move.tags, WEIGHTS: list(weights)})
        trial = history.trial(move.trial)
        reason = f"{front_at(history, trial)[0]}; by {named(weights, history.problem)}, {move.reason}"
        return replace(move, tags={**move.tags, WEIGHTS: trial.tags[WEIGHTS]}, reason=reason)

    def judge(self, state: LogPrefix, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """Under its own weights; STOP only under all, and never on the front."""
        if (why := _beyond(history.problem, trial)) is not None:
            return stop(why)
        if not history.problem.further:
            return self._judged(state.view(history, lattice(1)[0]), trial, rng)
        verdict = self._of_all(state, history, trial, rng)
        if not verdict.stops or FULL in verdict.evidence:
            return verdict
        told, behind = front_at(history, trial)
        if verdict.action is not Action.STOP or behind:
            return replace(verdict, reason=f"{told}; {verdict.reason}")
        evidence = {**verdict.evidence, "kept_by": "front"}
        reason = f"{told}, so it continues; {verdict.reason}"
        return Verdict(Action.CONTINUE, reason, evidence, history.problem.max_epochs)

    def _of_all(self, state: LogPrefix, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """The answer by its own weights, or where that is STOP the first by others that is none."""
        known, problem = lattice(len(history.problem.goals)), history.problem
        own = tuple(trial.tags[WEIGHTS])
        verdict = self._judged(state.view(history, own), trial, rng)
        if FULL in verdict.evidence or (verdict.action is Action.CONTINUE and not verdict.evidence):
            return verdict
        by = f"its weights, {named(own, problem)}: {verdict.reason}"
        if verdict.action is not Action.STOP:
            return replace(verdict, reason=f"by {by}")
        others = [state.view(history, weights) for weights in known if weights != own]
        for view in sorted(others, key=lambda view: view.lead(trial), reverse=True):
            if (other := self._judged(view, trial, rng)).action is not Action.STOP:
                reason = f"kept by the weights {named(view.by.weights, problem)}: {other.reason}"
                evidence = {**other.evidence, "kept_by": list(view.by.weights)}
                return replace(other, reason=f"{reason}; by {by}", evidence=evidence)
        return replace(verdict, reason=f"by {by}")

    def _judged(self, view: View, trial: TrialRecord, rng: Generator) -> Verdict:
        return self.policy.judge(view.fold.state, view.history, view.seen(trial), deepcopy(rng))

    def alive(self, state: LogPrefix) -> frozenset[int] | None:
        """All: what one goal leaves behind another may take up."""
        return None

    def taught_by(self, studies: Sequence[Any]) -> Policy[Any]:
        """Raises InvalidInput: what earlier studies tell is of one number."""
        raise InvalidInput("learn_from= teaches a search for one goal without constraints: leave it out")


def weighed(policy: Policy[Any], problem: Problem) -> Policy[Any]:
    """The policy for a problem: itself for one goal without constraints."""
    return policy if problem.plain or isinstance(policy, Weighed) else Weighed(policy)


def _beyond(problem: Problem, trial: TrialRecord) -> str | None:
    """Why a run is infeasible for good; None where it is not, as far as is known."""
    for constraint in problem.constraints:
        value = latest(trial.column(constraint.metric, problem.goal).tolist())
        if not constraint.changes and constraint.violation(value) > 0.0:
            return (
                f"{constraint.metric} = {short(value, 6)}, and allowed is {constraint}: training does not change it "
                "(where it does: Constraint(..., changes=True))"
            )
    return None
