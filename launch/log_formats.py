"""Formats of logs: a reader of each makes rows, {column: number}, from the bytes of one file in pieces of any size."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from haltune.errors import InvalidInput

Row = dict[str, float]


class Reader:
    """Rows of a format, from the bytes of one file in pieces of any size."""

    def feed(self, data: bytes) -> Iterable[Row]:
        raise NotImplementedError

    def end(self) -> Iterable[Row]:
        """Return the rows of an incomplete last line."""
        return ()

    def reset(self) -> None:
        """The file starts again."""
        raise NotImplementedError


class Lines(Reader):
    """A format of one line for each row.

    metrics: those that the study needs. If none of them is a column, each row may have one metric: step, name, value.
    """

    ends = re.compile(rb"\n")

    def __init__(self, metrics: Iterable[str] = ()) -> None:
        self._metrics = set(metrics)
        self.texts = dict[str, Any]()  # by column, the last cell that was no number; "" if there was none
        self.kinds = dict[str, set[str]]()  # by column, its different texts, MANY at most
        self.torn, self.lost = "", 0  # the last line that seems to be a part of a row, and their number
        self.twice: tuple[str, str] | None = None  # a metric with two values in one line, and the line
        self.reset()

    def reset(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterable[Row]:
        if not data:
            return ()
        *lines, self._rest = self.ends.split(self._rest + data)
        return [row for line in lines for row in self._rows(line)]

    def end(self) -> Iterable[Row]:
        line, self._rest = self._rest, b""
        return self._rows(line) if line else ()

    def _rows(self, line: bytes) -> list[Row]:
        text = line.decode("utf-8", "replace").removeprefix("\ufeff").strip("\r\n")
        return [row for row in self.rows(text) if row]

    def rows(self, line: str) -> Iterable[Row]:
        """Return the rows that a line completes."""
        return (self.row(line),)

    def row(self, line: str) -> Row:
        """Return the numbers of a line; none for a line that is no row."""
        raise NotImplementedError

    def _tear(self, line: str) -> None:
        self.torn, self.lost = line.strip()[:200], self.lost + 1

    def numbers(self, cells: Iterable[tuple[str, Any]]) -> Row:
        """Return the cells of a line that are numbers, and keep the other ones for messages."""
        row: Row = {}
        for name, cell in self._wide([*cells]):
            if (value := number(cell)) is not None:
                row[name] = value
            elif cell or name not in self.texts:
                self.texts[name] = "" if cell is None else cell
                kinds = self.kinds.setdefault(name, set())
                if isinstance(cell, str) and cell and len(kinds) < MANY:
                    kinds.add(cell)
        return row

    def _wide(self, cells: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        """Return the cells of a row; in a log with a row for each metric, the value has the metric's name."""
        if not self._metrics:
            return cells
        found = dict(cells)
        long = _long(found) if self._metrics.isdisjoint(found) else None
        metric = None if long is None else found[long[0]]
        if long is None or not isinstance(metric, str) or number(metric or "0") is not None:
            return cells
        return [*((name, cell) for name, cell in cells if name not in long), (metric.strip(), found[long[1]])]


MANY = 9  # different texts in a column, which then does not tell kinds of rows apart
_NAMES, _VALUES = ("name", "key", "metric", "metric_name", "tag", "variable"), ("value", "metric_value")


def _long(columns: Iterable[str]) -> tuple[str, str] | None:
    """Return the columns with the name and the value of a metric; None if there are no such columns, or several."""
    lower = {name: name.lower() for name in columns}
    names, values = ([name for name in lower if lower[name] in known] for known in (_NAMES, _VALUES))
    return (names[0], values[0]) if len(names) == len(values) == 1 else None


