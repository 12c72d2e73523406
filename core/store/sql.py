"""Event log in a SQL database, through SQLAlchemy Core: the common part of SQLite and PostgreSQL.

One append-only table contains the events of all studies of a database; only leases and names change. Transactions are
short. While another transaction blocks one, it is tried again, for BUSY_TIMEOUT seconds. After Ctrl-C has ended such a
wait, others are short until the database answers.

In statements, `of_study` and `of_trial` select rows; other names are columns to set. Statements are built once, because
SQLAlchemy takes longer to build an expression than to run it.
"""

from __future__ import annotations

import logging
import random
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError, StatementError

from haltune._utils.forks import fork_handlers
from haltune._utils.interruption import heard_in_wait
from haltune._utils.signals import undisturbed
from haltune.errors import InvalidInput, StoreAway, StoreError, StoreReadOnly, installing
from haltune.log.events import ADVICE, MOVES, Event

from . import rows
from .base import CLAIM, LAST, Lease, Release, check_new

T = TypeVar("T")
Mark = tuple[int, int]  # position and checksum of an event; another log has different ones

BUSY_TIMEOUT = 60.0  # seconds that a transaction waits for another one
_BRIEFLY = 1.0  # likewise, after Ctrl-C
_PAUSE = 0.05  # seconds between tries, at most
_SILENCE = 5.0  # seconds of waiting before a warning
_OPTUNAS = {"studies", "trials", "version_info"}  # tables

_log = logging.getLogger("haltune")

# -- statements -----------------------------------------------------------------------------

_events, _leases, _studies = rows.events, rows.leases, rows.studies
_of_study = _events.c.study == sa.bindparam("of_study")
_since = _of_study & (_events.c.seq >= sa.bindparam("start"))
_leases_of_study = _leases.c.study == sa.bindparam("of_study")
_held = _leases_of_study & (_leases.c.trial == sa.bindparam("of_trial"))
_LEASED: dict[str, Any] = {name: sa.bindparam(name) for name in ("attempt", "holder", "expires", "renewed")}


EVENTS = (
    sa.select(*(_events.c[n] for n in rows.READ))
    .where(_since, _events.c.seq < sa.bindparam("stop"))
    .order_by(_events.c.seq)
)
METRICS = (
    sa.select(rows.metrics.c.seq, rows.metrics.c.name, rows.metrics.c.value)
    .where(rows.metrics.c.study == sa.bindparam("of_study"))
    .where(rows.metrics.c.seq >= sa.bindparam("start"), rows.metrics.c.seq < sa.bindparam("stop"))
    .order_by(rows.metrics.c.seq, rows.metrics.c.name)
)
HEAD = sa.select(sa.func.max(_events.c.seq)).where(_of_study)
MARKS = sa.select(_events.c.seq, _events.c.checksum).where(_since).order_by(_events.c.seq)
MOVED = sa.select(_events.c.seq).where(_since, _events.c.kind.in_([k.kind for k in MOVES])).limit(1)
TOUCHED = sa.select(_events.c.seq).where(_since, _events.c.trial == sa.bindparam("of_trial")).limit(1)
NEW_EVENTS, NEW_METRICS = _events.insert(), rows.metrics.insert()

_NAMES = sa.select(_studies.c.name).order_by(_studies.c.id)
_ID = sa.select(_studies.c.id).where(_studies.c.name == sa.bindparam("of_name"))
_ID_LOCKED = _ID.with_for_update()
_NEW_STUDY = _studies.insert()
_UNNAME = _studies.update().where(_studies.c.id == sa.bindparam("of_study")).values(name="")
_FORGET = (
    _events.delete().where(_of_study),
    _leases.delete().where(_leases_of_study),
    _studies.delete().where(_studies.c.id == sa.bindparam("of_study")),
)
_ALL_LEASES = sa.select(_leases.c.trial, *(_leases.c[name] for name in _LEASED)).where(_leases_of_study)
_NEW_LEASE, _SET_LEASE = _leases.insert(), _leases.update().where(_held).values(_LEASED)
_RENEW = (
    _leases.update()
    .where(_held, _leases.c.holder == sa.bindparam("of_holder"), _leases.c.attempt == sa.bindparam("of_attempt"))
    .values(expires=sa.bindparam("expires"), renewed=sa.bindparam("renewed"))
)
_DROP_LEASE = _leases.delete().where(_held)


