"""The learnt scale: an affine map that runs which diverge cannot distort."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haltune import Maximize, Minimize
from haltune.log.scores import Scale, learn, outgrown
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
