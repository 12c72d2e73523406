"""Beliefs about coefficients: the paper's tables, a dense solve, and ten thousand updates."""

import numpy as np
import pytest

from haltune.policies.autobct.prior import PRESETS, Powers, belief, default_basis, preset, prior_from_json

TABLES = {  # control, observed score, posterior mean at that control
    "table 1": ("D.1", [(0, 0.556, 0.555), (0.06, 0.734, 0.697), (0.74, 0.977, 0.98)]),
    "table 2": ("D.1", [(0, 0.56, 0.559), (0.07, 0.738, 0.707), (0.79, 0.981, 0.984)]),
    "table 3": ("D.1", [(0, 0.545, 0.545), (0.56, 0.976, 0.973), (0.76, 0.983, 0.991)]),
    "table 4": ("D.2", [(1, 0.229, 0.23), (0.79, 0.709, 0.619), (0.42, 0.806, 0.828)]),
    "table 5": (
        "D.3",
        [(1, 0.137, 0.137), (0.21, 0.154, 0.163), (0.72, 0.166, 0.202), (0, 0.166, 0.137), (0.43, 0.794, 0.445)],
    ),
}


@pytest.mark.parametrize("table", TABLES)
def test_the_papers_posterior_means_come_out_of_its_priors_and_observations(table):
    name, rows = TABLES[table]
    believed = preset(name)
    for u, h, mean in rows:
        phi = believed.on(np.array([[float(u)]]))[0]
        believed = believed.observe(phi, h, None)
        assert float(phi @ believed.score.mean) == pytest.approx(mean, abs=2e-3)


@pytest.mark.parametrize(
    ("name", "h", "score", "t", "minutes"),
    [("D.5", 0.6, 0.72, 0.96, 4.8), ("D.7", 0.99, 0.74, 1.89, 42.9), ("D.8", 0.97, 0.73, 2.868, 62.0)],
)
def test_the_maps_of_the_priors_give_the_raw_scores_and_minutes_of_tables_9_11_and_12(name, h, score, t, minutes):
    prior = preset(name)
    (worst, best), (zero, one) = prior.score_map, prior.cost_map
    assert worst + h * (best - worst) == pytest.approx(score, abs=5e-3)
    assert (zero + t * (one - zero)) / 60 == pytest.approx(minutes, abs=0.5)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_json_bit_for_bit(name):
    prior = preset(name)
    again = prior_from_json(prior.to_json())
    assert again.to_json() == prior.to_json()
    points = np.random.default_rng(0).uniform(size=(5, 1 if len(prior.score.mean) == 4 else 2))
    assert np.array_equal(again.on(points), prior.on(points))


def test_rank_one_updates_agree_with_the_inverse_form_of_the_filter():
    rng = np.random.default_rng(1)
    root = rng.normal(size=(5, 5))
    mean, cov = rng.normal(size=5), root @ root.T
    filtered = belief(mean, cov)
    for _ in range(6):
        phi, y, variance = rng.normal(size=5), rng.normal(), rng.uniform(0.1, 1.0)
        after = np.linalg.inv(np.linalg.inv(cov) + np.outer(phi, phi) / variance)  # (2.7)
        mean, cov = mean + after @ phi * (y - phi @ mean) / variance, after
        filtered = filtered.observe(phi, y, variance)
    assert filtered.mean == pytest.approx(mean, abs=1e-9)
    assert filtered.cov == pytest.approx(cov, abs=1e-9)


@pytest.mark.parametrize("variance", [0.01, 1e-8])
def test_a_covariance_stays_symmetric_and_positive_after_ten_thousand_updates(variance):
    rng = np.random.default_rng(2)
    prior = preset("D.4")
    believed = prior.score
    for phi in prior.on(rng.uniform(size=(10_000, 2))):
        believed = believed.observe(phi, rng.normal(), variance)
    cov = believed.cov
    assert np.array_equal(cov, cov.T)
    eigenvalues = np.linalg.eigvalsh(cov)
    assert eigenvalues.min() >= -1e-15 * eigenvalues.max()
    assert np.isfinite(believed.mean).all()


def test_a_belief_on_points_has_the_moments_of_its_functions():
    rng = np.random.default_rng(3)
    root = rng.normal(size=(4, 4))
    believed = belief(rng.normal(size=4), root @ root.T)
    phi = Powers(3)(rng.uniform(size=(6, 1)))
    mean, cov = believed.at(phi)
    draws = phi @ (believed.mean[:, None] + believed.root @ rng.normal(size=(4, 400_000)))
    assert draws.mean(axis=1) == pytest.approx(mean, abs=0.02)
    assert np.cov(draws) == pytest.approx(cov, abs=0.05)


def test_the_bases_are_what_appendix_d_prints():
    assert default_basis(1)(np.array([[0.7]]))[0] == pytest.approx([1, 0.2, 0.04, 0.008])
    u = Powers(4, products=True)(np.array([[0.6, 0.3]]))[0]
    assert u == pytest.approx([1, 0.1, 0.01, 0.001, 0.0001, -0.2, 0.04, -0.008, 0.0016, -0.02])
