"""Who keeps a SQLite file locked, so that an error can name the process: Linux tells, other systems do not."""

from __future__ import annotations

import os
from pathlib import Path

from haltune._utils.process import state

_WRITER = 120  # the byte of the file -shm that a writer locks, with a journal of the kind WAL
_RESERVED = (
    0x40000001  # and of the database itself, with another journal: it, and the byte before when it waits
)


def keeper(database: str) -> str | None:
    """The process that keeps a database from being written to, in words; None where the system does not tell."""
    for path, first, last in (
        (f"{database}-shm", _WRITER, _WRITER),
        (database, _RESERVED - 1, _RESERVED),
    ):
        for pid in _locking(path, first, last):
            return described(pid)
    return None


def described(pid: int) -> str:
    """A process of this machine in words, and what to do about it when it is stopped."""
    if pid == os.getpid():
        return "this process itself, in another thread,"
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        words = []
    shown = "".join(c if c.isprintable() else "?" for c in " ".join(words).strip())[:80]
    text = f"process {pid}" + (f" ({shown})" if shown else "")
    if state(pid) == "T":
        text += f", which is stopped (let it continue by `kill -CONT {pid}`, or end it),"
    return text


def _locking(path: str, first: int, last: int) -> list[int]:
    """The processes that hold a lock to write on any of these bytes."""
    try:
        inode = os.stat(path).st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        parts = line.split()
        if len(parts) < 8 or parts[1] != "POSIX" or parts[3] != "WRITE" or not parts[4].isdigit():
            continue  # among them those that only wait, which begin with "->"
        low, high = int(parts[6]), (1 << 63) if parts[7] == "EOF" else int(parts[7])
        if parts[5].rpartition(":")[2] == str(inode) and low <= last and first <= high:
            found.append(int(parts[4]))
    return found
