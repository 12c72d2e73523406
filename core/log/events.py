"""Events: the ordered facts of a study and their JSON. A study has no other state.

Every event is a frozen dataclass; `to_json` and `from_json` are exact inverses. `at` is the store's clock in seconds
since the epoch. `seen` is the number of events read when a decision was made (a log position, exclusive). Replaying
the policy on that prefix gives the same decision.

This module checks types and ranges of fields, whichever program wrote the log. `History` checks whether an event fits
those before it (the trial exists, the attempt is the next one).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar

from haltune.display import clipped
from haltune.errors import InvalidInput
from haltune.hints import KnowsAttributes

from .decisions import EARLIER, Action, Verdict
from .problem import NEWER, Budget

ADVICE = (
    "The log is damaged, or another program wrote to it. Restore a copy of the store, or start "
    "another study. `haltune doctor` checks the whole log"
)


class Status(StrEnum):
    """Status of a trial."""

    RUNNING = "running"
    PAUSED = "paused"  # the policy may resume it
    COMPLETED = "completed"  # ended by itself, at max_epochs or earlier
    STOPPED = "stopped"  # ended early by a verdict
    INTERRUPTED = "interrupted"  # Ctrl-C, SIGTERM or an expired lease; it will be offered to a worker again
    FAILED = "failed"  # an exception, or too many retries


OVER = frozenset({Status.COMPLETED, Status.STOPPED, Status.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event(KnowsAttributes):
    kind: ClassVar[str] = ""
    at: float  # seconds since the epoch, store's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEvent(Event):
    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEvent(TrialEvent):
    """Base of events within an attempt at a trial. They count while that attempt is the trial's last one."""

    attempt: int  # from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Created(Event):
    kind: ClassVar[str] = "created"
    problem: Mapping[str, Any]
    policy: Mapping[str, Any]
    seed: int
    id: str = ""  # unique for each study, whatever its name
    checkpoints: str = ""  # the full path of the folder that its program named for them; "": none
    next_to: str = ""  # that of the folder next to its store, by which a copy of the store is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Widened(Event):
    """From here on the search uses another space."""

    kind: ClassVar[str] = "widened"
    space: Mapping[str, Any]  # contains the previous one
    inner: Mapping[str, Any] | None = None  # a narrower one, which contains all configurations from here on


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(TrialEvent):
    """A policy's Start: a new trial, numbered in log order from 0."""

    kind: ClassVar[str] = "started"
    config: Mapping[str, Any]
    pause_at: float | None  # epochs
    resource: float | None
    tags: Mapping[str, Any]
    reason: str
    evidence: Mapping[str, Any]
    seen: int
    deciding: float  # seconds spent on the decision
    worker: str
    partial: bool = False  # True: not a full training, at any epoch; see decisions.Start
    price: float | None = None  # of its worker per hour; None: the budget's


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(TrialEvent):
    """A new attempt at a trial: the policy's Resume, or a retry after an interruption."""

    kind: ClassVar[str] = "resumed"
    attempt: int
    pause_at: float | None  # epochs
    resource: float | None
    tags: Mapping[str, Any]
    reason: str
    evidence: Mapping[str, Any]
    seen: int
    deciding: float  # seconds
    worker: str
    by_policy: bool  # False: the study offered the trial again by itself
    anew: bool = False  # True: its checkpoint is missing, so it starts from scratch
    given_up: bool = False  # True: its program trains another training; what was reported after it does not count
    price: float | None = None  # of its worker per hour; None: the budget's


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported(AttemptEvent):
    """One validation of a trial with its verdict: one row, one transaction."""

    kind: ClassVar[str] = "reported"
    epoch: float  # from 1; fractional for validations within an epoch
    value: float  # the goal's metric, in its own unit; may be NaN or infinite
    seconds: float  # since the report before, validation included
    verdict: Verdict
    seen: int
    validation: float | None = None  # seconds of `seconds` spent on validation
    cost: float | None = None  # since the report before, as the user reported it, in the user's unit
    deciding: float = 0.0  # seconds spent on the verdict
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def copied(self) -> bool:
        """True if it copies an earlier attempt's report. This attempt continues after it, and did not train it."""
        return self.verdict.action is Action.UNJUDGED and EARLIER in self.verdict.evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed(AttemptEvent):
    """A checkpoint was saved. A later attempt can continue from it."""

    kind: ClassVar[str] = "checkpointed"
    epoch: float
    path: str
    seconds: float = 0.0  # spent saving
    resumes_only: bool = False  # True: its model is not the one that was evaluated, such as an average of later weights
    weights: str = ""  # the marks of its model, see `Port.sign`, a line each; "": not known
    content: str = ""  # its size and digest, see `Checkpoints.content`; "": a folder, or not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(AttemptEvent):
    """The state after a trial's best epoch was saved. It is for the user; trials do not continue from it."""

    kind: ClassVar[str] = "kept"
    epoch: float
    path: str
    seconds: float = 0.0  # spent saving


