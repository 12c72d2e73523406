"""An append in PostgreSQL: one round trip.

It locks its study's row, compares, inserts and commits. Were that transaction forced to the
disk before it lets go of the row, a study could take no more appends a second than the disk takes
flushes. So it commits without waiting, and a second one, which the same message carries and which
holds nothing, waits for the disk: flushes of many workers become one. An append is acknowledged
when both are done. Other workers may read it some milliseconds before; `Replica` notices the log
that lost such an event in a crash of the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from haltune.log.events import MOVES, Event

from ...base import CLAIM, Lease, Release
from .. import tables
from ..rows import RowMark

_COLUMNS = [c for c in tables.events.columns if c.name not in ("study", "seq")]
_ARRAYS = {"INTEGER": "int[]", "BIGINT": "bigint[]", "TEXT": "text[]", "DOUBLE": "float8[]"}


def _list(columns: Sequence[sa.Column[Any]]) -> str:
    return ", ".join(f'"{c.name}"' for c in columns)


def _unnest(columns: Sequence[sa.Column[Any]]) -> str:
    """Rows numbered from 1, out of one array a column."""
    arrays = ", ".join(f"%({c.table.name}.{c.name})s::{_ARRAYS[str(c.type)]}" for c in columns)
    return f"unnest({arrays}) WITH ORDINALITY AS u({_list(columns)}, n)"


_TOUCHED = "e.trial = %(about)s"
_MOVED = "e.kind IN (" + ", ".join(f"'{k.kind}'" for k in MOVES) + ")"
_THERE = (  # what the caller knows of the log: it may have been deleted, and made anew
    "NOT EXISTS (SELECT 1 FROM unnest(%(known)s::int[], %(checksums)s::bigint[]) AS k(seq, checksum) "
    "LEFT JOIN haltune_events e ON e.study = s.id AND e.seq = k.seq "
    "WHERE e.seq IS NULL OR e.checksum IS DISTINCT FROM k.checksum)"
)
_PARTS = {
    "free": "SELECT s.id, coalesce((SELECT max(e.seq) + 1 FROM haltune_events e WHERE e.study = s.id), 0) AS head "
    "FROM haltune_studies s WHERE s.name = %(name)s AND NOT EXISTS (SELECT 1 FROM haltune_events e "
    "WHERE e.study = s.id AND e.seq >= %(seen)s AND {matters}) AND " + _THERE,
    "added": f"INSERT INTO haltune_events (study, seq, {_list(_COLUMNS)}) "
    f"SELECT id, head + n - 1, {', '.join(f'u.{c.name}' for c in _COLUMNS)} FROM free, {_unnest(_COLUMNS)}",
}
_METRICS = (
    "INSERT INTO haltune_metrics (study, seq, name, value) SELECT id, head + u.nth, u.name, u.value FROM free, "
    "unnest(%(nth)s::int[], %(names)s::text[], %(values)s::float8[]) AS u(nth, name, value)"
)
_LEASED = "attempt = excluded.attempt, holder = excluded.holder, expires = excluded.expires, renewed = excluded.renewed"
_LEASE = (
    "INSERT INTO haltune_leases (study, trial, attempt, holder, expires, renewed) SELECT id, %(l_trial)s, "
    "%(l_attempt)s, %(l_holder)s, %(l_expires)s, %(l_renewed)s FROM free "
    f"ON CONFLICT (study, trial) DO UPDATE SET {_LEASED}"
)
_DROP = "DELETE FROM haltune_leases l USING free WHERE l.study = free.id AND l.trial = %(l_trial)s"
_UNCLAIM = "DELETE FROM haltune_leases l USING free WHERE l.study = free.id AND l.trial = %(claim)s"

_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
NO_WAIT = "SET LOCAL synchronous_commit TO off"
_LOCK = f"SELECT {_THERE} FROM haltune_studies s WHERE s.name = %(name)s FOR UPDATE"
FLUSH = "SELECT pg_logical_emit_message(true, 'haltune', '')"  # the least that a commit has to flush


def append(
    c: sa.Connection,
    name: str,
    events: Sequence[Event],
    seen: int,
    about: int | None,
    lease: Lease | Release | None,
    known: Sequence[RowMark],
) -> tuple[bool | None, int | None, RowMark]:
    """(whether it has all `known`, None for no such study; the first position, None for a conflict; the last mark)."""
    raw: Any = c.connection.driver_connection
    statement, values = _statement(name, events, seen, about, lease)
    values |= {"known": [seq for seq, _ in known], "checksums": [checksum for _, checksum in known]}
    try:
        with raw.pipeline():
            raw.execute(_BEGIN)
            raw.execute(NO_WAIT)
            locked = raw.execute(_LOCK, values)
            added = raw.execute(statement, values)  # sees what was committed while it waited for the lock
            raw.execute("COMMIT")
            raw.execute(FLUSH)
        row, there = added.fetchone(), locked.fetchone()
        position = None if row is None else int(row[0])
        last = (position or 0) + len(events) - 1, values["haltune_events.checksum"][-1]
        return (None if there is None else there[0]), position, last
    except Exception:
        if not raw.closed:
            raw.rollback()
        raise


def _statement(
    name: str, events: Sequence[Event], seen: int, about: int | None, lease: Lease | Release | None
) -> tuple[str, dict[str, Any]]:
    rows = [tables.row(e, 0, 0) for e in events]
    values: dict[str, Any] = {f"haltune_events.{c.name}": [row[c.name] for row in rows] for c in _COLUMNS}
    values |= {"name": name, "seen": seen, "about": about}
    parts = {
        "free": _PARTS["free"].format(matters=_MOVED if about is None else _TOUCHED),
        "added": _PARTS["added"],
    }
    if scalars := tables.metric_rows(events, 0, 0):
        parts["measured"] = _METRICS
        values["nth"] = [row["seq"] for row in scalars]
        values["names"] = [row["name"] for row in scalars]
        values["values"] = [row["value"] for row in scalars]
    if lease is not None:
        parts["leased"] = _DROP if isinstance(lease, Release) else _LEASE
        values |= {f"l_{key}": getattr(lease, key) for key in lease.__slots__}
    if about is None:
        parts["unclaimed"], values["claim"] = _UNCLAIM, CLAIM
    return "WITH " + ", ".join(
        f"{key} AS ({part})" for key, part in parts.items()
    ) + " SELECT head FROM free", values
