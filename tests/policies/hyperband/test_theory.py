"""The budgets of Hyperband's theorems, against their definitions, searches on random curves, and drawn samples."""

import math

import numpy as np
import pytest

from haltune.errors import InvalidInput
from haltune.policies.hyperband.theory import (
    envelope,
    hardness,
    needed_budget,
    sampling_budget,
    sufficient_budget,
    survivor,
    units_until,
)

R = 27


def curves(n, seed, units=R):
    """Losses that come to their limits within gamma(j) of one envelope, from either side."""
    rng = np.random.default_rng(seed)
    limits = rng.random(n) ** rng.choice([1.0, 3.0])
    gap = rng.uniform(-1, 1, (n, units)) * (np.arange(1, units + 1) ** -rng.choice([0.5, 1.5]))
    gap[:, -1] = 0.0
    return limits[:, None] + gap


def test_the_envelope_and_its_inverse_are_their_definitions():
    losses = curves(6, 0)
    gamma = envelope(losses)
    away = np.abs(losses - losses[:, -1:])
    for j in range(R):
        assert gamma[j] == away[:, j:].max()  # the pointwise least that never rises
    for y in (0.0, *gamma, 0.03, 10.0):
        assert units_until(gamma, y) == next(j for j in range(1, R + 1) if gamma[j - 1] <= y)


@pytest.mark.parametrize("epsilon", [0.05, 0.4])
def test_the_sufficient_budgets_are_theorems_1_and_8_written_out(epsilon):
    losses = curves(8, 1)
    nu, gamma = np.sort(losses[:, -1]), envelope(losses)
    inverse = [next(j for j in range(1, R + 1) if gamma[j - 1] <= max(epsilon / 4, (v - nu[0]) / 2)) for v in nu]
    assert sufficient_budget(losses, epsilon) == 2 * 3 * max((i + 1) * (1 + inverse[i]) for i in range(1, 8))
    expected = 3 * 3 * (8 + max(R, sum(inverse[1:])))
    assert sufficient_budget(losses, epsilon, eta=3) == pytest.approx(expected)


@pytest.mark.parametrize(("n", "eta"), [(8, None), (16, None), (9, 3), (27, 3), (20, 2)])
def test_from_a_sufficient_budget_on_the_winner_is_close_to_the_best(n, eta):
    for seed in range(12):
        losses = curves(n, seed)
        for epsilon in (0.02, 0.2, 0.6):
            enough = sufficient_budget(losses, epsilon, eta=eta)
            budgets = [math.ceil(enough * share) + 1 for share in (0.3, 0.6, 1.0, 2.0, 5.0)]
            for budget in budgets[2:]:
                winner = survivor(losses, budget, eta=eta)
                assert losses[winner, -1] - losses[:, -1].min() <= epsilon
            assert needed_budget(losses, epsilon, budgets, eta=eta) <= budgets[2]


def test_the_needed_budget_is_the_least_from_which_on_every_one_suffices():
    """The best of 8 shows it at unit 8: the first of 3 rounds must pull each of 8 so often, 8 * 8 * 3."""
    losses = np.repeat(np.arange(8)[:, None] / 10, 12, axis=1)
    losses[0, :7] = 1.0
    assert needed_budget(losses, 0.05, range(24, 300)) == 192
    assert needed_budget(losses, 0.05, range(24, 192)) is None
    assert needed_budget(losses, 0.1, range(24, 300)) == 24
    assert sufficient_budget(losses, 0.05) >= 192


@pytest.mark.parametrize("epsilon", [None, 1.5])
def test_the_hardness_is_lemma_2_written_out(epsilon):
    population = curves(400, 5)
    limits, gamma, n, delta = population[:, -1], envelope(population), 60, 0.1
    nu = np.sort(limits)
    p = math.log(2 / delta) / n
    quantile = next(x for x in nu if np.mean(limits <= x) >= p)
    eps = 4 * (quantile - nu[0]) if epsilon is None else epsilon
    inverse = lambda y: next(j for j in range(1, R + 1) if gamma[j - 1] <= y)  # noqa: E731
    tail = sum(inverse((x - nu[0]) / 4) for x in limits if x > nu[0] + eps / 4) / 400
    share = np.mean(limits <= nu[0] + eps / 4)
    expected = 2 * n * tail + (4 / 3 * math.log(2 / delta) + 2 * n * share) * inverse(eps / 16)
    assert hardness(limits, gamma, n, delta, epsilon) == pytest.approx(expected)
    budget, distance = sampling_budget(limits, gamma, n, delta, epsilon)
    assert budget == pytest.approx(4 * 6 * expected)
    assert distance == pytest.approx(quantile - nu[0] + eps)
    finite, _ = sampling_budget(limits, gamma, n, delta, epsilon, eta=3)
    assert finite == pytest.approx(3 * 3 * (n + max(R, expected)))


@pytest.mark.parametrize("eta", [None, 3])
def test_samples_need_no_more_than_the_hardness_and_end_within_the_distance(eta):
    population = curves(2000, 7)
    limits, gamma, n, delta = population[:, -1], envelope(population), 32, 0.2
    H = hardness(limits, gamma, n, delta)
    budget, distance = sampling_budget(limits, gamma, n, delta, eta=eta)
    rng, broken = np.random.default_rng(0), 0
    for _ in range(200):
        drawn = population[rng.integers(2000, size=n)]
        nu = np.sort(drawn[:, -1])
        least = 4 * (np.sort(limits)[math.ceil(math.log(2 / delta) / n * 2000) - 1] - limits.min())
        units = units_until(gamma, np.maximum(least / 4, (nu[1:] - nu[0]) / 2)).sum()
        near = drawn[survivor(drawn, math.ceil(budget), eta=eta), -1] - limits.min() <= distance
        broken += units > H or not near
    assert broken <= delta * 200


def test_losses_without_an_envelope_and_samples_without_a_guarantee_are_refused():
    with pytest.raises(InvalidInput, match="finite"):
        envelope(np.array([[1.0, np.nan]]))
    with pytest.raises(InvalidInput, match="log"):
        hardness(np.ones(3), np.zeros(3), 2, 0.01)
    with pytest.raises(InvalidInput, match="Raise it"):
        hardness(np.linspace(0, 1, 50), np.zeros(3), 10, 0.1, 0.001)
    with pytest.raises(InvalidInput, match="2 configurations"):
        sufficient_budget(np.ones((1, 3)), 0.1)
