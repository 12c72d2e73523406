"""Targets of the process."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import many
from haltune.policies.multifidelity.stage_process import LogRegret

finite = st.floats(-1e3, 1e3)


@settings(max_examples=many(200), deadline=None)
@given(values=st.lists(finite, min_size=1, max_size=20), sign=st.sampled_from([1.0, -1.0]), bad=st.booleans())
def test_targets_rank_as_values_do_and_are_bounded(values: list[float], sign: float, bad: bool) -> None:
    found = np.array([*values, math.nan, math.inf] if bad else values)
    scale = LogRegret.of(found, found[:5], sign)
    assert scale is not None
    targets = scale.targets(found)
    assert targets.max() == 0.0
    assert (targets >= -math.log(21) - 1e-12).all()
    order = np.argsort(-sign * np.array(values), kind="stable")
    assert (np.diff(targets[order]) <= 1e-12).all()
    assert not bad or (targets[-2:] == targets.min()).all()


@settings(max_examples=many(200), deadline=None)
@given(values=st.lists(finite, min_size=3, max_size=20, unique=True), sign=st.sampled_from([1.0, -1.0]))
def test_a_target_stands_for_its_value(values: list[float], sign: float) -> None:
    scale = LogRegret.of(np.array(values), np.array(values), sign)
    assert scale is not None
    for value, target in zip(values, scale.targets(np.array(values)), strict=True):
        if target > -3.0:
            assert scale.value(float(target)) == pytest.approx(value, rel=1e-6, abs=1e-6 * scale.width)
            step = sign * (scale.value(float(target) + 1e-6) - scale.value(float(target)))
            assert step == pytest.approx(scale.deviation(float(target), 1e-6), rel=1e-3, abs=1e-9 * scale.width)


def test_the_median_of_the_first_trials_is_log_2_below_the_best() -> None:
    scale = LogRegret.of(np.array([0.1, 0.5, 0.6, 0.9]), np.array([0.1, 0.5, 0.6]), 1.0)
    assert scale is not None
    assert scale.targets(np.array([0.9, 0.5, 0.1])) == pytest.approx([0.0, -math.log(2), -math.log(3)])


@pytest.mark.parametrize("values", [[1e308, -1e308], [1e-300, 0.0], [0.0], [-1e308]])
def test_huge_and_equal_values_make_finite_targets(values: list[float]) -> None:
    scale = LogRegret.of(np.array(values), np.array(values), 1.0)
    assert scale is not None
    assert np.isfinite(scale.targets(np.array(values))).all()


def test_nothing_measured_is_no_scale() -> None:
    assert LogRegret.of(np.array([math.nan]), np.array([]), 1.0) is None
