"""The log in a SQL database through SQLAlchemy Core: SQLite by default, PostgreSQL by URL.

One append-only table holds the events of all studies of a database; a report is one row
of typed columns, further metrics are rows of a second table. Leases and names are the
only rows that ever change.
"""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from . import events as ev
from .decisions import Action, Verdict
from .errors import StoreError
from .events import MOVES, Event
from .store import Conflict, Lease, Release

T = TypeVar("T")
_BUSY_TIMEOUT = 30.0  # seconds SQLite waits for another writer
_ATTEMPTS = 5  # transactions tried before a busy database is an error

_meta = sa.MetaData()
_real: sa.types.TypeEngine[float] = sa.Double()
_studies = sa.Table(
    "haltune_studies",
    _meta,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, unique=True, nullable=False),
)
_events = sa.Table(
    "haltune_events",
    _meta,
    sa.Column("study", sa.Integer, primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("at", _real, nullable=False),
    sa.Column("trial", sa.Integer),
    sa.Column("attempt", sa.Integer),
    sa.Column("epoch", _real),
    sa.Column("value", _real),  # NULL is NaN: SQLite has none
    sa.Column("seconds", _real),
    sa.Column("validation", _real),
    sa.Column("cost", _real),
    sa.Column("deciding", _real),
    sa.Column("seen", sa.Integer),
    sa.Column("action", sa.Text),
    sa.Column("body", sa.Text),  # JSON: the rest of a verdict, or a whole event of another kind
    sqlite_with_rowid=False,
)
_metrics = sa.Table(
    "haltune_metrics",
    _meta,
    sa.Column("study", sa.Integer, primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", _real),  # NULL is NaN
    sqlite_with_rowid=False,
)
_leases = sa.Table(
    "haltune_leases",
    _meta,
    sa.Column("study", sa.Integer, primary_key=True),
    sa.Column("trial", sa.Integer, primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("expires", _real, nullable=False),
    sa.Column("renewed", _real, nullable=False),
)
_MOVE_KINDS = [k.kind for k in MOVES]


def _row(event: Event) -> dict[str, Any]:
    """The columns of one event."""
    row: dict[str, Any] = dict.fromkeys(c.name for c in _events.columns)
    row.update(kind=event.kind, at=event.at, trial=getattr(event, "trial", None))
    if isinstance(event, ev.Reported):
        verdict = ev.verdict_to_json(event.verdict)
        row.update(
            attempt=event.attempt, epoch=event.epoch, value=_nullable(event.value), seconds=event.seconds,
            validation=event.validation, cost=event.cost, deciding=event.deciding, seen=event.seen,
            action=verdict.pop("action"), body=json.dumps(verdict),
        )  # fmt: skip
    else:
        row["body"] = json.dumps(ev.to_json(event))
    return row


def _nullable(value: float) -> float | None:
    return None if math.isnan(value) else value


_COLUMNS = ("seq", "kind", "at", "trial", "attempt", "epoch", "value", "seconds", "validation", "cost", "deciding",
            "seen", "action", "body")  # fmt: skip
_ACTIONS = {str(a): a for a in Action}


def _event(row: Sequence[Any], metrics: dict[str, float]) -> Event:
    """The event of one row: the inverse of `_row`."""
    _, kind, at, trial, attempt, epoch, value, seconds, validation, cost, deciding, seen, action, body = row
    rest = json.loads(body)
    if kind != "reported":
        return ev.from_json(rest)
    return ev.Reported(
        at=at, trial=trial, attempt=attempt, epoch=epoch, value=math.nan if value is None else value,
        seconds=seconds, validation=validation, cost=cost, deciding=deciding, seen=seen, metrics=metrics,
        verdict=Verdict(_ACTIONS[action], rest["reason"], rest.get("evidence", {}), rest.get("until")),
    )  # fmt: skip


class SqlStore:
    """A store behind a SQLAlchemy URL. Safe for many threads and processes at once."""

    def __init__(self, url: str, clock: Callable[[], float] = time.time) -> None:
        self.url = url
        self._clock = clock
        self._ids: dict[str, int] = {}
        self._pid = os.getpid()
        try:
            self._engine = _engine(url)
        except (SQLAlchemyError, ImportError) as error:
            raise StoreError(f"cannot open {url}: {error}") from error
        self._run(lambda c: _meta.create_all(c, checkfirst=True))

    def now(self) -> float:
        """The clock given at the start: this machine's."""
        return self._clock()

    def names(self) -> list[str]:
        """See Store."""
        return self._run(
            lambda c: list(c.scalars(sa.select(_studies.c.name).order_by(_studies.c.id))), write=False
        )

    def create(self, name: str, first: Event) -> bool:
        """See Store."""

        def work(c: sa.Connection) -> bool:
            if c.scalar(sa.select(_studies.c.id).where(_studies.c.name == name)) is not None:
                return False
            study = c.execute(_studies.insert().values(name=name)).inserted_primary_key
            assert study is not None
            c.execute(_events.insert(), {**_row(first), "study": study[0], "seq": 0})
            return True

        try:
            return self._run(work)
        except StoreError as error:
            if isinstance(error.__cause__, IntegrityError):  # another process was first
                return False
            raise

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        """See Store."""
        return self._run(lambda c: self._read(c, name, start, stop), write=False)

    def _read(self, c: sa.Connection, name: str, start: int, stop: int | None) -> Iterator[Event]:
        study = self._id(c, name)
        columns = [_events.c[n] for n in _COLUMNS]
        query = (
            sa.select(*columns)
            .where(_events.c.study == study, _events.c.seq >= start)
            .order_by(_events.c.seq)
        )
        rows = c.execute(query if stop is None else query.where(_events.c.seq < stop)).fetchall()
        metrics = self._read_metrics(c, study, start) if rows else {}
        return (_event(row, metrics.get(row[0], {})) for row in rows)

    def _read_metrics(self, c: sa.Connection, study: int, start: int) -> dict[int, dict[str, float]]:
        found: dict[int, dict[str, float]] = {}
        t = _metrics.c
        for seq, name, value in c.execute(
            sa.select(t.seq, t.name, t.value).where(t.study == study, t.seq >= start)
        ):
            found.setdefault(seq, {})[name] = math.nan if value is None else value
        return found

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
            head = c.scalar(sa.select(sa.func.max(_events.c.seq)).where(_events.c.study == study))
            position = 0 if head is None else head + 1
            if position > seen:
                self._compare(c, study, seen, about)
            rows = [{**_row(e), "study": study, "seq": position + i} for i, e in enumerate(events)]
            c.execute(_events.insert(), rows)
            self._append_metrics(c, study, position, events)
            self._set_lease(c, study, lease)
            return int(position)

        return self._run(work)

    @staticmethod
    def _compare(c: sa.Connection, study: int, seen: int, about: int | None) -> None:
        matters = _events.c.kind.in_(_MOVE_KINDS) if about is None else _events.c.trial == about
        query = (
            sa.select(_events.c.seq).where(_events.c.study == study, _events.c.seq >= seen, matters).limit(1)
        )
        if c.scalar(query) is not None:
            raise Conflict

    @staticmethod
    def _append_metrics(c: sa.Connection, study: int, position: int, events: Sequence[Event]) -> None:
        rows = [
            {"study": study, "seq": position + i, "name": name, "value": _nullable(value)}
            for i, e in enumerate(events)
            if isinstance(e, ev.Reported)
            for name, value in e.metrics.items()
        ]
        if rows:
            c.execute(_metrics.insert(), rows)

    @staticmethod
    def _set_lease(c: sa.Connection, study: int, lease: Lease | Release | None) -> None:
        if lease is None:
            return
        row = (_leases.c.study == study) & (_leases.c.trial == lease.trial)
        if isinstance(lease, Release):
            c.execute(_leases.delete().where(row))
            return
        values = {n: getattr(lease, n) for n in ("attempt", "holder", "expires", "renewed")}
        if not c.execute(_leases.update().where(row).values(values)).rowcount:
            c.execute(_leases.insert().values(study=study, trial=lease.trial, **values))

    def leases(self, name: str) -> list[Lease]:
        """See Store."""
        t = _leases.c
        columns = (t.trial, t.attempt, t.holder, t.expires, t.renewed)

        def work(c: sa.Connection) -> list[Lease]:
            query = sa.select(*columns).where(t.study == self._id(c, name))
            return [Lease(*row) for row in c.execute(query)]

        return self._run(work, write=False)

    def renew(self, name: str, lease: Lease) -> None:
        """See Store."""

        def work(c: sa.Connection) -> None:
            row = (_leases.c.study == self._id(c, name)) & (_leases.c.trial == lease.trial)
            mine = row & (_leases.c.holder == lease.holder) & (_leases.c.attempt == lease.attempt)
            c.execute(_leases.update().where(mine).values(expires=lease.expires, renewed=lease.renewed))

        self._run(work)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _id(self, c: sa.Connection, name: str, lock: bool = False) -> int:
        if name in self._ids and (not lock or c.dialect.name == "sqlite"):  # SQLite locks by BEGIN IMMEDIATE
            return self._ids[name]
        query = sa.select(_studies.c.id).where(_studies.c.name == name)
        study = c.scalar(query.with_for_update() if lock else query)
        if study is None:
            raise StoreError(f"there is no study {name!r} in {self.url}")
        self._ids[name] = int(study)
        return int(study)

    def _run(self, work: Callable[[sa.Connection], T], write: bool = True) -> T:
        """`work` in one transaction, tried again a few times while the database is busy."""
        if os.getpid() != self._pid:  # connections do not survive a fork
            self._engine.dispose(close=False)
            self._pid = os.getpid()
        for attempt in range(_ATTEMPTS):
            try:
                with self._transaction(write) as c:
                    return work(c)
            except (SQLAlchemyError, OSError) as error:
                if attempt == _ATTEMPTS - 1 or not _is_busy(error):
                    raise StoreError(f"{self.url}: {_cause(error)}") from error
                time.sleep(random.uniform(0.0, 0.05 * 2**attempt))
        raise AssertionError("unreachable")

    @contextmanager
    def _transaction(self, write: bool) -> Iterator[sa.Connection]:
        with self._engine.connect() as c:
            c = c.execution_options(haltune_write=write)
            with c.begin():
                yield c

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"])  # type: ignore[misc]


def _is_busy(error: Exception) -> bool:
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    text = str(error)
    return any(
        word in text
        for word in ("database is locked", "database table is locked", "already exists", "deadlock")
    )


def _cause(error: Exception) -> str:
    text = str(getattr(error, "orig", None) or error)
    if "disk is full" in text:
        return f"{text}: make room, then report again; nothing recorded is lost"
    if "readonly" in text:
        return f"{text}: haltune needs to write there; check the permissions of the file and its folder"
    if "unable to open" in text:
        return f"{text}: does the folder exist, and may this user write there?"
    return text


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
