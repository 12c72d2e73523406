"""The maximiser against enumeration and known optima, over all kinds of spaces."""

from itertools import product

import numpy as np
import pytest

from haltune import Choice, Float, Int
from haltune.gp import Kernel, condition_on
from haltune.policies.acquisition import Surface, log_ei, maximise
from haltune.space import Space


def rng(seed=0):
    return np.random.default_rng(seed)


def hill(top):
    """-|u - top|^2 with its gradient."""
    return lambda points: (-((points - top) ** 2).sum(axis=1), -2 * (points - top))


CUBE = Space({"a": Float(0, 1), "b": Float(0, 1), "c": Float(0, 1)})
MIXED = Space(
    {
        "lr": Float(1e-4, 1e-1, log=True),
        "layers": Int(1, 9),
        "act": Choice(["relu", "tanh", "gelu"]),
        "kernel": Choice(["rbf", "poly"]),
        "degree": Int(2, 5, when={"kernel": "poly"}),
        "gamma": Float(0, 1, when={"kernel": "rbf"}),
    }
)
GRID = Space({"i": Int(0, 4), "c": Choice(["x", "y", "z"]), "o": Choice([1, 2, 4], ordered=True)})


def test_a_smooth_optimum_inside_the_cube_is_found_to_many_digits():
    found = maximise(hill(np.array([0.123456, 0.9, 0.5])), CUBE, rng())
    assert [found.config[name] for name in "abc"] == pytest.approx([0.123456, 0.9, 0.5], abs=1e-5)
    assert not found.exhausted


def test_the_highest_of_several_hills_is_found():
    def hills(points):
        centres, heights = np.array([[0.2] * 3, [0.8] * 3, [0.2, 0.8, 0.2]]), np.array([1.0, 1.1, 0.9])
        apart = points[:, None] - centres
        parts = heights * np.exp(-((apart**2).sum(axis=2)) / 0.02)
        return parts.sum(axis=1), -(parts[:, :, None] * apart * 2 / 0.02).sum(axis=1)

    found = maximise(hills, CUBE, rng(), candidates=256)
    assert [found.config[name] for name in "abc"] == pytest.approx([0.8] * 3, abs=1e-3)


def test_a_mixed_conditional_optimum_is_found():
    best = {"lr": 0.003, "layers": 7, "act": "gelu", "kernel": "poly", "degree": 4}
    found = maximise(hill(MIXED.encode(best)), MIXED, rng(), candidates=64)
    assert {**found.config, "lr": None} == {**best, "lr": None}
    assert found.config["lr"] == pytest.approx(0.003, rel=1e-3)


@pytest.mark.parametrize("candidates", [3, 1024])
def test_a_finite_space_is_proposed_whole_without_repeats_and_then_said_to_be_exhausted(candidates):
    surface, tried = hill(np.full(GRID.dim, 0.3)), set()
    values = []
    for _ in range(45):
        found = maximise(surface, GRID, rng(), tried=tried, candidates=candidates)
        assert not found.exhausted
        assert GRID.key(found.config) not in tried
        tried.add(GRID.key(found.config))
        values.append(found.value)
    assert len(tried) == 5 * 3 * 3
    again = maximise(surface, GRID, rng(), tried=tried, candidates=candidates)
    assert again.exhausted
    assert again.value == max(values)
    if candidates >= 45:
        assert values == sorted(values, reverse=True)


def test_constraints_hold_and_the_optimum_on_their_edge_is_approached():
    space = Space({"a": Float(0, 1), "b": Float(0, 1)}, constraints=[lambda c: c["a"] + c["b"] < 1])
    found = maximise(hill(np.array([0.8, 0.8])), space, rng(), around=[{"a": 0.8, "b": 0.8}])
    assert found.config["a"] + found.config["b"] < 1
    assert found.value > -0.19  # -0.18 at the edge


@pytest.mark.parametrize("space", [Space({"a": Float(2, 2), "n": Int(3, 3), "x": "fixed"}), Space({"x": 1})])
def test_a_space_of_one_point_is_proposed_once(space):
    surface = hill(np.full(space.dim, 0.5))
    found = maximise(surface, space, rng())
    assert not found.exhausted
    assert maximise(surface, space, rng(), tried={space.key(found.config)}).exhausted


def test_values_that_are_not_numbers_lose():
    def holes(points):
        values, gradients = hill(np.full(3, 0.5))(points)
        return np.where(points[:, 0] > 0.5, np.nan, values), gradients

    found = maximise(holes, CUBE, rng())
    assert found.config["a"] <= 0.5
    assert np.isfinite(found.value)


def test_log_ei_over_a_posterior_is_as_high_as_a_dense_search_finds():
    X = rng(1).random((20, 3))
    posterior = condition_on(Kernel("matern52", 1.0, np.full(3, 0.4)), X, np.sin(6 * X).sum(axis=1), noise=1e-4)
    surface = Surface(posterior, lambda mean, variance: log_ei(mean, variance, float(posterior.y.max())))
    dense = np.array(list(product(np.linspace(0, 1, 31), repeat=3)))
    assert maximise(surface, CUBE, rng()).value >= surface.values(dense).max()
