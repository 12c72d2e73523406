"""What tells that a SQLite database was copied without its journal, the -wal file: the copy lacks what came last.

While something is recorded in the journal alone, the file itself holds a mark, one row of a table of its own; the
journal takes it back. So whoever reads both, as SQLite does, does not see it but for the moment of a checkpoint. A mark
reaches the file by one, which therefore SQLite makes no longer by itself: mark, checkpoint, take the mark back.

What others do in that moment:
  a process is killed     the journal is not empty, so nobody is warned; who opens it or goes on takes the mark back
  .backup, VACUUM INTO    what they make has a schema version of its own, and a mark is good for one version alone
  another marks, too      a mark that it took back may go to the file: who has marked looks at the file by itself
Nothing is written before the file is marked, so that a copy lacks nothing or says so. Two things are out of reach: a
program that reads an older state all the while keeps the mark from a file whose journal exceeds LIMIT; and where all
were killed in that moment, a program other than haltune that is the first to open and close the file leaves it marked.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from haltune._utils.forks import doors
from haltune.errors import StoreError

LIMIT = 4 << 20  # bytes of a journal before it goes to the file: SQLite's own thousand pages
PERIOD = 10.0  # seconds between looks at what another process, killed or not haltune's, has made of the mark
_TRIES = 3
_TABLE = "CREATE TABLE IF NOT EXISTS haltune_journal (apart INTEGER NOT NULL)"
_MARK = "INSERT INTO haltune_journal SELECT schema_version FROM pragma_schema_version"
_APART = "SELECT 1 FROM haltune_journal, pragma_schema_version WHERE apart = schema_version"

RunStatement = Callable[
    [Callable[[sa.Connection], Any], bool], Any
]  # of what, in a transaction that writes or does not


def size(path: str) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def as_it_lies(path: str) -> str:
    """The URI of a file without its journal."""
    return f"{Path(path).absolute().as_uri()}?immutable=1"


class Journal:
    """The journal of an engine: it is looked after before something is written.

    path: of the database.
    """

    def __init__(self, engine: sa.Engine, path: str) -> None:
        self._engine, self._file, self._path = engine, path, f"{path}-wal"
        self._open = 0  # connections: with the last of all processes SQLite writes the journal to the file
        self._limit = LIMIT  # bytes from which on it is to go to the file
        self._next = 0.0  # when to look, on the monotonic clock; 0: nobody has looked yet
        self._working = threading.RLock()  # a handler of signals may come here again

        @sa.event.listens_for(engine, "connect")
        def _connect(dbapi: object, _: object) -> None:
            self._open += 1

        @sa.event.listens_for(engine, "close")
        def _close(dbapi: object, _: object) -> None:
            self._open -= 1
            if not self._open:
                self._next = 0.0

    def is_due(self) -> bool:
        """True when there is something to do before a transaction that writes."""
        return time.monotonic() >= self._next or size(self._path) > self._limit

    def keep(self, run: RunStatement) -> None:
        """Mark the file, and write a long journal to it. Raises what the transactions and SQLite do."""
        with self._working:
            if not self.is_due() or run(_is_empty, False):  # which has nothing to lack
                return
            long = size(self._path) > self._limit
            for attempt in range(_TRIES):
                if not (long and attempt == 0) and self._is_marked() and not run(is_apart, False):
                    break
                self._write(run)
            if long:  # what a reader kept from the file waits, not each report
                self._limit = max(LIMIT, 2 * size(self._path))
            self._next = time.monotonic() + PERIOD

    def leave(self, run: RunStatement) -> None:
        """Before connections are closed: the last to do so takes to the file what somebody killed has left marked."""
        if self._next and run(is_apart, False):
            run(_unmark, True)

    def _write(self, run: RunStatement) -> None:
        try:
            run(_mark, True)
            self._checkpoint()
            run(_unmark, True)
        except StoreError:
            raise
        except BaseException:  # Ctrl-C, and perhaps nothing is written afterwards
            with suppress(StoreError):
                run(_unmark, True)
            raise

    def _checkpoint(self) -> None:
        """Write the journal to the file, as far as nobody reads an older state. Raises sqlite3's errors.

        It is begun anew, but not emptied: an empty one does not tell a killed process from a copy.
        """
        with doors.within():
            raw = self._engine.raw_connection()
            try:
                raw.cursor().execute("PRAGMA wal_checkpoint(RESTART)").fetchone()
            finally:
                raw.close()

    def _is_marked(self) -> bool:
        """True when the file by itself says that it lacks something."""
        with doors.within():
            try:
                raw = sqlite3.connect(as_it_lies(self._file), uri=True)
                try:
                    return raw.execute(_APART).fetchone() is not None
                finally:
                    raw.close()
            except sqlite3.Error:  # also of a file that is being written to
                return False


def is_apart(c: sa.Connection) -> bool:
    """True when a database says that something is recorded in a journal alone."""
    try:
        return c.exec_driver_sql(_APART).first() is not None
    except SQLAlchemyError:  # an older version's: nothing is known
        return False


def _is_empty(c: sa.Connection) -> bool:
    return c.exec_driver_sql("SELECT 1 FROM sqlite_master").first() is None


def _mark(c: sa.Connection) -> None:
    c.exec_driver_sql(_TABLE)
    c.exec_driver_sql("DELETE FROM haltune_journal")
    c.exec_driver_sql(_MARK)


def _unmark(c: sa.Connection) -> None:
    c.exec_driver_sql("UPDATE haltune_journal SET apart = 0")
