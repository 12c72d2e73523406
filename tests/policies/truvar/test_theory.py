"""The quantities of TruVaR's theorems, against enumeration, closed forms and searches."""

import itertools
import math

import numpy as np
import pytest

from haltune.errors import InvalidInput
from haltune.gp import Kernel
from haltune.policies.truvar.theory import information_gain, least_cost, sufficient_cost, sufficient_trials

LINE = np.linspace(0.0, 1.0, 5)[:, None]
PRIOR = Kernel("se", 1.0, np.array([0.3]))(LINE)


def left(chosen, noises):
    """Posterior variances after observations, by one dense solve."""
    at = list(chosen)
    cross = PRIOR[:, at]
    inner = PRIOR[np.ix_(at, at)] + np.diag([noises[j] for j in at])
    return np.diag(PRIOR) - np.einsum("ij,ji->i", cross, np.linalg.solve(inner, cross.T)) if at else np.diag(PRIOR)


def gain_of(chosen, noise):
    at = list(chosen)
    return 0.5 * np.linalg.slogdet(np.eye(len(at)) + PRIOR[np.ix_(at, at)] / noise)[1]


@pytest.mark.parametrize("deviation", [0.8, 0.5, 0.35])
@pytest.mark.parametrize("members", [None, [1, 2]])
def test_the_least_cost_is_that_of_the_cheapest_of_all_multisets(deviation, members):
    noises, costs = np.array([0.1, 0.02, 0.3, 0.02, 0.1]), np.array([1.0, 3.0, 0.7, 2.5, 1.5])
    among = slice(None) if members is None else members
    every = itertools.chain(*(itertools.combinations_with_replacement(range(5), k) for k in range(8)))
    expected = min(sum(costs[list(s)]) for s in every if left(s, noises)[among].max() <= deviation**2)
    found, chosen = least_cost(PRIOR, noises, costs, deviation, members)
    assert found == pytest.approx(expected)
    assert left(chosen, noises)[among].max() <= deviation**2 * (1 + 1e-9)


def test_a_least_cost_that_cannot_be_enumerated_is_refused(monkeypatch):
    monkeypatch.setattr("haltune.policies.truvar.theory._MOST_STATES", 500)
    with pytest.raises(InvalidInput, match="Raise it"):
        least_cost(PRIOR, 1.0, 1.0, 0.1)


@pytest.mark.parametrize("noise", [0.01, 0.3])
@pytest.mark.parametrize("trials", [1, 2, 5, 8])
def test_the_information_gain_is_an_upper_bound(noise, trials):
    best = max(gain_of(s, noise) for s in itertools.combinations_with_replacement(range(5), trials))
    assert best <= information_gain(PRIOR, noise, trials) + 1e-9


@pytest.mark.parametrize("noise", [0.01, 0.3])
def test_with_many_observations_the_bound_is_close_to_what_a_greedy_choice_gains(noise):
    chosen = []
    for _ in range(40):
        chosen.append(max(range(5), key=lambda j: gain_of([*chosen, j], noise)))
    assert gain_of(chosen, noise) <= information_gain(PRIOR, noise, 40) <= 1.01 * gain_of(chosen, noise)


def test_the_information_gain_is_exact_where_the_best_design_is_known():
    independent = np.eye(4)  # T / 4 observations of each
    assert information_gain(independent, 0.5, 12) == pytest.approx(4 * 0.5 * math.log(1 + 3 / 0.5), abs=1e-4)
    assert information_gain(np.ones((3, 3)), 0.5, 12) == pytest.approx(0.5 * math.log(1 + 12 / 0.5), abs=1e-3)


@pytest.mark.parametrize(("noise", "epsilon", "printed"), [(0.05, 3.0, True), (0.2, 2.0, False)])
def test_the_least_number_of_trials_is_the_first_that_satisfies_equation_17(noise, epsilon, printed):
    found = sufficient_trials(np.eye(1), noise, epsilon, delta=0.1, slack=0.5, printed=printed)

    T = np.arange(1.0, found + 1)  # all of them: T - (17) need not be monotone
    gamma = 0.5 * np.log(1 + T / noise) * (1 if printed else 2)
    beta = 2 * np.log(T**2 * math.pi**2 / 0.6)
    first = 2 * noise * gamma * beta * 96 * 1.5**2 / epsilon**2
    second = gamma * beta * 6 * 1.5**2 / noise / math.log(1 + 1 / noise)
    third = 2 * math.ceil(math.log2(32 * 1.5**2 / epsilon / math.sqrt(noise)))
    holds = (first + second + third) * np.log(16 * 1.5**2 * beta / 0.25 / epsilon**2) <= T
    assert np.flatnonzero(holds).tolist() == [len(T) - 1]


def test_the_printed_bound_on_the_variance_is_too_small_and_twice_the_gain_holds():
    """(38), for k repeats of one point: the variance is 1 / (1 + k / sigma^2)."""
    for noise, k in itertools.product([0.01, 1.0, 10.0], [1, 2, 7, 50]):
        variance, gamma = 1 / (1 + k / noise), 0.5 * math.log(1 + k / noise)
        assert variance <= 2 * gamma / k / math.log1p(1 / noise) * (1 + 1e-12)
    assert 0.5 * math.log(1 + 1 / 10) / math.log1p(1 / 10) < 1 / (1 + 1 / 10)


def test_the_sufficient_cost_is_that_of_the_best_single_level():
    levels = [(1e-2, 15.0), (0.1, 10.0), (0.5, 2.0)]
    cost, trials = sufficient_cost(PRIOR, levels, 1.0)
    each = [
        sufficient_trials(PRIOR, noise, 1.0, domain=15, cost_ratio=7.5) for noise, _ in levels
    ]  # fmt: skip
    assert trials == tuple(each)
    assert cost == min(T * c for T, (_, c) in zip(each, levels, strict=True))
    assert len(set(trials)) == 3
