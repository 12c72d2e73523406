"""One number of several goals: against the formula written with arrays, and by what it promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import small_study

from examples import many
from haltune import Constraint, Float, Int, Maximize, Minimize, Problem, Space
from haltune.log.scores import Scale, Span
from haltune.policies import MultiFidelity
from haltune.policies.several_goals import Scalarization, hypervolume_gains, lattice

SPACE = Space({"x": Float(0.0, 1.0)})
GOALS = [Maximize("acc", (0, 1)), Minimize("ms", (2, 12)), Minimize("mb")]
SPANS = (Span(0.0, 0.6, 1.0, 1.0), Span(-12.0, -6.0, -2.0, -1.0), Span(-50.0, -50.0, 10.0, -1.0))
LIMITS = [Constraint("params", at_most=4.0)]
VALUES = st.floats(-100.0, 100.0)


def scalarisation(weights: tuple[float, ...], limits: list[Constraint] | None = None) -> Scalarization:
    goals = GOALS[: len(weights)]
    return Scalarization(Problem(SPACE, goals, 3, constraints=limits or ()), weights, SPANS[: len(weights)])


def value(by: Scalarization, *measured: float) -> float:
    names = [*(g.metric for g in by.problem.goals), "params"]
    said = dict(zip(names, measured, strict=False))
    return by.value(lambda metric: said.get(metric, math.nan))


@pytest.mark.parametrize("goals", [1, 2, 3, 4, 5, 12])
def test_the_lattice_is_of_weights(goals: int) -> None:
    found = lattice(goals)
    assert len(set(found)) == len(found) <= max(11, goals + 1)
    assert all(sum(w) == pytest.approx(1.0) and min(w) >= 0.0 for w in found)
    if goals > 1:
        assert all(tuple(float(i == j) for j in range(goals)) in found for i in range(goals))


@settings(max_examples=many(100))
@given(st.sampled_from(lattice(3)), st.lists(VALUES, min_size=3, max_size=3))
def test_it_is_the_augmented_tchebycheff_function(weights: tuple[float, ...], vector: list[float]) -> None:
    unit = np.array([s.high - s.worst for s in SPANS])
    cost = np.array([s.high - s.sign * v for s, v in zip(SPANS, vector, strict=True)]) / unit
    reach = np.array([s.high - s.low for s in SPANS]) / unit
    one, whole = (np.max(np.array(weights) * c) + 0.05 * c.mean() for c in (cost, reach))
    assert value(scalarisation(weights), *vector) == pytest.approx(1.0 - one / whole)


@settings(max_examples=many(100))
@given(
    st.sampled_from(lattice(3)),
    st.lists(VALUES, min_size=3, max_size=3),
    st.lists(st.floats(0.01, 50.0) | st.just(0.0), min_size=3, max_size=3).filter(any),
)
def test_what_dominates_has_the_larger_number_under_all_weights(
    weights: tuple[float, ...], vector: list[float], gains: list[float]
) -> None:
    by = scalarisation(weights)
    better = [v + s.sign * gain for v, s, gain in zip(vector, SPANS, gains, strict=True)]
    assert value(by, *better) > value(by, *vector)


@settings(max_examples=many(100))
@given(st.sampled_from(lattice(2)), st.floats(0, 1), st.floats(2, 12), st.floats(4.01, 1e9))
def test_what_breaks_a_constraint_is_below_all_that_keeps_to_it_and_lower_the_further(
    weights: tuple[float, ...], acc: float, ms: float, params: float
) -> None:
    by = scalarisation(weights, LIMITS)
    assert value(by, acc, ms, params) < 0.0 <= value(by, acc, ms, 4.0) + 1e-12
    assert value(by, acc, ms, params) > value(by, acc, ms, 1.1 * params) >= -1.0


def test_one_goal_keeps_its_values_but_where_a_constraint_is_broken() -> None:
    by = Scalarization(Problem(SPACE, GOALS[1], 3, constraints=LIMITS), (1.0,), (), Scale(-12.0, -2.0, -1.0))
    assert value(by, 7.25, 4.0) == 7.25
    said = {"ms": 7.25, "params": 8.0}
    assert by.value(said.__getitem__) == 12.0 + 10.0 * 0.5  # half of the goal's range beyond its worst end
    assert by.of(by.problem).goal == GOALS[1]


WEIGHTS = np.array(lattice(2))


def added(front: np.ndarray, weights: np.ndarray) -> float:
    """The volume that a point a fifth further along the ray adds to a front, below costs of 1.25."""
    w = np.maximum(weights, 1e-3)
    point = 0.8 * min(max(w * c) for c in front) / w
    return dominated(np.vstack([front, point])) - dominated(front)


def dominated(costs: np.ndarray) -> float:
    """The area between costs (n, 2) and 1.25: column by column, each as high as the lowest cost on its left."""
    costs = costs[np.argsort(costs[:, 0])]
    right = np.append(costs[1:, 0], 1.25).clip(max=1.25)
    heights = (1.25 - np.minimum.accumulate(costs[:, 1])).clip(min=0.0)
    return float(((right - costs[:, 0]).clip(min=0.0) * heights).sum())


@settings(max_examples=many(50))
@given(st.lists(st.tuples(st.floats(0.2, 1.0), st.floats(0.2, 1.0)), min_size=1, max_size=6))
def test_the_room_is_no_less_than_the_volume_that_is_added(front: list[tuple[float, float]]) -> None:
    costs = np.array(front)
    volumes = np.array([added(costs, w) for w in WEIGHTS])
    assert (hypervolume_gains(costs, WEIGHTS) >= volumes - 1e-12).all()


@settings(max_examples=many(50))
@given(st.floats(0.2, 1.0), st.floats(0.2, 1.0))
def test_with_one_other_point_it_is_that_volume(first: float, second: float) -> None:
    costs = np.array([[first, second]])
    assert hypervolume_gains(costs, WEIGHTS) == pytest.approx([added(costs, w) for w in WEIGHTS])


def test_a_gap_between_two_points_has_more_room_than_an_end_where_one_goal_is_at_its_best() -> None:
    costs = np.array([[0.2, 1.0], [0.9, 0.25], [0.95, 0.22], [1.0, 0.2]])
    found = dict(zip(lattice(2), hypervolume_gains(costs, WEIGHTS), strict=True))
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


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2])
def test_a_goal_that_stands_at_its_floor_is_not_asked_for_again_and_again(seed: int) -> None:
    space = Space({"lr": Float(0.0, 1.0), "width": Int(2, 128, log=True)})
    widths = searched(Problem(space, [Maximize("acc", (0, 1)), Minimize("params")], 20), seed)
    assert widths.count(2) <= 5
    assert len(set(widths)) >= 8
