"""Data of one process: a trial's attempt, a report, a failure, and the settings that open the study."""

from __future__ import annotations

import math
import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol, TypeVar

from haltune.display import facts, numeral, one_line, settings, several_of
from haltune.errors import OUT_OF_MEMORY, InvalidInput, is_shortage
from haltune.log.decisions import Finish, Verdict, Wait
from haltune.log.events import Event, Status, verdict_from_json, verdict_to_json
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Problem
from haltune.log.records import TrialRecord
from haltune.space.domains import pack, unpack
from haltune.store.base import Store
from haltune.store.checkpoints import Checkpointing, Checkpoints
from haltune.store.open import Storage

Json = dict[str, Any]
MonotonicClock = Callable[[], float]  # monotonic, seconds
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
    """One attempt at one configuration, held by a worker under a lease; the same on all ranks."""

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
    patient: bool = True  # its reports wait for a server that is away; callbacks store them and do not wait

    @classmethod
    def _of(cls, record: TrialRecord) -> Attempt:
        """Return the attempt that the log has started."""
        resource = None if record.resource is None else epoch_number(record.resource)
        return Attempt(
            record.id, record.attempt, dict(record.config), record.pause_at, resource, dict(record.tags),
            record.checkpoint, epoch_number(record.epoch),
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
    def _label(self) -> str:
        return f"trial {self.id}, attempt {self.attempt}"

    def _changes(self) -> Json:
        """Return the fields that change while it trains; the verdict as a function that converts it."""
        verdict = None if self.verdict is None else partial(verdict_to_json, self.verdict)
        return {"epoch": self.epoch, "pause_at": self.pause_at, "checkpoint": self.checkpoint, "verdict": verdict,
                "ended": self.ended}  # fmt: skip

    def _change(self, changes: Json) -> None:
        """The inverse of `_changes`."""
        self.epoch, self.pause_at, self.checkpoint = (changes[name] for name in ("epoch", "pause_at", "checkpoint"))
        self.verdict = None if changes["verdict"] is None else verdict_from_json(changes["verdict"])
        self.ended = None if changes["ended"] is None else Status(changes["ended"])

    def _to_json(self) -> Json:
        fixed = {name: getattr(self, name) for name in ("id", "attempt", "resource", "tags")}
        return fixed | {"config": {name: pack(v) for name, v in self.config.items()}} | self._changes()

    @staticmethod
    def _from_json(data: Json) -> Attempt:
        config = {name: unpack(v) for name, v in data["config"].items()}
        names = ("id", "attempt", "resource", "tags", "pause_at", "checkpoint", "epoch")
        attempt = Attempt(config=config, **{name: data[name] for name in names})
        attempt._change(data)
        return attempt


A = TypeVar("A", bound=Attempt)


def label(id: int, attempt: int, **_: Any) -> str:
    """Return an attempt in words; its JSON fits the arguments."""
    return f"trial {id}, attempt {attempt}"


def answer_to_json(answer: Attempt | Wait | Finish) -> Json:
    if isinstance(answer, Wait | Finish):
        return {"finish" if isinstance(answer, Finish) else "wait": answer.reason}
    return {"trial": answer._to_json()}


def answer_from_json(data: Json, make: Callable[[Attempt], A]) -> A | Wait | Finish:
    if "trial" in data:
        return make(Attempt._from_json(data["trial"]))
    return Finish(data["finish"]) if "finish" in data else Wait(data["wait"])


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

    def found(self, log: Log, budget: Budget, lease: float) -> Settings:
        """Return a copy with the values found when the study was opened, and its present budget."""
        kept = log.checkpoints
        return replace(
            self, problem=log.problem.as_of_log(), policy=log.policy,
            store=replace(self.store, url=log.store, lease=lease), budget=budget,
            checkpoints=Checkpointing(str(kept.folder), kept.keep, kept.quota), verbose=0,
        )  # fmt: skip
