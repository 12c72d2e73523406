"""A file that cannot be written for a while: trainings continue, and their reports are delivered later."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import chaos
import pytest
import sqlalchemy as sa
from whims import PROBLEM, Whims

from haltune import Action, Budget, HaltuneWarning, Study, Trial
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import StoreError
from haltune.log.events import Reported


def trained(path: Path, when: Callable[[Study, int], None]) -> list[str]:
    """The warnings of a training that calls `when` before each report; every report is in the log after it."""
    study = Study(PROBLEM, Whims(), path, seed=1, budget=Budget(trials=9))
    trial = study.ask()
    assert isinstance(trial, Trial)
    epochs = []
    with pytest.warns(HaltuneWarning) as told, trial:
        loop = TrainingLoop(trial)
        for epoch in loop:
            when(study, epoch)
            loop.report(0.01 * epoch)
            epochs.append(epoch)
    found = [e for e in study.events() if isinstance(e, Reported)]
    assert epochs == [e.epoch for e in found] == list(range(1, 11))
    assert [e.epoch for e in found if e.verdict.action is Action.UNJUDGED] == [4, 5, 6, 7]
    assert study.trials[0].status == "completed"
    another = study.ask()
    assert isinstance(another, Trial)
    another.report(0.5)
    return [str(w.message) for w in told]


def test_a_file_that_may_not_be_written_for_a_while_costs_one_warning(tmp_path: Path) -> None:
    def when(study: Study, epoch: int) -> None:
        engine = study.store.engine
        if epoch in (4, 8):  # SQLite's own switch: the superuser may write files that are read-only
            engine.dispose()
            only = "ON" if epoch == 4 else "OFF"
            sa.event.listen(engine, "connect", lambda dbapi, _: dbapi.execute(f"PRAGMA query_only={only}"))

    told = trained(tmp_path / "a.db", when)
    assert len(told) == 1
    assert "Check the permissions" in told[0]
    assert "raining continues" in told[0]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits of a process")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_full_disk_costs_one_warning(tmp_path: Path) -> None:
    """A limit on the size of files of this process replaces a full disk."""
    import resource

    def when(study: Study, epoch: int) -> None:
        if epoch == 4:
            size = (tmp_path / "a.db-wal").stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        if epoch == 8:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    def life() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        told = trained(tmp_path / "a.db", when)
        assert len(told) == 1
        assert "othing recorded is lost" in told[0]
        assert "raining continues" in told[0]

    assert os.waitpid(chaos.in_fork(life), 0)[1] == 0


def test_a_function_whose_reports_a_file_does_not_take_ends_with_the_error_of_the_file(tmp_path: Path) -> None:
    study = Study(PROBLEM, Whims(), tmp_path / "a.db", seed=1, budget=Budget(trials=9))

    def train(trial: Trial) -> None:
        study.store.engine.dispose()
        sa.event.listen(study.store.engine, "connect", lambda dbapi, _: dbapi.execute("PRAGMA query_only=ON"))
        loop = TrainingLoop(trial)
        for epoch in loop:
            loop.report(0.01 * epoch)

    with (
        pytest.warns(HaltuneWarning, match="The store cannot take reports|could not be delivered"),
        pytest.raises(StoreError, match="Check the permissions"),
    ):
        study.optimize(train)
