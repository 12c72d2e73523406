"""A store in the kind of database that a URL names."""

from __future__ import annotations

from collections.abc import Callable

from haltune.errors import StoreError

from .database import database_kind
from .postgres.store import PostgresStore
from .sqlite.store import SqliteStore
from .store import SqlStore


def open_sql(url: str, clock: Callable[[], float] | None = None, *, reading: bool = False) -> SqlStore:
    """A store in SQLite or PostgreSQL. clock, reading: see SqlStore.

    Raises InvalidInput for a database in memory, StoreError for one of another kind or that cannot be opened.
    """
    match database_kind(url):
        case "sqlite":
            return SqliteStore(url, clock, reading=reading)
        case "postgresql":
            return PostgresStore(url, clock, reading=reading)
        case kind:
            raise StoreError(
                f"a study is kept in SQLite or PostgreSQL, not in {kind}: 'sqlite:///search.db', or "
                "'postgresql+psycopg://user:password@host/database'"
            )
