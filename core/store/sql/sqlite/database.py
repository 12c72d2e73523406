"""Transactions in a SQLite file: each writer takes the lock at once, in WAL mode, and looks at the files before."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from haltune._utils.forks import doors
from haltune.errors import InvalidInput, StoreError

from ..database import Database
from ..errors import is_locked
from . import locks
from .file import File, from_anywhere, path_at, to_read

T = TypeVar("T")
_FAILURES = (StoreError, SQLAlchemyError, sqlite3.Error, OSError)  # of a journal that is looked after
_STEP = 0.1  # seconds of BUSY_TIMEOUT that SQLite waits by itself: it hears no Ctrl-C meanwhile


class SqliteDatabase(Database):
    """Raises StoreError when the address is none, InvalidInput for a database in memory."""

    def __init__(self, address: str, reading: bool = False) -> None:
        super().__init__(address, reading)
        self._address = from_anywhere(address)  # a training may change its folder
        self.file = File(self.engine, self.url, not reading)

    def run(self, work: Callable[[sa.Connection], T], write: bool = True) -> T:
        if write:
            self.keep_journal()
        return super().run(work, write)

    def close(self) -> None:
        with suppress(*_FAILURES):
            if self.file.journal is not None and os.getpid() == self._pid:
                self.file.journal.leave(super().run)
        super().close()

    def keep_journal(self) -> None:
        """Before a transaction that writes. Raises StoreError when the file is locked, as that would."""
        if os.getpid() != self._pid:
            self._at_home()
        if self.file.journal is None or not self.file.journal.is_due():
            return
        try:
            self.file.journal.keep(super().run)
        except _FAILURES as error:  # nothing is lost by it
            if isinstance(error.__cause__, Exception) and is_locked(error.__cause__):
                raise

    def marks(self, study: int, start: int) -> list[tuple[int, int | None]]:
        """See File; none where the query says what is wrong."""
        if os.getpid() != self._pid or not self.file.whole():
            return []
        return self.file.marks(study, start)

    def _connecting(self) -> sa.Engine:
        return engine_of(self._address, self._reading)

    def _transact(self, work: Callable[[sa.Connection], T], write: bool) -> T:
        with doors.within():  # no fork finds SQLite in the middle of one, nor closes what is looked at
            with self.engine.connect() as c:
                if write:
                    c.execution_options(haltune_write=True)
                with c.begin():
                    found = work(c)
            self.file.used()
            return found

    def _keeper(self) -> str | None:
        return locks.keeper(self.file.path)

    def _at_home(self) -> None:
        forked = os.getpid() != self._pid
        super()._at_home()
        if forked:
            self.file.now_by(self.engine)
        with doors.within():
            self.file.look()


def engine_of(address: str, reading: bool = False) -> sa.Engine:
    """An engine whose transactions that write take the lock at once. reading: it writes nothing at all."""
    if not (database := sa.engine.make_url(address).database) or database == ":memory:":
        raise InvalidInput(
            f"store={address!r} is in memory, where each thread would see another database: "
            "write store=None to keep the study in memory, or name a file, 'sqlite:///search.db'"
        )
    address = from_anywhere(address)
    options: Any = {"timeout": _STEP, "check_same_thread": False}
    if reading:  # looked at anew by each connection: a search may begin or end meanwhile
        path = path_at(address)
        engine = sa.create_engine(
            address,
            poolclass=sa.NullPool,
            creator=lambda: sqlite3.connect(to_read(path), uri=True, **options),
        )
    else:
        engine = sa.create_engine(address, connect_args=options)

    @sa.event.listens_for(engine, "connect")
    def _connect(dbapi: Any, _: Any) -> None:
        dbapi.isolation_level = None  # SQLAlchemy begins transactions, not the driver
        if not reading:
            cursor = dbapi.cursor()
            cursor.execute("PRAGMA journal_mode=WAL")
            cursor.execute("PRAGMA synchronous=NORMAL")
            cursor.execute("PRAGMA wal_autocheckpoint=0")  # see journal
            cursor.execute("PRAGMA journal_size_limit=0")  # a journal begun anew is as short as what is in it
            cursor.close()

    @sa.event.listens_for(engine, "begin")
    def _begin(c: sa.Connection) -> None:
        # a transaction that reads first and writes later fails at once when another wrote in between
        write = c.get_execution_options().get("haltune_write", False)
        c.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    doors.connections.add(engine)
    return engine
