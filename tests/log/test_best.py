"""The best trial: the parts of one rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from told import tell_trial, told
from worlds import problem as small_problem
from worlds import search, small_study

from haltune import Budget, Float, Maximize, Minimize, Problem, Space, Study, Trial
from haltune.errors import HaltuneWarning, StudyMismatch
from haltune.log.events import Ended, Resumed, Status
from haltune.log.history import History
from haltune.log.problem import Goal
from haltune.log.records import Best
from haltune.policies import Hyperband, RandomSearch, SuccessiveHalving
from haltune.policies.bayesopt import recommend
from haltune.report.digest import story_of

LINE = Space({"lr": Float(0, 1)})


def found(history: History) -> tuple[int, float, float]:
    best = history.best()
    assert best is not None
    return best.trial, best.value, best.epoch


# complete runs


def test_before_a_run_is_complete_the_best_of_those_that_went_furthest_leads() -> None:
    history = tell_trial(told(), [0.1, 0.2, 0.5], Status.PAUSED)
    tell_trial(history, [0.1, 0.2, 0.6], Status.STOPPED)
    tell_trial(history, [0.9, 0.95], Status.PAUSED)
    assert found(history) == (1, 0.6, 3.0)
    tell_trial(history, [0.99, 0.99, 0.99, 0.99], Status.FAILED)  # failed ones are behind all others
    assert found(history) == (1, 0.6, 3.0)
    assert history.ranked() == [[1, 0], [2], [3]]


# which value of a run counts


def test_a_study_whose_goal_counts_another_epoch_is_another_study(tmp_path: Any) -> None:
    where = str(tmp_path / "a.db")
    Study(Problem(LINE, Maximize("acc"), 3), RandomSearch(trials=1), where).ask().report(
        0.5
    )  # a study without a report would make way
    Study(Problem(LINE, Maximize("acc", of="last"), 3), RandomSearch(trials=1), where)
    with pytest.raises(StudyMismatch, match="of"):
        Study(Problem(LINE, Maximize("acc", of="best"), 3), RandomSearch(trials=1), where)


# everybody by the same rule


@pytest.mark.parametrize("policy", [SuccessiveHalving(n=8, eta=2, rounds=1), Hyperband(eta=2, rounds=1, resume=False)])
def test_rungs_compare_what_the_goal_counts(policy: Any) -> None:
    """Every trial is best at epoch 1: the best at that epoch are promoted, not the best at the rung."""

    def crossing(config: dict[str, Any], epoch: float) -> float:
        height = 0.2 + 0.6 * (math.log10(config["lr"]) + 4) / 4
        return height if epoch == 1 else (1.0 - height) * 0.1

    problem = Problem(small_problem().space, Maximize("acc", (0, 1), of="best"), 6)
    study = search(small_study(policy, problem=problem, budget=Budget(trials=12, epochs=60)), crossing)
    top = max(study.trials, key=lambda t: t.config["lr"] if t.epoch >= 2 else 0.0)
    bracket = [t for t in study.trials if t.tags["bracket"] == top.tags["bracket"]]
    last = max(bracket, key=lambda t: t.epoch)
    assert last.config["lr"] == max(t.config["lr"] for t in bracket if t.epoch >= 2)


# what haltune cuts short by its schedule is not complete; what had all that the schedule gives is


def ranked_first(study: Study) -> set[float]:
    return {study.history.trial(i).epoch for i in study.history.ranked()[0]}


@pytest.mark.parametrize(
    "make",
    [
        lambda: Hyperband(4, eta=2, rounds=1),
        lambda: SuccessiveHalving(n=4, max_resource=4, eta=2, rounds=1, resume=False),
        lambda: SuccessiveHalving(n=4, max_resource=4, eta=2, rounds=1, asynchronous="stop"),
    ],
)
def test_the_largest_resource_of_a_schedule_is_a_full_training(make: Callable[[], Any]) -> None:
    problem = replace(small_problem(6), judge_every=1)
    study = small_study(make(), problem=problem, budget=Budget(epochs=200))
    for trial in study:
        with trial:
            if trial.id == 0:  # it ends by itself within the first epoch, and is complete
                trial.report(0.2, 0.5)
                continue
            for _ in trial.epochs():
                trial.report(0.3)
    assert ranked_first(study) == {0.5, 4.0}
    assert study.best is not None
    assert study.best.epoch == 4.0


# falling curves under stopping rules


def test_recommend_looks_through_noise_among_the_runs_that_compare() -> None:
    history = told()
    rng = np.random.default_rng(3)
    for lr in np.linspace(0.0, 1.0, 41):
        tell_trial(history, [float(0.8 - (lr - 0.5) ** 2 + 0.05 * rng.standard_normal())], config={"lr": float(lr)})
    tell_trial(history, [0.95], config={"lr": 0.21})  # one lucky draw where all others are low
    tell_trial(history, [0.999], Status.STOPPED, config={"lr": 0.5})
    assert found(history)[0] == 41
    chosen = recommend(history)
    assert isinstance(chosen, Best)
    assert abs(chosen.config["lr"] - 0.5) < 0.2


# a trial that trains again


def best_of(study: Study) -> tuple[int, float, float] | None:
    best = study.best
    return None if best is None else (best.trial, best.value, best.epoch)


def reported(study: Study, *values: float) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    for value in values:
        trial.report(value)
    return trial


@pytest.fixture
def retried() -> Study:
    """A study whose one trial was interrupted after 3 of 5 epochs, at 0.9, and has no checkpoint."""
    study = Study(Problem(LINE, Maximize("acc"), 5), RandomSearch(trials=9), seed=0, verbose=0)
    reported(study, 0.2, 0.5, 0.9).interrupt()
    return study


def test_a_trial_that_trains_again_counts_with_its_earlier_value_until_it_has_come_as_far(retried: Study) -> None:
    trial, leads = reported(retried), []
    for value in (0.1, 0.2, 0.7, 0.8):
        trial.report(value)
        leads.append(best_of(retried))
    assert leads == [(0, 0.9, 3.0), (0, 0.9, 3.0), (0, 0.7, 3.0), (0, 0.8, 4.0)]
    assert [step.value for step in story_of(retried).steps] == [0.2, 0.5, 0.9, 0.7, 0.8]


def test_an_attempt_that_was_cut_off_too_does_not_count_and_one_that_ended_does(retried: Study) -> None:
    reported(retried, 0.3, 0.4).interrupt()
    assert best_of(retried) == (0, 0.9, 3.0)
    reported(retried, 0.1, 0.6).finish()
    assert best_of(retried) == (0, 0.6, 2.0)


def test_a_training_in_full_counts_while_it_is_trained_again() -> None:
    study = Study(Problem(LINE, Maximize("acc"), 2), RandomSearch(trials=9), seed=0, verbose=0)
    reported(study, 0.2, 0.5).interrupt()
    reported(study, 0.6)
    assert best_of(study) == (0, 0.5, 2.0)


def test_a_training_that_its_program_gave_up_does_not_count(retried: Study) -> None:
    trial = reported(retried, 0.3, 0.4)
    with pytest.warns(HaltuneWarning, match="trains again from its start"):
        trial.restart()
    assert best_of(retried) is None
    trial.report(0.1)
    assert best_of(retried) == (0, 0.1, 1.0)


def test_a_checkpoint_kept_with_a_value_stays_as_long_as_the_value_counts(tmp_path: Path) -> None:
    problem = Problem(LINE, Maximize("acc", of="best"), 5)
    study = Study(problem, RandomSearch(trials=9), str(tmp_path / "a.db"), seed=0, verbose=0)

    def loads() -> tuple[float, str]:
        best = study.best
        assert best is not None
        assert best.checkpoint is not None
        return best.value, Path(best.checkpoint).read_text()

    def keep(trial: Trial, value: float) -> None:
        trial.report(value)
        assert trial.keeps(best_epoch=True)
        trial.save(lambda path: path.write_text(f"the state of {value}"), keep=True)

    first = reported(study, 0.1)
    first.save(lambda path: path.write_text("a state to resume from"))
    keep(first, 0.2)
    keep(first, 0.9)
    first.interrupt()
    again = reported(study)
    assert (again.epoch, again.checkpoint is None) == (1.0, False)
    keep(again, 0.95)
    assert loads() == (0.9, "the state of 0.9")
    again.report(0.3)
    assert loads() == (0.95, "the state of 0.95")


RESUMED = Resumed(
    at=9.0, trial=0, attempt=2, pause_at=None, resource=None, tags={}, reason="", evidence={}, seen=9, deciding=0.0,
    worker="w", by_policy=True,
)  # fmt: skip


def test_a_trial_of_the_front_that_starts_again_keeps_its_values_in_all_goals() -> None:
    goals = [Maximize("acc"), Minimize("ms")]
    history = tell_trial(told(Problem(LINE, goals, 9)), [0.1, 0.8], Status.INTERRUPTED, metrics={"ms": [5.0, 4.0]})
    history.apply(RESUMED)
    assert history.on_front(*history.front()).values == {"acc": 0.8, "ms": 4.0}


def test_a_paused_trial_stays_the_incumbent_when_it_resumes() -> None:
    history = tell_trial(told(), [0.1, 0.8], Status.PAUSED)
    tell_trial(history, [0.1, 0.3], Status.STOPPED)
    history.apply(RESUMED)
    assert history.incumbent() == 0.8
    assert history.incumbent(exclude=0) == 0.3
    history.apply(Ended(at=9.0, trial=0, attempt=2, status=Status.FAILED))
    assert history.incumbent() == 0.3


# said in words


@pytest.mark.parametrize("goal", [Maximize("acc"), Minimize("loss"), Maximize("acc", of="best")])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_is_the_first_of_all_after_any_events(goal: Goal, seed: int) -> None:
    rng = np.random.default_rng(seed)
    study = Study(
        Problem(Space({"x": Float(0.0, 1.0)}), goal, 4), RandomSearch(trials=40), seed=0, budget=Budget(trials=40),
        verbose=0, max_failures=99,
    )  # fmt: skip
    open_: list[Trial] = []
    leaders = set()

    def report(trial: Trial) -> None:
        if trial.epoch < 4:
            trial.report(float(rng.choice([*np.round(rng.random(3), 1), math.nan, math.inf])))

    def fail(trial: Trial) -> None:
        trial.finish("failed")

    acts: list[Callable[[Trial], None]] = [report, report, report, report, Trial.interrupt, fail]
    for _ in range(300):
        if len(open_) < 3 and isinstance(trial := study.ask(), Trial):
            open_.append(trial)
            trial.report(float(np.round(rng.random(), 1)))
        if not open_:
            break
        trial = open_[rng.integers(len(open_))]
        acts[rng.integers(len(acts))](trial)
        if trial.epoch >= 4 and trial.ended is None:
            trial.finish()
        open_ = [t for t in open_ if t.ended is None]
        best, ranked = study.history.best(), study.history.ranked()
        assert (best.trial if best else None) == (ranked[0][0] if ranked else None)
        leaders.add(best.trial if best else None)
    assert len(leaders) > 1
