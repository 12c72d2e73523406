"""A SQL database as a store uses it: short transactions, tried again while another is in the way.

No wait is for ever, and Ctrl-C ends each: SQLite is asked again and again by Python, for it hears nothing while it
waits by itself, and a server ends what takes too long. Who is in the way is named.
"""

from __future__ import annotations

import logging
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from haltune.errors import StoreError

from . import engine as sqlengine
from . import locks, postgres
from .engine import explained, is_away, is_busy, is_locked, make_engine, shown, within
from .file import File
from .journal import mark

T = TypeVar("T")
_CONNECTS = 3  # times that a connection may be lost before a server is taken to be away
_PAUSE = 0.05  # seconds between tries, at most
_SILENCE = 5.0  # seconds of waiting before a word is said of it

_log = logging.getLogger("haltune")


class Database:
    """Transactions in one database, for many threads and processes at once.

    Raises StoreError when the address is none.
    """

    def __init__(self, address: str, reading: bool = False) -> None:
        self.outages = 0  # connections that a server has ended: what was read before may be lost
        self._pid, self._address, self._reading = os.getpid(), address, reading
        try:
            self.url = shown(address)
            self.engine = make_engine(address, reading)
        except (SQLAlchemyError, ImportError) as error:
            where = getattr(self, "url", address)  # without its password, once it could be read
            raise StoreError(
                f"cannot open {where}: {error}; write a URL such as 'sqlite:///search.db', and install the "
                "driver that it names"
            ) from error
        self.on_server = self.engine.dialect.name == "postgresql"
        self.file = File(self.engine, self.url, not reading)

    def run(self, work: Callable[[sa.Connection], T], write: bool = True) -> T:
        """`work` in one transaction, tried again while the database is busy, for BUSY_TIMEOUT seconds.

        Raises StoreError, which names who keeps it locked where that can be known; StoreAway for a server out of reach.
        """
        self._at_home()
        began, lost, told = time.monotonic(), 0, False
        while True:
            try:
                with self._transaction(write) as c:
                    done = work(c)
                self.file.used()
            except (
                SQLAlchemyError,
                OSError,
                UnicodeError,
            ) as error:  # UnicodeError: a text of a damaged file
                away, waited = is_away(error), time.monotonic() - began
                self.outages += away
                lost += away
                again = is_busy(error) or (
                    away and lost < _CONNECTS
                )  # one that was started anew ends connections
                if not again or waited >= sqlengine.BUSY_TIMEOUT:
                    raise explained(self.url, error, self._keeper() if is_locked(error) else None) from error
                if waited > _SILENCE and not told:
                    told = True
                    _log.warning("waiting: %s", explained(self.url, error, self._keeper()))
            else:
                if write:
                    self._keep_journal()
                return done
            time.sleep(random.uniform(0.0, _PAUSE))

    def ends_at(self, study: int, position: int) -> bool:
        """True when a log in SQLite surely has nothing from `position` on."""
        if os.getpid() != self._pid or not self.file.whole():
            return False  # the query says what is wrong
        return self.file.ends_at(study, position)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _keep_journal(self) -> None:
        """After a transaction that wrote, which is recorded whatever becomes of this."""
        if self.file.journal is None:
            return
        with self.file.journal.due() as due, suppress(StoreError, SQLAlchemyError, sqlite3.Error, OSError):
            if due:
                self.run(lambda c: mark(c, apart=True))
                self.file.journal.checkpoint()
                self.run(lambda c: mark(c, apart=False))

    def _at_home(self) -> None:
        if os.getpid() != self._pid:
            # connections do not survive a fork, and another thread may have held the pool
            self.engine = make_engine(self._address, self._reading)
            self.file.now_by(self.engine)
            self._pid = os.getpid()
        self.file.look()

    @contextmanager
    def _transaction(self, write: bool) -> Iterator[sa.Connection]:
        with within(self.engine), self.engine.connect() as c:
            if self.on_server and not write:
                # one statement, or a log that only grows: no transaction is needed
                yield c.execution_options(isolation_level="AUTOCOMMIT")
                return
            if write:
                c.execution_options(haltune_write=True)
            with c.begin():
                yield c

    def _keeper(self) -> str | None:
        """Who keeps the database locked, in words."""
        if not self.on_server:
            return locks.keeper(self.file.path or "")
        with suppress(Exception), self._transaction(write=False) as c:
            return postgres.keeper(c)
        return None

    def raw(self, c: sa.Connection, work: Callable[[], T]) -> T:
        """`work` on the driver's connection, whose errors become SQLAlchemy's."""
        errors: Any = self.engine.dialect.loaded_dbapi
        try:
            return work()
        except errors.Error as error:
            closed: bool = c.connection.driver_connection.closed  # type: ignore[union-attr]
            if closed:
                c.invalidate()
            raise sa.exc.DBAPIError(None, None, error, connection_invalidated=closed) from error