class Csv(Lines):
    """Comma-separated values, also by tabs, semicolons or spaces. A line with one of the `names` is a header.

    by: the column of the position, one of the names.
    """

    def __init__(self, names: Iterable[str], by: str | None = None) -> None:
        self._names = set(names)
        self._header, self._delimiter = list[str](), ""
        self._before = self._header, self._delimiter  # of the file before
        super().__init__(self._names - {by})

    def reset(self) -> None:
        super().reset()
        if self._header:
            self._before = self._header, self._delimiter
        self._header, self._delimiter = [], ""

    def row(self, line: str) -> Row:
        if not line.strip() or (self._header and line.lstrip().startswith("#")):
            return {}
        if not self._header and self._continues(line):
            self._header, self._delimiter = self._before
        text = line if self._header else line.lstrip("# ")
        marks = [self._delimiter] if self._header else _DELIMITERS
        for mark in marks:
            cells = _cells(text, mark)
            if self._is_header(cells, mark):
                self._header, self._delimiter = cells, mark
                doubled = [name for name in self._metrics if cells.count(name) > 1]
                self.twice = (doubled[0], line) if doubled else self.twice
                apart = _long(cells) if self._metrics.isdisjoint(cells) else None  # they name no metric
                self.texts |= dict.fromkeys((name for name in cells if name and name not in (apart or ())), "")
                return {}
        if not self._header:  # a title, or a header without a name that the study needs
            cells = _cells(text, next((mark for mark in marks if mark in text), ","))
            if not _has_number(cells):
                self.texts |= dict.fromkeys(filter(None, cells), "")
            return {}
        if not any(cells[len(self._header) :]):  # each row may end with a comma
            cells = cells[: len(self._header)]
        if len(cells) != len(self._header):  # a killed program left a part of a line
            self._tear(line)
            return {}
        return self.numbers((name, cell) for name, cell in zip(self._header, cells, strict=True) if name)

    def _continues(self, line: str) -> bool:
        """Return whether a line is a row of the table in the file before: a rotated file may have no header."""
        header, mark = self._before
        cells = _cells(line, mark) if header else []
        if len(cells) != len(header) or not _has_number(cells):
            return False
        return all(number(cell) is not None for name, cell in zip(header, cells, strict=True) if name in self._names)

    def _is_header(self, cells: list[str], mark: str) -> bool:
        emptier = cells.count("") > self._header.count("")  # the index of pandas has no name
        if self._header and cells != self._header and (_has_number(cells) or emptier):
            return False  # a row, which may name a metric, too
        return not self._names.isdisjoint(cells) or (mark != " " and _long(cells) is not None)


_DELIMITERS = (",", "\t", ";", " ")


def _cells(line: str, delimiter: str) -> list[str]:
    if delimiter == " ":
        return line.split()
    with suppress(csv.Error):
        return [cell.strip() for cell in next(csv.reader(io.StringIO(line), delimiter=delimiter), [])]
    return []


def _has_number(cells: Iterable[str]) -> bool:
    return any(number(cell) is not None for cell in cells)


class JsonLines(Lines):
    """A JSON object in each line, or over several lines, alone or in a list; numbers within others are named eval.loss.

    An object or a list over several lines starts and ends by a line with its bracket alone, as json.dump(indent=2)
    writes it. by: the column of the position, one of the names.
    """

    def __init__(self, names: Iterable[str] = (), by: str | None = None) -> None:
        self._by = by
        self.inner = dict[str, list[str]]()  # columns of objects in a list within an object, by its name
        super().__init__({*names} - {by})

    def reset(self) -> None:
        super().reset()
        self._begun = list[str]()  # lines of an object or a list that is not complete

    def feed(self, data: bytes) -> Iterable[Row]:
        rows = [*super().feed(data)]
        # an object is complete without the end of its line, which json.dump does not write
        rest = self._rest.rstrip()
        complete = rest in (b"}", b"]") if self._begun else rest.endswith((b"}", b"]"))
        torn = self.torn, self.lost
        if data and complete:
            last = self._rows(self._rest)
            rows, self._rest = [*rows, *last], b"" if last else self._rest
        self.torn, self.lost = torn  # the rest may still come
        return rows

    def end(self) -> Iterable[Row]:
        rows = [*super().end()]
        self._begun = []
        return rows

    def rows(self, line: str) -> Iterable[Row]:
        if self._begun and line[:1].isspace():
            self._begun.append(line)
            return ()
        begun, self._begun = self._begun, []
        if line.rstrip() in ("{", "["):
            self._begun = [line]
            return ()
        found = _decoded("\n".join((*begun, line)) if line.rstrip() in ("}", "]") else line)
        if not found and line.lstrip().startswith("{"):
            self._tear(line)
        return [self.numbers(_flat(row)) for one in found for row in self._objects(one)]

    def _objects(self, found: Any) -> list[dict[str, Any]]:
        """Return the objects that are rows: of a list, or of one in an object without these metrics (log_history).

        The latter need the position, as a table of classes in an object is no curve.
        """
        if isinstance(found, list):
            return [one for one in found if isinstance(one, dict)]
        if not isinstance(found, dict):
            return []
        lists = {
            name: [one for one in of if isinstance(one, dict)] for name, of in found.items() if isinstance(of, list)
        }
        self.inner |= {name: sorted(set().union(*map(self._columns, of))) for name, of in lists.items() if of}
        placed = [one for of in lists.values() for one in of if self._by in self._columns(one)]
        if not any(self._metrics & self._columns(one) for one in placed) or self._metrics & self._columns(found):
            return [found]
        return placed

    def _columns(self, table: dict[str, Any]) -> set[str]:
        return {name for name, _ in self._wide([*_flat(table)])}


