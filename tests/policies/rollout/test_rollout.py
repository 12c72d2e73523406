"""Rollout as a policy: what it launches, when it ends, and what it keeps to."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from virtual import SQUARE, search, slope, study, train
from worlds import Clock

from haltune import Budget, Finish, Trial, Wait
from haltune.errors import StudyMismatch
from haltune.log.events import Budgeted
from haltune.policies import RandomSearch, Rollout
from haltune.policies.costs import CostOptions, Left, RemainingBudget
from haltune.store.memory import MemoryStore
from haltune.study.redecide import redecide

SMALL = {"points": 32, "paths": 8, "initial": 3}


def known_cost(config):
    return slope(config)


@cache
def planned():
    """Return a search of known costs; read only."""
    return search(study(Rollout(cost=known_cost, **SMALL), Budget(time=150)))


def test_what_is_known_is_never_overdrawn_and_the_end_says_what_is_left():
    found = planned()
    left = 150 - found.spent.time
    assert 0.0 <= left < 4.1
    assert f"{left:.4g} of 150 s are left" in found.ask().reason
    assert "nothing is affordable" in found.outcome.reason


def noisy_costs(deviation):
    """A search of 60 trials whose costs are noisy, 400 configurations, and what these take."""
    rng = np.random.default_rng(0)

    def noisy(config):
        return slope(config) * float(np.exp(deviation * rng.standard_normal()))

    found = search(study(RandomSearch(), Budget(trials=60)), seconds=noisy)
    configs = SQUARE.sample(400, np.random.default_rng(1))
    return found, configs, np.array([noisy(config) for config in configs])


def test_a_cautious_quantile_covers_what_trainings_then_take():
    found, configs, taken = noisy_costs(0.4)
    for affordable in (0.5, 0.9):
        options = CostOptions("Rollout", affordable=affordable)
        remaining = RemainingBudget(options, found.history, tuple(range(60)))
        costs = remaining.costs("seconds", SQUARE.encode_many(configs))
        assert np.mean(taken <= costs) == pytest.approx(affordable, abs=0.08)


def test_the_chance_that_a_trial_ends_in_time_is_that_of_the_learnt_cost():
    found, configs, taken = noisy_costs(0.5)
    remaining = RemainingBudget(CostOptions("Rollout"), found.history, tuple(range(60)))
    points = SQUARE.encode_many(configs)
    for amount in (6.0, 12.0, 30.0):
        left = [Left("seconds", amount, 100.0), Left("trials", 5.0, 10.0)]
        chance = remaining.chance(points, left)
        assert chance.mean() == pytest.approx(np.mean(taken <= amount), abs=0.08)
    known = RemainingBudget(CostOptions("Rollout", cost=known_cost), found.history, tuple(range(60)))
    left = [Left("seconds", 12.0, 100.0)]
    exact = known.chance(points, left)
    np.testing.assert_array_equal(exact, [float(slope(c) <= 12.0) for c in configs])


def test_plans_count_by_their_cost_until_the_end_of_the_budget_is_in_sight():
    found = planned()
    started = [e for e in found.events() if e.kind == "started" and "alpha" in e.evidence]
    for event in started:
        left, alpha = event.evidence["left"][0], event.evidence["alpha"]
        assert alpha in (0.0, 1.0)
        assert alpha == 1.0 or left < 2 * 28.0  # the dearest there is
        assert alpha == 0.0 or left > 2 * 4.0  # the cheapest
    assert {e.evidence["alpha"] for e in started} == {0.0, 1.0}


def test_a_budget_of_epochs_pays_for_whole_trainings():
    found = search(study(Rollout(**SMALL), Budget(epochs=23), epochs=5))
    assert found.spent.epochs == 20
    assert "3 of 23 epochs are left" in found.outcome.reason


def test_running_trials_have_their_costs_reserved():
    store = MemoryStore(Clock())
    workers = [study(Rollout(cost=known_cost, **SMALL), Budget(worker_time=100), store=store) for _ in range(4)]
    held, promised = [], 0.0
    for _ in range(40):
        answer = workers[len(held) % 4].ask()
        if not isinstance(answer, Trial):
            break
        held.append(answer)
        promised += slope(answer.config)
    assert promised <= 100
    assert isinstance(answer, Wait)
    assert "left after the running trials" in answer.reason
    assert len({tuple(t.config.values()) for t in held}) == len(held)


def test_a_changed_budget_is_logged_and_every_decision_comes_out_again():
    store = MemoryStore(Clock())
    search(study(Rollout(**SMALL), Budget(trials=3), store=store))
    again = search(study(Rollout(**SMALL), Budget(time=120, trials=5), store=store))
    budgets = [e.budget for e in again.events() if isinstance(e, Budgeted)]
    assert budgets == [{"trials": 3}, {"trials": 5, "time": 120.0}]
    assert again.history.budget == Budget(time=120, trials=5)
    decisions = list(redecide(again.problem, Rollout(**SMALL), again.events()))
    assert len(decisions) >= 4
    assert [d for d in decisions if d[1] != d[2]] == []


def test_a_study_is_reopened_with_a_function_of_the_same_name_only():
    store = MemoryStore(Clock())
    search(study(Rollout(cost=known_cost, **SMALL), Budget(trials=2), store=store))
    assert len(search(study(Rollout(cost=known_cost, **SMALL), Budget(trials=3), store=store)).trials) == 3
    with pytest.raises(StudyMismatch, match="known_cost"):
        study(Rollout(cost=slope, **SMALL), Budget(trials=4), store=store)


def width(config):
    return 7.0 ** config["a"]


@pytest.mark.parametrize("model", [*(pytest.param(m, marks=pytest.mark.slow) for m in ("gp", width)), ["a"]])
def test_a_cost_model_learns_what_trainings_cost(model):
    found = search(study(Rollout(cost_model=model, **SMALL), Budget(time=160)))
    finished = tuple(range(len(found.trials)))
    points = SQUARE.encode_many(SQUARE.sample(50, np.random.default_rng(0)))
    options = CostOptions("Rollout", cost_model=model)
    costs = RemainingBudget(options, found.history, finished).costs("seconds", points)
    np.testing.assert_allclose(costs, [slope(c) for c in SQUARE.decode_many(points)], rtol=0.4)
    errors = np.log(costs) - np.log([slope(c) for c in SQUARE.decode_many(points)])
    assert np.sqrt(np.mean(errors**2)) < 0.15


def test_a_budget_that_pays_for_nothing_trains_nothing():
    found = study(Rollout(cost=known_cost, **SMALL), Budget(time=3.0))
    answer = found.ask()
    assert isinstance(answer, Finish)
    assert "3 of 3 s are left, and the cheapest configuration is expected to take 4" in answer.reason


def test_a_run_is_stopped_where_time_would_run_out_in_its_next_epoch():
    clock = Clock()
    found = study(Rollout(**SMALL), Budget(time=10.0), epochs=5, store=MemoryStore(clock))
    trial = found.ask()
    train(trial, clock, seconds=lambda c: 20.0)
    assert trial.verdict.stops
    assert "training for 1 epoch takes 4 s, and 2 s are left" in trial.verdict.reason
    assert found.spent.time == pytest.approx(8.0)
