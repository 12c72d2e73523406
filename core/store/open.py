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
    """Where a study's log is, and what happens when a worker or the database server does not answer.

    Args:
        url: A path ending in .db, or a URL ("sqlite:///search.db", "postgresql://..."). Default: None, memory.
        lease: Seconds after which a silent worker counts as lost, at least five times the longest epoch.
            Default: 600.
        max_retries: How often a trial is offered again after its worker was lost. Default: 2.
        patience: Seconds to wait for a database server that does not answer, in asks and reports. Default: 600.

    Raises:
        InvalidInput: For a number out of its range.

    Example:
        >>> storage = Storage("search.db", lease=120, max_retries=20)
        >>> study = Study({"x": Float(0.0, 1.0)}, "acc", storage, max_epochs=3, seed=0, budget="1 trial")
        >>> study.store.url
        'sqlite:///search.db'
    """

    url: StrPath | Store | None = None
    lease: float = 600.0  # seconds
    max_retries: int = 2
    patience: float = 600.0  # seconds

    def __post_init__(self) -> None:
        pythonic(self)
        check_seconds(lease=self.lease)
        check_counts(max_retries=self.max_retries)
        object.__setattr__(self, "lease", float(self.lease))
        object.__setattr__(self, "patience", number("patience", self.patience))
        if not self.patience >= 0.0:
            raise InvalidInput(f"patience={self.patience!r}: seconds, 0 or more, to wait for a store that is away")


def open_store(where: StrPath | Store | Storage | None, *, reading: bool = False) -> Store:
    """Open a store from the argument `store` of a Study.

    Args:
        where: A URL, "sqlite:///search.db" or "postgresql://..."; a path ending in .db or .sqlite; None, memory; a
            Storage; or a store itself.
        reading: Write, create and lock nothing; the store must exist. Default: False.

    Returns:
        The store.

    Raises:
        InvalidInput: If it is none of these.
        StoreError: If it cannot be opened.

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
                    f"store={url!r}: a URL such as 'sqlite:///search.db', or a path ending in .db{memory}"
                )
            url = f"sqlite:///{url}"
        return open_sql(url, reading=reading)
    if not isinstance(where, Store):
        policy = "; give a policy by its name, policy=" if hasattr(where, "propose") else ""
        policy = f"; give the number of epochs by its name, max_epochs={where}" if isinstance(where, int) else policy
        raise InvalidInput(f"store={where!r}: a URL such as 'sqlite:///search.db', a path, or None for memory{policy}")
    return where


def open_sql(url: str, clock: Callable[[], float] | None = None, *, reading: bool = False) -> SqlStore:
    """Open a store in SQLite or PostgreSQL. clock: seconds since the epoch; None: the store's own."""
    match url.partition("://")[0]:
        case "sqlite" | "sqlite+pysqlite":
            from .sqlite import SqliteStore  # SQLAlchemy: a study in memory does without

            return SqliteStore(url, clock, reading=reading)
        case "postgresql" | "postgresql+psycopg":
            from .postgres import PostgresStore

            return PostgresStore(url, clock, reading=reading)
    from .sql import shown

    raise StoreError(
        f"cannot open {shown(url)}: a study is kept in SQLite or PostgreSQL; write 'sqlite:///search.db', or "
        "'postgresql+psycopg://user:password@host/database'"
    )


def only_study(store: Store, name: str | None) -> str:
    """Return `name`, or the name of the only study. Raises StoreError with a list of the studies."""
    names = store.names()
    if name in names or (name is None and len(names) == 1):
        return name or names[0]
    if not names:
        raise StoreError(f"{store.url} holds no study yet: start the program that searches, or `haltune run`")
    listing = ", ".join(map(repr, names))
    if name is None:
        raise StoreError(f"{store.url} holds {len(names)} studies: {listing}. Say which, with --name or name=")
    raise StoreError(f"there is no study {name!r} in {store.url}: it holds {listing}. Say which, with --name or name=")
