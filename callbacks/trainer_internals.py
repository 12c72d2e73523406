"""What the callback for the Trainer reads of a training: from its call, where no hook gives it, and its arguments."""

from __future__ import annotations

import errno
import math
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from haltune._utils.interruption import caller, variables
from haltune.ranks import torch_ranks

from . import tensors
from .changes import tensors_in
from .schedules import falls, of_torch

_SET = "eval_dataset_name"  # variable of the Trainer's loop over several sets


def diverged() -> bool:
    """Return whether the loss of the last batch is not finite.

    With logging_nan_inf_filter, which is on by default, the Trainer logs the mean of earlier losses instead
    (huggingface/transformers#13619), or 0, the best possible loss. It gives callbacks no loss, so that of its loop is
    read. Without it, a training that diverged would be judged as the best one.
    """
    logs = caller("_maybe_log_save_evaluate", "transformers.")
    loop = None if logs is None else logs.f_back
    while loop is not None and "tr_loss_step" not in loop.f_code.co_varnames:  # a subclass may have the method, too
        loop = loop.f_back
    loss = variables(loop).get("tr_loss_step")
    return loss is not None and not math.isfinite(float(loss))


def evaluates_more() -> bool:
    """Return whether the evaluation under way is of several sets, and another one follows.

    The Trainer calls on_evaluate after each set and does not name the set, so this is read from its loop over them.
    Without it, a report would have the metrics that the sets after that of the goal had at the evaluation before.
    """
    frame = inner = caller("evaluate", "transformers.")
    while frame is not None and inner is not None:
        known = variables(frame) if frame.f_code is inner.f_code else {}  # the program may have these names, too
        if _SET in known and isinstance(sets := known.get("eval_dataset"), dict):
            return bool(known[_SET] != [*sets][-1])
        frame = frame.f_back
    return False


def continue_callbacks(state: Any, trainer: Any) -> None:
    """Restore the state of callbacks such as EarlyStoppingCallback from the checkpoint of this training.

    By default the Trainer does not restore it, and a patience would count from 0 again. Its argument
    restore_callback_states_from_checkpoint (huggingface/transformers#29666) replaces the user's callbacks, and is read
    before on_train_begin. A callback gets neither the Trainer nor the other callbacks, so they are read from the call.
    """
    callbacks = trainer.callback_handler.callbacks if state.global_step and trainer is not None else []
    for name, saved in (getattr(state, "stateful_callbacks", None) or {}).items():
        alike = [c for c in callbacks if type(c).__name__ == name]
        for callback, one in zip(alike, saved if isinstance(saved, list) else [saved], strict=False):
            vars(callback).update(one.get("attributes", {}))


def steps_in_epoch(args: Any, loader: Any) -> int | None:
    """Return the optimizer's steps in an epoch; None if the loader has no length."""
    try:
        steps: int = math.ceil(len(loader) / args.gradient_accumulation_steps)
    except TypeError:
        return None
    return steps


def planned_length(unit: str, args: Any, state: Any, steps: int | None) -> float | None:
    """Return the planned length of a training; None if unknown. steps: of an epoch, see `_epoch`."""
    if unit != "epoch":
        return float(state.max_steps) if unit == "step" else None
    if args.max_steps <= 0:
        return float(args.num_train_epochs)
    if steps is None and args.eval_strategy == "steps":
        steps = state.eval_steps
    return float(state.max_steps / steps) if steps else None


def still_to_fall(args: Any, end: int, held: Callable[[], Any], made: bool = True) -> str | None:
    """Return the name of a schedule whose learning rate decays until the end; None if there is none.

    made: the Trainer has made it, by its argument.
    """
    scheduler = held()
    found = of_torch(scheduler)
    if found is None or not falls(found[1], scheduler.last_epoch, end):
        return None
    return f"lr_scheduler_type={args.lr_scheduler_type.value!r}" if made and found[0] == "LambdaLR" else found[0]


def sharding_of(trainer: Any, args: Any) -> str | None:
    """Return what spreads the model over ranks, "FSDP" or "DeepSpeed". Without a Trainer, read it from its arguments.

    Accelerate can turn both on by variables of the environment, without an argument.
    """
    if args.deepspeed if trainer is None else trainer.is_deepspeed_enabled:
        return "DeepSpeed"
    return "FSDP" if (args.fsdp if trainer is None else trainer.is_fsdp_enabled) else None


def room_needed(folder: str, model: Any, optimizer: Any, sharded: bool) -> int:
    """Return the approximate bytes of a checkpoint of all ranks. Raises OSError if the folder has no space for it."""
    held = [*tensors.weights(model), *model.buffers(), *tensors_in([*optimizer.state.values()], 3)]
    size: int = sum(tensors.local(t).nbytes for t in held)
    size *= torch_ranks().size if sharded else 1
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder) as file:  # a full disk must not end the training
        file.write(bytes(4096))
    if shutil.disk_usage(folder).free < size:
        raise OSError(errno.ENOSPC, f"no space for a checkpoint of {size / 1e6:.0f} MB", folder)
    return size
