"""Checks of the end of a process; on a busy machine a killed process does not end at once."""

import time
from pathlib import Path


def ended(pid: int | str) -> bool:
    """Return whether it is gone, or a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def ends(pid: int | str, within: float = 120.0) -> bool:
    """Return whether it ends within so many seconds."""
    since = time.monotonic()
    while not ended(pid) and time.monotonic() < since + within:
        time.sleep(0.01)
    return ended(pid)
