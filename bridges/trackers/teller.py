"""Who tells a tracker of a search, of several programs on this machine that share it: one at a time.

The lock is the system's, on a file of no content: it goes with the process, however that ends, and with no clock. Where
there is none, on Windows or for want of a folder, everybody tells.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


class Teller:
    """The turn to tell a place of a search.

    Args:
        search: What tells the search from all others.
        place: Where it is told: a tracker's kind and address.
    """

    def __init__(self, search: str, place: str) -> None:
        user = os.getuid() if hasattr(os, "getuid") else 0
        key = sha256(f"{search} {place}".encode()).hexdigest()[:16]
        self._path = Path(tempfile.gettempdir(), f"haltune-told-{user}-{key}.lock")
        self._file: int | None = None

    def mine(self) -> bool:
        """Take the turn where it is free; whether this program has it."""
        if fcntl is None or self._file is not None:
            return True
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError:
            return True  # nobody can be asked
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            return not isinstance(error, BlockingIOError)  # some network disks know no locks
        self._file = file
        return True

    def release(self) -> None:
        """Give the turn back. The file stays: who waits for it may have it open."""
        if self._file is not None:
            with suppress(OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)  # a forked child may have the file open
            os.close(self._file)
            self._file = None
