"""The learnt scale: an affine map that trials which diverge cannot distort; spans of several goals and their front."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from examples import many
from haltune import Maximize, Minimize
from haltune.log.problem import Goal
from haltune.log.scores import Scale, Span, hypervolume, learn, learn_spans, non_dominated, outgrown
from haltune.log.scores import given as scale_given

losses = st.lists(st.floats(0.5, 3.0), min_size=1, max_size=20)


@given(losses, st.lists(st.floats(1e2, 1e308), max_size=20))
def test_up_to_half_of_the_runs_may_diverge_by_any_amount(good: list[float], wild: list[float]) -> None:
    best = -0.25
    sane = [-v for v in good]
    scale = learn(sane + [-v for v in wild[: len(good)]], best, -1.0)
    gaps = [best - v for v in sane]
    assert scale is not None
    assert min(gaps) * 0.999 <= best - scale.low <= max(gaps) * 1.001
    assert scale.high - best == pytest.approx(0.25 * (best - scale.low))


@given(st.lists(st.floats(0.9, 1.1), min_size=4, max_size=20), st.floats(10, 1e308))
def test_up_to_three_in_four_stretch_it_at_most_tenfold(good: list[float], wild: float) -> None:
    firsts = [-v for v in good] + [-wild] * (3 * len(good) - 4)
    scale = learn(firsts, -0.5, -1.0)
    assert scale is not None
    assert -0.5 - scale.low <= 10.0 * max(v - 0.5 for v in good) * 1.001


@given(st.lists(st.floats(-1e308, 1e308), min_size=1, max_size=10), st.sampled_from([-1.0, 1.0]))
def test_it_is_always_a_map_with_finite_ends(values: list[float], sign: float) -> None:
    scale = learn(values, max(values), sign)
    assert scale is not None
    assert math.isfinite(scale.low)
    assert math.isfinite(scale.high)
    assert scale.low < scale.high
    scores = scale.score([sign * v for v in values])
    assert ((scores >= 0) & (scores <= 1)).all()


def test_the_best_scores_below_one_and_a_typical_first_epoch_zero() -> None:
    scale = learn([-2.0, -2.5, -3.0], -0.5, -1.0)
    assert scale is not None
    assert scale.score(0.5) == pytest.approx(0.8)
    assert scale.score(2.5) == 0.0
    assert scale.score(99.0) == 0.0


def test_a_constant_metric_has_a_scale_of_some_width() -> None:
    for value in (0.0, 5.0, -1e-12):
        scale = learn([value, value], value, 1.0)
        assert scale is not None
        assert 0.0 < float(scale.score(value)) < 1.0


def test_nothing_finite_seen_is_no_scale() -> None:
    assert learn([], -math.inf, 1.0) is None


def test_bounds_are_the_affine_map_of_either_direction() -> None:
    up, down = scale_given(Maximize("acc", (0, 10))), scale_given(Minimize("loss", (2, 4)))
    assert up is not None
    assert down is not None
    np.testing.assert_allclose(up.score([0, 2.5, 10, 11]), [0, 0.25, 1, 1])
    np.testing.assert_allclose(down.score([2, 2.5, 4, 5, 1]), [1, 0.75, 0, 0, 1])
    assert scale_given(Minimize("loss")) is None


def test_what_is_not_finite_scores_zero() -> None:
    scale = Scale(0.0, 1.0, 1.0)
    np.testing.assert_array_equal(scale.score([math.nan, math.inf, -math.inf, 0.5]), [0, 0, 0, 0.5])


def test_a_scale_is_outgrown_when_the_best_nears_its_top_or_the_bottom_moves() -> None:
    old = learn([0.0, 0.1], 1.0, 1.0)
    assert old is not None
    assert outgrown(None, old)
    assert not outgrown(old, old)
    assert not outgrown(old, learn([0.0, 0.1], 1.05, 1.0))  # type: ignore[arg-type]
    assert outgrown(old, learn([0.0, 0.1], 2.0, 1.0))  # type: ignore[arg-type]
    assert outgrown(old, learn([0.8, 0.9], 1.0, 1.0))  # type: ignore[arg-type]


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3), st.sampled_from([-1.0, 1.0]), st.floats(0.0, 1.0))
def test_the_raw_value_of_a_score_has_that_score(low: float, width: float, sign: float, score: float) -> None:
    scale = Scale(low, low + width, sign)
    assert float(scale.score(scale.raw(score))) == pytest.approx(score, abs=1e-9 * (1.0 + abs(low) / width))


TWO = [Maximize("acc", (0, 1)), Minimize("params")]


def spans(*vectors: tuple[float, float], goals: list[Goal] = TWO, firsts: float = math.nan) -> dict[str, Span]:
    """What runs teach; all begin at the same in both goals."""
    signed = np.array([[g.sign * v for g, v in zip(goals, each, strict=True)] for each in vectors])
    signed = signed.reshape(-1, len(goals))
    return learn_spans(signed, non_dominated(signed), np.full((len(goals), len(signed)), firsts), goals)


def test_several_goals_are_weighed_by_the_span_of_the_front() -> None:
    found = spans((0.9, 5000.0), (0.7, 200.0), (0.8, 6000.0), (0.1, 5500.0))
    acc, params = found["acc"], found["params"]
    assert (acc.low, acc.worst, acc.high) == pytest.approx((0.0, 0.7, 0.95))
    assert (params.worst, params.high) == pytest.approx((-5000.0, 1000.0))


def test_curves_begin_at_the_bounds_or_where_runs_typically_do_and_never_above_the_front() -> None:
    ends = [(0.9, 5000.0), (0.7, 200.0)]
    assert spans(*ends, firsts=-9000.0)["params"].low == -9000.0
    assert spans(*ends, firsts=-300.0)["params"].low == -5000.0
    assert spans(*ends, firsts=0.2)["acc"].low == 0.0
    assert spans(*ends, firsts=0.2, goals=[Maximize("acc"), Minimize("params")])["acc"].low == pytest.approx(0.2)


def test_many_runs_at_one_end_of_the_front_leave_its_span_as_it_is() -> None:
    ends = [(0.9, 5000.0), (0.7, 200.0)]
    assert spans(*ends) == spans(*ends, *[(0.1 + 0.01 * i, 200.0) for i in range(50)])


def test_a_run_that_diverged_stretches_no_span_beyond_ten_times_the_front() -> None:
    losses = [Minimize("loss"), Minimize("params")]
    found = spans((1e8, 1.0), (0.9, 2.0), (0.5, 3.0), (0.3, 4.0), (0.1, 9.0), goals=losses)["loss"]
    assert found.unit == pytest.approx(1.25 * 10.0 * 0.4)


def test_a_front_of_one_run_is_measured_by_all_and_a_constant_goal_has_a_span() -> None:
    assert spans((0.9, 200.0), (0.5, 300.0), (0.3, 300.0))["acc"].worst == pytest.approx(0.3)
    same = spans((0.9, 200.0), (0.9, 200.0))["params"]
    assert same.low <= same.worst < -200.0 < same.high
    assert spans() == {}


def test_a_span_is_outgrown_where_the_front_or_the_beginning_of_curves_has_moved() -> None:
    old = Span(0.0, 0.7, 0.95, 1.0)
    assert not old.outgrown_by(Span(0.1, 0.71, 0.96, 1.0))
    assert old.outgrown_by(Span(0.0, 0.8, 0.95, 1.0))
    assert old.outgrown_by(Span(0.4, 0.7, 0.95, 1.0))


SMALL = st.integers(0, 4).map(float)  # with ties


def vectors(goals: int, most: int = 9) -> st.SearchStrategy[np.ndarray]:
    return st.integers(0, most).flatmap(lambda n: arrays(np.float64, (n, goals), elements=SMALL))


@settings(max_examples=many(100))
@given(st.integers(1, 4).flatmap(vectors))
def test_the_front_is_what_no_other_dominates(points: np.ndarray) -> None:
    found = non_dominated(points)
    for i, one in enumerate(points):
        beaten = any((other >= one).all() and (other > one).any() for other in points)
        assert found[i] == (not beaten)


@settings(max_examples=many(100))
@given(st.integers(1, 3).flatmap(lambda m: vectors(m, 6)))
def test_the_hypervolume_is_the_unit_cubes_that_are_dominated(points: np.ndarray) -> None:
    """Whole coordinates: each cube of side 1 is dominated as a whole or not at all."""
    corners = np.array(np.meshgrid(*[range(1, 5)] * points.shape[1])).reshape(points.shape[1], -1).T
    dominated = sum(bool((points >= corner).all(axis=1).any()) for corner in corners)
    assert hypervolume(points, np.zeros(points.shape[1])) == pytest.approx(dominated)
