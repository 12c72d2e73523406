"""A database that was copied, or moved, without its journal says so; whole ones never do."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from filled import fill, report
from workers import created

from haltune.errors import HaltuneWarning
from haltune.store import sqlite
from haltune.store.open import open_store
from haltune.store.sqlite import SqliteStore


def read(path: Path, reading: bool) -> tuple[int, list[str]]:
    """How many events there are, and what is warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HaltuneWarning)
        store = open_store(path, reading=reading)
        found = sum(len(list(store.read(name))) for name in store.names())
        store.close()
    return found, [str(w.message) for w in caught]


def alone(path: Path) -> Path:
    """A copy of the file, without what lies beside it."""
    for ending in ("", "-wal", "-shm"):
        path.with_name(f"alone.db{ending}").unlink(missing_ok=True)
    return Path(shutil.copy(path, path.with_name("alone.db")))


@pytest.mark.parametrize("reading", [True, False])
@pytest.mark.parametrize("reports", [0, 3, 300])
def test_a_copy_without_the_journal_lacks_events_and_says_so(
    tmp_path: Path, reports: int, reading: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LIMIT", 100_000)
    store = SqliteStore(f"sqlite:///{tmp_path}/a.db")
    fill(store, reports, "r" * 3000)
    found, (said,) = read(alone(tmp_path / "a.db"), reading)
    assert found < 1 + reports
    assert (found > 0) == (reports == 300)  # what was written to the file since
    assert "without its -wal file" in said
    assert "sqlite3 search.db '.backup copy.db'" in said


@pytest.mark.parametrize("reading", [True, False])
def test_a_database_that_is_whole_says_nothing(tmp_path: Path, reading: bool) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(f"sqlite:///{path}")
    fill(store, 30)
    assert read(path, reading) == (31, [])  # while it is used
    with sqlite3.connect(path) as one, sqlite3.connect(tmp_path / "backup.db") as other:
        one.backup(other)
    one.close(), other.close()
    assert read(tmp_path / "backup.db", reading) == (31, [])
    for ending in ("", "-wal"):
        shutil.copy(f"{path}{ending}", tmp_path / f"both.db{ending}")
    assert read(tmp_path / "both.db", reading) == (31, [])
    store.close()
    assert not (tmp_path / "a.db-wal").exists()
    assert read(alone(path), reading) == (31, [])
    store.append("s", [report(31.0)], seen=10**9, about=None)  # it is used again
    assert read(path, reading) == (32, [])
    assert len(read(alone(path), reading)[1]) == 1


def test_it_holds_after_a_kill_and_after_another_program_has_closed_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    code = (
        "import os, signal\nfrom filled import fill\nfrom haltune.store.sqlite import SqliteStore\n"
        f"fill(SqliteStore('sqlite:///{path}'), 30)\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    here = {"PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    done = subprocess.run([sys.executable, "-c", code], env=os.environ | here, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    found, said = read(alone(path), True)
    assert found < 31
    assert len(said) == 1
    assert read(path, True) == (31, [])
    with sqlite3.connect(path) as c:
        assert c.execute("SELECT count(*) FROM haltune_events").fetchone() == (31,)
    c.close()
    assert not (tmp_path / "a.db-wal").exists()
    assert read(path, True) == (31, [])


def test_somebody_who_reads_an_older_state_delays_the_journal_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LIMIT", 100_000)
    path = tmp_path / "a.db"
    store = SqliteStore(f"sqlite:///{path}")
    store.create("s", created())
    reader = sqlite3.connect(path, isolation_level=None)
    reader.execute("BEGIN")
    assert reader.execute("SELECT count(*) FROM haltune_events").fetchone() == (1,)
    for epoch in range(1, 41):
        store.append("s", [report(float(epoch), "r" * 3000)], seen=10**9, about=None)
    assert reader.execute("SELECT count(*) FROM haltune_events").fetchone() == (1,)
    assert (kept := os.path.getsize(f"{path}-wal")) > sqlite.LIMIT
    reader.close()
    for epoch in range(41, 121):
        store.append("s", [report(float(epoch), "r" * 3000)], seen=10**9, about=None)
    assert os.path.getsize(f"{path}-wal") < kept
    assert read(path, True) == (121, [])


def test_a_journal_that_grows_slowly_goes_to_the_file_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "LIMIT", 100_000)
    path = tmp_path / "a.db"
    store = SqliteStore(f"sqlite:///{path}")
    sizes = []
    fill(store, 0)
    for epoch in range(1, 121):
        store.append("s", [report(float(epoch), "r" * 3000)], seen=10**9, about=None)
        sizes.append(os.path.getsize(f"{path}-wal"))
    assert max(sizes) < 2 * sqlite.LIMIT
    assert sizes.count(min(sizes)) > 1  # begun anew more than once


def test_a_file_of_a_version_without_the_mark_opens_without_a_word(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    store = SqliteStore(f"sqlite:///{path}")
    fill(store, 3)
    store.close()
    with sqlite3.connect(path) as c:
        c.execute("DROP TABLE haltune_journal")
    c.close()
    assert read(path, True) == (4, [])
    assert read(path, False) == (4, [])
