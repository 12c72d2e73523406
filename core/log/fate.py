"""What became of a run, in words: said in the same way wherever it is said."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .events import Status
from .problem import Problem
from .records import TrialRecord

FATES = {  # kind -> said of one, and of several
    "completed": ("trained in full", "trained in full"),
    "schedule": ("trained to the end of its schedule", "trained to the end of their schedule"),
    "itself": ("ended by itself", "ended by themselves"),
    "part": ("trained in part", "trained in part"),
    "nothing": ("ended without a value", "ended without a value"),
    "stopped": ("stopped early", "stopped early"),
    "paused": ("paused", "paused"),
    "failed": ("failed", "failed"),
    "interrupted": ("interrupted", "interrupted"),
    "running": ("running", "running"),
}


@dataclass(frozen=True)
class Fate:
    """What became of a run."""

    kind: str  # one of FATES
    words: str  # "ended by itself at epoch 4 of 12"


def fate_of(t: TrialRecord, problem: Problem) -> Fate:
    """What became of a run, as far as the log tells."""
    kind, horizon = _kind(t, problem), problem.max_epochs
    words = FATES[kind][0]
    if kind in ("itself", "nothing"):
        words += f" at epoch {t.epoch:g}{f' of {horizon}' if horizon else ''}"
    elif kind == "part" and t.resource is not None:
        words += f", with a resource of {t.resource:g}"
    return Fate(kind, words)


def _kind(t: TrialRecord, problem: Problem) -> str:
    if t.status is Status.STOPPED and t.complete:
        return "schedule" if t.epoch < (problem.max_epochs or math.inf) else "completed"
    if t.status is not Status.COMPLETED:
        return str(t.status)
    if math.isnan(t.result(problem.goal)):
        return "nothing"
    if t.partial:
        return "part"
    return "completed" if problem.max_epochs is not None and t.epoch >= problem.max_epochs else "itself"
