"""A store in a SQLite file: a small search's, and what is used by default."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import sqlalchemy as sa

from haltune._utils.disk import is_writable
from haltune.errors import StoreError, StoreReadOnly, warn
from haltune.log.events import Event

from ...base import Conflict, Lease, Release
from .. import rows, tables
from ..store import SqlStore
from .database import SqliteDatabase
from .file import from_anywhere, need_file, path_at, without_journal
from .journal import is_apart
from .wal import lost

_PAUSE = 0.05  # seconds before a file is taken for a copy


class SqliteStore(SqlStore):
    """A store in a file. clock: this machine's if None. Raises InvalidInput for a database in memory."""

    _database: SqliteDatabase
    _page_size = 150  # with more of them alive the garbage collector runs, a fifth of a load
    _asks_checksums = "SELECT 1 FROM pragma_table_info('haltune_events') WHERE name = 'checksum'"
    _adds_checksums = "ALTER TABLE haltune_events ADD checksum BIGINT"

    def __init__(self, url: str, clock: Callable[[], float] | None = None, *, reading: bool = False) -> None:
        database = SqliteDatabase(url, reading)
        path = database.file.path
        self.folder = Path(path).with_suffix(".checkpoints")
        if reading:
            need_file(path_at(url), "the database that a search was recorded in, or its URL")
        self._alone = without_journal(path)  # before it is opened
        if missing := lost(f"{path}-wal"):
            warn(
                f"{url}-wal is damaged: {missing} of the last changes of {url} are lost, for SQLite reads it up to "
                "there. Bring back a copy of both files before anything writes to them, or continue with what is left"
            )
        try:
            super().__init__(database, from_anywhere(url), clock or time.time, reading)
        except StoreError as error:
            if not reading and os.path.exists(path) and not is_writable(Path(path)):
                raise StoreReadOnly(str(error)) from error
            raise
        if self._alone and self._lacks_journal(path):
            warn(
                f"{self.url}: this file was copied or moved without its -wal file while a search used it, so what was "
                "recorded last is missing. Bring the -wal file back beside it before anything writes to it; copy a "
                "file in use with sqlite3 search.db '.backup copy.db'"
            )
        if not (self._alone or reading) and self._run(is_apart, write=False):
            database.keep_journal()  # somebody was killed in the midst of that
        database.file.remember()

    def append(
        self,
        name: str,
        events: Sequence[Event],
        *,
        seen: int,
        about: int | None,
        lease: Lease | Release | None = None,
    ) -> int:
        self._keep_checksums()

        def work(c: sa.Connection) -> tuple[int, rows.RowMark]:
            study = self._id(c, name)
            position = self._end(c, name, study)
            if position > seen:
                self._compare(c, study, seen, about)
            added = [tables.row(e, study, seq) for seq, e in enumerate(events, position)]
            c.execute(tables.NEW_EVENTS, added)
            if scalars := tables.metric_rows(events, study, position):
                c.execute(tables.NEW_METRICS, scalars)
            tables.set_lease(c, study, lease)
            if about is None:
                c.execute(tables.UNCLAIM, {"of_study": study})
            return position, (added[-1]["seq"], added[-1]["checksum"])

        position, last = self._run(work)
        self._saw(name, last, 0)
        return position

    def _end(self, c: sa.Connection, name: str, study: int) -> int:
        """The position after a log's last event. Raises StoreError when the one known here is not there any more."""
        if (known := self._known(name)) is None:
            head = c.scalar(tables.HEAD, {"of_study": study})
            return 0 if head is None else int(head) + 1
        there = c.execute(tables.MARKS, {"of_study": study, "start": known[0]}).fetchall()
        if not there or tuple(there[0]) != known:
            raise rows.gone(known, self._whose(name))
        return int(there[-1][0]) + 1

    @staticmethod
    def _compare(c: sa.Connection, study: int, seen: int, about: int | None) -> None:
        since = {"of_study": study, "start": seen}
        found = (
            c.scalar(tables.MOVED, since)
            if about is None
            else c.scalar(tables.TOUCHED, {**since, "of_trial": about})
        )
        if found is not None:
            raise Conflict

    def _page(self, c: sa.Connection, name: str, start: int, stop: int) -> list[Event]:
        found = super()._page(c, name, start, stop)
        if len(found) < min(self._page_size, stop - start):  # a server looks after its pages itself
            rows.check_end(c, self._id(c, name), start + len(found), stop, self._whose(name))
        return found

    def _ends_at(self, name: str, position: int) -> bool:
        study, known = self._ids.get(name), self._known(name)
        if study is None or known is None or known[0] != position - 1:
            return False
        return self._database.marks(study, known[0]) == [known]

    def _locked(self, c: sa.Connection, name: str) -> int:
        return self._id(c, name)  # SQLite locks by BEGIN IMMEDIATE

    def _hurry(self, c: sa.Connection) -> None:
        """It does not wait for the disk anyway."""

    def _lacks_journal(self, path: str) -> bool:
        """True when the file says so, twice: a search may begin and end meanwhile."""
        for pause in (0.0, _PAUSE):
            time.sleep(pause)
            if not (self._run(is_apart, write=False) and without_journal(path)):
                return False
        return True

    def _lacks(self) -> str:
        return "; if it is a copy of one, its -wal file was left behind" if self._alone else ""
