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
from locking import END, linux, locked
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


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def until(condition: Any, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


# -- SQLite -------------------------------------------------------------------------------------------


def test_a_locked_file_is_an_error_after_some_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_sql(f"sqlite:///{tmp_path}/a.db")
    store.create("s", created())
    monkeypatch.setattr("haltune.store.sql.BUSY_TIMEOUT", 0.0)
    with (
        locked(tmp_path / "a.db"),
        pytest.raises(StoreError, match=r"database is locked; another process keeps it locked"),
    ):
        store.append("s", [END], seen=1, about=None)
    assert store.append("s", [END], seen=1, about=None) == 1


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


def test_ctrl_c_ends_the_wait_for_a_lock(tmp_path: Path) -> None:
    open_sql(f"sqlite:///{tmp_path}/a.db").create("s", created())
    script = (
        "import signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background ignores it
        "from haltune.log.events import Finished\n"
        "from haltune.store.open import open_sql\n"
        "store = open_sql('sqlite:///' + sys.argv[1])\n"
        "print('opened', flush=True)\n"
        "try:\n"
        "    store.append('s', [Finished(at=1.0, reason='', seen=1)], seen=1, about=None)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    with locked(tmp_path / "a.db"), running(script, str(tmp_path / "a.db")) as waiting:
        time.sleep(0.5)  # it waits by now, or soon
        waiting.send_signal(signal.SIGINT)
        began = time.monotonic()
        out, _ = waiting.communicate(timeout=30.0)
    assert "interrupted" in out
    assert time.monotonic() - began < 10.0  # a loaded machine; it takes a tenth of a second


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


def test_a_session_that_keeps_a_study_locked_is_an_error_after_some_patience(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("haltune.store.sql.BUSY_TIMEOUT", 0.0)
    with session(store.address()) as other:
        other.execute(LOCK)
        with pytest.raises(StoreError, match=r"(?s)lock timeout.*pg_stat_activity"):
            store.append("s", [END], seen=1, about=None)
    assert store.append("s", [END], seen=1, about=None) == 1


@linux
def test_a_claimer_that_is_stopped_in_the_middle_keeps_nobody_waiting_for_long(store: SqlStore) -> None:
    script = (
        "import os, signal, sys\n"
        "from haltune.store import postgres, sql\n"
        "from haltune.store.base import CLAIM, Lease\n"
        "postgres._SESSION = postgres._SESSION.replace('10s', '1s')\n"
        "store, real = postgres.PostgresStore(sys.argv[1]), sql.set_lease\n"
        "def stopped(*arguments):\n"
        "    sql.set_lease = real\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "    return real(*arguments)\n"
        "sql.set_lease = stopped\n"
        "print('opened', flush=True)\n"
        "print(store.claim('s', Lease(CLAIM, 0, 'me', 9.0, 1.0), None), flush=True)\n"
    )
    with running(script, store.address()) as claimer:
        until(lambda: state(claimer.pid) == "T")
        began = time.monotonic()
        assert store.append("s", [END], seen=1, about=0) == 1
        assert time.monotonic() - began < 20.0
        os.kill(claimer.pid, signal.SIGCONT)
        out, _ = claimer.communicate(timeout=30.0)
    assert out == "True\n"  # it claims again
    claim = store.claimed("s")
    assert claim is not None
    assert claim.holder == "me"
