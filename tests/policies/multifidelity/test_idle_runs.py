"""Trials that have not improved since the previous rung are promoted only if they lead."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import pytest

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.log.decisions import Action
from haltune.log.events import Reported, Resumed
from haltune.policies import MultiFidelity
from haltune.policies.multifidelity.policy import CLOSING

EPOCHS = 27
IDLE = "no better than after"


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


@cache
def searched(of: Literal["last", "best"], policy: Any = None, pauses: bool = True) -> Study:
    """Return a search; read only."""
    space = Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)})
    problem = Problem(space, Maximize("acc", (0, 1), of=of), EPOCHS)
    study = Study(problem, policy or MultiFidelity(candidates=40), seed=2, budget=Budget(epochs=700), verbose=0)
    for trial in study:
        with trial:
            train(trial, peaks, EPOCHS, pauses)
            if pauses and trial.verdict is not None and trial.verdict.resumable:
                trial.checkpointed("saved")
    return study


def verdicts(study: Study) -> list[Reported]:
    """Those of runs that were idle where they were compared."""
    return [e for e in study.events() if isinstance(e, Reported) and IDLE in e.verdict.reason]


def test_a_place_at_a_rung_counts_all_values_there() -> None:
    arrived: dict[float, list[float]] = {}
    places = 0
    for e in searched("last").events():
        if isinstance(e, Reported):
            others = arrived.setdefault(e.epoch, [])
            if "rank" in e.verdict.evidence and e.epoch < EPOCHS:
                places += 1
                better, as_good = (sum(map(of, others)) for of in (e.value.__lt__, e.value.__le__))
                assert better < e.verdict.evidence["rank"] <= 1 + as_good
            others.append(e.value)
    assert places > len(verdicts(searched("last"))) > 0


@pytest.mark.parametrize("of", ["last", "best"])
def test_an_idle_run_does_not_continue(of: Literal["last", "best"]) -> None:
    study = searched(of)
    closing = {e.trial for e in study.events() if isinstance(e, Resumed) and e.tags.get(CLOSING)}
    idle = [e for e in verdicts(study) if e.verdict.action is not Action.CONTINUE or e.trial not in closing]
    assert idle
    assert {e.verdict.action for e in idle} == {Action.PAUSE}
    waiting: set[int] = set()
    for e in study.events():
        if isinstance(e, Reported) and IDLE in e.verdict.reason:
            waiting.add(e.trial)
        if isinstance(e, Resumed) and not e.tags.get(CLOSING):
            assert e.trial not in waiting


def test_what_rises_is_trained_in_full_in_place_of_what_peaked() -> None:
    full = [t for t in searched("best").trials if t.epoch == EPOCHS]
    rising = [t for t in full if t.config["x"] >= 0.5]
    assert len(rising) > 0.8 * len(full)


def test_where_nothing_can_pause_an_idle_run_is_stopped() -> None:
    late = [e for e in verdicts(searched("best", pauses=False)) if e.seen > 40]
    assert late
    assert {e.verdict.action for e in late} == {Action.STOP}


@pytest.mark.parametrize("plateau", [1, 3])  # epochs at chance, equal for all
def test_trials_that_are_equal_so_far_are_not_stopped(plateau: int) -> None:
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", (0, 1)), 9)
    study = Study(problem, MultiFidelity(candidates=40), seed=0, budget=Budget(trials=12), verbose=0)
    for trial in study:
        with trial:
            train(trial, lambda config, n: 0.1 if n <= plateau else 0.1 + 0.5 * config["x"], 9, pauses=False)
    assert all(t.epoch > plateau for t in study.trials if not t.complete)
