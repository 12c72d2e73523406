"""Schedules of torch, and early stopping, that do not fit a trial's horizon: found before an epoch is lost.

A schedule that ends is built for a number of epochs or steps. Trials always train towards
`trial.max_epochs`, and are stopped or paused earlier, so one that ends elsewhere was most often built for
another number of epochs. Warm-ups, step decays and restarts have no end to be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from haltune._utils.words import plural
from haltune.study import Trial

_ENDS = {"CosineAnnealingLR": "T_max", "OneCycleLR": "total_steps", "PolynomialLR": "total_iters"}


def advice(trainer: Any, trial: Trial) -> Iterator[str]:
    """A sentence for each thing that does not fit."""
    for config in trainer.lr_scheduler_configs if trial.horizon is not None else ():
        if sentence := _schedule_advice(trainer, trial, config):
            yield sentence
    if sentence := _stopping_advice(trainer, trial):
        yield sentence


def ends(scheduler: Any, began: float = 0.0) -> Iterator[tuple[str, str, float, float]]:
    """(class, argument, its value, all steps until its end) of a schedule, or of those within it, that end."""
    name = type(scheduler).__name__
    parts = getattr(scheduler, "_schedulers", [])
    if name == "SequentialLR":  # each begins at a milestone
        for part, milestone in zip(parts[1:], scheduler._milestones, strict=True):
            yield from ends(part, began + milestone)
    elif name == "ChainedScheduler":
        for part in parts:
            yield from ends(part, began)
    elif name in _ENDS:
        value = float(getattr(scheduler, _ENDS[name]))
        yield name, _ENDS[name], value, began + value


def _schedule_advice(trainer: Any, trial: Trial, config: Any) -> str | None:
    by_epoch, by_step = _steps(trainer, trial, config)
    expected = {"epoch": [by_epoch], "step": [by_step]}[config.interval]
    if not trainer.lightning_module.automatic_optimization:  # the module steps them when it likes
        expected = [by_epoch, by_step]
    for name, argument, value, end in ends(config.scheduler):
        if any(total is None or abs(end - total) <= slack for total, slack in expected):
            continue
        total = expected[0][0]
        before = end - value
        return (
            f"the schedule {name}({argument}={value:g}) ends after {end:g} {config.interval}s, but trials "
            f"train towards trial.max_epochs={trial.horizon}{_in_steps(total, config.interval)}: give it "
            f"{argument}={_fix(config.interval)}{f' - {before:g}' if before else ''}. "
            "haltune stops or pauses a trial before that where it pays"
        )
    return None


def _steps(trainer: Any, trial: Trial, config: Any) -> tuple[Any, Any]:
    """(steps of the schedule until the horizon, slack of an epoch) if it steps by epochs, and if by batches."""
    horizon, frequency = float(trial.horizon or 0), float(config.frequency)
    batches = trainer.num_training_batches
    if not math.isfinite(batches):
        return (horizon / frequency, 1.0), (None, 0.0)
    steps = math.ceil(batches / trainer.accumulate_grad_batches)
    return (horizon / frequency, 1.0), (horizon * steps / frequency, steps / frequency)


def _in_steps(total: float, interval: str) -> str:
    return "" if interval == "epoch" else f", which is {plural(total, 'step')}"


def _fix(interval: str) -> str:
    return "trial.max_epochs" if interval == "epoch" else "self.trainer.estimated_stepping_batches"


def _stopping_advice(trainer: Any, trial: Trial) -> str | None:
    until, horizon = trial.until, trial.horizon
    if trial.epoch > 0 or until is None or (horizon is not None and until >= horizon):
        return None  # no rung lies ahead, or the first one is past
    for stopping in trainer.early_stopping_callbacks:
        # the first check always improves; then patience more may not, one at least
        earliest = (max(stopping.patience, 1) + 1) * _epochs_per_check(trainer)
        if earliest < until:
            return (
                f"EarlyStopping(monitor={stopping.monitor!r}, patience={stopping.patience}) can end this training "
                f"before epoch {until:g}, where the policy first compares trials: give it more patience, "
                "or leave stopping to haltune"
            )
    return None


def _epochs_per_check(trainer: Any) -> float:
    """Epochs between two validations."""
    batches, every = trainer.num_training_batches, trainer.val_check_batch
    if not isinstance(every, (int, float)) or not math.isfinite(batches) or not math.isfinite(every):
        return float(trainer.check_val_every_n_epoch or 1)
    if trainer.check_val_every_n_epoch is None:  # validation by batches, across epochs
        return float(every / batches)
    return float(trainer.check_val_every_n_epoch * min(every / batches, 1.0))
