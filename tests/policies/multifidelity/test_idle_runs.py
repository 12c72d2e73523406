"""Runs that have come to no more than at the rung before: they go on only where they lead."""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

import pytest

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.log.decisions import Action
from haltune.log.events import Reported, Resumed
from haltune.policies import Ladder, MultiFidelity
from haltune.policies.multifidelity.policy import CLOSING

EPOCHS = 27
IDLE = "no better than after"


def peaks(config: dict[str, Any], epoch: float) -> float:
    """Half of all are at their best after three epochs, the others rise, and end above them."""
    if config["x"] < 0.5:
        return 0.6 + 0.1 * config["y"] - 0.01 * max(0.0, epoch - 3)
    return (0.7 + 0.2 * config["y"]) * epoch / (epoch + 1)


@cache
def searched(of: Literal["last", "best"], policy: Any = None, saves: bool = True) -> Study:
    """For reading alone."""
    space = Space({"x": Float(0.0, 1.0), "y": Float(0.0, 1.0)})
    problem = Problem(space, Maximize("acc", (0, 1), of=of), EPOCHS)
    study = Study(problem, policy or MultiFidelity(candidates=40), seed=2, budget=Budget(epochs=700), verbose=0)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(peaks(trial.config, epoch), seconds=1.0)
            if saves and trial.verdict is not None and trial.verdict.resumable:
                trial.checkpointed("saved")
    return study


def verdicts(study: Study) -> list[Reported]:
    """Those of runs that were idle where they were compared."""
    return [e for e in study.events() if isinstance(e, Reported) and IDLE in e.verdict.reason]


@pytest.mark.parametrize("of", ["last", "best"])
def test_an_idle_run_does_not_go_on(of: Literal["last", "best"]) -> None:
    study = searched(of)
    idle = verdicts(study)
    assert idle
    assert {e.verdict.action for e in idle} == {Action.PAUSE}
    waiting: set[int] = set()
    for e in study.events():
        if isinstance(e, Reported) and IDLE in e.verdict.reason:
            waiting.add(e.trial)
        if isinstance(e, Resumed) and not e.tags.get(CLOSING):
            assert e.trial not in waiting


def test_it_says_since_when_a_run_has_come_to_no_more() -> None:
    for e in verdicts(searched("best")):
        values = [r.value for r in searched("best").events() if isinstance(r, Reported) and r.trial == e.trial]
        rung = e.verdict.evidence["rung"]
        since = (1, 3, 9, EPOCHS)[rung - 1]
        assert e.verdict.reason.endswith(f"{IDLE} {since} epoch{'s' * (since > 1)}")
        assert max(values[: int(e.epoch)]) <= max(values[:since])
        assert e.verdict.evidence["rank"] > 1


def test_what_rises_is_trained_in_full_in_place_of_what_peaked() -> None:
    full = [t for t in searched("best").trials if t.epoch == EPOCHS]
    rising = [t for t in full if t.config["x"] >= 0.5]
    assert len(rising) > 0.8 * len(full)


def test_the_first_of_its_rung_goes_on_though_it_is_idle() -> None:
    found = Study(
        Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", (0, 1), of="best"), EPOCHS),
        MultiFidelity(candidates=40, min_trials_per_rung=1), seed=0, budget=Budget(epochs=200), verbose=0,
    )  # fmt: skip
    for trial in found:
        with trial:
            for epoch in trial.epochs():
                trial.report(trial.config["x"] / epoch)  # all are at their best after an epoch
            if trial.verdict is not None and trial.verdict.resumable:
                trial.checkpointed("saved")
    best = max(found.trials, key=lambda t: t.config["x"])
    assert any(t.epoch == EPOCHS for t in found.trials)
    assert best.epoch > 3


def test_where_nothing_can_pause_an_idle_run_is_stopped() -> None:
    late = [e for e in verdicts(searched("best", saves=False)) if e.seen > 40]
    assert late
    assert {e.verdict.action for e in late} == {Action.STOP}


def test_a_ladder_compares_by_rank_alone() -> None:
    assert not verdicts(searched("best", Ladder()))