def _decoded(text: str) -> list[Any]:
    """Return the objects of a text, one or several without a line's end between them; none if it has another part."""
    found, place, text = list[Any](), 0, text.strip().removesuffix(",")  # in a list that is not complete
    try:
        while place < len(text):
            one, place = _DECODER.raw_decode(text, place)
            found.append(one)
            place = _SPACE.match(text, place).end()  # type: ignore[union-attr]
    except (ValueError, RecursionError):
        return []
    return found


_DECODER, _SPACE = json.JSONDecoder(), re.compile(r"\s*")


def _flat(table: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


# 0,95 and 1,000 and 1,125.50, and no values with commas between them, such as 2,0.75
_COMMAS = re.compile(r"(?<!,)[-+]?\d+(?:,\d+)+(?:(?<=,\d{3})\.\d+)?(?!\d|\.\d)")
_THOUSANDS = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:,?|\.\d+)")


class Matched(Lines):
    """Lines for people, in which patterns find numbers. Progress bars end lines by a carriage return.

    by: the column of the position, in which commas are thousands separators, as they are in 1,125.50. Any other number
    with a comma is none.
    """

    ends = re.compile(rb"[\r\n]")
    _colours = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

    def __init__(self, patterns: Sequence[re.Pattern[str]], by: str | None = None) -> None:
        self._patterns, self._by = patterns, by
        self.last = ""  # the last line with a number
        super().__init__()

    def row(self, line: str) -> Row:
        line, row = self._colours.sub("", line), Row()
        for pattern in self._patterns:
            for found in pattern.finditer(line):
                names = (name for name, text in found.groupdict().items() if text is not None)
                new = self.numbers((name, self._cell(found, name)) for name in names)
                changed = [name for name in new if name in row and not equal(new[name], row[name])]
                if changed and self.twice is None:
                    self.twice = changed[0], line
                row |= new
        self.last = line if row else self.last
        return row

    def _cell(self, found: re.Match[str], name: str) -> str:
        """Return the text of a group, with the rest of a number with commas, of which [\\d.]+ takes the start."""
        text, line = found[name], found.string
        whole = _COMMAS.match(line, found.start(name))
        if whole and whole[0].startswith(f"{text},"):
            joined = line[: whole.start()] + whole[0].replace(",", "") + line[whole.end() :]
            if found.re.match(joined, found.start()):  # otherwise the pattern needs the comma, between two numbers
                text = whole[0]
        separates = _THOUSANDS.fullmatch(text) and (name == self._by or "." in text)
        return text.replace(",", "") if separates else text


class MlflowMetric(Lines):
    """A file of MLflow for one metric: the time, the value and the step in each line."""

    def __init__(self, name: str) -> None:
        self._name = name
        super().__init__()

    def row(self, line: str) -> Row:
        parts = [number(part) for part in line.split()]
        if len(parts) != 3 or parts[1] is None or parts[2] is None:
            return {}
        return {self._name: parts[1], "step": parts[2]}


