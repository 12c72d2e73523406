"""A database that another process keeps locked."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from haltune.log.events import Finished

END = Finished(at=1.0, reason="", seen=1)
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another connection writes, and does not commit."""
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        other.execute("ROLLBACK")
        other.close()
