"""Three lines: a space, the name of a metric, and a budget in words; or a function that returns a value."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from worlds import begun, problem

from haltune import Budget, Float, Maximize, Minimize, Problem, Space, Study, Trial
from haltune.errors import InvalidInput
from haltune.log.events import Status
from haltune.policies import BOBOS, Hyperband, InfiniteHyperband, MultiFidelity, RandomSearch

X: dict[str, Any] = {"x": Float(0.0, 1.0)}


def test_a_space_the_name_of_a_metric_and_a_budget_in_words_make_a_study() -> None:
    study = Study(X, "val_acc", max_epochs=3, budget="2 trials", seed=0, start=[{"x": 0.5}])
    assert study.problem == Problem(Space(X), Maximize("val_acc"), 3, [{"x": 0.5}])
    assert isinstance(study.policy, MultiFidelity)
    assert study.budget == Budget(trials=2)
    for trial in study:
        for epoch in trial.epochs():
            trial.report(trial.config["x"] * epoch)
    assert len(study.trials) == 2
    assert study.trials[0].config == {"x": 0.5}


def test_a_guess_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "haltune"):
        Study(X, "val_loss", max_epochs=3)
        Study(X, Minimize("val_loss"), max_epochs=3)
        Study(X, "val_loss", max_epochs=3, verbose=0)
    (said,) = (r.getMessage() for r in caplog.records)
    assert "To maximize it, pass Maximize('val_loss')" in said


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("1h30m", Budget(time=5400)),
        ("1 day", Budget(time=86400)),
        ("1.5H, 20 Runs", Budget(trials=20, time=5400)),
        ("100 epochs or 2 hours", Budget(epochs=100, time=7200)),
        ("10 trials without gain", Budget(trials_without_gain=10)),
        ("2h or 10 trials without gain", Budget(time=7200, trials_without_gain=10)),
        ("50 trials, 10 trials in a row without improvement", Budget(trials=50, trials_without_gain=10)),
        ("1 run with no improvement and 2h", Budget(time=7200, trials_without_gain=1)),
        ("1e4 epochs or 90 min", Budget(epochs=10_000, time=5400)),
        ("10,000 epochs, 90min", Budget(epochs=10_000, time=5400)),
        ("2.5 epochs,300 trials", Budget(epochs=2.5, trials=300)),
        ("$50 at 2.10/h", Budget(money=50, price=2.1)),
        ("50 EUR at 2.1 EUR per hour, 3 days", Budget(money=50, price=2.1, time=259_200)),
        ("1,200 dollars @ $2 an hour or 10 trials without gain", Budget(money=1200, price=2, trials_without_gain=10)),
    ],
)
def test_a_budget_is_said_in_words(text: str, budget: Budget) -> None:
    study = Study(problem(), RandomSearch(), budget=text)
    assert study.budget == budget
    study.budget = "7 trials"
    assert study.budget == Budget(trials=7)


def test_who_does_not_say_how_long_a_training_is_is_asked_when_it_matters() -> None:
    study = Study(X, "acc", budget="3 trials")
    with pytest.raises(InvalidInput, match="max_epochs=30"):
        study.ask()
    with pytest.raises(InvalidInput, match="InfiniteHyperband"):
        Study(Problem(Space(X), Maximize("acc")), budget="3 trials")
    with pytest.raises(InvalidInput, match="BOBOS needs max_epochs"):  # one epoch does not suit it, either
        Study(X, "acc", policy=Hyperband(9, sampler=BOBOS()), budget="3 trials")
    assert begun(Study(X, "acc", policy=RandomSearch(), budget="1 trial")).max_epochs is None
    assert begun(Study(X, "acc", policy=InfiniteHyperband(), budget="1 trial")).max_epochs == 1_000_000_000


def test_a_function_that_returns_a_value_is_a_training_of_one_epoch() -> None:
    study = Study(X, "loss", budget="5 trials", seed=0)
    assert study.optimize(lambda trial: trial.config["x"]) is study
    assert study.problem.max_epochs == 1
    assert [t.epoch for t in study.trials] == [1] * 5
    best = study.best
    assert best is not None
    assert (study.best_params, study.best_value, study.best_trial.id) == (best.config, best.value, best.trial)
    assert study.best_value == min(t.config["x"] for t in study.trials)
    study.best_params["x"] = 7.0
    assert study.best == best


def test_a_returned_value_counts_for_the_whole_training_and_not_at_all_with_reports() -> None:
    def train(trial: Trial) -> str:
        for epoch in trial.epochs():
            trial.report(0.1 * epoch)
        return "done"

    study = Study(X, "acc", max_epochs=4, policy=RandomSearch(trials=2)).optimize(lambda trial: 0.5)
    assert [(t.epoch, t.status) for t in study.trials] == [(4, Status.COMPLETED)] * 2
    study = Study(X, "acc", max_epochs=4, policy=RandomSearch(trials=2)).optimize(train)
    assert [list(t.values) for t in study.trials] == [pytest.approx([0.1, 0.2, 0.3, 0.4])] * 2


def test_tell_takes_a_trial_of_ask() -> None:
    study = Study(X, "acc", max_epochs=3, policy=RandomSearch(trials=2))
    one = begun(study)
    assert not study.tell(one, 0.5, epoch=1).stops
    assert study.trials[0].status is Status.RUNNING
    study.tell(one, 0.7)
    study.tell(begun(study), 0.4)
    assert [(t.epoch, t.values[-1], t.status) for t in study.trials] == [
        (3, 0.7, Status.COMPLETED), (3, 0.4, Status.COMPLETED),
    ]  # fmt: skip


def test_a_train_that_only_returns_a_value_hears_once_how_trials_stop_early(caplog: pytest.LogCaptureFixture) -> None:
    study = Study({"x": Float(0.0, 1.0)}, "val_loss", max_epochs=6, budget="3 trials")
    study.optimize(lambda trial: trial.config["x"])
    hints = [line for line in caplog.messages if "without a report" in line]
    assert len(hints) == 1
    assert "counts as 6 epochs" in hints[0]
    assert "write `if trial.report(value).stops: break`" in hints[0]
