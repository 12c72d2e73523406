"""One number of several goals: against the formula written with arrays, and by what it promises."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import many
from haltune import Constraint, Float, Maximize, Minimize, Problem, Space
from haltune.log.scores import Scale, Span
from haltune.policies.several_goals import Scalarization, lattice

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


def test_two_goals_have_paregos_eleven_weights() -> None:
    assert sorted(lattice(2)) == [(i / 10, (10 - i) / 10) for i in range(11)]


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


def test_it_is_0_where_curves_begin_and_1_at_the_best_of_all() -> None:
    for weights in lattice(2):
        by = scalarisation(weights)
        assert value(by, 0.0, 12.0) == pytest.approx(0.0)
        assert value(by, 1.0, 2.0) == pytest.approx(1.0)


@settings(max_examples=many(100))
@given(st.sampled_from(lattice(2)), st.floats(0, 1), st.floats(2, 12), st.floats(4.01, 1e9))
def test_what_breaks_a_constraint_is_below_all_that_keeps_to_it_and_lower_the_further(
    weights: tuple[float, ...], acc: float, ms: float, params: float
) -> None:
    by = scalarisation(weights, LIMITS)
    assert value(by, acc, ms, params) < 0.0 <= value(by, acc, ms, 4.0) + 1e-12
    assert value(by, acc, ms, params) > value(by, acc, ms, 1.1 * params) >= -1.0


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_in_one_goal_has_no_number(bad: float) -> None:
    assert math.isnan(value(scalarisation((0.5, 0.5)), 0.5, bad))
    assert math.isnan(value(scalarisation((1.0, 0.0), LIMITS), 0.5, bad, 9.0))


def test_one_goal_keeps_its_values_but_where_a_constraint_is_broken() -> None:
    by = Scalarization(Problem(SPACE, GOALS[1], 3, constraints=LIMITS), (1.0,), (), Scale(-12.0, -2.0, -1.0))
    assert value(by, 7.25, 4.0) == 7.25
    said = {"ms": 7.25, "params": 8.0}
    assert by.value(said.__getitem__) == 12.0 + 10.0 * 0.5  # half of the goal's range beyond its worst end
    assert by.of(by.problem).goal == GOALS[1]
