"""Metrics of a program that haltune did not write, from the files that it writes anyway; read while it trains.

    Followed: bytes appended to one file -> lines or records -> a row each, {column: number}
    Curve:    rows of all files -> (position, metrics), in the order in which they count

A file may appear late, be rotated, truncated or rewritten; a line counts once it is complete. Rows that an earlier
attempt left in the folder do not count again, and neither do rows that a rewritten file repeats.
"""

from __future__ import annotations

import glob
import itertools
import math
import os
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haltune.errors import InvalidInput, NotSupported
from haltune.log.problem import Measures

from .log_formats import (
    MANY,
    Csv,
    Events,
    JsonLines,
    Lines,
    Matched,
    MlflowMetric,
    Reader,
    Row,
    WandbRuns,
    equal,
    event_types,
)

KINDS = ("csv", "jsonl", "tensorboard", "mlflow", "wandb", "pattern")
_STEPS = 50  # whose metrics may still arrive
_REPEATS = 0.5  # of the time that epochs took: rows that come faster were not trained again
_ONCE = 0.1  # of the time of one epoch: rows that come within it were written at once
_NOISE = 0.01  # relative difference between two evaluations of one model that is no reason for a hint
_EDGE = 256  # bytes at the start and before the end of what was read, which show whether a file was rewritten


@dataclass(frozen=True)
class Metrics:
    """Where a program writes its metrics.

    One of csv, jsonl, tensorboard, mlflow and wandb is a path in the trial's folder, which may have * and **. Or
    `pattern`: a regular expression, or several, whose groups (?P<NAME>...) are metrics, for the lines that the program
    prints, or those of `file`.
    """

    csv: str | None = None
    jsonl: str | None = None
    tensorboard: str | None = None
    mlflow: str | None = None
    wandb: str | None = None
    pattern: str | Sequence[str] | None = None
    file: str | None = None
    position: str | None = None  # the column with the epoch or step; None: rows are counted
    first: int | None = None  # that column's number of the first epoch, 0 or 1; None: 1, and 0 is an error

    def __post_init__(self) -> None:
        given = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            raise InvalidInput(
                f"Name one place of the metrics, {' or '.join(KINDS)}; got {', '.join(given) or 'none'}."
            )
        for name in (*KINDS[:-1], "file", "position"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and value):
                raise InvalidInput(f"{name} = {value!r}: use a text that is not empty.")
        for name in (*KINDS[:-1], "file"):
            in_folder(name, getattr(self, name))
        if self.file is not None and self.pattern is None:
            raise InvalidInput("file = ... is the text file that a pattern reads. Add pattern, or leave it out.")
        if self.first not in (None, 0, 1) or isinstance(self.first, bool):
            raise InvalidInput(f"first = {self.first!r}: use 0 or 1, the number of the first epoch in the column.")
        if self.pattern is not None:
            groups = [name for pattern in self.patterns for name in pattern.groupindex]
            if not groups:
                raise InvalidInput(
                    f"pattern = {self.pattern!r} has no named group. Write one for each metric, (?P<val_acc>[\\d.]+)."
                )
            if self.position is not None and self.position not in groups:
                raise InvalidInput(f"position = {self.position!r} is no group of the pattern: {', '.join(groups)}.")

    @property
    def patterns(self) -> list[re.Pattern[str]]:
        given = [self.pattern] if isinstance(self.pattern, str) else self.pattern
        if not isinstance(given, (list, tuple)) or not all(isinstance(text, str) for text in given):
            raise InvalidInput(f"pattern = {self.pattern!r}: use a regular expression, or a list of them.")
        try:
            for text in given:
                re.compile(text)  # an error shows the user's own text
            return [re.compile(_GROUP.sub(_whole, text)) for text in given]
        except re.error as error:
            raise InvalidInput(f"pattern = {self.pattern!r} is not a regular expression: {error}.") from error

    @property
    def kind(self) -> str:
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def path(self) -> str | None:
        """The path in the trial's folder; None for what the program prints."""
        found: str | None = self.file if self.kind == "pattern" else getattr(self, self.kind)
        return found

    @property
    def by(self) -> str | None:
        """The column of the position; TensorBoard, MLflow and W&B have one, the step."""
        return self.position or ("step" if self.kind in ("tensorboard", "mlflow", "wandb") else None)

    def environment(self, folder: Path) -> dict[str, str]:
        """Return variables by which the program writes its metrics to the trial's folder, and soon."""
        if self.kind != "wandb":
            return {}
        # W&B keeps metrics in memory for 15 s otherwise
        return {"WANDB_DIR": str(folder), "WANDB__TRANSACTION_LOG_FLUSH_INTERVAL": "1"}

    @property
    def words(self) -> str:
        return "the lines that it prints" if self.path is None else self.path

    def check(self, measures: Measures) -> None:
        """Raise InvalidInput if a pattern has no group for a metric that the study needs."""
        if self.kind == "pattern":
            groups = {name for pattern in self.patterns for name in pattern.groupindex}
            for name in (measures.first, *measures.goals, *measures.limited):
                if name not in groups:
                    what = "constraint" if name in measures.limited else "goal"
                    raise InvalidInput(
                        f"The pattern has no group for the {what} {name!r}. Write (?P<{name}>...), or name one of its "
                        f"groups as the {what}: {', '.join(sorted(groups))}."
                    )
        if self.kind == "tensorboard":
            event_types()


