"""A process that ends while a file is marked leaves no warning behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from copied import add, at_moments, events, is_told
from filled import fill

from haltune.store.sql.sqlite import journal
from haltune.store.sql.sqlite.journal import Journal
from haltune.store.sql.sqlite.store import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


KILLED = """
import os, signal, sys
from filled import fill
from haltune.store.sql.sqlite import journal
from haltune.store.sql.sqlite.store import SqliteStore
path, moment, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
journal.LIMIT = 100_000
count, whole = 0, journal.Journal._checkpoint
def checkpoint(self):
    global count
    count += 1
    if moment == "written":
        whole(self)
    if count == number:
        os.kill(os.getpid(), signal.SIGKILL)
    if moment == "marked":
        whole(self)
journal.Journal._checkpoint = checkpoint
fill(SqliteStore("sqlite:///" + path), 300, "r" * 3000)
"""


def killed(path: Path, moment: str, number: int) -> None:
    """A search whose process is killed in the moment of its checkpoint of that number."""
    here = {"PYTHONPATH": str(Path(__file__).parents[3] / "support")}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), moment, str(number)],
        env=os.environ | here,
        capture_output=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize("number", [1, 2, 4])
@pytest.mark.parametrize("moment", ["marked", "written"])
def test_a_process_killed_in_that_moment_leaves_no_warning(path: Path, moment: str, number: int) -> None:
    killed(path, moment, number)
    left = events(path)
    assert left > 0 if number > 1 else left == 0
    assert is_told(path) or left == 0
    assert events(path) == left
    assert events(path, reading=False) == left  # which takes the mark back: it was the last to close the file
    assert not Path(f"{path}-wal").exists()
    assert events(path) == left


@pytest.mark.parametrize("closed", [True, False])
def test_one_that_is_killed_while_another_goes_on_leaves_no_warning_either(
    path: Path, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(journal, "time", SimpleNamespace(monotonic=lambda: now[0]))
    store = SqliteStore(f"sqlite:///{path}")
    fill(store, 3)
    killed(path, "written", 1)
    if closed:
        store.close()
    else:  # as a process ends that closes nothing itself
        now[0] += journal.PERIOD
        add(store)
        store._database.engine.dispose()
    assert not Path(f"{path}-wal").exists()
    assert events(path) > 4


@pytest.mark.parametrize("moment", ["marked", "written"])
def test_ctrl_c_in_that_moment_takes_the_mark_back_and_ends_the_process(
    path: Path, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(f"sqlite:///{path}")
    fill(store, 3)
    monkeypatch.setattr(journal, "PERIOD", 0.0)

    def interrupt(now: str) -> None:
        if now == moment:
            raise KeyboardInterrupt

    at_moments(monkeypatch, interrupt)
    monkeypatch.setattr(Journal, "_is_marked", lambda self: False)
    again = SqliteStore(f"sqlite:///{path}")
    with pytest.raises(KeyboardInterrupt):
        add(again)
    again._database.engine.dispose()  # as a process ends that closes nothing itself
    store._database.engine.dispose()
    assert not Path(f"{path}-wal").exists()
    assert events(path) == 4
