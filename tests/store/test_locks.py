"""A database that somebody keeps locked: waits end, and Ctrl-C ends them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from locking import END, locked
from whims import PROBLEM, Whims
from workers import created

from haltune import Budget, Study, Trial
from haltune.errors import StoreError
from haltune.store.open import open_sql
from haltune.store.sql import SqlStore

PATHS = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


@contextmanager
def running(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has printed a line."""
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=PATHS) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline(), process.stderr and process.stderr.read()
            yield process
        finally:
            process.kill()


# -- SQLite -------------------------------------------------------------------------------------------


def test_what_only_reads_and_what_only_opens_needs_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study(PROBLEM, Whims(), tmp_path / "a.db", seed=1, budget=Budget(trials=3))
    trial = study.ask()
    assert isinstance(trial, Trial)
    trial.report(0.5)
    monkeypatch.setattr("haltune.store.sql.BUSY_TIMEOUT", 0.0)
    with locked(tmp_path / "a.db"):
        again = Study(PROBLEM, Whims(), tmp_path / "a.db", seed=1, budget=Budget(trials=3))
        assert list(again.trials[0].values) == [0.5]
        assert [lease.trial for lease in again.store.leases("study")] == [0]


def test_ctrl_c_ends_the_wait_for_a_lock_and_soon_the_next_one(tmp_path: Path) -> None:
    open_sql(f"sqlite:///{tmp_path}/a.db").create("s", created())
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background ignores it
        "from haltune.errors import StoreError\n"
        "from haltune.log.events import Finished\n"
        "from haltune.store.open import open_sql\n"
        "store = open_sql('sqlite:///' + sys.argv[1])\n"
        "print('opened', flush=True)\n"
        "def append():\n"
        "    store.append('s', [Finished(at=1.0, reason='', seen=1)], seen=1, about=None)\n"
        "try:\n"
        "    append()\n"
        "except KeyboardInterrupt:\n"
        "    try:\n"
        "        append()\n"
        "    except StoreError:\n"
        "        print('interrupted', flush=True)\n"
    )
    with locked(tmp_path / "a.db"), running(script, str(tmp_path / "a.db")) as waiting:
        time.sleep(0.5)  # it waits by now, or soon
        waiting.send_signal(signal.SIGINT)
        began = time.monotonic()
        out, _ = waiting.communicate(timeout=30.0)
    assert "interrupted" in out
    assert time.monotonic() - began < 10.0  # a loaded machine; it takes a second


# -- PostgreSQL ------------------------------------------------------------------------------------------


@pytest.fixture
def store(postgres_url: str) -> Iterator[SqlStore]:
    store = open_sql(postgres_url)
    store.create("s", created())
    yield store
    store.close()


def session(url: str, name: str = "somebody") -> Any:
    """Another session of the server."""
    import psycopg

    return psycopg.connect(url.replace("+psycopg", ""), application_name=name)


LOCK = "SELECT id FROM haltune_studies WHERE name = 's' FOR UPDATE"


@pytest.mark.slow
def test_a_session_that_keeps_a_study_locked_is_an_error_after_some_patience(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haltune.store.sql.BUSY_TIMEOUT", 0.0)
    with session(store.address()) as other:
        other.execute(LOCK)
        with pytest.raises(StoreError, match=r"(?s)lock timeout.*pg_stat_activity"):
            store.append("s", [END], seen=1, about=None)
    assert store.append("s", [END], seen=1, about=None) == 1
