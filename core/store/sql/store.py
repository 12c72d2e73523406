"""The log in a SQL database through SQLAlchemy Core: what SQLite and PostgreSQL have in common.

One append-only table holds the events of all studies of a database; leases and names are the
only rows that ever change. Transactions are short and are tried again while another is in the way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from haltune.errors import StoreError
from haltune.log.events import Event

from ..base import CLAIM, Lease, Release
from . import rows, tables
from .database import Database

_OPTUNAS = {"studies", "trials", "version_info"}  # tables


class SqlStore(ABC):
    """A store behind a SQLAlchemy URL. Safe for many threads and processes at once.

    clock: seconds since the epoch. reading: nothing is written, made or locked.
    Raises StoreError when the database cannot be opened.
    """

    folder: Path | None = None
    _page_size: ClassVar[int]  # events read at a time
    _asks_checksums: ClassVar[str]  # SQL; a row where the table of events has checksums
    _adds_checksums: ClassVar[str]  # SQL

    def __init__(self, database: Database, address: str, clock: Callable[[], float], reading: bool) -> None:
        self._database, self._address, self._clock, self._reading = database, address, clock, reading
        self.url, self._run = database.url, database.run
        self._ids: dict[str, int] = {}
        self._first: dict[str, rows.RowMark] = {}  # study -> its first event, which stays
        self._last: dict[str, tuple[rows.RowMark, int]] = {}  # the last event seen here, and `outages` before
        self._events = self._prepared()

    @property
    def outages(self) -> int:
        return self._database.outages

    def address(self) -> str:
        return self._address

    def now(self) -> float:
        """The clock that all workers share: this machine's with a file, the server's with PostgreSQL."""
        return self._clock()

    def names(self) -> list[str]:
        return self._run(lambda c: list(c.scalars(tables.STUDY_NAMES)), write=False)

    def create(self, name: str, first: Event) -> bool:
        def exists(c: sa.Connection) -> bool:
            return c.scalar(tables.ID, {"of_name": name}) is not None

        def work(c: sa.Connection) -> bool:
            if exists(c):
                return False
            key = c.execute(tables.NEW_STUDY, {"name": name}).inserted_primary_key
            assert key is not None
            c.execute(tables.NEW_EVENTS, tables.row(first, key[0], 0))
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

    def replace(self, name: str, first: Event, seen: int) -> bool:
        """See Store. It gets another number: who has the old one open writes nothing into it."""
        self._keep_checksums()

        def work(c: sa.Connection) -> int | None:
            old = {"of_study": self._locked(c, name)}
            if c.scalar(tables.HEAD, old) != seen - 1:
                return None
            c.execute(tables.UNNAME, old)
            key = c.execute(tables.NEW_STUDY, {"name": name}).inserted_primary_key
            assert key is not None
            c.execute(tables.NEW_EVENTS, tables.row(first, key[0], 0))
            for statement in tables.FORGET:
                c.execute(statement, old)
            return int(key[0])

        found = self._run(work)
        if found is not None:
            self._ids[name] = found
            self._first.pop(name, None)
            self._last.pop(name, None)
        return found is not None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        """See Store. Reads page by page, as far as the log goes when the last page is read."""
        end = tables.LAST if stop is None else stop
        if start and self._ends_at(name, start):
            return
        while start < end:
            page = self._run(lambda c, start=start: self._page(c, name, start, end), write=False)  # type: ignore[misc]
            yield from page
            if len(page) < self._page_size:
                return
            start += len(page)

    @abstractmethod
    def append(
        self,
        name: str,
        events: Sequence[Event],
        *,
        seen: int,
        about: int | None,
        lease: Lease | Release | None = None,
    ) -> int:
        """See Store. Each kind of database has statements of its own for it."""

    def leases(self, name: str) -> list[Lease]:
        return self._run(
            lambda c: rows.leases(c, tables.LEASES, self._id(c, name), self._whose(name)),
            write=False,
        )

    def renew(self, name: str, lease: Lease) -> None:
        mine = {"of_trial": lease.trial, "of_holder": lease.holder, "of_attempt": lease.attempt}
        anew = {"expires": lease.expires, "renewed": lease.renewed}

        def work(c: sa.Connection) -> None:
            self._hurry(c)
            c.execute(tables.RENEW_LEASE, {"of_study": self._id(c, name), **mine, **anew})

        self._run(work)

    def claimed(self, name: str) -> Lease | None:
        def work(c: sa.Connection) -> Lease | None:
            found = rows.leases(c, tables.CLAIMED, self._id(c, name), self._whose(name))
            return found[0] if found else None

        return self._run(work, write=False)

    def claim(self, name: str, claim: Lease | None, instead_of: Lease | None) -> bool:
        def work(c: sa.Connection) -> bool:
            self._hurry(c)
            study = self._locked(c, name)
            found = c.execute(tables.CLAIMED, {"of_study": study}).fetchone()
            if (None if found is None else Lease(*found)) != instead_of:
                return False
            tables.set_lease(c, study, Release(CLAIM) if claim is None else claim)
            return True

        return self._run(work)

    def close(self) -> None:
        """Close all connections."""
        self._database.close()

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self._address} | ({"reading": True} if self._reading else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    # -- tables -------------------------------------------------------------------------------

    def _prepared(self) -> sa.Select[Any]:
        """The statement to read events by. Tables are made where there are none yet, unless this store only reads.

        What is there needs no lock.
        """
        if (found := self._run(self._reading_by, write=False)) is not None:
            return found
        names = self._run(lambda c: sa.inspect(c).get_table_names(), write=False)
        optunas = _OPTUNAS.issubset(names)
        others = names and self.folder is not None and tables.meta.tables.keys().isdisjoint(names)
        if not (self._reading or optunas or others):
            self._run(lambda c: tables.meta.create_all(c, checkfirst=True))
            return tables.EVENTS
        there = ", ".join(names[:9]) + ", ..." * (len(names) > 9)
        said = f"{self.url} is no store of haltune's: it holds {there or 'nothing' + self._lacks()}"
        if optunas:
            said += ". It is Optuna's: haltune.optuna.from_study(study) reads its studies"
        raise StoreError(said if self._reading else f"{said}. Give the search another file or database")

    def _reading_by(self, c: sa.Connection) -> sa.Select[Any] | None:
        """The statement to read events by; None where there are no tables yet."""
        if not sa.inspect(c).has_table(tables.leases.name):
            return None
        return tables.EVENTS if self._has_checksums(c) else tables.EVENTS_OF_OLD

    def _has_checksums(self, c: sa.Connection) -> bool:
        """False for tables of a version that kept none."""
        return c.exec_driver_sql(self._asks_checksums).first() is not None

    def _add_checksums(self, c: sa.Connection) -> None:
        if not self._has_checksums(c):  # another process may add them now, too
            c.exec_driver_sql(self._adds_checksums)

    def _keep_checksums(self) -> None:
        """Before events are written to tables of an older version."""
        if self._events is not tables.EVENTS:
            self._run(self._add_checksums)
            self._events = tables.EVENTS

    def _page(self, c: sa.Connection, name: str, start: int, stop: int) -> list[Event]:
        outages, known = self.outages, self._known(name)
        found, marks = rows.page(
            c, self._events, self._id(c, name), start, stop, self._page_size, self._whose(name),
            known if known is not None and known[0] == start - 1 else None,
        )  # fmt: skip
        if marks:
            self._saw(name, marks[1], outages)
        if marks and not start:
            self._first.setdefault(name, marks[0])
        return found

    def _known(self, name: str) -> rows.RowMark | None:
        """The last event that this store read or wrote; None after a server's crash, which may take it back."""
        known, outages = self._last.get(name, (None, 0))
        return known if outages == self.outages else None

    def _saw(self, name: str, last: rows.RowMark, outages: int) -> None:
        known = self._known(name)
        if known is None or known[0] <= last[0]:
            self._last[name] = last, outages

    def _whose(self, name: str) -> str:
        return f"the study {name!r} in {self.url}"

    def _id(self, c: sa.Connection, name: str) -> int:
        if name not in self._ids:
            self._ids[name] = self._key(c, name, tables.ID)
        return self._ids[name]

    def _key(self, c: sa.Connection, name: str, statement: sa.Select[Any]) -> int:
        study = c.scalar(statement, {"of_name": name})
        if study is None:
            raise self._unknown(name)
        return int(study)

    def _unknown(self, name: str) -> StoreError:
        return StoreError(f"there is no study {name!r} in {self.url}")

    # -- what each kind does in its own way ---------------------------------------------------

    @abstractmethod
    def _locked(self, c: sa.Connection, name: str) -> int:
        """A study's number, its row locked until the transaction ends."""

    @abstractmethod
    def _hurry(self, c: sa.Connection) -> None:
        """Let a transaction commit without waiting for the disk, for leases: what a crash takes back renews itself."""

    def _lacks(self) -> str:
        """What a database without tables may lack, in words."""
        return ""

    def _ends_at(self, name: str, position: int) -> bool:
        """True when a log surely has nothing from `position` on."""
        return False
