"""Acquisition functions against Monte Carlo, 60-digit arithmetic and finite differences."""

from decimal import Decimal, getcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from normals import improvement

from examples import many
from haltune.gp import Kernel, condition_on
from haltune.policies.acquisition import Surface, expected_improvement, log_ei, ucb


def exact_log_ei(z):
    """log(phi(z) + z Phi(z)) for z < 0 in 60 digits, by the continued fraction of the normal tail (Lentz)."""
    getcontext().prec = 60
    x = -Decimal(repr(z))
    fraction = Decimal(0)
    for k in range(4000, 0, -1):  # Phi(-x)/phi(x) = 1/(x + 1/(x + 2/(x + 3/(x + ...))))
        fraction = k / (x + fraction)
    mills = 1 / (x + fraction)
    pi = Decimal("3.14159265358979323846264338327950288419716939937510582097494459")
    return float((1 - x * mills).ln() - x * x / 2 - (2 * pi).ln() / 2)


@pytest.mark.parametrize("z", [-1.0, -1.5, -5.0, -20.0, -29.999, -30.001, -40.0, -100.0, -1e4, -1e8])
def test_log_ei_is_exact_far_in_the_tail(z):
    value = log_ei(np.array([z]), np.array([1.0]), 0.0).value[0]
    assert value == pytest.approx(exact_log_ei(z), rel=3e-13)


@pytest.mark.parametrize(("mean", "variance"), [(0.0, 1.0), (0.7, 0.04), (-1.0, 2.0), (1.4, 0.3)])
def test_ei_agrees_with_monte_carlo(mean, variance):
    draws = mean + np.sqrt(variance) * np.random.default_rng(0).standard_normal(1_000_000)
    gains = np.maximum(draws - 0.5, 0.0)
    value = expected_improvement(np.array([mean]), np.array([variance]), 0.5)[0]
    assert value == pytest.approx(gains.mean(), abs=5 * gains.std() / 1000)
    assert value == pytest.approx(improvement(mean, variance, 0.5))
    assert log_ei(np.array([mean]), np.array([variance]), 0.5).value[0] == pytest.approx(np.log(value))


@settings(max_examples=many(200), deadline=None)
@given(st.floats(-60, 60), st.floats(-3, 3))
def test_derivatives_agree_with_finite_differences(z, log_deviation):
    deviation = np.exp(log_deviation)
    mean, variance = np.array([z * deviation]), np.array([deviation**2])
    for score in (log_ei, ucb):
        found = score(mean, variance, 1e-9)
        step = 1e-5 * deviation
        by_mean = (score(mean + step, variance, 1e-9).value - score(mean - step, variance, 1e-9).value) / (2 * step)
        by_variance = (
            score(mean, variance * (1 + 1e-5), 1e-9).value - score(mean, variance * (1 - 1e-5), 1e-9).value
        ) / (2e-5 * variance)
        scale = 1 + np.abs(found.value) / deviation + np.abs(found.value) / deviation**2
        np.testing.assert_allclose(found.by_mean, by_mean, rtol=1e-5, atol=1e-6 * scale.max())
        np.testing.assert_allclose(found.by_variance, by_variance, rtol=1e-5, atol=1e-6 * scale.max())


def test_without_variance_values_and_derivatives_stay_finite_and_ranked():
    means = np.array([-1e3, -1.0, -1e-9, 0.0, 1e-9, 1.0, 1e3])
    for score in (log_ei, ucb):
        found = score(means, np.zeros(7), 0.0)
        assert np.isfinite(found).all()
        assert (np.diff(found.value) >= 0).all()
    value = expected_improvement(means, np.zeros(7), 0.0)
    np.testing.assert_allclose(value, np.maximum(means, 0), atol=1e-14)


def cost(points):
    return np.sin(points[:, 0]) + points[:, 1] ** 2, np.stack([np.cos(points[:, 0]), 2 * points[:, 1]], axis=1)


@pytest.mark.parametrize("log_cost", [None, cost])
@pytest.mark.parametrize("at", [(), (0.9,)])
def test_a_surface_s_gradients_agree_with_finite_differences(at, log_cost):
    rng = np.random.default_rng(0)
    X = rng.random((12, 2 + len(at)))
    posterior = condition_on(Kernel("matern52", 1.0, np.full(2 + len(at), 0.5)), X, rng.random(12), noise=0.01)
    surface = Surface(posterior, lambda mean, variance: log_ei(mean, variance, 0.9), at=at, log_cost=log_cost)
    where, step = rng.random((5, 2)), 1e-6
    values, gradients = surface(where)
    np.testing.assert_allclose(values, surface.values(where), rtol=1e-10)
    for column, direction in enumerate(np.eye(2) * step):
        expected = (surface.values(where + direction) - surface.values(where - direction)) / (2 * step)
        np.testing.assert_allclose(gradients[:, column], expected, rtol=1e-4, atol=1e-5)
