"""Rollout as a policy: what it launches, when it ends, and what it keeps to."""

from __future__ import annotations

import numpy as np
import pytest
from virtual import SQUARE, hill, search, slope, study, train
from worlds import Clock

from haltune import Budget, Finish, Maximize, Minimize, OptimalStopping, Problem, Trial, Wait
from haltune.errors import InvalidInput, NotSupported, StudyMismatch
from haltune.log.events import Budgeted, Status
from haltune.policies import EI, Halting, RandomSearch, Rollout
from haltune.policies.costs import CostOptions, Left, RemainingBudget, full_cost, trained_share
from haltune.policies.from_spec import policy_from
from haltune.store.memory import MemoryStore
from haltune.study.replay import replay

SMALL = {"points": 32, "paths": 8, "initial": 3}
TEN_MINUTES = Budget(time="10min")


def known_cost(config):
    return slope(config)


def distance(config, previous):
    here = (config["a"], config["b"])
    return 0.05 if previous is None else 0.01 + float(np.hypot(here[0] - previous["a"], here[1] - previous["b"]))


def started(found):
    return [(t.config, found.history.worker_seconds(t.id)) for t in found.trials]


@pytest.mark.slow
@pytest.mark.parametrize("policy", [Rollout(**SMALL), Rollout(3, affordable=0.9, **SMALL)])
@pytest.mark.parametrize("epochs", [12, 1])
def test_ten_minutes_of_short_trainings_end_between_nine_and_ten(policy, epochs):
    for seed in range(1 if epochs == 12 else 3):
        found = search(study(policy, TEN_MINUTES, epochs, seed), start_up=1.5)
        ended = max(e.at for e in found.events()) - min(e.at for e in found.events())
        assert 540.0 <= ended <= (600.0 if epochs > 1 else 606.0)
        assert found.best.epoch == epochs
        assert found.best.value > 0.97


def test_nothing_affordable_ends_the_search_and_says_what_is_left():
    found = search(study(Rollout(cost=known_cost, **SMALL), Budget(time=100)))
    left = 100 - found.spent.time
    assert left < 4.1
    assert f"{left:.4g} of 100 s are left" in found.ask().reason
    assert "nothing is affordable" in found.outcome.reason


@pytest.mark.parametrize(
    ("horizon", "budget"),
    [(1, 30), (2, 61), *(pytest.param(*case, marks=pytest.mark.slow) for case in [(1, 61), (2, 30), (4, 30), (4, 61)])],
)
def test_what_is_known_is_never_overdrawn(horizon, budget):
    found = search(study(Rollout(horizon, cost=known_cost, **SMALL), Budget(time=budget)))
    assert found.spent.time <= budget * (1 + 1e-9)
    assert len(found.trials) >= 1


def test_the_last_trainings_are_those_that_still_fit():
    found = search(study(Rollout(**SMALL), Budget(time=200)))
    spent = np.cumsum([s for _, s in started(found)])
    assert spent[-1] <= 200 * 1.02  # the median of a cost learnt from twenty trials
    assert spent[-1] >= 200 - 5


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
    found = search(study(Rollout(cost=known_cost, **SMALL), Budget(time=150)))
    started = [e for e in found.events() if e.kind == "started" and "alpha" in e.evidence]
    for event in started:
        left, alpha = event.evidence["left"][0], event.evidence["alpha"]
        assert alpha in (0.0, 1.0)
        assert alpha == 1.0 or left < 2 * 28.0  # the dearest there is
        assert alpha == 0.0 or left > 2 * 4.0  # the cheapest
    assert {e.evidence["alpha"] for e in started} == {0.0, 1.0}


def test_time_and_money_are_kept_together():
    # 100 s of time, and 0.6 of a price that makes 72 s of work
    found = search(study(Rollout(cost=known_cost, **SMALL), Budget(time=100, money=0.6, price=30)))
    assert found.spent.money(30) <= 0.6
    assert found.spent.time <= 72.0
    assert "of 72 s are left" in found.outcome.reason


def test_reported_costs_and_time_are_kept_together():
    def dear(config):
        return 10.0 * (1.0 - config["a"]) + 1.0

    found = search(study(Rollout(cost=dear, **SMALL), Budget(time=200, cost=20)), cost=dear)
    assert found.spent.cost <= 20 * (1 + 1e-9)
    assert found.spent.cost > 15
    assert found.spent.time <= 200 * 1.05


@pytest.mark.slow
def test_reported_costs_that_are_learnt_are_kept_to():
    def dear(config):
        return 10.0 * (1.0 - config["a"]) + 1.0

    learnt = search(study(Rollout(**SMALL), Budget(cost=60)), cost=dear)
    assert 50 < learnt.spent.cost < 70


def test_a_budget_of_epochs_pays_for_whole_trainings():
    found = search(study(Rollout(**SMALL), Budget(epochs=23), epochs=5))
    assert found.spent.epochs == 20
    assert "3 of 23 epochs are left" in found.outcome.reason


def test_fewer_epochs_than_one_training_still_train_one():
    found = search(study(Rollout(**SMALL), Budget(epochs=3), epochs=5))
    assert found.spent.epochs == 3


def test_running_trials_have_their_costs_set_aside():
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
    assert "beside the trials that run" in answer.reason
    assert len({tuple(t.config.values()) for t in held}) == len(held)


