"""With any reported number a search continues and answers, under every policy."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from everyone import each_of_one_goal
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import EPOCHS, POLICIES, SPACE

from examples import many
from haltune import Budget, Float, Maximize, Minimize, Problem, Space, Study, Trial
from haltune.errors import HaltuneWarning, InvalidInput
from haltune.log.events import Status
from haltune.log.scores import plausible
from haltune.policies import EI, Rollout, TruVaR
from haltune.report import summary
from haltune.report.page import page

SIZES = (1e-300, 1e-12, 1e5, 1e12, 1e30, 1e59, 1e61, 1e101, 1e150, 1.7e308)
WILD = [sign * size for size in SIZES for sign in (1.0, -1.0)] + [math.nan, math.inf, -math.inf, 0.0]
GOALS = (Minimize("loss"), Maximize("acc"), Maximize("acc", bounds=(0, 1)), Maximize("acc", of="best"))
BUDGETS = (Budget(trials=9), Budget(epochs=60), Budget(trials=8, cost=1e6, worker_time=1e9))
SECONDS, COSTS = (0.0, 1e-300, 1.0, 1e6, 1e150, 1.7e308), (None, 0.0, 1.0, 1e12, 1.7e308)
ANSWERS: dict[str, Callable[[Study], Any]] = {
    "best": lambda study: study.best,
    "recommend": lambda study: study.recommend(),
    "level set": lambda study: str(study.level_set(0.5)),
    "maximisers": lambda study: str(study.maximisers()),
    "outlook": lambda study: str(study.outlook()),
    "summary": summary,
    "page": lambda study: page(study),
    "frame": lambda study: study.frame(),
    "receipts": lambda study: [study.explain(t.id) for t in study.trials],
    "spent": lambda study: (study.spent, study.outcome),
}
FAIR = "Too few trials|nothing can be said yet|ended, too few|was measured for|is not estimated for|score_per_hour"


def stormy(policy: Any, chance: random.Random) -> Study:
    """A search with values, and sometimes seconds and costs, of any size among ordinary ones."""
    goal, share, dear = chance.choice(GOALS), chance.choice((0.1, 0.4, 1.0)), chance.random() < 0.4
    problem = Problem(SPACE, goal, EPOCHS)
    study = Study(problem, policy, seed=chance.randrange(99), budget=chance.choice(BUDGETS))
    for _ in range(14):
        trial = study.ask()
        if not isinstance(trial, Trial):
            break
        wild = chance.random() < share
        for epoch in trial.epochs():
            value = goal.sign * (0.3 + 0.05 * epoch + 0.1 * math.sin(9.0 * trial.config["lr"]))
            seconds, cost = (chance.choice(SECONDS), chance.choice(COSTS)) if dear else (1.0, None)
            trial.report(chance.choice(WILD) if wild and chance.random() < 0.6 else value, seconds=seconds, cost=cost)
        if trial.verdict is not None and trial.verdict.resumable:
            trial.checkpointed("saved")
        trial.finish()
    return study


def best_of(study: Study) -> float | None:
    """Return the best finite value of a completed trial, by the reports only; None if there is none."""
    goal, found = study.problem.goal, []
    for t in study.trials:
        finite = [v for v in t.values if math.isfinite(v)]
        if t.status is Status.COMPLETED and len(t.values) and not t.partial:  # of all samples
            counts = [t.values[-1]] if goal.of == "last" else finite and [max(finite, key=lambda v: goal.sign * v)]
            found += [v for v in counts if math.isfinite(v)]
    return max(found, key=lambda v: goal.sign * v) if found else None


@each_of_one_goal
@settings(max_examples=many(1))
@given(seed=st.integers(0, 10**6))
def test_no_number_that_is_reported_stops_a_search_or_an_answer(name: str, seed: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", HaltuneWarning)
        study = stormy(POLICIES[name](), random.Random(seed))
        for what, answer in ANSWERS.items():
            try:
                answer(study)
            except InvalidInput as declined:
                declined.add_note(what)
                if not any(words in str(declined) for words in FAIR.split("|")):
                    raise
        finished = Study(study.problem, POLICIES[name](), study.store, budget=study.budget)
        finished.ask()
    best, top = study.best, best_of(study)
    assert best is None or math.isfinite(best.value)
    if top is not None:
        assert best is not None
        assert study.problem.goal.sign * best.value >= study.problem.goal.sign * top
    for trial in study.trials:
        assert best is None or trial.id != best.trial or best.value in trial.values


BOWL = Problem(Space({"a": Float(0.0, 1.0), "b": Float(0.0, 1.0)}), Minimize("loss"), 1)
MODELS: dict[str, Callable[[], Any]] = {
    **{name: POLICIES[name] for name in ("gpucb", "multifidelity", "autobct")},
    "ei": EI,
    "ei-per-cost": lambda: EI(cost="per"),
    "rollout": lambda: Rollout(points=48),
    "truvar": lambda: TruVaR(representers=64),
    "level-set-search": lambda: TruVaR(0.35, rule="straddle", representers=64),
}
DEAREST = ("rollout", "autobct", "ei-per-cost")
DEAR = (*DEAREST, "gpucb", "ei", "truvar")


def bowl(config: dict[str, Any]) -> float:
    return float(0.3 + (config["a"] - 0.7) ** 2 + (config["b"] - 0.2) ** 2)


def diverges(config: Any) -> bool:
    """A corner of a sixth of the space, far from the optimum, and half of it not that far."""
    return bool(config["a"] < 0.3 and config["b"] > 0.4)


@cache
def regret(name: str, seed: int, huge: float | None) -> float:
    """Return the regret of a search of 18 trials, of which some diverge to `huge`."""
    study = Study(BOWL, MODELS[name](), seed=seed, budget=Budget(trials=18))
    for trial in study:
        value = huge if huge is not None and diverges(trial.config) else bowl(dict(trial.config))
        trial.report(value, seconds=1.0)
        trial.finish()
    best, recommended = study.best, study.recommend()
    assert best is not None
    assert recommended is not None
    assert best.value == min(bowl(dict(t.config)) for t in study.trials if huge is None or not diverges(t.config))
    assert bowl(dict(recommended.config)) <= best.value + 0.02
    return best.value - 0.3


@pytest.mark.filterwarnings("ignore:a score of:haltune.errors.HaltuneWarning")  # which is what it should say
@pytest.mark.parametrize("huge", [1e12, pytest.param(1.7e308, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in DEAR else n for n in MODELS])
def test_after_a_run_that_diverged_the_optimum_is_found_as_well(name: str, huge: float) -> None:
    seeds = range(1 if name in DEAR else 3)
    with_it, without = (np.median([regret(name, seed, v) for seed in seeds]) for v in (huge, None))
    assert with_it <= without + 0.02


@given(st.lists(st.floats(-1e6, 1e6) | st.floats(0.01, 1.0), min_size=1, max_size=20))
def test_ordinary_runs_are_plausible(values: list[float]) -> None:
    told = plausible(values)
    assert told.tolist() == values or max(values) - min(values) > 1e9 * abs(max(values))


def test_a_run_is_implausible_only_where_it_would_set_the_scale_of_all_others() -> None:
    assert plausible([-0.3, -0.31, -2.3, -1e5]).tolist() == [-0.3, -0.31, -2.3, -1e5]
    assert np.isnan(plausible([-0.3, -0.31, -2.3, -1e12])).tolist() == [False, False, False, True]
    assert np.isnan(plausible([-0.3, -1e12])).tolist() == [False, True]  # of two the better one is the yardstick
    assert plausible([0.0, 0.0, 0.0, -1.0]).tolist() == [0.0, 0.0, 0.0, -1.0]
    assert plausible([1e40, 1e39, -1e41]).tolist() == [1e40, 1e39, -1e41]  # in any units
    assert np.isnan(plausible([math.nan, -0.3])).tolist() == [True, False]
    assert plausible([]).tolist() == []
