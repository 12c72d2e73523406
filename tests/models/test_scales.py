"""The maps from heights to targets: by their definitions, and what a search learns of them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm, rankdata

from examples import many
from haltune.models.curve_rows import CurveTable
from haltune.models.scales import LOWEST, OFFSETS, SIZE, Heights, NormalScores
from haltune.models.stage_process import Seen, StageKernel, Stages, learn_kernel_and_scale

finite = st.floats(-1e3, 1e3)
offsets = st.floats(math.log(OFFSETS[0]), math.log(OFFSETS[1])).map(math.exp)


def rows_of(heights: Sequence[float] | np.ndarray) -> CurveTable:
    return CurveTable(np.arange(len(heights)), np.ones(len(heights)), np.array(heights))


@settings(max_examples=many(200), deadline=None)
@given(heights=st.lists(finite, min_size=1, max_size=20), bad=st.booleans(), offset=offsets)
@example(heights=[-2.0, -1.0, -1.0, 0.0, 1e-18], bad=False, offset=1.0)  # the log regrets of the best two are equal
def test_targets_rank_as_heights_do_and_have_a_lower_bound(heights: list[float], bad: bool, offset: float) -> None:
    given_heights = np.array([*heights, math.nan, math.nan] if bad else heights)
    found = Heights.of(rows_of(given_heights))
    assert (found is None) == (len(set(heights)) == 1)
    if found is None:
        return
    for scale in (NormalScores.of(found.known), found.map(offset)):
        targets = scale.targets(found.known)
        assert (targets >= LOWEST).all()
        assert (np.diff(targets[: len(heights)][np.argsort(heights, kind="stable")]) >= -1e-12).all()
        assert np.isfinite(scale.height(np.array([targets.min() - 1.0, *targets, targets.max() + 1.0]))).all()
        assert not bad or (targets[-2:] == targets.min()).all()


def test_heights_far_beyond_tiny_differences_have_finite_targets() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        low, high = NormalScores.of(1e-300 * np.arange(9.0)).targets(np.array([-1e60, 1e60]))
    assert low == LOWEST
    assert np.isfinite(high * high)


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
@given(heights=st.lists(finite, min_size=2, max_size=20, unique=True), offset=offsets)
def test_a_target_is_the_standardized_log_regret(heights: list[float], offset: float) -> None:
    u = np.array(heights)
    assume(np.diff(np.sort(u)).min() > 1e-9)
    scale = known(u).map(offset)
    r = np.minimum((u.max() - u) / (u.max() - np.median(u)), 20.0)
    z = -np.log(1 + r / offset)
    expected = SIZE * (z + math.log(1 + np.median(r) / offset)) / z.std()
    assert scale.targets(u) == pytest.approx(np.maximum(expected, LOWEST), rel=1e-5, abs=1e-5)
    inside = (expected > LOWEST) & (r < 20.0)
    assert scale.height(scale.targets(u)[inside]) == pytest.approx(u[inside], abs=1e-6 * np.ptp(u))


def known(heights: np.ndarray) -> Heights:
    found = Heights.of(rows_of(heights))
    assert found is not None
    return found


@pytest.mark.parametrize("log_offset", [-3.0, -1.0, 0.0, 3.0])
def test_the_slopes_by_the_offset_are_those_of_differences(log_offset: float) -> None:
    heights, step = np.random.default_rng(3).standard_normal(12) ** 3, 1e-6
    found = known(heights)
    _, slope, _, added = found.likelihood(heights, log_offset)
    below, above = (found.likelihood(heights, log_offset + s) for s in (-step, step))
    assert slope == pytest.approx((above[0] - below[0]) / (2 * step), abs=1e-6)
    assert added == pytest.approx((above[2] - below[2]) / (2 * step), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("offsets", [(0.05, 0.5), (0.3, 3.0), (1.0, 90.0)])
def test_the_log_density_adds_the_logarithm_of_the_slope_of_the_map_at_each_height(
    offsets: tuple[float, float],
) -> None:
    heights, step = np.random.default_rng(4).standard_normal(12), 1e-7
    found = known(heights)

    def density(offset: float) -> float:
        """Return it by differences of the map, with the prior: log c is normal around log 0.3."""
        inner = np.sort(heights)[1:-1]  # the map is straight above the best, and may be flat at the worst
        rise = found.map(offset).targets(inner + step) - found.map(offset).targets(inner - step)
        return float(np.log(rise / (2 * step)).sum() + norm(math.log(0.3), 1.5).logpdf(math.log(offset)))

    inner = np.sort(heights)[1:-1]
    by_map = density(offsets[1]) - density(offsets[0])
    added = [found.likelihood(inner, math.log(offset))[2] for offset in offsets]
    assert added[1] - added[0] == pytest.approx(by_map, abs=1e-5)


@pytest.mark.parametrize(("skew", "low", "high"), [(3.0, 0.0, 0.2), (0.0, 1.0, math.inf)])
def test_a_search_learns_how_skewed_its_values_are(skew: float, low: float, high: float) -> None:
    """Heights are a draw of the process (skew 0), or minus its exponential: then log regrets are a draw."""
    stages, offsets = Stages((1,), 2), []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        drawn = Seen(rng.random((80, 2)), np.arange(80), np.zeros(80, dtype=np.intp), np.zeros(80))
        prior = StageKernel(stages, stages.mean)
        z = rng.multivariate_normal(np.zeros(80), prior.covariance(drawn, prior.near_seen(drawn)[0]))
        z = (z - z.mean()) / z.std()
        heights = -np.exp(-skew * z) if skew else z
        offsets.append(learn_kernel_and_scale(stages, drawn.of_values(heights), known(heights)).offset)
    assert low < np.median(offsets) < high
