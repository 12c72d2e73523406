"""What the surrogate is told of a trial, when it learns its lengthscales, and that a search with it gets somewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest
from worlds import problem, search, small_study, train

from haltune import Budget, Choice, Float, Int, Maximize, OptimalStopping, Problem, Space, Study
from haltune.policies import BOBOS, GPUCB, RandomSearch
from haltune.policies.bayesopt import epoch_coordinate
from haltune.policies.bobos.policy import Marked


@pytest.mark.parametrize("horizon", [1, 2, 50, 1000])
def test_the_coordinate_of_the_horizon_is_1_and_of_no_epoch_0(horizon: int) -> None:
    assert epoch_coordinate(horizon, horizon) == 1.0
    assert epoch_coordinate(0.0, horizon) == 0.0


def test_every_doubling_of_one_plus_the_epochs_is_the_same_step() -> None:
    steps = np.diff(epoch_coordinate([0, 1, 3, 7, 15, 31, 63], 63))
    np.testing.assert_allclose(steps, 1 / 6)


def test_a_trial_of_one_epoch_still_teaches_it() -> None:
    study = search(small_study(RandomSearch(), problem=problem(epochs=1), trials=1))
    x, y = Marked()(study.history, study.trials[0])
    assert x[:, -1].tolist() == [1.0]
    assert len(y) == 1


def test_lengthscales_are_learnt_from_every_trial_until_refit_every_and_then_kept() -> None:
    study, kernels = small_study(GPUCB(initial=3, refit_every=7), trials=10), {}
    for trial in study:
        train(trial)
        posterior = study.policy._surrogate.posterior(study.history, study.session.replica.state)
        kernels[len(study.trials)] = posterior and tuple(posterior.kernel.lengthscales)
    assert len({kernels[n] for n in range(3, 8)}) == 5
    assert len({kernels[n] for n in range(7, 11)}) == 1


@pytest.mark.slow
def test_bobos_finds_the_top_of_a_plain_hill_when_most_runs_stop_early() -> None:
    space = Space({"lr": Float(1e-4, 1, log=True), "n": Int(1, 5), "k": Choice(["a", "b"])})
    hill = Problem(space, Maximize("accuracy", bounds=(0, 1)), max_epochs=30)

    def found(seed: int) -> float:
        policy = BOBOS(stopping=OptimalStopping(paths=2_000))
        study = Study(hill, policy, seed=seed, budget=Budget(epochs=300))
        for trial in study:
            c = trial.config
            end = 0.97 - 0.1 * (math.log10(c["lr"]) + 2) ** 2 - 0.05 * abs(c["n"] - 3) - 0.1 * (c["k"] == "a")
            train(trial, lambda _, n, end=end: end - (end - 0.1) / n)
        assert study.best is not None
        return study.best.value

    assert np.median([found(seed) for seed in range(3)]) > 0.93  # the top is at 0.941
