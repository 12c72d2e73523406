"""The covariance of stages: its gradient, its fit to two families of trials, and the posterior by dense algebra."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal

from examples import many
from haltune.models.stage_process import Seen, StageKernel, StageProcess, Stages, descent, learn_kernel

EPOCHS = (1, 3, 9, 27, 50)


def drawn(stages: Stages, runs: int, seed: int, values: int = 3) -> Seen:
    """Runs of this study, or of this and the earlier ones in turn."""
    rng = np.random.default_rng(seed)
    last = len(stages.epochs)
    stage = np.concatenate([np.sort(rng.choice(last, min(values, last), replace=False)) for _ in range(runs)])
    run = np.repeat(np.arange(runs), min(values, last))
    study = np.arange(runs) % (stages.earlier + 1) if stages.earlier else None
    return Seen(rng.random((runs, stages.dim)), run, stage, rng.standard_normal(len(run)), study)


def dense(kernel: StageKernel, points: np.ndarray, stage: np.ndarray, run: np.ndarray, study: np.ndarray) -> np.ndarray:
    """The covariance as the module's equations have it, entry by entry, without noise."""
    theta, stages = kernel.theta, kernel.stages
    k, d = len(stages.epochs), stages.dim
    s, length, _, c, r = np.exp(theta[:5])
    a, steps = np.exp(theta[5 : 5 + k]), np.exp(theta[5 + k : 4 + 2 * k])
    scales = np.exp(theta[4 + 2 * k : 4 + 2 * k + d])
    told = [1.0, *(1 / (1 + np.exp(-logit)) for logit in theta[4 + 2 * k + d :])]
    t = np.log1p(stages.epochs) / np.log1p(stages.epochs[-1])
    u = np.concatenate([[0.0], np.cumsum(steps)])
    found = np.empty((len(stage), len(stage)))
    for i in range(len(stage)):
        for j in range(len(stage)):
            p, q = stage[i], stage[j]
            x = np.sqrt(5 * (((points[i] - points[j]) / scales) ** 2).sum())
            rho = (1 + x + x**2 / 3) * np.exp(-x)
            common = 1 + (t[p] - 1) * (t[q] - 1) + s**2 * np.exp(-((t[p] - t[q]) ** 2) / (2 * length**2))
            shared = a[p] * a[q] * np.exp(-abs(u[p] - u[q])) * rho
            own = (run[i] == run[j]) * c**2 * a[p] * a[q] * np.exp(-r * abs(u[p] - u[q]))
            same = study[i] == study[j]
            shared *= 1.0 if same else told[study[i]] * told[study[j]]
            found[i, j] = same * common + shared + own
    return found


def studies(seen: Seen) -> np.ndarray:
    """(n,) the study of each value."""
    return np.zeros(len(seen), int) if seen.study is None else seen.study[seen.run]


@settings(max_examples=many(20), deadline=None)
@given(
    seed=st.integers(0, 10**6),
    stages=st.sampled_from([(1,), (1, 2), (1, 3, 5), EPOCHS]),
    dim=st.integers(1, 4),
    earlier=st.integers(0, 3),
)
def test_the_density_is_that_of_the_equations_and_its_gradient_that_of_differences(
    seed: int, stages: tuple[int, ...], dim: int, earlier: int
) -> None:
    prior = Stages(stages, dim, earlier)
    seen = drawn(prior, 6, seed)
    theta = prior.mean + 0.3 * np.random.default_rng(seed).standard_normal(len(prior.mean))
    kernel = StageKernel(prior, theta)
    covariance = dense(kernel, seen.points[seen.run], seen.stage, seen.run, studies(seen))
    assert np.linalg.eigvalsh(covariance).min() > -1e-9
    covariance += kernel.noise * np.eye(len(seen))
    off = theta - prior.mean
    density = multivariate_normal(np.zeros(len(seen)), covariance).logpdf(seen.value)
    density += 0.5 * len(seen) * np.log(2 * np.pi) - 0.5 * off @ prior.precision @ off
    value, gradient = descent(prior, seen, theta)
    assert value == pytest.approx(-density, rel=1e-6, abs=1e-6)
    numeric = approx_fprime(theta, lambda at: descent(prior, seen, at)[0], 1e-6)
    assert gradient == pytest.approx(numeric, rel=2e-3, abs=2e-2 * max(1.0, np.abs(numeric).max() * 1e-2))


