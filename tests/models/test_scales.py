"""The maps from heights to targets: by their definitions, and what a search learns of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm, rankdata

from examples import many
from haltune.models.curve_rows import CurveTable
from haltune.models.scales import LOWEST, SHAPES, SIZE, Heights, NormalScores, Shape
from haltune.models.stage_process import Seen, StageKernel, Stages, learn_kernel_and_scale

finite = st.floats(-1e3, 1e3)
shapes = st.tuples(*(st.floats(*limits) for limits in SHAPES))


def rows_of(heights: Sequence[float] | np.ndarray) -> CurveTable:
    return CurveTable(np.arange(len(heights)), np.ones(len(heights)), np.array(heights))


@settings(max_examples=many(200), deadline=None)
@given(heights=st.lists(finite, min_size=1, max_size=20), bad=st.booleans(), shape=shapes)
@example(
    heights=[-2.0, -1.0, -1.0, 0.0, 1e-18], bad=False, shape=(0.0, 0.0)
)  # the best two are equal
def test_targets_rank_as_heights_do_and_have_a_lower_bound(heights: list[float], bad: bool, shape: Shape) -> None:
    given_heights = np.array([*heights, math.nan, math.nan] if bad else heights)
    found = Heights.of(rows_of(given_heights))
    assert (found is None) == (len(set(heights)) == 1)
    if found is None:
        return
    for scale in (NormalScores.of(found.known), found.map(shape)):
        targets = scale.targets(found.known)
        assert (targets >= LOWEST).all()
        assert (np.diff(targets[: len(heights)][np.argsort(heights, kind="stable")]) >= -1e-12).all()
        assert np.isfinite(scale.height(np.array([targets.min() - 1.0, *targets, targets.max() + 1.0]))).all()
        assert not bad or (targets[-2:] == targets.min()).all()


@settings(max_examples=many(200), deadline=None)
@given(heights=st.lists(finite, min_size=2, max_size=20, unique=True))
def test_a_target_is_a_normal_score_and_in_part_the_standardized_height(heights: list[float]) -> None:
    u = np.array(heights)
    assume(np.diff(np.sort(u)).min() > 1e-9)
    scale = NormalScores.of(u)
    scores = norm.ppf((rankdata(u) - 0.5) / len(u))
    near = np.maximum(u, u.max() - 20.0 * (u.max() - np.median(u)))
    expected = SIZE * (0.6 * scores + 0.4 * (near - np.median(u)) / near.std())
    assert scale.targets(u) == pytest.approx(np.maximum(expected, LOWEST), abs=1e-6)
    inside = expected > LOWEST
    assert scale.height(expected[inside]) == pytest.approx(u[inside], abs=1e-6 * np.ptp(u))


@settings(max_examples=many(200), deadline=None)
@given(heights=st.lists(finite, min_size=2, max_size=20, unique=True), shape=shapes)
def test_a_target_is_the_standardized_power_of_the_regret(heights: list[float], shape: Shape) -> None:
    u, (log_c, p) = np.array(heights), shape
    assume(np.diff(np.sort(u)).min() > 1e-9 and abs(p) > 1e-4)
    scale = known(u).map(shape)
    r = np.minimum((u.max() - u) / (u.max() - np.median(u)), 20.0)
    z = -((1 + r / math.exp(log_c)) ** p - 1) / p
    expected = SIZE * (z + ((1 + np.median(r) / math.exp(log_c)) ** p - 1) / p) / z.std()
    assert scale.targets(u) == pytest.approx(np.maximum(expected, LOWEST), rel=1e-4, abs=1e-4)
    inside = (expected > LOWEST) & (r < 20.0)
    assert scale.height(scale.targets(u)[inside]) == pytest.approx(u[inside], abs=1e-4 * np.ptp(u))


def known(heights: np.ndarray) -> Heights:
    found = Heights.of(rows_of(heights))
    assert found is not None
    return found


SOME: list[Shape] = [(-3.0, 0.0), (-1.0, 0.7), (0.0, -1.2), (3.0, 0.3)]


@pytest.mark.parametrize("shape", SOME)
def test_the_slopes_by_the_shape_are_those_of_differences(shape: Shape) -> None:
    heights, step = np.random.default_rng(3).standard_normal(12) ** 3, 1e-4
    found = known(heights)
    _, slopes, _, added = found.likelihood(heights, shape)
    for k in range(2):
        below, above = (
            found.likelihood(heights, (shape[0] + s * (k == 0), shape[1] + s * (k == 1))) for s in (-step, step)
        )
        assert slopes[k] == pytest.approx((above[0] - below[0]) / (2 * step), abs=1e-5)
        assert added[k] == pytest.approx((above[2] - below[2]) / (2 * step), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize(("one", "other"), [(SOME[0], SOME[1]), (SOME[1], SOME[2]), (SOME[2], SOME[3])])
def test_the_log_density_adds_the_logarithm_of_the_slope_of_the_map_at_each_height(one: Shape, other: Shape) -> None:
    heights, step = np.random.default_rng(4).standard_normal(12), 1e-7
    found, inner = known(heights), np.sort(heights)[1:-1]  # straight above the best, and perhaps flat at the worst

    def density(shape: Shape) -> float:
        """Return it by differences of the map, with the prior: log c around log 0.3, p around 0."""
        rise = found.map(shape).targets(inner + step) - found.map(shape).targets(inner - step)
        prior = norm(math.log(0.3), 1.5).logpdf(shape[0]) + norm(0.0, 0.5).logpdf(shape[1])
        return float(np.log(rise / (2 * step)).sum() + prior)

    added = [found.likelihood(inner, shape)[2] for shape in (one, other)]
    assert added[1] - added[0] == pytest.approx(density(other) - density(one), abs=1e-5)


@pytest.mark.parametrize(("skew", "low", "high"), [(3.0, 5.0, math.inf), (0.0, 0.5, 2.0)])
def test_a_search_learns_how_skewed_its_values_are(skew: float, low: float, high: float) -> None:
    """Heights are a draw of the process (skew 0), or minus its exponential: then log regrets are a draw.

    The slope of the map at the best height, over that at the median, is large if values near the best are spread.
    """
    stages, spreads = Stages((1,), 2), []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        drawn = Seen(rng.random((80, 2)), np.arange(80), np.zeros(80, dtype=np.intp), np.zeros(80))
        prior = StageKernel(stages, stages.mean)
        z = rng.multivariate_normal(np.zeros(80), prior.covariance(drawn, prior.near_seen(drawn)[0]))
        z = (z - z.mean()) / z.std()
        heights = -np.exp(-skew * z) if skew else z
        log_c, p = learn_kernel_and_scale(stages, drawn.of_values(heights), known(heights)).shape
        spreads.append((1.0 + math.exp(-log_c)) ** (1.0 - p))
    assert low < np.median(spreads) < high
