"""Three lines: a space, the name of a metric, and a budget in words; and what each mistake there is answered."""

from __future__ import annotations

import gc
import logging
from pathlib import Path
from typing import Any

import pytest
from worlds import SPACE, problem

from haltune import Budget, Float, HaltuneWarning, Maximize, Minimize, Problem, Space, Study, Trial
from haltune.errors import InvalidInput
from haltune.log.events import Status
from haltune.policies import BOBOS, Hyperband, InfiniteHyperband, MultiFidelity, RandomSearch
from haltune.store.memory import MemoryStore

X: dict[str, Any] = {"x": Float(0.0, 1.0)}


def begun(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    return trial


# what a study is made with


def test_a_space_the_name_of_a_metric_and_a_budget_in_words_make_a_study() -> None:
    study = Study(Space(X), "val_acc", max_epochs=3, budget="2 trials", seed=0)
    assert study.problem == Problem(Space(X), Maximize("val_acc"), 3)
    assert isinstance(study.policy, MultiFidelity)
    assert study.budget == Budget(trials=2)
    for trial in study:
        for epoch in trial.epochs():
            trial.report(trial.config["x"] * epoch)
    assert len(study.trials) == 2


def test_a_dict_is_a_space_and_what_a_problem_takes_besides_is_taken_after_it() -> None:
    study = Study(X, Minimize("loss", of="best"), max_epochs=3, start=[{"x": 0.5}], policy=RandomSearch(trials=1))
    assert study.problem == Problem(Space(X), Minimize("loss", of="best"), 3, [{"x": 0.5}])
    assert begun(study).config == {"x": 0.5}


def test_both_ways_open_the_same_study(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    Study(X, "val_loss", path, max_epochs=3, policy=RandomSearch(), budget="2 trials").optimize(lambda t: t.config["x"])
    again = Study(Problem(Space(X), Minimize("val_loss"), 3), policy=RandomSearch(), store=path)
    assert len(again.trials) == 2


def test_a_guess_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "haltune"):
        Study(X, "val_loss", max_epochs=3)
    assert [r.getMessage() for r in caplog.records] == [
        "a smaller val_loss is better, by its name; if it is not, write Maximize('val_loss')"
    ]
    caplog.clear()
    with caplog.at_level(logging.INFO, "haltune"):
        Study(X, Minimize("val_loss"), max_epochs=3)
        Study(X, "val_loss", max_epochs=3, verbose=0)
    assert not caplog.records


@pytest.mark.parametrize(
    ("arguments", "options", "answer"),
    [
        ((X, "score"), {}, r"write Maximize\('score'\) or Minimize\('score'\)"),
        ((X,), {}, "Name the metric after it"),
        ((X, BOBOS()), {"max_epochs": 3}, r"policy=BOBOS\("),
        ((X, 3), {}, "the name of a metric"),
        ((X, "max"), {}, r"'max' of what\?"),
        ((X, "acc"), {"policy": "bobos"}, r"give the policy itself, haltune\.policies\.BOBOS\(\)"),
        ((X, "acc"), {"policy": "tpe"}, "policy=.tpe.: give the policy itself.*BOBOS"),
        ((X, "acc", BOBOS()), {"max_epochs": 3}, "store=BOBOS.*; give a policy by its name, policy="),
        (("acc", X), {}, "were space and goal swapped"),
        ((lambda trial: 0.0,), {}, "the first argument is a Problem"),
        ((problem(), "acc"), {}, "which has its goal Maximize.*, the second argument is a policy.*not 'acc'"),
        ((problem(), BOBOS()), {"max_epochs": 3}, "a Problem has its max_epochs"),
        ((problem(),), {"start": [{}]}, "a Problem has its max_epochs=, min_epochs=, unit="),
        ((problem(), BOBOS()), {"policy": RandomSearch()}, "two policies"),
        ((X, "acc"), {"max_epochs": 0}, "max_epochs is a whole number"),
        ((X, "acc"), {"max_epochs": 3, "min_epochs": 4}, "min_epochs=4 is more than max_epochs=3.*Lower"),
        ((X, "acc"), {"max_epochs": 3, "min_epochs": -1}, "min_epochs is a whole number.*-1"),
        ((X, "acc"), {"max_epochs": 3, "budget": 20}, "of what.*'20 trials'"),
        ((X, "acc"), {"max_epochs": 3, "budget": "2h, 3h"}, "twice how many time|says twice"),
        ((X, "acc"), {"max_epochs": 3, "budget": "20 trails"}, "did you mean 'trials'"),
        ((X, "acc"), {"max_epochs": 3, "budget": "-3 trials"}, "'-3 trials' allows nothing"),
        ((X, "acc"), {"max_epochs": 3, "budget": "0 trials"}, "a positive number"),
        ((X, "acc"), {"max_epochs": 3, "budget": "patience 10"}, "'10 trials without gain'"),
        ((X, "acc"), {"max_epochs": 3, "budget": "10 epochs without gain"}, "a number of trials without gain"),
        ((X, "acc"), {"max_epochs": 3, "budget": "1.5 trials without gain"}, "a whole number"),
        ((X, "acc"), {"max_epochs": 3, "budget": "$50 at 2 EUR/h"}, "two currencies"),
        ((X, "acc"), {"max_epochs": 3, "budget": "50"}, "of what"),
    ],
)
def test_what_does_not_go_together_is_answered_with_what_does(arguments: Any, options: Any, answer: str) -> None:
    with pytest.raises(InvalidInput, match=answer):
        Study(*arguments, **options)


def test_a_space_of_constants_is_doubted() -> None:
    with pytest.warns(HaltuneWarning, match="all trials train one configuration"):
        Study({"lr": 0.1, "optimizer": "adam"}, "acc", max_epochs=3)


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("30min", Budget(time=1800)),
        ("1h30m", Budget(time=5400)),
        ("1 day", Budget(time=86400)),
        ("20 trials", Budget(trials=20)),
        ("500 epochs", Budget(epochs=500)),
        ("20 trials, 2h", Budget(trials=20, time=7200)),
        ("1.5h, 20 runs", Budget(trials=20, time=5400)),
        ("100 epochs or 2 hours", Budget(epochs=100, time=7200)),
        ("10 trials without gain", Budget(trials_without_gain=10)),
        ("2h or 10 trials without gain", Budget(time=7200, trials_without_gain=10)),
        ("50 trials, 10 trials in a row without improvement", Budget(trials=50, trials_without_gain=10)),
        ("1 run with no improvement and 2h", Budget(time=7200, trials_without_gain=1)),
        ("1e4 epochs or 90 min", Budget(epochs=10_000, time=5400)),
        ("10,000 epochs, 90min", Budget(epochs=10_000, time=5400)),
        ("2.5 epochs,300 trials", Budget(epochs=2.5, trials=300)),
        ("$50 at 2.10/h", Budget(money=50, price=2.1)),
        ("50 at 2.10/h", Budget(money=50, price=2.1)),
        ("50 EUR at 2.1 EUR per hour, 3 days", Budget(money=50, price=2.1, time=259_200)),
        ("1,200 dollars @ $2 an hour or 10 trials without gain", Budget(money=1200, price=2, trials_without_gain=10)),
    ],
)
def test_a_budget_is_said_in_words(text: str, budget: Budget) -> None:
    study = Study(problem(), RandomSearch(), budget=text)
    assert study.budget == budget
    study.budget = "7 trials"
    assert study.budget == Budget(trials=7)