_PART = r"\\.|\[(?:\^?\])?(?:\\.|[^]\\])*\]|[^()\[\\]"  # of a regular expression: an escape, a set, another character
# a named group, which may have groups without names in it, and these some more
_GROUP = re.compile(rf"(?<!\\)(\(\?P<\w+>)((?:{_PART}|\((?!\?P<)(?:{_PART}|\((?!\?P<)(?:{_PART})*\))*\))+)\)")


def _whole(found: re.Match[str]) -> str:
    """Return a group for decimal numbers, such as [\\d.]+, that also takes exponents, nan and inf.

    Otherwise 9.8e-05 is read as 9.8, and a trial that diverged keeps its last finite value.
    """
    head, body = found.groups()
    try:
        decimal = any(re.fullmatch(body, f"{0.5:.{digits}f}") for digits in range(1, 9))
        if not decimal or all(re.fullmatch(body, text) for text in ("nan", "9.8e-05")):
            return found[0]
    except re.error:  # it refers to another group
        return found[0]
    # nan comes first: [\d.]* would take nothing of it
    return rf"{head}(?i:[-+]?\b(?:nan|inf(?:inity)?)\b)|(?:{body})(?:[eE][-+]?\d+)?)"


def in_folder(name: str, path: str | None) -> None:
    """Raise InvalidInput unless a path stays in the trial's folder."""
    if path is not None and "{folder}" in path:
        raise InvalidInput(f"{name} = {path!r}: the path is in the trial's folder already. Leave {{folder}} out.")
    if path is not None and (os.path.isabs(path) or ".." in Path(path).parts or "\0" in path):
        raise InvalidInput(
            f"{name} = {path!r} is not in the trial's folder, so all trials would share it. Use a path relative to "
            "that folder, and let the program write there: give it {folder}."
        )


# The rows of one file


