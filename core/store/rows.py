"""Tables of a SQL database; conversion of events to rows and back, with checksums.

A report is one row of typed columns; every other event is JSON in `body`. Rows are checked when they are read: the
checksum, the JSON, and the ranges of fields. The fold of the log depends on these checks.

A checksum is a CRC-32 of a row's values and of a report's other metrics: numbers as 64 bits, little-endian, NULL as
NaN; text in UTF-8. It detects every change of up to 32 adjacent bits, and all but one in 4 billion other changes.
Positions are not included, because they have no gaps.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any
from zlib import crc32

import sqlalchemy as sa

from haltune.errors import InvalidInput, StoreError
from haltune.log import events as ev
from haltune.log.decisions import Action, Verdict
from haltune.log.events import ADVICE, Event, check, fits, from_json, plain, to_json

# -- tables ---------------------------------------------------------------------------------

meta = sa.MetaData()
_real: sa.types.TypeEngine[float] = sa.Double()
studies = sa.Table(
    "haltune_studies",
    meta,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, unique=True, nullable=False),
)
events = sa.Table(
    "haltune_events",
    meta,
    sa.Column("study", sa.Integer, primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("at", _real, nullable=False),
    sa.Column("trial", sa.Integer),
    sa.Column("attempt", sa.Integer),
    sa.Column("epoch", _real),
    sa.Column("value", _real),  # NULL is NaN: SQLite has none
    sa.Column("seconds", _real),
    sa.Column("validation", _real),
    sa.Column("cost", _real),
    sa.Column("deciding", _real),
    sa.Column("seen", sa.Integer),
    sa.Column("action", sa.Text),
    sa.Column("reason", sa.Text),
    sa.Column("pause_at", _real),
    sa.Column("body", sa.Text),  # JSON: a verdict's evidence, or a whole event of another kind
    sa.Column("checksum", sa.BigInteger, nullable=False),
    sqlite_with_rowid=False,
)
metrics = sa.Table(
    "haltune_metrics",
    meta,
    sa.Column("study", sa.Integer, primary_key=True),
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", _real),  # NULL is NaN
    sqlite_with_rowid=False,
)
leases = sa.Table(
    "haltune_leases",
    meta,
    sa.Column("study", sa.Integer, primary_key=True),
    sa.Column("trial", sa.Integer, primary_key=True),
    sa.Column("attempt", sa.Integer, nullable=False),
    sa.Column("holder", sa.Text, nullable=False),
    sa.Column("expires", _real, nullable=False),
    sa.Column("renewed", _real, nullable=False),
)
READ = (  # the columns that `event` needs
    "seq", "kind", "action", "reason", "pause_at", "body", "checksum", "at", "trial", "attempt", "epoch", "value",
    "seconds", "seen", "validation", "cost", "deciding",
)  # fmt: skip

# -- from an event to its row ---------------------------------------------------------------

_BLANK: dict[str, Any] = dict.fromkeys(events.columns.keys())


def row(event: Event, study: int = 0, seq: int = 0) -> dict[str, Any]:
    filled = _BLANK | {"study": study, "seq": seq, "kind": event.kind, "at": event.at}
    if not isinstance(event, ev.Reported):
        body = json.dumps(to_json(event))
        return filled | {
            "trial": ev.trial_of(event), "body": body, "checksum": _checksum_of_text(event.kind, body),
        }  # fmt: skip
    verdict, value = event.verdict, None if math.isnan(event.value) else event.value
    action, reason = str(verdict.action), stored(verdict.reason)
    body = json.dumps(plain(verdict.evidence)) if verdict.evidence else ""
    measured = {stored(name): value for name, value in event.metrics.items()}
    filled.update(
        trial=event.trial, attempt=event.attempt, epoch=event.epoch, value=value, seconds=event.seconds,
        validation=event.validation, cost=event.cost, deciding=event.deciding, seen=event.seen,
        action=action, reason=reason, pause_at=verdict.pause_at, body=body or None,
        checksum=_checksum_of_report(
            event.at, event.trial, event.attempt, event.epoch, value, event.seconds, event.seen, event.validation,
            event.cost, event.deciding, verdict.pause_at, (action, reason, body), measured,
        ),
    )  # fmt: skip
    return filled


def metric_rows(batch: Sequence[Event], study: int = 0, seq: int = 0) -> list[dict[str, Any]]:
    return [
        {"study": study, "seq": at, "name": stored(name), "value": None if math.isnan(value) else value}
        for at, event in enumerate(batch, seq)
        if isinstance(event, ev.Reported)
        for name, value in event.metrics.items()
    ]


_NUMBERS = struct.Struct("<dqqdddqdddd").pack  # raises struct.error for other types
_NUMBER = struct.Struct("<d").pack


def _checksum_of_report(
    at: float, trial: int, attempt: int, epoch: float, value: float | None, seconds: float, seen: int,
    validation: float | None, cost: float | None, deciding: float, pause_at: float | None,
    texts: tuple[str, str, str], measured: Mapping[str, float | None],
) -> int:  # fmt: skip
    """Return the checksum. texts: action, reason, body; measured: by stored names. Raises struct.error, TypeError."""
    nan = math.nan
    numbers = _NUMBERS(  # SQLite stores -0.0 as 0.0; + 0.0 does the same
        at, trial, attempt, epoch, nan if value is None else value + 0.0, seconds + 0.0, seen,
        nan if validation is None else validation + 0.0, nan if cost is None else cost + 0.0, deciding,
        nan if pause_at is None else pause_at,
    )  # fmt: skip
    total = crc32("\0".join(texts).encode(), crc32(numbers))
    for name in sorted(measured):
        number: Any = measured[name]
        total = crc32(_NUMBER(nan if number is None or number != number else number + 0.0), total)
        total = crc32(name.encode(), total)
    return total


def _checksum_of_text(kind: str, body: str) -> int:
    return crc32(f"{kind}\0{body}".encode())


# -- from a row to its event ----------------------------------------------------------------

_CHANGED = "it was changed after it was written: its checksum differs"
_ACTIONS = {str(a): a for a in Action}
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_PUT = [getattr(ev.Reported, f.name).__set__ for f in fields(ev.Reported)]


def event(row: Sequence[Any], measured: Mapping[str, float | None] = _NOTHING) -> Event:
    _, kind, action, reason, pause_at, body, checksum, *values = row
    if kind != "reported":
        return _other(kind, body, checksum, values[1])
    at, trial, attempt, epoch, value, seconds, seen, validation, cost, deciding = values
    try:
        texts = (action, reason, body or "")
        found = _checksum_of_report(
            at, trial, attempt, epoch, value, seconds, seen, validation, cost, deciding, pause_at, texts, measured
        )
    except (TypeError, ValueError, struct.error, AttributeError) as error:
        raise InvalidInput(f"a report's numbers or texts have wrong types: {error}") from error
    if checksum != found:
        raise InvalidInput(_CHANGED)
    if action not in _ACTIONS or (body and not (body[0] == "{" and body[-1] == "}")):
        raise InvalidInput(f"action = {action!r:.80}, evidence = {body!r:.80}: expected an action and numbers")
    verdict = Verdict(_ACTIONS[action], restored(reason), _LazyNumbers(body) if body else _NOTHING, pause_at)
    scalars = {restored(name): math.nan if v is None else v for name, v in measured.items()}
    report = object.__new__(ev.Reported)  # the frozen __init__ takes twice as long, 20% of loading a log
    ordered = (at, trial, attempt, epoch, math.nan if value is None else value, seconds, verdict, seen, validation,
            cost, deciding, scalars)  # fmt: skip
    for put, field in zip(_PUT, ordered, strict=True):
        put(report, field)
    if not fits(report):
        check(report)  # names the field
    return report


def _other(kind: Any, body: Any, checksum: Any, trial: Any) -> Event:
    if not (isinstance(kind, str) and isinstance(body, str)):
        raise InvalidInput(f"kind = {kind!r:.80}, body = {body!r:.80}: expected texts")
    if checksum != _checksum_of_text(kind, body):
        raise InvalidInput(_CHANGED)
    try:
        found = from_json(json.loads(body))
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidInput(f"its JSON cannot be read ({error}): {body[:80]!r}") from error
    if found.kind != kind or ev.trial_of(found) != trial:
        raise InvalidInput(f"kind {kind!r:.80} and trial {trial!r} of the row differ from its JSON: {body[:80]!r}")
    return found


class _LazyNumbers(Mapping[str, Any]):
    """Evidence of a verdict, parsed at first use, because loading a log does not need it."""

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
                    f"cannot read the numbers of a verdict ({error}): {self._text[:80]!r}. {ADVICE}"
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


# -- texts ----------------------------------------------------------------------------------

_UNHELD = re.compile("[\x00\x1b\ud800-\udfff]")
_ESCAPED = re.compile("\x1b(?:[0e]|u[0-9a-f]{4})")


def stored(text: str) -> str:
    """Escape characters that a database cannot store: the character 0 and lone surrogates."""
    return _UNHELD.sub(lambda m: {"\x00": "\x1b0", "\x1b": "\x1be"}.get(m[0]) or f"\x1bu{ord(m[0]):04x}", text)


def restored(text: str) -> str:
    if "\x1b" not in text:
        return text
    return _ESCAPED.sub(lambda m: {"0": "\x00", "e": "\x1b"}.get(m[0][1:]) or chr(int(m[0][2:], 16)), text)
