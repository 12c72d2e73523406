"""Whether a fit would resume exactly from a pause: the parts of its state that no checkpoint has.

`Start` has what the fit configured before it trained. `never` names what prevents every pause, `not_here` what prevents
one at this point of the epoch.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Container, Mapping
from typing import Any

from haltune.study import Trial

from .. import tensors
from ..changes import tensors_in
from ..reporter import digest
from .checks import accumulates, at_boundary, leaves, of_lightning, stateful
from .internals import given_loaders, loader_epoch, loads_anything
from .shards import cannot_save, sharded

_SHOWS_ONLY = ("ProgressBar", "LearningRateMonitor", "GradientAccumulationScheduler")  # at the start of an epoch
_SAMPLED = 8  # elements of each parameter


class Start:
    """The module, the optimizers and the schedules of a fit, before it trains."""

    def __init__(self, trainer: Any) -> None:
        self._shards = sharded(trainer)
        self._frozen = frozen(trainer.lightning_module)
        self._names = set() if self._shards else set(trainer.lightning_module.state_dict())
        self._optimizers, self._schedules = _optimizers(trainer), _schedules(trainer)
        self._weights = {} if self._shards else sample(dict(trainer.lightning_module.named_parameters()))
        self._sets_weights = False

    def trains(self, trainer: Any) -> None:
        """Compare the weights at the start of the first epoch: a resumed fit calls its first hooks again."""
        if not self._shards:
            now = sample(dict(trainer.lightning_module.named_parameters()))
            self._sets_weights = self._sets_weights or differ(now, self._weights)

    def never(self, trainer: Any) -> str | None:
        """Return why no state of this fit resumes exactly; None if there is no reason."""
        if (why := cannot_save(trainer)) is not None:
            return why
        if at_boundary(trainer) and accumulates(trainer):
            return (
                "gradients are accumulated over the end of this epoch, and a checkpoint lacks them (let "
                "accumulate_grad_batches divide the number of batches)"
            )
        if self._shards and not trainer.lightning_module.automatic_optimization:
            return "its gradients are sharded, and with manual optimization a later step may use them"
        if self._shards and frozen(trainer.lightning_module) != self._frozen:
            return (
                "the fit froze or unfroze parameters, and Lightning loads a sharded state before a resumed fit does "
                "so: freeze them in configure_model, or use strategy='ddp'"
            )
        if self._sets_weights:
            return (
                "its weights are set in on_fit_start or on_train_start, which a resumed fit calls after it has loaded "
                "them: set them in configure_model or in the module's __init__"
            )
        if outside(trainer):
            return (
                "the optimizer trains weights outside the module, as of a loss, which no checkpoint has: make the loss "
                "an attribute of the module"
            )
        if not self._shards and (inner := _inner_optimizer(trainer)) is not None:
            return (
                f"{inner} has moments that the state_dict of the optimizer around it leaves out: add the state of both "
                "to its state_dict, and load both in its load_state_dict"
            )
        if not self._shards and (changed := sorted(self._names ^ trainer.lightning_module.state_dict().keys())):
            return (
                f"the fit changed the structure of its module ({changed[0]}), so a resumed fit, which builds it again, "
                "could not load its state: build all layers in __init__ or configure_model"
            )
        kinds = {kind.__name__ for c in trainer.callbacks for kind in type(c).__mro__}
        if _optimizers(trainer) != self._optimizers and "BaseFinetuning" not in kinds:
            return (
                "the fit changed its optimizers or their parameter groups, which a resumed fit configures again: give "
                "configure_optimizers all parameters from the start, with requires_grad=False for frozen ones"
            )
        if _schedules(trainer) != self._schedules and "StochasticWeightAveraging" not in kinds:
            return (
                "the fit changed its learning-rate schedules, which a resumed fit configures again: make all of them "
                "in configure_optimizers"
            )
        loaders = [*leaves(trainer.train_dataloader), *leaves(trainer.val_dataloaders)]
        if any(getattr(loader, "persistent_workers", False) for loader in loaders):
            return (
                "the random numbers of persistent workers are not in a checkpoint: use "
                "DataLoader(persistent_workers=False)"
            )
        every = trainer.reload_dataloaders_every_n_epochs
        epoch = trainer.current_epoch + at_boundary(trainer)
        old = epoch - loader_epoch(trainer) < every if at_boundary(trainer) else epoch > loader_epoch(trainer)
        if every > 1 and old and given_loaders(trainer) is None:
            return (
                f"with reload_dataloaders_every_n_epochs={every} its loaders are those of an earlier epoch, and a "
                "resumed fit makes new ones: pauses are possible where loaders are made, or with 1"
            )
        return None


def outside(trainer: Any) -> bool:
    """Return whether the optimizers train weights that are not of the module, and that it does not save itself."""
    module = trainer.lightning_module
    saves = not of_lightning(module.on_save_checkpoint)
    return not (saves or sharded(trainer)) and bool(tensors.outside([module], trainer.optimizers))


def _inner_optimizer(trainer: Any) -> str | None:
    """Return the name of an optimizer in another one, as in SAM, of which no saved state has the moments."""
    for around in trainer.optimizers:
        if hasattr(around, "consolidate_state_dict"):  # Lightning calls it before it saves
            continue
        for name, inner in vars(around).items():
            moments = _prints(inner.state) if hasattr(inner, "param_groups") and hasattr(inner, "state") else set()
            if moments and not moments <= _prints([optimizer.state_dict() for optimizer in trainer.optimizers]):
                return f"{type(around).__name__}.{name}"
    return None


def _prints(state: Any) -> set[str]:
    return {tensors.fingerprint_of([tensor]) for tensor in tensors_in(state, 5)}


def not_here(trainer: Any, validated: Container[str], drew: bool) -> str | None:
    """Return why a fit that is saved at this point of an epoch would not resume exactly; None if it does.

    validated: the names of the metrics of validations. drew: reading batches in this process drew random numbers.
    """
    loop, module = trainer.fit_loop, trainer.lightning_module
    if at_boundary(trainer):
        return None
    if not hasattr(loop, "restarted_mid_epoch"):
        return "Lightning resumes within an epoch from version 2.5 on"
    before_end = loop.epoch_progress.current.processed < (trainer.min_epochs or 0)
    if before_end or trainer.global_step < (trainer.min_steps or 0):
        return "it is before min_epochs or min_steps"
    if accumulates(trainer):
        return "the gradients of accumulated batches are not used yet"
    if any(c.reduce_on_plateau and c.interval == "step" for c in trainer.lr_scheduler_configs):
        return "ReduceLROnPlateau by steps steps after the validation"
    if "dataloader_iter" in inspect.signature(module.training_step).parameters:
        return "training_step reads the batches itself (dataloader_iter)"
    for owner in (module, *trainer.callbacks):
        shows = {kind.__name__ for kind in type(owner).__mro__} & {*_SHOWS_ONLY, "HaltuneCallback"}
        hook = getattr(owner, "on_train_epoch_start", None)
        if not shows and not unused(hook):
            return (
                f"{type(owner).__name__}.on_train_epoch_start prepares an epoch, and Lightning does not call it in a "
                "fit that resumes within one"
            )
    monitors = [c.monitor for c in trainer.lr_scheduler_configs if c.reduce_on_plateau]
    monitors += [stopping.monitor for stopping in trainer.early_stopping_callbacks]
    for name in monitors:
        if name is not None and name not in validated and not name.startswith("val"):
            return (
                f"{name!r}, which a schedule or EarlyStopping reads, is a mean over the epoch, and its first part is "
                "not in a checkpoint"
            )
    loaders = list(leaves(trainer.train_dataloader))
    if len({_length(loader) for loader in loaders}) > 1:
        return "the training loaders have different lengths, so one of them starts again within the epoch"
    if drew:
        return (
            "the training data draw random numbers while they are read in this process: use DataLoader(num_workers=1), "
            "or a loader with state_dict and load_state_dict"
        )
    return None


def complete(trainer: Any, trial: Trial, checkpoint: dict[str, Any]) -> None:
    """Put haltune's checkpoint in place of one that the program saved of this trial at the same step.

    The program's own lacks the random state, what the fit changed in its objects, and schedules that step later. If
    there is none of the same step, warn that the fit does not resume exactly.
    """
    import torch

    own = checkpoint.get("callbacks", {}).get("haltune") or {}
    name, saved = os.path.basename(str(trainer.ckpt_path or "")), trial.checkpoint
    if own.get("trial") != trial.id or "random" in own or sharded(trainer):
        return
    if saved is not None and os.path.isfile(saved):
        ours = torch.load(saved, map_location="cpu", weights_only=not loads_anything())
        keys = ("global_step", "pytorch-lightning_version")
        if all(ours.get(key) == checkpoint.get(key) for key in keys):
            checkpoint.clear()
            checkpoint.update(ours)
            trainer.lightning_module.on_load_checkpoint(checkpoint)
            trainer.strategy.load_model_state_dict(checkpoint, strict=trainer.lightning_module.strict_loading)
            return
    if trial.has_reported:  # a later fit of this attempt, whose random numbers continue
        return
    advice = f" Pass ckpt_path=trial.checkpoint in place of {name}." if saved is not None else ""
    trial.warn(
        f"Trial {trial.id} resumes from {name}, which its program saved without the random state, so it draws other "
        f"numbers than a training without a pause.{advice}",
        "own file",
        once=True,
    )


def reads_a_stream(trainer: Any) -> bool:
    """Return whether an IterableDataset is read in this process, by a loader that does not save its place."""
    return any(
        not stateful(loader)
        and getattr(loader, "num_workers", 0) == 0
        and "IterableDataset" in {kind.__name__ for kind in type(getattr(loader, "dataset", None)).__mro__}
        for loader in leaves(trainer.train_dataloader)
    )


def pruned(tensors: Mapping[str, Any], like: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the weights by which a pruned module computes in place of those before and their masks, and their zeros.

    like: the same of another time; weights that were pruned then have no mask in a checkpoint that made it permanent.
    """
    found = dict(tensors)
    masks = [name for name in found if name.endswith("_mask") and f"{name.removesuffix('_mask')}_orig" in found]
    names = [name.removesuffix("_mask") for name in masks]
    for name in names:
        found[name] = found.pop(f"{name}_orig").detach() * found.pop(f"{name}_mask")
    names += [name for name in found if f"{name} zeros" in (like or {}) and name not in names]
    return found | {f"{name} zeros": (found[name] == 0).sum()[None].float() for name in names}


