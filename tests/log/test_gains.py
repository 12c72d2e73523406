"""The end of a search after trials without gain: what counts, what sets the count to 0, and where it is checked."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from whims import PAUSE, PROBLEM, STOP, Whims
from worlds import search, small_study

from haltune import Budget, Constraint, Finish, Float, Maximize, Minimize, Problem, Space, Study, Trial, Wait
from haltune.errors import InvalidInput
from haltune.log import events as ev
from haltune.log.events import OVER, Status
from haltune.log.history import History
from haltune.log.records import TrialRecord
from haltune.policies import RandomSearch
from haltune.store.memory import MemoryStore

LINE = Space({"x": Float(0.0, 1.0)})


def without_gain(study: Study) -> int:
    return study.history.spent.trials_without_gain


def ended(study: Study, *values: Any) -> int:
    """Train one trial with these values, the last of them at its end or a saved pause; return the count."""
    trial = study.ask()
    assert isinstance(trial, Trial)
    with trial:
        for value in values:
            if (verdict := trial.report(value)).stops:
                if verdict.resumable:
                    trial.checkpointed("a key")
                break
    return without_gain(study)


def whims(**budget: Any) -> Study:
    return Study(PROBLEM, Whims(), seed=0, budget=Budget(**budget), verbose=0)


def test_with_rank_by_a_gain_is_a_best_trial_by_the_metric_that_ranks() -> None:
    goal = Minimize("loss", rank_by="eval_loss")
    study = Study(LINE, goal, max_epochs=1, policy=RandomSearch(), budget="9 trials or 2 trials without gain", seed=0)
    evaluated = [0.5, 0.4, 0.6, 0.3, 0.7, 0.8]  # the loss gets worse
    counts = [ended(study, {"loss": n, "eval_loss": value}) for n, value in enumerate(evaluated)]
    assert counts == [0, 0, 1, 0, 1, 2]
    assert isinstance(study.ask(), Finish)


def test_each_trial_that_is_not_better_counts_and_a_better_one_starts_the_count_again() -> None:
    study = whims(trials_without_gain=3)
    found = [ended(study, value) for value in (0.5, 0.4, 0.5, 0.6, 0.1, math.nan, 0.2)]
    assert found == [0, 1, 2, 0, 1, 2, 3]
    answer = study.ask()
    assert isinstance(answer, Finish)
    assert answer.reason.startswith("the budget of 3 trials without gain is spent: 7 trials started")


def test_trials_that_stop_early_count_and_failed_and_interrupted_ones_do_not() -> None:
    study = whims(trials_without_gain=9)
    assert ended(study, 0.5) == 0
    assert ended(study, STOP) == 1
    with pytest.raises(KeyboardInterrupt), study.ask():  # type: ignore[union-attr]
        raise KeyboardInterrupt
    assert without_gain(study) == 1
    assert ended(study, 0.3) == 2
    with study.ask() as trial:  # type: ignore[union-attr]
        trial.report(0.9)
        raise ValueError("a bug")
    assert without_gain(study) == 2


def test_a_trial_that_stops_early_is_no_gain_though_its_value_is_better() -> None:
    study = whims(trials_without_gain=9)
    assert [ended(study, 0.1), ended(study, 0.2, STOP)] == [0, 1]
    assert study.best.trial == 0  # type: ignore[union-attr]


def test_a_trial_that_pauses_counts_once_however_often_it_resumes() -> None:
    study = whims(trials_without_gain=9)
    assert ended(study, 0.9) == 0
    assert [ended(study, PAUSE), ended(study, 0.1, PAUSE), ended(study, 0.1, 0.2)] == [1, 1, 1]


def test_pauses_do_not_count_before_the_first_complete_trial() -> None:
    study = whims(trials_without_gain=9)
    assert [ended(study, 0.1, 0.1, PAUSE), ended(study, PAUSE), ended(study, 0.5), ended(study, 0.4)] == [0, 0, 0, 1]


def test_trials_without_one_finite_value_count_from_the_first_on() -> None:
    study = whims(trials_without_gain=2)
    assert [ended(study, math.nan), ended(study, math.nan)] == [1, 2]
    assert study.outcome.over


@pytest.mark.parametrize("goal", [Minimize("loss"), Maximize("acc")])
def test_a_gain_is_better_in_the_direction_of_the_goal(goal: Any) -> None:
    study = Study(Problem(LINE, goal, 1), RandomSearch(), seed=0, budget="99 trials", verbose=0)
    assert [ended(study, goal.sign * value) for value in (1.0, 2.0, 1.5, 2.5)] == [0, 0, 1, 0]


def test_with_several_goals_a_gain_is_a_trial_that_no_other_dominates() -> None:
    goals = [Maximize("acc"), Minimize("ms")]
    study = Study(Problem(LINE, goals, 1), RandomSearch(), seed=0, budget="99 trials", verbose=0)
    points = [(0.5, 10.0), (0.4, 9.0), (0.4, 9.0), (0.4, 11.0), (0.6, 12.0), (0.6, 8.0), (0.5, 9.0), (0.4, 7.0)]
    assert [ended(study, {"acc": a, "ms": ms}) for a, ms in points] == [0, 0, 1, 2, 0, 0, 1, 0]


def test_with_constraints_a_gain_is_nearer_to_the_limits_and_then_a_better_value_within_them() -> None:
    limited = Problem(LINE, Maximize("acc"), 1, constraints=[Constraint("ms", at_most=10.0)])
    study = Study(limited, RandomSearch(), seed=0, budget="99 trials", verbose=0)
    points = [(0.9, 20.0), (0.8, 15.0), (0.95, 16.0), (0.1, 9.0), (0.9, 11.0), (0.2, 10.0)]
    assert [ended(study, {"acc": a, "ms": ms}) for a, ms in points] == [0, 0, 1, 0, 1, 0]


def test_what_runs_may_finish_and_its_gain_lets_trials_start_again() -> None:
    store = MemoryStore()
    budget = Budget(trials_without_gain=2)
    one, other = (Study(PROBLEM, Whims(), store, seed=0, budget=budget, verbose=0) for _ in range(2))
    assert ended(one, 0.5) == 0
    running = other.ask()
    assert isinstance(running, Trial)
    assert [ended(one, 0.4), ended(one, 0.3)] == [1, 2]
    waits = one.ask()
    assert isinstance(waits, Wait)
    assert waits.reason.startswith("the budget of 2 trials without gain is spent; other workers still train")
    with running:
        assert not running.report(0.6).stops
    one.sync()
    assert without_gain(one) == 0
    assert isinstance(one.ask(), Trial)


def test_a_larger_number_continues_the_search_as_other_limits_do() -> None:
    study = search(small_study(RandomSearch(), budget="2 trials without gain, 50 trials", verbose=0), lambda c, e: 0.5)
    assert len(study.trials) == 3
    study.budget = "5 trials without gain"
    assert len(search(study, lambda c, e: 0.5).trials) == 6
    store = MemoryStore()
    first = search(small_study(RandomSearch(), store, budget=Budget(trials_without_gain=2)), lambda c, e: 0.5)
    store.append("study", [ev.Raised(at=store.now(), budget={"trials_without_gain": 4})], seen=99, about=None)
    first.sync()
    assert len(search(first, lambda c, e: 0.5).trials) == 5


def test_a_search_that_was_ended_says_so_after_it_is_opened_again() -> None:
    store = MemoryStore()
    study = search(small_study(RandomSearch(), store, budget="2 trials without gain"), lambda c, e: 0.5)
    again = small_study(RandomSearch(), store, budget="2 trials without gain")
    assert again.ask() == study.ask()
    assert again.outcome == study.outcome


def test_the_progress_line_counts_them(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "haltune"):
        search(small_study(RandomSearch(), budget="2h or 3 trials without gain", verbose=1), lambda c, e: 0.5)
    assert any("4 trials, 3 of 3 without gain, 24 epochs" in message for message in caplog.messages)


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "10"])
def test_the_number_is_whole_and_positive(number: Any) -> None:
    with pytest.raises(InvalidInput, match="trials_without_gain"):
        Budget(trials_without_gain=number)


# against records


def place(t: TrialRecord) -> tuple[bool, bool, float, float]:
    """Return the rank value of a trial, for one goal without constraints."""
    complete = t.complete
    return complete, complete or t.status is not Status.FAILED, 0.0 if complete else t.epoch, t.result(PROBLEM.goal)


def counts(events: Sequence[ev.Event]) -> Iterator[int]:
    """The count after each event, from the records of its prefix."""
    history, idle, complete = History(PROBLEM), set[int](), False
    best: tuple[bool, bool, float, float] | None = None
    for event in events:
        before = [t.status for t in history.trials]
        history.apply(event)
        for t in history.trials:
            over = t.status in OVER or t.status is Status.PAUSED
            if not over or (t.id < len(before) and before[t.id] is t.status):
                continue
            complete = complete or t.complete
            if not math.isnan(t.result(PROBLEM.goal)) and (best is None or place(t) > best):
                best, idle = place(t), set()
            elif t.status is Status.COMPLETED or t.status is Status.STOPPED or (t.status is Status.PAUSED and complete):
                idle.add(t.id)
        yield len(idle)


moves = st.lists(st.tuples(st.integers(0, 2), st.sampled_from([0.1, 0.2, 0.3, math.nan, STOP, PAUSE, "end", "fail"])))


@given(moves)
def test_the_count_is_that_of_the_records_after_every_event_and_after_a_replay(steps: list[tuple[int, Any]]) -> None:
    store = MemoryStore()
    workers = [Study(PROBLEM, Whims(), store, seed=0, budget="99 trials", verbose=0) for _ in range(3)]
    held: list[Trial | None] = [None] * 3
    for worker, value in steps:
        trial = held[worker]
        if trial is None or (trial.verdict is not None and trial.verdict.stops):
            if trial is not None:
                trial.finish()
            answer = workers[worker].ask()
            held[worker] = answer if isinstance(answer, Trial) else None
        elif value == "end" and trial.epoch:
            trial.finish()
            held[worker] = None
        elif value == "fail":
            trial.fail(ValueError("a bug"))
            held[worker] = None
        elif value != "end":
            trial.report(value)
    workers[0].sync()
    events = list(workers[0].events())
    history, found = History(PROBLEM), []
    for event in events:
        history.apply(event)
        found.append(history.spent.trials_without_gain)
    assert found == list(counts(events))
    assert without_gain(workers[0]) == found[-1]
