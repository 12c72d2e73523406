"""A log read from its tables: every row is looked at before anybody believes it.

Positions without a gap, checksums that agree, JSON that is JSON, fields as `validity` wants them. What is not so is
a StoreError that names the study, the position and what to do.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from haltune.errors import InvalidInput, StoreError
from haltune.log import events as ev
from haltune.log.decisions import Action, Verdict
from haltune.log.events import ADVICE, Event, check, from_json

from ..base import Lease
from . import checksums, tables

RowMark = tuple[int, int | None]  # an event's position and checksum: another log has another one there
_INF = math.inf
_CHANGED = "it is not what was written: its checksum disagrees"


def page(
    c: sa.Connection,
    statement: sa.Select[Any],
    study: int,
    start: int,
    stop: int,
    size: int,
    whose: str,
    known: RowMark | None = None,
) -> tuple[list[Event], list[RowMark]]:
    """The events from position `start`, up to `size` of them, and the marks of the first and the last.

    whose: the study, in words. known: of the event before them, which must still be there. Raises StoreError.
    """  # fmt: skip
    # positions have no gaps: without this bound PostgreSQL may sort all that follows for each page
    stop = min(stop, start + size)
    begin = start - (known is not None)
    wanted = {"of_study": study, "start": begin, "stop": stop, "page": size + 1}
    rows = c.execute(statement, wanted).fetchall()
    if known is not None:
        if not rows or mark(rows[0]) != known:
            raise gone(known, whose)
        rows = rows[1:]
    if not rows:
        return [], []
    found: dict[Any, dict[str, float | None]] = {}
    for seq, metric, value in c.execute(tables.METRICS, {"of_study": study, "start": start, "stop": stop}):
        found.setdefault(seq, {})[metric] = value
    read = []
    for position, row in enumerate(rows, start):
        if row[0] != position:
            raise damaged(position, whose, f"it is not there; the next is event {row[0]}")
        try:
            read.append(event(row, found.get(position) or _NO_METRICS))
        except InvalidInput as error:
            raise damaged(position, whose, str(error)) from error
    return read, [mark(rows[0]), mark(rows[-1])]


def mark(row: Sequence[Any]) -> RowMark:
    """By what an event of EVENTS is known again."""
    return row[0], row[6]


def gone(known: RowMark, whose: str) -> StoreError:
    """The error for a log that no longer has an event which this process read or wrote."""
    return StoreError(
        f"event {known[0]} of {whose} was there before and is not there any more: while this program used the study, "
        "it was deleted, made anew, or overwritten by an older copy. Nothing more is written to it. End all programs "
        "that use it, bring the right log back, and start them again; or open the study anew, Study(...)"
    )


def damaged(position: int, whose: str, what: str) -> StoreError:
    """The error for an event that cannot be believed."""
    return StoreError(f"event {position} of {whose}: {what}. {ADVICE}")


def event(row: Sequence[Any], metrics: Mapping[str, float | None]) -> Event:
    """The event of one row of EVENTS and its metrics: the inverse of `tables.row`. Raises InvalidInput."""
    _, kind, action, reason, until, body, checksum, *values = row
    if kind != "reported":
        return _other(kind, body, checksum, values[1])
    at, trial, attempt, epoch, value, seconds, seen, validation, cost, deciding = values
    try:
        texts = (action, reason, body or "")
        found = checksums.of_report(
            at, trial, attempt, epoch, value, seconds, seen, validation, cost, deciding, until, texts, metrics
        )
    except (TypeError, ValueError, struct.error, AttributeError) as error:
        raise InvalidInput(f"a report's numbers and texts are of other types: {error}") from error
    if checksum is not None and checksum != found:
        raise InvalidInput(_CHANGED)
    if action not in _ACTIONS or (body and not (body[0] == "{" and body[-1] == "}")):
        raise InvalidInput(
            f"action = {action!r:.80}, evidence = {body!r:.80}: a verdict, and a table of its numbers"
        )
    verdict = Verdict(
        _ACTIONS[action], tables.restored(reason), _LazyNumbers(body) if body else _NO_EVIDENCE, until
    )
    scalars = {tables.restored(name): math.nan if v is None else v for name, v in metrics.items()}
    report = _report((at, trial, attempt, epoch, math.nan if value is None else value, seconds, verdict,
                      seen, validation, cost, deciding, scalars))  # fmt: skip
    if not (
        trial >= 0 and attempt >= 1 and 0.0 < epoch < _INF and 0.0 <= seconds < _INF and -_INF < at < _INF
        and 0.0 <= deciding < _INF and seen >= 0 and (validation is None or 0.0 <= validation < _INF)
        and (cost is None or 0.0 <= cost < _INF) and (until is None or until > 0.0)
    ):  # fmt: skip
        check(report)  # says which
    return report


def _other(kind: Any, body: Any, checksum: Any, trial: Any) -> Event:
    if not (isinstance(kind, str) and isinstance(body, str)):
        raise InvalidInput(f"kind = {kind!r:.80}, body = {body!r:.80}: texts")
    if checksum is not None and checksum != checksums.of_text(kind, body):
        raise InvalidInput(_CHANGED)
    try:
        found = from_json(json.loads(body))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidInput(f"its JSON cannot be read ({error}): {body[:80]!r}") from error
    if found.kind != kind or ev.trial_of(found) != trial:
        raise InvalidInput(
            f"kind {kind!r:.80} and trial {trial!r} of the row are not those of its JSON: {body[:80]!r}"
        )
    return found


def check_end(c: sa.Connection, study: int, end: int, stop: int, whose: str) -> None:
    """Raises StoreError when a log that seems to end at a position goes on beyond a gap."""
    head = c.scalar(tables.HEAD, {"of_study": study})
    if head is not None and end <= head < stop:
        raise damaged(end, whose, f"it is not there, and the log continues to event {head}")


def leases(c: sa.Connection, statement: sa.Select[Any], study: int, whose: str) -> list[Lease]:
    """The leases that a statement finds. Raises StoreError for what is none."""
    found = [Lease(*row) for row in c.execute(statement, {"of_study": study})]
    for one in found:
        times = (one.expires, one.renewed)
        fine = isinstance(one.trial, int) and isinstance(one.attempt, int) and isinstance(one.holder, str)
        if not (fine and all(isinstance(t, (int, float)) and math.isfinite(t) for t in times)):
            raise StoreError(f"a lease of {whose} is none: {one!r:.200}. {ADVICE}")
    return found


def _report(values: tuple[Any, ...]) -> ev.Reported:
    """A report of its fields in their order. Its own __init__, frozen, takes twice as long: a fifth of a load."""
    report = object.__new__(ev.Reported)
    for put, value in zip(_PUT, values, strict=True):
        put(report, value)
    return report


_PUT = [getattr(ev.Reported, f.name).__set__ for f in fields(ev.Reported)]
_ACTIONS = {str(a): a for a in Action}
_NO_METRICS: Mapping[str, float | None] = MappingProxyType({})
_NO_EVIDENCE: Mapping[str, Any] = MappingProxyType({})


class _LazyNumbers(Mapping[str, Any]):
    """A verdict's numbers, read from their JSON when someone looks: a load of half a million reports does not."""

    __slots__ = ("_parsed", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._parsed: dict[str, Any] | None = None

    def _all(self) -> dict[str, Any]:
        if self._parsed is None:
            try:
                self._parsed = dict(json.loads(self._text))
            except (ValueError, TypeError, RecursionError) as error:
                raise StoreError(
                    f"the numbers of a verdict cannot be read ({error}): {self._text[:80]!r}. {ADVICE}"
                ) from error
        return self._parsed

    def __getitem__(self, name: str) -> Any:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())
