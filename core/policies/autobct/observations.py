"""Trainings: what AutoBCT observes. One control, trained once or several times: a score and what it cost.

A training of several repeats scores their median and costs their sum. A score that is not finite, or that an
exception took, is missing. A run that a wrapper stopped early counts with the score it was heading for, and how
uncertain that is: partial trainings of one configuration are no independent observations (section 4.3 of the paper
warns of it), so a stopped one is observed once, for what it says of a full training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.records import TrialRecord
from haltune.log.scores import Scale
from haltune.policies.bobos.curves import decay_posterior, fit_decay

TAG = "training"  # of a trial: the number of its training, from 0
ENDED = (Status.COMPLETED, Status.STOPPED, Status.FAILED)


class Searched(Protocol):
    """A study, as far as a policy looks at one from outside."""

    @property
    def history(self) -> History: ...
    @property
    def policy(self) -> Policy[Any]: ...


@dataclass(frozen=True)
class Training:
    """One control that was trained."""

    trials: tuple[int, ...]
    value: float  # raw: the median over repeats; NaN when half of them or more gave none
    spread: float  # raw deviation of `value` on top of the noise: of runs that were stopped early
    seconds: float  # of all repeats, start-up and validation included, as if trained in full
    paid: float  # seconds that it did cost
    own: bool = False  # costs were reported, in units of the user's: read cost for seconds


def in_own_units(done: Sequence[Training]) -> bool:
    """Whether any of the trainings reported a cost: then all are weighed as costs in units of the user's."""
    return any(t.own for t in done)


def trainings(history: History, ended: Sequence[int]) -> list[Training]:
    """The trainings whose trials have ended, in the order of their first trials."""
    groups: dict[object, list[TrialRecord]] = {}
    for i in ended:
        trial = history.trial(i)
        groups.setdefault(trial.tags.get(TAG, ("trial", i)), []).append(trial)
    return [_training(history, group) for group in groups.values()]


def _training(history: History, group: Sequence[TrialRecord]) -> Training:
    ends = [_ending(history, trial) for trial in group]
    values = [value for value, _ in ends if math.isfinite(value)]
    enough = 2 * len(values) > len(ends)
    paid = [_paid(history, trial) for trial in group]
    full = [p * _rest(history, trial) for p, trial in zip(paid, group, strict=True)]
    return Training(
        tuple(trial.id for trial in group),
        float(np.median(values)) if enough else math.nan,
        float(np.mean([spread for _, spread in ends])),
        sum(full),
        sum(paid),
        any(history.cost(trial.id) is not None for trial in group),
    )


def _paid(history: History, trial: TrialRecord) -> float:
    """What one trial reported as cost; else its seconds, or the time it held its worker when that was longer."""
    cost = history.cost(trial.id)
    if cost is not None:
        return cost
    return max(float(trial.seconds.sum()), history.worker_seconds(trial.id))


def _rest(history: History, trial: TrialRecord) -> float:
    """The factor from what a stopped run has trained to the whole."""
    horizon = history.problem.max_epochs
    stopped = trial.status is Status.STOPPED and horizon and trial.epoch > 0
    return max(1.0, float(horizon) / trial.epoch) if stopped and horizon else 1.0


def _ending(history: History, trial: TrialRecord) -> tuple[float, float]:
    """The raw value at the end of a full training, and its deviation."""
    goal = history.problem.goal
    last = goal.sign * trial.target(goal)
    horizon, scale = history.problem.max_epochs, history.scale_of(trial.id)
    if trial.status is Status.FAILED or not math.isfinite(last):
        return math.nan, 0.0
    if trial.status is not Status.STOPPED or horizon is None or scale is None or trial.epoch >= horizon:
        return last, 0.0
    return _extrapolated(trial, scale, horizon, last, goal.of == "best")


def _extrapolated(
    trial: TrialRecord, scale: Scale, horizon: int, last: float, peaks: bool
) -> tuple[float, float]:
    """Where the curve of a stopped run was heading: BO-BOS's model of learning curves."""
    scores = trial.scores[trial.whole]
    errors = np.clip(1.0 - np.where(np.isfinite(scores), scores, 0.0), 0.0, 1.0)
    if peaks:
        errors = np.minimum.accumulate(errors)
    if not len(errors):
        return last, scale.high - scale.low
    mean, cov = decay_posterior(errors, horizon, fit_decay(errors))
    value = float(scale.raw(1.0 - float(mean[-1])))
    return value, float(np.sqrt(max(cov[-1, -1], 0.0))) * (scale.high - scale.low)
