"""The log in a SQL database through SQLAlchemy Core: SQLite by default, PostgreSQL by URL.

One append-only table holds the events of all studies of a database; leases and names are the
only rows that ever change. Transactions are short and are tried again while another is in the way.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from . import sqltables as sql
from .errors import InvalidInput, StoreError
from .events import Event
from .store import Conflict, Lease, Release

T = TypeVar("T")
_BUSY_TIMEOUT = 30.0  # seconds SQLite waits for another writer
_HEAD_OF_SQLITE = "SELECT max(seq) FROM haltune_events WHERE study = ?"
_ATTEMPTS = 5  # transactions tried before a busy database is an error


class SqlStore:
    """A store behind a SQLAlchemy URL. Safe for many threads and processes at once.

    Raises StoreError when the database cannot be opened, InvalidInput for one that is in memory.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.time) -> None:
        self._address, self._clock = url, clock
        self._ids: dict[str, int] = {}
        self._pid = os.getpid()
        try:
            self.url = _shown(url)
            self._engine = _engine(url)
        except (SQLAlchemyError, ImportError) as error:
            where = getattr(self, "url", url)  # without its password, once it could be read
            raise StoreError(
                f"cannot open {where}: {error}; write a URL such as 'sqlite:///search.db', and install the "
                "driver that it names"
            ) from error
        self._file: tuple[int, int] | None = None
        self._run(lambda c: sql.meta.create_all(c, checkfirst=True))
        self._file = self._found()

    def now(self) -> float:
        """The clock given at the start: this machine's."""
        return self._clock()

    def names(self) -> list[str]:
        """See Store."""
        return self._run(lambda c: list(c.scalars(sql.NAMES)), write=False)

    def create(self, name: str, first: Event) -> bool:
        """See Store."""

        def work(c: sa.Connection) -> bool:
            if c.scalar(sql.ID, {"of_name": name}) is not None:
                return False
            key = c.execute(sql.NEW_STUDY, {"name": name}).inserted_primary_key
            assert key is not None
            c.execute(sql.NEW_EVENTS, sql.row(first, key[0], 0))
            return True

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
            if len(page) < sql.PAGE:
                return
            start += len(page)

    def _ends_at(self, name: str, position: int) -> bool:
        """True when a log in SQLite surely has nothing from `position` on: a quarter of what the query costs."""
        study = self._ids.get(name)
        if study is None or os.getpid() != self._pid or self._engine.dialect.name != "sqlite":
            return False
        if self._file is not None and self._found() != self._file:
            return False  # the query says what is wrong
        try:
            raw = self._engine.raw_connection()
            try:
                found = raw.cursor().execute(_HEAD_OF_SQLITE, (study,)).fetchone()
            finally:
                raw.close()
        except Exception:  # likewise
            return False
        return found is not None and found[0] is not None and found[0] < position

    def _page(self, c: sa.Connection, name: str, start: int, stop: int) -> list[Event]:
        study = self._id(c, name)
        rows = c.execute(sql.EVENTS, {"of_study": study, "start": start, "stop": stop}).fetchall()
        if not rows:
            return []
        found: dict[int, dict[str, float]] = {}
        among = {"of_study": study, "start": start, "stop": start + len(rows)}
        for seq, metric, value in c.execute(sql.METRICS, among):
            found.setdefault(seq, {})[metric] = sql.not_null(value)
        return [sql.event(row, found.get(row[0]) or {}) for row in rows]

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

        def work(c: sa.Connection) -> int:
            study = self._id(c, name, lock=True)
            head = c.scalar(sql.HEAD, {"of_study": study})
            position = 0 if head is None else head + 1
            if position > seen:
                self._compare(c, study, seen, about)
            rows = [sql.row(e, study, seq) for seq, e in enumerate(events, position)]
            c.execute(sql.NEW_EVENTS, rows)
            if scalars := sql.metric_rows(events, study, position):
                c.execute(sql.NEW_METRICS, scalars)
            self._set_lease(c, study, lease)
            return int(position)

        return self._run(work)

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

    @staticmethod
    def _set_lease(c: sa.Connection, study: int, lease: Lease | Release | None) -> None:
        if isinstance(lease, Release):
            c.execute(sql.DROP_LEASE, {"of_study": study, "of_trial": lease.trial})
        elif lease is not None and not c.execute(sql.SET_LEASE, _values(study, lease)).rowcount:
            values = {"study": study, "trial": lease.trial, "attempt": lease.attempt, "holder": lease.holder}
            c.execute(sql.NEW_LEASE, {**values, "expires": lease.expires, "renewed": lease.renewed})

    def leases(self, name: str) -> list[Lease]:
        """See Store."""
        return self._run(
            lambda c: [Lease(*row) for row in c.execute(sql.LEASES, {"of_study": self._id(c, name)})],
            write=False,
        )

    def renew(self, name: str, lease: Lease) -> None:
        """See Store."""
        mine = {"of_trial": lease.trial, "of_holder": lease.holder, "of_attempt": lease.attempt}
        anew = {"expires": lease.expires, "renewed": lease.renewed}
        self._run(lambda c: c.execute(sql.RENEW_LEASE, {"of_study": self._id(c, name), **mine, **anew}))

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _id(self, c: sa.Connection, name: str, lock: bool = False) -> int:
        if name in self._ids and (not lock or c.dialect.name == "sqlite"):  # SQLite locks by BEGIN IMMEDIATE
            return self._ids[name]
        study = c.scalar(sql.ID_LOCKED if lock else sql.ID, {"of_name": name})
        if study is None:
            raise StoreError(f"there is no study {name!r} in {self.url}")
        self._ids[name] = int(study)
        return int(study)

    def _run(self, work: Callable[[sa.Connection], T], write: bool = True) -> T:
        """`work` in one transaction, tried again a few times while the database is busy."""
        if os.getpid() != self._pid:  # connections do not survive a fork
            self._engine.dispose(close=False)
            self._pid = os.getpid()
        if self._file is not None and self._found() != self._file:
            raise StoreError(
                f"{self.url}: the file was deleted or replaced while it was in use; put it back, or open the study anew"
            )
        for attempt in range(_ATTEMPTS):
            try:
                with self._transaction(write) as c:
                    return work(c)
            except (SQLAlchemyError, OSError) as error:
                if attempt == _ATTEMPTS - 1 or not _is_busy(error):
                    raise StoreError(f"{self.url}: {_cause(error)}") from error
                time.sleep(random.uniform(0.0, 0.05 * 2**attempt))
        raise AssertionError("unreachable")

    def _found(self) -> tuple[int, int] | None:
        """Device and inode of a SQLite file: SQLite itself would write on into a file that has no name any more."""
        path = self._engine.url.database if self._engine.dialect.name == "sqlite" else None
        try:
            status = os.stat(path) if path else None
        except OSError:
            return (-1, -1)
        return (status.st_dev, status.st_ino) if status else None

    @contextmanager
    def _transaction(self, write: bool) -> Iterator[sa.Connection]:
        with self._engine.connect() as c:
            if write:
                c.execution_options(haltune_write=True)
            with c.begin():
                yield c

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self._address}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"])  # type: ignore[misc]


