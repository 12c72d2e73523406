"""The best trial: the parts of one rule."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from told import tell_trial, told
from worlds import problem as small_problem
from worlds import search, small_study

from haltune import Budget, Float, Maximize, Minimize, Problem, Space, Study, Trial
from haltune.errors import StudyMismatch
from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.problem import Goal
from haltune.log.records import Best
from haltune.policies import Hyperband, RandomSearch, SuccessiveHalving
from haltune.policies.bayesopt import recommend

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
