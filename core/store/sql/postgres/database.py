"""Transactions in a PostgreSQL server, which may be away for a while, and ends what takes too long."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from haltune.errors import StoreError

from ..database import Database

T = TypeVar("T")
_LOCK_TIMEOUT = "3s"  # of a server, for one try
_IDLE_TIMEOUT = "10s"  # of a server, for the rest of a transaction that was begun
_CONNECTING = 5  # seconds that a server may take to answer at first
_CONNECTIONS = 8  # of one process, besides one that is kept: each costs the server a process
_BUSY = ("40001", "40P01", "55P03", "57014")  # serialization, deadlock, lock_timeout, statement_timeout
_GONE = frozenset({"OperationalError", "ConnectionTimeout", "AdminShutdown", "CrashShutdown", "CannotConnectNow",
                   "TooManyConnections", "InterfaceError"})  # fmt: skip
_FOR_GOOD = ("authentication", "does not exist", "no password", "no pg_hba", "permission denied")
_KEEPER = """
SELECT a.application_name, a.client_addr, a.pid, a.state, extract(epoch FROM clock_timestamp() - a.state_change)
FROM pg_stat_activity a JOIN pg_locks l ON l.pid = a.pid
WHERE l.relation = 'haltune_studies'::regclass AND l.mode LIKE '%Row%' AND a.pid <> pg_backend_pid()
AND a.wait_event_type IS DISTINCT FROM 'Lock' ORDER BY a.xact_start LIMIT 1
"""


class PostgresDatabase(Database):
    """See Database."""

    def raw(self, c: sa.Connection, work: Callable[[], T]) -> T:
        """`work` on the driver's connection, whose errors become SQLAlchemy's."""
        try:
            return work()
        except self._driver.Error as error:
            closed: bool = c.connection.driver_connection.closed  # type: ignore[union-attr]
            if closed:
                c.invalidate()
            raise DBAPIError(None, None, error, connection_invalidated=closed) from error

    @property
    def _driver(self) -> Any:
        return self.engine.dialect.loaded_dbapi

    def _connecting(self) -> sa.Engine:
        return engine_of(self._address, self._reading)

    @contextmanager
    def _transaction(self, write: bool) -> Iterator[sa.Connection]:
        with self.engine.connect() as c:
            if not write:  # one statement, or a log that only grows: no transaction is needed
                yield c.execution_options(isolation_level="AUTOCOMMIT")
                return
            with c.begin():
                yield c

    def _keeper(self) -> str | None:
        with suppress(Exception), self._transaction(write=False) as c:
            found = c.exec_driver_sql(_KEEPER.replace("%", "%%")).fetchone()
            if found is None:
                return None
            name, address, pid, state, seconds = found
            where = f" at {address}" if address else ""
            return f"{name or 'a session'!s}{where} (process {pid} of the server, {state} for {float(seconds):.0f} s)"
        return None

    def _is_busy(self, error: Exception) -> bool:
        found = error.orig if isinstance(error, DBAPIError) else None
        return (isinstance(found, self._driver.Error) and found.sqlstate in _BUSY) or super()._is_busy(error)

    def _is_away(self, error: Exception) -> bool:
        if not isinstance(error, DBAPIError):
            return False
        lost = error.connection_invalidated or type(error.orig).__name__ in _GONE
        return lost and not any(sign in str(error.orig) for sign in _FOR_GOOD)


def engine_of(address: str, reading: bool = False) -> sa.Engine:
    """An engine of a few connections. reading: it writes nothing at all. Raises StoreError for another driver."""
    engine = sa.create_engine(
        _with_driver(address), connect_args=_timeouts(address), pool_size=1, max_overflow=_CONNECTIONS
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


def _with_driver(address: str) -> sa.URL:
    """postgresql:// as well as postgresql+psycopg://: the one driver that haltune uses."""
    parsed = sa.engine.make_url(address)
    if parsed.drivername not in ("postgresql", "postgresql+psycopg"):
        raise StoreError(f"the driver {parsed.drivername!r}: write 'postgresql+psycopg://...'")
    return parsed.set(drivername="postgresql+psycopg")


def _timeouts(address: str) -> dict[str, Any]:
    """A server that vanished without a word is noticed within half a minute; a URL may say otherwise."""
    usual = {
        "connect_timeout": _CONNECTING, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
        "tcp_user_timeout": 25_000, "application_name": f"haltune {socket.gethostname()} {os.getpid()}"[:63],
    }  # fmt: skip
    given = sa.engine.make_url(address).query
    return {name: value for name, value in usual.items() if name not in given}
