"""Whether a process has ended: where it was killed it ends when it has its turn, on a busy machine not at once."""

import time
from pathlib import Path


def ended(pid: int | str) -> bool:
    """Whether it is gone, or nobody has asked yet how it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def ends(pid: int | str, within: float = 120.0) -> bool:
    """Whether it ends within so many seconds."""
    since = time.monotonic()
    while not ended(pid) and time.monotonic() < since + within:
        time.sleep(0.01)
    return ended(pid)
