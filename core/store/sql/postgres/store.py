"""A store in a PostgreSQL server: for workers on many machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import sqlalchemy as sa

from haltune.log.events import Event

from ...base import Conflict, Lease, Release
from .. import rows, tables
from ..store import SqlStore
from . import statements
from .clock import ServerClock, time_of_server
from .database import PostgresDatabase


class PostgresStore(SqlStore):
    """A store in a server. clock: the server's if None."""

    _database: PostgresDatabase
    _page_size = 1500  # each page costs two round trips
    _asks_checksums = (
        "SELECT 1 FROM pg_attribute WHERE attrelid = 'haltune_events'::regclass AND attname = 'checksum' "
        "AND NOT attisdropped"
    )
    _adds_checksums = "ALTER TABLE haltune_events ADD IF NOT EXISTS checksum BIGINT"

    def __init__(self, url: str, clock: Callable[[], float] | None = None, *, reading: bool = False) -> None:
        database = PostgresDatabase(url, reading)
        servers = ServerClock(lambda: database.run(time_of_server, write=False))
        super().__init__(database, url, clock or servers, reading)

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
        outages = self.outages

        def work(c: sa.Connection) -> int | None:
            if (
                self.outages != outages and seen < tables.LAST
            ):  # the first try ended without an answer: was it stored?
                return self._stored(c, name, events, seen)
            before, last = self.outages, self._known(name)
            known = [mark for mark in (self._first.get(name), last) if mark is not None]
            there, position, added = self._database.raw(
                c, lambda: statements.append(c, name, events, seen, about, lease, known)
            )
            if there is None and not known:
                raise self._unknown(name)
            if not there:
                raise rows.gone(known[-1], self._whose(name))
            if position is not None:
                self._saw(name, added, before)
            return position

        position = self._run(work, write=False)  # a transaction of its own
        if position is None:
            raise Conflict
        return position

    def _stored(self, c: sa.Connection, name: str, events: Sequence[Event], seen: int) -> int | None:
        """The position of events whose append was not acknowledged; None when they are not in the log."""
        c.exec_driver_sql(statements.FLUSH)
        while page := self._page(c, name, seen, tables.LAST):
            for n, event in enumerate(page):
                if event.kind == events[0].kind and tables.row(event, 0, 0) == tables.row(events[0], 0, 0):
                    return seen + n
            seen += len(page)
        return None

    def _locked(self, c: sa.Connection, name: str) -> int:
        self._ids[name] = self._key(c, name, tables.ID_LOCKED)
        return self._ids[name]

    def _hurry(self, c: sa.Connection) -> None:
        c.exec_driver_sql(statements.NO_WAIT)
