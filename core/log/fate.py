"""What became of a run, in words: said in the same way wherever it is said."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass

import numpy as np

from haltune.display import clipped, counted, plural, short

from .decisions import WISH
from .events import Status
from .history import History
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
    "left": ("not continued", "not continued"),
    "failed": ("failed", "failed"),
    "aside": ("paused by you", "paused by you"),
    "held": ("stopped for now", "stopped for now"),
    "interrupted": ("interrupted", "interrupted"),
    "lost": ("lost, its worker is gone", "lost, their workers are gone"),
    "running": ("running", "running"),
}


@dataclass(frozen=True)
class Fate:
    """What became of a run."""

    kind: str  # one of FATES
    words: str  # "ended by itself at epoch 4 of 12"


def values_of(t: TrialRecord, problem: Problem) -> str:
    """What a run has come to by now: acc 0.91, ms 12."""
    first = f"{problem.goal.metric} {short(float(t.counting(problem.goal)[-1]))}"
    others = t.results(problem) if problem.measured else {}
    return ", ".join([first, *(f"{name} {short(others[name])}" for name in problem.measured)])


def lead_of(history: History) -> str | None:
    """The best, or the front, in a few words; None before a run has a value."""
    problem = history.problem
    if not problem.further:
        best = history.best()
        return (
            None if best is None else f"best {problem.goal.metric} {short(best.value)} (trial {best.trial})"
        )
    front = [history.on_front(id).values for id in history.front()]
    if not front:
        return None
    spans: list[str] = []
    for goal in problem.goals:
        values = sorted((run[goal.metric] for run in front), key=lambda v: -goal.sign * v)
        if len(problem.goals) == 2 and spans:  # of two goals, what is best in one is worst in the other
            values.reverse()
        first, last = short(values[0]), short(values[-1])
        spans.append(f"{goal.metric} {first}" + (f" to {last}" if last != first else ""))
    return f"front of {plural(len(front), 'run')}: {', '.join(spans)}"


def shared_error(history: History) -> str | None:
    """The error with which at least half of the trials failed, and at least 3; errors that differ in digits are one."""
    errors = [
        t.error.strip().partition("\n")[0]
        for t in history.with_status(Status.FAILED)
        if t.error is not None and t.error.strip()
    ]
    for alike, failed in Counter(re.sub(r"\d+", "", error) for error in errors).most_common(1):
        if failed >= max(3, len(history) / 2):
            example = next(error for error in errors if re.sub(r"\d+", "", error) == alike)
            return f"{failed} of {len(history)} trials failed with the same error: {clipped(example, 300)}"
    return None


def fate_of(t: TrialRecord, problem: Problem, over: bool = False, lost: Container[int] = ()) -> Fate:
    """What became of a run, as far as the log tells. over: the search is, so that what paused is left where it is.

    lost: the trials whose workers are gone, where somebody looked.
    """
    kind, horizon = "lost" if t.id in lost else _kind(t, problem, over), problem.max_epochs
    words = FATES[kind][0]
    if kind == "completed" and horizon and t.epoch < horizon:
        words = f"trained to its last validation, at epoch {t.epoch:g} of {horizon}"
    if kind in ("itself", "nothing"):
        words += f" at epoch {t.epoch:g}{f' of {horizon}' if horizon else ''}"
    elif kind == "part" and t.resource is not None:
        words += f", with a resource of {t.resource:g}"
    return Fate(kind, words)


def _kind(t: TrialRecord, problem: Problem, over: bool) -> str:
    if t.status is Status.STOPPED and t.complete:
        return "schedule" if t.epoch < (problem.max_epochs or math.inf) else "completed"
    if t.status is Status.PAUSED and over:
        return "left"
    if (
        t.status is Status.INTERRUPTED
        and t.error is None
        and t.verdict
        and (wish := t.verdict.evidence.get(WISH))
    ):
        return "aside" if wish == "pause" else "held"
    if t.status is not Status.COMPLETED:
        return str(t.status)
    if math.isnan(t.result(problem.goal)):
        return "nothing"
    if t.partial:
        return "part"
    return "completed" if problem.max_epochs is not None and _next(t) > problem.max_epochs else "itself"


def _next(t: TrialRecord) -> float:
    """The epoch of the validation that would follow, as the last two lie: beyond the horizon there is none."""
    before, last = [0.0, *map(float, t.epochs)][-2:]
    return last + (last - before)


def saved_epochs(t: TrialRecord, problem: Problem, over: bool) -> float:
    """Epochs of a full training that a run did not need; 0 for one that was not stopped by its policy.

    Paused runs count once the search is over: none of them goes on any more.
    """
    ended = t.status is Status.STOPPED or (t.status is Status.PAUSED and over)
    return max(0.0, problem.max_epochs - t.epoch) if ended and problem.max_epochs is not None else 0.0


@dataclass(frozen=True)
class Savings:
    """What of full trainings was not trained.

    Where runs ended by themselves before the horizon, by an early stopping of the user's, those that were stopped might
    have, too: then what is saved is the most that it can be.
    """

    epochs: float  # that stopping saved: of runs that their policy stopped, or left paused
    seconds: float  # about, of these
    itself: float  # epochs that runs which ended by themselves did not train

    @classmethod
    def of(cls, history: History, over: bool) -> Savings:
        """Of all runs; over: the search is."""
        problem, trials = history.problem, history.trials
        ended = [t for t in trials if problem.max_epochs and _kind(t, problem, over) == "itself"]
        return cls(
            math.fsum(saved_epochs(t, problem, over) for t in trials),
            math.fsum(saved_seconds(t, problem, over) for t in trials),
            math.fsum((problem.max_epochs or 0) - t.epoch for t in ended),
        )

    @property
    def most(self) -> str:
        """To be said before what was saved."""
        return "at most " if self.itself else ""

    @property
    def words(self) -> list[str]:
        """How many epochs were saved, and how many spared by runs that ended by themselves; what there is of it."""
        told = [f"{self.most}{counted(round(self.epochs, 1))} saved"] * (self.epochs > 0.0)
        return told + [self.left] * (self.itself > 0.0)

    @property
    def left(self) -> str:
        """What runs that ended by themselves did not train."""
        return f"{plural(round(self.itself, 1), 'epoch')} spared by runs that ended by themselves"


def trained_again(history: History) -> float:
    """Epochs that were trained, not saved and so trained again by later attempts: paid for, and part of no run."""
    return max(0.0, round(history.spent.epochs - math.fsum(t.epoch for t in history.trials), 6))


def saved_seconds(t: TrialRecord, problem: Problem, over: bool) -> float:
    """`saved_epochs` times the run's median epoch, seconds."""
    epochs = saved_epochs(t, problem, over)
    return epochs * float(np.median(t.epoch_seconds)) if epochs and len(t.seconds) else 0.0