@settings(max_examples=many(20), deadline=None)
@given(seed=st.integers(0, 10**6), stages=st.sampled_from([(1,), (1, 2), EPOCHS]), earlier=st.integers(0, 2))
def test_ends_are_foretold_as_dense_algebra_has_it(seed: int, stages: tuple[int, ...], earlier: int) -> None:
    prior = Stages(stages, 2, earlier)
    seen, rng = drawn(prior, 5, seed), np.random.default_rng(seed)
    kernel = StageKernel(prior, prior.mean + 0.2 * rng.standard_normal(len(prior.mean)))
    new = rng.random((3, 2))
    last = len(stages) - 1
    points = np.vstack([seen.points[seen.run], new])
    stage, run = np.r_[seen.stage, [last] * 3], np.r_[seen.run, 90, 91, 92]
    whole = dense(kernel, points, stage, run, np.r_[studies(seen), 0, 0, 0])
    n = len(seen)
    solved = np.linalg.solve(whole[:n, :n] + kernel.noise * np.eye(n), whole[:n, n:])
    variance = (whole[n:, n:] - whole[n:, :n] @ solved).diagonal()
    mean, deviation = StageProcess.of(kernel, seen).ends(new)
    assert mean == pytest.approx(solved.T @ seen.value, rel=1e-5, abs=1e-6)
    assert deviation == pytest.approx(np.sqrt(variance), rel=1e-4, abs=1e-5)


def runs_of(correlation: float, seed: int) -> tuple[Stages, Seen]:
    """24 runs seen at the first three stages, a third to the end; `correlation` is that of the first stage."""
    rng, stages = np.random.default_rng(seed), Stages(EPOCHS, 2)
    points = rng.random((24, 2))
    end = np.sin(4 * points[:, 0]) + points[:, 1]
    end = (end - end.mean()) / end.std()
    first = correlation * end + np.sqrt(1 - correlation**2) * rng.standard_normal(24)
    rows = [(i, k) for i in range(24) for k in range(5 if i % 3 == 0 else 3)]
    value = [0.35 * (first[i] if k == 0 else end[i] + 0.05 * rng.standard_normal()) - 1.0 for i, k in rows]
    run, stage = np.array(rows).T
    return stages, Seen(points, run, stage, np.array(value))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns_how_much_the_first_stage_says_of_the_end(seed: int) -> None:
    mute, telling = (learn_kernel(*runs_of(correlation, seed)).correlations for correlation in (0.0, 0.98))
    assert mute[0] < 0.4 < 0.7 < telling[0]
    assert mute[1] > 0.85  # the others predict


def test_pending_configurations_keep_the_means_and_take_the_doubt() -> None:
    stages = Stages(EPOCHS, 2)
    process = StageProcess.of(StageKernel(stages, stages.mean), drawn(stages, 3, 0))
    points = np.random.default_rng(5).random((40, 2))
    mean, deviation = process.ends(points)
    after_mean, after = process.with_ends(points[:2]).ends(points)
    assert after_mean == pytest.approx(mean, abs=1e-4)
    assert (after <= deviation + 1e-9).all()
    assert (after[:2] < 0.9 * deviation[:2]).all()
    assert process.with_ends(np.empty((0, 2))) is process


def beside_runs_of(other: Seen, earlier: Seen) -> Seen:
    return other.union(
        Seen(earlier.points, earlier.run, earlier.stage, earlier.value, np.ones(len(earlier.points), int))
    )


def test_a_prior_study_that_predicts_nothing_has_no_influence() -> None:
    alone, two = Stages(EPOCHS, 2), Stages(EPOCHS, 2, 1)
    here, there = drawn(alone, 5, 0), drawn(alone, 8, 1)
    mute = StageKernel(two, np.r_[alone.mean, -40.0])
    points = np.random.default_rng(5).random((20, 2))
    expected = StageProcess.of(StageKernel(alone, alone.mean), here).ends(points)
    found = StageProcess.of(mute, beside_runs_of(here, there)).ends(points)
    assert found[0] == pytest.approx(expected[0], abs=1e-9)
    assert found[1] == pytest.approx(expected[1], abs=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns_the_relevance_of_a_prior_study(seed: int) -> None:
    _, here = runs_of(0.9, seed)
    _, alike = runs_of(0.9, seed + 10)
    reversed_ = Seen(alike.points, alike.run, alike.stage, -2.0 - alike.value)
    both = Stages(EPOCHS, 2, 1)
    told, not_told = (learn_kernel(both, beside_runs_of(here, seen)).relevance[1] for seen in (alike, reversed_))
    assert told > 0.85
    assert not_told < 0.3