class Followed:
    """The rows of one file, as it grows. If the program renames it, its last rows come before those of the next one.

    Files that had this path between two looks are found next to it by their inode, or by a name such as log.csv.1.
    all: those of the trial, which read no file twice. older: files of an earlier attempt, (inode, time of the last
    change).
    """

    def __init__(
        self, path: Path, reader: Reader, all: Iterable[Followed] = (), older: Iterable[tuple[int, int]] = ()
    ) -> None:
        self._path, self.reader, self._all, self._offset = path, reader, all, 0
        self._as_read: tuple[int, ...] = ()  # inode, size and time of the last change, as it was read last
        self._head = self._tail = b""
        self._renamed = dict[int, bytes]()  # the first bytes of files that had this path before, by inode
        self._empty = set[int]()  # inodes of files that had this path, and no bytes yet
        name, stem, ending = map(re.escape, (path.name, path.stem, path.suffix))
        self._rotated = re.compile(rf"{name}[._-]?(?:[\d._:T-]*\d|old|bak|~)|{stem}\.[\d._-]*\d{ending}")
        self._names = set[str]()  # of files that were renamed, without their numbers
        # if the file has bytes already, those next to it need not be earlier ones: ranks may write log.1 and log.2
        others = self._next_to() if (stat := _stat(path)) is not None and stat.st_size else ()
        self._older = {*older, *((inode, _changed(place)) for place, inode in others)}
        self._seen: list[Row] = []  # rows of the file so far
        self._repeats: list[Row] = []  # rows of the file before it was rewritten, the next one last
        self.replaced = 0  # how often a file at this path did not start with the rows of the one before

    def read(self, whole: bool = False, cut: bool = False) -> list[Row]:
        """Return the new rows.

        whole: the program has ended, so a last line without an end is complete. cut: unless it was killed.
        """
        places, ended, rows = self._places(), whole and not cut, list[Row]()
        for n, place in enumerate(places, 1):
            rows += self._counted(self._new_bytes(place, whole), ended or n < len(places))
        return rows

    def forget(self) -> None:
        """Let rows count again if the file is written again, by a program that continues before its end."""
        self._seen = []

    def has(self, column: str) -> bool:
        return any(column in row for row in self._seen)

    def had(self, path: Path, inode: int) -> bool:
        """Return whether a file in the same folder was read before the program renamed it to this path."""
        head = self._head if self._as_read[:1] == (inode,) else self._renamed.get(inode)
        return bool(head) and path.parent == self._path.parent and _head(path).startswith(head or b"")

    def _counted(self, data: bytes, ended: bool) -> list[Row]:
        """Return the rows of further bytes, without those that the file had before it was rewritten."""
        rows = list[Row]()
        for row in (*self.reader.feed(data), *(self.reader.end() if ended else ())):
            self._seen.append(row)
            if self._repeats:
                if _same(self._repeats.pop(), row):
                    continue
                self._repeats, self.replaced = [], self.replaced + 1
            rows.append(row)
        return rows

    def _places(self) -> list[Path]:
        """Return where new rows are, the oldest first: in files that had this path, and in the one that has it.

        Until the latter has bytes, the program may write on to the renamed file.
        """
        stat = _stat(self._path)
        if stat is None and not self._as_read:
            return [self._path]
        if stat is not None and stat.st_size and (not self._as_read or self._continues(self._path, stat)):
            return [self._path]
        near = sorted(self._next_to(), reverse=True)  # log.2 is older than log.1
        places = [
            place for place, inode in near
            if self._offset and inode == self._as_read[0] and (now := _stat(place)) and self._continues(place, now)
        ]  # fmt: skip
        self._names |= {_unnumbered(place) for place in places if _unnumbered(place) != place.name}
        newest = math.inf if stat is None or not stat.st_size else stat.st_mtime_ns
        passed = [place for place, inode in near if place not in places and self._had_path(place, inode)]
        places += sorted((place for place in passed if _changed(place) <= newest), key=_changed)
        if stat is None or not stat.st_size:
            self._empty |= set() if stat is None else {stat.st_ino}
            return places or [self._path]
        return places if self._is_taken(self._path, stat.st_ino) else [*places, self._path]

    def _next_to(self) -> Iterator[tuple[Path, int]]:
        """Yield the files with the name of this one in theirs, and the one that was read last, with their inodes."""
        with suppress(OSError), os.scandir(self._path.parent) as entries:
            for entry in entries:
                inode, name = entry.inode(), entry.name
                near = name != self._path.name and (self._path.stem in name or inode in self._as_read[:1])
                if near and entry.is_file(follow_symlinks=False):
                    yield Path(entry.path), inode

    def _had_path(self, place: Path, inode: int) -> bool:
        """Return whether a file had this path between two looks, so that it was not read."""
        known = inode in self._empty or self._rotated.fullmatch(place.name) or _unnumbered(place) in self._names
        if not known or (inode, _changed(place)) in self._older or self._is_taken(place, inode):
            return False
        head, read = _head(place), self._renamed.get(inode)
        return head != b"" and (read is None or not head.startswith(read))

    def _is_taken(self, place: Path, inode: int) -> bool:
        return any(one.had(place, inode) for one in self._all if one is not self)

    def _new_bytes(self, path: Path, surely: bool) -> bytes:
        try:
            if not surely and self._as_read == _as_read(path.stat()):
                return b""
            with path.open("rb") as file:
                found = os.fstat(file.fileno())
                if self._as_read and not self._continues(path, found):
                    self._start_again()
                file.seek(self._offset)
                data = file.read()
                self._as_read = _as_read(found)
        except OSError:  # it does not exist yet, or no longer
            return b""
        if not found.st_size:
            self._empty.add(found.st_ino)
        self._offset += len(data)
        self._head += data[: _EDGE - len(self._head)]
        self._tail = (self._tail + data)[-_EDGE:]
        return data

    def _start_again(self) -> None:
        self.reader.reset()
        if self._head:
            self._renamed[self._as_read[0]] = self._head
        self._offset, self._head, self._tail = 0, b"", b""
        # the file may be written for a second time before it repeats all rows
        self._repeats, self._seen = [*self._repeats, *self._seen[::-1]], []

    def _continues(self, path: Path, stat: os.stat_result) -> bool:
        """Return whether a file is the one that was read last, and has not been written again."""
        if _as_read(stat) == self._as_read:
            return True
        if stat.st_ino != self._as_read[0] or stat.st_size < self._offset:
            return False
        with suppress(OSError), path.open("rb") as file:
            if file.read(len(self._head)) == self._head:
                file.seek(self._offset - len(self._tail))
                return file.read(len(self._tail)) == self._tail
        return False


