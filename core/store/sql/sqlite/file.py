"""The files of a SQLite database: it, its journal -wal that holds what was recorded last, and the -shm of its users.

Nothing keeps a tidy user, or a program that synchronises folders, from copying or deleting one of them without
the others. It is noticed where it can be.
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, unquote

import sqlalchemy as sa

from haltune._utils.disk import unreadable
from haltune._utils.forks import doors
from haltune.errors import StoreError, warn

from .journal import Journal, as_it_lies, size

Inode = tuple[int, int]  # device and number
_ABSENT = (-1, -1)  # of what is not there
_MARKS = "SELECT seq, checksum FROM haltune_events WHERE study = ? AND seq >= ? ORDER BY seq LIMIT 2"


def path_of(database: str) -> str:
    """The path in what a SQLite URL names, which may be a URI itself."""
    if not database.startswith("file:"):
        return database
    return unquote(database.removeprefix("file:").partition("?")[0], errors="surrogateescape")


def path_at(address: str) -> str:
    """The path of the database at a SQLite URL."""
    return path_of(sa.engine.make_url(address).database or "")


def from_anywhere(address: str) -> str:
    """The address of a database for a process in another folder. Raises StoreError where this one has none any more."""
    url = sa.engine.make_url(address)
    if not (database := url.database) or database == ":memory:" or url.query.get("mode") == "memory":
        return address
    is_uri = database.startswith("file:") and sa.util.asbool(url.query.get("uri", False))
    try:
        whole = _whole_uri(database) if is_uri else os.path.abspath(database)
    except FileNotFoundError as error:
        raise StoreError(
            f"{address}: the folder that this process is in was deleted: name the whole path of the database"
        ) from error
    quoted = whole.replace("%", "%25").replace("?", "%3F")
    for written in (whole, quoted):  # which of them is read as meant, the version of SQLAlchemy says
        found = "".join((url.drivername, ":///", written, *address.partition("?")[1:]))
        if sa.engine.make_url(found).database == whole:
            return found
    return address


def _whole_uri(database: str) -> str:
    path = database.removeprefix("file:")
    if path.startswith(("/", ":memory:")):
        return database
    return f"file:{quote(os.getcwd(), errors='surrogateescape')}/{path}"


def need_file(path: str, give: str) -> None:
    """Raises StoreError for a file that is not there, or that this user may not read. give: what to name instead."""
    if why := unreadable(Path(path)):
        raise StoreError(f"{path} cannot be read: {why}. Let it read there, or copy the file to where it may")
    if not os.path.exists(path):
        raise StoreError(f"there is no file {path}: give {give}")


def without_journal(path: str) -> bool:
    """True when the journal is not there: nobody uses the file, or it is a copy.

    Nothing here opens a file by itself: to close it again would take away the locks that SQLite holds on it.
    """
    return os.path.exists(path) and not size(f"{path}-wal")


def to_read(path: str) -> str:
    """The URI that only reads: a file that nobody uses as it lies there, for SQLite would make others beside it."""
    return as_it_lies(path) if without_journal(path) else f"{Path(path).absolute().as_uri()}?mode=ro"


def _inode(path: str) -> Inode:
    try:
        status = os.stat(path)
    except OSError:
        return _ABSENT
    return status.st_dev, status.st_ino


def _opened() -> set[Inode]:
    """The files that this process has open, and what is not there; empty where the system does not tell."""
    try:
        return {_ABSENT, *(_inode(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))}
    except OSError:
        return set()


class File:
    """The files of an engine: SQLite itself would write on into one that has no name any more."""

    def __init__(self, engine: sa.Engine, url: str, writes: bool) -> None:
        self._engine, self._url, self._writes = engine, url, writes
        self.path = path_of(engine.url.database or "")
        self.journal = self._journal_of(engine)
        self._known: Inode | None = None
        self._journal: tuple[Inode, Inode] | None = None  # -wal and -shm, while a connection uses them

    def remember(self) -> None:
        """This is the file from now on."""
        self._known = _inode(self.path)
        self.now_by(self._engine)

    def now_by(self, engine: sa.Engine) -> None:
        """Connections are this engine's from now on: those of another process are no more."""
        if engine is not self._engine:
            self._engine, self.journal = engine, self._journal_of(engine)
        self._journal = None

        @sa.event.listens_for(engine, "close")
        def _close(dbapi: object, _: object) -> None:
            self._journal = None  # the last to close them deletes them

    def _journal_of(self, engine: sa.Engine) -> Journal | None:
        return Journal(engine, self.path) if self._writes else None

    def whole(self) -> bool:
        """True when the files are those that were there before."""
        return self._known is None or (
            _inode(self.path) == self._known and self._journal in (None, self._beside())
        )

    def look(self) -> None:
        """Before a transaction. Raises StoreError for a file that was deleted or replaced while it was in use.

        What was recorded in a journal that was deleted is still at hand, and is written to the database.
        """
        if self._known is None:
            return
        if _inode(self.path) != self._known:
            raise StoreError(
                f"{self._url}: the file was deleted or replaced while it was in use; put it back, or open the "
                "study anew"
            )
        if self._journal is None or (now := self._beside()) == self._journal:
            return
        if now[0] not in (_ABSENT, self._journal[0]):
            raise StoreError(
                f"{self._url}: its -wal file was deleted or replaced while it was in use, and another process has "
                "begun a new one: end all programs that use the file, and start them again"
            )
        self._rescue()

    def used(self) -> None:
        """After a transaction: these are the files that our connections use. Raises StoreError when they are others."""
        if self._journal is not None or self._known is None or not self._writes:
            return
        found = self._beside()
        if (opened := _opened()) and not opened.issuperset(found):
            raise StoreError(
                f"{self._url}: its -wal or -shm file was deleted while it was in use, or this process was forked from "
                "one that used it before: end all programs that use the file, and start them again"
            )
        self._journal = None if _ABSENT in found else found

    def _rescue(self) -> None:
        with doors.within():
            raw = self._engine.raw_connection()
            try:
                busy, pages, written = raw.cursor().execute("PRAGMA wal_checkpoint(FULL)").fetchone()
            finally:
                raw.close()
        if busy or pages != written:
            raise StoreError(
                f"{self._url}: its -wal file was deleted while it was in use; end what else reads the file"
            )
        self._engine.dispose()
        self._journal = None
        warn(
            f"{self._url}: its -wal or -shm file was deleted while it was in use. What they held was saved this time: "
            "let them be while a search runs"
        )

    def _beside(self) -> tuple[Inode, Inode]:
        return _inode(f"{self.path}-wal"), _inode(f"{self.path}-shm")

    def marks(self, study: int, start: int) -> list[tuple[int, int | None]]:
        """Up to two events from a position on, for a quarter of what the query costs; none where that says why."""
        try:
            with doors.within():
                raw = self._engine.raw_connection()
                try:
                    found: list[tuple[int, int | None]] = (
                        raw.cursor().execute(_MARKS, (study, start)).fetchall()
                    )
                    return found
                finally:
                    raw.close()
        except Exception:  # the query says what is wrong
            return []