class Events(Reader):
    """TensorBoard's events: records of a length, its checksum, the data and their checksum."""

    def __init__(self) -> None:
        self._event, self._array = event_types()
        self.reset()

    def reset(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterable[Row]:
        data, place = self._rest + data, 0  # cut once: a file may have millions of records
        while len(data) - place >= 12:
            (length,) = struct.unpack_from("<Q", data, place)
            if len(data) - place < 16 + length:
                break
            record, place = data[place + 12 : place + 12 + length], place + 16 + length
            row: Row = {}
            with suppress(Exception):  # a record of another version, or a damaged one
                event = self._event.FromString(record)
                row = self._scalars(event)
            if row:
                yield {**row, "step": float(event.step)}
        self._rest = data[place:]

    def _scalars(self, event: Any) -> Row:
        row: Row = {}
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            if kind == "simple_value":
                row[value.tag] = float(value.simple_value)
            elif kind == "tensor":
                array = self._array(value.tensor)
                if array.size == 1 and array.dtype.kind in "fiu":
                    row[value.tag] = float(array.reshape(())[()])
        return row


class WandbRuns(Reader):
    """W&B's file run-ID.wandb: records of its protocol, Record.history, in pieces within blocks as in a LevelDB log.

    A piece has a checksum (4 bytes), its length (2), its place in the record (1: all of it, 2: first, 3: middle,
    4: last), and the data.
    """

    _block, _header = 32768, 7  # bytes of a block, before the data of a piece and at the start of the file

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._rest, self._place, self._record = b"", 0, b""

    def feed(self, data: bytes) -> Iterable[Row]:
        data, place = self._rest + data, 0  # cut once: a file may have millions of records
        while len(data) - place >= self._header:
            left = self._block - self._place % self._block
            length, kind = struct.unpack_from("<HB", data, place + 4)
            size = self._header if self._place == 0 else left if left < self._header else self._header + length
            if len(data) - place < size:
                break
            piece, place = data[place + self._header : place + size], place + size
            if self._place and left >= self._header and (row := self._row(piece, kind)):
                yield row
            self._place += size
        self._rest = data[place:]

    def _row(self, piece: bytes, kind: int) -> Row:
        self._record = piece if kind in (1, 2) else self._record + piece
        row: Row = {}
        with suppress(ValueError, IndexError):  # a record of another version, or a damaged one
            for item in _parsed(self._record).get(2, []) if kind in (1, 4) else ():  # its history
                row |= self._history(_parsed(item))
        return row

    @staticmethod
    def _history(history: Mapping[int, list[Any]]) -> Row:
        row: Row = {}
        for item in map(_parsed, history.get(1, [])):
            name = ".".join(part.decode() for part in item.get(1, []) or item.get(2, []))
            value = json.loads(item[16][-1]) if item.get(16) else None
            if not name.startswith("_"):
                row |= {part: v for part, cell in _flat({name: value}) if (v := number(cell)) is not None}
        step = _parsed(history[2][-1]).get(1, [0])[-1] if history.get(2) else None
        return row if step is None or not row else {**row, "step": float(step)}


def _parsed(message: bytes) -> dict[int, list[Any]]:
    """Return the fields of a message of Protocol Buffers by their numbers. Raises IndexError if it is cut short."""

    def number_at(place: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            value |= (message[place] & 127) << shift
            place, shift = place + 1, shift + 7
            if message[place - 1] < 128:
                return value, place

    found: dict[int, list[Any]] = {}
    place = 0
    while place < len(message):
        key, place = number_at(place)
        value: Any = None
        if key & 7 == 0:
            value, place = number_at(place)
        else:
            size, place = (8, place) if key & 7 == 1 else (4, place) if key & 7 == 5 else number_at(place)
            value, place = message[place : place + size], place + size
        found.setdefault(key >> 3, []).append(value)
    return found


def event_types() -> tuple[Any, Any]:
    try:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError:
        raise InvalidInput("To read TensorBoard's events haltune needs its package: pip install tensorboard.") from None
    return Event, make_ndarray


def number(value: Any) -> float | None:
    """Return a cell as a number, also nan and 95.2%; None if it is none."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        value = value.strip().removesuffix("%")
        if "_" in value:
            return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def equal(a: float, b: float | None) -> bool:
    return a == b or (b is not None and math.isnan(a) and math.isnan(b))
