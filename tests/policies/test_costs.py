"""Beliefs about costs, against Monte Carlo, dense solves and differences."""

import tracemalloc

import numpy as np
import pytest

from haltune import Choice, Float, Int, Space
from haltune.errors import InvalidInput
from haltune.gp import fit
from haltune.policies.costs import GPCost, KnownCost, PredictedCost, fit_gp, fit_line, fit_scale, sample_gp

SPACE = Space({"lr": Float(1e-4, 1.0, log=True), "width": Int(8, 512, log=True), "kind": Choice(["a", "b"])})


def width(config):
    return 0.1 * config["width"]


def steps(config, previous):
    return 1.0 if previous is None else abs(config["width"] - previous["width"])


def points(n, seed=0):
    return SPACE.encode_many(SPACE.sample(n, np.random.default_rng(seed)))


def differences(model, at, step=1e-5):
    rise = [
        (model.predict(at + step * e).log_median - model.predict(at - step * e).log_median) / (2 * step)
        for e in np.eye(at.shape[1])
    ]
    return np.stack(rise, axis=1)


def test_median_mean_and_quantiles_are_those_of_a_log_normal_sample():
    found = PredictedCost(np.array([1.0]), np.array([0.5]))
    draws = np.exp(1.0 + 0.5 * np.random.default_rng(0).standard_normal(400_000))
    assert found.median[0] == pytest.approx(np.median(draws), rel=0.01)
    assert found.mean[0] == pytest.approx(draws.mean(), rel=0.01)
    assert found.quantile(0.9)[0] == pytest.approx(np.quantile(draws, 0.9), rel=0.01)
    assert found.quantile(0.5)[0] == pytest.approx(found.median[0])


def test_below_is_the_distribution_whose_quantiles_are_asked():
    prediction = PredictedCost(np.array([0.3, -1.0, 2.0]), np.array([0.2, 1.5, 0.7]))
    for share in (0.1, 0.5, 0.93):
        found = [prediction.below(float(q))[i] for i, q in enumerate(prediction.quantile(share))]
        np.testing.assert_allclose(found, share)


def test_the_gaussian_process_is_one_of_log_costs_with_the_noise_of_one_training():
    x = points(25)
    costs = np.exp(2.0 * x[:, 1] + 0.05 * np.random.default_rng(1).standard_normal(25))
    model, direct = fit_gp(x, costs), fit(x, np.log(costs))
    mean, variance = direct.predict(points(7, 2))
    found = model.predict(points(7, 2))
    np.testing.assert_allclose(found.log_median, mean)
    np.testing.assert_allclose(found.deviations[0] ** 2, variance + direct.noise)


def test_equally_probable_processes_are_a_mixture():
    x, new = points(6), points(5, 4)
    model = sample_gp(x, np.exp(x[:, 0] + x[:, 1]), count=4, rng=np.random.default_rng(0))
    rng = np.random.default_rng(1)
    parts = [GPCost((part,)).predict(new) for part in model.parts]
    draws = np.exp(
        np.concatenate([p.centres[0] + p.deviations[0] * rng.standard_normal((200_000, 5)) for p in parts])
    )  # fmt: skip
    found = model.predict(new)
    np.testing.assert_allclose(found.mean, draws.mean(axis=0), rtol=0.01)
    for share in (0.05, 0.5, 0.9):
        np.testing.assert_allclose(found.quantile(share), np.quantile(draws, share, axis=0), rtol=0.02)
    for limit in np.quantile(draws, [0.1, 0.4, 0.8]):
        np.testing.assert_allclose(found.below(limit), (draws <= limit).mean(axis=0), atol=0.003)


def test_a_mixture_of_distant_parts_is_no_log_normal_of_the_same_moments():
    """Of 1 or 100 with equal probability, half of the trainings fit a budget of 2; one log-normal says 0.38."""
    found = PredictedCost(np.log([[1.0], [100.0]]), np.full((2, 1), 0.1))
    assert found.below(2.0)[0] == pytest.approx(0.5, abs=1e-9)
    assert found.mean[0] == pytest.approx(50.5 * np.exp(0.005))
    assert found.quantile(0.25)[0] == pytest.approx(1.0, rel=1e-6)
    assert found.quantile(0.75)[0] == pytest.approx(100.0, rel=1e-6)
    moments = PredictedCost(np.array([0.5 * np.log(100.0)]), np.array([np.hypot(0.1, 0.5 * np.log(100.0))]))
    assert moments.below(2.0)[0] < 0.38


@pytest.mark.parametrize("count", [1, 4])
def test_the_median_rises_as_its_gradient_says(count):
    x = 0.1 + 0.8 * points(7)
    model = sample_gp(x, np.exp(np.sin(3 * x[:, 0]) + x[:, 1]), count=count, rng=np.random.default_rng(0))
    value, slopes = model.gradient(x + 0.05)
    np.testing.assert_allclose(value, model.predict(x + 0.05).log_median)
    np.testing.assert_allclose(slopes, differences(model, x + 0.05, 1e-4), atol=1e-4)


def test_few_trainings_are_not_extrapolated_with_false_certainty():
    """Of 30 power laws seen 4 times, as many costs lie below the 10 and 90 % quantiles as these promise."""
    below = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        slopes, x, new = rng.uniform(-2, 2, 3), rng.random((4, 3)), rng.random((50, 3))
        prediction = sample_gp(x, np.exp(x @ slopes), rng=rng).predict(new)
        below.append([np.mean(np.exp(new @ slopes) <= prediction.quantile(q)) for q in (0.1, 0.5, 0.9)])
    low, middle, high = np.mean(below, axis=0)
    assert low < 0.15
    assert 0.4 < middle < 0.6
    assert high > 0.85


