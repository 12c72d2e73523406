"""Syne Tune's schedulers, of 0.13 or 0.16, asked directly, without its tuner."""

from __future__ import annotations

import inspect
from typing import Any, Protocol

import numpy as np

NAMES = {
    "asha": ("ASHA", {"type": "stopping"}),
    "asha_promotion": ("ASHA", {"type": "promotion"}),
    "hyperband": ("SyncHyperband", {}),
    "mobster": ("MOBSTER", {"type": "promotion"}),
    "dyhpo": ("DyHPO", {}),
    "asha_cqr": ("ASHACQR", {}),
    "asha_bore": ("ASHABORE", {}),
    "bohb": ("BOHB", {}),
}


class Meter(Protocol):
    """What trains the proposed points, as `recorded.Meter`."""

    @property
    def dim(self) -> int: ...
    @property
    def horizon(self) -> int: ...  # epochs of a full training
    @property
    def full(self) -> bool: ...  # the budget is spent
    def take(self, point: np.ndarray) -> int: ...  # the number of a new training
    def train(self, row: int, epoch: int) -> float: ...  # its score after the epoch


def run(name: str, meter: Meter, seed: int) -> None:
    """Trials until the meter is full. Syne Tune models the points that it proposed. Raises ImportError without it."""
    from datetime import datetime

    from syne_tune.backend.trial_status import Trial
    from syne_tune.optimizer.scheduler import SchedulerDecision

    scheduler = _scheduler(name, meter, seed)
    older = bool(inspect.signature(scheduler.suggest).parameters)
    trials: dict[int, Trial] = {}
    rows: dict[int, int] = {}
    had: dict[int, int] = {}  # epochs
    while not meter.full:
        suggestion = scheduler.suggest(*([len(trials)] if older else []))
        if suggestion is None:
            return
        id = len(trials) if suggestion.spawn_new_trial_id else suggestion.checkpoint_trial_id
        if suggestion.spawn_new_trial_id:
            trials[id] = Trial(id, suggestion.config, datetime.now())
            point = np.array([suggestion.config[f"u{i}"] for i in range(meter.dim)])
            rows[id], had[id] = meter.take(point), 0
            scheduler.on_trial_add(trials[id])
        elif suggestion.config is not None:
            trials[id] = Trial(id, suggestion.config, trials[id].creation_time)
        for epoch in range(had[id] + 1, meter.horizon + 1):
            had[id], result = epoch, {"score": meter.train(rows[id], epoch), "epoch": epoch}
            decision = scheduler.on_trial_result(trials[id], result)
            if decision != SchedulerDecision.CONTINUE or meter.full:
                break
        else:
            scheduler.on_trial_complete(trials[id], result)


def _scheduler(name: str, meter: Meter, seed: int) -> Any:
    from syne_tune.config_space import uniform
    from syne_tune.optimizer import baselines

    if name == "bohb":
        import statsmodels  # noqa: F401  which Syne Tune misses without a word

    kind, options = NAMES[name]
    made = getattr(baselines, kind, None)
    newer = made is not None and "do_minimize" in inspect.signature(made).parameters
    if made is None or (newer and options.get("type") == "promotion"):
        raise ImportError(f"this version of Syne Tune has no {name}; 0.13 or 0.16 has it")
    horizon = meter.horizon
    space = {f"u{i}": uniform(0.0, 1.0) for i in range(meter.dim)}
    if newer:
        return made(space, metric="score", do_minimize=False, time_attr="epoch", max_t=horizon, random_seed=seed)
    return made(
        space | {"epochs": horizon}, metric="score", mode="max", resource_attr="epoch", max_resource_attr="epochs",
        grace_period=1, reduction_factor=3, random_seed=seed, **options,
    )  # fmt: skip
