"""A search whose trials all diverge ends with an error that says what to check, and continues after a repair."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from haltune import Finish, Float, HaltuneWarning, Maximize, Minimize, Study, Trial
from haltune.errors import TrainingFailed
from haltune.launch import run
from haltune.policies import BOBOS, RandomSearch, SuccessiveHalving

pytestmark = pytest.mark.filterwarnings("ignore:loss was NaN or infinite in all")
SPACE = {"lr": Float(1e-3, 10.0, log=True), "x": Float(0.0, 1.0)}


def searched(store: Any = None, trials: int = 30, metric: Any = "loss", **options: Any) -> Study:
    options = {"policy": RandomSearch(), "max_epochs": 3, "seed": 0, "verbose": 0} | options
    return Study(SPACE, metric, store, budget=f"{trials} trials", **options)


def diverging(trial: Trial) -> None:
    for _ in trial.epochs():
        trial.report(math.nan)


def test_it_ends_after_ten_and_names_the_metric_the_rate_and_what_to_do() -> None:
    study = searched()
    with pytest.raises(TrainingFailed) as caught:
        study.optimize(diverging)
    lowest = min(t.config["lr"] for t in study.trials)
    said = str(caught.value)
    assert re.fullmatch(
        r"loss was NaN or infinite in all 10 trials, so haltune cannot compare trials. Check the data and the loss for "
        r"NaN, clip the gradients, or lower the upper bound of 'lr', Float\(.*\) \(the lowest tried: (\S+)\). Then "
        r"start the program again: the search continues. If such values are to be expected, pass a larger "
        r"max_failures= than 5.",
        said,
    ), said
    assert f"the lowest tried: {lowest:.4g}" in said
    assert [t.status for t in study.trials] == ["stopped"] * 10
    assert not study.outcome.over


@pytest.mark.parametrize("policy", [None, BOBOS(), SuccessiveHalving(n=20)], ids=["default", "BOBOS", "halving"])
def test_every_policy_ends_so(policy: Any) -> None:
    study = searched(policy=policy, max_epochs=9)
    with pytest.raises(TrainingFailed, match="in all 10 trials"):
        study.optimize(diverging)


def test_told_values_of_infinity_end_it_too() -> None:
    study = searched(max_failures=2)
    for _ in range(4):
        study.tell(study.ask(), math.inf)
    with pytest.raises(TrainingFailed, match=r"in all 4 trials.*larger max_failures= than 2"):
        study.ask()


def test_one_trial_with_a_finite_value_keeps_it_alive() -> None:
    study = searched(trials=15)
    for trial in study:
        with trial:
            trial.report(math.nan)
            trial.report(0.5 if trial.id == 8 else math.nan)
    assert len(study.trials) == 15
    best_counts = searched(trials=15, metric=Minimize("loss", of="best"))
    best_counts.optimize(diverging_later)
    assert len(best_counts.trials) == 15


def diverging_later(trial: Trial) -> None:
    for epoch in trial.epochs():
        trial.report(0.5 if epoch == 1 else math.nan)


@pytest.mark.filterwarnings("ignore:loss became NaN or infinite in all")
@pytest.mark.parametrize("policy", [None, RandomSearch(), BOBOS()], ids=["default", "random", "BOBOS"])
def test_trials_that_all_diverge_after_an_epoch_end_it(policy: Any) -> None:
    study = searched(policy=policy, max_epochs=9)
    words = r"loss became NaN or infinite in all 1\d trials.* Clip the gradients, or lower the upper bound of 'lr'"
    with pytest.raises(TrainingFailed, match=words):
        study.optimize(diverging_later)


def test_a_trial_that_still_trains_with_finite_values_keeps_it_alive() -> None:
    study = searched(max_failures=1)
    open_one = study.ask()
    assert isinstance(open_one, Trial)
    open_one.report(0.5)
    for _ in range(4):
        study.tell(study.ask(), math.nan)
    assert isinstance(study.ask(), Trial)


def test_a_repaired_program_continues_and_another_such_trial_ends_it_again(tmp_path: Path) -> None:
    with pytest.raises(TrainingFailed, match="all 4"):
        searched(tmp_path / "s.db", max_failures=2).optimize(diverging)
    again = searched(tmp_path / "s.db", max_failures=2)
    with pytest.raises(TrainingFailed, match="all 5"):
        again.optimize(diverging)
    repaired = searched(tmp_path / "s.db", trials=9, max_failures=2)
    repaired.optimize(lambda trial: trial.config["x"])
    assert len(repaired.trials) == 9
    assert repaired.best is not None
    assert repaired.best.trial >= 5


def test_a_spent_budget_is_an_end_and_no_error() -> None:
    study = searched(trials=10)
    with pytest.warns(HaltuneWarning, match="in all"):
        study.optimize(diverging)
    answer = study.ask()
    assert isinstance(answer, Finish)
    assert "none with a finite loss" in answer.reason


def test_workers_end_so(tmp_path: Path) -> None:
    study = searched(tmp_path / "s.db", max_failures=1)
    with pytest.raises(TrainingFailed, match="NaN or infinite in all"):
        run(study, diverging, workers=2, progress=False, gpus=None)
    assert len(study.trials) <= 4
    assert all(t.status != "running" for t in study.trials)


def test_several_goals_without_a_value_of_the_first_end_it() -> None:
    goals = [Minimize("loss"), Maximize("acc")]
    study = Study(SPACE, goals, max_epochs=1, budget="9 trials", seed=0, max_failures=1, verbose=0)
    with pytest.raises(TrainingFailed, match="loss was NaN or infinite in all 2 trials"):
        for trial in study:
            with trial:
                trial.report({"loss": math.nan, "acc": 0.5})
