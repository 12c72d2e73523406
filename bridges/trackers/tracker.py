"""What a tracker is told: the one interface that all of them answer. It is called by one thread at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from haltune.log.events import Status
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord


@dataclass(frozen=True)
class Search:
    """A study, as trackers name it."""

    id: str  # tells it from all others
    name: str
    problem: Problem
    policy: str


@dataclass(frozen=True)
class Point:
    """One report of a trial."""

    epoch: float
    at: float  # seconds since the epoch
    values: Mapping[str, float]  # the goal's metric first


class Tracker(Protocol):
    """Where a search is told. A run that is told again goes on in the place where it was.

    One that says its address, as `place`, is told by one program of a machine at a time.
    """

    def open(self, search: Search) -> int:
        """Begin with a search; the position of its log up to which this tracker was told it before."""
        ...

    def begin(self, trial: TrialRecord) -> None:
        """A trial begins, or goes on."""
        ...

    def report(self, trial: TrialRecord, points: Sequence[Point]) -> None:
        """What a trial has reported."""
        ...

    def end(self, trial: TrialRecord, status: Status, tags: Mapping[str, str]) -> None:
        """A trial has ended, or is paused; its verdict and reason, in words."""
        ...

    def told(self, position: int) -> None:
        """All up to this position was told."""
        ...

    def close(self, tags: Mapping[str, str], over: bool) -> None:
        """Nothing more comes for now. over: the search is."""
        ...


def fate_tags(trial: TrialRecord) -> dict[str, str]:
    """What became of a trial, in words."""
    found: dict[str, Any] = {"status": trial.status, "chosen": trial.proposed}
    if trial.verdict is not None:
        found |= {"verdict": trial.verdict.action, "reason": trial.verdict.reason}
        found["p_beats"] = trial.verdict.evidence.get("p_win")
    if trial.error is not None:
        found["reason"] = trial.error
    return {f"haltune.{name}": str(value) for name, value in found.items() if value not in (None, "")}


class Bookmark:
    """How far a tracker without a server was told, in a file beside what it wrote."""

    def __init__(self, folder: Path, search: Search) -> None:
        self._path = folder / f"haltune-{search.id}.json"

    def read(self) -> int:
        """The position; 0 before the first."""
        try:
            return int(json.loads(self._path.read_text())["position"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0

    def write(self, position: int) -> None:
        """Keep it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps({"position": position}))