@dataclass(frozen=True, slots=True, kw_only=True)
class Slept(AttemptEvent):
    """The store's clock jumped during a lease: the machine slept, or the clock was set. Nothing trained then."""

    kind: ClassVar[str] = "slept"
    since: float  # seconds since the epoch: the previous clock reading
    seconds: float  # seconds since then that the machine did not run


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(AttemptEvent):
    kind: ClassVar[str] = "ended"
    status: Status
    error: str | None = None  # one line
    traceback: str | None = None
    weights: str = ""  # the last marks of models that it has trained, without those of its saved states; as there


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired(AttemptEvent):
    """A worker was lost: its lease expired, or its process is gone."""

    kind: ClassVar[str] = "expired"
    holder: str
    last_alive: float  # seconds since the epoch: the lease's last renewal
    status: Status  # INTERRUPTED: will be offered again; FAILED: too many retries
    reason: str | None = None  # a launcher's observation; None: the worker is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescaled(Event):
    """Learnt scale of a goal without bounds or of several goals: score = (sign * value - low) / (high - low)."""

    kind: ClassVar[str] = "rescaled"
    low: float  # sign * value that scores 0
    high: float  # sign * value that scores 1
    metric: str = ""  # of several goals: the one with this scale; "": the first or only one
    worst: float | None = None  # of several goals: sign * value of the worst on the Pareto front; None: low


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedEvery(Event):
    """From here on trials are judged once in `every` epochs (or the study's other unit)."""

    kind: ClassVar[str] = "judged_every"
    every: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgeted(Event):
    """The budget from now on. If the policy plans by it, an earlier end for lack of budget no longer holds."""

    kind: ClassVar[str] = "budgeted"
    budget: Mapping[str, Any]  # the limits given, as Budget.to_json
    plans: bool = True  # the policy plans by it; False: it is recorded only for readers


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued(Event):
    """The user enqueued a configuration. It starts before the policy's own proposals."""

    kind: ClassVar[str] = "enqueued"
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Event):
    """The first enqueued configuration does not start: a constraint unknown to its sender, or a narrower space."""

    kind: ClassVar[str] = "refused"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """The policy ended the search. If the policy plans by the budget, a new budget can continue it."""

    kind: ClassVar[str] = "finished"
    reason: str
    seen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(Event):
    """The search is paused on all workers; without a reason, it continues."""

    kind: ClassVar[str] = "held"
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(TrialEvent):
    """The user wants a trial to stop or pause at its next report, or to continue."""

    kind: ClassVar[str] = "asked"
    attempt: int  # the last known one at the time of the request
    wish: str  # "stop", "pause" or "continue"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised(Event):
    """The user raised limits of the budget. The larger limit counts: this one or the program's."""

    kind: ClassVar[str] = "raised"
    budget: Mapping[str, Any]  # the limits, as Budget.to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted(TrialEvent):
    """The user's note on a trial. A later one replaces it; an empty one removes it."""

    kind: ClassVar[str] = "noted"
    text: str


MOVES = (Widened, Started, Resumed, Rescaled, JudgedEvery, Budgeted, Enqueued, Refused, Finished, Held)
_OTHERS = (Created, Reported, Checkpointed, Kept, Slept, Ended, Expired, Asked, Raised, Noted)
KINDS: dict[str, type[Event]] = {kind.kind: kind for kind in (*_OTHERS, *MOVES)}


def trial_of(event: Event) -> int | None:
    return event.trial if isinstance(event, TrialEvent) else None


# -- as JSON ---------------------------------------------------------------------------------------


def to_json(event: Event) -> dict[str, Any]:
    """Return the event as strict JSON: non-finite floats become the strings 'nan', 'inf', '-inf'."""
    body: dict[str, Any] = {"kind": event.kind}
    for name in event.__dataclass_fields__:
        value = getattr(event, name)
        if (event.kind, name) in _LATER and not value:
            continue
        if isinstance(value, Verdict):
            body[name] = verdict_to_json(value)
        else:
            body[name] = value if type(value) in _AS_IT_IS else plain(value)
    return body


