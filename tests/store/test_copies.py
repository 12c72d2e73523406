"""A copy of a database with its -wal file, or by SQLite's .backup, holds every event; so does a file after a kill."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from filled import fill, report

from haltune.store.open import open_store
from haltune.store.sqlite import SqliteStore

pytestmark = pytest.mark.filterwarnings("error::haltune.errors.HaltuneWarning")


def read(path: Path, reading: bool) -> int:
    """Return the number of events; no warning is given."""
    store = open_store(path, reading=reading)
    found = sum(len(list(store.read(name))) for name in store.names())
    store.close()
    return found


@pytest.mark.parametrize("reading", [True, False])
def test_a_whole_copy_holds_every_event(tmp_path: Path, reading: bool) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(f"sqlite:///{path}")
    fill(store, 30)
    assert read(path, reading) == 31  # while it is used
    with closing(sqlite3.connect(path)) as one, closing(sqlite3.connect(tmp_path / "backup.db")) as other:
        one.backup(other)
    assert read(tmp_path / "backup.db", reading) == 31
    for ending in ("", "-wal"):
        shutil.copy(f"{path}{ending}", tmp_path / f"both.db{ending}")
    assert read(tmp_path / "both.db", reading) == 31
    store.close()
    assert not (tmp_path / "a.db-wal").exists()
    assert read(Path(shutil.copy(path, tmp_path / "alone.db")), reading) == 31
    store.append("s", [report(31.0)], seen=10**9, about=None)  # it is used again
    assert read(path, reading) == 32


def test_a_file_is_whole_after_a_kill_and_after_another_program_has_closed_it(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    code = (
        "import os, signal\nfrom filled import fill\nfrom haltune.store.sqlite import SqliteStore\n"
        f"fill(SqliteStore('sqlite:///{path}'), 30)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    here = {"PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | here, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert read(path, True) == 31
    with closing(sqlite3.connect(path)) as c:
        assert c.execute("SELECT count(*) FROM haltune_events").fetchone() == (31,)
    assert not (tmp_path / "a.db-wal").exists()
    assert read(path, True) == 31