def _head(path: Path) -> bytes:
    with suppress(OSError), path.open("rb") as file:
        return file.read(_EDGE)
    return b""


def _stat(path: Path) -> os.stat_result | None:
    with suppress(OSError):  # it does not exist yet, or no longer
        return path.stat()
    return None


def _changed(path: Path) -> int:
    stat = _stat(path)
    return 0 if stat is None else stat.st_mtime_ns


def _unnumbered(path: Path) -> str:
    return re.sub(r"\d+", "#", path.name)


def _as_read(stat: os.stat_result) -> tuple[int, ...]:
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def _same(a: Row, b: Row) -> bool:
    """Return whether rows have the same numbers in the columns that both have."""
    common = a.keys() & b.keys()
    return bool(common) and all(equal(a[name], b[name]) for name in common)


class Database(Followed):
    """The rows of a database of MLflow, in SQLite, each with one metric and the step."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Reader())
        self._address, self._last = f"{path.absolute().as_uri()}?mode=ro", 0

    def read(self, whole: bool = False, cut: bool = False) -> list[Row]:
        rows: list[Row] = []
        query = "SELECT rowid, key, value, step, is_nan FROM metrics WHERE rowid > ? ORDER BY rowid"
        # while MLflow makes its tables or writes, the rows are read later
        with suppress(sqlite3.Error), closing(sqlite3.connect(self._address, uri=True, timeout=0.1)) as database:
            for place, name, value, step, is_nan in database.execute(query, (self._last,)).fetchall():
                value = math.nan if is_nan else float(value)
                if abs(value) == sys.float_info.max:  # in place of infinity
                    value = math.copysign(math.inf, value)
                rows.append({name: value, "step": float(step)})
                self._last = place
        return rows


# The files of a trial


class MetricLog:
    """The rows of all files of a trial that Metrics names.

    Args:
        metrics: Where they are.
        names: Metrics that the study needs.
        folder: The trial's folder. Rows that are there now are of an earlier attempt.
        output: The file of what the program prints, with earlier attempts.
        now: A monotonic clock, seconds.
    """

    def __init__(
        self, metrics: Metrics, names: Iterable[str], folder: Path, output: Path,
        now: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._metrics, self._folder, self._now = metrics, folder.resolve(), now
        self._names = {*names, *([metrics.by] if metrics.by else [])}
        self._files: dict[Path, Followed] = {}
        self.columns = dict[str, None]()  # seen so far
        self._merges = metrics.kind in ("tensorboard", "mlflow") and metrics.by != "step"
        self._steps: dict[float, Row] = {}
        self._older = [(stat.st_ino, stat.st_mtime_ns) for path in files_in(self._folder) if (stat := _stat(path))]
        self._next_look = 0.0  # for new files, by now()
        if metrics.path is None:
            self._files[output] = Followed(output, Matched(metrics.patterns, metrics.by))
        else:
            self._find()
        # what is appended to an incomplete line of an earlier attempt starts a new one
        earlier = [row for followed in self._files.values() for row in followed.read(whole=True)]
        for followed in self._files.values():
            followed.forget()
        self.began = min((row[metrics.by] for row in earlier if metrics.by in row), default=None)  # its first position

    def read(self, whole: bool = False, cut: bool = False) -> list[Row]:
        """Return the new rows of all files. whole: the program has ended; cut: it was killed, perhaps within a row."""
        rows = [row for followed in [*self._files.values()] for row in followed.read(whole, cut)]
        began = self._now()
        if self._metrics.path is not None and (whole or began >= self._next_look):
            known = len(self._files)
            self._find()
            self._next_look = began + 20.0 * (self._now() - began)  # looks take 5% of the time at most
            rows += [row for followed in [*self._files.values()][known:] for row in followed.read(whole, cut)]
        for row in rows:
            self.columns |= dict.fromkeys(row)
        return [merged for row in rows if (merged := self._of_step(row))] if self._merges else rows

    def _of_step(self, row: Row) -> Row | None:
        """Return all metrics of a step, which TensorBoard and MLflow log one by one; None before its position."""
        merged = self._steps.setdefault(row["step"], {})
        merged |= row
        while len(self._steps) > _STEPS:
            self._steps.pop(next(iter(self._steps)))
        return dict(merged) if self._metrics.by in merged else None

    @property
    def names(self) -> list[str]:
        """The columns seen, also those without a number so far."""
        return sorted({*self.columns, *self.texts})

    @property
    def texts(self) -> dict[str, Any]:
        """By column, the last cell that was no number; "" if there was none."""
        found: dict[str, Any] = {}
        for followed in self._files.values():
            if isinstance(followed.reader, Lines):
                found |= followed.reader.texts
        return found

    @property
    def curve_within(self) -> tuple[str, list[str]] | None:
        """A list of objects with a position within an object of JSON, such as log_history, and their columns."""
        by = {self._metrics.by} if self._metrics.by else {"epoch", "step", "iteration"}
        readers = [followed.reader for followed in self._files.values()]
        lists = [item for one in readers if isinstance(one, JsonLines) for item in one.inner.items()]
        return next(((name, columns) for name, columns in lists if by.intersection(columns)), None)

    def kinds(self, name: str) -> dict[str, list[str]]:
        """Return a few texts in which rows of files with the column `name` differ, such as train and val, by column."""
        found = dict[str, set[str]]()
        for followed in self._files.values():
            if isinstance(followed.reader, Lines) and followed.has(name):
                for column, texts in followed.reader.kinds.items():
                    found.setdefault(column, set()).update(texts)
        few = {column: sorted(texts) for column, texts in found.items() if 1 < len(texts) < MANY}
        # texts with digits are times, or names of files
        return {column: texts for column, texts in few.items() if not any(map(str.isdigit, "".join(texts)))}

    @property
    def twice(self) -> tuple[str, str] | None:
        """A metric that has two values in one line, and the line."""
        readers = [followed.reader for followed in self._files.values()]
        return next((one.twice for one in readers if isinstance(one, Lines) and one.twice), None)

    @property
    def losses(self) -> int:
        """How often a row may have been lost: a file was replaced by another one, or a line was torn."""
        return sum(one.replaced + getattr(one.reader, "lost", 0) for one in self._files.values())

    @property
    def replaced(self) -> list[str]:
        """The files that were replaced, by their paths in the trial's folder."""
        return [os.path.relpath(path, self._folder) for path, followed in self._files.items() if followed.replaced]

    @property
    def torn(self) -> str:
        """The last line that seems to be a part of a row."""
        readers = [followed.reader for followed in self._files.values()]
        return next((one.torn for one in readers if isinstance(one, Lines) and one.torn), "")

    @property
    def last_line(self) -> str:
        """The last line in which a pattern found a number; "" for other logs."""
        readers = [followed.reader for followed in self._files.values()]
        return next((one.last for one in readers if isinstance(one, Matched)), "").strip()[:200]

    def files_with(self, name: str) -> list[str]:
        """Return the files with a column, by their paths in the trial's folder."""
        found = [path for path, followed in self._files.items() if followed.has(name)]
        return sorted(os.path.relpath(path, self._folder) for path in found)

    @property
    def found(self) -> bool:
        """Whether there is a file."""
        return any(path.exists() for path in self._files)

    def _find(self) -> None:
        kind, path = self._metrics.kind, str(self._metrics.path)
        paths = matching(self._folder, path)
        if kind == "tensorboard":
            paths = _below(paths, "*tfevents*")
        elif kind == "wandb":
            paths = _below(paths, "*.wandb")
        elif kind == "mlflow":
            for found in paths:
                if found not in self._files and _is_sqlite(found):
                    self._files[found] = Database(found)
            paths = [p for p in _below(paths, "*") if "metrics" in p.relative_to(self._folder).parts]
        for found in paths:
            file = found.resolve()  # a link, such as runs/latest, leads to a file that is followed already
            if file in self._files or not file.is_file():
                continue
            with suppress(OSError):  # it is away now
                inode, all = file.stat().st_ino, self._files.values()
                if not any(followed.had(file, inode) for followed in all):  # log.csv.1, perhaps
                    self._files[file] = Followed(file, self._reader(found), all, self._older)

    def _reader(self, path: Path) -> Reader:
        kind = self._metrics.kind
        if kind == "mlflow":
            parts = path.relative_to(self._folder).parts
            return MlflowMetric("/".join(parts[parts.index("metrics") + 1 :]))  # a metric may be metrics/mAP50
        if kind == "csv":
            return Csv(self._names, self._metrics.by)
        if kind == "pattern":
            return Matched(self._metrics.patterns, self._metrics.by)
        if kind == "jsonl":
            return JsonLines(self._names, self._metrics.by)
        return WandbRuns() if kind == "wandb" else Events()


