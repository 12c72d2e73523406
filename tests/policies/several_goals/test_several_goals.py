"""A search for several goals answers as a search for one would, in the log as weights make it read.

The oracle translates whole logs by formulas of its own and asks a fresh policy, prefix by prefix.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from worlds import quick, several, small_study, told

import haltune.policies as of
from haltune import Constraint, Finish, Maximize, Problem, Study
from haltune.errors import InvalidInput
from haltune.log.decisions import FULL, Action, Verdict
from haltune.log.events import Event, Reported, Rescaled, Resumed, Started
from haltune.log.policy import Fold
from haltune.policies import Start
from haltune.policies.several_goals import lattice
from haltune.study.judging import with_report
from haltune.study.redecide import redecide

POLICIES: dict[str, Any] = {
    "multifidelity": lambda: of.MultiFidelity(4, 1.0, 2, 2, min_trials_per_rung=2, candidates=24),
    "halting": lambda: of.Halting(of.RandomSearch(trials=12), quick()),
    "gpucb": lambda: of.GPUCB(initial=3, refit_every=2),
    "asha": lambda: of.Hyperband(eta=2, rounds=9, asynchronous=True),
}
PROBLEM = replace(several(), constraints=())


def curve(config: dict[str, Any], epoch: float) -> float:
    """Runs cross: a small learning rate is slow at first."""
    speed = 0.3 + config["lr"]
    return (0.95 - 0.4 * config["lr"]) * (1.0 - math.exp(-speed * epoch))


@cache
def searched(name: str, trials: int = 12) -> Study:
    study = small_study(POLICIES[name](), problem=PROBLEM, trials=trials, verbose=0, seed=11)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(told(trial, curve(trial.config, epoch)), seconds=1.0)
            if trial.verdict and trial.verdict.resumable:
                trial.checkpointed("saved")
    return study


def translated(event: Event, log: list[Event], weights: list[float]) -> Event:
    """Return an event as in a study of one goal, by the scale at the end of a log."""
    if not isinstance(event, Reported):
        return event
    spans = {e.metric: (e.low, e.worst, e.high) for e in log if isinstance(e, Rescaled)}
    signed = {"acc": event.value, "ms": -event.metrics["ms"]}
    ends = [(v, *spans.get(name, (0.0, 0.0, 1.0))) for name, v in signed.items()]
    cost = np.array([(high - v) / (high - worst) for v, _, worst, high in ends])
    reach = np.array([(high - low) / (high - worst) for _, low, worst, high in ends])
    one, whole = (max(np.array(weights) * c) + 0.05 * c.mean() for c in (cost, reach))
    value = 1.0 - one / whole
    return replace(event, value=float(value))


def alone(name: str, log: list[Event], weights: list[float]) -> Fold:
    """Return the state of a policy for one goal after a log."""
    goal = Maximize("one", (0.0, 1.0))
    fold = Fold(Problem(PROBLEM.space, goal, PROBLEM.max_epochs), POLICIES[name]())
    for event in log:
        if isinstance(event, Rescaled):
            fold.history.position += 1
        else:
            fold.take(translated(event, log, weights))
    return fold


def decisions(name: str) -> Iterator[tuple[Event, list[Event]]]:
    """Each decision of a log, and what it had seen."""
    events = list(searched(name).events())
    for event in events:
        if isinstance(event, Started | Resumed | Reported) and event.seen:
            yield event, events[: event.seen]


def judged(name: str, event: Reported, before: list[Event], weights: list[float]) -> Verdict:
    """The answer of the policy for one goal to one report."""
    last, fold = translated(event, before, weights), alone(name, before, weights)
    assert isinstance(last, Reported)
    history = fold.history
    trial = with_report(history, history.trial(event.trial), last)
    rng = history.rng("judge", trial.id, int(np.count_nonzero(trial.whole)))
    return fold.policy.judge(fold.state, history, trial, rng)


@pytest.mark.parametrize("name", POLICIES)
def test_a_proposal_is_that_of_a_search_for_one_goal_by_the_weights_that_were_drawn(name: str) -> None:
    starts = [(event, before) for event, before in decisions(name) if isinstance(event, Started)]
    drawn = {tuple(event.tags["weights"]) for event, _ in starts}
    for event, before in starts[1::6]:
        weights = event.tags["weights"]
        fold = alone(name, before, weights)
        moves = fold.history.moves
        move = fold.policy.propose(fold.state, fold.history, fold.history.rng("propose", moves))
        assert isinstance(move, Start)
        assert PROBLEM.space.canonical(move.config) == pytest.approx(dict(event.config))
        assert dict(event.tags) == {**move.tags, "weights": weights}
    assert drawn <= set(lattice(2))
    assert len(drawn) > 4


@pytest.mark.parametrize("name", ["multifidelity", "halting"])
def test_a_trial_is_stopped_only_if_each_of_the_weights_would_stop_it_and_it_is_off_the_front(name: str) -> None:
    asked = [(e, before) for e, before in decisions(name) if isinstance(e, Reported) and e.epoch < 6]
    own = {t.id: list(t.tags["weights"]) for t in searched(name).trials}
    kept = [(e, before) for e, before in asked if "kept_by" in e.verdict.evidence]
    stopped = [(e, before) for e, before in asked if e.verdict.action is Action.STOP]
    others = [pair for pair in asked if pair not in kept and pair not in stopped]
    for event, before in others[::7]:
        assert judged(name, event, before, own[event.trial]).action is event.verdict.action
    on_front = [(e, before) for e, before in kept if e.verdict.evidence["kept_by"] == "front"]
    for event, before in on_front[:3]:
        assert {judged(name, event, before, list(w)).action for w in lattice(2)} == {Action.STOP}
        assert event.verdict.action is Action.CONTINUE
        assert by_hand(event, before)[0] == 0
    for event, before in [pair for pair in kept if pair not in on_front][:3]:
        assert judged(name, event, before, own[event.trial]).action is Action.STOP
        by = event.verdict.evidence["kept_by"]
        assert by in [list(w) for w in lattice(2)]
        assert judged(name, event, before, by).action is event.verdict.action is not Action.STOP
        assert "continues under the weights" in event.verdict.reason
    for event, before in stopped[:3]:
        assert {judged(name, event, before, list(w)).action for w in lattice(2)} == {Action.STOP}
        above, _ = by_hand(event, before)
        assert above > 0
    assert (kept and stopped) or name != "halting"


def test_resumed_trials_keep_the_weights_that_they_were_started_under() -> None:
    events = list(searched("multifidelity").events()) + list(searched("asha").events())
    resumed = [e for e in events if isinstance(e, Resumed)]
    assert resumed
    for name in ("multifidelity", "asha"):
        began = {e.trial: e.tags["weights"] for e in searched(name).events() if isinstance(e, Started)}
        for e in searched(name).events():
            if isinstance(e, Resumed):
                assert e.tags["weights"] == began[e.trial]


def test_a_search_ends_only_if_it_ends_under_all_weights() -> None:
    """The trials that lead under some weights train in full, whichever weights the last decision draws."""
    study = Study(PROBLEM, of.SuccessiveHalving(n=12, eta=2, asynchronous=True), verbose=0, seed=3)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(told(trial, curve(trial.config, epoch)), seconds=1.0)
    state, history = study.session.replica.state, study.history
    ends = [state.view(history, weights) for weights in lattice(2)]
    assert study.history.finished
    for view in ends:
        move = view.fold.policy.propose(view.fold.state, view.history, np.random.default_rng(0))
        assert isinstance(move, Finish), (view.by.weights, move)
    assert [d for d in redecide(study.problem, study.policy, study.events()) if d[1] != d[2]] == []


@pytest.mark.parametrize(
    "policy", [of.Hyperband(), of.SuccessiveHalving(n=5), of.TruVaR(), of.TruVaR(0.7, rule="gchk"), of.AutoBCT()]
)
def test_a_policy_that_cannot_says_so_and_which_can(policy: Any) -> None:
    with pytest.raises(InvalidInput, match=r"searches for one goal, but the problem has 2\. Use MultiFidelity\(\)"):
        Study(PROBLEM, policy, verbose=0)


def test_an_infeasible_run_is_stopped_at_its_first_report_and_says_why() -> None:
    limits = [Constraint("params", at_most=2.5)]
    for goals in (PROBLEM.goals, [Maximize("acc")]):
        problem = Problem(PROBLEM.space, list(goals), 6, constraints=limits)
        study = small_study(of.RandomSearch(trials=8), problem=problem, trials=8, verbose=0)
        for trial in study:
            with trial:
                for epoch in trial.epochs():
                    trial.report({"acc": 0.1 * epoch, "ms": 1.0, "params": trial.config["layers"]})
        over = [t for t in study.trials if t.config["layers"] > 2.5]
        assert over
        for t in study.trials:
            assert len(t.epochs) == (1 if t in over else 6)
        assert over[0].verdict is not None
        assert "breaks the constraint params at most 2.5" in over[0].verdict.reason


def test_what_training_changes_ends_no_run_at_once() -> None:
    limits = [Constraint("recall", at_least=0.5)]
    problem = Problem(PROBLEM.space, Maximize("acc"), 6, constraints=limits)
    study = small_study(of.RandomSearch(trials=3), problem=problem, trials=3, verbose=0)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report({"acc": 0.1 * epoch, "recall": 0.1 * epoch})
    assert [len(t.epochs) for t in study.trials] == [6, 6, 6]


def by_hand(event: Reported, before: list[Event]) -> tuple[int, int]:
    """Return how many of how many other trials dominate a report, from the events only."""
    last: dict[int, tuple[float, float, float]] = {}
    came: dict[int, float] = {}
    for e in before:
        if isinstance(e, Reported) and e.trial != event.trial:
            came[e.trial] = max(e.epoch, came.get(e.trial, 0.0))
            if e.epoch <= event.epoch:
                last[e.trial] = (e.epoch, e.value, -e.metrics["ms"])
    others = [np.array(last[id][1:]) for id in last if came[id] >= event.epoch]
    own = np.array([event.value, -event.metrics["ms"]])
    return sum(bool((o >= own).all() and (o > own).any()) for o in others), len(others)


@pytest.mark.parametrize("name", ["multifidelity", "halting", "asha"])
def test_a_run_that_ends_early_says_by_how_many_it_is_dominated_before_any_place_by_weights(name: str) -> None:
    ends = [
        (e, before)
        for e, before in decisions(name)
        if isinstance(e, Reported) and e.verdict.stops and FULL not in e.verdict.evidence
    ]
    assert ends
    for event, before in ends:
        told = event.verdict.reason.partition(";")[0]
        above, others = by_hand(event, before)
        if not others:
            assert told.startswith(f"the first to reach epoch {event.epoch:g}")
        elif above:
            assert told == (
                f"at epoch {event.epoch:g} dominated by {above} of {others} other trial{'s' * (others > 1)}"
            )
        else:
            assert told == f"at epoch {event.epoch:g} on the Pareto front of {others + 1} trials"
            assert event.verdict.action is Action.PAUSE