def from_json(body: Mapping[str, Any]) -> Event:
    """Return the event of `to_json`.

    Raises InvalidInput for a kind or field that this version does not know, and for values that haltune never writes.
    """
    kind = body.get("kind") if isinstance(body, Mapping) else None
    if not isinstance(kind, str):
        raise InvalidInput(f"an event must be a table with a 'kind'; got {str(body)[:80]!r}")
    if kind not in KINDS:
        raise InvalidInput(f"an event of kind {kind!r}: {NEWER}")
    rest = {name: value for name, value in body.items() if name != "kind"}
    if unknown := [name for name in rest if name not in KINDS[kind].__dataclass_fields__]:
        raise InvalidInput(f"an event {kind!r} with {unknown[0]!r}: {NEWER}")
    try:
        for name in _FLOATS[kind]:
            if rest.get(name) is not None:
                rest[name] = float(rest[name])
        if "status" in rest:
            rest["status"] = Status(rest["status"])
        if "verdict" in rest:
            rest["verdict"] = verdict_from_json(rest["verdict"])
        if "metrics" in rest:
            rest["metrics"] = {name: float(value) for name, value in rest["metrics"].items()}
        event = KINDS[kind](**rest)
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as error:
        raise InvalidInput(f"an event {kind!r} is incomplete or has a wrong type: {error}") from error
    check(event)
    return event


_FLOATS = {
    k.kind: tuple(f.name for f in fields(k) if "float" in str(f.type) and f.name != "metrics") for k in KINDS.values()
}


def verdict_to_json(verdict: Verdict) -> dict[str, Any]:
    evidence = {"evidence": plain(verdict.evidence)} if verdict.evidence else {}
    end = {} if verdict.pause_at is None else {"pause_at": plain(float(verdict.pause_at))}
    return {"action": str(verdict.action), "reason": verdict.reason, **evidence, **end}


def verdict_from_json(body: Mapping[str, Any]) -> Verdict:
    pause_at = None if body.get("pause_at") is None else float(body["pause_at"])
    return Verdict(Action(body["action"]), body["reason"], body.get("evidence", {}), pause_at)


_AS_IT_IS = frozenset({str, bool, type(None)})  # in JSON
_LATER = {("ended", "weights")}  # fields that are left out if they are empty: then earlier versions read the event


