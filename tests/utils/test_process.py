"""The holder of a lease, and whether its process still lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from whims import PROBLEM, Whims

from haltune import Budget, Study, Trial
from haltune._utils.process import new_holder, surely_gone
from haltune.log.events import Expired, Status
from haltune.store.base import Lease
from haltune.store.sqlite import SqliteStore
from haltune.study.view import read_study

proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc here: only the lease's expiry tells")


def with_part(position: int, value: str) -> str:
    parts = new_holder().split("/")
    parts[position] = value
    return "/".join(parts)


@proc
def test_a_number_that_no_process_has_is_gone() -> None:
    ended = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    assert surely_gone(with_part(3, ended.stdout.decode().strip()))


@pytest.mark.parametrize(("position", "value"), [(0, "elsewhere"), (1, "another-boot"), (2, "4026531000")])
def test_other_machines_boots_and_containers_are_never_judged(position: int, value: str) -> None:
    parts = with_part(position, value).split("/")
    parts[3] = "999999999"
    assert not surely_gone("/".join(parts))


def asked_again(store: Path, held: Callable[[Lease], Lease]) -> tuple[Trial, Trial]:
    """Ask for a trial, change its lease to one that another process holds, and ask in the study opened again."""
    study = Study(PROBLEM, Whims(), store, seed=1, budget=Budget(trials=3))
    first = study.ask()
    assert isinstance(first, Trial)
    replica = study.session.replica
    (lease,) = replica.store.leases(study.name)
    replica.store.append(study.name, [], seen=study.history.position, about=first.id, lease=held(lease))
    again = Study(PROBLEM, Whims(), store, seed=1, budget=Budget(trials=3)).ask()
    assert isinstance(again, Trial)
    return first, again


@proc
@pytest.mark.parametrize("shares", [False, True])  # whether machines may share the store, as with a server
def test_a_trial_of_before_a_reboot_resumes_at_once_if_its_store_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: bool
) -> None:
    monkeypatch.setattr(SqliteStore, "one_machine", not shares)
    first, again = asked_again(tmp_path / "a.db", lambda lease: replace(lease, holder=with_part(1, "another-boot")))
    assert (again.id, again.attempt) == ((1, 1) if shares else (0, 2))
    assert read_study(tmp_path / "a.db").history.trial(first.id).attempt == again.attempt


@proc
@pytest.mark.parametrize(
    ("shares", "place", "renewed", "warns"),
    [
        (False, ("elsewhere", "another-boot"), 100.0, True),
        (True, ("elsewhere", "another-boot"), 100.0, False),  # a server is for several machines
        (False, ("elsewhere", "another-boot"), 0.0, False),  # the file was moved here
        (False, ("elsewhere", None), 100.0, False),  # a container
    ],
)
def test_two_machines_at_one_file_are_warned_of(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shares: bool,
    place: tuple[str, str | None],
    renewed: float,
    warns: bool,
) -> None:
    monkeypatch.setattr(SqliteStore, "one_machine", not shares)
    parts = new_holder().split("/")
    parts[:2] = [given or own for given, own in zip(place, parts[:2], strict=True)]

    def held(lease: Lease) -> Lease:
        return replace(lease, holder="/".join(parts), renewed=lease.renewed + renewed, expires=lease.expires + 1000.0)

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        asked_again(tmp_path / "a.db", held)
    assert any("Two machines that use one SQLite file" in str(one.message) for one in said) == warns


SCRIPT = """
import sys
from whims import *
from haltune import Budget, Study
trial = Study(PROBLEM, Whims(), sys.argv[1], seed=1, budget=Budget(trials=3)).ask()
trial.report(0.1); trial.checkpointed("one.ckpt"); trial.report(0.2)
print(trial.id, flush=True)
sys.stdin.read()
"""


@proc
def test_a_killed_process_loses_its_trial_at_once_even_before_its_parent_takes_notice(tmp_path: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "a.db")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert worker.stdout is not None
    assert worker.stdin is not None
    assert worker.stdout.readline() == "0\n"
    study = Study(PROBLEM, Whims(), tmp_path / "a.db", seed=1, budget=Budget(trials=3))
    other = study.ask()
    assert isinstance(other, Trial)
    assert other.id == 1  # the first is held by a living process
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)  # dead, and still in the table: a zombie
    again = study.ask()
    assert isinstance(again, Trial)
    assert (again.id, again.attempt, again.checkpoint, again.epoch) == (0, 2, "one.ckpt", 1.0)
    expired = [e for e in study.events() if isinstance(e, Expired)]
    assert [(e.trial, e.status) for e in expired] == [(0, Status.INTERRUPTED)]
    worker.wait()
    worker.stdin.close()
    worker.stdout.close()


@pytest.mark.parametrize("pid", ["²", "٣", "pid", "", "-1", "0", "9" * 30, "1_0"])
def test_a_name_that_somebody_made_up_is_no_process_that_is_gone(pid: str) -> None:
    parts = new_holder().split("/")
    assert not surely_gone("/".join([*parts[:3], pid, *parts[4:]]))
