"""Connections to a SQL database: how they are made, and what its errors mean to a user."""

from __future__ import annotations

import os
import socket
import sqlite3
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from haltune._utils.forks import doors
from haltune.errors import InvalidInput, StoreAway, StoreError

from .file import path_of, to_read

BUSY_TIMEOUT = 60.0  # seconds that a transaction waits for another's
_STEP = 0.1  # of it that SQLite waits by itself: it hears no Ctrl-C meanwhile
_LOCK_TIMEOUT = "3s"  # of a server, for one try
_IDLE_TIMEOUT = "10s"  # of a server, for the rest of a transaction that was begun
_CONNECTING = 5  # seconds that a server may take to answer at first
_CONNECTIONS = 8  # of one process, besides one that is kept: each costs the server a process


def make_engine(url: str, reading: bool = False) -> sa.Engine:
    """An engine whose SQLite transactions take the write lock at once, in WAL mode. reading: it writes nothing at all.

    Raises StoreError for other databases.
    """
    backend = sa.engine.make_url(url).get_backend_name()
    if backend == "sqlite":
        return _of_sqlite(url, reading)
    if backend != "postgresql":
        raise StoreError(
            f"a study is kept in SQLite or PostgreSQL, not in {backend}: 'sqlite:///search.db', or "
            "'postgresql+psycopg://user:password@host/database'"
        )
    return _of_postgres(url, reading)


def shown(url: str) -> str:
    """The URL without its password. Raises InvalidInput for a SQLite database in memory."""
    parsed = sa.engine.make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise InvalidInput(
            f"store={url!r} is in memory, where each thread would see another database: "
            "write store=None to keep the study in memory, or name a file, 'sqlite:///search.db'"
        )
    return parsed.render_as_string(hide_password=True) if parsed.password else url


def _with_driver(url: str) -> sa.URL:
    """postgresql:// as well as postgresql+psycopg://: the one driver that haltune uses."""
    parsed = sa.engine.make_url(url)
    if parsed.drivername not in ("postgresql", "postgresql+psycopg"):
        raise StoreError(f"the driver {parsed.drivername!r}: write 'postgresql+psycopg://...'")
    return parsed.set(drivername="postgresql+psycopg")


def _of_postgres(url: str, reading: bool) -> sa.Engine:
    engine = sa.create_engine(
        _with_driver(url), connect_args=_patience(url), pool_size=1, max_overflow=_CONNECTIONS
    )

    @sa.event.listens_for(engine, "connect")
    def _connect(dbapi: Any, _: Any) -> None:
        # the server itself ends the transaction of a process that is stopped within it: all others wait for it
        dbapi.autocommit = True
        dbapi.execute(
            f"SET lock_timeout = '{_LOCK_TIMEOUT}'; SET idle_in_transaction_session_timeout = '{_IDLE_TIMEOUT}'"
        )
        if reading:
            dbapi.execute("SET default_transaction_read_only = on")
        dbapi.autocommit = False

    return engine


def _patience(url: str) -> dict[str, Any]:
    """A server that vanished without a word is noticed within half a minute; a URL may say otherwise."""
    patience = {
        "connect_timeout": _CONNECTING, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
        "tcp_user_timeout": 25_000, "application_name": f"haltune {socket.gethostname()} {os.getpid()}"[:63],
    }  # fmt: skip
    given = sa.engine.make_url(url).query
    return {name: value for name, value in patience.items() if name not in given}


def _of_sqlite(url: str, reading: bool) -> sa.Engine:
    options: Any = {"timeout": _STEP, "check_same_thread": False}
    if reading:  # looked at anew by each connection: a search may begin or end meanwhile
        path = path_of(sa.engine.make_url(url).database or "")
        engine = sa.create_engine(
            url, poolclass=sa.NullPool, creator=lambda: sqlite3.connect(to_read(path), uri=True, **options)
        )
    else:
        engine = sa.create_engine(url, connect_args=options)

    @sa.event.listens_for(engine, "connect")
    def _connect(dbapi: Any, _: Any) -> None:
        dbapi.isolation_level = None  # SQLAlchemy begins transactions, not the driver
        if not reading:
            cursor = dbapi.cursor()
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=NORMAL")
            cursor.execute("PRAGMA wal_autocheckpoint=0")  # see journal
            cursor.close()

    @sa.event.listens_for(engine, "begin")
    def _begin(c: sa.Connection) -> None:
        # a transaction that reads first and writes later fails at once when another wrote in between
        write = c.get_execution_options().get("haltune_write", False)
        c.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    doors.connections.add(engine)
    return engine


