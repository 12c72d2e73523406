"""Sampled hyperparameters against quadrature of their posterior, and edge cases that must work."""

from math import exp, log

import numpy as np
import pytest
from scipy import stats

from haltune.gp import Kernel, LogNormal, Priors, sample, subset


def data(n, d=1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.random((n, d))
    return X, np.sin(5 * X[:, 0]) + 0.1 * rng.standard_normal(n)


def standardised(y):
    return (y - y.mean()) / y.std()


def evidence(X, z, scale, noise, variance=1.0):
    """Density of the contrasts of z: the constant is integrated out because no contrast has it."""
    n = len(z)
    contrasts = np.linalg.svd(np.ones((1, n)))[2][1:]
    covariance = Kernel("matern52", variance, np.array([scale]))(X) + noise * np.eye(n)
    return stats.multivariate_normal(np.zeros(n - 1), contrasts @ covariance @ contrasts.T).logpdf(contrasts @ z)


@pytest.mark.parametrize("n", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 15))])
def test_lengthscales_are_distributed_as_quadrature_of_their_posterior_says(n):
    X, y = data(n)
    prior = LogNormal(0.5, 1.0, 0.02, 1e3)
    drawn = sample(X, y, count=600, priors=Priors(prior, 1.0, 0.02), rng=np.random.default_rng(1))
    found = np.log([p.kernel.lengthscales[0] for p in drawn])
    logs = np.linspace(log(0.02), 5.0, 400)
    density = stats.norm(0.5, 1.0).logpdf(logs)
    if n > 1:
        density = density + [evidence(X, standardised(y), exp(v), 0.02) for v in logs]
    weights = np.exp(density - density.max())
    weights /= weights.sum()
    mean = weights @ logs
    spread = np.sqrt(weights @ (logs - mean) ** 2)
    assert found.mean() == pytest.approx(mean, abs=0.15 * spread)
    assert found.std() == pytest.approx(spread, rel=0.15)
    assert stats.kstest(found, lambda v: np.interp(v, logs, np.cumsum(weights))).statistic < 0.08


@pytest.mark.slow
def test_noise_and_variance_are_sampled_together_with_lengthscales():
    X, y = data(12, seed=3)
    priors = Priors(LogNormal(-1.0, 0.02, 0.02, 1e3), LogNormal(0.0, 1.0, 1e-2, 1e3), LogNormal(-3.0, 1.0, 1e-6, 10.0))
    drawn = sample(X, y, count=600, priors=priors, rng=np.random.default_rng(2))
    found = np.log([(p.kernel.variance, p.noise) for p in drawn]) - 2 * log(y.std())
    grid = np.array([(v, w) for v in np.linspace(-4, 4, 41) for w in np.linspace(-7, 1, 41)])
    z = standardised(y)
    density = np.array([evidence(X, z, exp(-1.0), exp(w), exp(v)) for v, w in grid])
    density += stats.norm(0, 1).logpdf(grid[:, 0]) + stats.norm(-3, 1).logpdf(grid[:, 1])
    weights = np.exp(density - density.max())
    weights /= weights.sum()
    mean = weights @ grid
    spread = np.sqrt(weights @ (grid - mean) ** 2)
    np.testing.assert_allclose(found.mean(axis=0), mean, atol=0.2 * spread.max())
    np.testing.assert_allclose(found.std(axis=0), spread, rtol=0.2)


def test_every_draw_is_a_posterior_of_the_data_in_their_own_units():
    X, y = data(20, d=3)
    some, scaled = sample(X, y), sample(X, 1e3 * y + 1e5)
    at = np.random.default_rng(5).random((7, 3))
    assert len(some) == 6
    for p, q in zip(some, scaled, strict=True):
        np.testing.assert_allclose(1e3 * p.mean(at) + 1e5, q.mean(at), rtol=1e-8)
        np.testing.assert_allclose(1e6 * p.variance(at), q.variance(at), rtol=1e-5)
    assert len({p.noise for p in some}) == 6


@pytest.mark.parametrize("y", [[3.0], [2.0, 2.0, 2.0], [1e-9, 2e-9, 0.0], [1e9, -1e9, 5.0]])
def test_odd_targets_are_sampled_all_the_same(y):
    X = np.linspace(0, 1, len(y))[:, None]
    for posterior in sample(X, y):
        assert np.isfinite(posterior.predict(np.array([[0.3]]))).all()


def test_of_many_observations_a_subset_is_kept():
    X, y = data(40, d=2)
    kept = X[subset(X, y, 25)]
    for posterior in sample(X, y, count=2, limit=25):
        np.testing.assert_array_equal(posterior.X, kept)
