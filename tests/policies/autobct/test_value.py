"""Values of searches: against brute force, the paper's numbers, and searches that are simulated."""

from dataclasses import replace

import numpy as np
import pytest
from autobct_simulation import simulate
from scipy.stats import norm

from haltune.policies.autobct.prior import preset
from haltune.policies.autobct.value import (
    ONE,
    Effort,
    branches,
    excess,
    expected_cost,
    expected_max,
    grid_belief,
    nested,
    nodes,
    q2,
    values,
)

GAMMA = 0.16


def line(g=33):
    points = np.linspace(0, 1, g)[:, None]
    return points[nested(points)]


def state(name="D.1", points=None, seen=()):
    """Return the posterior after scores and costs (u, h, t)."""
    prior = preset(name)
    for u, h, t in seen:
        prior = prior.observe(prior.on(np.atleast_2d(np.array(u, dtype=float)))[0], h, t)
    points = line() if points is None else points
    return grid_belief(prior, prior.on(points), GAMMA)


def plane(side):
    axis = np.linspace(0, 1, side)
    points = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    return points[nested(points)]


def random_states(count, seed, points=None):
    """Return posteriors of searches: the paper's priors after 0 to 3 trainings; in one coordinate by default."""
    rng = np.random.default_rng(seed)
    dim = 1 if points is None else points.shape[1]
    names = ("D.1", "D.2", "D.5", "D.6", "D.7") if dim == 1 else ("D.4", "D.8")
    for i in range(count):
        prior = preset(names[i % len(names)])
        size = len(prior.score.mean)
        alpha = prior.score.mean + prior.score.root @ rng.normal(size=size)
        beta = prior.cost.mean + prior.cost.root @ rng.normal(size=size)
        for _ in range(i % 4):
            phi = prior.on(rng.uniform(size=(1, dim)))[0]
            prior = prior.observe(phi, float(phi @ alpha) + 0.05 * rng.normal(), float(phi @ beta) + 0.1 * rng.normal())
        yield grid_belief(prior, prior.on(line() if points is None else points), GAMMA)


def brute(x, depth, z, w):
    """(g,) Q by nested sums over all innovations, and V of the children by the same."""
    p, q = (norm.pdf(nodes) / norm.pdf(nodes).sum() for nodes in (z, w))
    paid = expected_cost(x)
    if depth == 1:
        return x.m - paid
    zz, ww = np.repeat(z, len(w)), np.tile(w, len(z))
    weight = np.outer(p, q).ravel()
    out = np.empty_like(x.m)
    for u in range(len(x.m)):
        for b in range(x.m.shape[1]):
            one = replace(x, m=x.m[:, [b]], t=x.t[:, [b]])
            after = one.after(u, zz, ww)
            more = brute(after, depth - 1, z, w).max(axis=0)
            out[u, b] = np.maximum(after.m[u], more) @ weight
    return out - paid


def test_the_envelope_of_lines_has_the_expectation_of_their_maximum():
    rng = np.random.default_rng(0)
    a, k = rng.normal(size=(12, 5, 7)), rng.normal(size=(12, 5))
    k[3] = k[4]  # parallel lines
    k[:, 2] = 1.0  # nothing but parallel lines
    a[6], k[6] = a[7], k[7]  # the same line twice
    z = np.linspace(-10, 10, 100_001)
    p = norm.pdf(z) / norm.pdf(z).sum()
    expected = np.array([[p @ (a[:, i, j, None] + k[:, i, None] * z).max(axis=0) for j in range(7)] for i in range(5)])
    assert expected_max(a.transpose(0, 2, 1), k) == pytest.approx(expected.T, abs=1e-7)


def test_the_expected_positive_part_is_that_of_monte_carlo_and_its_limits():
    draws = np.random.default_rng(1).normal(0.3, 0.8, 2_000_000)
    assert excess(np.array([0.3]), np.array([0.8]))[0] == pytest.approx(np.maximum(draws, 0).mean(), abs=2e-3)
    certain = excess(np.array([2.0, -2.0, 0.0, 1e9, -1e9]), np.array([0.0, 0.0, 0.0, 1.0, 1.0]))
    assert certain == pytest.approx([2.0, 0.0, 0.0, 1e9, 0.0], abs=1e-100)


def test_the_papers_prior_is_worth_what_an_exact_computation_gives():
    x = state()
    assert values(x, 1).max() == pytest.approx(0.2341, abs=1e-3)
    assert values(x, 2).max() == pytest.approx(0.2433, abs=1e-3)


def test_table_3_is_worth_what_the_paper_prints():
    rows = [(0, 0.545, 0.066), (0.56, 0.976, 0.381), (0.76, 0.983, 0.445)]
    for n, value in ((1, 0.652), (2, 0.9945), (3, 0.920)):
        assert values(state(seen=rows[:n]), 2).max() == pytest.approx(value, abs=2e-3)


