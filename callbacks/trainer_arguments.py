"""The arguments of a Trainer, as `hyperparameter_search` checks them, and sets them for a trial."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any

from haltune.errors import InvalidInput, NotSupported
from haltune.log.problem import Maximize, Minimize
from haltune.space import Space
from haltune.space.domains import Constant
from haltune.study import Trial

from . import trainer_state
from .base import Reporting

_BY_METRIC = ("reduce_lr_on_plateau", "greedy")  # schedules that follow metric_for_best_model
# arguments that the Trainer, its arguments or Accelerate read only when they are made
_AT_START = frozenset((
    "fp16", "bf16", "tf32", "torch_compile", "torch_compile_backend", "torch_compile_mode", "use_cpu", "fsdp",
    "fsdp_config", "deepspeed", "accelerator_config", "parallelism_config", "label_names",
))  # fmt: skip
GOALS: dict[str, type[Maximize] | type[Minimize]] = {"minimize": Minimize, "maximize": Maximize}


@contextmanager
def arranged(trainer: Any, trial: Trial, folder: str, callback: Reporting) -> Iterator[None]:
    """Configure the Trainer for a trial, and restore it afterwards."""
    arguments, init = trainer.args, trainer.model_init
    known = {name: value for name, value in trial.config.items() if hasattr(arguments, name)}
    given = {**known, "output_dir": folder}
    olds = {name: getattr(arguments, name) for name in given}
    fields = {name: type(old)(given[name]) if isinstance(old, Enum) else given[name] for name, old in olds.items()}
    if getattr(fields.get("lr_scheduler_type"), "value", "") in _BY_METRIC and arguments.metric_for_best_model is None:
        fields |= {"metric_for_best_model": "loss", "greater_is_better": False}  # as TrainingArguments does
    before = {name: getattr(arguments, name) for name in fields}
    derived = {name: getattr(trainer, name, None) for name in _DERIVED}
    callbacks = filter(trainer_state.exports, trainer.callback_handler.callbacks)
    stateful = [(one, copy.deepcopy(one.state()["attributes"])) for one in callbacks]
    trainer.add_callback(callback)
    try:
        _set(trainer, fields)
        vars(trainer).update({name: make(trainer) for name, (field, make) in _DERIVED.items() if field in fields})
        trainer.model_init = lambda: init(trial) if _takes_a_trial(init) else init()
        yield
    finally:
        trainer.model_init = init
        trainer.remove_callback(callback)
        trainer.remove_callback(trainer_state.Unsaved)
        _set(trainer, before)
        vars(trainer).update(derived)
        for one, attributes in stateful:  # all trials have the same callbacks, such as EarlyStoppingCallback
            vars(one).update(attributes)


def _set(trainer: Any, arguments: Mapping[str, Any]) -> None:
    """Set training arguments, and the batch size and the accelerator that the Trainer derived from them.

    The Trainer's own search sets the same two, by a method for its own backends only. Without them, a trial would train
    with the batch size and the accumulation of another one.
    """
    for name, value in arguments.items():
        setattr(trainer.args, name, value)
    trainer._train_batch_size = trainer.args.train_batch_size
    trainer.create_accelerator_and_postprocess()


def _smoother(trainer: Any) -> Any:
    """Return what smooths the labels, as the Trainer makes it."""
    from transformers.trainer_pt_utils import LabelSmoother

    factor = trainer.args.label_smoothing_factor
    several = getattr(getattr(trainer.model, "config", None), "problem_type", None) == "multi_label_classification"
    return LabelSmoother(epsilon=factor) if factor != 0 and not several else None


# attribute of a Trainer that it derives from an argument only when it is made -> the argument, and the same rule
_DERIVED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "label_smoother": ("label_smoothing_factor", _smoother),
    "neftune_noise_alpha": ("neftune_noise_alpha", lambda trainer: trainer.args.neftune_noise_alpha),
}


def _takes_a_trial(init: Callable[..., Any]) -> bool:
    from transformers.trainer_utils import number_of_arguments

    return bool(number_of_arguments(init) == 1)


def check(trainer: Any, space: Any, direction: Any) -> None:
    if isinstance(direction, list | tuple):
        raise NotSupported(
            f"direction={direction!r} has several goals, but this search has one. Combine them in compute_objective."
        )
    if direction not in GOALS:
        raise InvalidInput(f"Cannot read direction={direction!r}. Use 'minimize' or 'maximize'.")
    if callable(space) or not isinstance(space, Space | Mapping):
        raise InvalidInput(
            f"hp_space={space!r} is not a space. Give the space itself instead of a function of a trial, such as "
            "{'learning_rate': Float(1e-5, 1e-3, log=True)}."
        )
    if getattr(trainer, "args", None) is None or getattr(trainer, "model_init", None) is None:
        raise InvalidInput(
            f"hyperparameter_search(trainer, ...) cannot use {trainer!r}. Give a Trainer made with model_init=, a "
            "function that makes a new model for each trial."
        )
    if trainer.args.eval_strategy == "no":
        raise InvalidInput("This Trainer does not evaluate. Set TrainingArguments(eval_strategy='epoch').")
    if trainer.args.deepspeed:
        raise NotSupported(
            "With DeepSpeed, one Trainer cannot train several trials. Make a Trainer for each trial, in a loop over a "
            "Study, with HaltuneCallback(trial)."
        )


def check_read(trainer: Any, space: Space) -> None:
    """Raise InvalidInput for parameters that are not read, and for arguments that all trials must share."""
    for name in ("num_train_epochs", "max_steps", "output_dir"):
        if name in space.names:
            raise InvalidInput(f"{name!r} cannot be searched, because all trials must share it. Remove it.")
    for name in sorted(_AT_START.intersection(space.names)):
        domain = space.parameters[name]
        if not isinstance(domain, Constant) or domain.value != getattr(trainer.args, name, None):
            raise InvalidInput(
                f"{name!r} cannot be searched, because the Trainer reads it only when it is made. Set it in "
                "TrainingArguments, and remove it from the space."
            )
    others = [name for name in space.names if not hasattr(trainer.args, name)]
    if others and not _takes_a_trial(trainer.model_init):
        raise InvalidInput(
            f"Nothing reads {', '.join(map(repr, others))}: TrainingArguments has no such field, and model_init has "
            "no argument. Write def model_init(trial), which reads trial.config (trial is None when the Trainer is "
            "made)."
        )


def horizon_of(arguments: Any) -> tuple[int, str]:
    """Return the length of a full training, and its unit."""
    epochs = float(arguments.num_train_epochs)
    if arguments.max_steps > 0:
        return arguments.max_steps, "step"
    if not epochs.is_integer() or epochs < 1:
        raise InvalidInput(
            f"TrainingArguments(num_train_epochs={epochs:g}) is not a whole number. Round it, or set max_steps=."
        )
    return int(epochs), "epoch"
