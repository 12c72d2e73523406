"""Transactions in a PostgreSQL server, which may be away for a while, and ends what takes too long."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from haltune._utils import retry
from haltune._utils.signals import interrupts, undisturbed
from haltune.errors import StoreError

from ..database import Database

T = TypeVar("T")
_LOCK_TIMEOUT = (  # 3 s for one try, and less than statement_timeout: to wait for a lock is no reason to fail
    "SELECT set_config('lock_timeout', greatest(1, least(3000, nullif(500 * extract(epoch FROM "
    "current_setting('statement_timeout')::interval), 0)::int))::text, false)"
)
_IDLE_TIMEOUT = "10s"  # of a server, for the rest of a transaction that was begun
_CONNECTING = 5  # seconds that a server may take to answer at first
_POOL_TIMEOUT = 0.1  # seconds that a thread waits for one of its connections before it asks again
_CONNECTIONS = 8  # of one process, besides one that is kept: each costs the server a process
_ANSWER = 30.0  # seconds that a server may take to answer, locks included
_SESSION = (  # what haltune counts on, whatever the server, the database or the role has set
    "SET client_encoding = 'UTF8'; SET extra_float_digits = 3; SET standard_conforming_strings = on; "
    "SET default_transaction_isolation = 'read committed'"
)
_BUSY = ("40001", "40P01", "55P03", "57014")  # serialization, deadlock, lock_timeout, canceled
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
    """A database on a PostgreSQL server."""

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

    def _transact(self, work: Callable[[sa.Connection], T], write: bool) -> T:
        """See Database. Ctrl-C is heard while the server is waited for, and costs the connection, then of no use.

        Taking one and giving it back is whole: half-way there SQLAlchemy's pool would lose it, or lock out the others.
        """
        around = sys.exc_info()[1]
        with undisturbed, self.engine.connect() as c:
            if not write:  # one statement, or a log that only grows: no transaction is needed
                c.execution_options(isolation_level="AUTOCOMMIT")
            try:
                with undisturbed.heard:
                    found = work(c)
                    if (
                        write
                    ):  # by the driver: SQLAlchemy's own, ended half-way, raises an AssertionError instead
                        self.raw(c, c.connection.driver_connection.commit)  # type: ignore[union-attr]
                    return found
            except BaseException as error:
                if (interruption := _interruption(error, around)) is not None:
                    c.invalidate()
                    raise interruption from None
                raise

    def _keeper(self) -> str | None:
        with suppress(Exception):
            found = self._transact(
                lambda c: c.exec_driver_sql(_KEEPER.replace("%", "%%")).fetchone(), write=False
            )
            if found is None:
                return None
            name, address, pid, state, seconds = found
            where = f" at {address}" if address else ""
            return f"{name or 'a session'!s}{where} (process {pid} of the server, {state} for {float(seconds):.0f} s)"
        return None

    def _is_busy(self, error: Exception) -> bool:
        found = error.orig if isinstance(error, DBAPIError) else None
        if (
            isinstance(found, self._driver.Error)
            and "statement timeout" not in str(found)
            and found.sqlstate in _BUSY
        ):
            return True
        return isinstance(error, PoolTimeout) or super()._is_busy(error)

    def _is_away(self, error: Exception) -> bool:
        if not isinstance(error, DBAPIError):
            return False
        lost = error.connection_invalidated or type(error.orig).__name__ in _GONE
        return lost and not any(sign in str(error.orig) for sign in _FOR_GOOD)


def _interruption(error: BaseException, around: BaseException | None) -> BaseException | None:
    """Ctrl-C, also where the driver, which could not tidy up after it, raised its own error instead.

    around: what was handled before; it is none of this one's.
    """
    found: BaseException | None = error
    while found is not None and found is not around:
        if interrupts(found):
            return found
        found = found.__context__
    return None


def engine_of(address: str, reading: bool = False) -> sa.Engine:
    """An engine of a few connections. reading: it writes nothing at all. Raises StoreError for another driver."""
    engine = sa.create_engine(
        _with_driver(address), connect_args=_timeouts(address),
        pool_size=1, max_overflow=_CONNECTIONS, pool_timeout=_POOL_TIMEOUT,
    )  # fmt: skip

    @sa.event.listens_for(engine, "do_connect")
    def _connect(dialect: sa.Dialect, _: Any, arguments: Any, named: Any) -> Any:
        with undisturbed.heard:
            if (left := retry.left()) < _ANSWER:
                named = named | {"connect_timeout": max(2, round(min(left, float(named["connect_timeout"]))))}
            driver: Any = dialect.loaded_dbapi
            dbapi: Any = _patient(driver).connect(*arguments, **named)
            try:
                # the server itself ends the transaction of a process that is stopped within it: all others wait for it
                dbapi.autocommit = True
                dbapi.execute(
                    f"{_LOCK_TIMEOUT}; {_SESSION}; "
                    f"SET idle_in_transaction_session_timeout = '{_IDLE_TIMEOUT}'"
                )
                if reading:
                    dbapi.execute("SET default_transaction_read_only = on")
                dbapi.autocommit = False
            except BaseException:
                dbapi.close()
                raise
            return dbapi

    return engine


@cache
def _patient(driver: Any) -> Any:
    """The driver's class of connections, which end by themselves when the server does not answer in time."""

    class Patient(driver.Connection):  # type: ignore[misc]
        def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **named: Any) -> T:
            limit = min(_ANSWER, max(_CONNECTING, retry.left() / 2.0))  # and another connection after
            try:
                found: T = driver.waiting.wait(_in_time(gen, limit), self.pgconn.socket, *arguments, **named)
                return found
            except TimeoutError:
                self.pgconn.finish()
                raise driver.OperationalError(f"the server has not answered for {limit:.0f} s") from None
            except BaseException as error:
                if interrupts(
                    error
                ):  # the driver would ask the server to cancel, and wait 5 s for its answer
                    self.pgconn.finish()
                raise

    return Patient


def _in_time(gen: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    """The driver's steps, which hear every tenth of a second that nothing came. Raises TimeoutError."""
    end = time.monotonic() + seconds
    try:
        asked = next(gen)
        while True:
            ready = yield asked
            if not ready and time.monotonic() > end:
                raise TimeoutError
            asked = gen.send(ready)
    except StopIteration as done:
        found: T = done.value
        return found


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
