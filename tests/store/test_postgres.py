"""A server: databases made again under a worker, sessions with other settings, silence, and secrets in URLs."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from postgres import Server
from whims import PROBLEM, Whims

from haltune import Budget, Storage, Study, Trial, load_study
from haltune.errors import StoreAway, StoreError, StudyMismatch
from haltune.log.events import Reported
from haltune.store.open import open_store
from haltune.store.sql import shown

psycopg = pytest.importorskip("psycopg")


def opened(store: Any, **more: Any) -> Study:
    return Study(PROBLEM, Whims(), store, **{"seed": 1, "verbose": 0, "budget": Budget(trials=9)} | more)


def begun(store: Any) -> tuple[Study, Trial]:
    study = opened(store)
    trial = study.ask()
    assert isinstance(trial, Trial)
    trial.report(0.5)
    return study, trial


def sql(url: str, *statements: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as c:
        for statement in statements:
            c.exec_driver_sql(statement)
    engine.dispose()


def reports(store: Any) -> list[float]:
    return [e.value for e in open_store(store).read("study") if isinstance(e, Reported)]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/a.db"
    found: str = request.getfixturevalue("postgres_url")
    return found


def test_a_log_that_was_cut_under_a_worker_is_noticed_and_not_written_to(url: str) -> None:
    study, trial = begun(url)
    sql(url, "DELETE FROM haltune_events WHERE seq > 0")
    for use in (lambda: trial.report(0.6), study.ask, lambda: study.trials and study.ask()):
        with pytest.raises(StoreError, match=" is missing: while this program used the study"):
            use()
    assert len(list(open_store(url).read("study"))) == 1


def test_a_database_dropped_and_made_again_is_noticed_by_who_reports_to_the_old_one(
    postgres_server: Server, postgres_url: str
) -> None:
    study, trial = begun(postgres_url)
    name = postgres_url.rpartition("/")[2]
    with psycopg.connect(postgres_server.url("postgres", driver=""), autocommit=True) as admin:
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        admin.execute(f"CREATE DATABASE {name}")
    with pytest.raises(StoreError, match="A table of haltune was dropped"):
        trial.report(0.6)
    begun(postgres_url)
    for use in (lambda: trial.report(0.6), study.ask):
        with pytest.raises(StudyMismatch, match=r"Another program created .* again .* Open it again"):
            use()
    assert reports(postgres_url) == [0.5]


@pytest.mark.parametrize(
    "setting",
    [
        "extra_float_digits = -15", "client_encoding = 'LATIN1'", "statement_timeout = '1ms'",
    ],
)  # fmt: skip
def test_a_setting_of_the_database_changes_no_number_and_no_name(postgres_url: str, setting: str) -> None:
    sql(postgres_url, f"ALTER DATABASE {postgres_url.rpartition('/')[2]} SET {setting}")
    _, trial = begun(postgres_url)
    trial.report(1 / 3, metrics={"é😀\\'": 2 / 3})
    assert load_study(postgres_url).trials[0].values.tolist() == [0.5, 1 / 3]
    assert load_study(postgres_url).trials[0].metrics["é😀\\'"][-1] == 2 / 3


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_a_pooler_works_by_session_and_by_transaction_says_what_to_set(
    postgres_server: Server, postgres_url: str, tmp_path: Path, mode: str
) -> None:
    if (program := shutil.which("pgbouncer")) is None:
        pytest.skip("pgbouncer is not installed")
    name = postgres_url.rpartition("/")[2]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "pooler.ini").write_text(
        f"[databases]\n{name} = host=127.0.0.1 port={postgres_server.port} user=haltune\n[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nauth_type = any\npool_mode = {mode}\nunix_socket_dir =\n"
    )
    command = [program, *(["-u", "postgres"] if os.getuid() == 0 else []), "pooler.ini"]
    for folder in (tmp_path, *tmp_path.parents[:2]):  # it reads as another user
        folder.chmod(0o755)
    pooler = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        pooled = f"postgresql://haltune@127.0.0.1:{port}/{name}"
        listens = False
        while not listens and pooler.poll() is None:
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1.0).close()
                listens = True
        studies = [opened(Storage(pooled, patience=60.0)) for _ in range(2)]

        def both() -> None:
            for _ in range(12):
                for study in studies:
                    trial = study.ask()
                    assert isinstance(trial, Trial)
                    trial.report(0.5)
                    trial.finish()

        for study in studies:
            study.budget = Budget(trials=99)
        if mode == "session":
            both()
            assert reports(postgres_url) == [0.5] * 24
        else:
            with pytest.raises(StoreError, match=r"prepared statement .* set pool_mode = session"):
                both()
        for study in studies:
            study.store.close()
    finally:
        pooler.terminate()
        pooler.wait()


# -- silence ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_port_that_never_answers_is_waited_for_no_longer_than_patience_says() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(StoreAway):
            opened(Storage(f"postgresql://me@127.0.0.1:{silent.getsockname()[1]}/x", patience=1.0))
        assert time.monotonic() - began < 20.0  # it tried 40 times as long before; a loaded machine


def test_ctrl_c_ends_the_wait_for_a_lock_and_the_study_continues(postgres_url: str) -> None:
    study, trial = begun(postgres_url)
    plain = postgres_url.replace("+psycopg", "")
    with psycopg.connect(plain) as other, psycopg.connect(plain, autocommit=True) as admin:
        other.execute("SELECT 1 FROM haltune_studies FOR UPDATE")
        waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"

        def interrupt() -> None:
            while not admin.execute(waits).fetchall():
                pass
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt, daemon=True)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            trial.report(0.6)
        thread.join()
    trial.report(0.7)
    assert reports(postgres_url) in ([0.5, 0.7], [0.5, 0.6, 0.7])
    study.store.close()


# -- URLs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me:s3cret@h/x", "postgresql://me:***@h/x"),
        ("postgresql://me:s3cret@h/x?sslpassword=s3cret&a=b", "postgresql://me:***@h/x?sslpassword=***&a=b"),
        ("postgresql://me:s3@c/ret@h:port/x?password=s3cret", "postgresql://me:***@h:port/x?password=***"),
        ("sqlite:///a b.db", "sqlite:///a b.db"), ("postgresql://me@h/x?host=%2Fvar", "postgresql://me@h/x?host=%2Fvar"),
    ],
)  # fmt: skip
def test_a_url_for_people_has_no_secret(url: str, expected: str) -> None:
    assert shown(url) == expected


def test_a_password_in_the_query_opens_the_store_and_is_shown_nowhere(postgres_url: str) -> None:
    study, _ = begun(f"{postgres_url}?password=s3cret")
    assert "s3cret" not in repr(study) + study.store.url
    assert "s3cret" in study.store.address()
    with pytest.raises(StoreError) as caught:
        load_study(f"{postgres_url}_?password=s3cret")
    assert "s3cret" not in str(caught.value)
