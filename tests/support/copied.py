"""Copies of a SQLite database, and what they say."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from filled import report

from haltune.errors import HaltuneWarning, StoreError
from haltune.store.open import open_store
from haltune.store.sql.sqlite.journal import Journal


def events(path: Path, reading: bool = True) -> int:
    """How many there are. Raises what is warned of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", HaltuneWarning)
        store = open_store(path, reading=reading)
    found = sum(len(list(store.read(name))) for name in store.names())
    store.close()
    return found


def alone(path: Path) -> Path:
    """A copy of the file, without what lies beside it."""
    for ending in ("-wal", "-shm"):
        path.with_name(f"alone.db{ending}").unlink(missing_ok=True)
    return Path(shutil.copy(path, path.with_name("alone.db")))


def is_told(path: Path) -> bool:
    """True when a copy says that it lacks something, or is no database at all."""
    try:
        events(alone(path))
    except (HaltuneWarning, StoreError):
        return True
    return False


def at_moments(monkeypatch: pytest.MonkeyPatch, look: Callable[[str], None]) -> None:
    """`look` is called with "marked" before each checkpoint, and with "written" after it."""
    whole = Journal._checkpoint

    def checkpoint(self: Journal) -> None:
        look("marked")
        whole(self)
        look("written")

    monkeypatch.setattr(Journal, "_checkpoint", checkpoint)


def add(store: Any, count: int = 1) -> None:
    for _ in range(count):
        store.append("s", [report(1.0, "r" * 3000)], seen=10**9, about=None)
