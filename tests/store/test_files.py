"""Where a log is kept, and what goes wrong with files: a clear sentence, and nothing recorded is lost."""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from whims import PROBLEM, Whims
from workers import created

from haltune import Budget, Study, Trial, load_study
from haltune.errors import InvalidInput, StoreError
from haltune.log.events import Started, Status
from haltune.store.open import open_sql, open_store
from haltune.store.sql import SqlStore


def start(trial: int) -> Started:
    return Started(
        at=1.0, trial=trial, config={"x": 0.5}, until=None, resource=None, tags={}, reason="", evidence={}, seen=1,
        deciding=0.0, worker="w",
    )  # fmt: skip


@pytest.mark.parametrize("where", ["search", "search.txt", "a\0b.db", 7, object()])
def test_what_is_no_store_is_refused_with_what_is(where: Any) -> None:
    with pytest.raises(InvalidInput, match=r"sqlite:///search\.db"):
        open_store(where)


@pytest.mark.parametrize(
    ("url", "says"),
    [("sqlite://", "store=None"), ("sqlite:///:memory:", "store=None"), ("sqlite:///file:a.db", "store=None"),
     ("sqlite:///a.db?timeout=9", "takes no options")],
)  # fmt: skip
def test_a_sqlite_url_names_a_file_and_nothing_else(url: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        open_store(url)


def test_a_path_and_its_url_are_the_same_store(tmp_path: Path) -> None:
    open_store(tmp_path / "a.db").create("s", created())
    assert open_store(f"sqlite:///{tmp_path}/a.db").names() == ["s"]


@pytest.mark.parametrize(
    "url", ["nonsense://x", "sqlite+nothing:///a.db", "postgresql+pg8000://h/a", "mysql://me:secret@h/a", "://"]
)
def test_an_address_that_is_no_store_is_a_clear_error(url: str) -> None:
    with pytest.raises(StoreError, match=r"SQLite or PostgreSQL; write 'sqlite:///search\.db'") as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(StoreError) as caught:
        open_sql("postgresql://me:secret@127.0.0.1:1/db")  # where nobody listens
    assert "me:***@127.0.0.1" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_missing_folder_asks_whether_it_exists(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none/a\.db.*does the folder exist"):
        open_store(tmp_path / "none" / "a.db")


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter.db"
    path.write_text("Dear reader, " * 100)
    with pytest.raises(StoreError, match="written by something else"):
        open_store(path)
    assert path.read_text() == "Dear reader, " * 100


def limited(store: SqlStore, pages: int) -> None:
    """Let the database grow no further, as on a full disk."""
    sa.event.listen(store.engine, "connect", lambda dbapi, _: dbapi.execute(f"PRAGMA max_page_count={pages}"))
    store.engine.dispose()


def test_a_full_disk_loses_nothing_recorded_and_the_search_goes_on_when_there_is_room(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/full.db"
    store = open_sql(url)
    study = Study(PROBLEM, Whims(), store, seed=1, budget=Budget(trials=3))
    limited(store, 40)
    kept = []
    with pytest.raises(StoreError, match=r"disk is full.*make room.*nothing recorded is lost"):
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


def test_a_full_disk_is_no_failure_of_the_training_whose_report_it_refuses(tmp_path: Path) -> None:
    store = open_sql(f"sqlite:///{tmp_path}/full.db")
    study = Study(PROBLEM, Whims(), store, seed=1, budget=Budget(trials=3))
    limited(store, 40)
    trial = study.ask()
    assert isinstance(trial, Trial)
    with pytest.raises(StoreError, match="disk is full") as raised, trial:
        trial.report(0.5)
        trial.report(0.4, metrics={"m" * 10**6: 1.0})
    assert not getattr(raised.value, "__notes__", [])
    assert study.trials[0].status is Status.INTERRUPTED


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no file size limits here")
def test_a_write_that_the_system_refuses_is_a_sentence(tmp_path: Path) -> None:
    script = (
        "import resource, sys, warnings\n"
        "from whims import *\n"
        "from haltune import Budget, Study\n"
        "from haltune.errors import StoreError\n"
        "study = Study(PROBLEM, Whims(), sys.argv[1], budget=Budget(trials=10**6))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "try:\n"
        "    for trial in study:\n"
        "        trial.report(0.5, metrics={'m' * 2000: 1.0})\n"
        "except StoreError as error:\n"
        "    print(error)\n"
    )
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a.db")], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert "othing recorded is lost" in done.stdout
    assert len(open_store(tmp_path / "a.db").names()) == 1


def test_a_file_in_use_that_an_older_copy_overwrites_is_noticed_and_nothing_is_written_there(tmp_path: Path) -> None:
    path, older = tmp_path / "a.db", tmp_path / "older.db"
    study = Study(PROBLEM, Whims(), path, budget=Budget(trials=3), verbose=0)
    trial = study.ask()
    assert isinstance(trial, Trial)
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(older)) as copy:
        source.backup(copy)
        before = len(list(study.store.read(study.name)))
        trial.report(0.5)
        copy.backup(source)
    with pytest.raises(StoreError, match=r"was there before.*overwritten by an older copy"):
        trial.report(0.6)
    assert len(list(load_study(path).events())) == before
