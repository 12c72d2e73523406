"""What trials say to a belief in the metric's own units: their targets, and which of them repeat another."""

from __future__ import annotations

from typing import Any

import numpy as np

from haltune._utils.arrays import Array
from haltune.log.events import Status
from haltune.log.fold import FinishedTrials
from haltune.log.history import History
from haltune.policies.bayesopt.surrogate import last_value

from .levels import Level

ObservationKeys = tuple[tuple[int, int, float | None, Any], ...]  # trial, attempt, last value, level


def target(history: History, id: int, floor: float) -> float:
    """sign * the value that the trial counts for; the floor where it has none, failed, or has a lower one."""
    trial = history.trial(id)
    value = trial.target(history.problem.goal)
    return max(value, floor) if np.isfinite(value) and trial.status is not Status.FAILED else floor


def repeats(
    history: History, finished: FinishedTrials, floor: float, levels: tuple[Level, ...]
) -> dict[str, list[Array]]:
    """Values of configurations that were measured more than once at a level."""
    groups: dict[tuple[str, str], list[float]] = {}
    for id in finished:
        if (trial := history.trial(id)).status is Status.FAILED:
            continue  # that tells nothing of the noise
        name = str(trial.tags.get("level", levels[0].name))
        key = (name, history.problem.space.key(trial.config))
        groups.setdefault(key, []).append(target(history, id, floor))
    found: dict[str, list[Array]] = {}
    for (name, _), values in groups.items():
        if len(values) > 1:
            found.setdefault(name, []).append(np.array(values))
    return found


def data_keys(history: History, finished: FinishedTrials) -> ObservationKeys:
    """What tells the data of trials apart."""
    trials = (history.trial(i) for i in finished)
    return tuple((t.id, t.attempt, last_value(t), t.tags.get("level")) for t in trials)
