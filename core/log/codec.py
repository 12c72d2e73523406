"""Events as strict JSON, and back: `to_json` and `from_json` are exact inverses."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from haltune.errors import InvalidInput

from .decisions import Action, Verdict
from .events import KINDS, Event, Status
from .validity import check, kind_of


def to_json(event: Event) -> dict[str, Any]:
    """The event as strict JSON: non-finite floats become the strings 'nan', 'inf', '-inf'."""
    body: dict[str, Any] = {"kind": event.kind}
    for f in fields(event):
        value = getattr(event, f.name)
        if value or (f.name != "id" and not (f.name == "metric" and event.kind == "rescaled")):
            body[f.name] = verdict_to_json(value) if isinstance(value, Verdict) else plain(value)
    return body


def from_json(body: Mapping[str, Any]) -> Event:
    """The inverse of `to_json`.

    Raises InvalidInput for a kind or a field this version does not know, and for what no haltune writes.
    """
    kind = kind_of(body, KINDS)
    try:
        event = _made(kind, {name: value for name, value in body.items() if name != "kind"})
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise InvalidInput(f"an event {kind!r} that is not whole: {error}") from error
    check(event)
    return event


def _made(kind: str, rest: dict[str, Any]) -> Event:
    for name in _FLOATS.get(kind, ()):
        if rest.get(name) is not None:
            rest[name] = float(rest[name])
    if "status" in rest:
        rest["status"] = Status(rest["status"])
    if "verdict" in rest:
        rest["verdict"] = verdict_from_json(rest["verdict"])
    if "metrics" in rest:
        rest["metrics"] = {name: float(value) for name, value in rest["metrics"].items()}
    return KINDS[kind](**rest)


_FLOATS = {k.kind: tuple(f.name for f in fields(k) if "float" in str(f.type)) for k in KINDS.values()}
_FLOATS["reported"] = tuple(n for n in _FLOATS["reported"] if n != "metrics")


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    """A verdict as strict JSON."""
    evidence = {"evidence": plain(verdict.evidence)} if verdict.evidence else {}
    until = {} if verdict.until is None else {"until": plain(float(verdict.until))}
    return {"action": str(verdict.action), "reason": verdict.reason, **evidence, **until}


def verdict_from_json(body: Mapping[str, Any]) -> Verdict:
    """The inverse of `verdict_to_json`."""
    until = None if body.get("until") is None else float(body["until"])
    return Verdict(Action(body["action"]), body["reason"], body.get("evidence", {}), until)


def plain(value: Any) -> Any:
    """`value` with numpy scalars, tuples and non-finite floats as strict JSON. Raises InvalidInput for other things."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (str, int)):  # np.str_ and enumerations too
        return str(value) if isinstance(value, str) else int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return plain(value.tolist())
    raise InvalidInput(
        f"{value!r} of type {type(value).__name__} cannot be recorded: use numbers, strings, lists"
    )
