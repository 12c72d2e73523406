"""What tells that a SQLite database was copied without its journal, the -wal file: the copy lacks what came last.

While something is recorded in the journal alone, the file itself holds a mark, one row of a table of its own; the
journal takes it back. So whoever reads both, as SQLite and its .backup do, does not see it, but for the moment of a
checkpoint. A mark reaches the file by one, which therefore SQLite makes no longer by itself: mark, checkpoint, take
the mark back.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from haltune._utils.forks import doors
from haltune.errors import warn

LIMIT = 4 << 20  # bytes of a journal before it goes to the file: SQLite's own thousand pages
_TABLE = "CREATE TABLE IF NOT EXISTS haltune_journal (apart INTEGER NOT NULL)"


def size(path: str) -> int:
    """Bytes of a file; 0 where there is none."""
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


class Journal:
    """The journal of an engine: when it is to be marked, or to be written to the file.

    path: of the -wal file.
    """

    def __init__(self, engine: sa.Engine, path: str) -> None:
        self._engine, self._path = engine, path
        self._open = 0  # connections: with the last of all processes SQLite writes the journal to the file
        self._next = 0  # bytes from which on there is something to do
        self._working = threading.Lock()

        @sa.event.listens_for(engine, "connect")
        def _connect(dbapi: object, _: object) -> None:
            if not self._open:  # what another process has begun is marked
                self._next = LIMIT if size(path) else 0
            self._open += 1

        @sa.event.listens_for(engine, "close")
        def _close(dbapi: object, _: object) -> None:
            self._open -= 1

    @contextmanager
    def due(self) -> Iterator[bool]:
        """True when there is something to do, and no other thread does it within its block."""
        if size(self._path) <= self._next or not self._working.acquire(blocking=False):
            yield False
            return
        try:
            yield True
        finally:
            self._working.release()

    def checkpoint(self) -> None:
        """Write the journal to the file, as far as nobody reads an older state. Raises sqlite3's errors."""
        with doors.within():
            raw = self._engine.raw_connection()
            try:
                raw.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                raw.close()
        self._next = max(LIMIT, 2 * size(self._path))  # what a reader kept from it waits, not each report


def mark(c: sa.Connection, apart: bool) -> None:
    """Say in the database whether something is recorded in its journal alone."""
    if apart:
        c.exec_driver_sql(_TABLE)
        c.exec_driver_sql("DELETE FROM haltune_journal")
        c.exec_driver_sql("INSERT INTO haltune_journal VALUES (1)")
    else:
        c.exec_driver_sql("UPDATE haltune_journal SET apart = 0")


def warn_if_apart(c: sa.Connection, url: str) -> None:
    """A warning for a database that was copied, or moved, without its journal."""
    try:
        apart = c.exec_driver_sql("SELECT max(apart) FROM haltune_journal").scalar()
    except SQLAlchemyError:  # an older version's: nothing is known
        return
    if apart:
        warn(
            f"{url}: this file was copied or moved without its -wal file while a search used it, so what was recorded "
            "last is missing. Bring the -wal file back beside it before anything writes to it; copy a file in use "
            "with sqlite3 search.db '.backup copy.db'"
        )
