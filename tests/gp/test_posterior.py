"""Posteriors against scikit-learn's at equal hyperparameters, dense algebra and finite differences."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

from examples import many
from haltune.errors import InvalidInput
from haltune.gp import Kernel, condition_on

SCALES = np.array([0.4, 0.8, 1.5])


def data(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((n, 3))
    return X, np.sin(4 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n)


def make(n=25, kind="matern52", noise=0.01, seed=0, **more):
    X, y = data(n, seed)
    return condition_on(Kernel(kind, 1.3, SCALES), X, y, noise=noise, **more)


def peer(kind):
    part = (
        RBF(SCALES, "fixed")
        if kind == "se"
        else Matern(SCALES, "fixed", nu=1.5 if kind == "matern32" else 2.5)
    )
    return ConstantKernel(1.3, "fixed") * part


@pytest.mark.parametrize("kind", ["se", "matern32", "matern52"])
@pytest.mark.parametrize("extra", [None, "per point"])
def test_mean_deviation_covariance_and_likelihood_agree_with_scikit_learn(kind, extra):
    X, y = data(40)
    more = np.linspace(0, 0.1, 40) if extra else np.zeros(40)
    ours = condition_on(Kernel(kind, 1.3, SCALES), X, y, noise=1e-3, point_noise=more)
    theirs = GaussianProcessRegressor(peer(kind), alpha=1e-3 + more, optimizer=None).fit(X, y)
    where = np.random.default_rng(1).random((30, 3))
    mean, deviation = theirs.predict(where, return_std=True)
    found, variance = ours.predict(where)
    np.testing.assert_allclose(found, mean, atol=1e-8)
    np.testing.assert_allclose(np.sqrt(variance), deviation, atol=1e-8)
    np.testing.assert_allclose(ours.mean(where), mean, atol=1e-8)
    np.testing.assert_allclose(np.sqrt(ours.variance(where)), deviation, atol=1e-8)
    np.testing.assert_allclose(ours.covariance(where), theirs.predict(where, return_cov=True)[1], atol=1e-8)
    expected = theirs.log_marginal_likelihood(theirs.kernel_.theta)
    assert ours.log_marginal_likelihood == pytest.approx(expected, abs=1e-8)
    assert ours.jitter == 0.0


def test_the_constant_mean_is_what_the_posterior_returns_to_far_away():
    ours = make(constant=5.0)
    mean, variance = ours.predict(np.full((1, 3), 500.0))
    assert mean == pytest.approx([5.0])
    assert variance == pytest.approx([1.3])


@pytest.mark.parametrize("kind", ["se", "matern32", "matern52"])
def test_gradients_of_mean_and_variance_agree_with_finite_differences(kind):
    ours = make(kind=kind)
    where, step = np.random.default_rng(2).random((6, 3)), 1e-5
    found = ours.predict_with_gradient(where)
    np.testing.assert_allclose(found.mean, ours.mean(where), atol=1e-12)
    np.testing.assert_allclose(found.variance, ours.variance(where), atol=1e-12)
    for column, direction in enumerate(np.eye(3) * step):
        (up, more), (down, less) = ours.predict(where + direction), ours.predict(where - direction)
        np.testing.assert_allclose(found.mean_gradient[:, column], (up - down) / (2 * step), atol=1e-6)
        np.testing.assert_allclose(found.variance_gradient[:, column], (more - less) / (2 * step), atol=1e-6)


def test_conditioning_one_by_one_or_in_blocks_is_the_same_as_starting_over():
    X, y = data(20)
    extra = np.linspace(0.0, 0.2, 20)
    kernel = Kernel("matern52", 1.3, SCALES)
    whole = condition_on(kernel, X, y, noise=0.01, constant=0.4, point_noise=extra)
    grown = condition_on(kernel, X[:5], y[:5], noise=0.01, constant=0.4, point_noise=extra[:5])
    for i in range(5, 12):
        grown = grown.condition(X[i], y[i], noise=extra[i])
    grown = grown.condition(X[12:], y[12:], noise=extra[12:])
    where = np.random.default_rng(3).random((9, 3))
    np.testing.assert_allclose(grown.factor, whole.factor, atol=1e-12)
    np.testing.assert_allclose(grown.covariance(where), whole.covariance(where), atol=1e-12)
    np.testing.assert_allclose(grown.mean(where), whole.mean(where), atol=1e-12)
    assert grown.log_marginal_likelihood == pytest.approx(whole.log_marginal_likelihood, abs=1e-10)
    assert grown.n == 20


def test_conditioning_leaves_the_old_posterior_alone_and_repeats_to_the_bit():
    old = make()
    before = old.predict(np.full((1, 3), 0.3))
    first, second = (old.condition([0.3, 0.3, 0.3], 9.0).condition([0.1, 0.2, 0.3], 1.0) for _ in range(2))
    np.testing.assert_array_equal(first.factor, second.factor)
    np.testing.assert_array_equal(first.weights, second.weights)
    np.testing.assert_array_equal(old.predict(np.full((1, 3), 0.3)), before)
    assert old.n == 25
    with pytest.raises(ValueError, match="read-only"):
        old.factor[0, 0] = 1.0


def test_a_posterior_without_observations_is_the_prior():
    none = condition_on(Kernel("se", 2.0, SCALES), np.zeros((0, 3)), [], noise=0.1, constant=3.0)
    found = none.predict_with_gradient(np.random.default_rng(0).random((4, 3)))
    np.testing.assert_allclose(found.mean, 3.0)
    np.testing.assert_allclose(found.variance, 2.0)
    np.testing.assert_allclose(found.mean_gradient, 0.0)
    assert none.log_marginal_likelihood == 0.0
    one = none.condition([0.5, 0.5, 0.5], 4.0)
    assert one.mean([[0.5, 0.5, 0.5]]) == pytest.approx([3.0 + 2.0 / 2.1])


def test_a_space_without_coordinates_has_a_posterior():
    flat = condition_on(Kernel("matern52", 1.0, np.zeros(0)), np.zeros((2, 0)), [1.0, 3.0], noise=0.5)
    mean, variance = flat.predict(np.zeros((1, 0)))
    assert mean == pytest.approx([2.0 / 1.25])
    assert variance == pytest.approx([1 - 1 / 1.25])


def test_draws_have_the_posterior_s_mean_and_covariance():
    ours = make(n=8)
    where = np.random.default_rng(4).random((5, 3))
    draws = ours.sample(where, 200_000, np.random.default_rng(5))
    covariance = ours.covariance(where)
    assert draws.shape == (200_000, 5)
    tolerance = 5 * np.sqrt(covariance.diagonal().max() / 200_000)
    np.testing.assert_allclose(draws.mean(axis=0), ours.mean(where), atol=tolerance)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=5 * covariance.max() * np.sqrt(2 / 200_000))


def test_draws_at_repeated_and_at_observed_points_are_finite_and_joint():
    ours = make(noise=0.0)
    where = np.vstack([ours.X[:2], [[0.5, 0.5, 0.5]] * 3])
    draws = ours.sample(where, 50, np.random.default_rng(0))
    np.testing.assert_allclose(draws[:, :2], np.tile(ours.y[:2], (50, 1)), atol=1e-3)
    np.testing.assert_allclose(draws[:, 2], draws[:, 4], atol=1e-4)


def test_duplicates_without_noise_take_a_little_jitter_and_say_so():
    X, y = data(10)
    twice = condition_on(Kernel("se", 1.0, SCALES), np.vstack([X, X]), np.concatenate([y, y]), noise=0.0)
    assert 0 < twice.jitter <= 1e-6
    np.testing.assert_allclose(twice.mean(X), y, atol=1e-2)
    once = condition_on(Kernel("matern32", 1.0, SCALES), X, y, noise=0.0)
    assert once.jitter == 0.0
    again = once.condition(X[0], y[0])
    assert 0 < again.jitter <= 1e-9
    np.testing.assert_allclose(again.mean(X), y, atol=1e-6)


def test_a_duplicate_averages_its_noise():
    single = condition_on(Kernel("se", 1.0, np.ones(1)), [[0.5]], [1.0], noise=0.2)
    double = single.condition([0.5], 3.0)
    assert double.mean([[0.5]]) == pytest.approx([2.0 / (1 + 0.1)])


@settings(max_examples=many(60), deadline=None)
@given(st.integers(1, 12), st.integers(0, 10_000), st.sampled_from([0.0, 1e-10, 0.1]), st.booleans())
def test_any_design_gives_finite_predictions_with_variances_between_zero_and_the_prior_s(
    n, seed, noise, coarse
):
    rng = np.random.default_rng(seed)
    X = np.round(rng.random((n, 2)), 1 if coarse else 12)
    scales = np.exp(rng.normal(size=2))
    ours = condition_on(Kernel("matern52", 2.0, scales), X, rng.normal(size=n), noise=noise)
    mean, variance = ours.predict(np.vstack([X, rng.random((5, 2))]))
    assert np.isfinite(mean).all()
    assert ((variance >= 0) & (variance <= 2.0)).all()


NAN = float("nan")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda p: p.predict([[0.1, 0.2]]), r"shape \(n, 3\)"),
        (lambda p: p.predict([0.1, 0.2, 0.3]), r"shape \(n, 3\)"),
        (lambda p: p.mean([[0.1, NAN, 0.2]]), "NaN"),
        (lambda p: p.predict([["a", "b", "c"]]), "must be an array of numbers"),
        (lambda p: p.condition([0.1, 0.2, 0.3], NAN), "y holds NaN"),
        (lambda p: p.condition([0.1, 0.2, 0.3], np.inf), "y holds NaN, infinity"),
        (lambda p: p.condition([0.1, 0.2, 0.3], [1.0, 2.0]), "one target per point"),
        (lambda p: p.condition([0.1, 0.2, np.inf], 1.0), "x holds NaN"),
        (lambda p: p.condition([0.1, 0.2], 1.0), r"x must have shape \(n, 3\)"),
        (lambda p: p.condition([0.1, 0.2, 0.3], 1.0, noise=-1.0), "not negative"),
        (lambda p: p.condition([0.1, 0.2, 0.3], 1.0, noise=NAN), "not negative"),
        (lambda p: p.sample(p.X, -1, np.random.default_rng(0)), "count must be"),
    ],
)
def test_input_is_checked_at_the_door(call, said):
    with pytest.raises(InvalidInput, match=said):
        call(make())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"y": [1.0]}, r"shape \(25,\)"),
        ({"y": [NAN] * 25}, "NaN"),
        ({"noise": -1.0}, "not negative"),
        ({"noise": [0.1, 0.2]}, "noise must be one variance"),
        ({"point_noise": [0.1, 0.2]}, "noise must be one variance or one per point"),
        ({"constant": NAN}, "NaN"),
    ],
)
def test_an_observation_that_is_none_is_refused(change, said):
    X, y = data(25)
    with pytest.raises(InvalidInput, match=said):
        condition_on(**{"kernel": Kernel("se", 1.0, SCALES), "X": X, "y": y, "noise": 0.1, **change})
