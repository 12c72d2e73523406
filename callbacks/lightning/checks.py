"""The state of a Lightning fit, and its conflicts with the trial: early errors and warnings."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

from haltune.display import amount, one_line, plural
from haltune.errors import NotSupported
from haltune.ranks import Group, torch_ranks
from haltune.study import Trial

from ..changes import own_parts
from ..reporter import need_same_configuration
from ..schedules import falls, of_torch
from .internals import cluster_environment, has_validation_data
from .shards import cannot_save

_NO_REQUEUE = "Write Trainer(plugins=[SLURMEnvironment(auto_requeue=False)]), and haltune saves the trial instead"


def silent(trainer: Any) -> bool:
    """Return whether hooks fire without the validation of a training epoch."""
    return trainer.state.fn != "fit" or trainer.sanity_checking or bool(trainer.fast_dev_run)


def at_boundary(trainer: Any) -> bool:
    """Return whether the fit is after the last batch of an epoch."""
    return bool(trainer.fit_loop.epoch_loop.batch_progress.is_last_batch)


def of_lightning(function: Any) -> bool:
    """Return whether a class or a method is Lightning's own."""
    return str(getattr(function, "__module__", "")).partition(".")[0] in ("lightning", "pytorch_lightning")


def leaves(loaders: Any) -> Iterator[Any]:
    """Yield the loaders in any collection."""
    if isinstance(loaders, dict):
        loaders = list(loaders.values())
    loaders = getattr(loaders, "flattened", loaders)
    if isinstance(loaders, (list, tuple)):
        for loader in loaders:
            yield from leaves(loader)
    elif loaders is not None:
        yield loaders


def loader_parts(loader: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, object) of a loader, its samplers, its data set with those that it wraps, and the program's own."""
    batches, dataset = getattr(loader, "batch_sampler", None), getattr(loader, "dataset", None)
    parts = {
        "loader": loader,
        "sampler": getattr(loader, "sampler", None),
        "batches": batches,
        "batches.sampler": getattr(batches, "sampler", None),
    }
    while dataset is not None and len(parts) < 9:
        parts[f"dataset{len(parts) - 4 or ''}"] = dataset
        dataset = vars(dataset).get("dataset") if hasattr(dataset, "__dict__") else None
    known = {id(part) for part in parts.values()}
    for place, part in own_parts(loader):
        if id(part) not in known:
            parts[place.partition("/")[2].replace("/", ".")] = part
    yield from ((name, part) for name, part in parts.items() if hasattr(part, "__dict__"))


def stateful(loader: Any) -> bool:
    """Return whether a loader saves its own place in the data."""
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def epochs_done(trainer: Any) -> float | None:
    """Return the trained epochs, with fractions: current_epoch + batches done / batches of an epoch.

    None within an epoch of unknown length, and in an epoch without a batch (if the stop came at its start).
    """
    progress = trainer.fit_loop.epoch_loop.batch_progress
    if progress.is_last_batch:
        return float(trainer.current_epoch + 1)
    batches = trainer.num_training_batches
    if not math.isfinite(batches) or progress.current.ready == 0:
        return None
    return float(trainer.current_epoch + progress.current.ready / batches)


def first_epoch(trainer: Any) -> float:
    """Return the trained epochs at the start of a fit, with a fraction if it resumes within an epoch."""
    progress = trainer.fit_loop.epoch_loop.batch_progress
    within = progress.current.ready > 0 and (not progress.is_last_batch or resumes_after_batches(trainer))
    return (epochs_done(trainer) if within else None) or float(trainer.current_epoch)


def resumes_after_batches(trainer: Any) -> bool:
    """Return whether a fit resumes from a file that was saved in the validation after the last batch of an epoch."""
    return bool(getattr(trainer.fit_loop, "restarted_mid_epoch", False)) and at_boundary(trainer)


