"""A study that nothing was ever reported to makes way for one with other settings; one with a report never does."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from haltune import Float, Maximize, Space, Study, Trial
from haltune.errors import StudyMismatch
from haltune.log.events import Status
from haltune.store.memory import MemoryStore
from haltune.store.open import open_store

SPACE = Space({"lr": Float(0.0, 1.0)})


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        return MemoryStore()
    return open_store(tmp_path / "a.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url"))


def opened(store: Any, metric: str = "val_ac", space: Any = SPACE, **more: Any) -> Study:
    more = {"max_epochs": 3, "budget": "2 trials", "verbose": 0} | more
    return Study(space, Maximize(metric), store, **more)


def test_a_corrected_metric_is_taken_and_said_in_one_line(store: Any, caplog: Any) -> None:
    trial = opened(store).ask()
    assert isinstance(trial, Trial)
    trial.fail(RuntimeError("the metric 'val_ac' was not logged"))
    with caplog.at_level(logging.INFO, "haltune"):
        study = opened(store, "val_acc")
    [said] = [r.getMessage() for r in caplog.records if "created again" in r.getMessage()]
    assert "because it had no report: goal.metric: recorded 'val_ac', given 'val_acc'" in said
    assert store.names() == ["study"]
    assert [*study.trials, *store.leases("study")] == []
    for trial in study:
        for _ in trial.epochs():
            trial.report(0.5)
    assert [t.status for t in opened(store, "val_acc").trials] == [Status.COMPLETED] * 2


def test_what_was_reported_once_stays(store: Any) -> None:
    trial = opened(store).ask()
    assert isinstance(trial, Trial)
    trial.report(0.5)
    with pytest.raises(StudyMismatch, match=r"goal\.metric"):
        opened(store, "val_acc")
    assert opened(store).trials[0].epoch == 1.0


def test_a_worker_that_trains_its_first_epoch_elsewhere_is_not_disturbed(tmp_path: Path) -> None:
    program = f"""
import sys
from haltune import *
trial = Study({{"lr": Float(0.0, 1.0)}}, Maximize("val_ac"), {str(tmp_path / "a.db")!r}, max_epochs=3,
              budget="2 trials").ask()
print("asked", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"asked\n"
        with pytest.raises(StudyMismatch):
            opened(tmp_path / "a.db", "val_acc")
        other.communicate()
    assert not opened(tmp_path / "a.db", "val_acc").trials  # it is gone


def test_a_program_that_has_the_old_one_open_gets_an_error(store: Any) -> None:
    old = opened(store)
    opened(store, "val_acc")
    with pytest.raises(StudyMismatch, match=r"Another program created .*'study' .* Open it again"):
        old.ask()
    assert not opened(store, "val_acc").trials
