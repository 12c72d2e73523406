"""Data of one process: a trial's attempt, a report, a failure, and the settings that open the study."""

from __future__ import annotations

import copy
import math
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol, TypeVar

from haltune.display import facts, numeral, one_line, settings, several_of
from haltune.errors import OUT_OF_MEMORY, InvalidInput, is_shortage
from haltune.log.decisions import Action, Verdict
from haltune.log.events import AttemptEvent, Checkpointed, Ended, Event, Expired, Reported, Status
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Problem
from haltune.log.records import TrialRecord
from haltune.store.base import Lease, Store
from haltune.store.checkpoints import Checkpointing, Checkpoints
from haltune.store.open import Storage

MonotonicClock = Callable[[], float]  # monotonic, seconds
_LONGEST_LEASE = 1e7  # seconds: a wrong `seconds` in a report must not hold a trial for ever
_LONGEST_TEXT = 20_000  # characters of an exception's text or traceback that the log keeps


@dataclass(frozen=True)
class Report:
    """One validation of a trial."""

    value: float  # the goal's metric, its own units
    epoch: float  # from 1; fractional within an epoch
    seconds: float  # since the previous report, validation included
    validation: float | None = None  # the part of `seconds` spent validating
    cost: float | None = None  # own units
    metrics: Mapping[str, float] = field(default_factory=dict)  # further metrics


@dataclass(frozen=True)
class Failure:
    """Why a training failed."""

    error: str  # one line
    traceback: str | None = None

    @classmethod
    def by(cls, error: BaseException) -> Failure:
        """Return the failure of an exception. Raises InvalidInput if it is not an exception."""
        if not isinstance(error, BaseException):
            raise InvalidInput(f"fail(error) takes an exception, such as trial.fail(ValueError('...')), not {error!r}.")
        line = f"{OUT_OF_MEMORY}: {one_line(error)}" if is_shortage(error) else one_line(error)
        return cls(_cut(line), _cut("".join(traceback.format_exception(error))))


def _cut(text: str) -> str:
    """Shorten a long text to its start and end, with the number of characters left out between them."""
    if len(text) <= _LONGEST_TEXT:
        return text
    half, cut = _LONGEST_TEXT // 2, len(text) - _LONGEST_TEXT
    return f"{text[:half]} [... {cut} characters are left out ...] {text[-half:]}"


@dataclass(eq=False)
class Attempt:
    """One attempt at one configuration, held by a worker under a lease.

    Events are collected (`_hear`) as soon as the log is read. They change the attempt (`_follow`) only where all ranks
    make the same call, so that it is the same on all ranks.
    """

    id: int
    attempt: int  # from 1
    config: dict[str, Any]  # without inactive parameters
    pause_at: float | None  # the next rung, epochs
    resource: float | None
    tags: dict[str, Any]
    checkpoint: str | None  # the path to continue from
    epoch: float  # the last one reported, at first the one that this attempt continues from
    verdict: Verdict | None = None  # the last; a STOP or PAUSE stays
    ended: Status | None = None
    unit = "epoch"  # of the study
    stated: bool = False  # a loop of haltune's or a framework's has stated what it trains
    patient: bool = True  # its reports wait for a server that is away; callbacks store them and do not wait
    _over: bool = False  # the log has its end; `ended` is set when this worker asks for it, or reports
    _failure: str | None = None  # the exception with which rank 0 ended it, in one line
    _heard: int = 0  # position of the log up to which its events were read
    _events: list[AttemptEvent] = field(default_factory=list)  # read, but not yet followed

    @classmethod
    def _of(cls, record: TrialRecord, heard: int) -> Attempt:
        """Return the attempt that the log has started. heard: the log position that was read with this record.

        Its configuration is a copy: a program may change it, as hidden.append(10) does.
        """
        resource = None if record.resource is None else epoch_number(record.resource)
        return Attempt(
            record.id, record.attempt, copy.deepcopy(dict(record.config)), record.pause_at, resource, dict(record.tags),
            record.checkpoint, epoch_number(record.epoch), _heard=heard,
        )  # fmt: skip

    def _repr_html_(self) -> str:
        pause_at = "" if self.pause_at is None else numeral(self.pause_at)
        verdict = "" if self.verdict is None else f"{self.verdict.action}: {self.verdict.reason}"
        return facts(
            f"Trial {self.id}, attempt {self.attempt}",
            [("configuration", settings(self.config)), (f"{several_of(self.unit)} reported", numeral(self.epoch)),
             (f"trains to {self.unit}", pause_at), ("verdict", verdict), ("ended", self.ended or ""),
             ("checkpoint", self.checkpoint or "")],
        )  # fmt: skip

    @property
    def _stops(self) -> bool:
        """True after a STOP or PAUSE."""
        return self.verdict is not None and self.verdict.stops

    @property
    def _may_resume(self) -> bool:
        """True after a verdict after which the trial may continue later."""
        return self.verdict is not None and self.verdict.resumable

    @property
    def configuration(self) -> str:
        """`config` as text, which a checkpoint names."""
        return repr(sorted(vars(self)["config"].items()))  # not read by the program

    @cached_property
    def _label(self) -> str:
        return label(self.id, self.attempt)

    def _hear(self, event: AttemptEvent, position: int) -> None:
        """Keep an event of this attempt for `_follow`, once. position: of the log, after the event."""
        if position > self._heard:
            self._events.append(event)
        self._heard = position

    def _follow(self, locate: Callable[[str], str]) -> None:
        """Change by the events that were read since the last call. locate: from a logged path to a full one."""
        while self._events:
            match self._events.pop(0):
                case Ended() | Expired():
                    self._over = True
                case Reported() as e if not self._over and e.epoch > self.epoch:
                    self.epoch = epoch_number(e.epoch)
                    if e.verdict.pause_at is not None and not e.verdict.stops:
                        self.pause_at = e.verdict.pause_at
                    stays = e.verdict.action is Action.UNJUDGED and self._stops
                    if not stays and not e.copied:
                        # a store reads evidence lazily
                        self.verdict = replace(e.verdict, evidence=dict(e.verdict.evidence))
                case Checkpointed() as e if not self._over:
                    self.checkpoint = locate(e.path)

    def _restart(self, record: TrialRecord, heard: int) -> None:
        """Become the attempt that the log has started after this one. heard: see `_of`."""
        new = Attempt._of(record, heard)
        self.attempt, self.pause_at, self.checkpoint, self.epoch = new.attempt, new.pause_at, new.checkpoint, new.epoch
        self.verdict, self._over, self._heard, self._events = None, False, heard, []
        vars(self).pop("_label", None)


