"""What an event may say: types and ranges of its fields, whoever wrote the log it comes from.

Checked where events are read, so that what folds them may trust them. A field's type is what its annotation says;
what a number may be goes by its name, which means the same in all events. Whether an event fits those before it (a
trial that there is, the next attempt) is for `History` to say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, replace
from enum import StrEnum
from functools import cache
from types import MappingProxyType
from typing import Any, cast

from haltune.display import one_line
from haltune.errors import HaltuneError, InvalidInput, InvalidSpace, StoreError
from haltune.space import Space

from .decisions import Verdict
from .problem import Budget, Problem

ADVICE = (
    "The log is damaged, or something else than haltune wrote to it: bring back a copy of the store, or begin "
    "another study; `haltune doctor` looks at the whole of it"
)
_DEPTH = 40  # of tables and lists within each other; nothing that is recorded nests so deep


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _finite(value: Any) -> bool:
    return _number(value) and math.isfinite(value)


def _plain(value: Any, depth: int = 0) -> bool:
    """Whether it is what JSON holds, and not nested without end."""
    if isinstance(value, Mapping):
        return depth < _DEPTH and all(isinstance(k, str) and _plain(v, depth + 1) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return depth < _DEPTH and all(_plain(v, depth + 1) for v in value)
    return value is None or isinstance(value, (str, int, float))


def _verdict(value: Any) -> bool:
    if not isinstance(value, Verdict) or not isinstance(value.reason, str):
        return False
    return isinstance(value.evidence, Mapping) and (value.until is None or _end(value.until))


def _end(value: Any) -> bool:
    return _number(value) and value > 0


def _time(value: Any) -> bool:
    return _number(value) and abs(value) < 6e10  # the year 3871: what calendars of all platforms can tell


def _length(value: Any) -> bool:
    return _finite(value) and value >= 0


Check = tuple[Callable[[Any], bool], str]  # and what is allowed, in words
_TYPES: dict[str, Check] = {
    "int": (_whole(0), "a whole number, 0 or more"),
    "float": (_finite, "a finite number"),
    "str": (lambda value: isinstance(value, str), "a text"),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
    "Status": (lambda value: isinstance(value, StrEnum), "the status of a trial"),
    "Verdict": (_verdict, "a verdict, with a reason and a table of its numbers"),
    "Mapping[str, Any]": (lambda value: isinstance(value, Mapping) and _plain(value), "a table of plain values"),
    "Mapping[str, float]": (
        lambda value: isinstance(value, Mapping) and all(map(_number, value.values())), "a table of numbers",
    ),
}  # fmt: skip
_NAMES: dict[str, Check] = {
    "at": (_time, "a time, in seconds since 1970"),
    "attempt": (_whole(1), "a whole number, 1 or more"),
    "until": (_end, "an epoch, greater than 0"),
    "value": (_number, "a number"),
    "resource": (_number, "a number"),
    **dict.fromkeys(("epoch", "seconds", "validation", "cost", "deciding"), (_length, "a finite number, 0 or more")),
    "path": (lambda value: isinstance(value, str) and value != "" and "\0" not in value, "a path"),
}  # fmt: skip


@cache
def _checks(kind: Any) -> tuple[tuple[str, bool, Check], ...]:
    """(field, whether it may be None, check) of the fields of a kind."""
    found = []
    for field in fields(kind):
        type_, _, none = str(field.type).partition(" | ")
        check = _NAMES.get(field.name) or _TYPES.get(type_)
        if check is not None:
            found.append((field.name, none == "None", check))
    return tuple(found)


def kind_of(body: Any, kinds: Mapping[str, type[Any]]) -> str:
    """The kind of an event in JSON. Raises InvalidInput for a kind or a field that this version does not know."""
    kind = body.get("kind") if isinstance(body, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidInput(f"an event is a table that says its kind, not {str(body)[:80]!r}")
    newer = "this log was written by a newer haltune; update to read it"
    if kind not in kinds:
        raise InvalidInput(f"an event of kind {kind!r}: {newer}")
    known = {"kind", *(field.name for field in fields(kinds[kind]))}
    if unknown := [name for name in body if name not in known]:
        raise InvalidInput(f"an event {kind!r} with {unknown[0]!r}: {newer}")
    return kind


def check(event: Any) -> None:
    """Raises InvalidInput that names the field for an event that no haltune writes."""
    for name, optional, (fine, allowed) in _checks(cast(Hashable, type(event))):
        value = getattr(event, name)
        if not (optional and value is None) and not fine(value):
            raise InvalidInput(f"{name} = {_short(value)}: {allowed}{', or null' * optional}")
    if event.kind == "reported" and not event.epoch > 0:  # a checkpoint may be of the beginning
        raise InvalidInput(f"epoch = {event.epoch!r}: epochs count from 1, or parts of it")
    if event.kind == "asked" and event.wish not in ("stop", "pause", "continue"):
        raise InvalidInput(f"wish = {_short(event.wish)}: stop, pause or continue")
    if event.kind in ("budgeted", "raised"):
        try:
            Budget(**event.budget)
        except TypeError as error:
            raise InvalidInput(f"budget = {_short(event.budget)}: {error}") from error
    if event.kind == "rescaled" and not event.low < event.high:
        raise InvalidInput(f"low = {event.low!r}, high = {event.high!r}: low is less than high")
    if event.kind == "rescaled" and event.worst is not None and not event.low <= event.worst < event.high:
        raise InvalidInput(f"worst = {event.worst!r}: from low, {event.low!r}, to below high, {event.high!r}")
    if event.kind in ("ended", "expired") and event.status == "running":
        raise InvalidInput("status = 'running': what has ended does not run")


def misplaced(
    event: Any, trial: int | None, position: int, trials: Sequence[Any], horizon: int | None
) -> str | None:
    """Why an event cannot follow those before it, from which `trials` were folded; None when it can.

    trial: the one that it is about, if any.
    """
    kind = event.kind
    if trial is None:
        return "a study is made once, by its first event" if kind == "created" and position else None
    if kind == "started":
        return None if trial == len(trials) else f"trial {trial} started, and the next is {len(trials)}"
    if trial >= len(trials):
        return f"{kind} of trial {trial}, and there are {len(trials)} yet"
    now, attempt = trials[trial].attempt, event.attempt
    if (attempt != now + 1) if kind == "resumed" else (attempt > now):
        return f"{kind} of attempt {attempt} at trial {trial}, which is at attempt {now}"
    if kind == "reported" and horizon is not None and event.epoch > horizon:
        return f"epoch {event.epoch:g} of trial {trial}, and a training has {horizon}"
    return None


def spanning(problem: Problem, event: Any, position: int, whose: str) -> Problem:
    """The problem from an event on that makes the study or widens its space: the log says of what space it is.

    Raises StoreError for a space that is none, or does not contain the one before.
    """
    first = event.kind == "created"
    told = event.problem.get("space") if first else event.space
    start = event.problem.get("start", ()) if first else problem.start
    if told is None or (told == problem.space.to_json() and list(start) == list(problem.start)):
        return problem
    try:
        space = Space.from_json(told, {c.name: c.predicate for c in problem.space.constraints})
        if first:
            return replace(problem, space=space, start=start)
        lacks = space.lacking(problem.space)
        if not lacks:
            return replace(problem, space=space.widening(problem.space))
        error: Exception = InvalidSpace(f"which does not contain the one before: {'; '.join(lacks)}")
    except (HaltuneError, KeyError, TypeError, ValueError, AttributeError, IndexError) as found:
        error = found
    raise StoreError(f"event {position} of {whose}: its space, {one_line(error)}. {ADVICE}") from error


def restore_trials(trials: Sequence[Any], space: Space, whose: str) -> None:
    """Give configurations that come from a log back the types that JSON lacks.

    Raises StoreError when one is none of the space; whose: the study, in words.
    """
    if not trials:  # of no configuration it takes 0.2 ms, too, and every report comes here
        return
    try:
        configs = space.canonical_many([t.config for t in trials])
    except InvalidSpace as error:
        raise StoreError(f"a configuration in the log of {whose}: {error}. {ADVICE}") from error
    for t, config in zip(trials, configs, strict=True):
        t.config, t.restored = MappingProxyType(config), True


def unfolded(policy: Any, position: int, whose: str, error: Exception) -> StoreError:
    """The error for an event of a log that a policy does not take up."""
    return StoreError(
        f"event {position} of {whose}: {type(policy).__name__} cannot fold it, {one_line(error)}. Unless that is a "
        f"mistake of the policy's: {ADVICE}"
    )


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
