"""Learning-curve paths against dense GP formulae, quadrature, Monte Carlo, and the curves of other trials."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import minimize
from scipy.stats import gamma, multivariate_normal

from examples import many
from haltune.models import curves as model
from haltune.models.curves import (
    MIN_NOISE,
    ReferenceCurves,
    conditional_paths,
    decay_kernel,
    fit_decay,
    matched_paths,
    power_law_paths,
)

EXPONENTIAL = 0.2 + 0.7 * np.exp(-0.3 * np.arange(1, 9))
POWER = 0.1 + 0.8 * np.arange(1.0, 13.0) ** -0.7
curves = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12)


def follow(errors, horizon, count, rng):
    """Matched paths, with one other trial of these errors and more."""
    other = np.full(horizon, 0.5)
    return matched_paths(errors, horizon, ReferenceCurves(other[None]), count, rng)


draws = pytest.mark.parametrize("draw", [conditional_paths, power_law_paths])
all_draws = pytest.mark.parametrize("draw", [conditional_paths, power_law_paths, follow])


def log_likelihood(errors, alpha, beta, noise):
    """The dense one, by scipy."""
    epochs = np.arange(1, len(errors) + 1)
    covariance = decay_kernel(epochs, epochs, alpha, beta) + noise * np.eye(len(errors))
    return multivariate_normal(np.zeros(len(errors)), covariance).logpdf(errors)


@pytest.mark.parametrize(("n", "m", "alpha", "beta"), [(1, 1, 0.5, 2.0), (3, 7, 2.0, 10.0), (8, 51, 5.0, 30.0)])
def test_the_kernel_is_the_mixture_of_exponentials_it_is_said_to_be(n, m, alpha, beta):
    rate = gamma(alpha, scale=1.0 / beta)
    expected, _ = quad(lambda lam: np.exp(-lam * (n + m)) * rate.pdf(lam), 0.0, np.inf, limit=500)
    assert decay_kernel([n], [m], alpha, beta)[0, 0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("errors", [EXPONENTIAL, POWER[:8], 0.5 + 0.1 * np.sin(np.arange(8.0))])
def test_no_random_restart_finds_a_likelier_fit(errors):
    rng = np.random.default_rng(0)
    box = np.log([[1e-3, 1e2], [1e-2, 1e4], [MIN_NOISE, 1.0]])

    def loss(p):
        return -log_likelihood(errors, *np.exp(p))

    starts = box[:, 0] + rng.random((6, 3)) * (box[:, 1] - box[:, 0])
    found = max(-minimize(loss, s, method="L-BFGS-B", bounds=box).fun for s in starts)
    fit = fit_decay(errors)
    assert log_likelihood(errors, fit.alpha, fit.beta, fit.noise) >= found - 1e-4


def test_decay_paths_have_the_moments_of_the_dense_posterior():
    fit = fit_decay(EXPONENTIAL)
    seen, ahead = np.arange(1, 9), np.arange(9, 52)
    inverse = np.linalg.inv(decay_kernel(seen, seen, fit.alpha, fit.beta) + fit.noise * np.eye(8))
    cross = decay_kernel(seen, ahead, fit.alpha, fit.beta)
    mean = cross.T @ inverse @ EXPONENTIAL
    covariance = decay_kernel(ahead, ahead, fit.alpha, fit.beta) - cross.T @ inverse @ cross
    values = conditional_paths(EXPONENTIAL, 51, 200_000, np.random.default_rng(0)).values.astype(float)
    sd = np.sqrt(np.diag(covariance))
    assert np.abs(values.mean(axis=1) - mean).max() < 5 * sd.max() / np.sqrt(200_000) + 1e-6
    assert np.cov(values) == pytest.approx(covariance, abs=0.02 * sd.max() ** 2)


def dense_mixture(errors, horizon):
    """Mean and sd of the final error from powerlaw's prior by textbook conditioning, one node at a time."""
    shapes, prior = model._shapes(horizon)
    n0 = len(errors)
    log_epoch = np.log(np.arange(1, horizon + 1))
    back = log_epoch[n0 - 1] - log_epoch[:n0]
    early = np.diag(1 + (model._EARLY_NOISE * horizon / np.arange(1, n0 + 1)) ** 2)
    total = first = second = 0.0
    for shape, mass in zip(shapes, prior, strict=True):
        for walk in model._WALKS:
            for noise in model._NOISES:
                for scale, centre in model._SCALES:
                    basis = np.column_stack([np.ones(horizon), shape])
                    cov = noise**2 * (early + walk * np.minimum.outer(back, back))
                    prior_cov = np.diag([model._LEVEL[1] ** 2, scale**2])
                    prior_mean = np.array([model._LEVEL[0], centre])
                    marginal = cov + basis[:n0] @ prior_cov @ basis[:n0].T
                    residual = errors - basis[:n0] @ prior_mean
                    weight = mass * multivariate_normal(np.zeros(n0), marginal, allow_singular=True).pdf(residual)
                    gain = prior_cov @ basis[:n0].T @ np.linalg.inv(marginal)
                    post_mean = prior_mean + gain @ residual
                    post_cov = prior_cov - gain @ basis[:n0] @ prior_cov
                    mean = basis[-1] @ post_mean
                    var = basis[-1] @ post_cov @ basis[-1] + noise**2 * walk * (log_epoch[-1] - log_epoch[n0 - 1])
                    total, first, second = (total + weight, first + weight * mean, second + weight * (var + mean**2))
    mean = first / total
    return mean, np.sqrt(second / total - mean**2)