def sample(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first elements of each tensor: whether weights are others can be seen without a copy of all."""
    import torch

    parts: dict[Any, dict[str, Any]] = {}  # device -> parts there
    for name, tensor in tensors.items():
        # a lazy parameter has no elements before the first batch
        if tensor.is_floating_point() and not torch.nn.parameter.is_lazy(tensor) and tensor.numel():
            parts.setdefault(tensor.device, {})[name] = tensor.detach().flatten()[:_SAMPLED].float()
    found: dict[str, Any] = {}
    for here in parts.values():  # one copy from each device
        whole = torch.cat([*here.values()]).cpu()
        found |= zip(here, whole.split([*map(len, here.values())]), strict=True)
    return found


def before_forward(module: Any, call: Callable[[], None]) -> Any:
    """Let `call` be called once, before the first part of a module that has weights; return the hook of torch."""
    import torch

    parts = {id(part) for part in module.modules() if part is not module and next(part.parameters(), None) is not None}

    def before(part: Any, _: Any) -> None:
        if id(part) in parts:
            hook.remove()
            call()

    hook = torch.nn.modules.module.register_module_forward_pre_hook(before)
    return hook


def mark(module: Any) -> str:
    """Return the mark of a module's weights, by a sample of each."""
    return digest(sample(dict(module.named_parameters())).values())


def differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two samples differ in a tensor that both have. NaN equals NaN."""
    common = one.keys() & other.keys()
    return any(not one[n].allclose(other[n], rtol=0.0, atol=0.0, equal_nan=True) for n in common)


def frozen(module: Any) -> set[str]:
    """Return the names of the parameters that are not trainable."""
    return {name for name, parameter in module.named_parameters() if not parameter.requires_grad}


def _optimizers(trainer: Any) -> list[Any]:
    return [(type(o).__name__, [len(group["params"]) for group in o.param_groups]) for o in trainer.optimizers]


def _schedules(trainer: Any) -> list[str]:
    return [type(config.scheduler).__name__ for config in trainer.lr_scheduler_configs]


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None


def unused(hook: Any) -> bool:
    """Return whether a hook is the empty one of Lightning's base classes."""
    return of_lightning(hook) and hook.__qualname__.partition(".")[0] in ("Callback", "ModelHooks", "LightningModule")
