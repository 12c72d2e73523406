"""Fitting against finite differences, scikit-learn's likelihood and prior, and edge cases that must work."""

from math import exp, log

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import minimize
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from haltune.errors import InvalidInput
from haltune.gp import LogNormal, Priors, fit
from haltune.gp.likelihood import Likelihood

WIDE = Priors(  # nearly flat in log space, so that the likelihood alone decides
    lengthscale=LogNormal(1e6, 1e3, 1e-2, 1e2),
    variance=LogNormal(1e6, 1e3, 1e-2, 1e2),
    noise=LogNormal(1e6, 1e3, 1e-5, 1.0),
)


def data(n, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((n, d))
    return X, 100 + 7 * (np.sin(4 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.standard_normal(n))


@pytest.mark.parametrize("kind", ["se", "matern32", "matern52"])
@pytest.mark.parametrize("n", [1, 30, 200])
def test_the_likelihood_s_gradient_agrees_with_finite_differences(kind, n):
    X, y = data(n)
    likelihood = Likelihood(kind, X, (y - 100) / 7, np.linspace(0, 0.1, n))
    theta, step = np.log([0.4, 0.8, 3.0, 1.2, 0.02]), 1e-5

    def at(logs):
        values = np.exp(logs)
        return likelihood(values[:3], float(values[3]), float(values[4]))

    found = at(theta)
    gradient = [*found.by_lengthscales, found.by_variance, found.by_noise]
    for position, direction in enumerate(np.eye(5) * step):
        expected = (at(theta + direction).value - at(theta - direction).value) / (2 * step)
        assert gradient[position] == pytest.approx(expected, rel=1e-5, abs=1e-5)


def test_the_likelihood_and_its_best_constant_agree_with_dense_algebra():
    X, y = data(80)
    found = Likelihood("matern52", X, y, np.zeros(80))(np.array([0.4, 0.8, 3.0]), 50.0, 2.0)
    kernel = ConstantKernel(50.0) * Matern([0.4, 0.8, 3.0], nu=2.5)
    covariance = kernel(X) + 2.0 * np.eye(80)
    inverse = np.linalg.inv(covariance)
    assert found.constant == pytest.approx(inverse.sum(axis=0) @ y / inverse.sum(), rel=1e-9)
    expected = stats.multivariate_normal(np.full(80, found.constant), covariance).logpdf(y)
    assert found.value == pytest.approx(expected, abs=1e-7)


def test_a_covariance_without_noise_and_with_duplicates_still_has_a_likelihood_and_gradient():
    X, y = data(20)
    twice = Likelihood("se", np.vstack([X, X]), np.concatenate([y, y]), np.zeros(40))
    found = twice(np.ones(3), 1.0, 0.0)
    assert np.isfinite([found.value, found.constant, *found.by_lengthscales, found.by_variance]).all()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_fitted_likelihood_is_at_least_scikit_learn_s_best_of_several_starts():
    X, y = data(60)
    ours = fit(X, y, priors=WIDE, starts=5)
    standard = (y - y.mean()) / y.std()
    kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(np.ones(3), (1e-2, 1e2), nu=2.5) + WhiteKernel(
        0.1, (1e-5, 1)
    )
    theirs = GaussianProcessRegressor(kernel, n_restarts_optimizer=4, random_state=0).fit(X, standard)
    reached = ours.log_marginal_likelihood + len(y) * log(y.std())  # of the standardised targets
    assert reached >= theirs.log_marginal_likelihood_value_ - 1e-3


def test_the_fit_is_a_maximum_of_likelihood_times_prior():
    X, y = data(40)
    ours = fit(X, y)
    priors, standard = Priors.default(3), (y - y.mean()) / y.std()
    likelihood = Likelihood("matern52", X, standard, np.zeros(40))
    parts = [priors.lengthscale] * 3 + [priors.variance, priors.noise]

    def density(theta):
        values = np.exp(theta)
        prior = sum(
            stats.lognorm(part.spread, scale=exp(part.location)).logpdf(value)
            for part, value in zip(parts, values, strict=True)
        )
        return likelihood(values[:3], float(values[3]), float(values[4])).value + prior

    scale = y.var()
    theta = np.log([*ours.kernel.lengthscales, ours.kernel.variance / scale, ours.noise / scale])
    polished = minimize(lambda t: -density(t), theta, method="Nelder-Mead", options={"maxfev": 1500})
    assert density(theta) >= -polished.fun - 1e-4


@pytest.mark.parametrize("shift", [0.0, 1e6])
@pytest.mark.parametrize("stretch", [1e-9, 1.0, 1e9])
def test_predictions_follow_the_targets_units(shift, stretch):
    X, y = data(30)
    where = np.random.default_rng(1).random((5, 3))
    mean, variance = fit(X, y).predict(where)
    other_mean, other_variance = fit(X, (y + shift) * stretch).predict(where)
    np.testing.assert_allclose(other_mean / stretch - shift, mean, rtol=1e-3)
    np.testing.assert_allclose(other_variance / stretch**2, variance, rtol=2e-2)


def test_lengthscales_tell_inputs_that_matter_from_inputs_that_do_not():
    X, y = data(60, d=4)
    scales = fit(X, y).kernel.lengthscales
    assert scales[:2].max() < scales[2:].min()


def test_known_noise_of_single_points_is_used():
    X, y = data(30)
    wrong = y.copy()
    wrong[:10] += 100.0
    noise = np.where(np.arange(30) < 10, 1e6, 0.0)
    ours, clean = fit(X, wrong, point_noise=noise), fit(X[10:], y[10:])
    where = np.random.default_rng(1).random((20, 3))
    np.testing.assert_allclose(ours.mean(where), clean.mean(where), atol=3.0)
    np.testing.assert_array_equal(ours.point_noise, noise)


@pytest.mark.parametrize("kernel", ["se", "matern32", "matern52"])
@pytest.mark.parametrize(
    ("X", "y"),
    [
        ([[0.5, 0.5]], [0.7]),
        ([[0.5, 0.5]] * 4, [0.7] * 4),
        ([[0.5, 0.5]] * 4, [0.1, 0.2, 0.3, 0.4]),
        (np.random.default_rng(0).random((9, 2)), np.full(9, 0.1)),
        (np.random.default_rng(0).random((9, 2)), np.zeros(9)),
        (np.random.default_rng(0).random((9, 2)), np.full(9, 1e90) * np.arange(9)),
        (np.random.default_rng(0).random((9, 2)), np.full(9, 1e-200) * np.arange(9)),
        (np.zeros((3, 0)), [1.0, 2.0, 4.0]),
    ],
    ids=["one", "duplicates", "noisy duplicates", "constant", "zero", "huge", "tiny", "no coordinates"],
)
def test_the_smallest_and_flattest_data_give_finite_posteriors(kernel, X, y):
    ours = fit(X, y, kernel=kernel)
    mean, variance = ours.predict(np.full((3, np.shape(X)[1]), 0.25))
    assert np.isfinite([mean, variance]).all()
    assert np.min(y) - 1e-9 <= mean[0] <= np.max(y) + 1e-9
    assert (variance > 0).all()


def test_fixed_variances_stay_and_bounds_hold():
    X, y = data(30)
    priors = Priors(lengthscale=LogNormal(0.0, 1.0, 0.5, 0.6), variance=1.0, noise=0.25)
    ours = fit(X, y, priors=priors)
    assert ours.kernel.variance == pytest.approx(y.var())
    assert ours.noise == pytest.approx(0.25 * y.var())
    assert ((ours.kernel.lengthscales >= 0.5 - 1e-12) & (ours.kernel.lengthscales <= 0.6 + 1e-12)).all()


def test_the_same_data_and_generator_give_the_same_bits():
    X, y = data(40)
    first, second = (fit(X, y, rng=np.random.default_rng(3)) for _ in range(2))
    np.testing.assert_array_equal(first.factor, second.factor)
    assert first.constant == second.constant


def test_an_earlier_posterior_is_a_start():
    X, y = data(40)
    good = fit(X, y, starts=6)
    again = fit(X, y, starts=1, start_from=good)
    np.testing.assert_allclose(again.kernel.lengthscales, good.kernel.lengthscales, rtol=0.05)
    with pytest.raises(InvalidInput, match="start_from has 3 coordinates"):
        fit(X[:, :2], y, start_from=good)


def test_long_histories_keep_a_subset():
    X, y = data(300)
    ours = fit(X, y, limit=60, learn_from=40)
    assert ours.n == 60
    assert y.max() in ours.y
    np.testing.assert_array_equal(ours.y[-15:], y[-15:])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"X": np.zeros((0, 3)), "y": []}, "1 observation"),
        ({"starts": 0}, "1 start"),
        ({"y": np.full(5, np.nan)}, "y holds NaN"),
        ({"X": np.full((5, 3), np.inf)}, "X holds NaN, infinity"),
        ({"X": np.zeros((4, 3))}, r"shape \(4,\)"),
        ({"kernel": "rbf"}, "unknown kernel"),
        ({"point_noise": [-1.0] * 5}, "not negative"),
        ({"limit": 0}, "limit must keep"),
    ],
)
def test_what_cannot_be_fitted_is_refused(change, said):
    X, y = data(5)
    with pytest.raises(InvalidInput, match=said):
        fit(**{"X": X, "y": y, **change})


@pytest.mark.parametrize(
    "change", [{"spread": 0.0}, {"low": 0.0}, {"low": 3.0, "high": 2.0}, {"location": np.nan}]
)
def test_a_prior_that_is_none_is_refused(change):
    with pytest.raises(InvalidInput, match="needs a finite location"):
        LogNormal(**{"location": 0.0, "spread": 1.0, "low": 0.1, "high": 10.0, **change})


def test_the_prior_s_density_slope_and_mode_agree_with_scipy():
    prior = LogNormal(0.3, 0.7, 1e-3, 1e3)
    peer = stats.lognorm(0.7, scale=exp(0.3))
    assert prior.log_density(log(2.5)) == pytest.approx(peer.logpdf(2.5))
    step = 1e-6
    slope = (peer.logpdf(2.5 * exp(step)) - peer.logpdf(2.5 * exp(-step))) / (2 * step)
    assert prior.slope(log(2.5)) == pytest.approx(slope, rel=1e-6)
    assert exp(prior.mode) == pytest.approx(exp(0.3 - 0.49))
