"""The leading run is kept while events are folded: at each of them it is the first of all as they are ranked."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from haltune import Budget, Float, Maximize, Minimize, Problem, Space, Study, Trial
from haltune.log.problem import Goal
from haltune.policies import RandomSearch


@pytest.mark.parametrize("goal", [Maximize("acc"), Minimize("loss"), Maximize("acc", of="best")])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_first_of_all_after_whatever_happens(goal: Goal, seed: int) -> None:
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