@pytest.mark.parametrize("goal", [Minimize("val_acc"), Maximize("train/loss")])
def test_a_goal_the_wrong_way_round_is_doubted_when_the_search_is_made_and_once(goal: Any) -> None:
    store = MemoryStore()
    with pytest.warns(HaltuneWarning, match="for the best. Is .* meant") as caught:
        study = Study(X, goal, store, max_epochs=3, budget="1 trial")
    begun(study)
    assert caught[0].filename == __file__
    Study(Problem(Space(X), goal, 3), store=store)  # warnings are errors here
    Study(Problem(Space(X), goal, 3), verbose=0)


# how long a training is


def test_who_does_not_say_how_long_a_training_is_is_asked_when_it_matters() -> None:
    study = Study(X, "acc", budget="3 trials")
    assert repr(study) == "Study('study', not begun: it lacks max_epochs)"
    with pytest.raises(InvalidInput, match="max_epochs=30"):
        study.ask()
    with pytest.raises(InvalidInput, match="max_epochs=30"):
        print(study.best)


def test_a_problem_says_itself_how_long_a_training_is_so_that_what_lacks_it_is_refused_at_once() -> None:
    with pytest.raises(InvalidInput, match="InfiniteHyperband"):
        Study(Problem(Space(X), Maximize("acc")), budget="3 trials")
    with pytest.raises(InvalidInput, match="BOBOS needs a horizon"):  # one epoch does not suit it, either
        Study(X, "acc", policy=Hyperband(9, sampler=BOBOS()), budget="3 trials")


def test_a_policy_that_needs_no_length_gets_none() -> None:
    assert begun(Study(X, "acc", policy=RandomSearch(), budget="1 trial")).max_epochs is None
    assert begun(Study(X, "acc", policy=InfiniteHyperband(), budget="1 trial")).max_epochs == 1_000_000_000


# a loop without `with`


def test_a_trial_that_was_left_without_with_is_finished() -> None:
    study = Study(SPACE, "acc", max_epochs=2, policy=RandomSearch(trials=2))
    for trial in study:
        trial.report(0.5)
    assert [t.status for t in study.trials] == [Status.COMPLETED] * 2


