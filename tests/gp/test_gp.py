"""Posteriors, fits and subsets against scikit-learn, dense algebra, finite differences and greedy search."""

from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import minimize
from scipy.spatial.distance import cdist

from examples import many
from haltune.errors import InvalidInput
from haltune.gp import Kernel, LogNormal, Priors, condition_on, fit, subset
from haltune.gp.gp import Likelihood
from haltune.gp.kernels import squared_distances

SCALES = np.array([0.4, 0.8, 1.5])


def data(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((n, 3))
    return X, np.sin(4 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n)


def make(n=25, kind="matern52", noise=0.01, seed=0, **more):
    X, y = data(n, seed)
    return condition_on(Kernel(kind, 1.3, SCALES), X, y, noise=noise, **more)


def peer(kind):
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern

    part = RBF(SCALES, "fixed") if kind == "se" else Matern(SCALES, "fixed", nu=1.5 if kind == "matern32" else 2.5)
    return ConstantKernel(1.3, "fixed") * part


@pytest.mark.parametrize("kind", ["se", "matern32", "matern52"])
@pytest.mark.parametrize("extra", [None, "per point"])
def test_mean_deviation_covariance_and_likelihood_agree_with_scikit_learn(kind, extra):
    from sklearn.gaussian_process import GaussianProcessRegressor

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
    between = theirs.predict(where, return_cov=True)[1]
    np.testing.assert_allclose(ours.covariance(where), between, atol=1e-8)
    np.testing.assert_allclose(ours.covariance(where[:9], where[9:]), between[:9, 9:], atol=1e-8)
    expected = theirs.log_marginal_likelihood(theirs.kernel_.theta)
    assert ours.log_marginal_likelihood == pytest.approx(expected, abs=1e-8)
    assert ours.jitter == 0.0


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


def test_a_posterior_without_observations_is_the_prior():
    none = condition_on(Kernel("se", 2.0, SCALES), np.zeros((0, 3)), [], noise=0.1, constant=3.0)
    found = none.predict_with_gradient(np.random.default_rng(0).random((4, 3)))
    np.testing.assert_allclose(found.mean, 3.0)
    np.testing.assert_allclose(found.variance, 2.0)
    np.testing.assert_allclose(found.mean_gradient, 0.0)
    assert none.log_marginal_likelihood == 0.0
    one = none.condition([0.5, 0.5, 0.5], 4.0)
    assert one.mean([[0.5, 0.5, 0.5]]) == pytest.approx([3.0 + 2.0 / 2.1])


def test_draws_have_the_posterior_s_mean_and_covariance():
    ours = make(n=8)
    where = np.random.default_rng(4).random((5, 3))
    draws = ours.sample(where, 200_000, np.random.default_rng(5))
    covariance = ours.covariance(where)
    assert draws.shape == (200_000, 5)
    tolerance = 5 * np.sqrt(covariance.diagonal().max() / 200_000)
    np.testing.assert_allclose(draws.mean(axis=0), ours.mean(where), atol=tolerance)
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=5 * covariance.max() * np.sqrt(2 / 200_000))


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


@settings(max_examples=many(60), deadline=None)
@given(st.integers(1, 12), st.integers(0, 10_000), st.sampled_from([0.0, 1e-10, 0.1]), st.booleans())
def test_any_design_gives_finite_predictions_with_variances_between_zero_and_the_prior_s(n, seed, noise, coarse):
    rng = np.random.default_rng(seed)
    X = np.round(rng.random((n, 2)), 1 if coarse else 12)
    scales = np.exp(rng.normal(size=2))
    ours = condition_on(Kernel("matern52", 2.0, scales), X, rng.normal(size=n), noise=noise)
    mean, variance = ours.predict(np.vstack([X, rng.random((5, 2))]))
    assert np.isfinite(mean).all()
    assert ((variance >= 0) & (variance <= 2.0)).all()


# fit

WIDE = Priors(  # nearly flat in log space, so that the likelihood alone decides
    lengthscale=LogNormal(1e6, 1e3, 1e-2, 1e2),
    variance=LogNormal(1e6, 1e3, 1e-2, 1e2),
    noise=LogNormal(1e6, 1e3, 1e-5, 1.0),
)


