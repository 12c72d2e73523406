"""What trials took, and what they would have taken had they been trained in full."""

from __future__ import annotations

import math

from haltune.log.events import Status
from haltune.log.fold import FinishedTrials
from haltune.log.history import History
from haltune.log.records import TrialRecord


def full_cost(history: History, id: int, unit: str) -> float:
    """What a finished trial would have cost had it been trained in full; 0 when it is not known, as where it failed."""
    trial, horizon = history.trial(id), history.problem.max_epochs
    if trial.status is Status.FAILED:
        return 0.0
    trained = trial.epoch
    more = horizon / trained - 1.0 if horizon and 0 < trained < horizon else 0.0
    if unit == "cost":
        return (history.cost(id) or 0.0) * (1.0 + more)
    seconds = float(trial.seconds.sum())
    return (
        max(history.worker_seconds(id), seconds) + more * seconds
    )  # a clock of the test's own may stand still


def trained_share(history: History, finished: FinishedTrials) -> float:
    """The learnt share of a full training that is trained before a run is stopped: 1 where none is.

    The mean over finished trials and one imagined that was trained in full. Beyond the theory of rollout, which
    takes costs for deterministic.
    """
    horizon = history.problem.max_epochs
    ended = [t for id in finished if (t := history.trial(id)).status is not Status.FAILED]
    stopped = [t for t in ended if t.status is Status.STOPPED]
    if horizon is None or not stopped:
        return 1.0
    missing = math.fsum(1.0 - t.epoch / horizon for t in stopped)
    return max(1.0 - missing / (len(ended) + 1.0), 1e-3)


def taken(history: History, trial: TrialRecord, unit: str) -> float:
    """What a running trial has taken so far."""
    if unit == "epochs":
        return trial.epoch
    return history.worker_seconds(trial.id) if unit == "seconds" else history.cost(trial.id) or 0.0