def test_wall_clock_time_is_not_set_aside_for_workers_that_spend_it_together():
    store = MemoryStore(Clock())
    workers = [study(Rollout(cost=known_cost, **SMALL), Budget(time=30), store=store) for _ in range(3)]
    assert all(isinstance(w.ask(), Trial) for w in workers)


class Journey:
    """What trials take that is spent by moving from one configuration to the next."""

    def __init__(self):
        self.previous, self.ways = None, []

    def __call__(self, config):
        cost = distance(config, self.previous)
        self.previous = config
        self.ways.append(cost)
        return cost


@pytest.mark.slow
def test_moving_far_is_dear_and_a_search_that_plans_moves_less():
    ways, found = {}, {}
    for name, policy in (("plans", Rollout(cost=distance, **SMALL)), ("random", RandomSearch())):
        journey = Journey()
        found[name] = search(study(policy, Budget(cost=4.0), seed=0), cost=journey)
        ways[name] = journey.ways
    assert found["plans"].spent.cost <= 4.0 * (1 + 1e-9)
    assert np.mean(ways["plans"]) < 0.7 * np.mean(ways["random"])


@pytest.mark.slow
def test_the_learnt_chance_of_stopping_makes_trainings_cheaper():
    halting = Halting(Rollout(**SMALL), OptimalStopping(paths=2000, first=10, resolve_at=(20, 30)))
    found = search(study(halting, Budget(epochs=120), epochs=20))
    finished = tuple(t.id for t in found.trials if t.status in (Status.COMPLETED, Status.STOPPED))
    stopped = [t for t in found.trials if t.status is Status.STOPPED]
    assert stopped
    missing = sum(1 - t.epoch / 20 for t in stopped)
    assert trained_share(found.history, finished) == pytest.approx(1 - missing / (len(finished) + 1))
    assert full_cost(found.history, stopped[0].id, "seconds") == pytest.approx(slope(stopped[0].config), rel=0.2)
    points = SQUARE.encode_many([{"a": 0.5, "b": 0.5}])
    costs = RemainingBudget(CostOptions("Rollout"), found.history, finished).costs("epochs", points)
    assert costs[0] == pytest.approx(20 * trained_share(found.history, finished))


@pytest.mark.parametrize(
    "make", [lambda: EI(cost="per"), pytest.param(lambda: Rollout(**SMALL), marks=pytest.mark.slow)]
)
def test_minimising_is_maximising_the_opposite(make):
    up = study(make(), Budget(time=150), goal=Maximize("acc", (0, 1)))
    down = study(make(), Budget(time=150), goal=Minimize("loss", (-1, 0)))
    search(up)
    search(down, value=lambda c: -hill(c))
    assert [t.config for t in up.trials] == [t.config for t in down.trials]


def test_a_changed_budget_is_logged_and_every_decision_comes_out_again():
    store = MemoryStore(Clock())
    search(study(Rollout(**SMALL), Budget(trials=3), store=store))
    again = search(study(Rollout(**SMALL), Budget(time=120, trials=8), store=store))
    budgets = [e.budget for e in again.events() if isinstance(e, Budgeted)]
    assert budgets == [{"trials": 3}, {"trials": 8, "time": 120.0}]
    assert again.history.budget == Budget(time=120, trials=8)
    decisions = list(replay(again.problem, Rollout(**SMALL), again.events()))
    assert len(decisions) >= 4
    assert [d for d in decisions if d[1] != d[2]] == []


def test_policies_that_do_not_plan_are_shown_no_budget():
    found = search(study(RandomSearch(trials=2), Budget(time=60)))
    assert not [e for e in found.events() if isinstance(e, Budgeted) and e.plans]
    assert found.history.budget is None


def test_a_spec_rebuilds_the_policy_and_names_its_functions():
    policy = Rollout(3, 0.9, "terminate", False, cost_model=["a"], initial=3)
    assert policy_from(policy.spec).spec == policy.spec
    assert Rollout(cost=known_cost).spec["cost"] == {"function": "known_cost"}
    with pytest.raises(NotSupported, match="known_cost"):
        policy_from(Rollout(cost=known_cost).spec)


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


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"horizon": 0}, "horizon"), ({"affordable": 1.0}, "between 0 and 1"), ({"infeasible": "drop"}, "restrict"),
        ({"cooled": 2}, "cooled"), ({"cost": 3.0}, "function"), ({"cost_model": "tree"}, "'gp'"),
        ({"points": 0}, "points"),
        ({"cost": lambda a, b, c: 1.0}, "3 arguments"),
    ],
)  # fmt: skip
def test_options_outside_what_is_allowed_are_refused(options, match):
    with pytest.raises(InvalidInput, match=match):
        Rollout(**options)


def test_a_cost_model_must_name_parameters_of_the_space():
    with pytest.raises(InvalidInput, match="depth"):
        Rollout(cost_model=["depth"]).start(Problem(SQUARE, Maximize("acc")))


def test_a_cost_function_that_fails_says_so():
    with pytest.raises(InvalidInput, match="no_cost"):
        study(Rollout(cost=no_cost), Budget(time=10)).ask()


def no_cost(config):
    return -1.0


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
    assert "an epoch takes 4 s, and 2 s are left" in trial.verdict.reason
    assert found.spent.time == pytest.approx(8.0)
