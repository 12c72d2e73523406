"""What one process holds of a trial: its attempt, a report, a failure; and what opens its study."""

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
            raise InvalidInput(f"fail(error) takes the exception, trial.fail(ValueError('...')), not {error!r}")
        told = f"{OUT_OF_MEMORY}: {one_line(error)}" if is_shortage(error) else one_line(error)
        return cls(_cut(told), _cut("".join(traceback.format_exception(error))))


def _cut(text: str) -> str:
    """The head and tail of a long text, with the number of characters left out between them."""
    if len(text) <= _LONGEST_TEXT:
        return text
    half, cut = _LONGEST_TEXT // 2, len(text) - _LONGEST_TEXT
    return f"{text[:half]} [... {cut} characters are left out ...] {text[-half:]}"


@dataclass(eq=False)
class Attempt:
    """One attempt at one configuration, held by a worker under a lease; all ranks of a training know it alike."""

    id: int
    attempt: int  # from 1
    config: dict[str, Any]  # without inactive parameters
    until: float | None  # epochs: the end of this leg
    resource: float | None
    tags: dict[str, Any]
    checkpoint: str | None  # the path to go on from
    epoch: float  # the last one reported; where this attempt begins
    verdict: Verdict | None = None  # the last; a STOP or PAUSE stays
    ended: Status | None = None
    unit = "epoch"  # what the study counts
    _patient: bool = True  # its reports wait for a server that is away; callbacks keep them instead

    @classmethod
    def _of(cls, record: TrialRecord) -> Attempt:
        """As the log begins it."""
        resource = None if record.resource is None else epoch_number(record.resource)
        return Attempt(
            record.id, record.attempt, dict(record.config), record.until, resource, dict(record.tags),
            record.checkpoint, epoch_number(record.epoch),
        )  # fmt: skip

    def _repr_html_(self) -> str:
        until = "" if self.until is None else numeral(self.until)
        verdict = "" if self.verdict is None else f"{self.verdict.action}: {self.verdict.reason}"
        return facts(
            f"Trial {self.id}, attempt {self.attempt}",
            [("configuration", settings(self.config)), (f"{several_of(self.unit)} reported", numeral(self.epoch)),
             (f"trains to {self.unit}", until), ("verdict", verdict), ("ended", self.ended or ""),
             ("checkpoint", self.checkpoint or "")],
        )  # fmt: skip

    @property
    def _label(self) -> str:
        """This attempt in words, as the topics of ranks name it."""
        return f"trial {self.id}, attempt {self.attempt}"

    def _changes(self) -> Json:
        """What of it changes while it trains; a verdict as a function that converts it."""
        verdict = None if self.verdict is None else partial(verdict_to_json, self.verdict)
        return {"epoch": self.epoch, "until": self.until, "checkpoint": self.checkpoint, "verdict": verdict,
                "ended": self.ended}  # fmt: skip

    def _change(self, changes: Json) -> None:
        """The inverse of `_changes`."""
        self.epoch, self.until, self.checkpoint = (changes[name] for name in ("epoch", "until", "checkpoint"))
        self.verdict = None if changes["verdict"] is None else verdict_from_json(changes["verdict"])
        self.ended = None if changes["ended"] is None else Status(changes["ended"])

    def _to_json(self) -> Json:
        """As it is handed out."""
        fixed = {name: getattr(self, name) for name in ("id", "attempt", "resource", "tags")}
        return fixed | {"config": {name: pack(v) for name, v in self.config.items()}} | self._changes()

    @staticmethod
    def _from_json(told: Json) -> Attempt:
        """The inverse of `_to_json`."""
        config = {name: unpack(v) for name, v in told["config"].items()}
        names = ("id", "attempt", "resource", "tags", "until", "checkpoint", "epoch")
        attempt = Attempt(config=config, **{name: told[name] for name in names})
        attempt._change(told)
        return attempt


A = TypeVar("A", bound=Attempt)


def label(id: int, attempt: int, **_: Any) -> str:
    """An attempt in words, from its JSON too."""
    return f"trial {id}, attempt {attempt}"


def answer_to_json(answer: Attempt | Wait | Finish) -> Json:
    """What a worker that asked was answered."""
    if isinstance(answer, Wait | Finish):
        return {"finish" if isinstance(answer, Finish) else "wait": answer.reason}
    return {"trial": answer._to_json()}


def answer_from_json(told: Json, make: Callable[[Attempt], A]) -> A | Wait | Finish:
    """The inverse of `answer_to_json`, on another rank."""
    if "trial" in told:
        return make(Attempt._from_json(told["trial"]))
    return Finish(told["finish"]) if "finish" in told else Wait(told["wait"])


def epoch_number(epoch: float) -> float:
    """An epoch as an int where it is whole: frameworks count with it."""
    return int(epoch) if epoch == math.floor(epoch) else epoch


class Decides(Protocol):
    """A policy, and what it needs to decide: a Fold, or a Log."""

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
    """A study's log as far as a process has read it, to one position, and its policy's state there."""

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

    def events(self, start: int = 0) -> Iterator[Event]:
        """From position `start` on, in order, never beyond the history."""
        ...


@dataclass(frozen=True)
class Settings:
    """What opens a study, in this process or another: the arguments of Study but for a seed."""

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
        """Where the log is, in words that all ranks say alike."""
        if (url := self.store.url) is None:
            return "memory"
        return url.url if isinstance(url, Store) else url

    def found(self, log: Log, budget: Budget, lease: float) -> Settings:
        """The same, with what a process that opened the study found, and the budget that it has by now."""
        kept = log.checkpoints
        return replace(
            self, problem=log.problem.as_of_log(), policy=log.policy,
            store=replace(self.store, url=log.store, lease=lease), budget=budget,
            checkpoints=Checkpointing(str(kept.folder), kept.keep, kept.quota), verbose=0,
        )  # fmt: skip
