"""Whatever happens while a file is marked, a copy that lacks events says so, and what is whole never does."""

from __future__ import annotations

import multiprocessing as mp
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from copied import add, alone, at_moments, events, is_told
from filled import fill, report
from workers import created, together

from haltune.errors import HaltuneWarning, StoreError
from haltune.store.sql import database
from haltune.store.sql.open import open_sql
from haltune.store.sql.sqlite import journal
from haltune.store.sql.sqlite.journal import Journal
from haltune.store.sql.sqlite.store import SqliteStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


# -- others, in that moment ----------------------------------------------------------------------


def by_backup(path: Path, copy: Path) -> None:
    with sqlite3.connect(path) as one, sqlite3.connect(copy) as other:
        one.backup(other)
    one.close(), other.close()


def by_vacuum(path: Path, copy: Path) -> None:
    with sqlite3.connect(path) as c:
        c.execute("VACUUM INTO ?", (str(copy),))
    c.close()


def both_files(path: Path, copy: Path) -> None:
    for ending in ("", "-wal"):
        shutil.copy(f"{path}{ending}", f"{copy}{ending}")


@pytest.mark.parametrize("copied", [by_backup, by_vacuum, both_files])
def test_a_whole_copy_made_in_that_moment_says_nothing(
    path: Path, copied: Callable[[Path, Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LIMIT", 100_000)
    store = SqliteStore(f"sqlite:///{path}")
    fill(store, 1)
    copies, counts = [], []

    def copy(moment: str) -> None:
        copies.append(path.with_name(f"{len(copies)}.db"))
        counts.append(events(path))
        copied(path, copies[-1])

    at_moments(monkeypatch, copy)
    add(store, 30)
    assert len(copies) >= 4
    assert [events(c) for c in copies] == counts
    assert [events(c, reading=False) for c in copies] == counts


@pytest.mark.parametrize("reading", [True, False])
def test_one_who_opens_the_file_in_that_moment_hears_nothing(
    path: Path, reading: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LIMIT", 100_000)
    found: list[int] = []

    def look(_: str) -> None:
        monkeypatch.setattr(Journal, "_checkpoint", whole)  # who opens it to write marks it, too
        found.append(events(path, reading))

    whole = Journal._checkpoint
    store = SqliteStore(f"sqlite:///{path}")
    store.create("s", created())
    for _ in range(8):
        at_moments(monkeypatch, look)
        add(store, 10)
    assert len(found) >= 4
    assert found == sorted(found)
    assert is_told(path)


def test_a_mark_that_another_takes_back_before_the_checkpoint_is_set_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "LIMIT", 100_000)
    url = f"sqlite:///{path}"
    one, other = SqliteStore(url), SqliteStore(url)
    fill(one, 60, "r" * 3000)
    add(other)
    once = []

    def meanwhile(moment: str) -> None:
        if moment == "marked" and not once:
            once.append(moment)
            other._database.file.journal._next = 0.0  # type: ignore[union-attr]
            add(other)  # which marks, and takes it back

    at_moments(monkeypatch, meanwhile)
    while not once:
        add(one)
    assert is_told(path)


def test_a_checkpoint_that_is_not_haltunes_is_noticed_within_a_while(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(journal, "time", SimpleNamespace(monotonic=lambda: now[0]))
    store = SqliteStore(f"sqlite:///{path}")
    fill(store, 3)
    with sqlite3.connect(path) as c:
        assert c.execute("PRAGMA wal_checkpoint(FULL)").fetchone()[0] == 0
    c.close()
    add(store)
    assert not is_told(path)
    now[0] += journal.PERIOD
    add(store)
    assert is_told(path)
    store.close()
    assert events(path) == 6


def test_nothing_is_written_before_the_file_is_marked(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(f"sqlite:///{path}")
    fill(store, 3)
    store.close()
    lacking = []

    def look(c: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("INSERT INTO haltune_events"):
            lacking.append(is_told(path))

    store = SqliteStore(f"sqlite:///{path}")
    sa.event.listen(store._database.engine, "before_cursor_execute", look)
    add(store)
    assert lacking == [True]


def test_a_file_that_another_keeps_locked_is_waited_for_once(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT", 0.0)
    fill(SqliteStore(f"sqlite:///{path}"), 3)
    store, said = SqliteStore(f"sqlite:///{path}"), []
    monkeypatch.setattr(Journal, "_is_marked", lambda self: False)
    sa.event.listen(store._database.engine, "before_cursor_execute", lambda *call: said.append(call[2]))
    with sqlite3.connect(path, isolation_level=None) as c:
        c.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="locked"):
            add(store)
        assert said.count("BEGIN IMMEDIATE") == 1
        c.execute("ROLLBACK")
    c.close()
    add(store)
    assert events(path) == 5


# -- many at once --------------------------------------------------------------------------------


def writes(url: str, count: int) -> bool:
    """Appends by one of several processes, each of which marks all the time."""
    journal.LIMIT, journal.PERIOD = 30_000, 0.0
    store = open_sql(url)
    for _ in range(count):
        store.append("s", [report(1.0, "r" * 3000)], seen=10**9, about=None)
    return True


def test_two_processes_that_mark_at_once_leave_the_file_marked(path: Path) -> None:
    store = SqliteStore(f"sqlite:///{path}")
    fill(store, 3)
    url = f"sqlite:///{path}"
    assert together(writes, (url, 80), (url, 80)) == [True, True]
    add(store)
    assert events(path) == 165
    assert is_told(path)
    store.close()
    assert events(path) == 165


def tells(url: str, done: Any, copies: Any) -> None:
    """Appends, and says after each how many there are, until it was copied some times."""
    journal.LIMIT = 100_000
    store = open_sql(url)
    fill(store, 0)
    while done.value < 200 or copies.value < 6:
        store.append("s", [report(1.0, "r" * 3000)], seen=10**9, about=None)
        done.value += 1
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_copy_of_a_running_search_lacks_nothing_or_says_so(path: Path) -> None:
    context = mp.get_context("spawn")
    done, copies = context.Value("i", 0), context.Value("i", 0)
    process = context.Process(target=tells, args=(f"sqlite:///{path}", done, copies))
    process.start()
    silent = []
    while process.is_alive() or not copies.value:
        if not path.exists():
            continue
        before, copy = done.value, alone(path)
        copies.value += 1
        try:
            found = events(copy)
        except (HaltuneWarning, StoreError):
            continue
        if found < before + 1:
            silent.append((before, found))
    assert process.exitcode == -signal.SIGKILL
    assert silent == []
    assert is_told(path)
    assert events(path) == 1 + done.value
