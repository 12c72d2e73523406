"""The tables of the log in a SQL database, an event as a row, and the statements of a store.

A report is one row of typed columns; every other event keeps its JSON in `body`. Statements are
built once: building an expression costs SQLAlchemy more than running it. `of_study` and `of_trial`
name the rows that are meant, apart from columns that are set.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

import sqlalchemy as sa

from haltune.log import events as ev
from haltune.log.events import MOVES, Event, plain, to_json

from ..base import CLAIM, Lease, Release
from . import checksums

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
    sa.Column("checksum", sa.BigInteger),  # NULL in rows of versions that had none
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

STUDY_NAMES = sa.select(studies.c.name).order_by(studies.c.id)
ID = sa.select(studies.c.id).where(studies.c.name == sa.bindparam("of_name"))
ID_LOCKED = ID.with_for_update()
NEW_STUDY = studies.insert()

_HEADS = ("seq", "kind", "action", "reason", "until", "body", "checksum")
_FIELDS = ("at", "trial", "attempt", "epoch", "value", "seconds", "seen", "validation", "cost", "deciding")
_of_study = events.c.study == sa.bindparam("of_study")
_since = _of_study & (events.c.seq >= sa.bindparam("start"))


def _reading(columns: Iterable[Any]) -> sa.Select[Any]:
    asked = sa.select(*columns).where(_since, events.c.seq < sa.bindparam("stop"))
    return asked.order_by(events.c.seq).limit(sa.bindparam("page"))


EVENTS = _reading(events.c[name] for name in _HEADS + _FIELDS)
EVENTS_OF_OLD = _reading(  # tables that nobody may change, and that have no checksums
    sa.null().label(name) if name == "checksum" else events.c[name] for name in _HEADS + _FIELDS
)
METRICS = (
    sa.select(metrics.c.seq, metrics.c.name, metrics.c.value)
    .where(metrics.c.study == sa.bindparam("of_study"))
    .where(metrics.c.seq >= sa.bindparam("start"), metrics.c.seq < sa.bindparam("stop"))
    .order_by(metrics.c.seq, metrics.c.name)
)
HEAD = sa.select(sa.func.max(events.c.seq)).where(_of_study)
MARKS = sa.select(events.c.seq, events.c.checksum).where(_since).order_by(events.c.seq)
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
UNNAME = studies.update().where(studies.c.id == sa.bindparam("of_study")).values(name="")
FORGET = (
    events.delete().where(_of_study),
    leases.delete().where(leases.c.study == sa.bindparam("of_study")),
    studies.delete().where(studies.c.id == sa.bindparam("of_study")),
)
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


def row(event: Event, study: int, seq: int) -> dict[str, Any]:
    """The columns of one event."""
    filled = _BLANK | {"study": study, "seq": seq, "kind": event.kind, "at": event.at}
    filled["trial"] = ev.trial_of(event)
    if isinstance(event, ev.Reported):
        verdict = event.verdict
        action, reason = str(verdict.action), stored(verdict.reason)
        body = json.dumps(plain(verdict.evidence)) if verdict.evidence else None
        filled.update(
            attempt=event.attempt, epoch=event.epoch, value=nullable(event.value), seconds=event.seconds,
            validation=event.validation, cost=event.cost, deciding=event.deciding, seen=event.seen,
            action=action, reason=reason, until=verdict.until, body=body,
            checksum=checksums.of_report(
                event.at, event.trial, event.attempt, event.epoch, nullable(event.value), event.seconds, event.seen,
                event.validation, event.cost, event.deciding, verdict.until, (action, reason, body or ""),
                {stored(name): value for name, value in event.metrics.items()},
            ),
        )  # fmt: skip
    else:
        body = json.dumps(to_json(event))
        filled.update(body=body, checksum=checksums.of_text(event.kind, body))
    return filled


def metric_rows(batch: Sequence[Event], study: int, seq: int) -> list[dict[str, Any]]:
    """The further metrics of the reports among events that begin at position `seq`."""
    return [
        {"study": study, "seq": position, "name": stored(name), "value": nullable(value)}
        for position, event in enumerate(batch, seq)
        if isinstance(event, ev.Reported)
        for name, value in event.metrics.items()
    ]


def nullable(value: float) -> float | None:
    """NaN as NULL."""
    return None if math.isnan(value) else value


# -- texts ----------------------------------------------------------------------------------


def stored(text: str) -> str:
    """Text as all databases hold it: without the character 0 and lone surrogates, and nothing is lost."""
    return _UNHELD.sub(_escape, text)


def restored(text: str) -> str:
    """The inverse of `stored`."""
    return _ESCAPED.sub(_unescape, text) if "\x1b" in text else text


_UNHELD = re.compile("[\x00\x1b\ud800-\udfff]")
_ESCAPED = re.compile("\x1b(?:[0e]|u[0-9a-f]{4})")


def _escape(found: re.Match[str]) -> str:
    return {"\x00": "\x1b0", "\x1b": "\x1be"}.get(found[0]) or f"\x1bu{ord(found[0]):04x}"


def _unescape(found: re.Match[str]) -> str:
    return {"0": "\x00", "e": "\x1b"}.get(found[0][1:]) or chr(int(found[0][2:], 16))
