"""An attempt at a trial: what a process knows of it, and all ranks of a training alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from haltune._utils.words import settings
from haltune.display.notebook import facts
from haltune.log.decisions import Finish, Verdict, Wait
from haltune.log.events import Status, verdict_from_json, verdict_to_json
from haltune.log.records import TrialRecord
from haltune.space.domains import pack, unpack

Json = dict[str, Any]


@dataclass(eq=False)
class Attempt:
    """One attempt at one configuration, held by a worker under a lease."""

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
    patient: bool = True  # its reports wait for a server that is away; callbacks keep them instead

    @classmethod
    def of(cls, record: TrialRecord) -> Attempt:
        """As the log begins it."""
        resource = None if record.resource is None else epoch_number(record.resource)
        return Attempt(
            record.id, record.attempt, dict(record.config), record.until, resource, dict(record.tags),
            record.checkpoint, epoch_number(record.epoch),
        )  # fmt: skip

    def _repr_html_(self) -> str:
        until = "" if self.until is None else f"{self.until:g}"
        verdict = "" if self.verdict is None else f"{self.verdict.action}: {self.verdict.reason}"
        return facts(
            f"Trial {self.id}, attempt {self.attempt}",
            [("configuration", settings(self.config)), ("epochs reported", f"{self.epoch:g}"),
             ("trains to epoch", until), ("verdict", verdict), ("ended", self.ended or ""),
             ("checkpoint", self.checkpoint or "")],
        )  # fmt: skip

    @property
    def label(self) -> str:
        """This attempt in words."""
        return label(self.id, self.attempt)

    def changes(self) -> Json:
        """What of it changes while it trains; a verdict as a function that converts it."""
        return {
            "epoch": self.epoch,
            "until": self.until,
            "checkpoint": self.checkpoint,
            "verdict": None if self.verdict is None else partial(verdict_to_json, self.verdict),
            "ended": self.ended,
        }

    def change(self, changes: Json) -> None:
        """The inverse of `changes`."""
        self.epoch, self.until, self.checkpoint = (changes[name] for name in ("epoch", "until", "checkpoint"))
        self.verdict = None if changes["verdict"] is None else verdict_from_json(changes["verdict"])
        self.ended = None if changes["ended"] is None else Status(changes["ended"])

    def to_json(self) -> Json:
        """As it is handed out."""
        fixed = {name: getattr(self, name) for name in ("id", "attempt", "resource", "tags")}
        return fixed | {"config": {name: pack(v) for name, v in self.config.items()}} | self.changes()

    @staticmethod
    def from_json(told: Json) -> Attempt:
        """The inverse of `to_json`."""
        config = {name: unpack(v) for name, v in told["config"].items()}
        fixed = {
            name: told[name] for name in ("id", "attempt", "resource", "tags", "until", "checkpoint", "epoch")
        }
        attempt = Attempt(config=config, **fixed)
        attempt.change(told)
        return attempt


def label(id: int, attempt: int, **_: Any) -> str:
    """An attempt in words, as topics name it."""
    return f"trial {id}, attempt {attempt}"


def answer_to_json(answer: Attempt | Wait | Finish) -> Json:
    """What a worker that asked was answered."""
    if isinstance(answer, Wait | Finish):
        return {"finish" if isinstance(answer, Finish) else "wait": answer.reason}
    return {"trial": answer.to_json()}


def answer_from_json(told: Json) -> Attempt | Wait | Finish:
    """The inverse of `answer_to_json`, on another rank."""
    if "trial" in told:
        return Attempt.from_json(told["trial"])
    return Finish(told["finish"]) if "finish" in told else Wait(told["wait"])


def epoch_number(epoch: float) -> float:
    """An epoch as an int where it is whole: frameworks count with it."""
    return int(epoch) if epoch == math.floor(epoch) else epoch