def targets(n, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((n, d))
    return X, 100 + 7 * (np.sin(4 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.standard_normal(n))


@pytest.mark.parametrize("kind", ["se", "matern32", "matern52"])
@pytest.mark.parametrize("n", [1, 30, 200])
def test_the_likelihood_s_gradient_agrees_with_finite_differences(kind, n):
    X, y = targets(n)
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
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern

    X, y = targets(80)
    found = Likelihood("matern52", X, y, np.zeros(80))(np.array([0.4, 0.8, 3.0]), 50.0, 2.0)
    kernel = ConstantKernel(50.0) * Matern([0.4, 0.8, 3.0], nu=2.5)
    covariance = kernel(X) + 2.0 * np.eye(80)
    inverse = np.linalg.inv(covariance)
    assert found.constant == pytest.approx(inverse.sum(axis=0) @ y / inverse.sum(), rel=1e-9)
    expected = stats.multivariate_normal(np.full(80, found.constant), covariance).logpdf(y)
    assert found.value == pytest.approx(expected, abs=1e-7)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_fitted_likelihood_is_at_least_scikit_learn_s_best_of_several_starts():
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    X, y = targets(60)
    ours = fit(X, y, priors=WIDE, starts=5)
    standard = (y - y.mean()) / y.std()
    kernel = ConstantKernel(1.0, (1e-2, 1e2)) * Matern(np.ones(3), (1e-2, 1e2), nu=2.5) + WhiteKernel(0.1, (1e-5, 1))
    theirs = GaussianProcessRegressor(kernel, n_restarts_optimizer=4, random_state=0).fit(X, standard)
    reached = ours.log_marginal_likelihood + len(y) * log(y.std())  # of the standardised targets
    assert reached >= theirs.log_marginal_likelihood_value_ - 1e-3


def test_the_fit_is_a_maximum_of_likelihood_times_prior():
    X, y = targets(40)
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
    X, y = targets(30)
    where = np.random.default_rng(1).random((5, 3))
    mean, variance = fit(X, y).predict(where)
    other_mean, other_variance = fit(X, (y + shift) * stretch).predict(where)
    np.testing.assert_allclose(other_mean / stretch - shift, mean, rtol=1e-3)
    np.testing.assert_allclose(other_variance / stretch**2, variance, rtol=2e-2)


def test_known_noise_of_single_points_is_used():
    X, y = targets(30)
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
        ([[0.5, 0.5]] * 4, [0.1, 0.2, 0.3, 0.4]),
        (np.random.default_rng(0).random((9, 2)), np.full(9, 0.1)),
        (np.random.default_rng(0).random((9, 2)), np.full(9, 1e90) * np.arange(9)),
        (np.random.default_rng(0).random((9, 2)), np.full(9, 1e-200) * np.arange(9)),
        (np.zeros((3, 0)), [1.0, 2.0, 4.0]),
    ],
    ids=["one", "noisy duplicates", "constant", "huge", "tiny", "no coordinates"],
)
def test_the_smallest_and_flattest_data_give_finite_posteriors(kernel, X, y):
    ours = fit(X, y, kernel=kernel)
    mean, variance = ours.predict(np.full((3, np.shape(X)[1]), 0.25))
    assert np.isfinite([mean, variance]).all()
    assert np.min(y) - 1e-9 <= mean[0] <= np.max(y) + 1e-9
    assert (variance > 0).all()


def test_the_prior_s_density_slope_and_mode_agree_with_scipy():
    prior = LogNormal(0.3, 0.7, 1e-3, 1e3)
    peer = stats.lognorm(0.7, scale=exp(0.3))
    assert prior.log_density(log(2.5)) == pytest.approx(peer.logpdf(2.5))
    step = 1e-6
    slope = (peer.logpdf(2.5 * exp(step)) - peer.logpdf(2.5 * exp(-step))) / (2 * step)
    assert prior.slope(log(2.5)) == pytest.approx(slope, rel=1e-6)
    assert exp(prior.mode) == pytest.approx(exp(0.3 - 0.49))


# subset


def test_a_quarter_are_the_best_a_quarter_the_latest_and_the_rest_fill_the_space_greedily():
    X, y = targets(300)
    kept = subset(X, y, 40)
    expected = set(np.argsort(-y)[:10]) | set(range(290, 300))
    while len(expected) < 40:
        expected.add(int(np.argmax(cdist(X, X[sorted(expected)]).min(axis=1))))
    assert set(kept) == expected
    assert (np.diff(kept) > 0).all()


def test_distances_of_near_duplicates_far_from_the_origin_are_not_negative():
    points = 1000.0 + np.array([[0.0, 0.0], [1e-9, 0.0], [1e-9, 1e-9]])
    assert (squared_distances(points, points) >= 0).all()
    for kind in ("se", "matern32", "matern52"):
        np.testing.assert_allclose(Kernel(kind, 1.0, np.full(2, 0.02))(points), 1.0, atol=1e-9)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: make().predict([[0.1, 0.2]]), r"shape \(n, 3\)"),
        (lambda: make().mean([[0.1, np.nan, 0.2]]), "NaN"),
        (lambda: make().condition([0.1, 0.2, 0.3], np.inf), "y has NaN, infinity"),
        (lambda: make().condition([0.1, 0.2, 0.3], [1.0, 2.0]), "one target per point"),
        (lambda: make().condition([0.1, 0.2, 0.3], 1.0, noise=-1.0), "not negative"),
        (lambda: fit(np.zeros((0, 3)), []), "1 observation"),
        (lambda: fit(np.zeros((5, 3)), np.full(5, np.nan)), "y has NaN"),
        (lambda: fit(np.zeros((5, 3)), np.zeros(5), kernel="rbf"), "no kernel 'rbf'"),
        (lambda: fit(np.zeros((5, 3)), np.zeros(5), limit=0), "limit=0 keeps no"),
        (lambda: Kernel("se", 0.0, SCALES), "variance is 0.0"),
        (lambda: Kernel("se", 1.0, np.array([1.0, np.nan])), "lengthscales="),
    ],
)
def test_input_is_checked_at_the_door(call, said):
    with pytest.raises(InvalidInput, match=said):
        call()
