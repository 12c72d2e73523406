"""Random search, and the random configurations of all policies."""

from __future__ import annotations

import pytest
from worlds import search, small_study

from haltune import Choice, Int, Maximize, Problem, Space
from haltune.policies import RandomSearch


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
@pytest.mark.parametrize(
    "space",
    [
        Space({"n": Int(1, 150)}),
        Space({"n": Int(1, 60), "m": Choice([1, 2, 3, 4])}, constraints=[lambda c: c["n"] % c["m"] == 0]),
    ],
    ids=["range", "constrained"],
)
def test_no_configuration_is_drawn_twice_before_all_were_tried(space: Space, seed: int) -> None:
    study = small_study(RandomSearch(), problem=Problem(space, Maximize("acc"), 1), trials=151, seed=seed)
    tried = [space.key(t.config) for t in search(study, lambda config, epoch: 0.5).trials]
    every = set(space.keys(space.enumerate()))
    assert set(tried[: len(every)]) == every
