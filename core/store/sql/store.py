"""The log in a SQL database through SQLAlchemy Core: SQLite by default, PostgreSQL by URL.

One append-only table holds the events of all studies of a database; leases and names are the
only rows that ever change. Transactions are short and are tried again while another is in the way.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from haltune.errors import StoreError
from haltune.log.events import Event

from ..base import CLAIM, Conflict, Lease, Release
from . import postgres
from . import rows as reading
from . import tables as sql
from .database import Database
from .file import without_journal
from .journal import warn_if_apart


class SqlStore:
    """A store behind a SQLAlchemy URL. Safe for many threads and processes at once.

    reading: nothing is written, made or locked.

    clock: seconds since the epoch; this machine's for SQLite, the server's for PostgreSQL if None.
    Raises StoreError when the database cannot be opened, InvalidInput for one that is in memory.
    """

    def __init__(self, url: str, clock: Callable[[], float] | None = None, *, reading: bool = False) -> None:
        self.address, self._reading = url, reading
        self._ids: dict[str, int] = {}
        self._database = Database(url, reading)
        self.url, self._run = self._database.url, self._database.run
        self._on_server = self._database.on_server
        self._rows = sql.PAGE_OF_SERVER if self._on_server else sql.PAGE
        self._clock = clock or (postgres.ServerClock(self._time_of_server) if self._on_server else time.time)
        file = self._database.file.path
        journal = file is None or not without_journal(file)
        self._events = self._prepared(journal)
        self._database.file.remember()

    @property
    def _engine(self) -> sa.Engine:
        return self._database.engine

    @property
    def outages(self) -> int:
        """Connections that a server has ended: what was read before may be lost."""
        return self._database.outages

    def _prepared(self, journal: bool) -> sa.Select[Any]:
        """The statement to read events by. Tables are made where there are none yet, unless this store only reads.

        What is there needs no lock.
        """
        if (found := self._run(sql.reading, write=False)) is not None:
            if not journal and without_journal(self._database.file.path or ""):
                self._run(lambda c: warn_if_apart(c, self.url), write=False)
            return found
        if not self._reading:
            self._run(lambda c: sql.meta.create_all(c, checkfirst=True))
            return sql.EVENTS
        tables = ", ".join(self._run(lambda c: sa.inspect(c).get_table_names(), write=False)) or "nothing"
        copied = "" if journal else "; if it is a copy of one, its -wal file was left behind"
        raise StoreError(f"{self.url} is no store of haltune's: it holds {tables}{copied}")

    def _keep_checksums(self) -> None:
        """Before events are written to tables of an older version."""
        if self._events is not sql.EVENTS:
            self._run(sql.add_checksums)
            self._events = sql.EVENTS

    def now(self) -> float:
        """The clock that all workers share: this machine's with a file, the server's with PostgreSQL."""
        return self._clock()

    def _time_of_server(self) -> float:
        return self._run(postgres.time_of_server, write=False)

    def names(self) -> list[str]:
        """See Store."""
        return self._run(lambda c: list(c.scalars(sql.NAMES)), write=False)

    def create(self, name: str, first: Event) -> bool:
        """See Store."""

        def exists(c: sa.Connection) -> bool:
            return c.scalar(sql.ID, {"of_name": name}) is not None

        def work(c: sa.Connection) -> bool:
            if exists(c):
                return False
            key = c.execute(sql.NEW_STUDY, {"name": name}).inserted_primary_key
            assert key is not None
            c.execute(sql.NEW_EVENTS, sql.row(first, key[0], 0))
            return True

        if self._run(exists, write=False):  # which needs no lock
            return False
        self._keep_checksums()
        try:
            return self._run(work)
        except StoreError as error:
            if isinstance(error.__cause__, IntegrityError):  # another process was first
                return False
            raise

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        """See Store. Reads page by page, as far as the log goes when the last page is read."""
        end = sql.LAST if stop is None else stop
        if start and self._ends_at(name, start):
            return
        while start < end:
            page = self._run(lambda c, start=start: self._page(c, name, start, end), write=False)  # type: ignore[misc]
            yield from page
            if len(page) < self._rows:
                return
            start += len(page)

    def _ends_at(self, name: str, position: int) -> bool:
        """True when a log in SQLite surely has nothing from `position` on."""
        study = self._ids.get(name)
        return study is not None and self._database.ends_at(study, position)

    def _page(self, c: sa.Connection, name: str, start: int, stop: int) -> list[Event]:
        study, whose = self._id(c, name), self._whose(name)
        found = reading.page(c, self._events, study, start, stop, self._rows, whose)
        short = len(found) < min(self._rows, stop - start)
        if short and not self._on_server:  # a server looks after its pages itself
            reading.check_end(c, study, start + len(found), stop, whose)
        return found

    def _whose(self, name: str) -> str:
        return f"the study {name!r} in {self.url}"

    def append(
        self,
        name: str,
        events: Sequence[Event],
        *,
        seen: int,
        about: int | None,
        lease: Lease | Release | None = None,
    ) -> int:
        """See Store."""
        self._keep_checksums()
        if self._on_server:
            return self._append_on_server(name, events, seen, about, lease)

        def work(c: sa.Connection) -> int:
            study = self._id(c, name)
            head = c.scalar(sql.HEAD, {"of_study": study})
            position = 0 if head is None else head + 1
            if position > seen:
                self._compare(c, study, seen, about)
            rows = [sql.row(e, study, seq) for seq, e in enumerate(events, position)]
            c.execute(sql.NEW_EVENTS, rows)
            if scalars := sql.metric_rows(events, study, position):
                c.execute(sql.NEW_METRICS, scalars)
            sql.set_lease(c, study, lease)
            if about is None:
                c.execute(sql.UNCLAIM, {"of_study": study})
            return int(position)

        return self._run(work)

    def _append_on_server(
        self, name: str, events: Sequence[Event], seen: int, about: int | None, lease: Lease | Release | None
    ) -> int:
        outages = self.outages

        def work(c: sa.Connection) -> int | None:
            if (
                self.outages != outages and seen < sql.LAST
            ):  # the first try ended without an answer: was it stored?
                return self._stored(c, name, events, seen)
            known, position = self._database.raw(
                c, lambda: postgres.append(c, name, events, seen, about, lease)
            )
            if not known:
                raise StoreError(f"there is no study {name!r} in {self.url}")
            return position

        position = self._run(work, write=False)  # a transaction of its own
        if position is None:
            raise Conflict
        return position

    def _stored(self, c: sa.Connection, name: str, events: Sequence[Event], seen: int) -> int | None:
        """The position of events whose append was not acknowledged; None when they are not in the log."""
        postgres.flush(c)
        while page := self._page(c, name, seen, sql.LAST):
            for n, event in enumerate(page):
                if event.kind == events[0].kind and sql.row(event, 0, 0) == sql.row(events[0], 0, 0):
                    return seen + n
            seen += len(page)
        return None

    @staticmethod
    def _compare(c: sa.Connection, study: int, seen: int, about: int | None) -> None:
        since = {"of_study": study, "start": seen}
        found = (
            c.scalar(sql.MOVED, since)
            if about is None
            else c.scalar(sql.TOUCHED, {**since, "of_trial": about})
        )
        if found is not None:
            raise Conflict

    def leases(self, name: str) -> list[Lease]:
        """See Store."""
        return self._run(
            lambda c: reading.leases(c, sql.LEASES, self._id(c, name), self._whose(name)),
            write=False,
        )

    def renew(self, name: str, lease: Lease) -> None:
        """See Store."""
        mine = {"of_trial": lease.trial, "of_holder": lease.holder, "of_attempt": lease.attempt}
        anew = {"expires": lease.expires, "renewed": lease.renewed}

        def work(c: sa.Connection) -> None:
            postgres.hurry(c)
            c.execute(sql.RENEW_LEASE, {"of_study": self._id(c, name), **mine, **anew})

        self._run(work)

    def claimed(self, name: str) -> Lease | None:
        """See Store."""

        def work(c: sa.Connection) -> Lease | None:
            found = reading.leases(c, sql.CLAIMED, self._id(c, name), self._whose(name))
            return found[0] if found else None

        return self._run(work, write=False)

    def claim(self, name: str, claim: Lease | None, instead_of: Lease | None) -> bool:
        """See Store."""

        def work(c: sa.Connection) -> bool:
            postgres.hurry(c)
            study = self._id(c, name, lock=True)
            found = c.execute(sql.CLAIMED, {"of_study": study}).fetchone()
            if (None if found is None else Lease(*found)) != instead_of:
                return False
            sql.set_lease(c, study, Release(CLAIM) if claim is None else claim)
            return True

        return self._run(work)

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def _id(self, c: sa.Connection, name: str, lock: bool = False) -> int:
        if name in self._ids and (not lock or c.dialect.name == "sqlite"):  # SQLite locks by BEGIN IMMEDIATE
            return self._ids[name]
        study = c.scalar(sql.ID_LOCKED if lock else sql.ID, {"of_name": name})
        if study is None:
            raise StoreError(f"there is no study {name!r} in {self.url}")
        self._ids[name] = int(study)
        return int(study)

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.address} | ({"reading": True} if self._reading else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]