def test_a_line_is_the_gaussian_process_of_its_linear_kernel():
    x, new = points(12), points(5, 1)
    logs = np.random.default_rng(0).standard_normal(12)
    model = fit_line(x, np.exp(logs), [0, 1])
    basis = lambda at: np.column_stack([np.ones(len(at)), at[:, :2] - 0.5])  # noqa: E731
    prior = np.diag([1e4, 9.0, 9.0])
    dense = basis(x) @ prior @ basis(x).T + model.noise * np.eye(12)
    weights = np.linalg.solve(dense, basis(x) @ prior @ basis(new).T)
    variance = np.diag(basis(new) @ prior @ basis(new).T) - np.einsum(
        "ij,ij->j", weights, basis(x) @ prior @ basis(new).T
    )
    found = model.predict(new)
    np.testing.assert_allclose(found.log_median, weights.T @ (logs - logs.mean()) + logs.mean(), atol=1e-5)
    np.testing.assert_allclose(found.deviations[0] ** 2, variance + model.noise, rtol=1e-3)


def test_a_known_cost_is_taken_at_its_word():
    known = KnownCost(width, SPACE)
    configs = SPACE.sample(6, np.random.default_rng(0))
    found = known.predict(SPACE.encode_many(configs))
    np.testing.assert_allclose(found.median, [0.1 * c["width"] for c in configs])
    np.testing.assert_allclose(found.quantile(0.99), found.median)
    assert not known.moves


def test_a_cost_of_moving_depends_on_where_the_search_stands():
    known = KnownCost(steps, SPACE)
    configs = SPACE.sample(5, np.random.default_rng(0))
    x = SPACE.encode_many(configs)
    assert known.moves
    np.testing.assert_allclose(known.predict(x).median, 1.0)
    expected = [[abs(a["width"] - b["width"]) for a in configs] for b in configs]
    np.testing.assert_allclose(known.predict(x, x[2]).median, np.maximum(expected[2], 1e-12))


@pytest.mark.parametrize("answer", [-1.0, float("nan"), float("inf"), "much"])
def test_a_cost_that_is_none_names_the_function_and_the_configuration(answer):
    with pytest.raises(InvalidInput, match=r"answers_badly.*width"):
        KnownCost(lambda_named(answer), SPACE).predict(points(1))


def lambda_named(answer):
    def answers_badly(config):
        return answer

    return answers_badly


def test_expected_costs_and_their_gradients_are_those_of_the_log_normal():
    x = 0.1 + 0.8 * points(9)
    costs = np.exp(np.sin(3 * x[:, 0]) + x[:, 1])
    smooth = KnownCost(lambda c: c["lr"] ** 0.5, SPACE)
    learnt = (fit_gp(x, costs), sample_gp(x, costs), fit_line(x, costs, [0, 1]), fit_scale(smooth, x, costs))
    at = x + 0.01
    for model in (*learnt, smooth):
        value, slopes = model.expected(at)
        np.testing.assert_allclose(value, np.log(model.predict(at).mean))
        steps = np.eye(4)[: 4 if model in learnt[:3] else 1] * 1e-4
        for k, step in enumerate(steps):
            rise = np.log(model.predict(at + step).mean / model.predict(at - step).mean) / 2e-4
            np.testing.assert_allclose(slopes[:, k], rise, atol=1e-3)


@pytest.mark.parametrize("n", [1, 2, 5, 40])
@pytest.mark.parametrize("spread", [0.0, 1e-3, 0.3, 3.0])
def test_the_noise_of_a_line_is_that_of_largest_likelihood_by_a_dense_solve(n: int, spread: float) -> None:
    x, rng = points(n), np.random.default_rng(n)
    logs = 1.0 + 2.0 * x[:, 0] - x[:, 1] + spread * rng.standard_normal(n)
    design = np.column_stack([np.ones(n), x[:, :2] - 0.5])
    centred, noises = logs - logs.mean(), np.geomspace(1e-4, 2.0, 24)[::-1] ** 2
    dense = [(design * [1e4, 9.0, 9.0]) @ design.T + noise * np.eye(n) for noise in noises]
    found = [-0.5 * np.linalg.slogdet(c)[1] - 0.5 * centred @ np.linalg.solve(c, centred) for c in dense]
    assert fit_line(x, np.exp(logs), [0, 1]).noise == pytest.approx(noises[int(np.argmax(found))])


def test_a_line_of_many_costs_needs_no_matrix_of_their_pairs() -> None:
    x = points(2000)
    tracemalloc.start()
    fit_line(x, np.exp(x[:, 0]), [0, 1])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2000**2


def test_a_cost_beyond_all_numbers_is_more_expensive_than_any_budget() -> None:
    """Such a cost follows a trial that reported 1.7e308."""
    cost = PredictedCost(np.array([133.0, 1000.0, 2.0]), np.array([35.0, 1.0, 0.5]))
    with np.errstate(over="raise"):
        dear = [cost.mean, cost.quantile(0.9999)]
        assert cost.median[1] > 1e300
    assert all(np.isfinite(d).all() and (d[:2] > 1e100).all() for d in dear)
    assert cost.mean[2] == np.exp(2.0 + 0.5 * 0.25)
    assert cost.below(1e300)[1] < 1e-6
