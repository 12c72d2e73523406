"""Truncated variance reduction against equation (3) computed from scratch, and fields against dense posteriors."""

import math
from functools import partial

import numpy as np
import pytest

from haltune.gp import Kernel, condition_on
from haltune.policies.truvar.belief import BlockedField, DenseField, field_of
from haltune.policies.truvar.choice import (
    Aim,
    Confidence,
    Stage,
    anticipated_reduction,
    excess_variance,
    truncated_reduction,
)

KERNEL = Kernel("matern52", 1.7, np.array([0.2, 0.4]))
RNG = np.random.default_rng(0)
POINTS = RNG.random((60, 2))
SEEN = RNG.integers(60, size=9)
TARGETS = RNG.standard_normal(9)
NOISE = RNG.uniform(1e-4, 0.3, 60)  # per point
MEMBERS = RNG.random(60) < 0.7


def posterior(indices, targets, noise):
    return condition_on(KERNEL, POINTS[indices], targets, noise=0.0, constant=0.3, point_noise=noise)


def believed():
    return posterior(SEEN, TARGETS, NOISE[SEEN])


def from_scratch(noise, floor):
    """Equation (3), each variance by conditioning a Gaussian process again."""
    now = believed().variance(POINTS)
    total = np.maximum(now, floor)[MEMBERS].sum()
    reductions = []
    for j in range(60):
        after = believed().condition(POINTS[j], 0.0, noise[j]).variance(POINTS)
        reductions.append(total - np.maximum(after, floor)[MEMBERS].sum())
    return np.array(reductions)


@pytest.mark.parametrize("floor", [0.0, 0.05, 0.4, 1.2, 5.0])
def test_the_rank_one_form_is_equation_3_computed_from_scratch(floor):
    field = field_of(believed(), POINTS)
    noise = np.array([NOISE, NOISE + 0.5])
    found = truncated_reduction(field.rows, field.variance, noise, excess_variance(field.variance, floor, MEMBERS))
    expected = np.array([from_scratch(row, floor) for row in noise])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("count", [1, 5, 40])
def test_a_field_grown_by_observations_is_the_posterior_given_all_of_them(count):
    rng = np.random.default_rng(count)
    places, values = rng.integers(60, size=count), rng.standard_normal(count)
    whole = posterior(places, values, NOISE[places])
    prior = condition_on(KERNEL, np.zeros((0, 2)), [], noise=0.0, constant=0.3)
    for field in (field_of(prior, POINTS), BlockedField(prior, POINTS)):
        for place, value in zip(places, values, strict=True):
            field.observe(int(place), float(value), float(NOISE[place]))
        np.testing.assert_allclose(field.mean, whole.mean(POINTS), atol=1e-9)
        np.testing.assert_allclose(field.variance, whole.variance(POINTS), atol=1e-9)
        np.testing.assert_allclose(field.rows(np.arange(60)), whole.covariance(POINTS), atol=1e-9)


def test_downdates_stay_symmetric_and_positive_over_many_exact_repeats():
    field = DenseField(np.zeros(60), KERNEL(POINTS), 1.7)
    for _ in range(30):
        for place in range(0, 60, 6):
            field.observe(place, 0.0, 1e-6)
    covariance = field.covariance
    assert np.abs(covariance - covariance.T).max() < 1e-12
    assert np.linalg.eigvalsh(covariance).min() > -1e-9


def test_anticipation_counts_members_that_would_leave_as_known():
    field = field_of(believed(), POINTS)
    over = np.where(MEMBERS, excess_variance(field.variance, 0.2, MEMBERS), -1.0)

    def stays(drop, block, limit):
        return np.sqrt(field.variance[block, None] - np.minimum(drop, field.variance[block, None])) >= limit

    for limit in (0.0, 0.5, 0.9):
        kept = partial(stays, limit=limit)
        found = anticipated_reduction(field.rows, field.variance, NOISE[None], over, 0.2, kept)[0]
        expected = np.zeros(60)
        for j in range(60):
            after = believed().condition(POINTS[j], 0.0, NOISE[j]).variance(POINTS)
            left = MEMBERS & (np.sqrt(after) >= limit)
            expected[j] = np.maximum(field.variance, 0.2)[MEMBERS].sum() - np.maximum(after, 0.2)[left].sum()
        np.testing.assert_allclose(found, expected, atol=1e-9)


MEAN = np.array([0.0, 1.0, 2.0, 3.0])
WIDTH = np.array([0.1, 2.5, 0.5, 1.2])
ALL = np.ones(4, dtype=bool)


def test_the_theorem_takes_the_cost_spent_for_the_end_of_the_stage():
    beta = Confidence(0.5, "theorem", delta=0.05).beta_of(Stage(2, 9), 100, 40.0)
    assert beta == pytest.approx(2 * math.log(100 * 1600 * math.pi**2 / (6 * 0.05)))


def test_an_implicit_threshold_lies_between_shares_of_the_bounds_of_the_maximum():
    aim = Aim(share=0.5)
    assert aim.between(MEAN, WIDTH) == (0.5 * 1.8, 0.5 * 4.2)
    assert aim.open(MEAN, WIDTH, ALL).tolist() == [False, True, True, True]
    known = Aim(share=0.5).members(MEAN, np.array([0.1, 0.9, 0.1, 0.1]), ALL)
    assert known.tolist() == [False, True, False, True]  # the maximum stays while anything is open
