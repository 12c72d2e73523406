"""Whose program speaks to the server from this machine, where the system tells: Linux does."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))  # all connections of the machine, and whose
_LOCAL, _REMOTE, _USER = 1, 2, 7  # columns; an address ends in its port, in hexadecimal


def users(port: int, ours: int) -> set[int]:
    """The users who hold an end at `port` of a connection to our port; none where the system does not tell."""
    found = set()
    for table in _TABLES:
        with suppress(OSError):
            for line in table.read_text().splitlines()[1:]:
                row = line.split()
                if [int(row[end].rpartition(":")[2], 16) for end in (_LOCAL, _REMOTE)] == [port, ours]:
                    found.add(int(row[_USER]))
    return found


def is_strange(port: int, ours: int) -> bool:
    """Whether a program of another user holds it; root, who may read everything, is no stranger."""
    return os.name == "posix" and bool(users(port, ours) - {os.getuid(), 0})
