"""Event log in a PostgreSQL server, for workers on many machines.

An append is one round trip: it locks the study's row, compares, inserts and commits. If that transaction waited for the
disk while it locks the row, a study could log only one append per flush. Therefore it commits without waiting, and a
second transaction in the same message, without a lock, waits for the disk: one flush serves many workers. An append is
acknowledged when both are done. Other workers may read it some milliseconds earlier. If a crash of the server loses
such an event, `Replica` detects it and reads the log again.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Generator, Sequence
from functools import cache
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from haltune._utils.signals import interrupts, undisturbed
from haltune.log.events import MOVES, Event

from . import rows, sql
from .base import CLAIM, LAST, Conflict, Lease, Release, check_new, seconds_left

T = TypeVar("T")

# -- statements -----------------------------------------------------------------------------

_COLUMNS = [c for c in rows.events.columns if c.name not in ("study", "seq")]
_ARRAYS = {"INTEGER": "int[]", "BIGINT": "bigint[]", "TEXT": "text[]", "DOUBLE": "float8[]"}
_NAMES = ", ".join(f'"{c.name}"' for c in _COLUMNS)
_UNNEST = (  # rows numbered from 1, from one array per column
    "unnest(" + ", ".join(f"%(e_{c.name})s::{_ARRAYS[str(c.type)]}" for c in _COLUMNS)
    + f") WITH ORDINALITY AS u({_NAMES}, n)"
)  # fmt: skip
_TOUCHED = "e.trial = %(about)s"
_MOVED = "e.kind IN (" + ", ".join(f"'{k.kind}'" for k in MOVES) + ")"
_THERE = (  # check events known to the caller: the log may have been deleted and created again
    "NOT EXISTS (SELECT 1 FROM unnest(%(known)s::int[], %(checksums)s::bigint[]) AS k(seq, checksum) "
    "LEFT JOIN haltune_events e ON e.study = s.id AND e.seq = k.seq "
    "WHERE e.seq IS NULL OR e.checksum IS DISTINCT FROM k.checksum)"
)
_FREE = (
    "SELECT s.id, coalesce((SELECT max(e.seq) + 1 FROM haltune_events e WHERE e.study = s.id), 0) AS head "
    "FROM haltune_studies s WHERE s.name = %(name)s AND NOT EXISTS (SELECT 1 FROM haltune_events e "
    "WHERE e.study = s.id AND e.seq >= %(seen)s AND {matters}) AND " + _THERE
)
_ADDED = (
    f"INSERT INTO haltune_events (study, seq, {_NAMES}) "
    f"SELECT id, head + n - 1, {', '.join(f'u.{c.name}' for c in _COLUMNS)} FROM free, {_UNNEST}"
)
_METRICS = (
    "INSERT INTO haltune_metrics (study, seq, name, value) SELECT id, head + u.nth, u.name, u.value FROM free, "
    "unnest(%(nth)s::int[], %(names)s::text[], %(values)s::float8[]) AS u(nth, name, value)"
)
_LEASE = (
    "INSERT INTO haltune_leases (study, trial, attempt, holder, expires, renewed) SELECT id, %(l_trial)s, "
    "%(l_attempt)s, %(l_holder)s, %(l_expires)s, %(l_renewed)s FROM free ON CONFLICT (study, trial) DO UPDATE SET "
    "attempt = excluded.attempt, holder = excluded.holder, expires = excluded.expires, renewed = excluded.renewed"
)
_DROP = "DELETE FROM haltune_leases l USING free WHERE l.study = free.id AND l.trial = %(l_trial)s"
_UNCLAIM = f"DELETE FROM haltune_leases l USING free WHERE l.study = free.id AND l.trial = {CLAIM}"

_NO_WAIT = "SET LOCAL synchronous_commit TO off"
_LOCK = f"SELECT {_THERE} FROM haltune_studies s WHERE s.name = %(name)s FOR UPDATE"
_FLUSH = "SELECT pg_logical_emit_message(true, 'haltune', '')"  # the smallest commit that needs a flush
_CLOCK = "SELECT extract(epoch FROM clock_timestamp())::float8"


def statement(
    events: Sequence[Event], name: str, seen: int, about: int | None, lease: Lease | Release | None
) -> tuple[str, dict[str, Any]]:
    added = [rows.row(event) for event in events]
    values: dict[str, Any] = {f"e_{c.name}": [row[c.name] for row in added] for c in _COLUMNS}
    values |= {"name": name, "seen": seen, "about": about}
    parts = {"free": _FREE.format(matters=_MOVED if about is None else _TOUCHED), "added": _ADDED}
    if scalars := rows.metric_rows(events):
        parts["measured"] = _METRICS
        values["nth"] = [row["seq"] for row in scalars]
        values["names"] = [row["name"] for row in scalars]
        values["values"] = [row["value"] for row in scalars]
    if lease is not None:
        parts["leased"] = _DROP if isinstance(lease, Release) else _LEASE
        values |= {f"l_{key}": getattr(lease, key) for key in lease.__slots__}
    if about is None:
        parts["unclaimed"] = _UNCLAIM
    whole = ", ".join(f"{key} AS ({part})" for key, part in parts.items())
    return f"WITH {whole} SELECT head FROM free", values


# -- connections ----------------------------------------------------------------------------

_CONNECTIONS = 8  # per process, in addition to one that stays open: each is a process of the server
_POOL_TIMEOUT = 0.1  # seconds that a thread waits for a free connection before it tries again
_SESSION = (  # settings that haltune needs, whatever the server, the database and the role set
    "SET client_encoding = 'UTF8'; SET extra_float_digits = 3; SET default_transaction_isolation = 'read committed'; "
    # no wait is endless, and a stopped process does not keep its transaction
    "SET lock_timeout = '3s'; SET statement_timeout = '60s'; SET idle_in_transaction_session_timeout = '10s'"
)
_CONNECTING, _LEAST_CONNECTING = (5, 2)  # seconds for a server to accept a connection; the driver's minimum
_ANSWER, _LEAST_ANSWER = (30.0, 5.0)  # seconds for an answer, locks included; the minimum near the end of `patience`
_USUAL = {  # a lost server is detected within half a minute; a URL may change these settings
    "connect_timeout": _CONNECTING, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}  # fmt: skip
_BUSY = ("40001", "40P01", "55P03", "57014")  # serialization, deadlock, lock_timeout, canceled
_GONE = {"OperationalError", "ConnectionTimeout", "AdminShutdown", "CrashShutdown", "CannotConnectNow",
         "TooManyConnections", "InterfaceError"}  # fmt: skip
_FOR_GOOD = ("authentication", "does not exist", "no password", "no pg_hba", "permission denied", "invalid ")


@cache
def _impatient(driver: Any) -> Any:
    """Return the driver's connection class, closed on Ctrl-C and if the server does not answer in time.

    If a server stops, or a proxy loses its packets, the connection stays open. The driver would wait forever, and for
    10 s more after Ctrl-C, because it asks the same server to cancel.
    """

    class Impatient(driver.Connection):  # type: ignore[misc]
        def wait(self, gen: Generator[Any, Any, T], *arguments: Any, **named: Any) -> T:
            try:
                left = seconds_left() - _LEAST_CONNECTING  # one more try follows
                limit = min(_ANSWER, max(_LEAST_ANSWER, left))
                found: T = driver.waiting.wait(_in_time(gen, limit), self.pgconn.socket, *arguments, **named)
                return found
            except TimeoutError:
                self.pgconn.finish()
                raise driver.OperationalError(f"the server did not answer for {limit:.0f} s") from None
            except BaseException as error:
                # an error of the driver without a code of the server: this connection receives nothing more
                own = type(error) is driver.OperationalError and getattr(error, "sqlstate", None) is None
                if own or interrupts(error):
                    self.pgconn.finish()
                raise

    return Impatient


def _in_time(gen: Generator[Any, Any, T], seconds: float) -> Generator[Any, Any, T]:
    """Run `gen`, which the driver calls every 0.1 s while nothing arrives. Raises TimeoutError."""
    end = time.monotonic() + seconds
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if not ready and time.monotonic() > end:
                raise TimeoutError
            wanted = gen.send(ready)
    except StopIteration as done:
        found: T = done.value
        return found


class ServerClock:
    """The server's clock, shared by all workers: their machines' clocks may differ by minutes.

    It asks the server once every `every` seconds. In between, and while the server is unavailable, this machine's
    monotonic clock counts.
    """

    def __init__(
        self, ask: Callable[[], float], every: float = 60.0, tick: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._every, self._tick = ask, every, tick
        self._ahead: float | None = None  # seconds
        self._asked = 0.0

    def __call__(self) -> float:
        """Return seconds since the epoch. Raises the error of `ask` if the server has never answered."""
        before = self._tick()
        if self._ahead is None or before - self._asked > self._every:
            try:
                there = self._ask()
            except Exception:
                if self._ahead is None:
                    raise
            else:
                self._ahead = there - (before + self._tick()) / 2.0
            self._asked = self._tick()
        return self._tick() + self._ahead


def _interruption(error: BaseException, around: BaseException | None) -> BaseException | None:
    """Return Ctrl-C, also if the driver failed to clean up after it and raised its own error instead.

    around: an exception that was handled before, which does not count.
    """
    found: BaseException | None = error
    while found is not None and found is not around and not interrupts(found):
        found = found.__context__
    return None if found is around else found


class PostgresStore(sql.SqlStore):
    """Event log in a PostgreSQL server.

    Args:
        url: "postgresql://user:password@host/database".
        clock: Returns seconds since the epoch. Default: the server's clock.
        reading: If True, nothing is written, created or locked. Default: False.

    Raises:
        StoreError: If the database cannot be opened; StoreAway if the server cannot be reached.
    """

    _page_size = 1500  # each page costs two round trips
    _hurry = _NO_WAIT

    def __init__(self, url: str, clock: Callable[[], float] | None = None, *, reading: bool = False) -> None:
        servers = ServerClock(lambda: self._run(self._time, write=False))
        super().__init__(url, clock or servers, reading)

    def append(
        self, name: str, events: Sequence[Event], *, seen: int, about: int | None, lease: Lease | Release | None = None
    ) -> int:
        check_new(events, lease)
        outages = self.outages

        def work(c: sa.Connection) -> int | None:
            if events and self.outages != outages and seen < LAST:
                # the first try had no answer: check whether it was stored
                return self._stored(c, name, events, seen)
            before, last = self.outages, self._known(name)
            known = [mark for mark in (self._first.get(name), last) if mark is not None]
            there, position, added = self._append(c, name, events, seen, about, lease, known)
            if there is None and not known:
                raise self._unknown(name)
            if not there:
                raise self._gone(known[-1], name)
            if position is not None and added is not None:
                self._saw(name, added, before)
            return position

        position = self._run(work, write=False)  # a transaction of its own
        if position is None:
            raise Conflict
        return position

    def _append(
        self, c: sa.Connection, name: str, events: Sequence[Event], seen: int, about: int | None,
        lease: Lease | Release | None, known: Sequence[sql.Mark],
    ) -> tuple[bool | None, int | None, sql.Mark | None]:  # fmt: skip
        """Return whether all `known` exist (None: no study), the first position (None: conflict), and the last mark.

        The mark of no event is None.
        """
        raw: Any = c.connection.driver_connection
        asked, values = statement(events, name, seen, about, lease)
        values |= {"known": [seq for seq, _ in known], "checksums": [checksum for _, checksum in known]}
        try:
            with raw.pipeline():
                raw.execute("BEGIN ISOLATION LEVEL READ COMMITTED")
                raw.execute(_NO_WAIT)
                locked = raw.execute(_LOCK, values)
                added = raw.execute(asked, values)  # sees commits made while it waited for the lock
                raw.execute("COMMIT")
                raw.execute(_FLUSH)
            row, there = added.fetchone(), locked.fetchone()
        except self._driver.Error as error:
            if not raw.closed:
                raw.rollback()
            else:
                c.invalidate()
            raise DBAPIError(None, None, error, connection_invalidated=raw.closed) from error
        position = None if row is None else int(row[0])
        last = ((position or 0) + len(events) - 1, values["e_checksum"][-1]) if events else None
        return (None if there is None else there[0]), position, last

    def _stored(self, c: sa.Connection, name: str, events: Sequence[Event], seen: int) -> int | None:
        """Return the position of events whose append was not acknowledged; None if they are not in the log."""
        c.exec_driver_sql(_FLUSH)
        first = rows.row(events[0])
        while page := self._page(c, name, seen, LAST):
            for n, event in enumerate(page):
                if event.kind == events[0].kind and rows.row(event) == first:
                    return seen + n
            seen += len(page)
        return None

    @staticmethod
    def _time(c: sa.Connection) -> float:
        return float(c.exec_driver_sql(_CLOCK).scalar_one())

    @property
    def _driver(self) -> Any:
        return self.engine.dialect.loaded_dbapi

    def _new_engine(self) -> sa.Engine:
        def connect() -> Any:
            given = driver.conninfo.conninfo_to_dict(address)
            name = f"haltune {socket.gethostname()} {os.getpid()}"[:63]
            with undisturbed.heard:
                options = {**_USUAL, "application_name": name, **given}
                if (left := seconds_left()) < _CONNECTING:
                    options["connect_timeout"] = max(
                        _LEAST_CONNECTING, min(int(options["connect_timeout"]), round(left))
                    )
                c = _impatient(driver).connect(**options, autocommit=True)
                try:
                    c.execute(_SESSION + "; SET default_transaction_read_only = on" * self._reading)
                    c.autocommit = False
                except BaseException:
                    c.close()
                    raise
                return c

        scheme, _, rest = self._address.partition("://")
        address = f"{scheme.partition('+')[0]}://{rest}"
        engine = sa.create_engine(
            "postgresql+psycopg://", creator=connect, pool_size=1, max_overflow=_CONNECTIONS,
            pool_timeout=_POOL_TIMEOUT,
        )  # fmt: skip
        driver: Any = engine.dialect.loaded_dbapi
        return engine

    def _transact(self, work: Callable[[sa.Connection], T], write: bool) -> T:
        """See SqlStore. Ctrl-C ends the wait for the server and closes the connection.

        Signals are deferred while SQLAlchemy's pool gives or takes a connection, because it would lose the connection.
        """
        around = sys.exc_info()[1]
        with undisturbed, self.engine.connect() as c:
            if not write:  # one statement, or a log that only grows, needs no transaction
                c.execution_options(isolation_level="AUTOCOMMIT")
            try:
                with undisturbed.heard:
                    found = work(c)
                    if write:
                        c.commit()
                    return found
            except BaseException as error:
                if (interruption := _interruption(error, around)) is not None:
                    c.invalidate()
                    raise interruption from None
                raise

    def _is_busy(self, error: Exception) -> bool:
        found = error.orig if isinstance(error, DBAPIError) else None
        busy = isinstance(found, self._driver.Error) and found.sqlstate in _BUSY
        return busy or isinstance(error, PoolTimeout) or super()._is_busy(error)

    def _is_away(self, error: Exception) -> bool:
        if not isinstance(error, DBAPIError):
            return False
        lost = error.connection_invalidated or type(error.orig).__name__ in _GONE
        return lost and not any(sign in str(error.orig) for sign in _FOR_GOOD)
