"""The folder in which the ranks of one training meet.

    BASE/run-JOB.TIME/lines       written by rank 0; the first line names its process, the last means that it has left
    BASE/run-JOB.TIME/here-1-...  rank 1 reads; it becomes left-1-... when rank 1 leaves; the last removes the folder

A job may be started again, or run several programs, and the ranks of each start share the same name. So rank 0 always
makes a new folder. A rank takes the oldest folder that is not surely of another start: another start's folder had a
process of this rank already, or its rank 0 was gone before this rank started. A rank 0 on another machine is alive if
it renews its file.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from haltune._utils import disk
from haltune._utils.process import checkable, is_own, make_own, remove, surely_gone, sweep
from haltune.errors import InvalidInput

from .place import FOLDER, ThisProcess, shared

LINES = "lines"
LEFT = "left"  # the topic of rank 0's last line
_STALE = 3600.0  # seconds for which a folder stays after its rank 0 has left, for ranks that come late
_BEAT = 1.0  # seconds between renewals of a file's time
_FIRST_LINE = 4096  # bytes: the first line is shorter
OpenedMeeting = tuple[Path, int]  # a folder and its lines, opened


def begin(prefix: Path) -> OpenedMeeting:
    """Make rank 0's new folder, and open its lines for appending. Raises OSError."""
    make_own_or_shared(prefix.parent)
    tidy(prefix)
    while True:
        folder = prefix.with_name(f"{prefix.name}.{time.time_ns():020d}")
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            break
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
    return folder, os.open(folder / LINES, flags, 0o600)


def make_own_or_shared(folder: Path) -> None:
    """Make the parent of the rendezvous folders. Raises OSError if it is another user's and not shared."""
    if shared():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
        make_own(folder)


@contextmanager
def usable(prefix: Path) -> Iterator[None]:
    """Turn an OSError about the folder of all rendezvous into InvalidInput, with advice."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        what = f"Ranks exchange answers in {prefix.parent}, which cannot be used ({why}). Remove what is there"
        if shared():
            what = f"{FOLDER}={shared()!r} cannot be used as a folder ({why}). Make it"
        raise InvalidInput(f"{what}, or set {FOLDER} to another folder that all ranks can read and write.") from error


def beat(lines: Path) -> threading.Event:
    """Renew the time of a file until the event is set, for ranks on other machines."""
    enough = threading.Event()

    def work() -> None:
        with suppress(OSError):  # it is gone
            while not enough.wait(_BEAT):
                os.utime(lines)

    threading.Thread(target=work, name="haltune-beat", daemon=True).start()
    return enough


class Rendezvous:
    """A follower's search for the folder of its rank 0."""

    def __init__(self, me: ThisProcess) -> None:
        self._me, self._prefix = me, me.place.folder
        self._seen: dict[Path, tuple[int, int]] = {}  # first seen size and time of lines from other machines
        self._ahead: float | None = None  # seconds that the clock of a shared folder is ahead

    def enter(self) -> OpenedMeeting | None:
        """Return the folder and its lines, opened for reading; None if there are none yet."""
        for folder in sorted(self._prefix.parent.glob(f"{self._prefix.name}.*")):
            with suppress(FileNotFoundError):
                if not shared() and not is_own(folder):
                    raise PermissionError(f"{folder} belongs to another user, or is a link")
                file = os.open(folder / LINES, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
                if self._is_ours(folder, file):  # it stays readable when the folder is removed
                    (folder / mark(self._me, "here")).touch(mode=0o600)
                    return folder, file
                os.close(file)
        return None

    @property
    def others(self) -> int:
        """Number of folders of the same name."""
        return len(list(self._prefix.parent.glob(f"{self._prefix.name}.*")))

    def _is_ours(self, folder: Path, file: int) -> bool:
        rank, mine = self._me.place.rank, mark(self._me, "here")
        marks = (path.name for state in ("here", "left") for path in folder.glob(f"{state}-{rank}-*"))
        if not self._me.place.launcher and any(name != mine for name in marks):
            return False  # it had another process of this rank, in another start
        status, author = os.fstat(file), _author(os.pread(file, _FIRST_LINE, 0))
        if not author:
            return False
        if self._ahead is None:
            self._ahead = disk.clock_ahead(folder.parent) if shared() else 0.0
        if status.st_mtime >= self._me.place.began + self._ahead:
            return True
        if checkable(author):
            return not surely_gone(author)
        now = status.st_size, status.st_mtime_ns
        return self._seen.setdefault(folder, now) != now


def leave(folder: Path, me: ThisProcess) -> None:
    """Leave the rendezvous, as a follower. The last to leave removes the folder."""
    if me.forked:
        return
    with suppress(OSError):
        (folder / mark(me, "here")).rename(folder / mark(me, "left"))
        if _has_left(folder / LINES) and nobody_reads(folder, me):
            remove(folder)


def arrive(folder: Path, me: ThisProcess, where: str) -> None:
    """State, as a follower, that this rank has reached a place in its program."""
    with suppress(OSError):
        (folder / mark(me, "here")).write_text(where, encoding="utf-8")


def arrived(folder: Path, where: str) -> int:
    """Return how many followers are there."""
    found = 0
    for path in folder.glob("here-*"):
        with suppress(OSError):  # it has left
            found += path.read_text(encoding="utf-8") == where
    return found


def reading(folder: Path) -> int:
    """Return how many followers read."""
    return len([*folder.glob("here-*")])


def nobody_reads(folder: Path, me: ThisProcess) -> bool:
    """True if no other rank reads or can still start."""
    names = os.listdir(folder) if folder.exists() else []
    left = sum(name.startswith("left-") for name in names)
    return not any(name.startswith("here-") for name in names) and left >= (me.place.world or 1) - 1


def mark(me: ThisProcess, state: str) -> str:
    """Return the name of the file of a rank that reads, "here", or has left, "left"."""
    return f"{state}-{me.place.rank}-{me.holder.rpartition('/')[2]}"


def _author(beginning: bytes) -> str:
    """Return the identity of the writer, from the first line."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(beginning.partition(b"\n")[0])["holder"])
    return ""


def tidy(prefix: Path) -> None:
    """Remove the folders of killed processes, and of starts that some rank never joined."""
    with suppress(OSError):  # another process may remove them too
        for found in list(prefix.parent.glob("run-*")):
            with suppress(OSError):
                if _is_over(found / LINES):
                    remove(found)
        sweep()


def _has_left(lines: Path) -> bool:
    with lines.open("rb") as file:
        file.seek(-min(64, lines.stat().st_size), os.SEEK_END)
        return f'"{LEFT}"'.encode() in file.read()


def _is_over(lines: Path) -> bool:
    if not lines.exists():  # killed before it wrote
        return time.time() - lines.parent.stat().st_mtime > _STALE
    with lines.open("rb") as file:
        author = _author(file.read(_FIRST_LINE))
    old = time.time() - lines.stat().st_mtime > _STALE
    return surely_gone(author) and (old or not _has_left(lines)) if author else old
