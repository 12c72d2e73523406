"""Expected improvement and its costly forms: what they believe, what they choose, what they report."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from virtual import SQUARE, hill, search, slope, study

from haltune import Budget, Choice, Float, Maximize, Minimize, Problem, Space, Study
from haltune.gp import Posterior
from haltune.log.decisions import continue_
from haltune.log.events import Ended, Reported, Started, Status
from haltune.log.history import History
from haltune.policies import EI
from haltune.policies.acquisition import log_ei
from haltune.policies.bayesopt import ImprovementSurrogate, Squash
from haltune.policies.costs import CostOptions, RemainingBudget
from haltune.study.redecide import redecide

DONE = continue_("trained in full")
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
    """EI(x) >= EI(x') and EI(x') / c(x') >= EI(x) / c(x) imply c(x') <= c(x)."""
    history = search(study(EI(), Budget(trials=6), seed=seed)).history
    rng = lambda: history.rng("propose", history.moves)  # noqa: E731
    policies = (EI(), EI(cost="per", cost_function=known_cost))
    chosen = [policy.propose(tuple(range(6)), history, rng()) for policy in policies]
    costs = [slope(move.config) for move in chosen]
    assert costs[1] < costs[0] * (1 + 1e-6)


def test_cooling_ends_as_expected_improvement():
    found = search(study(EI(cost="cooled", initial=3), Budget(trials=10)))
    alphas = [e.evidence["alpha"] for e in found.events() if e.kind == "started" and "alpha" in e.evidence]
    np.testing.assert_allclose(alphas, [0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


@pytest.mark.parametrize("cost", [None, *(pytest.param(cost, marks=pytest.mark.slow) for cost in ("per", "cooled"))])
def test_the_hill_is_climbed(cost):
    assert search(study(EI(cost=cost), Budget(trials=22))).best.value > 0.995


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


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_units_lead_to_y_and_back(sign):
    results = np.array([0.1, 0.5, 0.8, 0.9, -50.0])
    squash = Squash.of(results, sign)
    y = squash.squashed(results)
    assert (np.diff(y[np.argsort(results)]) > 0).all()
    np.testing.assert_allclose([squash.value(v) for v in y], sign * results)
    assert y.max() - y.min() == pytest.approx(np.log(1 + 50.9 / (0.4 * 0.3)))


def test_a_belief_depends_on_the_goal_through_its_sign_alone():
    up = search(study(EI(), Budget(trials=8), goal=Maximize("acc")))
    down = search(study(EI(), Budget(trials=8), goal=Minimize("loss")), value=lambda c: -hill(c))
    assert [t.config for t in up.trials] == [t.config for t in down.trials]


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
    assert ", expected gain " in reason
    assert f"P(beats {sign * max(sign * t.values[-1] for t in found.trials[:5]):.4g})" in reason


def test_one_policy_for_two_studies_decides_as_two_policies():
    """The studies have equal seeds and costs, and different configurations."""
    policy, posed = EI(cost="per", initial=1), Problem(SQUARE, Maximize("acc", (0, 1)), 1)
    for a in (0.1, 0.9):
        found = Study(posed, policy, seed=0, budget=Budget(trials=2))
        found.enqueue({"a": a, "b": 0.5})
        for trial in found:
            trial.report(hill(trial.config), seconds=1.0, cost=2.0 + trial.id)
            trial.finish()
        assert [d for d in redecide(posed, EI(cost="per", initial=1), found.events()) if d[1] != d[2]] == []


@pytest.mark.slow
def test_a_policy_keeps_few_models_because_each_is_as_large_as_all_data():
    policy = EI(cost="per", initial=3)
    before = {id(o) for o in gc.get_objects() if isinstance(o, Posterior)}
    found = search(study(policy, Budget(trials=24, cost=1e9)), cost=lambda config: 1.0 + config["a"])
    gc.collect()
    kept = [o for o in gc.get_objects() if isinstance(o, Posterior) and id(o) not in before]
    assert len(found.trials) == 24
    assert len(kept) <= 30, len(kept)


@pytest.mark.slow
@pytest.mark.parametrize("trials", [2000, 2005, 2010])
def test_of_many_trials_the_model_keeps_as_many_as_a_fit(trials):
    problem = Problem(SQUARE, Maximize("acc", (0, 1)), 1)
    history = History(problem)
    for id, config in enumerate(SQUARE.sample(trials, np.random.default_rng(0))):
        facts = {"at": float(id), "trial": id}
        history.apply(
            Started(
                **facts,
                config=config,
                pause_at=1.0,
                resource=None,
                tags={},
                reason="",
                evidence={},
                seen=0,
                deciding=0.0,
                worker="",
            )
        )
        history.apply(Reported(**facts, attempt=1, epoch=1.0, value=hill(config), seconds=1.0, verdict=DONE, seen=0))
        history.apply(Ended(**facts, attempt=1, status=Status.COMPLETED))
    improvement = ImprovementSurrogate(10).improvement(history, tuple(range(trials)))
    assert improvement.posterior.n == 2000
