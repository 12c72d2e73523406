"""Asynchronous halving against ASHA's rule (Li et al. 2020), recomputed from the log by sorting."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from climbing_log import climbed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laboratory import Lab, act, differences, happenings, problem, rough

from examples import many
from haltune import Budget, Finish, Float, Maximize, Problem, Space, Study, Trial
from haltune.log.decisions import Action, Resume, Verdict
from haltune.log.events import Ended, Reported, Resumed, Started, Status
from haltune.log.policy import Fold
from haltune.policies import Hyperband, Ladder, MultiFidelity, SuccessiveHalving


@pytest.mark.parametrize("form", ["promote", "stop"])
@pytest.mark.parametrize("eta", [2.5, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 3))])
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_promoted_trials_are_in_the_top_of_those_that_arrived(form: Any, eta: float, workers: int) -> None:
    policy = SuccessiveHalving(n=60, eta=eta, asynchronous=form)
    lab = Lab(lambda: policy, rough(3, 0.1), epochs=27, workers=workers).run()
    rungs = climbed(lab.log, list(policy.table(27).brackets), eta, stops=form == "stop")
    assert len(rungs.promotions) > 15
    assert len(lab.study.trials) == 60
    assert differences(lab) == []
    longest = max(t.epoch for t in lab.study.trials)
    assert longest == 27
    if form == "stop":
        assert not any(isinstance(e, Resumed) for e in lab.log)
        assert all(t.status is not Status.PAUSED for t in lab.study.trials)


def test_new_configurations_fill_one_bracket_after_the_other_and_equal_brackets_share_their_rungs() -> None:
    policy = Hyperband(asynchronous=True, rounds=2)
    lab = Lab(lambda: policy, rough(4), epochs=9).run()
    brackets = [e.tags["bracket"] for e in lab.log if isinstance(e, Started)]
    sizes = [b.rungs[0].n for b in policy.table(9).brackets]
    assert brackets == [b for b, n in enumerate(sizes * 2) for _ in range(n)]
    rungs = climbed(lab.log, list(policy.table(9).brackets) * 2, 3, stops=False)
    assert len(rungs.arrived[policy.table(9).brackets[0], 0]) == 2 * sizes[0]


@pytest.mark.slow
def test_no_worker_waits_while_configurations_are_left() -> None:
    make = lambda: Hyperband(rounds=None, brackets="most_exploratory", asynchronous=True)  # noqa: E731
    lab = Lab(make, rough(4), epochs=9, workers=7, budget=Budget(epochs=300)).run()
    assert lab.waits == 0
    assert isinstance(lab.answers[-1], Finish)


FORMS: dict[str, Callable[[], Any]] = {
    "ladder": lambda: Ladder(2, 3, min_trials_per_rung=1),
    "promote": lambda: SuccessiveHalving(9, asynchronous=True),
    "stop": lambda: SuccessiveHalving(9, asynchronous="stop"),
    "hyperband": lambda: Hyperband(asynchronous=True),
    "synchronous": lambda: SuccessiveHalving(9),
}


@pytest.mark.parametrize("form", list(FORMS))
@pytest.mark.parametrize("before", [0, 8])
@pytest.mark.parametrize(("first", "again"), [(math.nan, math.nan), (math.inf, 0.5)])
@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
def test_a_run_that_diverged_does_not_continue_when_its_worker_is_lost_and_it_is_offered_again(
    form: str, before: int, first: float, again: float
) -> None:
    study = Study(problem(9), FORMS[form](), seed=0, budget=Budget(epochs=100))
    for _ in range(before):
        trial = study.ask()
        assert isinstance(trial, Trial)
        trial.report(math.nan, seconds=1)
        trial.finish()
    trial = study.ask()
    assert isinstance(trial, Trial)
    trial.report(first, seconds=1)
    trial.interrupt()
    offered = study.ask()
    assert isinstance(offered, Trial)
    assert (offered.id, offered.attempt) == (trial.id, 2)
    assert offered.report(again, seconds=1).action is Action.STOP


ACTIONS = ["step"] * 10 + ["race"] * 3 + ["save", "fail", "early", "kill", "interrupt", "stuck", "late"]


@pytest.mark.parametrize("form", ["promote", "stop"])
@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
@settings(max_examples=many(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(steps=happenings(ACTIONS, 150), seed=st.integers(0, 10**6), bad=st.sampled_from([0.0, 0.2]))
def test_after_any_events_only_the_top_is_promoted_and_the_search_ends(
    form: Any, steps: list[tuple[int, int, str]], seed: int, bad: float
) -> None:
    policy = SuccessiveHalving(n=12, eta=2, asynchronous=form)
    lab = Lab(lambda: policy, rough(seed, bad), epochs=8, workers=4)
    for number, other, action in steps:
        act(lab, number, other, action)
    for worker in lab.workers:
        worker.stuck = False
    lab.clock.now += 1e7
    lab.run()
    raced = any(action == "race" for _, _, action in steps)
    rungs = climbed(lab.log, list(policy.table(8).brackets), 2, form == "stop", race=raced)
    for id, t in rungs.trials.items():
        assert not (t.paused and id in rungs.top(id))
    assert len(lab.study.trials) == 12
    assert differences(lab) == []


@pytest.mark.parametrize("policy", [SuccessiveHalving(9, asynchronous=True), Ladder(3, 3, min_trials_per_rung=3)])
def test_a_trial_whose_report_at_its_rung_was_delivered_late_waits_there_when_it_pauses(policy: Any) -> None:
    study = Study(problem(9), policy, seed=0, budget=Budget(trials=9), verbose=0)
    trials = [study.ask() for _ in range(3)]
    for trial, value in zip(trials, (0.9, 0.1, 0.2), strict=True):
        assert isinstance(trial, Trial)
        if trial.id == 0:
            trial.report(value, judge=False)  # the store did not answer
        assert trial.report(value).action is Action.PAUSE
        trial.checkpointed(f"memory of {trial.id}")
        trial.finish()
    promoted = study.ask()
    assert isinstance(promoted, Trial)
    assert (promoted.id, promoted.attempt) == (0, 2)


# -- validations every few epochs ---------------------------------------------------------------


@pytest.mark.parametrize(
    "policy", [SuccessiveHalving(n=27, eta=3, asynchronous=True, rounds=1), MultiFidelity(min_trials_per_rung=4)]
)
def test_a_report_that_passes_several_rungs_is_compared_once_at_the_highest_of_them(policy: Any) -> None:
    asked = Problem(Space({"x": Float(0, 1)}), Maximize("acc", (0, 1)), max_epochs=27)
    study = Study(asked, policy, seed=0, budget=Budget(trials=12), verbose=0)
    for trial in study:
        with trial:
            assert trial.checkpoint is None or trial.epoch > 0
            for epoch in range(int(trial.epoch) + 5, 28, 5):  # validated at 5, 10, ..., 25
                if trial.report(trial.config["x"] * epoch / 27, epoch=epoch).stops:
                    trial.save(lambda path: path.write_text("state"))
                    break
    compared = [e for e in study.events() if isinstance(e, Reported) and "rank" in e.verdict.evidence]
    assert {(e.epoch, e.verdict.evidence["rung"]) for e in compared} == {(5.0, 1), (10.0, 2)}
    assert all(f"after {e.epoch:g} epochs" in e.verdict.reason for e in compared)
    best = max(study.trials, key=lambda t: t.config["x"])
    assert best.epoch == 25.0


def test_a_resume_names_the_epoch_whose_values_were_compared() -> None:
    asked = Problem(Space({"x": Float(0, 1)}), Maximize("acc", (0, 1)), max_epochs=9)
    study = Study(asked, SuccessiveHalving(n=9, asynchronous=True), seed=0, budget=Budget(trials=9), verbose=0)
    for trial in study:
        with trial:
            for epoch in range(int(trial.epoch) + 2, 10, 2):  # validated at 2, 4, 6, 8
                verdict = trial.report(trial.config["x"] * epoch / 10, epoch, seconds=1.0)
                if verdict.stops:
                    trial.checkpointed(f"{trial.id}")
                    break
    resumed = [e for e in study.events() if isinstance(e, Resumed)]
    assert resumed
    for e in resumed:
        at = study.events()
        reports = [r.epoch for r in at if isinstance(r, Reported) and r.trial == e.trial and r.attempt < e.attempt]
        assert f"after {reports[-1]:g} epochs; continues" in e.reason
    first = next(e for e in study.events() if isinstance(e, Started))
    assert first.reason.endswith("after 1 epoch, or sooner if it reports within an epoch")


# when no new trial may start


@pytest.mark.parametrize(
    "trials",
    [
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(3, marks=pytest.mark.slow),
        5,
        pytest.param(12, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "policy", [SuccessiveHalving(n=9, asynchronous=True), Hyperband(asynchronous=True), Ladder(min_trials_per_rung=4)]
)
def test_a_trial_whose_turn_is_next_continues_instead_of_pausing_and_resuming(policy: Any, trials: int) -> None:
    for seed in range(4):
        lab = Lab(lambda: policy, rough(seed), epochs=9, budget=Budget(trials=trials)).run()
        moves = [e for e in lab.log if isinstance(e, Started | Resumed | Ended)]
        for end, move in pairwise(moves):
            paused = isinstance(end, Ended) and end.status is Status.PAUSED
            assert not (paused and isinstance(move, Resumed) and move.trial == end.trial)
        left = [e for e in lab.log if isinstance(e, Reported) and e.verdict.reason.startswith("no new trial may start")]
        for report in left:  # had it paused, the next proposal would have resumed it
            fold = Fold(lab.study.problem, policy)
            for event in lab.log[: lab.log.index(report)]:
                fold.take(event)
            fold.take(replace(report, verdict=Verdict(Action.PAUSE, "", report.verdict.evidence)))
            fold.take(Ended(at=report.at, trial=report.trial, attempt=report.attempt, status=Status.PAUSED))
            move = policy.propose(fold.state, fold.history, np.random.default_rng(0))
            assert isinstance(move, Resume)
            assert (move.trial, move.pause_at) == (report.trial, report.verdict.pause_at)
        assert any(t.epoch == 9 for t in lab.study.trials)
        assert left or trials > 3
