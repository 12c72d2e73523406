"""BO-BOS's bound on the regret, against theorem 1 by hand, its limits, and GP-UCB on drawn functions."""

import math

import numpy as np
import pytest

from haltune.errors import InvalidInput
from haltune.gp import Kernel, condition_on
from haltune.policies.bobos.theory import regret_bound
from haltune.policies.truvar.theory import information_gain


def test_the_terms_are_those_of_theorem_1():
    """T = 4, |D| = 100, sigma^2 = 1 / (e^2 - 1), so that C_1 = 4."""
    bound = regret_bound(100, 2.0, 1 / (math.e**2 - 1), [100.0, 200.0, 400.0, math.inf], 2, 50, (math.e / 3, 0.01), 3,
                         delta_of_slopes=1 / math.e**3)  # fmt: skip
    beta = 2 * math.log(100 * 16 * math.pi**2 / 0.6)
    assert bound.optimisation == pytest.approx(2 * math.sqrt(4 * 4 * beta * 2) / 4)
    assert bound.wrong_stops == pytest.approx((1 + 0.5 + 0.25) / 4)
    assert bound.early_stops == pytest.approx(50 * 0.01 * math.sqrt(4) * 2 / 4)
    assert bound.total == bound.optimisation + bound.wrong_stops + bound.early_stops


def test_the_bound_goes_to_zero_as_theorem_2_says_and_not_with_a_constant_k1():
    """K_1 is infinite from trial 20 on, so at most 20 are stopped; the gain of 10 points grows like a logarithm."""
    growing, constant = [], []
    for T in (10**2, 10**4, 10**6):
        gain = information_gain(np.eye(10), 0.1, T)
        k1 = [100 / 0.95**t if t < 20 else math.inf for t in range(T)]
        growing.append(regret_bound(10, gain, 0.1, k1, 20, 50, (1.0, 0.01), 2).total)
        constant.append(regret_bound(10, gain, 0.1, [100.0] * T, T, 50, (1.0, 0.01), 2).total)
    assert growing[2] < growing[1] / 5 < growing[0] / 25
    assert growing[2] < 0.3
    assert constant[2] > 1.0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_gp_ucb_on_drawn_functions_stays_below_the_first_term(seed):
    at, noise = np.linspace(0, 1, 15)[:, None], 0.05
    kernel, rng = Kernel("se", 1.0, np.array([0.2])), np.random.default_rng(seed)
    prior = kernel(at)
    f = np.linalg.cholesky(prior + 1e-9 * np.eye(15)) @ rng.standard_normal(15)
    chosen, seen = [], []
    for t in range(1, 31):
        mean, variance = condition_on(kernel, at[chosen], seen, noise=noise).predict(at)
        beta = 2 * math.log(15 * t**2 * math.pi**2 / 0.6)
        chosen.append(int(np.argmax(mean + np.sqrt(beta * variance))))
        seen.append(f[chosen[-1]] + math.sqrt(noise) * rng.standard_normal())
        bound = regret_bound(15, information_gain(prior, noise, t), noise, [math.inf] * t, 0, 1, (1.0, 1.0), 1, kappa=1)
        assert f.max() - f[chosen].max() <= bound.total == bound.optimisation
        assert f.max() - f[chosen].mean() <= bound.total  # and so does the mean regret, which the proof bounds


def test_numbers_out_of_range_are_refused():
    with pytest.raises(InvalidInput, match="out of range"):
        regret_bound(10, 1.0, 0.1, [100.0], 2, 50, (1.0, 0.01), 2)
    with pytest.raises(InvalidInput, match="out of range"):
        regret_bound(10, 1.0, 0.1, [], 0, 50, (1.0, 0.01), 2)


def test_a_slope_bound_that_no_derivative_can_exceed_is_named():
    """d a = 0.02 is not above delta' = 0.1, so log(d a / delta') would have no root."""
    with pytest.raises(InvalidInput, match=r"coordinates \* a above delta_of_slopes"):
        regret_bound(10, 1.0, 0.1, [100.0], 0, 50, (0.01, 0.01), 2)
