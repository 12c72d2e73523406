"""Which weights are asked next: against volumes that are counted, and by what a search does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import several, small_study

from examples import many
from haltune import Float, Int, Maximize, Minimize, Problem, Space
from haltune.log.scores import hypervolume
from haltune.policies import MultiFidelity
from haltune.policies.several_goals import chances, lattice, rooms

WEIGHTS = np.array(lattice(2))


def added(front: np.ndarray, weights: np.ndarray) -> float:
    """The volume that a point a fifth further along the ray adds to a front, below costs of 1.25."""
    w = np.maximum(weights, 1e-3)
    point = 0.8 * min(max(w * c) for c in front) / w
    reference = np.full(2, -1.25)
    return hypervolume(-np.vstack([front, point]), reference) - hypervolume(-front, reference)


@settings(max_examples=many(50))
@given(st.lists(st.tuples(st.floats(0.2, 1.0), st.floats(0.2, 1.0)), min_size=1, max_size=6))
def test_the_room_is_no_less_than_the_volume_that_is_added(front: list[tuple[float, float]]) -> None:
    costs = np.array(front)
    volumes = np.array([added(costs, w) for w in WEIGHTS])
    assert (rooms(costs, WEIGHTS) >= volumes - 1e-12).all()


@settings(max_examples=many(50))
@given(st.floats(0.2, 1.0), st.floats(0.2, 1.0))
def test_beside_one_point_it_is_that_volume(first: float, second: float) -> None:
    costs = np.array([[first, second]])
    assert rooms(costs, WEIGHTS) == pytest.approx([added(costs, w) for w in WEIGHTS])


def test_a_gap_between_two_points_has_more_room_than_an_end_where_one_goal_is_at_its_best() -> None:
    costs = np.array([[0.2, 1.0], [0.9, 0.25], [0.95, 0.22], [1.0, 0.2]])
    found = dict(zip(lattice(2), rooms(costs, WEIGHTS), strict=True))
    assert found[0.0, 1.0] <= found[0.1, 0.9] < 0.1 * found[0.5, 0.5]


def searched(problem: Problem, seed: int, trials: int = 15) -> list[int]:
    """The widths that a search trains, of a network whose size is a goal."""
    study = small_study(MultiFidelity(), problem=problem, trials=trials, verbose=0, seed=seed)
    for trial in study:
        with trial:
            width, lr = trial.config["width"], trial.config["lr"]
            for epoch in trial.epochs():
                acc = (1.0 - 0.5 / width**0.7) * (1.0 - 0.2 * (lr - 0.6) ** 2) * (1.0 - 0.6**epoch)
                trial.report({"acc": acc, "params": 10.0 * width}, seconds=1.0)
    return [t.config["width"] for t in study.trials]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_goal_that_stands_at_its_floor_is_not_asked_for_again_and_again(seed: int) -> None:
    space = Space({"lr": Float(0.0, 1.0), "width": Int(2, 128, log=True)})
    widths = searched(Problem(space, [Maximize("acc", (0, 1)), Minimize("params")], 20), seed)
    assert widths.count(2) <= 5
    assert len(set(widths)) >= 8


def test_weights_are_even_before_there_is_a_front_and_sum_to_1() -> None:
    problem = replace(several(), constraints=())
    study = small_study(MultiFidelity(4, candidates=24), problem=problem, trials=6, verbose=0, seed=3)
    assert chances(study.history, lattice(2)).tolist() == [1 / 11] * 11
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report({"acc": 0.1 * epoch * trial.config["lr"], "ms": 1.0 + trial.config["layers"]})
    found = chances(study.history, lattice(2))
    assert found.sum() == pytest.approx(1.0)
    assert found.min() >= 0.2 / 11
    assert len(set(found.tolist())) > 1