A = TypeVar("A", bound=Attempt)


def end_of(lease: Lease, history: History) -> float:
    """Return the time at which a lease ends; a longer epoch that was reported since extends it."""
    return max(lease.expires, lease.renewed + epochs_term(history))


def epochs_term(history: History, epoch_seconds: float = 0.0) -> float:
    """Return the seconds of five of the longest epochs known so far."""
    return min(5.0 * max(history.longest_epoch, epoch_seconds), _LONGEST_LEASE)


def label(id: int, attempt: int) -> str:
    """Return an attempt in words."""
    return f"trial {id}, attempt {attempt}"


def epoch_number(epoch: float) -> float:
    """Return a whole epoch as an int, because frameworks count with it."""
    return int(epoch) if epoch == math.floor(epoch) else epoch


class Decides(Protocol):
    """A policy and the data it needs to decide: a Fold, or a Log."""

    policy: Policy[Any]

    @property
    def history(self) -> History: ...

    @property
    def judged(self) -> History:
        """The history as the policy counts."""
        ...

    @property
    def state(self) -> Any: ...


class Log(Decides, Protocol):
    """A study's log as far as a process has read it, and the policy's state at that position."""

    name: str
    checkpoints: Checkpoints
    logged_budget: Budget | None  # the budget that this process logged last

    @property
    def problem(self) -> Problem:
        """With the space of the log."""
        ...

    @property
    def lock(self) -> AbstractContextManager[Any]:
        """While it is held, no more events are read."""
        ...

    @property
    def store(self) -> Store: ...

    def events(self, start: int = 0) -> Iterator[Event]:
        """Yield the events from position `start` to the history's, in order."""
        ...

    def is_lost(self, lease: Lease, now: float) -> bool:
        """Return whether the worker of a lease is gone. now: of the store's clock."""
        ...


@dataclass(frozen=True)
class Settings:
    """The arguments of Study except for the seed, which open it in this process or another."""

    problem: Problem
    policy: Policy[Any]
    store: Storage
    name: str = "study"
    budget: Budget = field(default_factory=Budget)
    max_failures: int = 5
    checkpoints: Checkpointing | Checkpoints = Checkpointing()  # noqa: RUF009
    verbose: int = 1  # see Logger; another process is silent

    @property
    def where(self) -> str | os.PathLike[str]:
        """The place of the log in words, the same on all ranks."""
        if (url := self.store.url) is None:
            return "memory"
        return url.url if isinstance(url, Store) else url
