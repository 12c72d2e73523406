"""The value of looking ahead, against nested quadrature over models refitted from scratch, and by simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from normals import improvement
from scipy.special import ndtri

from examples import many
from haltune.gp import Kernel, condition_on
from haltune.policies.acquisition import expected_improvement
from haltune.policies.costs import PlanningBudget
from haltune.policies.rollout import JointNormal, base_choice, hermite, rollout, sobol_normals

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
        """E of the rewards by nested quadrature; every model is fitted anew to all its data."""
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


@pytest.mark.parametrize(("left", "infeasible"), [(3.0, "restrict"), (5.0, "restrict"), (5.0, "terminate")])
def test_three_steps_agree_with_nested_quadrature(left, infeasible):
    world = World(7, points=4)
    nodes = sobol_normals(4096, 2, np.random.default_rng(0))
    found = rollout(world.belief(), world.means(left), 3, nodes, infeasible=infeasible)
    brute = [world.brute(i, 3, left, 32 if infeasible == "terminate" else 16, infeasible) for i in range(4)]
    np.testing.assert_allclose(found, brute, atol=1e-2)


@pytest.mark.slow
def test_four_steps_agree_with_nested_quadrature():
    world = World(3, points=3)
    nodes = sobol_normals(8192, 3, np.random.default_rng(0))
    found = rollout(world.belief(), world.means(6.0), 4, nodes)
    np.testing.assert_allclose(found, [world.brute(i, 4, 6.0, 14) for i in range(3)], atol=1e-2)


def enumerated(mean, covariance, costs, left, horizon, infeasible, nodes):
    """Lambda_h of every point by the paper's words: h - 1 steps of EI per cost, one of EI; dense solves throughout.

    "terminate": the base policy chooses among all points, and a path ends where it cannot pay. "restrict": among those
    that can be paid; a step is the last also where nothing could be paid after any choice.
    """
    z, weights = quantiles(nodes)  # what is chosen jumps, and with it what comes after

    def after(taken, seen):
        if not taken:
            return mean, covariance.diagonal(), 0.0
        gain = np.linalg.solve(covariance[np.ix_(taken, taken)] + 1e-12 * np.eye(len(taken)), covariance[taken])
        off = np.array(seen) - mean[taken]
        variance = covariance.diagonal() - np.einsum("ij,ij->j", gain, covariance[taken])
        return mean + off @ gain, np.maximum(variance, 0.0), max(0.0, *seen)

    def value(taken, seen, point, left, steps):
        at, variance, best = after(taken, seen)
        total = float(improvement(at, np.maximum(variance, 1e-30), best)[point])
        if steps == 1:
            return total
        left = left - costs[point]
        futures = at[point] + np.sqrt(variance[point]) * z if variance[point] > 1e-9 else [at[point]]
        for y, w in zip(futures, weights if len(futures) > 1 else [1.0], strict=True):
            following = chosen([*taken, point], [*seen, y], left, steps - 1)
            if following is not None:
                total += w * value([*taken, point], [*seen, y], following, left, steps - 1)
        return total

    def chosen(taken, seen, left, steps):
        at, variance, best = after(taken, seen)
        gains = improvement(at, np.maximum(variance, 1e-30), best)
        able = costs <= left + 1e-9
        if infeasible == "terminate":
            choice = int(np.argmax(gains if steps == 1 else gains / costs))
            return choice if able[choice] else None
        if not able.any():
            return None
        two = [costs[i] + min(c for j, c in enumerate(costs) if j != i) for i in range(len(costs))]
        last = steps == 1 or min(two) > left + 1e-9
        return int(np.argmax(np.where(able, gains if last else gains / costs, -1.0)))

    return [value([], [], i, left, horizon) if costs[i] <= left + 1e-9 else 0.0 for i in range(len(costs))]


@pytest.mark.parametrize("infeasible", ["restrict", "terminate"])
@pytest.mark.parametrize(
    ("horizon", "nodes"), [(2, 200), *(pytest.param(*deep, marks=pytest.mark.slow) for deep in [(3, 40), (4, 14)])]
)
def test_two_to_four_steps_are_the_paper_s_base_policy_rolled_out(horizon, nodes, infeasible):
    """Where little is left the cheap points win per cost, though nothing can be paid after the dear one."""
    mean, covariance = np.array([0.1, 0.0, -0.1]), np.diag([1.0, 1.2, 4.0])
    z = sobol_normals(8192, horizon - 1, np.random.default_rng(0))
    for costs, left in (([1.0, 1.0, 3.0], 2.0), ([1.0, 1.0, 3.0], 4.0), ([0.5, 1.0, 2.5], 3.0)):
        belief = JointNormal(mean, covariance, 0.0)
        found = rollout(belief, PlanningBudget(np.array([left]), np.array([costs])), horizon, z, infeasible=infeasible)
        brute = enumerated(mean, covariance, np.array(costs), left, horizon, infeasible, nodes)
        np.testing.assert_allclose(found, brute, atol=3e-2)


def test_what_cannot_be_followed_is_chosen_by_the_base_policy_of_the_mode():
    """The dear point has the larger gain, the cheap one the larger gain per cost; nothing can be paid after either."""
    belief = JointNormal(np.zeros(2), np.diag([1.0, 4.0]), 0.0)
    means = PlanningBudget(np.array([1.8]), np.array([[1.0, 1.8]]))
    assert base_choice(belief, means, 2, "restrict") == 1
    assert base_choice(belief, means, 2, "terminate") == 1  # 0.798 / 1.8 is above 0.399 / 1
    dear = PlanningBudget(np.array([2.9]), np.array([[1.0, 2.9]]))
    assert base_choice(belief, dear, 2, "restrict") == 1
    assert base_choice(belief, dear, 2, "terminate") == 0
    assert base_choice(belief, dear, 1, "terminate") == 1


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


@given(worlds, st.integers(1, 4))
@settings(deadline=None, max_examples=many(40))
def test_both_rules_agree_without_a_budget(world, horizon):
    free = world.means(np.inf)
    restrict = rollout(world.belief(), free, horizon, NODES, infeasible="restrict")
    np.testing.assert_array_equal(restrict, rollout(world.belief(), free, horizon, NODES, infeasible="terminate"))


@given(worlds, budgets)
@settings(deadline=None, max_examples=many(40))
def test_restricting_is_never_worse_than_terminating_for_two_steps(world, left):
    better = rollout(world.belief(), world.means(left), 2, hermite(16))
    worse = rollout(world.belief(), world.means(left), 2, hermite(16), infeasible="terminate")
    assert (better >= worse - 1e-12).all()


def test_one_step_is_the_expected_improvement():
    belief = World(0).belief()
    expected = improvement(belief.mean, belief.covariance.diagonal() + belief.noise, belief.best)
    np.testing.assert_allclose(rollout(belief, World(0).means(9.0), 1), expected, rtol=1e-12)
    np.testing.assert_allclose(
        expected_improvement(belief.mean, belief.covariance.diagonal(), 0.1),
        improvement(belief.mean, belief.covariance.diagonal(), 0.1),
        rtol=1e-9,
    )


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


def test_a_part_of_the_candidates_has_the_values_of_all():
    world = World(5, points=9)
    whole = rollout(world.belief(), world.means(6.0), 3, NODES)
    np.testing.assert_allclose(rollout(world.belief(), world.means(6.0), 3, NODES, [7, 2]), whole[[7, 2]])


def test_more_paths_change_little():
    world = World(6, points=9)
    few, many = (
        rollout(world.belief(), world.means(8.0), 4, sobol_normals(n, 3, np.random.default_rng(n))) for n in (64, 4096)
    )
    np.testing.assert_allclose(few, many, atol=0.03)


def simulate(rng, plan, horizon, budget):
    """What a plan finds of one function drawn from the prior."""
    grid = rng.random((16, 2))
    costs = rng.uniform(0.3, 2.0, 16)
    truth = condition_on(KERNEL, np.zeros((0, 2)), [], noise=0.0).sample(grid, 1, rng)[0]
    seen, left = [0], budget
    for steps in range(horizon, 0, -1):
        model = condition_on(KERNEL, grid[seen], truth[seen], noise=0.0)
        belief = JointNormal(model.mean(grid), model.covariance(grid), float(truth[seen].max()))
        means = PlanningBudget(np.array([left]), costs[None])
        point = plan(belief, means, steps)
        if point is None:
            break
        seen.append(point)
        left -= costs[point]
    return truth[seen].max()


def rolled(belief, means, steps):
    if not means.affordable().any():
        return None
    base = base_choice(belief, means, steps)
    nodes = sobol_normals(128, 3, np.random.default_rng(0)) if steps > 2 else hermite(16)
    value = rollout(belief, means, steps, nodes)
    value = np.where(means.affordable(), value, -1.0)
    return base if value[base] >= value.max() - 1e-9 else int(np.argmax(value))


@pytest.mark.parametrize(
    ("horizon", "budget", "functions"),
    [(3, 3.0, 250), *(pytest.param(h, b, 1500, marks=pytest.mark.slow) for h, b in [(3, 1.5), (4, 3.0)])],
)
def test_rollout_is_not_worse_than_its_base_policy_in_expectation(horizon, budget, functions):
    plans = (rolled, base_choice)
    seeds = range(functions)
    found = [[simulate(np.random.default_rng(n), plan, horizon, budget) for plan in plans] for n in seeds]
    gain = np.diff(np.array(found)[:, ::-1], axis=1)
    assert gain.mean() > -2.0 * gain.std() / np.sqrt(functions)