def plain(value: Any) -> Any:
    """Return `value` as strict JSON, also from numpy scalars, tuples and non-finite floats. Raises InvalidInput."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str) or (isinstance(value, int) and abs(value) < _HUGE):  # np.str_ and enumerations too
        return str(value) if isinstance(value, str) else int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        return {str(k): v if type(v) in _AS_IT_IS else plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [v if type(v) in _AS_IT_IS else plain(v) for v in value]
    if hasattr(value, "tolist"):  # numpy scalars and arrays
        return plain(value.tolist())
    kind = "a number above 2**1023" if isinstance(value, int) else f"{value!r} of type {type(value).__name__}"
    raise InvalidInput(f"{kind} cannot be recorded. Use numbers, strings or lists")


# -- valid fields: their type by annotation, their range by name -----------------------------------

_INF = math.inf
_DEPTH = 40  # of nested tables and lists; haltune records nothing deeper
_HUGE = 2**1023  # larger whole numbers are no floats
LATEST = 6e10  # the year 3871: the limit of calendars on all platforms
Check = tuple[Callable[[Any], bool], str]  # test, and the allowed values in words


def _number(value: Any) -> bool:
    return isinstance(value, float) or (type(value) is int and abs(value) < _HUGE)


def _finite(value: Any) -> bool:
    return _number(value) and math.isfinite(value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _end(value: Any) -> bool:
    return _number(value) and value > 0


def _plain(value: Any) -> bool:
    left, depth = [value], 0
    while left:
        inner: list[Any] = []
        for one in left:
            if one is None or isinstance(one, (str, float)) or (isinstance(one, int) and abs(one) < _HUGE):
                continue
            table = isinstance(one, Mapping)
            if depth == _DEPTH or not (isinstance(one, (list, tuple)) or (table and {*map(type, one)} <= {str})):
                return False
            inner += one.values() if table else one
        left, depth = inner, depth + 1
    return True


def _verdict(value: Any) -> bool:
    if not isinstance(value, Verdict) or not isinstance(value.reason, str):
        return False
    return isinstance(value.evidence, Mapping) and (value.pause_at is None or _end(value.pause_at))


_TYPES: dict[str, Check] = {
    "int": (_whole, "a whole number, 0 or more, below 2**63"),
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
    "at": (
        lambda value: _number(value) and abs(value) < LATEST,
        "a time, in seconds since 1970, before the year 3871. Check the clock of the store",
    ),
    "attempt": (lambda value: _whole(value) and value >= 1, "a whole number, 1 or more"),
    "pause_at": (_end, "an epoch, greater than 0"),
    "every": (lambda value: _finite(value) and value > 0, "a finite number, greater than 0"),
    "value": (_number, "a number"),
    "resource": (_number, "a number"),
    **dict.fromkeys(
        ("epoch", "seconds", "validation", "cost", "deciding", "price"),
        (lambda value: _finite(value) and value >= 0, "a finite number, 0 or more"),
    ),
    "path": (lambda value: isinstance(value, str) and value != "" and "\0" not in value, "a path"),
}


def _checks(kind: type[Event]) -> list[tuple[str, bool, Check]]:
    """Return (field, may be None, check) of the fields of a kind."""
    typed = [(f.name, *str(f.type).partition(" | ")) for f in fields(kind)]
    known = [(name, none == "None", _NAMES.get(name) or _TYPES.get(type_)) for name, type_, _, none in typed]
    return [(name, optional, one) for name, optional, one in known if one is not None]


_CHECKS = {kind: _checks(kind) for kind in KINDS.values()}


def fits(r: Reported) -> bool:
    """Return whether the fields of a report are within their ranges: what `check` finds, without its names.

    A log has mostly reports, so this is one expression. It is false, too, for a report with other types.
    """
    try:
        return (
            r.trial >= 0 and r.attempt >= 1 and 0.0 < r.epoch < _INF and 0.0 <= r.seconds < _INF
            and -LATEST < r.at < LATEST and 0.0 <= r.deciding < _INF and r.seen >= 0
            and (r.validation is None or 0.0 <= r.validation < _INF) and (r.cost is None or 0.0 <= r.cost < _INF)
            and (r.verdict.pause_at is None or r.verdict.pause_at > 0.0)
        )  # fmt: skip
    except TypeError:
        return False


def check_new_event(event: Event) -> None:
    """Raise InvalidInput, with the field's name, for an event that could not be read again after an append."""
    try:
        if isinstance(event, Reported):
            plainly = {type(event.value), *map(type, event.metrics.values())} == {float}
            if plainly and type(event.verdict.reason) is str and fits(event):
                return
        check(event)
    except (InvalidInput, ValueError, RecursionError) as error:
        raise InvalidInput(f"an event {event.kind!r} is not recorded: {error}") from error


def check(event: Any) -> None:
    """Raise InvalidInput with the field's name for an event that haltune never writes."""
    for name, optional, (fine, allowed) in _CHECKS[type(event)]:
        value = getattr(event, name)
        if not (optional and value is None) and not fine(value):
            raise InvalidInput(f"{name} = {clipped(repr(value), 80)}: {allowed}{', or null' * optional}")
    if event.kind == "reported" and not event.epoch > 0:  # a checkpoint may be from epoch 0
        raise InvalidInput(f"epoch = {event.epoch!r}: epochs count from 1, or from a fraction of it")
    if event.kind == "asked" and event.wish not in ("stop", "pause", "continue"):
        raise InvalidInput(f"wish = {clipped(repr(event.wish), 80)}: stop, pause or continue")
    if event.kind in ("budgeted", "raised"):
        try:
            Budget(**event.budget)
        except TypeError as error:
            raise InvalidInput(f"budget = {clipped(repr(event.budget), 80)}: {error}") from error
    if event.kind == "rescaled" and not event.low < event.high:
        raise InvalidInput(f"low = {event.low!r}, high = {event.high!r}: low must be below high")
    if event.kind == "rescaled" and event.worst is not None and not event.low <= event.worst < event.high:
        raise InvalidInput(f"worst = {event.worst!r}: at least low, {event.low!r}, and below high, {event.high!r}")
    if event.kind in ("ended", "expired") and event.status == "running":
        raise InvalidInput("status = 'running': an ended attempt cannot be running")