def test_depth_two_is_what_nested_sums_give():
    z, w = np.linspace(-5, 5, 201), np.linspace(-4, 4, 17)
    for x in random_states(6, 3, line(17)):
        assert values(x, 2).max() == pytest.approx(brute(x, 2, z, w).max(), abs=2e-3)


def nested_three(x, z, w, controls):
    """max over controls of Q_3 by sums over both innovations, V_2 of each child in closed form at every control."""
    p, q = (norm.pdf(n) / norm.pdf(n).sum() for n in (z, w))
    zz, ww, weight = np.repeat(z, len(w)), np.tile(w, len(z)), np.outer(p, q).ravel()
    found = []
    for u in range(controls):
        after = x.after(u, zz, ww)
        more = q2(after, effort=Effort(cost_nodes=5)).max(axis=0)
        found.append(np.maximum(after.m[u], more) @ weight - expected_cost(x)[u, 0])
    return max(found)


@pytest.mark.slow
def test_depth_three_is_what_nested_sums_over_depth_two_give():
    z, w = np.linspace(-4, 4, 29), np.linspace(-4, 4, 15)
    for x in random_states(12, 4):
        exact = nested_three(x, z, w, 17)
        assert values(x, 3).max() == pytest.approx(exact, abs=4e-3)  # finer sums move it by less than 1e-3 more


@pytest.mark.parametrize("points", [line(9), plane(3)], ids=["line", "plane"])
def test_excluding_controls_leaves_the_best_value_of_two_trainings(points):
    (z, _), (w, weight) = nodes(5), nodes(3)
    zz, ww = np.repeat(z, 3), np.tile(w, 5)
    every = np.arange(9)
    for x in random_states(10, 8, points):
        certain = replace(x, c=0 * x.c, d=0 * x.d)
        small = replace(x, m=1e-6 * x.m, c=1e-12 * x.c, noise=1e-12 * x.noise)
        sure = replace(x, noise=1e-12 + 0 * x.noise, jitter=1e-12 + 0 * x.jitter)
        for y in (x, certain, small, sure):
            children = branches(y, every, z, w)
            one_by_one = [q2(y.after(int(u), zz, ww), Effort(cost_nodes=3)).max(axis=0) for u in every]
            expected = np.array(one_by_one).reshape(9, 5, 3)
            assert children.two(w, weight) == pytest.approx(expected, abs=1e-8, rel=1e-8)


def test_values_shift_with_the_score_and_scale_with_the_unit():
    for x in random_states(3, 6):
        moved = replace(x, m=x.m + 0.7)
        scaled = replace(x, m=3 * x.m, c=9 * x.c, noise=9 * x.noise, t=3 * x.t, d=9 * x.d, jitter=9 * x.jitter)
        for depth in (1, 2):
            assert values(moved, depth) == pytest.approx(values(x, depth) + 0.7, abs=1e-9)
            assert values(scaled, depth) == pytest.approx(3 * values(x, depth), rel=1e-6)


def test_a_training_moves_beliefs_as_the_filter_does():
    prior, points = preset("D.1"), line(9)
    phi = prior.on(points)
    x, u = grid_belief(prior, phi, GAMMA), 3
    z, w = 0.8, -1.1
    h = float(x.m[u, 0] + z * np.sqrt(x.c[u, u] + x.noise[u]))
    t = float(x.t[u, 0] + w * np.sqrt(x.d[u, u] + x.jitter[u])) / GAMMA
    filtered = grid_belief(prior.observe(phi[u], h, t), phi, GAMMA)
    moved = x.after(u, np.array([z]), np.array([w]))
    for name in ("m", "c", "t", "d"):
        assert getattr(moved, name) == pytest.approx(getattr(filtered, name), abs=1e-9)


PROMISES = {  # searches of at most so many trainings, or three and more looked two ahead
    "one": ({"trainings": 1, "exact": True}, 1),
    "two": ({"trainings": 2, "exact": True}, 2),
    "three": ({"trainings": 3, "exact": True}, 3),
}


def promised(futures):
    """(w,) what the value function promises: the score expected at the end, less what was spent."""
    return futures.height[-1] - futures.spent[-1]


@pytest.mark.slow
@pytest.mark.parametrize("search", PROMISES)
def test_searches_earn_what_the_value_promises(search):
    options, depth = PROMISES[search]
    earned = promised(simulate(state(), 40_000, rng=np.random.default_rng(0), **options))
    error = 2 * earned.std() / np.sqrt(len(earned))
    assert earned.mean() == pytest.approx(values(state(), depth, ONE).max(), abs=error)
