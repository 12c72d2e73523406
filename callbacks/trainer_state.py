"""What a resumed Trainer of Hugging Face needs beyond its own checkpoint, in a file of each rank next to it.

`Unsaved` is a callback behind all others. It finds what changes in a training and is not in the Trainer's checkpoint:
the model's trainable flags, numbers that its modules count, attributes of the user's callbacks, and the random states
with which the present pass over the data started. It saves and restores them. `why_not` names what it cannot save, so
that the pause is declined.
"""

from __future__ import annotations

import dis
import functools
import inspect
import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from multiprocessing import Value
from pathlib import Path
from typing import Any

import numpy as np

from haltune._utils.around import of_library, own_classes
from haltune._utils.generators import damaged, set_states, states_of
from haltune._utils.own_generators import generators_in, of_owners
from haltune._utils.randomness import capture, checked, of_devices, restore, restore_devices
from haltune.errors import NotSupported
from haltune.ranks import torch_ranks
from haltune.study import Trial

from . import carried, objects, plain, tensors
from .base import Portable
from .changes import (
    RESHAPED,
    Attributes,
    Replaced,
    differences,
    extras,
    fingerprint,
    generators_of,
    known_of,
    left_out,
    makers,
    of_modules,
    own_modules,
    own_parts,
    printed,
    set_extras,
    set_generators,
    warn_of_failed,
)  # fmt: skip
from .functions import OwnFunctions
from .schedules import make_plain

FILE, OF_RANK = "haltune.json", "haltune_{}.json"  # in a checkpoint of the Trainer, of rank 0 and of another one
_TRAINED = "haltune_weights.pt"  # likewise: the weights that train, if the checkpoint has others
_SAVES = ("_save", "_save_checkpoint", "save_model", "on_save")  # what writes a checkpoint, or changes it
_OWN_PACKAGES = ("transformers.", "trl.", "haltune.")  # their callbacks export what they need, or need nothing
_MOVING = {  # callbacks of TRL that change weights, which the Trainer does not save
    "SyncRefModelCallback": "TRL moves the reference model, which the Trainer does not save",
    "BEMACallback": "TRL's BEMACallback averages weights, which the Trainer does not save",
    "PEFTAdapterEMACallback": "TRL's PEFTAdapterEMACallback averages weights, which the Trainer does not save",
}
_STEPS = ("eval_steps", "logging_steps", "save_steps")  # of the Trainer's state, which each training sets again
_ADAPTERS = (
    "the checkpoints of PEFT have the adapters alone, and other weights or buffers of the model change in training"
)
_NAMED = "name their modules in modules_to_save= of its configuration"
_OF_ADAPTERS = (
    "the Trainer does not load adapters that model.add_adapter made (give it peft.get_peft_model(model, config))"
)
_ALIKE = f"PEFT does not save them. Build the model from the same weights in each attempt, or {_NAMED}."