def plateau_left_out(trainer: Any, trial: Trial) -> str | None:
    """Return a warning that Lightning leaves out a step of ReduceLROnPlateau, which comes after ModelCheckpoint."""
    at_end = resumes_after_batches(trainer) or getattr(trainer.fit_loop, "resumed_on_epoch_end", False)
    if not at_end or not any(config.reduce_on_plateau for config in trainer.lr_scheduler_configs):
        return None
    return (
        f"Trial {trial.id} resumes from a file that ModelCheckpoint saved before ReduceLROnPlateau had its step at the "
        "end of this epoch, and Lightning leaves this step out, so the learning rate may differ from that of a "
        "training that was never interrupted."
    )


def ranks_of(trainer: Any) -> Group:
    """Return the processes of the fit."""
    ranks = torch_ranks()
    every = ranks.every if ranks.size == trainer.world_size else None
    return Group(trainer.global_rank, trainer.world_size, trainer.strategy.broadcast, every)


def of_all_ranks(trainer: Any, count: int) -> int:
    """Return the sum of a count over the processes; every process calls this."""
    if ranks_of(trainer).alone:
        return count
    import torch

    return int(trainer.strategy.reduce(torch.tensor(count, device=trainer.strategy.root_device), reduce_op="sum"))


def planned_steps(trainer: Any) -> float | None:
    """Return the planned optimizer steps of the fit; None if unknown."""
    if trainer.max_steps > -1:
        return float(trainer.max_steps)
    steps = math.inf if trainer.max_epochs in (None, -1) else trainer.estimated_stepping_batches
    return float(steps) if math.isfinite(steps) else None


