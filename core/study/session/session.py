"""What one process does for a study: one interface, and a kind of it for each part that a process can have.

LocalSession     rank 0 of a distributed training, or a process by itself: reads and writes the store
FollowerSession  another rank: hears what rank 0 did, and writes nothing
SpawnedSession   a process that a training spawned: opens a LocalSession when something is asked of it
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from haltune.display import one_line
from haltune.errors import OUT_OF_MEMORY, InvalidInput, is_shortage
from haltune.log.decisions import Finish, Verdict, Wait
from haltune.log.events import Event, Status
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Problem
from haltune.ranks.agreement import same
from haltune.store.base import Store
from haltune.store.checkpoints import Checkpoints

from .attempt import Attempt
from .voice import Voice

T = TypeVar("T")
A = TypeVar("A", bound=Attempt)
MonotonicClock = Callable[[], float]  # monotonic, seconds


@dataclass(frozen=True)
class Settings:
    """What opens a study, in this process or another: the arguments of Study but for a seed and clocks."""

    problem: Problem
    policy: Policy[Any]
    store: str | os.PathLike[str] | Store | None
    name: str = "study"
    budget: Budget = field(default_factory=Budget)
    max_failures: int = 5
    max_retries: int = 2
    checkpoints: str | os.PathLike[str] | Checkpoints | None = None
    keep_checkpoints: int = 1
    disk_quota: float | str | None = None  # bytes
    lease: float = 600.0  # seconds
    patience: float = 600.0  # seconds
    verbose: int = 1  # see Voice; another process is silent

    @property
    def where(self) -> str | os.PathLike[str]:
        """Where the log is, in words that all ranks say alike."""
        return (
            "memory"
            if self.store is None
            else self.store.url
            if isinstance(self.store, Store)
            else self.store
        )

    def found(self, log: Log, budget: Budget, lease: float) -> Settings:
        """The same, with what a process that opened the study found, and the budget that it has by now."""
        kept = log.checkpoints
        return replace(
            self, problem=log.problem.as_of_log(), policy=log.policy, store=log.store, budget=budget, lease=lease,
            checkpoints=str(kept.folder), keep_checkpoints=kept.keep, disk_quota=kept.quota, verbose=0,
        )  # fmt: skip


_LONGEST_TEXT = 20_000  # characters of an exception's text or traceback that the log keeps


@dataclass(frozen=True)
class Report:
    """One validation of a trial, from the loop that made it to the event that keeps it."""

    value: float  # the goal's metric, its own units
    epoch: float  # from 1; fractional within an epoch
    seconds: float  # since the report before, validation included
    validation: float | None = None  # seconds of these spent validating
    cost: float | None = None  # own units
    metrics: Mapping[str, float] = field(default_factory=dict)  # further scalars


@dataclass(frozen=True)
class Failure:
    """Why a training failed."""

    error: str  # one line
    traceback: str | None = None

    @classmethod
    def by(cls, error: BaseException) -> Failure:
        """That of an exception. Raises InvalidInput for what is none."""
        if not isinstance(error, BaseException):
            raise InvalidInput(
                f"fail(error) takes the exception, trial.fail(ValueError('...')), not {error!r}"
            )
        told = f"{OUT_OF_MEMORY}: {one_line(error)}" if is_shortage(error) else one_line(error)
        return cls(_cut(told), _cut("".join(traceback.format_exception(error))))


def _cut(text: str) -> str:
    """The head and tail of a long text, with the number of characters left out between them."""
    if len(text) <= _LONGEST_TEXT:
        return text
    half, cut = _LONGEST_TEXT // 2, len(text) - _LONGEST_TEXT
    return f"{text[:half]} [... {cut} characters are left out ...] {text[-half:]}"


class Log(Protocol):
    """A study's log as far as a process has read it, to one position, and its policy's state there."""

    policy: Policy[Any]
    name: str
    checkpoints: Checkpoints
    told: Budget | None  # the budget that this process told the log last

    @property
    def problem(self) -> Problem:
        """With the space that the log says."""
        ...

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """While it is held nothing is read on."""
        ...

    @property
    def store(self) -> Store: ...

    @property
    def history(self) -> History: ...

    @property
    def state(self) -> Any: ...

    def events(self, start: int = 0) -> Iterator[Event]:
        """From position `start` on, in order, never beyond the history."""
        ...


class Session(Protocol):
    """One process's work for one study. What changes an attempt writes it there, on every rank."""

    budget: Budget
    monotonic: MonotonicClock
    voice: Voice
    waits: bool  # for a server that is away; a launcher does not: it has others to look after

    @property
    def log(self) -> Log: ...

    @property
    def checkpoints(self) -> Checkpoints: ...

    @property
    def settings(self) -> Settings:
        """What opens this study again, with the store and the folder of checkpoints that were found."""
        ...

    @property
    def holder(self) -> str:
        """This process, as its leases name it."""
        ...

    @property
    def lease_seconds(self) -> float:
        """How long a silent worker is taken to live."""
        ...

    def sync(self) -> None:
        """Read what other workers appended since."""
        ...

    def ask(self, make: Callable[[Attempt], A]) -> A | Wait | Finish:
        """See Study.ask. make: what the worker is given of its attempt; while it lives the attempt is trained here."""
        ...

    def enqueue(self, config: Mapping[str, Any], again: bool) -> bool:
        """See Study.enqueue. config: in canonical form."""
        ...

    def take(
        self,
        id: int,
        attempt: int,
        holder: str,
        leaving: Callable[[], str | None],
        make: Callable[[Attempt], A],
    ) -> A: ...

    def record(self, attempt: Attempt, report: Report, judge: bool) -> Verdict:
        """Append a report with its verdict; see Trial.report."""
        ...

    def recall(self, attempt: Attempt) -> None:
        """Take from the log what a report came to that was interrupted."""
        ...

    def checkpointed(self, attempt: Attempt, path: str, seconds: float, keep: bool = False) -> bool:
        """Append a checkpoint; False when the trial is not this worker's any more. See Trial.checkpointed.

        keep: of its best epoch, and not to go on from.
        """
        ...

    def end(self, attempt: Attempt, status: Status | None, failure: Failure | None = None) -> None:
        """Append the end of an attempt and give the lease back; see Trial.finish."""
        ...

    def tell(self) -> None:
        """Say how the trials went that have ended: by now their training draws nothing on the terminal."""
        ...

    def warn(self, text: str, about: str | None = None) -> None:
        """A HaltuneWarning, and in the log, once a search: the same text, or the first `about` a matter."""
        ...

    def lose(self, attempt: Attempt, reason: str) -> None:
        """Append that the training of a trial was lost: it is offered again, up to max_retries times."""
        ...

    def tolerates(self, attempt: Attempt, error: BaseException) -> bool:
        """True when the search goes on after `error`, which is in the log already."""
        ...

    def wake(self, attempt: Attempt) -> None:
        """Log what this machine slept since it was handed the trial."""
        ...

    def renew(self, attempt: Attempt) -> None:
        """Renew a lease; see Trial.heartbeat."""
        ...

    def adopt(self, attempt: Attempt) -> None:
        """Go on with an attempt in a forked or spawned process; see Trial.adopt."""
        ...

    def decide(
        self,
        attempt: Attempt,
        about: str,
        work: Callable[[], T],
        to_json: Callable[[T], Any] = same,
        from_json: Callable[[Any], T] = same,
    ) -> T:
        """What `work` does on rank 0 and comes to on all ranks of a distributed training; see ranks.agreement."""
        ...

    def wait(self, seconds: float, why: str | None) -> None:
        """Wait between two asks; `why`: to be told."""
        ...

    def pass_over(self) -> None:
        """Leave out the trials that were over before this process was started: their training is not repeated."""
        ...
