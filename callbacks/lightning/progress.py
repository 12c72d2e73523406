"""Where a Lightning fit stands: how many epochs it has trained, and whether it counts at all."""

from __future__ import annotations

from math import isfinite
from typing import Any

from ..frameworks.ranks import Agreement


def silent(trainer: Any) -> bool:
    """True where the same hooks fire but no training epoch is validated."""
    return trainer.state.fn != "fit" or trainer.sanity_checking or bool(trainer.fast_dev_run)


def ranks_of(trainer: Any) -> Agreement:
    """The processes of the fit."""
    return Agreement(trainer.global_rank, trainer.world_size, trainer.strategy.broadcast)


def planned_epochs(trainer: Any) -> float | None:
    """The Trainer's max_epochs; None without a limit."""
    epochs = trainer.max_epochs
    return float(epochs) if epochs is not None and epochs >= 0 else None


def at_boundary(trainer: Any) -> bool:
    """True after the last batch of an epoch."""
    return bool(trainer.fit_loop.epoch_loop.batch_progress.is_last_batch)


def epochs_done(trainer: Any) -> float | None:
    """Epochs trained so far, fractional within one: current_epoch + batches done / batches of an epoch.

    None within an epoch of unknown length, and in one without a batch (the stop came at its start).
    """
    progress = trainer.fit_loop.epoch_loop.batch_progress
    if progress.is_last_batch:
        return float(trainer.current_epoch + 1)
    batches = trainer.num_training_batches
    if not isfinite(batches) or progress.current.ready == 0:
        return None
    return float(trainer.current_epoch + progress.current.ready / batches)
