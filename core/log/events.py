"""What happened: the facts of a study, in order. They are the only state there is.

Every event is a frozen dataclass; `to_json` and `from_json` are exact inverses. `at` is the store's clock in seconds
since the epoch. `seen` is the log position (exclusive: the number of events read) at which a decision was made;
replaying the policy on that prefix gives the same decision again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, ClassVar

from .decisions import EARLIER, Action, Verdict
from .problem import Budget


class Status(StrEnum):
    """Where a trial stands."""

    RUNNING = "running"
    PAUSED = "paused"  # may be resumed by the policy
    COMPLETED = "completed"  # ended by itself: at the horizon, or before it
    STOPPED = "stopped"  # ended early by a verdict
    INTERRUPTED = "interrupted"  # Ctrl-C, SIGTERM, or a lease that expired: offered again
    FAILED = "failed"  # an exception, or a retry too many


OVER = frozenset({Status.COMPLETED, Status.STOPPED, Status.FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""

    kind: ClassVar[str] = ""
    at: float  # seconds since the epoch, store's clock


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialEvent(Event):
    """Base of the events about one trial."""

    trial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEvent(TrialEvent):
    """Base of what happens within an attempt at a trial; it counts while that attempt is the trial's last."""

    attempt: int  # from 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Created(Event):
    """The study was made: always the first event."""

    kind: ClassVar[str] = "created"
    problem: Mapping[str, Any]
    policy: Mapping[str, Any]
    seed: int
    id: str = ""  # tells the study from all others, whatever they are called; none in logs from before there was one


@dataclass(frozen=True, slots=True, kw_only=True)
class Widened(Event):
    """From here on the search goes on in a space that contains the one before."""

    kind: ClassVar[str] = "widened"
    space: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Started(TrialEvent):
    """A policy's Start: a new trial, numbered in log order from 0."""

    kind: ClassVar[str] = "started"
    config: Mapping[str, Any]
    until: float | None  # epochs
    resource: float | None
    tags: Mapping[str, Any]
    reason: str
    evidence: Mapping[str, Any]
    seen: int
    deciding: float  # seconds spent on the decision
    worker: str
    partial: bool = False  # True: no full training, however far it gets; see decisions.Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed(TrialEvent):
    """A trial goes on as a new attempt: the policy's Resume, or offered again after an interruption."""

    kind: ClassVar[str] = "resumed"
    attempt: int
    until: float | None  # epochs
    resource: float | None
    tags: Mapping[str, Any]
    reason: str
    evidence: Mapping[str, Any]
    seen: int
    deciding: float  # seconds
    worker: str
    by_policy: bool  # False: offered again by the study itself
    anew: bool = False  # True: its checkpoint is gone, so that it begins at the beginning


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported(AttemptEvent):
    """One validation of a trial, with the verdict on it: one row, one transaction."""

    kind: ClassVar[str] = "reported"
    epoch: float  # from 1; fractional for validations within an epoch
    value: float  # the goal's metric, its own units; may be NaN or infinite
    seconds: float  # of this epoch alone, validation included
    verdict: Verdict
    seen: int
    validation: float | None = None  # seconds of `seconds` spent validating
    cost: float | None = None  # what the user says this epoch cost, own units
    deciding: float = 0.0  # seconds spent on the verdict
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def copied(self) -> bool:
        """True for the copy of an earlier attempt's report: this attempt continues after it, and trained nothing."""
        return self.verdict.action is Action.UNJUDGED and EARLIER in self.verdict.evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpointed(AttemptEvent):
    """A trial can go on from here in a later attempt."""

    kind: ClassVar[str] = "checkpointed"
    epoch: float
    path: str
    seconds: float = 0.0  # spent saving


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept(AttemptEvent):
    """The state after the best epoch of a trial that counts for it: for the user, not to go on from."""

    kind: ClassVar[str] = "kept"
    epoch: float
    path: str
    seconds: float = 0.0  # spent saving