def _is_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(15) == b"SQLite format 3"
    except OSError:  # a folder
        return False


def files_in(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and its folders, without an error if the program deletes one meanwhile."""
    return (Path(above) / name for above, _, names in os.walk(folder) for name in names)


def matching(folder: Path, pattern: str) -> list[Path]:
    """Return the paths of a pattern, the oldest first."""
    found = [folder / name for name in glob.glob(pattern, root_dir=folder, recursive=True, include_hidden=True)]
    return _by_age(found)


def _below(paths: Iterable[Path], name: str) -> list[Path]:
    """Return the files among the paths and those in their folders."""
    found = list(paths)
    below = (file for path in found for file in files_in(path))
    return _by_age(file for file in (*found, *below) if file.match(name) and file.is_file())


def _by_age(paths: Iterable[Path]) -> list[Path]:
    ages = []
    for path in paths:
        with suppress(OSError):
            parts = re.split(r"(\d+)", str(path))  # epoch_9 comes before epoch_10, also where the clock is coarse
            ages.append((path.stat().st_mtime_ns, parts[::2], [*map(int, parts[1::2])], path))
    return [path for *_, path in sorted(ages)]


# From rows to reports


class Curve:
    """The reports that rows make, in order: each position once, as soon as it has all metrics that the study needs.

    Args:
        metrics: Which column is the position.
        measures: The metrics that reports need.
        after: The position that the training continues from, in the study's unit; rows up to it do not count again.
        earlier: Each position that the trial has reported, its value, and the seconds since the one before. A program
            that starts at the first of them, although it should continue, trains again from its start; or it only
            repeats its log, if the rows come much faster.
        known: Constraint metrics that the trial has reported.
        began: The first number in the position's column that an earlier attempt logged. A program whose rows start
            later continues, even if its first value repeats an earlier one: it evaluates before it trains.
        now: A monotonic clock, seconds. The program starts now.
        wrote: Return whether the program has written the checkpoint of a position again; None if that is unknown.
    """

    def __init__(
        self, metrics: Metrics, measures: Measures, after: float = 0.0,
        earlier: Sequence[tuple[float, float, float]] = (), known: Iterable[str] = (), began: float | None = None,
        now: Callable[[], float] = time.monotonic, wrote: Callable[[float], bool | None] = lambda position: None,
    ) -> None:  # fmt: skip
        self._metrics, self._by = metrics, metrics.by
        self._shift = 1.0 - (1.0 if metrics.first is None else metrics.first)
        self._goal, self._needed = measures.first, {measures.first, *measures.goals}
        self._limited = set(measures.limited) - set(known)
        self._after, self._earlier = after, {position: value for position, value, _ in earlier}
        self._origin = min(self._earlier, default=math.inf)
        self._took = dict(zip(self._earlier, itertools.accumulate(seconds for *_, seconds in earlier), strict=True))
        self._now, self._since, self._wrote = now, now(), wrote
        self._came = 0.0  # seconds from the start to the first row that may be repeated
        self._held: list[tuple[float, Row]] | None = None  # reports that train again, or only repeat the log
        # of a log that was renamed the first rows may be gone
        self._began = min(self._origin, math.inf if began is None else began + self._shift)
        self._start: float | None = None  # position of the first row
        self._zeroth = set[str]()  # columns of rows at the position 0, without the goal
        self._last: float | None = None  # position of the last row that has one
        self._pending: dict[float, Row] = {}  # by position
        self._furthest = 0.0  # of their positions; a program may log each of a million steps
        self._once: Row = {}  # constraints, which a program may log once
        self._has_goal = False  # a row had it
        self._early = False  # and came before the first position
        self._reached = after  # the last position that was returned
        # the shortest and the longest distance between two of them; 0: there was one, perhaps before the training
        self._least, self._step = math.inf, 0.0
        self._latest: Row = {}  # its metrics; further ones that come before the report enter it
        self._values: dict[float, float] = {}  # of the goal, by the positions that were returned
        self.again = False  # the training started from its start, although it should continue
        self.late: tuple[float, float] | None = None  # a position whose goal came after that of a later one
        self.repeated: float | None = None  # a position with several values of the goal
        self.gap: tuple[float, float] | None = (
            None  # positions without a row between them, although those before had one
        )
        self.differs: float | None = None  # the first value, if it is at `after` again and another one than before

    @property
    def waits(self) -> float:
        """The last position that has a row but no report yet; 0 if there is none."""
        return self._furthest if self._furthest in self._pending else 0.0

    @property
    def shifted(self) -> bool:
        """Whether the goal seems to come before its position: the first has none, and the last position no goal."""
        return self._early and 0.0 < self._reached < self.waits and self._goal not in self._pending[self.waits]

    @property
    def missed(self) -> float | None:
        """The last position with the goal, if it does not come any more: pandas writes NaN as an empty cell."""
        long = self._step > 0.0 and self.waits - self._reached >= max(3.0, 3.0 * self._step)
        return self._reached if long and self._goal not in self._pending[self.waits] else None

    def add(self, row: Row) -> list[tuple[float, Row]]:
        """Return the position and the metrics of each report that a row completes.

        Raises InvalidInput for a position 0; NotSupported if a training that should continue starts another one.
        """
        if (report := self._complete(row)) is None:
            return []
        return [report] if self._held is None else self._released(report)

    def _released(self, report: tuple[float, Row]) -> list[tuple[float, Row]]:
        """Return the reports that count, once checkpoints, times or values show whether the program trains again."""
        (position, metrics), now, took = report, self._now(), self._took[self._origin]
        if not self._held:
            self._came, self._since, self._held = now - self._since, now, [report]
            return []
        self._held.append(report)
        wrote, between = self._wrote(self._origin), now - self._since
        self.again = not equal(metrics[self._goal], self._earlier.get(position, metrics[self._goal]))
        if wrote is not None:
            self.again |= wrote
        elif self._after > self._origin:
            last = max(place for place in self._took if place <= position)
            self.again |= between > _REPEATS * (self._took[last] - took)
        else:  # of the only time, the start of the program took a part, and an epoch takes about as long as this one
            self.again |= between > _ONCE * took and self._came > max(_REPEATS * took, took - between / 2)
        if not self.again and position < self._after:
            return []
        held, self._held = self._held, None
        return [(place, row) for place, row in held if self.again or place > self._after]

    def _complete(self, row: Row) -> tuple[float, Row] | None:
        """Return the position and the metrics of the report that a row completes; one position only once."""
        position, goal = self._place(row), row.get(self._goal)
        self._once |= {name: row[name] for name in self._limited & row.keys()}
        if position is None:
            self._early |= goal is not None
            return None
        if self._start is None:
            self._start = position
        if position <= 0.0:
            if self._metrics.first is None and (self._by in row or not self._early):
                if goal is not None:
                    raise self._asks_for_first(f"The first row with {self._goal} in the log has {self._by} 0")
                self._zeroth |= row.keys() - {self._by}
            return None
        if goal is not None and not self._has_goal:
            if self._counts_from_zero(position, row):
                raise self._asks_for_first(f"The log has rows with {self._by} 0, 1 and so on")
            self._has_goal = True
            self._early &= position == self._start  # otherwise it evaluates seldom
            known = self._earlier.get(position)
            if self._earlier and position <= self._after and self._start <= self._began:
                if not equal(goal, known):
                    was = "had none" if known is None else f"was {known:.6g}"
                    raise NotSupported(
                        f"A trial should continue after {self._by} {self._after:g}, but its log starts at {self._by} "
                        f"{self._start:g} again: at {position:g} {self._goal} is {goal:.6g}, and {was}. If the "
                        "program loads {checkpoint}, let its log continue the count from there. If not, check how "
                        "the command gives it {checkpoint}, or leave checkpoint out under [program]."
                    )
                if position == self._origin:
                    self._held, self._reached, self._pending, self._furthest = [], 0.0, {}, 0.0
            elif position == self._after and known is not None and not math.isclose(goal, known, rel_tol=_NOISE):
                self.differs = goal
        if position <= self._reached:
            if goal is not None and not equal(goal, self._values.get(position, goal)):
                self.repeated = position
            elif goal is not None and position > self._after and position not in self._values:
                self.late = position, self._reached
            if position == self._reached:
                self._latest |= {name: row[name] for name in row.keys() - self._latest.keys() - {self._by}}
            return None
        self._furthest = max(self._furthest, position)
        pending = self._pending.setdefault(position, {})
        pending |= row
        if not (self._needed <= pending.keys() and self._limited <= self._once.keys()):
            return None
        metrics = {name: value for name, value in (self._once | pending).items() if name != self._by}
        self._once, self._limited = {}, set()
        if self._latest:
            step, silent = position - self._reached, min(self._pending) == position
            if silent and 0.0 < self._step <= 1.01 * self._least and step > 1.9 * self._step:
                self.gap = self._reached, position
            self._least, self._step = min(self._least, step), max(self._step, step)
        self._reached, self._latest = position, metrics
        self._values[position] = metrics[self._goal]
        self._pending = {place: row for place, row in self._pending.items() if place > position}
        return position, metrics

    def _counts_from_zero(self, position: float, row: Row) -> bool:
        """Return whether the first row with the goal follows rows of the epochs 0, 1, and so on, which lack it."""
        if not self._zeroth or self._metrics.position is None:
            return False
        first = row | self._pending.get(position, {}) | self._pending.get(1.0, {})
        places = {*self._pending, position}
        return places == {float(n + 1) for n in range(len(places))} and not self._zeroth.isdisjoint(first)

    def _asks_for_first(self, found: str) -> InvalidInput:
        return InvalidInput(
            f"{found}. If the first epoch or step has the number 0, write first = 0 under [metrics]. If that row is "
            "from before the training, write first = 1."
        )

    def _place(self, row: Row) -> float | None:
        """Return the position of a row; one without has that of the row before."""
        if self._by is None:
            return self._reached + 1.0
        if self._by in row:
            self._last = row[self._by] + self._shift if math.isfinite(row[self._by]) else None
        return self._last