def test_an_exception_through_a_loop_without_with_gives_the_trial_back_at_once() -> None:
    study = Study(SPACE, "acc", max_epochs=2, policy=RandomSearch(trials=2))
    gc.disable()  # it must not wait for a collection
    try:
        with pytest.raises(ZeroDivisionError) as caught:
            for trial in study:
                trial.report(0.5)
                print(1 / 0)
        assert caught.value.__traceback__ is not None  # which still holds the loop's frame
        assert [t.status for t in study.trials] == [Status.INTERRUPTED]
    finally:
        gc.enable()
    again = begun(study)
    assert (again.id, again.attempt) == (0, 2)


def test_a_loop_in_a_function_gives_its_trial_back_on_return_and_on_error() -> None:
    study = Study(SPACE, "acc", max_epochs=2, policy=RandomSearch(trials=2))

    def first() -> int:
        for trial in study:
            return trial.id
        return -1

    assert first() == 0
    assert study.trials[0].status is Status.INTERRUPTED


# functions


def test_a_function_that_returns_a_value_is_a_training_of_one_epoch() -> None:
    study = Study(X, "acc", budget="5 trials", seed=0)
    assert study.optimize(lambda trial: trial.config["x"]) is study
    assert study.problem.max_epochs == 1
    assert [t.epoch for t in study.trials] == [1] * 5
    assert study.best_value == max(t.config["x"] for t in study.trials)


def test_a_value_that_is_returned_stands_for_the_whole_training() -> None:
    study = Study(X, "acc", max_epochs=4, policy=RandomSearch(trials=2)).optimize(lambda trial: 0.5)
    assert [(t.epoch, t.status) for t in study.trials] == [(4, Status.COMPLETED)] * 2


def test_a_function_that_reports_itself_may_return_what_it_likes() -> None:
    def train(trial: Trial) -> str:
        for epoch in trial.epochs():
            trial.report(0.1 * epoch)
        return "done"

    study = Study(X, "acc", max_epochs=4, policy=RandomSearch(trials=2)).optimize(train)
    assert [list(t.values) for t in study.trials] == [pytest.approx([0.1, 0.2, 0.3, 0.4])] * 2


@pytest.mark.parametrize(
    ("came_to", "answer"),
    [
        (None, "return the value"),
        ("good", "returns, the acc, is one number"),
        ({"f1": 0.5}, "a report lacks .acc."),
        ([0.4, 0.8], "take the one that is meant, or the mean"),
    ],
)
def test_a_function_that_says_nothing_is_told_what_to_say(came_to: Any, answer: str) -> None:
    study = Study(X, "acc", budget="5 trials")
    with pytest.raises(InvalidInput, match=answer):
        study.optimize(lambda trial: came_to)
    assert [t.status for t in study.trials] == [Status.FAILED]


def test_what_is_no_function_and_no_number_of_workers_is_refused() -> None:
    study = Study(X, "acc", budget="5 trials")
    with pytest.raises(InvalidInput, match="a function of a trial"):
        study.optimize(0.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"the trial alone, train\(trial\), and <lambda>\(lr, width\) takes"):
        study.optimize(lambda lr, width: 0.5)  # type: ignore[misc, arg-type]
    with pytest.raises(InvalidInput, match=r"workers=0"):
        study.optimize(lambda trial: 0.5, workers=0)


# the best


def test_the_best_is_there_by_its_parts() -> None:
    study = Study(X, "loss", budget="3 trials", seed=0)
    study.optimize(lambda trial: trial.config["x"])
    best = study.best
    assert best is not None
    assert (study.best_params, study.best_value) == (best.config, best.value)
    assert study.best_trial.id == best.trial
    study.best_params["x"] = 7.0
    assert study.best == best


@pytest.mark.parametrize("part", ["best_params", "best_value", "best_trial"])
def test_without_a_value_there_is_no_best_and_that_is_said(part: str) -> None:
    study = Study(X, "loss", max_epochs=2)
    with pytest.raises(InvalidInput, match="No trial of 'study' has a value yet"):
        getattr(study, part)


# ask and tell


def test_a_value_is_told_for_a_trial_that_was_asked_for() -> None:
    study = Study(X, "acc", max_epochs=3, policy=RandomSearch(trials=2))
    one = begun(study)
    assert not study.tell(one, 0.5, epoch=1).stops
    assert study.trials[0].status is Status.RUNNING
    study.tell(one, 0.7)
    two = begun(study)
    study.tell(two, 0.4)
    assert [(t.epoch, t.values[-1], t.status) for t in study.trials] == [
        (3, 0.7, Status.COMPLETED), (3, 0.4, Status.COMPLETED),
    ]  # fmt: skip
    with pytest.raises(InvalidInput, match=r"as study.ask\(\) answers it, not 0"):
        study.tell(0, 0.5)  # type: ignore[arg-type]
