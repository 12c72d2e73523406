"""Optimal stopping decides alike at every horizon: the same curve, reported at any number of epochs."""

from __future__ import annotations

import math

import numpy as np
import pytest

from haltune import Budget, Float, Maximize, OptimalStopping, Problem, Space, Study
from haltune.policies import BOBOS, Halting, RandomSearch

HORIZONS = (10, 50, 500, 1_000, 5_000, 100_000)
MOST_REPORTS = 50  # of a trial, evenly spaced


def stopped_at(horizon: int, policy: object, ends: list[float]) -> list[float]:
    """The share of a full training after which each trial ends; curves rise to `ends`."""
    problem = Problem(Space({"x": Float(0, 1)}), Maximize("acc", bounds=(0, 1)), horizon)
    study = Study(problem, policy, seed=1, budget=Budget(trials=len(ends)), verbose=0)
    for trial in study:
        reports = min(horizon, MOST_REPORTS)
        for k in range(1, reports + 1):
            share = k / reports
            value = ends[trial.id] * (1 - math.exp(-4 * share)) / (1 - math.exp(-4))
            if trial.report(value, epoch=round(share * horizon), seconds=1.0).stops:
                break
        trial.finish()
    return [t.epoch / horizon for t in study.trials]


@pytest.mark.parametrize("make", [BOBOS, lambda: Halting(RandomSearch())], ids=["bobos", "halting"])
@pytest.mark.parametrize("horizon", HORIZONS)
def test_a_hopeless_trial_is_stopped_before_half_of_its_training_and_a_winner_is_not(make, horizon):
    shares = stopped_at(horizon, make(), [0.9, 0.1, 0.95, 0.3])
    assert shares[0] == shares[2] == 1.0
    assert max(shares[1], shares[3]) <= 0.5


def test_the_same_curve_is_stopped_at_the_same_share_of_its_training():
    first = stopped_at(50, Halting(RandomSearch()), [0.9, 0.6])[1]
    for horizon in (500, 5_000, 100_000):
        assert stopped_at(horizon, Halting(RandomSearch()), [0.9, 0.6])[1] == pytest.approx(first, abs=0.1)


@pytest.mark.parametrize("horizon", [10, 20, 51, 120])
def test_a_stop_is_made_up_to_the_same_probability_of_winning_at_every_horizon(horizon):
    """Stop loses K1 p + missing, "win" K2 (1 - p): equal at p = (K2 - missing) / (K1 + K2); missing is 5.1 at most."""
    settings = OptimalStopping(paths=4_000)
    errors = 1.0 - 0.5 * (1 - np.exp(-4 * np.arange(1, 2 + horizon // 3) / horizon))
    table = settings.solve_at(errors, horizon, 0.5, settings.losses(), np.random.default_rng(0))
    p = (99.0 - 5.1) / 599.0
    stop, win, _ = table.losses.expected([p, p + 0.01], [0.0, 0.0])
    assert stop[0] <= win[0] + 1e-9
    assert stop[1] > win[1]
