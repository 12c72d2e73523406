"""Which run is the best: one rule, told by its parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from told import tell_trial, told
from worlds import problem as small_problem
from worlds import search, small_study

from haltune import Budget, Float, Maximize, Minimize, OptimalStopping, Problem, Space, Study, Trial
from haltune.errors import StudyMismatch
from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.outcomes import outcome_of
from haltune.log.problem import Goal
from haltune.log.records import Best
from haltune.policies import BOBOS, EI, GPUCB, Hyperband, InfiniteHyperband, Ladder, RandomSearch, SuccessiveHalving
from haltune.policies.bayesopt import recommend
from haltune.report import summary
from haltune.store.checkpoints import keepers

LINE = Space({"lr": Float(0, 1)})


def of_best(epochs: int | None = 10) -> Problem:
    return Problem(LINE, Maximize("acc", (0, 1), of="best"), epochs)


def found(history: History) -> tuple[int, float, float]:
    best = history.best()
    assert best is not None
    return best.trial, best.value, best.epoch


# complete runs


def test_a_run_that_ended_by_itself_is_complete_and_beats_a_worse_one_that_reached_the_horizon() -> None:
    history = tell_trial(told(), [0.1] * 9 + [0.3])
    for end in (0.92, 0.95, 0.93):
        tell_trial(history, [0.5, 0.8, 0.9, end])
    assert found(history) == (2, 0.95, 4.0)
    assert [t.complete for t in history.trials] == [True] * 4


@pytest.mark.parametrize("cut", [Status.STOPPED, Status.PAUSED, Status.FAILED, Status.INTERRUPTED, None])
def test_what_was_cut_yields_to_any_complete_run(cut: Status | None) -> None:
    history = tell_trial(told(), [0.9, 0.99], cut)
    assert found(history) == (0, 0.99, 2.0)
    assert not history.trial(0).complete
    tell_trial(history, [0.1])
    assert found(history) == (1, 0.1, 1.0)


def test_before_a_run_is_complete_the_best_of_those_that_went_furthest_leads() -> None:
    history = tell_trial(told(), [0.1, 0.2, 0.5], Status.PAUSED)
    tell_trial(history, [0.1, 0.2, 0.6], Status.STOPPED)
    tell_trial(history, [0.9, 0.95], Status.PAUSED)
    assert found(history) == (1, 0.6, 3.0)
    tell_trial(history, [0.99, 0.99, 0.99, 0.99], Status.FAILED)  # failed ones are behind all others
    assert found(history) == (1, 0.6, 3.0)
    assert history.ranked() == [[1, 0], [2], [3]]


def test_a_run_at_the_horizon_is_complete_whatever_became_of_it_then() -> None:
    history = tell_trial(told(), [0.1] * 10, Status.FAILED)
    tell_trial(history, [0.9] * 9, Status.STOPPED)
    assert found(history) == (0, 0.1, 10.0)


def test_a_run_whose_last_value_is_not_finite_has_no_value_by_its_last_epoch() -> None:
    history = tell_trial(told(), [0.9, 0.9, math.nan])
    assert history.best() is None
    assert recommend(history) is None
    tell_trial(history, [0.2], Status.STOPPED)
    assert found(history) == (1, 0.2, 1.0)


def test_of_equal_values_the_first_trial_is_the_best_and_the_first_epoch() -> None:
    problem = Problem(LINE, Minimize("loss", of="best"), 3)
    history = tell_trial(tell_trial(told(problem), [2.0, 1.0, 1.0]), [1.0, 3.0, 1.0])
    assert found(history) == (0, 1.0, 2.0)
    assert told().best() is None


# which value of a run counts


def test_the_goal_says_that_a_run_counts_for_its_best_epoch() -> None:
    history = tell_trial(told(of_best()), [0.1, 0.9, 0.3])
    tell_trial(history, [0.2, 0.4, 0.5])
    tell_trial(history, [0.2, 0.95, math.nan])
    tell_trial(history, [0.99, 0.98], Status.STOPPED)
    assert found(history) == (2, 0.95, 2.0)
    assert history.incumbent() == 0.99
    assert history.incumbent(exclude=3) == 0.95


def test_an_incumbent_is_what_a_run_counts_for_however_far_it_fell() -> None:
    history = tell_trial(told(), [0.9, 0.2], Status.STOPPED)
    assert history.incumbent() == 0.2
    assert tell_trial(told(of_best()), [0.9, 0.2], Status.STOPPED).incumbent() == 0.9


def test_what_a_run_counts_for_at_each_report_is_its_running_best() -> None:
    goal = Minimize("loss", of="best")
    history = tell_trial(told(Problem(LINE, goal, 10)), [math.nan, 3.0, 4.0, math.inf, 2.0, 5.0])
    t = history.trial(0)
    np.testing.assert_array_equal(t.counting(goal), [math.nan, 3.0, 3.0, 3.0, 2.0, 2.0])
    assert t.result(goal) == 2.0
    np.testing.assert_array_equal(t.counting(Minimize("loss")), t.values)
    assert t.result(Minimize("loss")) == 5.0


def test_a_study_from_before_goals_had_a_choice_reopens_and_another_choice_is_another_study(tmp_path: Any) -> None:
    assert "of" not in Maximize("acc").to_json()
    where = str(tmp_path / "a.db")
    Study(Problem(LINE, Maximize("acc"), 3), RandomSearch(trials=1), where).ask().report(
        0.5
    )  # a study without a report would make way
    Study(Problem(LINE, Maximize("acc", of="last"), 3), RandomSearch(trials=1), where)
    with pytest.raises(StudyMismatch, match="of"):
        Study(Problem(LINE, Maximize("acc", of="best"), 3), RandomSearch(trials=1), where)


# everybody by the same rule


def overfits(config: dict[str, Any], epoch: float) -> float:
    """Best at epoch 2; who is best there is worst in the end."""
    height = 0.2 + 0.6 * (math.log10(config["lr"]) + 4) / 4
    return height - 0.05 * abs(epoch - 2) if epoch < 3 else 1.0 - height


POLICIES: dict[str, Callable[[], Any]] = {
    "halving": lambda: SuccessiveHalving(n=8, eta=2, rounds=1),
    "halving-anew": lambda: SuccessiveHalving(n=8, eta=2, rounds=1, resume=False),
    "hyperband": lambda: Hyperband(eta=2, rounds=1),
    "asha": lambda: SuccessiveHalving(n=8, eta=2, rounds=1, asynchronous=True),
    "ladder": lambda: Ladder(2, 2, 2, min_trials_per_rung=2),
    "bobos": lambda: BOBOS(initial=3, stopping=OptimalStopping(paths=500, first=2)),
    "gpucb": lambda: GPUCB(initial=2),
    "ei": lambda: EI(initial=2),
}


def searched(make: Callable[[], Any], of: Any, curve: Callable[..., float] = overfits) -> Study:
    goal = Maximize("acc", (0, 1), of=of)
    problem = Problem(small_problem().space, goal, 6)
    study = small_study(make(), problem=problem, budget=Budget(trials=12, epochs=60))
    return search(study, curve)


@pytest.mark.parametrize("name", list(POLICIES))
@pytest.mark.parametrize("of", ["last", "best"])
@pytest.mark.filterwarnings("ignore")
def test_every_answer_names_the_same_run(name: str, of: str) -> None:
    study = searched(POLICIES[name], of)
    best = study.best
    assert best is not None
    assert study.history.best() == best
    assert keepers(study.history, 1) == [best.trial]
    assert f"{best.value:.4g} (trial {best.trial}, epoch {best.epoch:g})" in summary(study)
    recommended = study.recommend()
    assert recommended is not None
    assert recommended.trial in study.history.ranked()[0]


@pytest.mark.parametrize("name", ["halving", "halving-anew", "hyperband"])
def test_rungs_compare_what_the_goal_counts(name: str) -> None:
    """Every run is best in epoch 1: who goes on is who was best then, not who is best at the rung."""

    def crossing(config: dict[str, Any], epoch: float) -> float:
        height = 0.2 + 0.6 * (math.log10(config["lr"]) + 4) / 4
        return height if epoch == 1 else (1.0 - height) * 0.1

    study = searched(POLICIES[name], "best", crossing)
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
        lambda: SuccessiveHalving(n=4, max_resource=4, eta=2, rounds=1),
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


def test_a_run_on_few_samples_is_no_full_training() -> None:
    study = small_study(
        SuccessiveHalving(n=4, max_resource=4, eta=2, resource="samples", rounds=1), budget=Budget(epochs=200)
    )
    for trial in study:
        with trial:
            for _ in trial.epochs():
                trial.report(0.9 - 0.1 * float(trial.resource or 0))  # few samples look best
    full = {t.id for t in study.trials if t.resource == 4}
    assert full
    assert {t.id for t in study.trials if t.complete} == full
    assert study.best is not None
    assert study.best.trial in full


def test_budgets_that_grow_for_ever_have_no_full_training() -> None:
    study = small_study(InfiniteHyperband(), problem=small_problem(50), budget=Budget(epochs=30))
    search(study)
    assert not any(t.complete for t in study.trials)
    assert study.best is not None
    assert study.best.epoch == max(t.epoch for t in study.trials)


# falling curves under stopping rules


def falling_verdict(of: Any, values: Sequence[float]) -> Any:
    rule = BOBOS(initial=1, stopping=OptimalStopping(paths=500, first=2))
    problem = Problem(LINE, Maximize("acc", (0, 1), of=of), 10)
    history = tell_trial(told(problem), [0.5] * 10)
    tell_trial(history, values, None)
    state = rule.start(problem)
    return rule.judge(state, history, history.trial(1), history.rng("judge", 1, len(values)))


def test_a_falling_run_is_warned_of_only_where_its_last_epoch_counts() -> None:
    values = [0.3, 0.6, 0.7, 0.5]
    assert "warning" in falling_verdict("last", values).evidence
    assert "warning" not in falling_verdict("best", values).evidence
    rising = [0.3, 0.6, 0.7, 0.7]
    np.testing.assert_equal(falling_verdict("best", values).evidence, falling_verdict("last", rising).evidence)


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


def test_what_became_of_a_run_is_said_by_where_it_ended() -> None:
    history = tell_trial(told(), [0.5] * 10)
    tell_trial(history, [0.5] * 4)
    tell_trial(history, [0.5, math.nan])
    tell_trial(history, [0.5] * 3, Status.STOPPED)
    words = [outcome_of(t, history.problem).words for t in history.trials]
    assert words == [
        "trained in full", "ended by itself at epoch 4 of 10", "ended without a value at epoch 2 of 10",
        "stopped early",
    ]  # fmt: skip


@pytest.mark.parametrize("goal", [Maximize("acc"), Minimize("loss"), Maximize("acc", of="best")])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_is_the_first_of_all_after_whatever_happens(goal: Goal, seed: int) -> None:
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