def within(engine: sa.Engine) -> AbstractContextManager[None]:
    """Where a transaction is made: no fork finds SQLite in the middle of one. Raises StoreError where one has."""
    return doors.within() if engine.dialect.name == "sqlite" else nullcontext()


# -- errors -----------------------------------------------------------------------------------

_BUSY = ("database is locked", "database table is locked", "already exists", "pg_type_typname_nsp_index")
_BUSY_STATES = (
    "40001",
    "40P01",
    "55P03",
    "57014",
)  # serialization, deadlock, lock_timeout, statement_timeout
_ADVICE = {
    "disk is full": "make room, then go on: nothing recorded is lost",
    "No space left": "make room on the server's disk, then go on: nothing recorded is lost",
    "disk I/O error": "is the disk full or gone? Nothing recorded is lost",
    "readonly": "haltune needs to write there; check the permissions of the file and its folder",
    "read-only": "haltune needs to write there; is the server a standby, or the user allowed to read only?",
    "permission denied": "haltune needs to create its tables and to write there",
    "unable to open": "does the folder exist, and may this user write there?",
    "not a database": "the file was written by something else; give the study a file of its own",
    "codec can't decode": "the file is damaged; bring back a copy of it (with its -wal file), or begin another",
    "malformed": "the file is damaged; bring back a copy of it (with its -wal file), or begin another",
    "statement timeout": "the server, or a setting of its user or database, allows a statement less time than it takes",
    '"checksum"': "let the owner of the tables open a study once with this version, which adds a column",
}
_LOCKED = "another process keeps it locked; is the file on a network drive? SQLite needs a local one"
_LOCKS = ("database is locked", "database table is locked", "lock timeout")
_FOR_GOOD = ("authentication", "does not exist", "no password", "no pg_hba", "permission denied")


def is_busy(error: Exception) -> bool:
    """True for what another process in the way causes: the transaction may be tried again."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) in _BUSY_STATES or _says(error, _BUSY)


def is_locked(error: Exception) -> bool:
    """True when another transaction is in the way."""
    return _says(error, _LOCKS)


def _says(error: Exception, signs: tuple[str, ...]) -> bool:
    return any(sign in str(getattr(error, "orig", None) or error) for sign in signs)


def is_away(error: Exception) -> bool:
    """True when a server cannot be reached, or ended the connection."""
    if not isinstance(error, DBAPIError) or "sqlite" in type(error.orig).__module__:
        return False
    lost = error.connection_invalidated or type(error.orig).__name__ in _GONE
    return lost and not any(sign in str(error.orig) for sign in _FOR_GOOD)


_GONE = frozenset({"OperationalError", "ConnectionTimeout", "AdminShutdown", "CrashShutdown", "CannotConnectNow",
                   "TooManyConnections", "InterfaceError"})  # fmt: skip


def explained(url: str, error: Exception, keeper: str | None = None) -> StoreError:
    """The error for a user: what the database said, and what to do. keeper: who keeps it locked, if anyone knows."""
    text = str(getattr(error, "orig", None) or error).strip()
    if is_away(error):
        return StoreAway(f"{url}: {text}; does the server run, and can this machine reach it?")
    advice = [advice for sign, advice in _ADVICE.items() if sign in text]
    if is_locked(error):
        advice = [_LOCKED if keeper is None else f"{keeper} keeps it locked"]
    return StoreError(f"{url}: " + "; ".join([text, *advice[:1]]))
