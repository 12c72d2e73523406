"""Open a store from a URL ("sqlite:///search.db"), a path, or None for memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from haltune._utils.checks import check_counts, check_seconds, number, pythonic
from haltune._utils.disk import StrPath
from haltune.errors import InvalidInput, StoreError
from haltune.hints import KnowsArguments

from .base import Store
from .memory import MemoryStore

if TYPE_CHECKING:
    from .sql import SqlStore


@dataclass(frozen=True)
class Storage(KnowsArguments):
    """Location of a study's log, and time limits for workers and the database server.

    Args:
        url: A path ending in .db, or a URL ("sqlite:///search.db", "postgresql://..."). Default: None, memory.
        lease: Seconds after which a silent worker counts as lost. Use at least five times the longest epoch.
            Default: 600.
        max_retries: Number of times a trial is offered again after its worker was lost. Default: 2.
        patience: Seconds that asks and reports wait for a database server that does not answer. Default: 600.

    Raises:
        InvalidInput: If a number is out of range.

    Example:
        >>> storage = Storage("search.db", lease=120, max_retries=20)
        >>> study = Study({"x": Float(0.0, 1.0)}, "acc", storage, max_epochs=3, seed=0, budget="1 trial")
        >>> study.store.url
        'sqlite:///search.db'
    """

    url: StrPath | Store | None = None
    lease: float = 600.0
    max_retries: int = 2
    patience: float = 600.0

    def __post_init__(self) -> None:
        pythonic(self)
        check_seconds(lease=self.lease)
        check_counts(max_retries=self.max_retries)
        object.__setattr__(self, "lease", float(self.lease))
        object.__setattr__(self, "patience", number("patience", self.patience))
        if not self.patience >= 0.0:
            raise InvalidInput(f"patience={self.patience!r}: use the seconds to wait for a server, 0 or more")


def open_store(where: StrPath | Store | Storage | None, *, reading: bool = False) -> Store:
    """Open a store from the argument `store` of a Study.

    Args:
        where: A URL, "sqlite:///search.db" or "postgresql://..."; a path that ends in .db or .sqlite; None for memory;
            a Storage; or a store.
        reading: If True, nothing is written, created or locked; the store must exist. Default: False.

    Returns:
        The store.

    Raises:
        InvalidInput: If it is none of these.
        StoreError: If the store cannot be opened.

    Example:
        >>> study = Study({"x": Float(0.0, 1.0)}, "acc", "search.db", max_epochs=1, seed=0, budget="1 trial")
        >>> open_store("search.db", reading=True).names()
        ['study']
    """
    where = where.url if isinstance(where, Storage) else where
    if where is None or where == "memory":
        return MemoryStore()
    if isinstance(where, (str, os.PathLike)):
        url = os.fspath(where)
        if "://" not in url or "\0" in url:
            if not url.endswith((".db", ".sqlite", ".sqlite3")) or "\0" in url:
                memory = "" if reading else ", or None for memory"
                raise InvalidInput(
                    f"store={url!r}: use a URL such as 'sqlite:///search.db', or a path that ends in .db{memory}"
                )
            if set(url) & set("\n\r\t"):
                why = "Python reads a backslash and a letter, such as \\n, as one character"
                raise InvalidInput(f"store={url!r}: {why}. Write r{url!r}, or use /")
            url = f"sqlite:///{url}"
        return open_sql(url, reading=reading)
    if not isinstance(where, Store):
        hint = ". To give a policy, use policy=" if hasattr(where, "propose") else ""
        hint = f". To give the number of epochs, use max_epochs={where}" if isinstance(where, int) else hint
        raise InvalidInput(f"store={where!r}: use a URL such as 'sqlite:///search.db', a path, or None{hint}")
    return where


def open_sql(url: str, clock: Callable[[], float] | None = None, *, reading: bool = False) -> SqlStore:
    """Open a store in SQLite or PostgreSQL. clock: returns seconds since the epoch; None: the store's own clock."""
    match url.partition("://")[0]:
        case "sqlite" | "sqlite+pysqlite":
            from .sqlite import SqliteStore  # imports SQLAlchemy, which a study in memory does not need

            return SqliteStore(url, clock, reading=reading)
        case "postgresql" | "postgresql+psycopg":
            from .postgres import PostgresStore

            return PostgresStore(url, clock, reading=reading)
    from .sql import shown

    raise StoreError(
        f"cannot open {shown(url)}: the store must be SQLite or PostgreSQL. Use 'sqlite:///search.db' or "
        "'postgresql+psycopg://user:password@host/database'"
    )


def only_study(store: Store, name: str | None) -> str:
    """Return `name`, or the name of the only study. Raises StoreError with a list of the studies."""
    names = store.names()
    if name in names or (name is None and len(names) == 1):
        return name or names[0]
    if not names:
        raise StoreError(f"{store.url} has no study yet. Start your program, or `haltune run`")
    listing = ", ".join(map(repr, names))
    if name is None:
        raise StoreError(f"{store.url} has {len(names)} studies: {listing}. Choose one with --name or name=")
    raise StoreError(f"there is no study {name!r} in {store.url}: it has {listing}. Choose one with --name or name=")