@dataclass(frozen=True, slots=True, kw_only=True)
class Slept(AttemptEvent):
    """The store's clock jumped while a trial was held: its machine slept, or the clock was set. Nobody trained then."""

    kind: ClassVar[str] = "slept"
    since: float  # seconds since the epoch: the last look at the clock before
    seconds: float  # of the time since then that did not pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended(AttemptEvent):
    """A worker let go of a trial."""

    kind: ClassVar[str] = "ended"
    status: Status
    error: str | None = None  # one line
    traceback: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expired(AttemptEvent):
    """A worker was lost: its lease ran out, or its process is gone."""

    kind: ClassVar[str] = "expired"
    holder: str
    last_alive: float  # seconds since the epoch: the lease's last renewal
    status: Status  # INTERRUPTED: offered again; FAILED: one retry too many
    reason: str | None = None  # what a launcher saw of it; None: the worker is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescaled(Event):
    """The learnt scale of a goal: score = (sign * value - low) / (high - low); of one without bounds, or of several."""

    kind: ClassVar[str] = "rescaled"
    low: float  # sign * value that scores 0
    high: float  # sign * value that scores 1
    metric: str = (
        ""  # of several goals: the one that is weighed by it; "": the scores of the first, or only, one
    )
    worst: float | None = None  # of several goals: sign * value of the worst on the front; None: low


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgeted(Event):
    """What the search may cost from now on; for a policy that plans by it, which ends for want of it, no end stands."""

    kind: ClassVar[str] = "budgeted"
    budget: Mapping[str, Any]  # the limits given, as Budget.to_json
    plans: bool = True  # the policy plans by it; False: it is told to readers alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued(Event):
    """The user wants a configuration trained: it is begun before any that the policy proposes."""

    kind: ClassVar[str] = "enqueued"
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused(Event):
    """The first of what was enqueued is not begun: who enqueued it had not the constraints, which forbid it."""

    kind: ClassVar[str] = "refused"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished(Event):
    """The policy ended the search: for good, unless it plans by the budget and that changes."""

    kind: ClassVar[str] = "finished"
    reason: str
    seen: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(Event):
    """Somebody stops the search for a while, on all workers; or, without a reason, lets it go on."""

    kind: ClassVar[str] = "held"
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(TrialEvent):
    """The user wants a run stopped, or set aside for a while, at its next report; or lets it continue."""

    kind: ClassVar[str] = "asked"
    attempt: int  # the last that was known when it was asked for
    wish: str  # "stop", "pause" or "continue"
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised(Event):
    """The user raises limits of the budget: of each the larger holds, this one or the one that a program gives."""

    kind: ClassVar[str] = "raised"
    budget: Mapping[str, Any]  # the limits, as Budget.to_json


@dataclass
class Wishes:
    """What users asked of a search while it runs, as far as it is not done."""

    runs: dict[int, Asked] = field(default_factory=dict)  # trial -> to be stopped, or set aside
    limits: dict[str, float] = field(default_factory=dict)  # of the budget, raised

    def take(self, event: Asked | Raised) -> None:
        """Take up one more."""
        if isinstance(event, Asked):
            self.runs.pop(event.trial, None)
            if event.wish != "continue":
                self.runs[event.trial] = event
            return
        for name, limit in event.budget.items():
            self.limits[name] = max(limit, self.limits.get(name, limit))

    @property
    def aside(self) -> set[int]:
        """The trials that are offered to nobody until they may continue."""
        return {id for id, asked in self.runs.items() if asked.wish == "pause"}

    def extended(self, budget: Budget | None) -> Budget:
        """A budget with the limits that were raised; None: without a limit."""
        budget = budget or Budget()
        given = {name: getattr(budget, name) for name in self.limits}
        more = {name: max(limit, self.limits[name]) for name, limit in given.items() if limit is not None}
        return replace(budget, **more) if more else budget


MOVES = (Widened, Started, Resumed, Rescaled, Budgeted, Enqueued, Refused, Finished, Held)
_OTHERS = (Created, Reported, Checkpointed, Kept, Slept, Ended, Expired, Asked, Raised)
KINDS: dict[str, type[Event]] = {kind.kind: kind for kind in (*_OTHERS, *MOVES)}


def trial_of(event: Event) -> int | None:
    """The trial that an event is about; None when it is about none."""
    return event.trial if isinstance(event, TrialEvent) else None
