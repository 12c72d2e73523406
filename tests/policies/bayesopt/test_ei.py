"""Expected improvement and its costly forms: what they believe, what they choose, what they report."""

from __future__ import annotations

import numpy as np
import pytest
from virtual import SQUARE, hill, search, slope, study
from worlds import Clock

from haltune import Budget, Choice, Float, Maximize, Minimize, Space
from haltune.errors import InvalidInput, NotSupported
from haltune.policies import EI
from haltune.policies.acquisition import log_ei
from haltune.policies.bayesopt import ImprovementSurrogate, Squash
from haltune.policies.costs import CostOptions, RemainingBudget
from haltune.policies.from_spec import policy_from
from haltune.store.memory import MemoryStore
from haltune.study.asking import propose

GRID = Space({"a": Choice([i / 9 for i in range(10)], ordered=True), "b": Choice([0.1, 0.3, 0.5], ordered=True)})


def known_cost(config):
    return slope(config)


def grid_study(policy, trials):
    return search(study(policy, Budget(trials=trials), space=GRID))


@pytest.mark.parametrize(
    ("policy", "alpha"), [(EI(initial=4), 0.0), (EI(cost="per", initial=4), 1.0), (EI(cost="cooled", initial=4), 2 / 8)]
)
def test_on_a_small_grid_the_choice_is_the_largest_of_all(policy, alpha):
    whole = search(study(policy, Budget(trials=8), space=GRID))
    finished = tuple(range(6))
    sixth = grid_study(policy, 6) if alpha != 0.25 else None
    chosen = whole.trials[6].config
    before = sixth or whole
    improvement = ImprovementSurrogate(10).improvement(before.history, finished)
    tried = {GRID.key(t.config) for t in whole.trials[:6]}
    new = [c for c in GRID.enumerate() if GRID.key(c) not in tried]
    x = GRID.encode_many(new)
    remaining = RemainingBudget(CostOptions("EI"), before.history, finished)
    log_cost = remaining.model("seconds").predict(x).log_median
    score = log_ei(*improvement.posterior.predict(x), improvement.best).value - alpha * log_cost
    assert score[new.index(chosen)] == pytest.approx(score.max(), abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_dividing_by_cost_chooses_what_is_cheaper(seed):
    """EI(x) >= EI(x') and EI(x') / c(x') >= EI(x) / c(x) leave c(x') <= c(x) alone."""
    history = search(study(EI(), Budget(trials=6), seed=seed)).history
    chosen = [propose(policy, tuple(range(6)), history) for policy in (EI(), EI(cost="per", cost_function=known_cost))]
    costs = [slope(move.config) for move in chosen]
    assert costs[1] < costs[0] * (1 + 1e-6)


def test_what_trials_report_is_the_cost():
    found = search(study(EI(cost="per", initial=3), Budget(trials=8)), cost=lambda c: 5.0 - 4.0 * c["a"])
    started = [e for e in found.events() if e.kind == "started"]
    improvement, true = (
        [f(e) for e in started[5:]] for f in (lambda e: e.evidence["cost"], lambda e: 5 - 4 * e.config["a"])
    )
    np.testing.assert_allclose(improvement, true, rtol=0.3)


def test_cooling_ends_as_expected_improvement():
    found = search(study(EI(cost="cooled", initial=3), Budget(trials=10)))
    alphas = [e.evidence["alpha"] for e in found.events() if e.kind == "started" and "alpha" in e.evidence]
    np.testing.assert_allclose(alphas, [0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize("cost", [None, *(pytest.param(cost, marks=pytest.mark.slow) for cost in ("per", "cooled"))])
def test_the_hill_is_climbed(cost):
    assert search(study(EI(cost=cost), Budget(trials=22))).best.value > 0.995


def test_a_design_begins_cheap_and_far_apart():
    found = search(study(EI(cost="per", cost_function=known_cost), Budget(trials=6)))
    x = np.array([found.history.points[i] for i in range(6)])
    apart = [np.linalg.norm(x[i] - x[:i], axis=1).min() for i in range(1, 6)]
    assert min(apart) > 0.1
    assert np.mean([slope(t.config) for t in found.trials[1:]]) < 10.6  # sqrt(4 x 28): the middle


def test_a_design_stays_in_the_middle_of_every_parameter():
    found = search(study(EI(cost="per", initial=5), Budget(trials=5)))
    x = np.array([found.history.points[i] for i in range(5)])
    assert (np.abs(x - 0.5) <= 0.25 + 1e-9).all()


def test_a_design_of_categories_and_constraints_has_no_repeats_and_breaks_none():
    space = Space(
        {"a": Float(0.0, 1.0), "kind": Choice(["x", "y", "z"]), "on": Choice([False, True])}, constraints=[at_most_half]
    )
    found = search(study(EI(cost="per", initial=6), Budget(trials=6), space=space), value=value, seconds=value)
    configs = [t.config for t in found.trials]
    assert all(config["a"] <= 0.5 for config in configs)
    assert len({space.key(config) for config in configs}) == 6
    assert {config["kind"] for config in configs} == {"x", "y", "z"}  # far apart


def at_most_half(config):
    return config["a"] <= 0.5


def value(config):
    return 0.1 + config["a"]


def test_a_design_of_a_space_smaller_than_itself_tries_all_of_it():
    space = Space({"n": Choice([1, 2, 3], ordered=True)})
    found = search(study(EI(cost="per", initial=3), Budget(trials=3), space=space), value=level, seconds=level)
    assert sorted(t.config["n"] for t in found.trials) == [1, 2, 3]


def level(config):
    return 0.1 * config["n"]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_units_lead_to_y_and_back(sign):
    results = np.array([0.1, 0.5, 0.8, 0.9, -50.0])
    squash = Squash.of(results, sign)
    y = squash.squashed(results)
    assert (np.diff(y[np.argsort(results)]) > 0).all()
    np.testing.assert_allclose([squash.value(v) for v in y], sign * results)
    assert y.max() - y.min() == pytest.approx(np.log(1 + 50.9 / (0.4 * 0.3)))


def test_what_is_not_finite_counts_as_the_worst_that_is():
    squash = Squash.of(np.array([0.2, 0.7]), 1.0)
    y = squash.squashed(np.array([0.2, np.nan, 0.7, -np.inf]))
    assert y[1] == y[3] == y[0] == y.min()


@pytest.mark.parametrize("results", [[0.5], [0.5, 0.5, 0.5], [0.0], [0.1, 0.9, 0.9, 0.9], [-1e9, 1.0]])
def test_units_of_odd_results_are_finite(results):
    y = Squash.of(np.array(results), 1.0).squashed(np.array(results))
    assert np.isfinite(y).all()


def test_a_belief_depends_on_the_goal_through_its_sign_alone():
    up = search(study(EI(), Budget(trials=8), goal=Maximize("acc")))
    down = search(study(EI(), Budget(trials=8), goal=Minimize("loss")), value=lambda c: -hill(c))
    assert [t.config for t in up.trials] == [t.config for t in down.trials]


@pytest.mark.parametrize(
    "policy", [EI(3), EI(cost="per", cost_model=["a", "b"]), EI(cost="cooled", initial=2, refit_every=5)]
)
def test_a_spec_rebuilds_the_policy(policy):
    assert policy_from(policy.spec).spec == policy.spec


def test_a_function_is_only_named_in_a_spec():
    assert EI(cost="per", cost_function=known_cost).spec["cost_function"] == {"function": "known_cost"}
    with pytest.raises(NotSupported, match="known_cost"):
        policy_from(EI(cost="cooled", cost_model=known_cost).spec)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: EI(initial=0), "initial"), (lambda: EI(refit_every=True), "refit_every"),
        (lambda: EI(cost="per", cost_function="seconds"), "function"), (lambda: EI(cost_model=["a"]), "need cost="),
        (lambda: EI(cost="cooled", cost_model="line"), "'gp'"), (lambda: EI(cost=known_cost), "cost_function="),
        (lambda: study(EI(cost="per", cost_model=["c"]), Budget(trials=2)), "parameters of the space"),
    ],
)  # fmt: skip
def test_options_outside_what_is_allowed_are_refused(make, match):
    with pytest.raises(InvalidInput, match=match):
        make()


