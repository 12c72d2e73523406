"""The checkpoints that a program writes into its folder: which position each is of, and whether it is complete."""

from __future__ import annotations

import fnmatch
import math
import os
import re
import shutil
import stat
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haltune._utils import disk
from haltune.errors import InvalidInput

from .metric_logs import matching

_SETTLED = 0.5  # seconds without a change after which a checkpoint counts as written, at least
_SETTLED_FOLDER = 1.0, 3.0  # the same of a folder, between whose files a program may compute: 20% of an epoch
STILL = 0.1  # the same, once the program has logged the next row
_OPEN = 10.0  # seconds without a change after which a checkpoint is complete although a file of it is open to write
_SCAN = 0.2  # seconds between looks for checkpoints


@dataclass
class _Seen:
    """A checkpoint as the last look saw it."""

    signature: Any
    since: float  # its last change, by the clock
    took: float = 0.0  # seconds of writing it
    next_ask: float = -math.inf  # when to ask again whether it is open to write


class ProgramCheckpoints:
    """The checkpoints that a program writes into its folder.

    With a number in the pattern each is of one position. Without one the latest is of the last row, if the program has
    written it after every row so far.
    """

    def __init__(
        self, folder: Path, pattern: str, unit: str, first: int | None, writes: Callable[[Path], bool]
    ) -> None:
        self._folder, self._shift = folder, 1 if first == 0 else 0
        self._writes = writes  # whether the program has a path open to write
        self._glob, self._number = glob_and_number(pattern, unit)
        self.numbered = self._number is not None
        self._seen: dict[Path, _Seen] = {}
        self._next_look = -math.inf
        self._changes = self._rows = 0
        self._pace = 0.0
        self._row_times: deque[float] = deque([time.monotonic()], maxlen=2)
        for path in self.paths():  # of an earlier attempt
            self._seen[path] = _Seen(signature_of(path), -math.inf)
        self._old = {path: seen.signature for path, seen in self._seen.items()}
        self.last: tuple[Path, Any] | None = None  # that `at` has returned last, and its signature

    def row(self, now: float, took: float) -> None:
        """Note that a row was reported. took: seconds since the one before."""
        self._rows += 1
        self._pace = took
        self._row_times.append(now)

    def look(self, at_once: bool = False) -> None:
        """Look for new and changed checkpoints, unless the last look was a moment ago."""
        now = time.monotonic()
        if now < self._next_look and not at_once:
            return
        self._next_look = now + _SCAN
        for path in self.paths():
            signature = signature_of(path)
            before = self._seen.get(path, _Seen([], -math.inf))
            if before.signature != signature:
                quiet = now - before.since
                fresh = quiet > _SETTLED or not _has_content(before.signature)
                self._changes += fresh and _has_content(signature)  # what is being written changes for a while
                begins = quiet > self._settled(path) or before.since < self._row_times[-1]  # another save
                self._seen[path] = _Seen(signature, now, 0.0 if begins else before.took + quiet)

    def _settled(self, path: Path) -> float:
        """Return the seconds without a change that are no pause between the parts of one save."""
        least, most = _SETTLED_FOLDER if path.is_dir() else (_SETTLED, _SETTLED)
        return min(most, max(least, 0.2 * self._pace))

    def _quiet(self, path: Path, settled: float | None = None) -> float:
        """Return the seconds without a change after which a checkpoint is complete. settled: see `at`."""
        return max(self._settled(path) if settled is None else settled, self._seen[path].took)

    def _is_complete(self, path: Path, settled: float | None = None) -> bool:
        if not _has_content(self._seen[path].signature):
            return False
        quiet = time.monotonic() - self._seen[path].since
        return settled == 0.0 or (quiet >= self._quiet(path, settled) and not self._is_open(path, quiet))

    def _is_open(self, path: Path, quiet: float) -> bool:
        """Return whether the program writes a path that had no change for `quiet` seconds, by its open files.

        A log in a checkpoint's folder may stay open. Reading which files are open takes long, so it happens rarely.
        """
        now, seen = time.monotonic(), self._seen[path]
        if quiet < _OPEN and now >= seen.next_ask:
            if not self._writes(path):
                return False
            seen.next_ask = now + max(_SCAN, 0.1 * quiet)
        return quiet < _OPEN

    def at(self, position: float, settled: float | None = None) -> Path | None:
        """Return the complete checkpoint of a position.

        settled: seconds without a change after which it may be complete, None for the usual ones; 0.0: the program has
        ended.
        """
        for path in self._of(position):
            if self._is_complete(path, settled):
                self.last = path, self._seen[path].signature
                return path
        return None

    def wrote(self, position: float) -> bool | None:
        """Return whether this attempt has written the checkpoint of a position that was there; None without one."""
        self.look(at_once=True)
        there = [path for path in self._old if self._position(path) == position and path.exists()]
        return bool(self._of(position)) if there else None

    def comes(self, position: float) -> bool:
        """Return whether there is a checkpoint of a position that is complete, or being written."""
        return any(self._is_complete(path, STILL) or self._is_young(path) for path in self._of(position))

    def is_written_now(self) -> bool:
        """Return whether the newest checkpoint is being written."""
        newest = max(self._seen, key=lambda path: self._seen[path].since, default=None)
        return newest is not None and self._is_young(newest)

    def _is_young(self, path: Path) -> bool:
        quiet = time.monotonic() - self._seen[path].since
        return quiet < self._quiet(path) or self._is_open(path, quiet)

    def _of(self, position: float) -> list[Path]:
        """Return the checkpoints of a position that this attempt has written."""
        new = (path for path, seen in self._seen.items() if self._old.get(path) != seen.signature)
        return [path for path in new if self._position(path) == position and path.exists()]

    def changed(self, path: Path, signature: Any) -> bool:
        """Return whether a checkpoint that had this signature has another one, and the program does not delete it."""
        now = self._seen[path].signature
        return bool(now != signature and {part for part, *_ in signature} <= {part for part, *_ in now})

    def positions(self) -> dict[int, Path]:
        """Return the checkpoints seen so far by their positions, as their numbers say."""
        return {position: path for path in self._seen if (position := self._position(path)) is not None}

    def _position(self, path: Path) -> int | None:
        name = path.relative_to(self._folder).as_posix()
        found = None if self._number is None else self._number.fullmatch(name)
        return int(found[1]) + self._shift if found else None

    def seen(self, path: Path) -> Any:
        """Return the signature of a checkpoint at the last look."""
        return self._seen[path].signature

    def same(self, path: Path) -> bool:
        """Return whether a checkpoint is as it was at the last look."""
        return bool(self.seen(path) == signature_of(path))

    @property
    def extra(self) -> bool:
        """Whether more checkpoints were written than there are rows."""
        return self._changes > self._rows

    def latest(self, ended: bool = False) -> Path | None:
        """Return the checkpoint of the last row, complete, if the program writes one for every row.

        One that was written nearer to the row before is that row's. One more than there are rows may be of the next
        row, if the program saves before it evaluates. ended: the program has ended.
        """
        known = [(seen.since, path) for path, seen in self._seen.items() if path.exists()]
        since, path = max(known, default=(0.0, None))
        earliest = self._row_times[0] if ended else sum(self._row_times) / len(self._row_times)
        written = since > earliest and self._changes >= self._rows and (ended or not self.extra)
        return path if path is not None and written and self._is_complete(path, 0.0 if ended else None) else None

    def since(self, moment: float, killed: bool) -> Path | None:
        """Return the newest checkpoint that was written since a moment, in seconds since 1970.

        killed: whether the program was killed, perhaps while it wrote.
        """
        self.look(at_once=True)
        ahead = disk.clock_ahead(self._folder)
        known = [
            (max(part[3] for part in seen.signature) / 1e9, path)
            for path, seen in self._seen.items()
            if path.exists() and _has_content(seen.signature)
        ]
        modified, path = max(known, default=(0.0, None))
        fresh = path is not None and self._old.get(path) != self.seen(path)
        written = moment - 1.0 <= modified - ahead and not (killed and time.time() - modified + ahead < _SETTLED)
        return path if fresh and written else None

    def paths(self) -> list[Path]:
        return matching(self._folder, self._glob)


