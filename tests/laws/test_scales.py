"""A study of a metric without bounds decides alike in every unit of the metric, and for its negative."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from curves import accuracy
from everyone import each_of_one_goal
from worlds import EPOCHS, POLICIES, SPACE

from haltune import Budget, Maximize, Minimize, Problem, Study
from haltune.store.memory import MemoryStore
from haltune.study.session import clocked

# their threshold or noise is in the metric's unit
ABSOLUTE = ("truvar-level-set", "truvar-grid", "level-set-search")


@cache
def decided(name: str, factor: float) -> list[Any]:
    """The trials of a search that reports `factor` times each value, with values divided by it."""
    ticks = iter(range(10**9))
    posed = Problem(SPACE, (Maximize if factor > 0 else Minimize)("metric"), EPOCHS)
    with clocked(lambda: next(ticks) * 1e-3):  # so that decisions take no time that a cost would count
        study = Study(posed, POLICIES[name](), MemoryStore(), seed=3, budget=Budget(trials=6), verbose=0)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                if trial.report(factor * accuracy(trial.config, epoch), seconds=1.0 + trial.id % 3).stops:
                    break
    return [(dict(t.config), t.status, t.attempt, (t.values / factor).tolist()) for t in study.trials]


# powers of 2, because other products are rounded
@pytest.mark.parametrize("factor", [-(2.0**-17), pytest.param(2.0**13, marks=pytest.mark.slow)])
@each_of_one_goal
def test_a_study_decides_alike_in_every_unit_of_its_metric(name: str, factor: float) -> None:
    if name in ABSOLUTE:
        pytest.skip("it has an option in the metric's unit")
    assert decided(name, factor) == decided(name, 1.0)
