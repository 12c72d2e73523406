"""Ctrl-C once, Ctrl-C twice, SIGTERM, kill -9 of the launcher: nothing is lost, and the same program continues."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from curves import accuracy
from processes import ended, ends
from trainings import a_study, wait_for

from haltune.log.events import Checkpointed, Ended, Expired, Reported, Status

PROGRAM = Path(__file__).parents[1] / "support" / "waiting_program.py"


def start(folder, *arguments):
    """The program, in a process group of its own as under a shell."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, PROGRAM, folder, *arguments], env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def hears(program, words):
    """Read the output of the program up to this line."""
    assert any(words in line for line in program.stderr)


def trains(folder):
    """The processes that wait in the second epoch of a trial."""
    return {int(path.suffix[1:]) for path in folder.glob("gate.*.*")}


def finish(folder):
    """Start the program again, with the gate open; its study when it is over."""
    (folder / "gate").touch()
    program = start(folder)
    out, errors = program.communicate(timeout=120)
    assert program.returncode == 0, errors
    assert out.startswith("True"), out
    return a_study(folder)


def check_nothing_was_lost(study):
    """Each trial went on from what it had saved: no epoch twice but one that was reported and not yet saved."""
    for t in study.trials:
        assert t.status is Status.COMPLETED
        assert list(t.epochs) == [1, 2, 3, 4]
        assert list(t.values) == [accuracy(t.config, e) for e in (1, 2, 3, 4)]
    assert len(study.trials) == 4
    assert study.session.replica.store.leases(study.name) == []


@pytest.mark.parametrize(
    ("number", "name", "code"),
    [
        pytest.param(signal.SIGINT, "Ctrl-C", 0, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, "SIGTERM", 143, marks=pytest.mark.slow),
        (signal.SIGUSR1, "SIGUSR1", 138),
    ],
)
def test_interrupted_once_it_finishes_the_epochs_saves_them_and_continues_exactly_there(number, name, code, tmp_path):
    program = start(tmp_path)
    wait_for(lambda: len(trains(tmp_path)) == 2)
    workers = trains(tmp_path)
    os.kill(program.pid, number)
    hears(program, f"{name} received")
    (tmp_path / "gate").touch()
    out, _ = program.communicate(timeout=120)
    assert program.returncode == code
    if code == 0:
        assert out == "False stopped by Ctrl-C; to continue, start the same program again\n"
    assert all(map(ended, workers))

    study = a_study(tmp_path)
    assert [(t.status, t.epoch, t.checkpoint_epoch) for t in study.trials] == [(Status.INTERRUPTED, 2, 2)] * 2
    study = finish(tmp_path)
    check_nothing_was_lost(study)
    reported = Counter((e.trial, e.epoch) for e in study.events() if isinstance(e, Reported))
    assert set(reported.values()) == {1}  # no epoch was trained twice


@pytest.mark.slow
def test_after_ctrl_c_optimize_saves_the_epochs_and_raises_so_that_no_code_behind_it_takes_the_search_for_over(
    tmp_path,
):
    program = start(tmp_path, "optimize")
    wait_for(lambda: len(trains(tmp_path)) == 2)
    os.kill(program.pid, signal.SIGINT)
    hears(program, "Ctrl-C received")
    (tmp_path / "gate").touch()
    out, errors = program.communicate(timeout=120)
    assert (program.returncode, out) == (-signal.SIGINT, "")
    assert "KeyboardInterrupt" in errors
    assert [(t.status, t.epoch) for t in a_study(tmp_path).trials] == [(Status.INTERRUPTED, 2)] * 2


@pytest.mark.slow
def test_interrupted_twice_it_leaves_at_once_and_the_same_program_continues(tmp_path):
    program = start(tmp_path)
    wait_for(lambda: len(trains(tmp_path)) == 2)
    workers = trains(tmp_path)
    os.kill(program.pid, signal.SIGINT)
    hears(program, "Ctrl-C received")
    os.kill(program.pid, signal.SIGINT)
    _, errors = program.communicate(timeout=60)
    assert program.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors
    assert all(map(ends, workers))
    study = a_study(tmp_path)
    assert [(t.status, t.epoch) for t in study.trials] == [(Status.INTERRUPTED, 1)] * 2
    assert not [e for e in study.events() if isinstance(e, Expired)]  # given back, not lost
    check_nothing_was_lost(finish(tmp_path))


@pytest.mark.slow
def test_shortly_before_it_is_killed_it_gives_back_what_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setenv("HALTUNE_GRACE", "0.5")
    program = start(tmp_path)
    wait_for(lambda: len(trains(tmp_path)) == 2)
    os.kill(program.pid, signal.SIGTERM)
    _, errors = program.communicate(timeout=60)
    assert program.returncode == 143
    assert "HALTUNE_GRACE=0.5 is nearly over" in errors
    assert all(map(ends, trains(tmp_path)))
    study = a_study(tmp_path)
    assert [(t.status, t.epoch, t.checkpoint_epoch) for t in study.trials] == [(Status.INTERRUPTED, 1, 1)] * 2
    assert not [e for e in study.events() if isinstance(e, Expired)]
    monkeypatch.delenv("HALTUNE_GRACE")
    check_nothing_was_lost(finish(tmp_path))


@pytest.mark.slow
def test_when_the_launcher_is_killed_its_workers_let_go_and_the_same_program_continues(tmp_path):
    program = start(tmp_path)
    wait_for(lambda: len(trains(tmp_path)) == 2)
    workers = trains(tmp_path)
    program.kill()
    program.wait()
    (tmp_path / "gate").touch()
    assert all(map(ends, workers))
    study = a_study(tmp_path)
    ended = [(e.status, e.trial) for e in study.events() if isinstance(e, Ended)]
    assert sorted(ended) == [(Status.INTERRUPTED, 0), (Status.INTERRUPTED, 1)]
    assert {e.epoch for e in study.events() if isinstance(e, Checkpointed)} == {1, 2}
    check_nothing_was_lost(finish(tmp_path))


@pytest.mark.slow
def test_two_launchers_share_one_study(tmp_path):
    (tmp_path / "gate").touch()
    programs = [start(tmp_path, "2"), start(tmp_path, "2")]
    for program in programs:
        out, errors = program.communicate(timeout=120)
        assert program.returncode == 0, errors
        assert out.startswith("True")
    study = a_study(tmp_path)
    check_nothing_was_lost(study)
    assert {t.attempt for t in study.trials} == {1}