def test_power_law_paths_have_the_moments_of_the_dense_mixture():
    errors = POWER + 0.004 * np.random.default_rng(1).standard_normal(12)
    mean, sd = dense_mixture(errors, 51)
    final = power_law_paths(errors, 51, 400_000, np.random.default_rng(0)).values[-1].astype(float)
    assert final.mean() == pytest.approx(mean, abs=6 * sd / np.sqrt(400_000) + 1e-5)
    assert final.std() == pytest.approx(sd, rel=0.03)


def test_a_curve_at_the_worst_error_wakes_with_the_stated_probability():
    values = power_law_paths(np.ones(8), 51, 200_000, np.random.default_rng(0)).values
    assert (values[-1] < 1.0).mean() == pytest.approx(1.0 - (8 / 51) ** model._WAKING, abs=0.005)


@all_draws
@given(errors=curves, ahead=st.integers(1, 40))
@settings(max_examples=many(30), deadline=None)
def test_any_errors_give_finite_paths_to_the_horizon(draw, errors, ahead):
    paths = draw(errors, len(errors) + ahead, 500, np.random.default_rng(0))
    assert paths.values.shape == (ahead, 500)
    assert paths.horizon == len(errors) + ahead
    assert np.isfinite(paths.values).all()
    assert draw is conditional_paths or paths.inside.all()


@draws
def test_another_process_draws_the_same_bits(draw):
    code = (
        f"import hashlib, numpy as np; from {draw.__module__} import {draw.__name__} as draw;"
        "e = 0.2 + 0.7 * np.exp(-0.3 * np.arange(1, 9));"
        "print(hashlib.sha256(draw(e, 51, 3000, np.random.default_rng(5)).values.tobytes()).hexdigest())"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    here = draw(EXPONENTIAL, 51, 3000, np.random.default_rng(5)).values
    assert hashlib.sha256(here.tobytes()).hexdigest() == other.strip()


# matched to the curves of other trials

HORIZON = 20
PLATEAU = np.full(8, 0.7)


def drawn(errors, others, count=4000, seed=0, own=False):
    reference = ReferenceCurves.of([np.asarray(o, dtype=float) for o in others], HORIZON)
    return matched_paths(errors, HORIZON, reference, count, np.random.default_rng(seed), own=own)


def after_plateau(end, length=HORIZON):
    """Stays at 0.7 for ten epochs, then goes to `end` within four."""
    return np.interp(np.arange(1, length + 1), [1, 10, 14, 20], [0.7, 0.7, end, end])


def test_without_other_runs_they_are_those_of_the_power_law():
    falling = 0.2 + 0.7 / np.arange(1, 9)
    own = power_law_paths(falling, HORIZON, 500, np.random.default_rng(3)).values
    assert np.array_equal(drawn(falling, [], 500, 3).values, own)
    known_no_further = [falling + 0.01, falling[:5]]
    assert np.array_equal(drawn(falling, known_no_further, 500, 3).values, own)


def test_a_plateau_ends_as_in_the_reference_curves():
    """A quarter of the trials at this plateau improved later; a power law of one curve never would."""
    others = [after_plateau(0.3)] * 6 + [after_plateau(0.7)] * 18
    ends = drawn(PLATEAU, others, own=True).values[-1]
    assert np.mean(ends < 0.5) == pytest.approx(0.25, abs=0.05)
    alone = power_law_paths(PLATEAU, HORIZON, 4000, np.random.default_rng(0)).values[-1]
    assert np.mean(alone < 0.5) < 0.02


@pytest.mark.parametrize("sigma", [0.0, 0.003, 0.05])
def test_the_noise_of_curves_is_found_around_their_shape(sigma):
    rng = np.random.default_rng(0)
    smooth = 0.3 + 0.4 * np.arange(1.0, 61.0) ** -0.5
    noisy = smooth + sigma * rng.standard_normal((9, 60))
    reference = ReferenceCurves.of(list(noisy[1:]), 80)
    assert reference.noise(noisy[0]) == pytest.approx(sigma, rel=0.3, abs=2e-4)
    assert reference.noise(noisy[0, :2]) == pytest.approx(sigma, rel=0.2, abs=2e-4)  # that of the others


def test_a_running_best_has_no_noise():
    best = np.minimum.accumulate(0.5 + 0.1 * np.random.default_rng(0).standard_normal((5, 40)), axis=1)
    assert ReferenceCurves.of(list(best[1:]), 50).noise(best[0]) == 0.0


def test_stopped_trials_are_reference_curves_as_far_as_they_were_trained():
    """Of 24 trials 18 were stopped at epoch 9, before the fall; all that continued fell, which is no bias."""
    others = [after_plateau(0.3)] * 6 + [after_plateau(0.7)[:9]] * 18
    ends = drawn(PLATEAU, others).values[-1]
    assert np.mean(ends < 0.5) > 0.75


others_of_any_kind = st.lists(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=HORIZON), max_size=8)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=HORIZON - 1), others_of_any_kind, st.booleans())
@settings(deadline=None)
def test_any_curves_give_finite_paths_within_bounds_to_the_horizon(errors, others, own):
    paths = drawn(np.array(errors), others, 50, own=own and len(errors) >= 3)
    assert paths.start == len(errors)
    assert paths.values.shape == (HORIZON - len(errors), 50)
    assert ((paths.values >= 0.0) & (paths.values <= 1.0)).all()