def still_to_fall(held: Callable[[], Any]) -> str | None:
    """Return the name of a schedule whose learning rate decays until the end of the fit; None if there is none."""
    trainer = held()
    for config in trainer.lr_scheduler_configs:
        steps = planned_steps(trainer) if config.interval == "step" else float(trainer.max_epochs or -1)
        found = None if config.reduce_on_plateau else of_torch(config.scheduler)
        if found and steps and falls(found[1], config.scheduler.last_epoch, steps // config.frequency):
            return found[0]
    return None


def accumulates(trainer: Any) -> bool:
    """Return whether the gradients of the last batch wait for those of the next one."""
    if hasattr(trainer.strategy, "deepspeed_engine"):  # it counts over the ends of epochs
        return bool(trainer.strategy.deepspeed_engine.micro_steps % trainer.accumulate_grad_batches)
    progress = trainer.fit_loop.epoch_loop.batch_progress
    last = progress.is_last_batch or progress.current.ready == trainer.num_training_batches
    return not last and progress.current.ready % trainer.accumulate_grad_batches != 0


def schedules_accumulation(trainer: Any) -> bool:
    """Return whether epochs of this fit may differ in their number of updates, because the program plans so."""
    if not trainer.lightning_module.automatic_optimization and len(trainer.optimizers) > 1:
        return True  # one of them may start later, or step rarely
    return any(
        len(getattr(c, "scheduling", ())) > 1
        for c in trainer.callbacks
        if hasattr(c, "going_to_accumulate_grad_batches")
    )


def fabric() -> NotSupported:
    """Return the error for Fabric, which accepts any object as a callback and calls only hooks that the user names."""
    return NotSupported(
        "HaltuneCallback does not work with Fabric, which calls no training hooks by itself. Report in your loop with "
        "haltune.callbacks.loop.TrainingLoop instead: TrainingLoop(trial, together=True, save=lambda path: "
        "fabric.save(path / 'state.ckpt', state))."
    )


def same_trial(ranks: Group, trial: Trial) -> None:
    """Raise NotSupported on every rank if the ranks train different trials."""
    held = ranks.gather([trial.id, trial.attempt, trial.configuration])
    if any(other != held[0] for other in held):
        listed = ", ".join(f"rank {rank} trial {id}" for rank, (id, _, _) in enumerate(held))
        raise NotSupported(
            f"The ranks of this fit train different trials ({listed}), because haltune does not know how they were "
            "started. Set HALTUNE_RUN_FOLDER to a folder that all ranks can read, and import haltune before the first "
            "fit."
        )


def first_error(ranks: Group, check: Callable[[], None] | None) -> Exception | None:
    """Return the error of a check on the first rank where it fails; None if it fails on none. Every rank calls this.

    check: None if there is nothing to check.
    """
    error: Exception | None = None
    try:
        if check is not None:
            check()
    except Exception as raised:
        error = raised
    refuses = isinstance(error, NotSupported)
    found = ranks.gather(None if error is None else (str(error) if refuses else one_line(error), refuses))
    for rank, one in enumerate(found):
        if one is not None and rank != ranks.rank:
            return NotSupported(one[0]) if one[1] else RuntimeError(one[0])
        if one is not None:
            return error
    return None


def check_start(trainer: Any, trial: Trial) -> None:
    """Raise NotSupported for limits below the trial's max_epochs, and for states that must be saved and cannot."""
    horizon = trial.horizon
    if horizon is None:
        return
    if trial.pause_at is not None and trial.pause_at < horizon and (why := cannot_save(trainer)) is not None:
        raise NotSupported(
            f"A trial of this fit cannot be paused, because {why}; or use a policy that only stops, such as BOBOS()."
        )
    batches = trainer.num_training_batches
    if trial.unit != "epoch" or not math.isfinite(batches):
        return
    steps = math.ceil(batches / trainer.accumulate_grad_batches)
    if trainer.lightning_module.automatic_optimization and -1 < trainer.max_steps < steps * horizon:
        raise _too_short(f"max_steps={trainer.max_steps}", trainer.max_steps / steps, horizon)


def check_end(trainer: Any, trial: Trial, trained: float | None) -> None:
    """Raise NotSupported if max_steps or max_time ended the fit early, without a decision."""
    horizon = trial.horizon
    epochs = trainer.current_epoch if trained is None else trained
    if horizon is None or epochs >= horizon or trial.unit != "epoch":
        return
    if -1 < trainer.max_steps <= trainer.global_step:
        raise _too_short(f"max_steps={trainer.max_steps}", epochs, horizon)
    for callback in trainer.callbacks:  # max_time makes a Timer
        remaining = getattr(callback, "time_remaining", None)
        if callable(remaining) and type(callback).__name__ == "Timer" and (remaining() or 1.0) <= 0:
            raise _too_short("max_time", epochs, horizon)


def _too_short(what: str, epochs: float, horizon: int) -> NotSupported:
    return NotSupported(
        f"{what} ends this fit after {amount(epochs, 'epochs', 3)}, but trials are compared at {horizon}. Give the "
        "Trainer max_epochs=trial.max_epochs only, and limit the search, Study(..., budget=Budget(time='2h'))."
    )


def requeues(trainer: Any) -> str | None:
    """Return a sentence if Lightning itself requeues the SLURM job at SIGUSR1."""
    if not getattr(cluster_environment(trainer), "auto_requeue", False):
        return None
    return (
        "At SIGUSR1 Lightning requeues this SLURM job itself, and does not release the trial. Later it loads its file "
        f"hpc_ckpt into each fit with the same default_root_dir and without a ckpt_path. {_NO_REQUEUE}."
    )


def leave_requeue(trainer: Any, trial: Trial) -> None:
    """Leave the requeue signal of the SLURM job to Lightning, which handles it only if no other handler is set."""
    if requeues(trainer):
        trial.leave_signal(cluster_environment(trainer).requeue_signal)


def check_loaded(trainer: Any, trial: Trial, checkpoint: Mapping[str, Any], resume: str) -> None:
    """Raise NotSupported if a fit loads the state of another trial, or of a training without one.

    checkpoint: what Lightning has read. resume: how this loop resumes.
    """
    state = checkpoint.get("callbacks", {}).get("haltune") or {}
    path, of = os.path.basename(str(trainer.ckpt_path or "")), state.get("trial")
    if of not in (None, trial.id) and path.startswith("hpc_ckpt"):
        raise NotSupported(
            f"Lightning loaded {path} into trial {trial.id}, but saved it in trial {of} to requeue its SLURM job. "
            f"Delete it. {_NO_REQUEUE}."
        )
    trial.starts(of=of, resume=resume)
    if of is not None:
        need_same_configuration(trial, f"{path}, a state", state.get("config", trial.configuration), resume)
    elif checkpoint.get("global_step", 0) > 0:
        raise NotSupported(
            f"This fit of trial {trial.id} loaded {path}, which names no trial, and would continue its training at "
            f"epoch {checkpoint.get('epoch')}. To start from its weights, load them into the module before the fit. "
            f"{resume}, and let each trial save to a folder of its own."
        )


def how_to_resume(trainer: Any, trial: Trial, usual: str) -> str:
    """Return how this fit resumes, for messages: not what it does already."""
    path = trainer.ckpt_path
    if path is None and trial.has_reported:
        return "After the previous fit, call its trainer.save_checkpoint(path), then trainer.fit(..., ckpt_path=path)"
    return usual if path is None else f"Pass ckpt_path=trial.checkpoint in place of {os.path.basename(str(path))}"


def check_trainer(trainer: Any, trial: Trial) -> None:
    """Raise NotSupported for a Trainer that logs nothing, or that would continue to count another training."""
    if trainer.barebones:
        raise NotSupported(
            "Trainer(barebones=True) ignores self.log(...), so haltune has no metric to compare. Leave barebones out."
        )
    if trainer.ckpt_path is None and trainer.global_step > 0 and trial.epoch == 0:
        raise NotSupported(
            f"The Trainer of trial {trial.id} has trained {plural(trainer.current_epoch, 'epoch')} before, and "
            "Lightning continues its count. Make a Trainer for each trial."
        )


def no_validation(trainer: Any, metric: str) -> tuple[str, str] | None:
    """Return why no validation will run in this fit, and what to write; None if one will."""
    module, batches = trainer.lightning_module, trainer.num_training_batches
    epochs = -1 if trainer.max_epochs is None else trainer.max_epochs
    if not trainer.enable_validation:
        if trainer.limit_val_batches == 0:
            return "Trainer(limit_val_batches=0) turns validation off", "Delete limit_val_batches=0"
        lacks, write = [], []
        if of_lightning(module.validation_step):
            lacks.append("the module has no validation_step")
            write.append(f"define validation_step(self, batch, batch_idx), which calls self.log({metric!r}, value)")
        if not has_validation_data(trainer):
            module_of_data = getattr(trainer, "datamodule", None)
            lacks.append("trainer.fit was given no validation data")
            pass_it = "pass it, trainer.fit(model, train_loader, val_loader)"
            write.append(
                pass_it if module_of_data is None else f"define {type(module_of_data).__name__}.val_dataloader"
            )
        how = " and ".join(write)
        return " and ".join(lacks), how[:1].upper() + how[1:]
    every, interval = trainer.check_val_every_n_epoch, trainer.val_check_batch
    if epochs == -1:
        return None
    if every is not None and epochs // every <= trainer.current_epoch // every:
        first = f"Trainer(check_val_every_n_epoch={every}) validates first after {every} epochs"
        return f"{first}, and this fit has {epochs}", "Reduce check_val_every_n_epoch"
    if every is None and isinstance(interval, (int, float)) and math.isfinite(batches) and epochs * batches < interval:
        total = plural(epochs * batches, "batch", "batches")
        first = f"Trainer(val_check_interval={interval}) validates first after {interval} batches"
        return f"{first}, and this fit has {total}", "Reduce val_check_interval"
    return None


def logged_in_training(trainer: Any, name: str) -> bool:
    """Return whether a hook of the user's that is not one of validations has the name of a metric as a constant."""
    return any(_has(code, name) for code in _training_code(trainer))


def _has(code: CodeType, name: str) -> bool:
    """Return whether a code has a text as a constant, perhaps among the keys of a dict."""
    return any(name == one or (isinstance(one, tuple) and name in one) for one in code.co_consts)


def logged(trainer: Any, name: str) -> bool:
    """Return whether a hook of the user's that a fit calls has the name of a metric as a constant."""
    return any(_has(code, name) for code in _code(trainer, "configure", "test", "predict"))


def logs_in_training(trainer: Any) -> bool:
    """Return whether a hook of the user's that is not one of validations may log a metric, of any name."""
    return any("log" in name for code in _training_code(trainer) for name in code.co_names)


def _training_code(trainer: Any) -> Iterator[CodeType]:
    """Yield the code of the user's methods, except those of validations, and of the functions in them."""
    return _code(trainer, "validation")


def _code(trainer: Any, *without: str) -> Iterator[CodeType]:
    """Yield the code of the user's methods and of the functions in them. without: in the names of those left out."""
    for owner in (trainer.lightning_module, *trainer.callbacks):
        for kind in type(owner).__mro__:
            if of_lightning(kind) or kind.__module__.partition(".")[0] in ("torch", "haltune"):
                continue
            named = {hook: m for hook, m in vars(kind).items() if not any(word in hook for word in without)}
            found = [m.__code__ for m in named.values() if hasattr(m, "__code__")]
            while found:
                yield (code := found.pop())
                found += [inner for inner in code.co_consts if isinstance(inner, CodeType)]


def keeps_best_itself(trainer: Any, monitor: str) -> bool:
    """Return whether the program keeps the model of its best epoch."""
    return any(getattr(c, "monitor", None) == monitor and c.save_top_k > 0 for c in trainer.checkpoint_callbacks)


def running_best(trainer: Any, trial: Trial, monitor: str) -> str | None:
    """Return a warning if the metric is the best value so far, which the kept model of the last epoch may not have."""
    kinds = {type(module).__name__ for module in trainer.lightning_module.modules()}
    if trial.goal.of != "last" or "best" not in monitor.lower() or not kinds & {"MaxMetric", "MinMetric"}:
        return None
    return (
        f"{monitor!r} seems to be the best value of a training so far, and the kept model is that of its last epoch. "
        f"Judge the metric itself by its best epoch, {type(trial.goal).__name__}({re.sub('_?best_?', '', monitor)!r}, "
        "of='best')."
    )


def is_finder(callback: Any) -> bool:
    """Return whether a callback finds a batch size or a learning rate when each fit starts."""
    kinds = {kind.__name__ for kind in type(callback).__mro__}
    return bool(kinds & {"BatchSizeFinder", "LearningRateFinder"}) and of_lightning(callback.on_fit_start)


def advice(trainer: Any, trial: Trial) -> str | None:
    """Return a warning if early stopping can end the training before the first rung."""
    pause_at, horizon = trial.pause_at, trial.horizon
    if trial.epoch > 0 or pause_at is None or (horizon is not None and pause_at >= horizon) or trial.unit != "epoch":
        return None  # there is no later rung, or the first rung is over
    for stopping in trainer.early_stopping_callbacks:
        # the first check always improves; after it, `patience` checks (at least one) may not
        if (max(stopping.patience, 1) + 1) * _epochs_per_check(trainer) < pause_at:
            return (
                f"EarlyStopping(monitor={stopping.monitor!r}, patience={stopping.patience}) can end this training "
                f"before epoch {pause_at:g}, where the policy first compares trials. Give it more patience, or leave "
                "stopping to haltune."
            )
    return None


def loud(trainer: Any, homes: Sequence[str]) -> str | None:
    """Return how to hide the lines that Lightning logs at each fit, if it logs them. homes: its modules."""
    modules = [kind.__module__ for kind in type(trainer).__mro__]
    home = next((home for home in homes if any(module.startswith(home) for module in modules)), homes[0])
    if not logging.getLogger(home).isEnabledFor(logging.INFO):
        return None
    kinds = {base.__name__ for callback in trainer.callbacks for base in type(callback).__mro__}
    shown = {"ProgressBar": "enable_progress_bar=False", "ModelSummary": "enable_model_summary=False"}
    off = " and ".join(argument for kind, argument in shown.items() if kind in kinds)
    lines, give = ("about twenty lines", f" and give the Trainer {off}") if off else ("some lines", "")
    return (
        f"Lightning logs {lines} for each fit. To hide them, call logging.getLogger({home!r}).setLevel('ERROR'){give}."
    )


def _epochs_per_check(trainer: Any) -> float:
    """Return the epochs between two validations."""
    batches, every = trainer.num_training_batches, trainer.val_check_batch
    if not isinstance(every, (int, float)) or not math.isfinite(batches) or not math.isfinite(every):
        return float(trainer.check_val_every_n_epoch or 1)
    if trainer.check_val_every_n_epoch is None:  # validation by batches, across epochs
        return float(every / batches)
    return float(trainer.check_val_every_n_epoch * min(every / batches, 1.0))
