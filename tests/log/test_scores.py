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
from haltune.log.scores import Span, learn, learn_spans, non_dominated, outgrown
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


@given(st.lists(st.floats(-1e308, 1e308), min_size=1, max_size=10), st.sampled_from([-1.0, 1.0]))
def test_it_is_always_a_map_with_finite_ends(values: list[float], sign: float) -> None:
    scale = learn(values, max(values), sign)
    assert scale is not None
    assert math.isfinite(scale.low)
    assert math.isfinite(scale.high)
    assert scale.low < scale.high
    scores = scale.score([sign * v for v in values])
    assert ((scores >= 0) & (scores <= 1)).all()


def test_bounds_are_the_affine_map_of_either_direction() -> None:
    up, down = scale_given(Maximize("acc", (0, 10))), scale_given(Minimize("loss", (2, 4)))
    assert up is not None
    assert down is not None
    np.testing.assert_allclose(up.score([0, 2.5, 10, 11]), [0, 0.25, 1, 1])
    np.testing.assert_allclose(down.score([2, 2.5, 4, 5, 1]), [1, 0.75, 0, 0, 1])
    assert scale_given(Minimize("loss")) is None


def test_a_scale_is_outgrown_when_the_best_nears_its_top_or_the_bottom_moves() -> None:
    old = learn([0.0, 0.1], 1.0, 1.0)
    assert old is not None
    assert outgrown(None, old)
    assert not outgrown(old, old)
    assert not outgrown(old, learn([0.0, 0.1], 1.05, 1.0))  # type: ignore[arg-type]
    assert outgrown(old, learn([0.0, 0.1], 2.0, 1.0))  # type: ignore[arg-type]
    assert outgrown(old, learn([0.8, 0.9], 1.0, 1.0))  # type: ignore[arg-type]


TWO = [Maximize("acc", (0, 1)), Minimize("params")]


def spans(*vectors: tuple[float, float], goals: list[Goal] = TWO, firsts: float = math.nan) -> dict[str, Span]:
    """Return the learnt scales; all trials start at the same values in both goals."""
    signed = np.array([[g.sign * v for g, v in zip(goals, each, strict=True)] for each in vectors])
    signed = signed.reshape(-1, len(goals))
    return learn_spans(signed, non_dominated(signed), np.full((len(goals), len(signed)), firsts), goals)


def test_several_goals_are_weighed_by_the_span_of_the_front() -> None:
    found = spans((0.9, 5000.0), (0.7, 200.0), (0.8, 6000.0), (0.1, 5500.0))
    acc, params = found["acc"], found["params"]
    assert (acc.low, acc.worst, acc.high) == pytest.approx((0.0, 0.7, 0.95))
    assert (params.worst, params.high) == pytest.approx((-5000.0, 1000.0))


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