def test_a_search_goes_on_in_another_process_where_it_was():
    store = MemoryStore(Clock())
    search(study(EI(cost="cooled", initial=2), Budget(trials=4), store=store))
    parts = search(study(EI(cost="cooled", initial=2), Budget(trials=6), store=store))
    assert len(parts.trials) == 6
    assert len({SQUARE.key(t.config) for t in parts.trials}) == 6


@pytest.mark.parametrize("goal", [Maximize("acc", (0, 1)), Minimize("loss", (-1, 0))])
def test_what_is_hoped_of_a_configuration_is_what_draws_of_the_belief_show(goal):
    sign = goal.sign
    found = search(study(EI(initial=3), Budget(trials=6), goal=goal), value=lambda c: sign * hill(c))
    improvement = ImprovementSurrogate(10).improvement(found.history, tuple(range(6)))
    best = max(sign * t.values[-1] for t in found.trials)
    rng = np.random.default_rng(0)
    for config in SQUARE.sample(5, rng):
        point = SQUARE.encode(config)[None]
        mean, variance = improvement.posterior.predict(point)
        draws = mean + np.sqrt(variance) * rng.standard_normal(200_000)
        values = np.array([sign * improvement.squash.value(y) for y in draws])
        gains = np.maximum(values - best, 0.0)
        hopes = improvement.prediction(point)
        assert hopes["beats"] == pytest.approx(np.mean(values > best), abs=0.006)
        assert hopes["gain"] == pytest.approx(gains.mean(), abs=5 * gains.std() / len(gains) ** 0.5 + 1e-12)
        assert hopes["predicted"] == pytest.approx(sign * np.median(values), abs=0.01)
    reason = found.trials[-1].proposed
    assert f"of {goal.metric} on average" in reason
    assert f"P(beats {sign * max(sign * t.values[-1] for t in found.trials[:5]):.4g})" in reason
