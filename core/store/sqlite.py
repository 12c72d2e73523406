"""Event log in a SQLite file, for processes on one machine.

The file is in WAL mode: readers never wait, and a writer locks the file when its transaction starts. SQLite itself
waits for a lock only briefly, because Ctrl-C cannot interrupt it; then `SqlStore` tries again.

A report is not flushed to the disk: after a power failure the newest ones may be missing. The events after which
checkpoints are deleted are flushed, so the log never names a file that is gone.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from haltune._utils import disk, forks
from haltune._utils.signals import undisturbed
from haltune.errors import InvalidInput, StoreError, StoreReadOnly, warn
from haltune.log.events import Checkpointed, Ended, Event, Kept

from . import rows, sql
from .base import CLAIM, Conflict, Lease, Release, check_new

T = TypeVar("T")
_FLUSHED = {Checkpointed, Kept, Ended}  # after them older files are deleted
_READS = 10  # tries to read a file while it is written
_STEP = 0.1  # seconds that SQLite itself waits for a lock
_LINKED: set[tuple[int, int]] = set()  # files with several names, of which this process has warned
_MARKS = "SELECT seq, checksum FROM haltune_events WHERE study = ? AND seq >= ? ORDER BY seq LIMIT 2"


def path_at(address: str) -> str:
    path = address.partition("://")[2].removeprefix("/")
    if path in ("", ":memory:") or path.startswith("file:"):
        raise InvalidInput(
            f"store={address!r} names no file, and in memory each thread would have its own database. Use store=None "
            "for a study in memory, or a file, 'sqlite:///search.db'"
        )
    if "?" in path:
        raise InvalidInput(f"store={address!r}: a SQLite URL has no options. Use 'sqlite:///search.db'")
    return path


def need_file(path: str, give: str) -> None:
    """Raise StoreError if a file does not exist or cannot be read. give: advice for a missing file."""
    shut = [folder for folder in Path(path).absolute().parents if folder.is_dir() and not os.access(folder, os.X_OK)]
    if shut or (os.path.exists(path) and not os.access(path, os.R_OK)):
        why = f"enter the folder {shut[-1]}" if shut else f"read {path}"
        raise StoreError(f"{path} cannot be read: this user may not {why}. Change the permissions, or copy the file")
    if not os.path.exists(path):
        raise StoreError(f"there is no file {path}. Give {give}")


class SqliteStore(sql.SqlStore):
    """Event log in a SQLite file.

    Args:
        url: "sqlite:///" and a path.
        clock: Returns seconds since the epoch. Default: this machine's clock.
        reading: If True, nothing is written, created or locked. Default: False.

    Raises:
        InvalidInput: If the URL has no file.
        StoreError: If the file cannot be opened.
    """

    one_machine = True
    _page_size = 150  # with larger pages the garbage collector runs, which takes 20% of loading a log

    def __init__(self, url: str, clock: Callable[[], float] | None = None, *, reading: bool = False) -> None:
        path = path_at(url)
        if reading:
            need_file(path, "the database of the search, or its URL")
        try:
            # the training code may change the working directory; the checkpoints lie next to the file, not to a link
            self._path = os.path.realpath(path)
        except FileNotFoundError as error:
            raise StoreError(
                f"{url}: the working directory of this process was deleted. Give the full path of the database"
            ) from error
        if os.path.isdir(self._path):
            raise StoreError(f"{url}: {self._path} is a folder. Give a file, such as '{path}/search.db'")
        if path.startswith("~") and not os.path.isdir(os.path.dirname(path) or "."):
            whole = os.path.expanduser(path)
            raise StoreError(f"{url}: only a shell reads ~ as your home folder. Give the whole path, {whole!r}")
        if not os.path.isdir(folder := os.path.dirname(self._path)):
            raise StoreError(f"{url}: the folder {folder} does not exist. Create it, or give another path")
        self.folder = Path(self._path).with_suffix(".checkpoints")
        self._inode: tuple[int, int] | None = None  # device and number of the file, once it exists
        self._immutable = False  # True if the last connection reads a file that has no journal
        try:
            super().__init__(f"sqlite:///{self._path}", clock or time.time, reading)
        except StoreError as error:
            here = os.access(path, os.W_OK) and os.access(os.path.dirname(self._path), os.W_OK | os.X_OK)
            if not reading and os.path.exists(path) and not here:
                raise StoreReadOnly(str(error)) from error
            raise
        status = os.stat(self._path)
        self._inode = status.st_dev, status.st_ino
        if status.st_nlink > 1 and self._inode not in _LINKED:
            _LINKED.add(self._inode)
            warn(
                f"{self._path} has {status.st_nlink} names (hard links). SQLite keeps a journal next to each name, so "
                "two programs that open the file by different names damage it. Open it by one name only, or use a "
                "symbolic link."
            )

    def append(
        self, name: str, events: Sequence[Event], *, seen: int, about: int | None, lease: Lease | Release | None = None
    ) -> int:
        check_new(events, lease)

        def work(c: sa.Connection) -> tuple[int, sql.Mark | None]:
            study, known = self._id(c, name), self._known(name)
            if known is None:
                head = c.scalar(sql.HEAD, {"of_study": study})
                position = 0 if head is None else int(head) + 1
            else:
                there = c.execute(sql.MARKS, {"of_study": study, "start": known[0]}).fetchall()
                if not there or tuple(there[0]) != known:
                    raise self._gone(known, name)
                position = int(there[-1][0]) + 1
            if position > seen:
                since = {"of_study": study, "start": seen}
                asked = sql.MOVED if about is None else sql.TOUCHED
                if c.scalar(asked, since if about is None else {**since, "of_trial": about}) is not None:
                    raise Conflict
            added = [rows.row(event, study, seq) for seq, event in enumerate(events, position)]
            if added:
                c.execute(sql.NEW_EVENTS, added)
            if scalars := rows.metric_rows(events, study, position):
                c.execute(sql.NEW_METRICS, scalars)
            if lease is not None:
                sql.set_lease(c, study, lease)
            if about is None:
                sql.set_lease(c, study, Release(CLAIM))
            return position, (added[-1]["seq"], added[-1]["checksum"]) if added else None

        position, last = self._run(work)
        if last is not None:
            self._saw(name, last, 0)
        if not _FLUSHED.isdisjoint(map(type, events)):
            with suppress(OSError):
                disk.force(Path(f"{self._path}-wal"))
        return position

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        known = self._known(name)
        # called before each report, usually without new events: this takes a quarter of a transaction's time
        if known is not None and known[0] == start - 1 and self._marks(name, known[0]) == [known]:
            return iter(())
        return super().read(name, start, stop)

    def _marks(self, name: str, start: int) -> list[sql.Mark]:
        """Return up to two marks from `start` on; none after an error, which the next transaction raises."""
        try:
            with undisturbed, forks.held_off:
                raw = self.engine.raw_connection()
                try:
                    return list(raw.cursor().execute(_MARKS, (self._ids[name], start)).fetchall())
                finally:
                    raw.close()
        except Exception:
            return []

    def _new_engine(self) -> sa.Engine:
        def connect() -> sqlite3.Connection:
            options: Any = {"timeout": _STEP, "check_same_thread": False, "isolation_level": None}
            c: sqlite3.Connection
            if not self._reading:
                c = sqlite3.connect(self._path, **options)
                c.execute("PRAGMA journal_mode=WAL")
                c.execute("PRAGMA synchronous=NORMAL")
                c.execute("PRAGMA journal_size_limit=0")  # after a checkpoint the journal is short
                return c
            # without a journal no process uses the file: with immutable, SQLite creates no files next to it
            self._immutable = not self._journal_size()
            how = "immutable=1" if self._immutable else "mode=ro"
            c = sqlite3.connect(f"{Path(self._path).as_uri()}?{how}", uri=True, **options)
            return c

        # a search may start or end between reads, so each connection checks again
        pool = sa.NullPool if self._reading else sa.QueuePool
        engine = sa.create_engine("sqlite://", creator=connect, poolclass=pool)
        forks.closed_before.add(engine)
        return engine

    def _transact(self, work: Callable[[sa.Connection], T], write: bool) -> T:
        """See SqlStore. If a search starts or ends during a read, the read is repeated: no lock protects the file."""
        for _ in range(_READS if self._reading else 0):
            before = self._written()
            try:
                found = self._in_one(work, write)
            except (SQLAlchemyError, StoreError):
                if self._written() == before:
                    raise
                continue
            if not self._immutable or self._written() == before:
                return found
        return self._in_one(work, write)

    def _written(self) -> tuple[int, int, int]:
        """Return values that change if the file is written: time, size, and size of the journal."""
        try:
            status = os.stat(self._path)
        except OSError:
            return 0, 0, 0
        return status.st_mtime_ns, status.st_size, self._journal_size()

    def _in_one(self, work: Callable[[sa.Connection], T], write: bool) -> T:
        with undisturbed, forks.held_off:
            if self._inode is not None:
                self._need_same_file()
            with self.engine.connect() as c:  # rolls back if there is no commit
                # IMMEDIATE: a transaction that reads and then writes fails if another one writes in between
                c.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
                found = work(c)
                c.commit()
                return found

    def _need_same_file(self) -> None:
        """Raise StoreError if the file was deleted or replaced: SQLite would still write to the deleted file."""
        with suppress(OSError):
            status = os.stat(self._path)
            if (status.st_dev, status.st_ino) == self._inode:
                return
        raise StoreError(
            f"{self.url}: the file was deleted or replaced while it was in use. Put it back, or open the study again"
        )

    def _journal_size(self) -> int:
        try:
            return os.path.getsize(f"{self._path}-wal")
        except OSError:
            return 0

    def _page(self, c: sa.Connection, name: str, start: int, stop: int) -> list[Event]:
        found = super()._page(c, name, start, stop)
        end = start + len(found)
        if len(found) < min(self._page_size, stop - start):  # a server checks its own pages
            head = c.scalar(sql.HEAD, {"of_study": self._id(c, name)})
            if head is not None and end <= head < stop:
                raise self._damaged(end, name, f"it is missing, but the log continues to event {head}")
        return found
