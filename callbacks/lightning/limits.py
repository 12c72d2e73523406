"""What a Lightning fit cannot be here, said in a sentence at its start or its end: never a wrong result."""

from __future__ import annotations

import math
from typing import Any

from haltune._utils.words import amount
from haltune.errors import NotSupported
from haltune.study import Trial

from ..frameworks.ranks import Agreement

_SHARDED = ("FSDPStrategy", "XLAFSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy")


def fabric() -> NotSupported:
    """Fabric takes any object as a callback and calls what its user's loop names."""
    return NotSupported(
        "Fabric runs the loop that you write and calls no hook by itself: report in that loop, with "
        "haltune.callbacks.loop.TrainingLoop, instead of Fabric(callbacks=[HaltuneCallback(trial)])"
    )


def same_trial(ranks: Agreement, trial: Trial) -> None:
    """Raises NotSupported, on every rank, when each trains another trial."""
    held = ranks.gather([trial.id, trial.attempt, repr(sorted(trial.config.items()))])
    if any(other != held[0] for other in held):
        listed = ", ".join(f"rank {rank} trial {id}" for rank, (id, _, _) in enumerate(held))
        raise NotSupported(
            f"the ranks of this fit train different trials ({listed}): haltune was not told how they were started. "
            "Set HALTUNE_RUN_FOLDER to a folder that all of them can see, and import haltune before the first fit"
        )


def check_start(trainer: Any, trial: Trial) -> None:
    """Raises NotSupported for limits below the trial's horizon and for sharded states that must be saved."""
    horizon = trial.horizon
    if horizon is None:
        return
    if trial.until is not None and trial.until < horizon and sharded(trainer):
        raise cannot_save(trainer)
    steps = steps_per_epoch(trainer)
    one_a_batch = trainer.lightning_module.automatic_optimization
    if steps is not None and one_a_batch and -1 < trainer.max_steps < steps * horizon:
        raise _too_short(f"max_steps={trainer.max_steps}", trainer.max_steps / steps, horizon)


def check_end(trainer: Any, trial: Trial, trained: float | None) -> None:
    """Raises NotSupported when max_steps or max_time, and nobody's decision, ended the fit early."""
    horizon, timer = trial.horizon, _expired(trainer)
    epochs = trainer.current_epoch if trained is None else trained
    if horizon is None or epochs >= horizon:
        return
    if -1 < trainer.max_steps <= trainer.global_step:
        raise _too_short(f"max_steps={trainer.max_steps}", epochs, horizon)
    if timer is not None:
        raise _too_short("max_time", epochs, horizon)


def sharded(trainer: Any) -> bool:
    """True when no process holds the whole state."""
    return any(kind.__name__ in _SHARDED for kind in type(trainer.strategy).__mro__)


def cannot_save(trainer: Any) -> NotSupported:
    """Why a trial under this strategy is not paused."""
    return NotSupported(
        f"a trial under {type(trainer.strategy).__name__} cannot be paused, as its state is spread over the "
        "processes: use strategy='ddp', or a policy that only stops trials"
    )


def steps_per_epoch(trainer: Any) -> int | None:
    """Optimizer steps of an epoch with automatic optimization; None for a loader without length."""
    batches = trainer.num_training_batches
    return math.ceil(batches / trainer.accumulate_grad_batches) if math.isfinite(batches) else None


def _too_short(what: str, epochs: float, horizon: int) -> NotSupported:
    return NotSupported(
        f"{what} ends this fit after {amount(epochs, 'epochs', 3)}, but trials are compared at {horizon}: give the "
        "Trainer max_epochs=trial.max_epochs alone, and limit the search, Study(..., budget=Budget(time='2h'))"
    )


def _expired(trainer: Any) -> Any:
    """The Timer whose time is over, as max_time makes one; None without."""
    for callback in trainer.callbacks:
        remaining = getattr(callback, "time_remaining", None)
        if callable(remaining) and type(callback).__name__ == "Timer" and (remaining() or 1.0) <= 0:
            return callback
    return None
