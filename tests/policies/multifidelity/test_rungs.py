"""How the default search compares trials at its rungs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.log.decisions import Action
from haltune.log.events import Reported, Started
from haltune.policies import MultiFidelity

EPOCHS = 27


def peaks(config: dict[str, Any], epoch: float) -> float:
    """Half of all are at their best after three epochs, the others rise, and end above them."""
    if config["x"] < 0.5:
        return 0.6 + 0.1 * config["y"] - 0.01 * max(0.0, epoch - 3)
    return (0.7 + 0.2 * config["y"]) * epoch / (epoch + 1)


def train(trial: Any, value: Any, epochs: int, pauses: bool) -> None:
    """Train a trial. pauses: False: it trains on after a PAUSE, as with a trainer that cannot pause."""
    for epoch in range(int(trial.epoch) + 1, epochs + 1):
        verdict = trial.report(value(trial.config, epoch), epoch, seconds=1.0)
        if verdict.action is Action.STOP or (pauses and verdict.stops):
            break


def test_a_place_at_a_rung_counts_all_values_there() -> None:
    space = Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)})
    problem = Problem(space, Maximize("acc", (0, 1)), EPOCHS)
    study = Study(problem, MultiFidelity(candidates=40), seed=2, budget=Budget(epochs=700), verbose=0)
    for trial in study:
        with trial:
            train(trial, peaks, EPOCHS, pauses=True)
            if trial.verdict is not None and trial.verdict.resumable:
                trial.checkpointed("saved")
    arrived: dict[float, list[float]] = {}
    places = 0
    for e in study.events():
        if isinstance(e, Reported):
            others = arrived.setdefault(e.epoch, [])
            if "rank" in e.verdict.evidence and e.epoch < EPOCHS:
                places += 1
                better, as_good = (sum(map(of, others)) for of in (e.value.__lt__, e.value.__le__))
                assert better < e.verdict.evidence["rank"] <= 1 + as_good
            others.append(e.value)
    assert places > 20


@pytest.mark.parametrize("plateau", [1, 3])  # epochs at chance, equal for all
def test_trials_that_are_equal_so_far_are_not_stopped(plateau: int) -> None:
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", (0, 1)), 9)
    study = Study(problem, MultiFidelity(candidates=40), seed=0, budget=Budget(trials=12), verbose=0)
    for trial in study:
        with trial:
            train(trial, lambda config, n: 0.1 if n <= plateau else 0.1 + 0.5 * config["x"], 9, pauses=False)
    assert all(t.epoch > plateau for t in study.trials if not t.complete)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
def test_a_trial_far_below_all_that_trained_in_full_pauses_also_where_trials_are_compared_only_at_the_end(
    seed: int,
) -> None:
    rng, chance = np.random.default_rng(seed), None
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc"), EPOCHS)
    study = Study(problem, MultiFidelity(candidates=40), seed=seed, budget=Budget(epochs=700), verbose=0)
    for trial in study:
        start = next(e for e in study.events() if isinstance(e, Started) and e.trial == trial.id)
        late = start.evidence.get("compared_from") == EPOCHS and sum(t.complete for t in study.trials) >= 4
        chance = trial.id if chance is None and late else chance
        with trial:
            good = 0.9 + 0.01 * math.cos(9 * trial.config["x"])  # good trials are noisy, so early epochs tell little
            for _ in trial.epochs():
                trial.report(0.1 if trial.id == chance else good + 0.01 * rng.normal())
    (reason,) = (e.verdict.reason for e in study.events() if isinstance(e, Reported) and e.trial == chance)
    assert reason.startswith("far below the ")
    assert reason.endswith(" or better after 1 epoch")