def _values(study: int, lease: Lease) -> dict[str, Any]:
    return {
        "of_study": study, "of_trial": lease.trial, "attempt": lease.attempt, "holder": lease.holder,
        "expires": lease.expires, "renewed": lease.renewed,
    }  # fmt: skip


def _is_busy(error: Exception) -> bool:
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    text = str(error)
    return any(
        word in text
        for word in ("database is locked", "database table is locked", "already exists", "deadlock")
    )


_ADVICE = {
    "disk is full": "make room, then go on: nothing recorded is lost",
    "disk I/O error": "is the disk full or gone? Nothing recorded is lost",
    "readonly": "haltune needs to write there; check the permissions of the file and its folder",
    "unable to open": "does the folder exist, and may this user write there?",
    "not a database": "the file was written by something else; give the study a file of its own",
    "malformed": "the file is damaged; bring back a copy of it (with its -wal file), or begin another",
    "database is locked": "another process keeps it locked; is the file on a network drive? SQLite needs a local one",
}


def _cause(error: Exception) -> str:
    text = str(getattr(error, "orig", None) or error)
    advice = [advice for sign, advice in _ADVICE.items() if sign in text]
    return "; ".join([text, *advice[:1]])


def _shown(url: str) -> str:
    """The URL without its password. Raises InvalidInput for a SQLite database in memory."""
    parsed = sa.engine.make_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise InvalidInput(
            f"store={url!r} is in memory, where each thread would see another database: "
            "write store=None to keep the study in memory, or name a file, 'sqlite:///search.db'"
        )
    return parsed.render_as_string(hide_password=True) if parsed.password else url


def _engine(url: str) -> sa.Engine:
    """An engine whose SQLite transactions take the write lock at once, in WAL mode."""
    if not url.startswith("sqlite"):
        return sa.create_engine(url, pool_pre_ping=True)
    engine = sa.create_engine(url, connect_args={"timeout": _BUSY_TIMEOUT, "check_same_thread": False})

    @sa.event.listens_for(engine, "connect")
    def _connect(dbapi: Any, _: Any) -> None:
        dbapi.isolation_level = None  # SQLAlchemy begins transactions, not the driver
        cursor = dbapi.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def _begin(c: sa.Connection) -> None:
        # a transaction that reads first and writes later fails at once when another wrote in between
        write = c.get_execution_options().get("haltune_write", False)
        c.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine
