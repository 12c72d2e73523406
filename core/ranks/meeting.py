"""Where the ranks of a run meet: a folder that rank 0 makes and the others find.

    BASE/run-JOB.TIME/lines       what rank 0 writes; the first line says who it is
    BASE/run-JOB.TIME/here-1-...  rank 1 reads; renamed to left-1-... when it leaves

What the ranks of one start have in common (`place`) may come again: a job is started anew, or runs one program after
another. So rank 0 always makes a new folder, and a rank takes the oldest that is not surely of another start: one
that has such a rank, or whose rank 0 was gone before this rank began. Whether a rank 0 on another machine
lives only a sign of life tells: it writes, or it beats.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from haltune._utils.process import checkable, surely_gone
from haltune._utils.scratch import is_own, make_own, remove, sweep
from haltune.errors import InvalidInput

from .place import FOLDER, ThisProcess, shared

LINES = "lines"
LEFT = "left"  # the topic of rank 0's last line
_STALE = 3600.0  # seconds for which the folder of a rank 0 that has left waits for ranks that were to come
_BEAT = 1.0  # seconds between signs of life
_FIRST_LINE = 4096  # bytes: the first line is shorter
OpenedMeeting = tuple[Path, int]  # a folder and its lines, opened


def begin(prefix: Path) -> OpenedMeeting:
    """Rank 0's new folder, and its lines to append to. Raises OSError."""
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
    """Make the folder of all runs. Raises OSError when it is somebody else's, and not said to be shared."""
    if shared():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    else:
        make_own(folder)


@contextmanager
def usable(prefix: Path) -> Iterator[None]:
    """Raises InvalidInput, which says what to do, for an OSError about the folder of all runs."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        what = f"ranks meet in {prefix.parent}, which cannot be used ({why}): take away what is there"
        if shared():
            what = f"{FOLDER}={shared()!r} cannot be used as a folder ({why}): make it"
        other = f"or let {FOLDER} name another that all ranks see and may write to"
        raise InvalidInput(f"{what}, {other}") from error


def beat(lines: Path) -> threading.Event:
    """Renew the time of a file until the event is set: for ranks on other machines."""
    enough = threading.Event()

    def work() -> None:
        with suppress(OSError):  # it is gone
            while not enough.wait(_BEAT):
                os.utime(lines)

    threading.Thread(target=work, name="haltune-beat", daemon=True).start()
    return enough


class Entrance:
    """Where another rank looks for its rank 0."""

    def __init__(self, me: ThisProcess) -> None:
        self._me, self._prefix = me, me.place.folder
        self._seen: dict[Path, tuple[int, int]] = {}  # size and time of lines from other machines, at first
        self._ahead: float | None = None  # seconds, of the clock of a shared folder

    def enter(self) -> OpenedMeeting | None:
        """The folder and its lines, opened for reading; None while there are none."""
        for folder in sorted(self._prefix.parent.glob(f"{self._prefix.name}.*")):
            with suppress(FileNotFoundError):
                self._need_own(folder)
                file = os.open(folder / LINES, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
                if self._is_ours(folder, file):  # it stays readable when the folder is removed
                    (folder / mark(self._me, "here")).touch(mode=0o600)
                    return folder, file
                os.close(file)
        return None

    @property
    def others(self) -> int:
        """How many folders there are of the same name."""
        return len(list(self._prefix.parent.glob(f"{self._prefix.name}.*")))

    def _is_ours(self, folder: Path, file: int) -> bool:
        if not self._me.place.launcher and self._is_taken(folder):
            return False
        status, author = os.fstat(file), _author(os.pread(file, _FIRST_LINE, 0))
        if not author:
            return False
        if status.st_mtime >= self._began(folder.parent):
            return True
        if checkable(author):
            return not surely_gone(author)
        now = status.st_size, status.st_mtime_ns
        return self._seen.setdefault(folder, now) != now

    def _is_taken(self, folder: Path) -> bool:
        """True when it has had another process of this rank: that was in another start."""
        rank = self._me.place.rank
        names = {path.name for state in ("here", "left") for path in folder.glob(f"{state}-{rank}-*")}
        return bool(names - {mark(self._me, "here")})

    def _began(self, folder: Path) -> float:
        """When this process was started, by the clock that files there are dated by."""
        if self._ahead is None:
            self._ahead = _ahead(folder) if shared() else 0.0
        return self._me.place.began + self._ahead

    @staticmethod
    def _need_own(folder: Path) -> None:
        if not shared() and not is_own(folder):
            raise PermissionError(f"{folder} belongs to somebody else, or is a link")


def leave(folder: Path, me: ThisProcess) -> None:
    """At the end of another rank. The last to leave removes the folder."""
    if me.forked:
        return
    with suppress(OSError):
        (folder / mark(me, "here")).rename(folder / mark(me, "left"))
        if _has_left(folder / LINES) and nobody_reads(folder, me):
            remove(folder)


def nobody_reads(folder: Path, me: ThisProcess) -> bool:
    """True when no other rank reads any more, nor is still to come."""
    names = os.listdir(folder) if folder.exists() else []
    left = sum(name.startswith("left-") for name in names)
    return not any(name.startswith("here-") for name in names) and left >= (me.place.world or 1) - 1


def mark(me: ThisProcess, state: str) -> str:
    """The name of a file that says where a rank is: "here" or "left"."""
    return f"{state}-{me.place.rank}-{me.holder.rpartition('/')[2]}"


def _ahead(folder: Path) -> float:
    """Seconds that the clock of a folder's files is ahead of ours."""
    with suppress(OSError), tempfile.TemporaryFile(dir=folder) as file:
        ahead = os.fstat(file.fileno()).st_mtime - time.time()
        return ahead if abs(ahead) > 0.1 else 0.0  # files are dated by ticks
    return 0.0


def _author(beginning: bytes) -> str:
    """Who wrote it: the first line."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(beginning.partition(b"\n")[0])["holder"])
    return ""


def tidy(prefix: Path) -> None:
    """Remove what killed runs and processes have left behind."""
    with suppress(OSError):  # another may be at it
        _sweep(prefix.parent)
        sweep()


def _has_left(lines: Path) -> bool:
    with lines.open("rb") as file:
        file.seek(-min(64, lines.stat().st_size), os.SEEK_END)
        return f'"{LEFT}"'.encode() in file.read()


def _sweep(folder: Path) -> None:
    """Remove what killed runs left, and runs that some rank never came to."""
    for found in list(folder.glob("run-*")):
        with suppress(OSError):
            if _is_over(found / LINES):
                remove(found)


def _is_over(lines: Path) -> bool:
    if not lines.exists():  # killed before it wrote
        return time.time() - lines.parent.stat().st_mtime > _STALE
    with lines.open("rb") as file:
        author = _author(file.read(_FIRST_LINE))
    old = time.time() - lines.stat().st_mtime > _STALE
    return surely_gone(author) and (old or not _has_left(lines)) if author else old