class Unsaved(Portable):
    """Callback behind all others that keeps and restores what the Trainer's checkpoint lacks.

    trainer: the Trainer. trial: of the fit. of: what checkpoints hold about it. loaded: the file of the checkpoint that
    the training loaded, or None. after: called when all callbacks have seen a log or an evaluation.
    """

    _homes = ("transformers.trainer_callback",)
    _base = "TrainerCallback"
    _install = 'pip install "transformers[torch]"'

    def __init__(
        self,
        trainer: Any,
        trial: Trial,
        of: Mapping[str, Any],
        loaded: Mapping[str, Any] | None,
        after: Callable[[Any, Any], object],
    ) -> None:
        self.trainer, self._trial, self._of, self._after = trainer, trial, of, after
        self._restored: dict[str, Any] = dict(loaded or {})
        self._before: dict[str, Any] = {}  # what can change, as the training started
        self._attributes = Attributes(of["id"], hook="on_train_begin")
        self._of_data = Attributes(of["id"])
        self._replaced = Replaced()
        self._of_modules = of_modules(of["id"])
        kind: type = type(trainer)
        theirs = () if of_library(kind.__module__) else _assigned(kind)
        self._of_trainer = Attributes(of["id"], *theirs)  # what a class of the program adds to the Trainer
        self._pass: dict[str, Any] = {}  # random states at the start of the present pass
        self._print: Any = None  # random states before the data are read
        self._draws = self._own_draw = False  # reading data draws from the generators of the process, of the data
        self._resumes, self._evaluates = bool(loaded), False
        self._between = self._resumes and not self._restored.get("pass")  # resumed between passes, before a step
        self._drawn: Any = None  # whether worker processes draw

    # hooks, of which each is the last of its kind

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **others: Any) -> None:
        callbacks = self.trainer.callback_handler.callbacks
        carried.need_own_state(carried.who(self._trial), callbacks, not self._resumes)
        carried.warn_of_own(self._trial, callbacks, not self._resumes)
        saved = self.trainer, self.trainer.model, *callbacks
        self._functions = OwnFunctions(_losses(self.trainer), (), self._trial, not self._resumes, saved)
        self._frozen = self._around(trained=False)
        if self._restored.get("frozen", self._frozen) != self._frozen:
            warn_of_failed(self._trial, "some weights of its model", advice=_ALIKE)
        self._loader = train_dataloader
        self._generators = generators_of(train_dataloader)
        self._makers = makers(train_dataloader)
        inner = getattr(train_dataloader, "base_dataloader", train_dataloader)  # within Accelerate's
        if getattr(inner, "num_workers", 0) > 0 and hasattr(inner, "collate_fn"):
            self._drawn = _Watched(inner).drawn
        if self._resumes:
            owned = self._owned()
            self._trial.restores_randomness(functools.partial(set_states, owned, states_of(owned)))
            self._set_back()
            self._functions.put_back(str(Path(self._restored["path"], self._restored["file"])))
            # the first attempt made the evaluation at the start, and callbacks such as EarlyStoppingCallback count it
            self._evaluates, args.eval_on_start = args.eval_on_start, False
            if loss := self._restored.get("loss"):
                self.trainer._tr_loss.fill_(loss[0])
                self.trainer._globalstep_last_logged = loss[1]
            self._set_generators(self._restored.get("generators", {}))
            if (seed := self._restored.get("seed")) is not None and hasattr(self._sampler, "initial_seed"):
                self._sampler.initial_seed = seed  # TrainingArguments(seed=) may be another one
        self._before = self._present()
        self._attributes.see(_own_callbacks(self.trainer), self._saved())
        self._of_trainer.see(_own_trainer(self.trainer), self._saved())
        self._of_data.see(self._own_data(), self._saved())
        self._replaced.see(self._base_loader)
        self._of_modules.see(own_modules(self.trainer.model), self._saved())

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        args.eval_on_start |= self._evaluates
        within = self._restored.get("pass") if self._resumes else None
        if within:  # the hooks of this epoch were called before the pause
            self._set_back()
            restore(checked(within["random"]))
            self._set_generators(within["generators"])
        elif self._between:  # the Trainer loads them once more, from before this epoch's hooks, which may draw
            vars(self.trainer)["_load_rng_state"] = self._loaded_before
        if not self._pass:
            carried.warn_of_data(self._trial, self._own_data(), not self._resumes)
        self._resumes, self._print = False, None
        self._of_data.pass_starts(self._own_data())
        self._pass = {"random": capture(), "generators": self._states()}

    def on_step_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        restore_devices(self._restored.pop("devices", {}))
        self._between = False
        before, self._print = self._print, None
        if before is not None:
            now = self._drawing()
            self._draws |= before[:-1] != now[:-1]
            self._own_draw |= before[-1] != now[-1]

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if control.should_save:
            make_plain([self.trainer.optimizer], [self.trainer.lr_scheduler])
        if not self._draws and self._before:
            self._print = self._drawing()

    on_save = on_step_end

    def on_evaluate(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        if self._between:  # as in on_epoch_end
            self._set_back()
        self.on_step_end(args, state, control)
        self._after(state, control)

    on_log = on_evaluate

    def on_epoch_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.on_step_end(args, state, control)
        self._print = None
        if self._between:  # data without a length were skipped, and the hooks of the pass were called once more
            self._set_back()
        else:
            self._replaced.doubt(self._trial, self._base_loader)

    def on_train_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        args.eval_on_start |= self._evaluates
        if self._before and self._around() != self._before["around"]:
            self._trial.warn(
                f"In trial {self._trial.id} {_ADAPTERS}. So a model that is kept does not have the value of its trial: "
                f"{_NAMED}.",
                "adapters",
                once=True,
            )
        self._functions.ends()
        carried.leave(self.trainer.callback_handler.callbacks)
        carried.leave_data(self._own_data())
        self.trainer.remove_callback(self)
        self._loaded_before(None)
        self.trainer = self._loader = None
        self._generators, self._makers, self._before = {}, [], {}

    # saving

    def written(self, folder: Path) -> str | None:
        """Return the fingerprint of the weights in a checkpoint; None if they are the model's, or cannot be compared.

        Code of the program that takes part in saving may write others, such as an average.
        """
        kinds = [type(one) for one in (self.trainer, *self.trainer.callback_handler.callbacks)]
        own = [base for kind in kinds for base in own_classes(kind)]
        if self._sharded or not any(name in vars(kind) for kind in own for name in _SAVES):
            return None
        from safetensors.torch import load_file

        found: dict[str, Any] = {}
        with suppress(Exception):  # a file that the program has changed, or writes at this time
            for file in folder.glob("*.safetensors"):
                found |= load_file(file)
        pairs = [(p, found.get(n)) for n, p in self.trainer.model.named_parameters() if p.is_floating_point()]
        if any(one is None or (one.shape, one.dtype) != (p.shape, p.dtype) for p, one in pairs):
            return None
        return tensors.fingerprint_of([one for _, one in pairs])

    def write(self, folder: Path, within: bool, of_callback: Mapping[str, Any], written: str | None = None) -> None:
        """Write this rank's file into a checkpoint of the Trainer.

        within: the pass over the data has not ended. of_callback: what the trial's callback reads there. written: see
        `written`.
        """
        name = _own_file()
        found: dict[str, Any] = {"trial": dict(self._of), "ranks": torch_ranks().size, **of_callback}
        if self._before:
            earlier = self._restored.get("model", {})
            found["model"] = differences(self.trainer.model, self._before["model"], earlier)
            found["modules"] = self._of_modules.changed(own_modules(self.trainer.model), self._saved())
            found["callbacks"] = self._attributes.changed(_own_callbacks(self.trainer), self._saved())
            found["trainer"] = self._of_trainer.changed(_own_trainer(self.trainer), self._saved())
            found["data"] = self._of_data.changed(self._own_data(), self._saved())
            found["transforms"] = self._replaced.changed(self._base_loader)
            found["weights"], found["frozen"] = fingerprint(self.trainer.model), self._frozen
            if written not in (None, found["weights"]) and torch_ranks().rank == 0:
                import torch

                torch.save(self.trainer.model.state_dict(), folder / _TRAINED)
            found["groups"] = [_scalars(group) for group in self.trainer.optimizer.param_groups]
            found["loss"] = self._loss()
            before = self._before["settings"]
            set_ = {name: value for name, value in self._settings().items() if value != before.get(name)}
            found["settings"] = {**self._restored.get("settings", {}), **set_}
            found["generators"], found["owned"] = self._states(), states_of(self._owned())
            found["seed"] = getattr(self._sampler, "initial_seed", None)
            found["pass"] = self._pass if within else None
            found["devices"] = of_devices()
            if torch_ranks().size > 1 or len(found["devices"].get("cuda", [])) == 1:
                found["devices"].pop("cuda", None)  # the Trainer saves that of its own device
            with suppress(NotSupported):  # in a checkpoint of the program's; `why_not` declines a pause
                self._functions.write(folder / name, {})
        temporary = folder / f"{name}.part"  # written whole, or not
        temporary.write_text(json.dumps(found), encoding="utf-8")
        temporary.replace(folder / name)

    def why_not(self, args: Any, within: bool, passes: int, sized: bool) -> str | None:
        """Return why a training that paused now would not continue as if it had not; None if it would.

        within: the pass over the data has not ended. passes: those before it. sized: the data have a length.
        """
        trainer, optimizer = self.trainer, self.trainer.optimizer
        for callback in trainer.callback_handler.callbacks:
            for kind in type(callback).__mro__:
                if (moving := _MOVING.get(kind.__name__)) and kind.__module__.startswith("trl."):
                    return moving
        if hasattr(getattr(optimizer, "optimizer", optimizer), "optimizer_dict"):
            return (
                "a layerwise optimizer has an optimizer for each weight, and the Trainer saves none of them (leave out "
                '"_layerwise")'
            )
        present = self._present()
        accumulated = [one["settings"].get("args.gradient_accumulation_steps") for one in (present, self._before)]
        if accumulated[0] != accumulated[1]:
            return "gradient_accumulation_steps changes in training, by which the Trainer finds its place in the data"
        if present["tensors"] != self._before["tensors"]:
            return RESHAPED
        if present["groups"] != self._before["groups"]:
            return (
                "the optimizer has other parameter groups than at the start, and a new optimizer lacks them (give it "
                "all from the start)"
            )
        if (name := _not_loaded(optimizer.state)) is not None:
            return f"the optimizer has objects of {name}, which the Trainer saves and torch does not load by default"
        if self.outside:
            return (
                "the optimizer trains weights outside the model, as of a loss, which the Trainer does not save (make "
                "the loss a part of the model)"
            )
        # transformers has no public name for a model with adapters. Without it, each trial that resumes would fail
        if vars(trainer.model).get("_hf_peft_config_loaded"):
            return _OF_ADAPTERS
        if present["around"] != self._before["around"]:
            return f"{_ADAPTERS} ({_NAMED})"
        changed = [name for name, now in present["others"].items() if now != self._before["others"].get(name, now)]
        if changed:
            return plain.unsaved(changed[0].partition(".")[2], None)
        for attributes, owners in (
            (self._attributes, _own_callbacks(trainer)),
            (self._of_trainer, _own_trainer(trainer)),
            (self._of_data, self._own_data()),
        ):
            if (lost := attributes.lost(owners, self._saved())) is not None:
                return lost
        if (lost := self._functions.unsaved()) is not None:
            return lost
        models = [(trainer.model, self._before["model"])]
        if (lost := left_out(models, self._of_modules, self._saved())) is not None:
            return lost
        if within and (lost := self._of_data.changed_within(self._own_data(), self._saved(), {passes})) is not None:
            return lost
        generations = getattr(args, "steps_per_generation", None) or args.gradient_accumulation_steps
        every = generations * getattr(trainer, "num_iterations", 1)
        # TRL has no public names for them. Without them, this pause would go through and train on other completions
        if getattr(trainer, "_buffered_inputs", None) is not None and getattr(trainer, "_step", 0) % every:
            return "TRL trains several steps on the same completions, which the Trainer does not save"
        if getattr(getattr(self._loader, "base_dataloader", self._loader), "persistent_workers", False):
            return (
                "persistent workers have random states that cannot be saved (set dataloader_persistent_workers=False)"
            )
        if not sized and passes and (within or (passes > 1 and hasattr(self._loader.dataset, "set_epoch"))):
            return "its data have no length and started again, and the Trainer does not find the place in them"
        if within and args.ignore_data_skip:
            return "with ignore_data_skip=True the Trainer does not continue at its place in the data (leave it out)"
        reads_again = hasattr(self._loader.dataset, "__iter__") and not hasattr(self._loader.dataset, "__getitem__")
        drawn = self._draws or (self._own_draw and not reads_again)
        if within and (drawn or (self._drawn is not None and self._drawn.value)):
            return (
                "its data draw random numbers, which the Trainer does not repeat within an epoch (evaluate at the end "
                "of each epoch)"
            )
        return None

    def _loss(self) -> list[float]:
        """Return the training loss since the last log, and the step of that log; nothing where its loop has them.

        The Trainer has no public names for them. Without them, the first loss that it logs after a pause would leave
        out the steps before.
        """
        with suppress(AttributeError):
            return [self.trainer._tr_loss.item(), self.trainer._globalstep_last_logged]
        return []

    # what can change

    def _present(self) -> dict[str, Any]:
        """Return all that can change and is not in the Trainer's checkpoint."""
        model, optimizer = self.trainer.model, self.trainer.optimizer
        return {
            "model": extras(model),
            "others": self._others(),
            "tensors": _tensors(model),
            "groups": [len(group["params"]) for group in optimizer.param_groups],
            "around": self._around(),
            "settings": self._settings(),
        }

    def _settings(self) -> dict[str, Any]:
        """Return the numbers that no library sets within a training, so that a change is the program's."""
        trainer, kind, found = self.trainer, type(self.trainer), dict[str, Any]()
        collator = getattr(trainer.data_collator, "__dict__", {})
        for place, held, names in (
            ("args", vars(trainer.args), vars(trainer.args).keys() - {"eval_on_start"}),
            ("state", vars(trainer.state), _STEPS),
            ("data_collator", collator, collator),
            ("", vars(trainer), _assigned(kind) - _assigned(kind, within=True)),
        ):
            numbers = (name for name in names if type(held.get(name)) in (bool, int, float) and name[0] != "_")
            found |= {f"{place}.{name}": held[name] for name in numbers}
        return found

    def _around(self, trained: bool = True) -> str:
        """Return a fingerprint of what a model has around adapters of PEFT; see `_around_adapters`."""
        return tensors.fingerprint_of([] if self._sharded else _around_adapters(self.trainer.model, trained))

    @property
    def _sharded(self) -> bool:
        return bool(self.trainer.is_fsdp_enabled or self.trainer.is_deepspeed_enabled)

    @property
    def outside(self) -> bool:
        """True if the optimizer trains weights that are not of the model."""
        return bool(tensors.outside([self.trainer.model], [self.trainer.optimizer]))

    def _saved(self) -> list[Any]:
        """Return what the Trainer's checkpoint has, the Trainer, and the data, which are saved by themselves."""
        trainer, data = self.trainer, [part for _, part in self._own_data()]
        return [trainer.model, trainer.optimizer, trainer.lr_scheduler, trainer, *data]

    @property
    def _sampler(self) -> Any:
        return self._loader.get_sampler() if hasattr(self._loader, "get_sampler") else None  # of Accelerate

    @property
    def _base_loader(self) -> Any:
        return getattr(self._loader, "base_dataloader", self._loader)  # within Accelerate's

    def _own_data(self) -> list[tuple[str, Any]]:
        return own_parts(self._base_loader)

    def _others(self) -> dict[str, Any]:
        """Return fingerprints of further models and optimizers of a user's Trainer, to detect changes.

        The class of transformers sets most other attributes.
        """
        trainer, found = self.trainer, {}
        if not f"{type(trainer).__module__}.".startswith(_OWN_PACKAGES):
            known = known_of(*self._saved())
            for name, value in vars(trainer).items():
                of_torch = hasattr(value, "zero_grad") and hasattr(value, "state_dict")
                if of_torch and name not in ("model", "model_wrapped"):
                    found[f".{type(trainer).__qualname__.rpartition('.')[2]}.{name}"] = printed(value, known)
        return found

    def _set_back(self) -> None:
        """Set what a checkpoint has, after hooks that were called before it was written.

        Between two passes, set the random states, too, which the Trainer loads after the hooks of the epoch's start.
        """
        self._load_again()
        self._restore()
        if self._between:
            self.trainer._load_rng_state(self._restored["path"])

    def _loaded_before(self, checkpoint: Any) -> None:
        """Take the place of the Trainer's own method once."""
        vars(self.trainer).pop("_load_rng_state", None)

    def _load_again(self) -> None:
        """Load weights, and set rates, that hooks of the start have changed since the Trainer loaded them.

        The Trainer loads weights by a private method only. Without it, such a trial would resume from other weights.
        """
        trainer, found = self.trainer, self._restored
        if not self._sharded and fingerprint(trainer.model) != found.get("weights"):
            trainer._load_from_checkpoint(found["path"])
            if (trained := Path(found["path"], _TRAINED)).exists():
                import torch

                trainer.model.load_state_dict(torch.load(trained, map_location="cpu", weights_only=True))
        for group, before in zip(trainer.optimizer.param_groups, found.get("groups", []), strict=False):
            group.update(before)

    def _restore(self) -> None:
        trainer, found = self.trainer, self._restored
        for name, value in found.get("settings", {}).items():
            place, _, attribute = name.partition(".")
            setattr(getattr(trainer, place) if place else trainer, attribute, value)
        set_extras(trainer.model, found.get("model", {}))
        set_states(self._owned(), found.get("owned", {}))
        self._of_modules.put_back(own_modules(trainer.model), found.get("modules", {}), trainer.args.device)
        self._attributes.put_back(_own_callbacks(trainer), found.get("callbacks", {}), trainer.args.device)
        self._of_trainer.put_back(_own_trainer(trainer), found.get("trainer", {}), trainer.args.device)
        self._of_data.put_back(self._own_data(), found.get("data", {}), trainer.args.device, always=True)
        self._replaced.put_back(found.get("transforms", {}))
        records = (self._of_modules, self._attributes, self._of_trainer, self._of_data)
        warn_of_failed(self._trial, *(name for record in records for name in record.failed))

    def _states(self) -> dict[str, Any]:
        """Return the states of the generators of the data, also of those that were made since the fit started."""
        held = {id(one) for one in self._generators.values()}
        if any(maker.generator is not None and id(maker.generator) not in held for maker in self._makers):
            self._generators = generators_of(self._loader)
        return states_of(self._generators)

    def _set_generators(self, states: Mapping[str, Any]) -> None:
        self._generators = set_generators(states, self._loader)

    def _owned(self) -> dict[str, Any]:
        """Return the generators of what the Trainer has, its callbacks, model and data of evaluations among them.

        Not those of the training data, which are read again within an epoch.
        """
        trainer, of_data = self.trainer, {id(one) for one in self._generators.values()}
        callbacks = plain.numbered(trainer.callback_handler.callbacks)
        found = of_owners([("trainer", trainer), ("model", trainer.model), *callbacks])
        return {name: one for name, one in found.items() if id(one) not in of_data}

    def _drawing(self) -> Any:
        """Return the states of the generators from which data can draw."""
        import torch

        _, keys, position, *_ = np.random.get_state(legacy=True)  # noqa: NPY002 (users' code draws from it)
        own = repr(self._states()) if self._generators or self._makers else ""
        numpy = position, np.asarray(keys).tobytes()
        return random.getstate(), numpy, torch.get_rng_state().numpy().tobytes(), own


def _tensors(model: Any) -> dict[str, Any]:
    """Return the names and shapes of the tensors in a model's state."""
    if any(type(module).__name__ == tensors.FSDP1 for module in model.modules()) or any(
        hasattr(parameter, "ds_tensor") for parameter in model.parameters()
    ):  # their state is collected from all ranks, or has other shapes while it is
        return {name: type(value).__name__ for name, value in (*model.named_parameters(), *model.named_buffers())}
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def _around_adapters(model: Any, trained: bool) -> list[Any]:
    """Return the tensors of a model with adapters of PEFT that its checkpoints lack; none of other models.

    trained: those that a training changes, weights that train and buffers; otherwise weights that do not train. TRL
    merges adapters into these for vLLM, and takes them out again, which rounds them.
    """
    peft: Any = sys.modules.get("peft")
    if peft is None or not isinstance(model, peft.PeftModel):
        return []
    held = model.state_dict()
    saved = {
        tensor.data_ptr()
        for name in model.peft_config
        for tensor in peft.get_peft_model_state_dict(model, held, name, save_embedding_layers=False).values()
    }
    frozen = {name for name, one in model.named_parameters(remove_duplicate=False) if not one.requires_grad}
    # those of a prompt are computed for a checkpoint, and PEFT has replaced original modules
    apart = getattr(model.base_model, "prefix", "prompt_encoder"), "original_module"
    lacking = (one for name, one in held.items() if (name in frozen) != trained and not any(a in name for a in apart))
    tensors = (one for one in lacking if type(one).__name__ == "Tensor" and one.is_floating_point())
    return [tensor for tensor in tensors if tensor.data_ptr() not in saved]


def _not_loaded(state: Mapping[Any, Any]) -> str | None:
    """Return the class of an object in an optimizer's state that is no number, tensor or the like; None without one."""
    known = {*objects.PLAIN, bytes, list, tuple, dict}
    for held in state.values():
        for value in held.values() if isinstance(held, dict) else [held]:
            if type(value) not in known and not hasattr(type(value), "untyped_storage"):
                return type(value).__name__
    return None


def _scalars(group: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if type(value) in (bool, int, float)}


def read(checkpoint: str) -> dict[str, Any] | None:
    """Return haltune's file of a checkpoint, or None if it has none. Raises InvalidInput if it is damaged.

    It is this rank's own, because what modules and callbacks remember may differ between ranks; that of rank 0 if as
    many ranks did not write the checkpoint.
    """
    found = _read(checkpoint, FILE)
    if found is not None and found.get("ranks") == torch_ranks().size and (own := _own_file()) != FILE:
        return _read(checkpoint, own) or found
    return found


def _own_file() -> str:
    rank = torch_ranks().rank
    return OF_RANK.format(rank) if rank else FILE


def _read(checkpoint: str, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(Path(checkpoint, name).read_text(encoding="utf-8"))
        found["trial"]["id"]
        found |= {"path": checkpoint, "file": name}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise damaged(error) from error
    return found


def _own_callbacks(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the user's callbacks that do not export their state, with their names."""
    for name, callback in plain.numbered(trainer.callback_handler.callbacks):
        if not (f"{type(callback).__module__}.".startswith(_OWN_PACKAGES) or exports(callback)):
            yield name, callback


def exports(callback: Any) -> bool:
    """Return whether a callback exports its state to the Trainer's checkpoint."""
    return any(kind.__name__ == "ExportableState" for kind in type(callback).__mro__)


def _losses(trainer: Any) -> list[Any]:
    """Return the functions given to the Trainer that make its loss and its metrics; of TRL, those that make rewards."""
    rewards = getattr(trainer, "reward_funcs", None)
    functions = rewards if isinstance(rewards, (list, tuple)) else [rewards]
    names = ("compute_loss_func", "compute_metrics", "preprocess_logits_for_metrics")
    return [one for one in (*(getattr(trainer, name, None) for name in names), *functions) if one is not None]


def _own_trainer(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the Trainer with its name, if the program's class made it."""
    if not of_library(type(trainer).__module__):
        yield type(trainer).__qualname__.rpartition(".")[2], trainer


def _assigned(kind: type, within: bool = False) -> frozenset[str]:
    """Return the names of the attributes that the methods of a class's library bases assign. within: after __init__."""
    libraries = (base for base in kind.__mro__ if of_library(base.__module__))
    return frozenset().union(*(_assigned_by(base, within) for base in libraries))


@functools.cache  # of libraries alone: a program may make a class for each trial
def _assigned_by(base: type, within: bool) -> frozenset[str]:
    found: set[str] = set()

    def read(code: Any) -> None:
        found.update(step.argval for step in dis.get_instructions(code) if step.opname == "STORE_ATTR")
        for inner in code.co_consts:
            if inspect.iscode(inner):
                read(inner)

    for value in (value for name, value in vars(base).items() if not (within and name == "__init__")):
        for method in (value, *(getattr(value, name, None) for name in ("fset", "fget", "__func__"))):
            if inspect.isfunction(method := inspect.unwrap(method) if callable(method) else None):
                read(method.__code__)
    return frozenset(found)


class _Watched:
    """The two functions that a loader calls in a worker process, watching whether random numbers are drawn there.

    Neither torch nor the Trainer has a hook in a worker. Without them, a trial whose data draw random numbers there
    would pause within a pass, and resume with others.
    """

    def __init__(self, loader: Any) -> None:
        self.drawn: Any = Value("b", False)
        self._starts, self._batches = loader.worker_init_fn, loader.collate_fn
        self._generators: dict[str, Any] = {}
        self._before: Any = None
        loader.worker_init_fn, loader.collate_fn = self.start, self

    def start(self, worker: int) -> None:
        import torch

        if self._starts is not None:
            self._starts(worker)
        self._generators = generators_in(torch.utils.data.get_worker_info().dataset, self._batches)
        self._before = self._now()

    def __call__(self, rows: Any) -> Any:
        batch = self._batches(rows)
        if self._before is not None and not self.drawn.value and self._now() != self._before:
            self.drawn.value = True
        return batch

    def _now(self) -> str:
        return repr((capture(), states_of(self._generators)))
