"""Ctrl-C at any moment of a worker's calls: nothing is lost, doubled, incomplete or locked.

The log is the oracle: an acknowledged report is in it once, after any interruption; and the state of this process
equals that of a fresh one.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy
from interrupted import ROOM, default_ctrl_c, uninterrupted

from examples import quickly
from haltune import Budget, Float, Maximize, Minimize, Problem, Space, Storage, Study, Trial
from haltune._utils.forks import held_off
from haltune.gp import Kernel
from haltune.log.decisions import Finish, Wait
from haltune.log.events import Reported, Started
from haltune.policies import Hyperband, RandomSearch, TruVaR

__all__ = ["default_ctrl_c"]
STEP = 3  # places between two that are tried: a prime, so that each of a loop's is
LIBRARY = str(Path(sqlalchemy.__file__).parent)


def opened(store: str | None) -> Study:
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", (0.0, 1.0)), max_epochs=100_000)
    return Study(problem, RandomSearch(), Storage(store, max_retries=10_000), seed=0, budget=Budget(trials=9))


def asked(study: Study) -> Trial:
    found = study.ask()
    assert not isinstance(found, Finish | Wait)
    return found


def gives_back(trial: Trial) -> bool:
    trial.interrupt()
    return True


@pytest.mark.filterwarnings("error::haltune.errors.HaltuneWarning")
@pytest.mark.parametrize("again", [True, False], ids=["made once more", "left at that"])
@pytest.mark.parametrize("file", [True, False], ids=["sqlite", "memory"])
@pytest.mark.usefixtures("default_ctrl_c")
def test_a_report_that_is_interrupted_anywhere_is_recorded_once_or_not_at_all(
    tmp_path: Path, file: bool, again: bool
) -> None:
    store = f"sqlite:///{tmp_path}/search.db" if file else None
    study = opened(store)
    trial, place, told, acknowledged = asked(study), 1, 0, set[float]()
    while uninterrupted(partial(trial.report, told / 1e6), place) is None:
        study.sync()
        before = len(study.trials[0].values)
        if not again:
            told += 1
        trial.report(told / 1e6)
        acknowledged.add(told / 1e6)
        assert len(study.trials[0].values) - before <= 1
        told, place = told + 1, place + STEP
    assert place > 20 * STEP  # so many places were tried
    assert held_off.depth == 0
    recorded = Counter(e.value for e in study.store.read(study.name) if isinstance(e, Reported))
    assert [v for v, n in recorded.items() if n > 1] == [], (told, place)
    assert acknowledged <= set(recorded)
    known = study.trials[0]
    assert list(known.epochs) == list(range(1, len(recorded) + 1))
    assert list(known.values) == list(recorded)
    if file:
        assert list(known.values) == list(opened(store).trials[0].values)


@pytest.mark.slow
@pytest.mark.usefixtures("default_ctrl_c")
def test_asking_and_giving_back_may_be_interrupted_anywhere(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/search.db"
    study, place, more = opened(store), 1, True
    while more:
        found = uninterrupted(study.ask, place)
        trial = found if isinstance(found, Trial) else asked(study)
        trial.report(0.5)
        more = found is None or uninterrupted(partial(gives_back, trial), place) is None
        trial.interrupt()
        place += 5 * STEP
        study.sync()
        other = opened(store)  # no lock is left behind, and everybody reads the same
        assert [(t.status, t.attempt) for t in other.trials] == [(t.status, t.attempt) for t in study.trials]
        assert other.store.leases(other.name) == []
        other.store.close()
    assert place > 20 * STEP
    assert held_off.depth == 0


SQUARE = Space({"x": Float(0.0, 1.0), "z": Float(0.0, 1.0)})
LEVEL_SET = TruVaR(0.6, grid=5, kernel=Kernel("se", 1.0, np.array([0.3, 0.3])), noise=1e-3, mean=0.5)
# policies that keep what they have computed, their goals, the trial at which Ctrl-C comes, and the distance of places
DECIDED: dict[str, Any] = {
    "several goals": (RandomSearch(), [Maximize("acc", (0, 1)), Minimize("ms")], (2,), 2),
    "level set": (LEVEL_SET, Maximize("acc", (0, 1)), (8,), 6),
    "brackets": (Hyperband(eta=2, schedule="growing"), Maximize("acc", (0, 1)), range(8), 5),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a generator that is closed
@pytest.mark.parametrize("kind", quickly(DECIDED, "brackets"))
@pytest.mark.usefixtures("default_ctrl_c")
def test_a_decision_that_is_interrupted_anywhere_is_made_again_as_if_it_was_not(kind: str) -> None:
    policy, goal, at, step = DECIDED[kind]

    def searched(interrupted: Sequence[int]) -> list[Any]:
        """Return the starts of a search."""
        problem, storage = Problem(SQUARE, goal, 4), Storage(None, max_retries=10_000)
        study = Study(problem, replace(policy), storage, seed=0, budget=Budget(trials=9), verbose=0)
        while True:
            place, trial = 1, None if len(study.trials) in interrupted else study.ask()
            while trial is None:
                trial, place = uninterrupted(study.ask, place), place + step
            if not isinstance(trial, Trial):
                break
            x, z = trial.config["x"], trial.config["z"]
            for epoch in trial.epochs():
                value = (1.0 - (x - 0.3) ** 2 - (z - 0.6) ** 2) * epoch / (epoch + 1)
                trial.report({"acc": value, "ms": x + z} if trial.measures.others else value, seconds=1.0)
            if trial.verdict is not None and trial.verdict.resumable:
                trial.checkpointed(f"memory of {trial.id}")
            trial.finish()
        return [(e.config, e.evidence, e.tags) for e in study.events() if isinstance(e, Started)]

    assert searched(at) == searched(())


def in_another_thread(work: Callable[[], object], seconds: float) -> bool:
    """Return whether it ends in time."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


@pytest.mark.usefixtures("default_ctrl_c")
@pytest.mark.slow
def test_a_server_s_connections_survive_ctrl_c_anywhere_also_in_the_library(postgres_url: str) -> None:
    study = opened(postgres_url)
    pool = study.store.engine.pool
    trial, place, told, acknowledged = asked(study), 1, 0, set[float]()
    while uninterrupted(partial(trial.report, told / 1e6), place, (ROOM, LIBRARY)) is None:
        assert pool.checkedout() == 0
        assert in_another_thread(study.sync, 20.0)
        told += 1
        trial.report(told / 1e6)
        acknowledged.add(told / 1e6)
        told, place = told + 1, place + 7 * STEP
    assert place > 20 * 7 * STEP
    recorded = Counter(e.value for e in study.store.read(study.name) if isinstance(e, Reported))
    assert [v for v, n in recorded.items() if n > 1] == []
    assert acknowledged <= set(recorded)
    assert list(study.trials[0].values) == list(opened(postgres_url).trials[0].values) == list(recorded)