def glob_and_number(pattern: str, unit: str) -> tuple[str, re.Pattern[str] | None]:
    """Return a pattern of checkpoints as a glob, and a regular expression that finds its number, if it has one.

    Raises InvalidInput for other braces.
    """
    name = f"{{{unit}}}"
    places = re.findall(r"\{[^{}]*\}", pattern)
    if any(place != name for place in places) or len(places) > 1:
        raise InvalidInput(
            f"checkpoint = {pattern!r}: write {name} for the number of the {unit}, once, and * for other parts."
        )
    head, found, tail = pattern.partition(name)
    number = re.compile(f"{_regex(head)}0*([0-9]+){_regex(tail)}") if found else None
    return pattern.replace(name, "*"), number


def _regex(glob: str) -> str:
    parts = {"**/": "(?:.*/)?", "*": "[^/]*?", "?": "[^/]"}
    found = re.findall(r"\*\*/|\*|\?|\[[^]]+\]|\[|[^*?[]+", glob)
    return "".join(parts.get(part) or fnmatch.translate(part)[:-2] for part in found)  # without \Z, the end


def signature_of(path: Path) -> Any:
    """Return what changes when a file, or a file in a folder, is written."""
    found = []
    below = (os.path.join(above, name) for above, folders, files in os.walk(path) for name in (*folders, *files))
    for part in (str(path), *sorted(below)):
        with suppress(OSError):  # the program deletes it
            status = os.stat(part)
            size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
            found.append((part, status.st_ino, size, status.st_mtime_ns))
    return found


def _has_content(signature: Any) -> bool:
    """Return whether a file has bytes, or one in a folder: a program may make both before it writes."""
    return any(size for _, _, size, _ in signature)


def copy_unchanged(path: Path, to: Path, before: Any) -> None:
    """Copy a file or folder. Raises InvalidInput if the program has written it meanwhile."""
    if path.is_dir():
        shutil.copytree(path, to, symlinks=True)
    else:
        shutil.copy2(path, to)
    if signature_of(path) != before:
        raise InvalidInput("the program was writing it")