def set_lease(c: sa.Connection, study: int, lease: Lease | Release) -> None:
    if isinstance(lease, Release):
        c.execute(_DROP_LEASE, {"of_study": study, "of_trial": lease.trial})
        return
    values = {name: getattr(lease, name) for name in _LEASED}
    if not c.execute(_SET_LEASE, {"of_study": study, "of_trial": lease.trial, **values}).rowcount:
        c.execute(_NEW_LEASE, {"study": study, "trial": lease.trial, **values})


# -- errors ---------------------------------------------------------------------------------

_BUSY = ("database is locked", "database table is locked", "already exists", "pg_type_typname_nsp_index")
_LOCKED = "Another process keeps it locked. Check for a stopped process; keep SQLite files on a local disk"
_ADVICE = {
    "database is locked": _LOCKED,
    "database table is locked": _LOCKED,
    "lock timeout": "Another session keeps the study locked. Find it in pg_stat_activity on the server",
    'relation "haltune_': "A table of haltune was dropped, or the database was created again, while this program used "
    "it. Restore a backup of all its tables, or drop the other tables too and start another study",
    "disk is full": "Free some space, then continue: nothing recorded is lost",
    "No space left": "Free some space on the server's disk, then continue: nothing recorded is lost",
    "disk I/O error": "Check whether the disk is full or missing. Nothing recorded is lost",
    "readonly": "haltune needs to write there. Check the permissions of the file and its folder",
    "read-only": "haltune needs to write there. Check whether the server is a standby or the user is read-only",
    "permission denied": "haltune needs to create its tables and to write there",
    "no schema has been selected": "Set the role's search_path to an existing schema",
    "has no equivalent in encoding": "Create the database with ENCODING 'UTF8', which has all characters",
    "unable to open": "Check that the folder exists and that this user may write there",
    "not a database": "Another program wrote the file. Use another file for the study",
    "codec can't decode": "The file is damaged. Restore a copy of it (with its -wal file), or start another study",
    "malformed": "The file is damaged. Restore a copy of it (with its -wal file), or start another study",
    "prepared statement": "A pooler gives each transaction another session. In pgbouncer, set pool_mode = session",
}
_PASSWORD = re.compile(r"(://[^:/?#@]*:).*(?=@)", re.DOTALL)
_SECRET = re.compile(r"([?&][^?&=]*(?:password|passwd|secret|token)[^?&=]*=)[^&]*", re.IGNORECASE)


def shown(address: str) -> str:
    """Return the URL without its passwords and other secrets."""
    return _SECRET.sub(r"\1***", _PASSWORD.sub(r"\1***", address))


def message_of(error: Exception) -> str:
    """Return the database's message, without the statement that PostgreSQL adds."""
    text = str(error.orig if isinstance(error, StatementError) and error.orig else error)
    return text.partition("\nLINE ")[0].partition("\nCONTEXT: ")[0].strip()


def explained(url: str, error: Exception, away: bool = False) -> StoreError:
    """Return the error for users: the database's message and advice. away: the server cannot be reached."""
    text = message_of(error)
    if away:
        return StoreAway(f"{url}: {text}. Check that the server runs and that this machine can reach it")
    advice = [advice for sign, advice in _ADVICE.items() if sign in text]
    kind = StoreReadOnly if "readonly" in text or "read-only" in text else StoreError
    return kind(f"{url}: " + ". ".join([text, *advice[:1]]))


