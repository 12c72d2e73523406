"""Where a budget of trials alone bounds a search, more of the fewer trials go on."""

from __future__ import annotations

import pytest

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.policies import MultiFidelity
from haltune.policies.multifidelity.policy import Cuts

USUAL = Cuts(20, 3, 6)
PROBLEM = Problem(Space({"x": Float(0, 1)}), Maximize("acc", (0, 1)), 27)


@pytest.mark.parametrize(
    "budget", [None, Budget(), Budget(epochs=300), Budget(trials=20, time="1h"), Budget(trials=1000)]
)
def test_where_more_than_trials_is_short_or_there_are_many_the_options_hold(budget: Budget | None) -> None:
    found = USUAL.within(budget)
    assert (found.initial, found.eta, found.first) == (20, 3, 6)
    assert found.waiting(27, 3) == USUAL.waiting(27, 3)


def test_of_twenty_trials_half_of_a_rung_go_on_and_of_fewer_more() -> None:
    twenty, five = USUAL.within(Budget(trials=20)), USUAL.within(Budget(trials=5))
    assert (twenty.initial, twenty.eta, twenty.first, twenty.waiting(27, 3)) == (6, 2, 2, 4)
    assert five.first == 1
    assert five.eta == pytest.approx(2**0.5)
    assert Cuts(20, 3, 6, min_trials_per_rung=9).within(Budget(trials=20)).waiting(27, 3) == 9


@pytest.mark.parametrize(("trials", "least", "most"), [(5, 3, 5), (20, 4, 12), (60, 5, 40)])
def test_some_of_few_trials_train_in_full_and_of_many_by_far_not_all(trials: int, least: int, most: int) -> None:
    study = Study(PROBLEM, MultiFidelity(), seed=0, budget=Budget(trials=trials), verbose=0)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report((0.9 - (trial.config["x"] - 0.3) ** 2) * epoch / (epoch + 1), seconds=1.0)
            if trial.verdict is not None and trial.verdict.resumable:
                trial.checkpointed(f"memory of {trial.id}")
    assert len(study.trials) == trials
    assert least <= sum(t.epoch == 27 for t in study.trials) <= most


def test_a_budget_smaller_than_what_was_begun_lets_no_more_go_on_than_that() -> None:
    assert USUAL.within(Budget(trials=10), begun=20) == USUAL.within(Budget(trials=20), begun=20)
    assert USUAL.within(Budget(trials=20), begun=10) == USUAL.within(Budget(trials=20))
