"""Paths of logs, and errors of files: a clear sentence, and no recorded event is lost."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from whims import PROBLEM, Whims

from haltune import Budget, Study, Trial
from haltune.errors import HaltuneWarning, InvalidInput, StoreError
from haltune.store.open import open_sql, open_store
from haltune.store.sql import SqlStore


@pytest.mark.parametrize("where", ["search.txt", "a\0b.db", 7])
def test_what_is_no_store_is_refused_with_what_is(where: Any) -> None:
    with pytest.raises(InvalidInput, match=r"sqlite:///search\.db"):
        open_store(where)


@pytest.mark.parametrize(
    ("url", "says"),
    [("sqlite:///:memory:", "store=None"), ("sqlite:///a.db?timeout=9", "has no options")],
)  # fmt: skip
def test_a_sqlite_url_names_a_file_and_nothing_else(url: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        open_store(url)


@pytest.mark.parametrize("url", ["postgresql+pg8000://h/a", "mysql://me:secret@h/a", "://"])
def test_an_address_that_is_no_store_is_a_clear_error(url: str) -> None:
    with pytest.raises(StoreError, match=r"SQLite or PostgreSQL. Use 'sqlite:///search\.db'") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "says"),
    [("no/deep/a.db", "the folder .*no/deep does not exist. Create it"), ("folder.db", "is a folder. Give a file")],
)
def test_a_path_without_its_folder_and_a_folder_are_refused_by_name(tmp_path: Path, path: str, says: str) -> None:
    (tmp_path / "folder.db").mkdir()
    with pytest.raises(StoreError, match=says):
        open_store(tmp_path / path)


def test_a_path_in_the_home_folder_as_a_shell_writes_it_is_refused_with_the_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    with pytest.raises(StoreError, match=r"only a shell reads ~ .* Give the whole path, '/home/me/a.db'"):
        open_store("~/a.db")
    (tmp_path / "~").mkdir()
    assert open_store("~/a.db").names() == []
    assert open_store("~a.db").names() == []  # a file in this folder


def test_a_windows_path_whose_backslash_python_read_as_an_escape_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"Write r'runs\\new.db', or use /"):
        open_store("runs\new.db")


def test_a_missing_driver_comes_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(StoreError, match=r"Install the driver: pip install .*\[postgres\]"):
        open_store("postgresql+psycopg://me:secret@h/a")


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter.db"
    path.write_text("Dear reader, " * 100)
    with pytest.raises(StoreError, match="Another program wrote the file"):
        open_store(path)
    assert path.read_text() == "Dear reader, " * 100


def test_a_file_with_a_hard_link_is_warned_of_once_because_each_name_has_a_journal(tmp_path: Path) -> None:
    open_store(tmp_path / "a.db").close()
    (tmp_path / "symbolic.db").symlink_to(tmp_path / "a.db")
    open_store(tmp_path / "symbolic.db").close()
    (tmp_path / "hard.db").hardlink_to(tmp_path / "a.db")
    with pytest.warns(HaltuneWarning, match=r"2 names .hard links.*symbolic link") as found:
        open_store(tmp_path / "hard.db").close()
        open_store(tmp_path / "a.db", reading=True).close()
    assert len(found) == 1


def limited(store: SqlStore, pages: int) -> None:
    """Let the database grow no further, as on a full disk."""
    sa.event.listen(store.engine, "connect", lambda dbapi, _: dbapi.execute(f"PRAGMA max_page_count={pages}"))
    store.engine.dispose()


def test_a_full_disk_loses_nothing_recorded_and_the_search_continues_when_there_is_room(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/full.db"
    store = open_sql(url)
    study = Study(PROBLEM, Whims(), store, seed=1, budget=Budget(trials=3))
    limited(store, 40)
    kept = []
    with pytest.raises(StoreError, match=r"disk is full.*Free some space.*nothing recorded is lost"):
        for _ in range(1000):
            trial = study.ask()
            assert isinstance(trial, Trial)
            with trial:
                trial.report(0.5, metrics={f"{'m' * 500}{i}": 1.0 for i in range(10)})
                kept.append(trial.id)
            study.budget = Budget(trials=10**6)
    later = open_sql(url, lambda: time.time() + 1e6)  # the lease of the trial that could not be ended is over
    roomy = Study(PROBLEM, Whims(), later, seed=1, budget=Budget(trials=len(kept) + 2))
    assert [t.id for t in roomy.trials if len(t.values)] == kept
    for trial in roomy:
        trial.report(0.5)
    assert len(roomy.trials) == len(kept) + 2