# -- the store ------------------------------------------------------------------------------


class SqlStore(ABC):
    """Event log in a database, for many threads and processes.

    Args:
        address: URL, with the password.
        clock: Returns seconds since the epoch.
        reading: If True, nothing is written, created or locked.

    Raises:
        StoreError: If the database cannot be opened.
    """

    folder: Path | None = None
    _page_size: ClassVar[int]  # events per read
    _hurry: ClassVar[str] = ""  # SQL: do not wait for the disk. If a crash loses a lease, it is renewed later

    def __init__(self, address: str, clock: Callable[[], float], reading: bool) -> None:
        self._address, self._reading = address, reading
        self.now = clock  # that all workers share: this machine's with a file, the server's with PostgreSQL
        self.url = shown(address)
        self._hastens = False  # Ctrl-C ended a wait
        self.outages = 0  # connections closed by a server: events that were read before may be lost
        self._ids: dict[str, int] = {}
        self._first: dict[str, Mark] = {}  # study -> its first event, which never changes
        self._last: dict[str, tuple[Mark, int]] = {}  # study -> the last event seen here, and `outages` before it
        try:
            self.engine = self._new_engine()
        except (SQLAlchemyError, ImportError) as error:
            raise StoreError(
                f"cannot open {self.url}: {error}. Install the driver: {installing('postgres')}"
            ) from error
        fork_handlers.add(self)
        self._prepare()

    def after_fork(self) -> None:
        """Start with an empty pool: connections belong to the parent process."""
        self.engine.dispose(close=False)

    def address(self) -> str:
        return self._address

    def names(self) -> list[str]:
        return self._run(lambda c: list(c.scalars(_NAMES)), write=False)

    def create(self, name: str, first: Event) -> bool:
        def exists(c: sa.Connection) -> bool:
            return c.scalar(_ID, {"of_name": name}) is not None

        if self._run(exists, write=False):  # needs no lock
            return False
        check_new([first])
        try:
            return self._run(lambda c: not exists(c) and self._made(c, name, first) is not None)
        except StoreError as error:
            if isinstance(error.__cause__, IntegrityError):  # another process was first
                return False
            raise

    def replace(self, name: str, first: Event, seen: int) -> bool:
        """See Store. The new study has another number, so processes with the old one cannot write to the new one."""
        check_new([first])

        def work(c: sa.Connection) -> int | None:
            old = {"of_study": self._key(c, name)}
            if c.scalar(HEAD, old) != seen - 1:
                return None
            c.execute(_UNNAME, old)
            key = self._made(c, name, first)
            for statement in _FORGET:
                c.execute(statement, old)
            return key

        found = self._run(work)
        if found is not None:
            self._ids[name] = found
            self._first.pop(name, None)
            self._last.pop(name, None)
        return found is not None

    def _made(self, c: sa.Connection, name: str, first: Event) -> int:
        key = c.execute(_NEW_STUDY, {"name": name}).inserted_primary_key
        assert key is not None
        c.execute(NEW_EVENTS, rows.row(first, key[0]))
        return int(key[0])

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        """See Store. Reads page by page, to the end of the log at the last page."""
        end = LAST if stop is None else stop
        while start < end:
            page = self._run(lambda c, start=start: self._page(c, name, start, end), write=False)  # type: ignore[misc]
            yield from page
            if len(page) < self._page_size:
                return
            start += len(page)

    @abstractmethod
    def append(
        self, name: str, events: Sequence[Event], *, seen: int, about: int | None, lease: Lease | Release | None = None
    ) -> int:
        """See Store. Each database has its own statements for this."""

    def leases(self, name: str) -> list[Lease]:
        return [lease for lease in self._leases_of(name) if lease.trial != CLAIM]

    def claimed(self, name: str) -> Lease | None:
        return next((lease for lease in self._leases_of(name) if lease.trial == CLAIM), None)

    def _leases_of(self, name: str) -> list[Lease]:
        def work(c: sa.Connection) -> list[Lease]:
            return [Lease(*row) for row in c.execute(_ALL_LEASES, {"of_study": self._id(c, name)})]

        found = self._run(work, write=False)
        for one in found:
            if not one.fits:
                raise StoreError(f"a lease of {self._whose(name)} is invalid: {one!r:.200}. {ADVICE}")
        return found

    def renew(self, name: str, lease: Lease) -> None:
        check_new((), lease)
        mine = {"of_trial": lease.trial, "of_holder": lease.holder, "of_attempt": lease.attempt}

        def work(c: sa.Connection) -> None:
            if self._hurry:
                c.exec_driver_sql(self._hurry)
            times = {"expires": lease.expires, "renewed": lease.renewed}
            c.execute(_RENEW, {"of_study": self._id(c, name), **mine, **times})

        self._run(work)

    def claim(self, name: str, claim: Lease | None, instead_of: Lease | None) -> bool:
        check_new((), claim)

        def work(c: sa.Connection) -> bool:
            if self._hurry:
                c.exec_driver_sql(self._hurry)
            study = self._key(c, name)
            held = (Lease(*row) for row in c.execute(_ALL_LEASES, {"of_study": study}))
            if next((lease for lease in held if lease.trial == CLAIM), None) != instead_of:
                return False
            set_lease(c, study, Release(CLAIM) if claim is None else claim)
            return True

        return self._run(work)

    def close(self) -> None:
        self.engine.dispose()

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self._address} | ({"reading": True} if self._reading else {})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    # -- transactions -------------------------------------------------------------------------

    def _run(self, work: Callable[[sa.Connection], T], write: bool = True) -> T:
        """Run `work` in one transaction; try again while the database is busy.

        Raises StoreError; StoreAway if the server cannot be reached.
        """
        try:
            found = self._try(work, write)
        except BaseException as error:
            self._hastens = self._hastens or not isinstance(error, Exception)
            raise
        self._hastens = False
        return found

    def _try(self, work: Callable[[sa.Connection], T], write: bool) -> T:
        started, lost, warned = time.monotonic(), False, False
        while True:
            try:
                return self._transact(work, write)
            except (SQLAlchemyError, OSError, UnicodeError) as error:  # UnicodeError: a damaged file's text
                if isinstance(error, OSError) and error.errno is None:
                    raise  # from a user's signal handler
                away, waited = self._is_away(error), time.monotonic() - started
                self.outages += away
                # a restarted server has closed all connections: one more try opens new ones
                cut = away and not lost and getattr(error, "connection_invalidated", False)
                lost = lost or away
                if not (self._is_busy(error) or cut) or waited >= (_BRIEFLY if self._hastens else BUSY_TIMEOUT):
                    raise explained(self.url, error, away) from error
                if waited > _SILENCE and not warned:
                    warned = True
                    _log.warning("waiting: %s", explained(self.url, error, away))
            with undisturbed.heard, heard_in_wait() if warned else nullcontext():
                time.sleep(random.uniform(0.0, _PAUSE))

    @abstractmethod
    def _new_engine(self) -> sa.Engine:
        """Return an engine."""

    @abstractmethod
    def _transact(self, work: Callable[[sa.Connection], T], write: bool) -> T:
        """Run `work` with a connection in one transaction, and commit. After Ctrl-C no lock remains."""

    def _is_busy(self, error: Exception) -> bool:
        """Return whether another process caused the error, so that the transaction may be tried again."""
        return any(sign in message_of(error) for sign in _BUSY)

    def _is_away(self, error: Exception) -> bool:
        return False

    # -- tables -------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Create missing tables; only that needs a lock."""

        def look(c: sa.Connection) -> list[str] | None:
            inspected = sa.inspect(c)
            return None if inspected.has_table(_leases.name) else inspected.get_table_names()

        names = self._run(look, write=False)
        if names is None:
            return
        optunas, a_file = _OPTUNAS.issubset(names), self.folder is not None
        others = names and a_file and rows.meta.tables.keys().isdisjoint(names)
        if not (self._reading or optunas or others):
            self._run(lambda c: rows.meta.create_all(c, checkfirst=True))
            return
        holds = ", ".join(names[:9]) + ", ..." * (len(names) > 9) or "nothing"
        text = f"{self.url} is not a store of haltune: it contains {holds}"
        if not names and a_file:
            text += ". If it is a copy of one, its -wal file is missing"
        if optunas:
            text += ". It belongs to Optuna: haltune.optuna.from_study(study) reads its studies"
        raise StoreError(text if self._reading else f"{text}. Use another file or database for the search")

    def _page(self, c: sa.Connection, name: str, start: int, stop: int) -> list[Event]:
        """Return up to one page of events from `start`. The event before them must be the one seen earlier."""
        outages, known = self.outages, self._known(name)
        before = known if known is not None and known[0] == start - 1 else None
        # positions have no gaps. Without this bound PostgreSQL may sort all later events for each page
        bounds = {"of_study": self._id(c, name), "start": start, "stop": min(stop, start + self._page_size)}
        found = c.execute(EVENTS, bounds | {"start": start - (before is not None)}).fetchall()
        if before is not None:
            if not found or (found[0][0], found[0][6]) != before:
                raise self._gone(before, name)
            found = found[1:]
        if not found:
            return []
        measured: dict[int, dict[str, float | None]] = {}
        for seq, metric, value in c.execute(METRICS, bounds):
            measured.setdefault(seq, {})[metric] = value
        page = []
        for position, row in enumerate(found, start):
            if row[0] != position:
                raise self._damaged(position, name, f"it is missing; the next is event {row[0]}")
            try:
                page.append(rows.event(row, measured.get(position, {})))
            except InvalidInput as error:
                raise self._damaged(position, name, str(error)) from error
        self._saw(name, (found[-1][0], found[-1][6]), outages)
        if not start:
            self._first.setdefault(name, (found[0][0], found[0][6]))
        return page

    def _known(self, name: str) -> Mark | None:
        """Return the mark of the last event read or written here; None after a server's crash, which may lose it."""
        known, outages = self._last.get(name, (None, 0))
        return known if outages == self.outages else None

    def _saw(self, name: str, last: Mark, outages: int) -> None:
        known = self._known(name)
        if known is None or known[0] <= last[0]:
            self._last[name] = last, outages

    def _gone(self, known: Mark, name: str) -> StoreError:
        return StoreError(
            f"event {known[0]} of {self._whose(name)} is missing: while this program used the study, the study was "
            "deleted, created again, or overwritten by an older copy. haltune writes no more to it. Stop all programs "
            "that use it, restore the right log, and start them again. Or open the study again with Study(...)"
        )

    def _damaged(self, position: int, name: str, what: str) -> StoreError:
        return StoreError(f"event {position} of {self._whose(name)}: {what}. {ADVICE}")

    def _whose(self, name: str) -> str:
        return f"the study {name!r} in {self.url}"

    def _id(self, c: sa.Connection, name: str) -> int:
        if name not in self._ids:
            self._ids[name] = self._key(c, name, _ID)
        return self._ids[name]

    def _key(self, c: sa.Connection, name: str, statement: sa.Select[Any] = _ID_LOCKED) -> int:
        """Return a study's number. By default lock its row until the transaction ends (SQLite locks the file)."""
        study = c.scalar(statement, {"of_name": name})
        if study is None:
            raise self._unknown(name)
        self._ids[name] = int(study)
        return int(study)

    def _unknown(self, name: str) -> StoreError:
        return StoreError(f"there is no study {name!r} in {self.url}")
