"""The tables of the log in a SQL database, an event as a row, and the statements of a store.

A report is one row of typed columns; every other event keeps its JSON in `body`. Statements are
built once: building an expression costs SQLAlchemy more than running it. `of_study` and `of_trial`
name the rows that are meant, apart from columns that are set.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa

from . import events as ev
from .decisions import Action, Verdict
from .events import MOVES, Event
from .store import CLAIM, Lease, Release

PAGE = 150  # events read at a time: with more of them alive the garbage collector runs, a fifth of a load
PAGE_OF_SERVER = 1500  # likewise; each page costs two round trips
LAST = 2**31 - 1  # no position is larger

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
    sa.Column("until", _real),
    sa.Column(
        "body", sa.Text
    ),  # JSON: a verdict's evidence, NULL without any, or a whole event of another kind
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

# -- statements ---------------------------------------------------------------------------

NAMES = sa.select(studies.c.name).order_by(studies.c.id)
ID = sa.select(studies.c.id).where(studies.c.name == sa.bindparam("of_name"))
ID_LOCKED = ID.with_for_update()
NEW_STUDY = studies.insert()

_HEADS = ("seq", "kind", "action", "reason", "until", "body")
_FIELDS = ("at", "trial", "attempt", "epoch", "value", "seconds", "seen", "validation", "cost", "deciding")
_of_study = events.c.study == sa.bindparam("of_study")
_since = _of_study & (events.c.seq >= sa.bindparam("start"))
EVENTS = (
    sa.select(*(events.c[name] for name in _HEADS + _FIELDS))
    .where(_since, events.c.seq < sa.bindparam("stop"))
    .order_by(events.c.seq)
    .limit(sa.bindparam("page"))
)
METRICS = (
    sa.select(metrics.c.seq, metrics.c.name, metrics.c.value)
    .where(metrics.c.study == sa.bindparam("of_study"))
    .where(metrics.c.seq >= sa.bindparam("start"), metrics.c.seq < sa.bindparam("stop"))
    .order_by(metrics.c.seq, metrics.c.name)
)
HEAD = sa.select(sa.func.max(events.c.seq)).where(_of_study)
MOVED = sa.select(events.c.seq).where(_since, events.c.kind.in_([k.kind for k in MOVES])).limit(1)
TOUCHED = sa.select(events.c.seq).where(_since, events.c.trial == sa.bindparam("of_trial")).limit(1)
NEW_EVENTS, NEW_METRICS = events.insert(), metrics.insert()

_held = (leases.c.study == sa.bindparam("of_study")) & (leases.c.trial == sa.bindparam("of_trial"))
_LEASED: dict[str, Any] = {name: sa.bindparam(name) for name in ("attempt", "holder", "expires", "renewed")}
_all = sa.select(leases.c.trial, *(leases.c[name] for name in _LEASED)).where(
    leases.c.study == sa.bindparam("of_study")
)
LEASES, CLAIMED = _all.where(leases.c.trial != CLAIM), _all.where(leases.c.trial == CLAIM)
NEW_LEASE, SET_LEASE = leases.insert(), leases.update().where(_held).values(_LEASED)
RENEW_LEASE = (
    leases.update()
    .where(
        _held, leases.c.holder == sa.bindparam("of_holder"), leases.c.attempt == sa.bindparam("of_attempt")
    )
    .values(expires=sa.bindparam("expires"), renewed=sa.bindparam("renewed"))
)
DROP_LEASE = leases.delete().where(_held)
UNCLAIM = leases.delete().where(leases.c.study == sa.bindparam("of_study"), leases.c.trial == CLAIM)


def set_lease(c: sa.Connection, study: int, lease: Lease | Release | None) -> None:
    """What an append does to the lease of its trial."""
    if isinstance(lease, Release):
        c.execute(DROP_LEASE, {"of_study": study, "of_trial": lease.trial})
        return
    if lease is None:
        return
    values: dict[str, Any] = {name: getattr(lease, name) for name in _LEASED}
    if not c.execute(SET_LEASE, {"of_study": study, "of_trial": lease.trial, **values}).rowcount:
        c.execute(NEW_LEASE, {"study": study, "trial": lease.trial, **values})


# -- rows -----------------------------------------------------------------------------------

_BLANK: dict[str, Any] = dict.fromkeys(events.columns.keys())
_ACTIONS = {str(a): a for a in Action}


def row(event: Event, study: int, seq: int) -> dict[str, Any]:
    """The columns of one event."""
    filled = _BLANK | {"study": study, "seq": seq, "kind": event.kind, "at": event.at}
    filled["trial"] = getattr(event, "trial", None)
    if isinstance(event, ev.Reported):
        verdict = event.verdict
        filled.update(
            attempt=event.attempt, epoch=event.epoch, value=nullable(event.value), seconds=event.seconds,
            validation=event.validation, cost=event.cost, deciding=event.deciding, seen=event.seen,
            action=str(verdict.action), reason=verdict.reason, until=verdict.until,
            body=json.dumps(ev.plain(verdict.evidence)) if verdict.evidence else None,
        )  # fmt: skip
    else:
        filled["body"] = json.dumps(ev.to_json(event))
    return filled


def metric_rows(batch: Sequence[Event], study: int, seq: int) -> list[dict[str, Any]]:
    """The further metrics of the reports among events that begin at position `seq`."""
    return [
        {"study": study, "seq": position, "name": name, "value": nullable(value)}
        for position, event in enumerate(batch, seq)
        if isinstance(event, ev.Reported)
        for name, value in event.metrics.items()
    ]


def nullable(value: float) -> float | None:
    """NaN as NULL."""
    return None if math.isnan(value) else value


def not_null(value: float | None) -> float:
    """The inverse of `nullable`."""
    return math.nan if value is None else value


def event(found: Sequence[Any], scalars: Mapping[str, float]) -> Event:
    """The event of one row of EVENTS and its metrics: the inverse of `row`."""
    _, kind, action, reason, until, body, at, trial, attempt, epoch, value, seconds, *rest = found
    if kind != "reported":
        return ev.from_json(json.loads(body))
    verdict = Verdict(_ACTIONS[action], reason, _NOTHING if body is None else _Evidence(body), until)
    value = math.nan if value is None else value
    return _report((at, trial, attempt, epoch, value, seconds, verdict, *rest, scalars))


def _report(values: tuple[Any, ...]) -> ev.Reported:
    """A report of its fields in their order. Its own __init__, frozen, takes twice as long: a fifth of a load."""
    report = object.__new__(ev.Reported)
    for put, value in zip(_PUT, values, strict=True):
        put(report, value)
    return report


_PUT = [getattr(ev.Reported, f.name).__set__ for f in fields(ev.Reported)]


class _Evidence(Mapping[str, Any]):
    """A verdict's numbers, read from their JSON when someone looks: a load of half a million reports does not."""

    __slots__ = ("_parsed", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._parsed: dict[str, Any] | None = None

    def _all(self) -> dict[str, Any]:
        if self._parsed is None:
            self._parsed = dict(json.loads(self._text))
        return self._parsed

    def __getitem__(self, name: str) -> Any:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def __repr__(self) -> str:
        return repr(self._all())


_NOTHING: Mapping[str, Any] = MappingProxyType({})
