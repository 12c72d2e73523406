"""The value of looking ahead, against nested quadrature over models refitted from scratch, and by simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from normals import improvement
from scipy.special import ndtri

from examples import many
from haltune.gp import Kernel, condition_on
from haltune.policies.costs import PlanningBudget
from haltune.policies.rollout import JointNormal, ascended, hermite, rollout, sobol_normals

KERNEL = Kernel("matern52", 1.0, np.array([0.3, 0.4]))


def gauss(nodes):
    """Points and weights of Gauss-Hermite quadrature for a standard normal."""
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    return points, weights / weights.sum()


def quantiles(nodes):
    """The middles of cells of equal probability: for what jumps, as the value of a path that is cut off does."""
    return ndtri((np.arange(nodes) + 0.5) / nodes), np.full(nodes, 1.0 / nodes)


class World:
    """A few points, a Gaussian process that has seen others, and costs."""

    def __init__(self, seed, points=5, seen=3, noise=1e-6):
        rng = np.random.default_rng(seed)
        self.grid, self.x = rng.random((points, 2)), rng.random((seen, 2))
        self.y = 0.7 * rng.standard_normal(seen)
        self.noise = noise
        self.costs = rng.uniform(0.5, 3.0, points)

    def model(self, x, y):
        return condition_on(KERNEL, np.vstack([self.x, x]), np.append(self.y, y), noise=self.noise)

    def belief(self):
        model = self.model(np.zeros((0, 2)), [])
        return JointNormal(model.mean(self.grid), model.covariance(self.grid), float(self.y.max()), noise=self.noise)

    def means(self, left, after=None):
        first = self.costs[None]
        return PlanningBudget(np.array([left]), first, None if after is None else after[None])

    def brute(self, candidate, horizon, left, nodes=24, infeasible="restrict", after=None):
        """E of the rewards by nested quadrature; every model is fitted again to all its data."""
        points, weights = quantiles(nodes) if infeasible == "terminate" else gauss(nodes)

        def gains(taken, y):
            mean, variance = self.model(self.grid[taken], y).predict(self.grid)
            best = max(self.y.max(), *y) if len(y) else self.y.max()
            return mean, variance, improvement(mean, variance + self.noise, best)

        def cost(taken):
            return self.costs if after is None or not taken else after[taken[-1]]

        def value(taken, y, point, left, steps):
            mean, variance, gain = gains(taken, y)
            total = gain[point]
            if steps == 1:
                return total
            rest, now = left - cost(taken)[point], [*taken, point]
            for z, w in zip(points, weights, strict=True):
                seen = [*y, mean[point] + np.sqrt(variance[point] + self.noise) * z]
                following = choose(now, seen, rest, steps - 1)
                if following is not None:
                    total += w * value(now, seen, following, rest, steps - 1)
            return total

        def choose(taken, y, left, steps):
            gain, costs = gains(taken, y)[2], cost(taken)
            pairs = [
                costs[j] + min(cost([*taken, j])[k] for k in range(len(costs)) if k != j) for j in range(len(costs))
            ]
            restrict = infeasible == "restrict"
            ends = steps == 1 or (restrict and min(pairs) > left)
            score = gain if ends else gain / np.maximum(costs, 1e-300)
            able = costs <= left
            choice = int(np.argmax(np.where(able, score, -1.0) if restrict else score))
            return choice if able[choice] else None

        return value([], [], candidate, left, horizon) if self.costs[candidate] <= left else 0.0


@pytest.mark.parametrize("left", [1.0, 2.5, *(pytest.param(far, marks=pytest.mark.slow) for far in (4.0, np.inf))])
@pytest.mark.parametrize("infeasible", ["restrict", "terminate"])
def test_two_steps_agree_with_quadrature_over_models_refitted_from_scratch(left, infeasible):
    for seed in range(2):
        world = World(seed)
        terminate = infeasible == "terminate"
        nodes = sobol_normals(1024, 1, np.random.default_rng(0)) if terminate else hermite(32)
        found = rollout(world.belief(), world.means(left), 2, nodes, infeasible=infeasible)
        brute = [world.brute(i, 2, left, 200 if terminate else 48, infeasible) for i in range(5)]
        np.testing.assert_allclose(found, brute, atol=5e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("left", "infeasible"), [(3.0, "restrict"), (5.0, "restrict"), (5.0, "terminate")])
def test_three_steps_agree_with_nested_quadrature(left, infeasible):
    world = World(7, points=4)
    nodes = sobol_normals(4096, 2, np.random.default_rng(0))
    found = rollout(world.belief(), world.means(left), 3, nodes, infeasible=infeasible)
    brute = [world.brute(i, 3, left, 32 if infeasible == "terminate" else 16, infeasible) for i in range(4)]
    np.testing.assert_allclose(found, brute, atol=1e-2)


@pytest.mark.parametrize("left", [5.0, pytest.param(np.inf, marks=pytest.mark.slow)])
def test_four_steps_agree_with_nested_quadrature(left):
    world = World(1)
    found = rollout(world.belief(), world.means(left), 4, sobol_normals(2048, 3, np.random.default_rng(0)), [0])
    np.testing.assert_allclose(found, [world.brute(0, 4, left, 12)], atol=0.015)


@pytest.mark.parametrize("horizon", [1, 2])
def test_a_point_that_joins_others_is_worth_what_it_is_among_all(horizon):
    world = World(3, points=7)
    whole, nodes = world.belief(), hermite(8)
    model = world.model(np.zeros((0, 2)), [])
    five = JointNormal(whole.mean[:5], whole.covariance[:5, :5], whole.best, whole.noise)
    joined = five.joined(model, world.grid[:5], world.grid[5:])
    found = rollout(joined, world.means(4.0), horizon, nodes, [5, 6])
    np.testing.assert_allclose(found, rollout(whole, world.means(4.0), horizon, nodes)[5:], rtol=1e-9)


def test_the_ascent_reaches_the_top_within_the_cube_and_moves_only_what_is_free():
    top = np.array([0.3, 1.4, 0.5])

    def of(points):
        return -((points - top) ** 2 * [1.0, 2.0, 5.0]).sum(axis=1)

    starts, cube = np.array([[0.9, 0.2, 0.1], [0.0, 1.0, 0.7]]), np.array([[0.0] * 3, [1.0] * 3])
    found = ascended(of, starts, np.array([0, 1]), cube)
    np.testing.assert_allclose(found[:, :2], [[0.3, 1.0]] * 2, atol=1e-3)  # the best in the cube is on its face
    np.testing.assert_array_equal(found[:, 2], starts[:, 2])
    assert len(ascended(of, starts, np.array([], dtype=int), cube)) == 0


@pytest.mark.parametrize("horizon", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_observations_may_be_noisy(horizon):
    world = World(1, points=4, noise=0.2)
    nodes = hermite(32) if horizon == 2 else sobol_normals(4096, 2, np.random.default_rng(0))
    found = rollout(world.belief(), world.means(5.0), horizon, nodes)
    np.testing.assert_allclose(found, [world.brute(i, horizon, 5.0, 16) for i in range(4)], atol=1e-2)


@pytest.mark.parametrize("horizon", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_costs_may_depend_on_the_point_before(horizon):
    world = World(2, points=4)
    after = 3.0 * np.linalg.norm(world.grid[:, None] - world.grid[None], axis=2)
    nodes = hermite(48) if horizon == 2 else sobol_normals(4096, 2, np.random.default_rng(0))
    for left in (1.2, 3.0):
        found = rollout(world.belief(), world.means(left, after), horizon, nodes)
        brute = [world.brute(i, horizon, left, 16 if horizon == 3 else 48, after=after) for i in range(4)]
        np.testing.assert_allclose(found, brute, atol=1e-2)


worlds = st.builds(World, st.integers(0, 10_000), st.integers(2, 9), st.integers(1, 5))
budgets = st.floats(0.2, 9.0)
NODES = sobol_normals(128, 3, np.random.default_rng(5))


@given(worlds, budgets, st.integers(1, 4), st.sampled_from(["restrict", "terminate"]))
@settings(deadline=None, max_examples=many(40))
def test_looking_ahead_is_worth_at_least_the_expected_improvement(world, left, horizon, infeasible):
    found = rollout(world.belief(), world.means(left), horizon, NODES, infeasible=infeasible)
    alone = rollout(world.belief(), world.means(left), 1)
    assert (found >= alone - 1e-12).all()
    assert (found[world.costs > left] == 0.0).all()
    ended = left - world.costs < world.costs.min()  # nothing is affordable after it
    np.testing.assert_allclose(found[ended], alone[ended], atol=1e-12)


@given(worlds, budgets, st.floats(0.0, 4.0))
@settings(deadline=None, max_examples=many(40))
def test_two_steps_are_worth_no_less_with_more_to_spend(world, left, more):
    poor, rich = (rollout(world.belief(), world.means(b), 2, hermite(16)) for b in (left, left + more))
    assert (rich >= poor - 1e-12).all()


@given(worlds, budgets)
@settings(deadline=None, max_examples=many(40))
def test_restricting_is_never_worse_than_terminating_for_two_steps(world, left):
    better = rollout(world.belief(), world.means(left), 2, hermite(16))
    worse = rollout(world.belief(), world.means(left), 2, hermite(16), infeasible="terminate")
    assert (better >= worse - 1e-12).all()


def test_every_budget_must_be_kept():
    world = World(4)
    time, money = world.costs, world.costs[::-1].copy()
    both = PlanningBudget(np.array([4.0, 2.0]), np.stack([time, money]))
    assert list(both.affordable()) == [t <= 4.0 and m <= 2.0 for t, m in zip(time, money, strict=True)]
    found = rollout(world.belief(), both, 2, hermite(32))
    for one in (PlanningBudget(np.array([4.0]), time[None]), PlanningBudget(np.array([2.0]), money[None])):
        assert (found <= rollout(world.belief(), one, 2, hermite(32)) + 1e-12).all()
    loose = PlanningBudget(np.array([4.0, 1e9]), np.stack([time, money]))
    np.testing.assert_allclose(
        rollout(world.belief(), loose, 3, NODES), rollout(world.belief(), world.means(4.0), 3, NODES)
    )
