"""State that Lightning leaves out of its checkpoints: what a fit changes in its objects except weights and optimizers.

A fit may unfreeze layers, set a layer to evaluation, lower a dropout rate, or count in an attribute; no state_dict has
these. A `Snapshot` at the start of a fit has what the fit itself sets, so that only later changes are saved: trainable
flags; attributes with plain data (see `haltune.callbacks.objects`) of modules, hyperparameters, the data module, the
loaders, and callbacks without a state_dict; buffers that are not persistent; and gradients of manual optimization. So
are those of objects that these hold: of the program's with a model or an optimizer, and schedules and scalers.
"""

from __future__ import annotations

import hashlib
import pickle
from collections import deque
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from haltune._utils.around import of_library, of_program
from haltune.display import one_line
from haltune.errors import NotSupported
from haltune.ranks import Group
from haltune.study import Trial

from .. import objects, plain, tensors
from ..changes import Replaced, has_copy, is_own, is_time, set_again, set_buffers, tensors_in, unsaved_buffers
from .checks import leaves, loader_parts, of_lightning, ranks_of
from .internals import metrics_to_reset, modes_before_validation
from .resuming import frozen, unused

_OF_TRAINER = ("accumulate_grad_batches", "gradient_clip_val", "gradient_clip_algorithm")
_CONFIGURED = ("module.", "hparams", "datamodule", "datamodule.hparams")  # what Lightning's Tuner sets
_SCALARS = (type(None), bool, int, float, str)
_HELD = "held."  # before the names of owners that others hold
_FEW = 100  # elements of a list that is looked into

Owner = tuple[str, dict[str, Any], Callable[[str, Any], object]]  # name, attributes, how to set one


class Snapshot:
    """The attributes of the objects of a trial's fit at its start.

    before: the marks before the hooks of its start. A resumed fit calls them again, so what they set is a change.
    early: the names of what `prepare` has set, by owner.
    """

    def __init__(
        self, trainer: Any, trial: int, before: Mapping[str, Mapping[str, str]], early: Mapping[str, Container[str]]
    ) -> None:
        self._marks = marked(trainer)
        self._copies: list[str] = []
        modules = trainer.lightning_module.named_modules()
        theirs = {f"module.{name}" for name, part in modules if of_library(type(part).__module__)}
        for owner, held, _ in _all_owners(trainer):
            marks = self._marks[owner]
            earlier = before.get(owner, marks)
            for name, value in held.items():
                is_set = name != "training" and marks[name] != earlier.get(name) and not is_time(value)
                is_set &= not _is_data(owner) or isinstance(value, _SCALARS)  # other data are made again
                is_set |= name in early.get(owner, ())
                if plain.is_data(marks[name]):
                    if not (owner in theirs or _is_data(owner)):
                        plain.note(value, trial, marks[name])
                    marks[name] = f"{plain.SET}{marks[name]}" if is_set else marks[name]
                elif is_set and has_copy(value, [trainer.lightning_module]):
                    self._copies.append(_called(owner, name))
        self._frozen = frozen(trainer.lightning_module)
        self._held = _held_weights(trainer, self._marks)
        self._parts = dict(data_parts(trainer))
        self._made_again: set[str] = set()  # owners that the program makes for each epoch, of loaders
        self._numbers = _numbers_of_data(trainer)  # when the present epoch started
        self._replaced = Replaced()
        self._replaced.see(*leaves(trainer.train_dataloader))

    def epoch_starts(self, trainer: Any) -> None:
        """Note the data of an epoch: a change while they are read, and those that the program has made for it."""
        self._numbers = _numbers_of_data(trainer)
        before, self._parts = self._parts, dict(data_parts(trainer))
        if made := {name for name, part in self._parts.items() if before.get(name) is not part}:
            self._made_again |= made
            self._marks |= marked(trainer, made)

    def put_back(self, found: Mapping[str, Any]) -> None:
        """Note what `changes` returned in an earlier attempt, as far as it cannot be set."""
        self._replaced.put_back(found.get("transforms", {}))

    def epoch_ends(self, trainer: Any, trial: Trial) -> None:
        """Warn if the first epoch after a pause was trained with other transforms than those at the pause."""
        self._replaced.doubt(trial, *leaves(trainer.train_dataloader))

    def check(self, trainer: Any) -> None:
        """Raise NotSupported if an object that no checkpoint has holds weights which the fit has changed, or data."""
        for owner, held, _ in _owners(trainer):
            _, lost, _ = plain.changes(held, self._marks.get(owner, {}), tensors=not _is_data(owner))
            for name in lost:
                raise NotSupported(plain.unsaved(_called(owner, name), held[name]))
            for name, value in held.items():
                if _has_environment(value):
                    raise NotSupported(f"no checkpoint has the state of the environment in {_called(owner, name)}")
        for called in self._copies:
            raise NotSupported(plain.copied(called))
        for name, weights in _held_weights(trainer, self._marks).items():
            if weights != self._held.get(name):
                raise NotSupported(
                    f"{name} changes in training and holds weights, which no checkpoint has: save it in "
                    "on_save_checkpoint and load it in on_load_checkpoint, or make it a part of the module"
                )

    def not_within(self, trainer: Any) -> str | None:
        """Return why the data of this fit cannot be read again from the start of an epoch; None if they can."""
        for owner, held, _ in _owners(trainer):
            if owner.startswith("train."):
                changed, _, _ = plain.changes(held, self._marks.get(owner, {}))
                if any(not isinstance(held[name], _SCALARS) for name in changed):
                    return plain.READ_AGAIN
        return None if _numbers_of_data(trainer) == self._numbers else plain.READ_AGAIN

    def changes(self, trainer: Any, small: bool = False) -> dict[str, Any]:
        """Return what changed, as primitives and tensors. small: leave out what is large."""

        def copied(tensors: dict[str, Any]) -> dict[str, Any]:
            large = small and sum(t.nbytes for t in tensors.values()) > objects.SMALL
            return {} if large else {name: tensor.cpu() for name, tensor in tensors.items()}

        module = trainer.lightning_module
        modes, shared = modes_before_validation(trainer), tensors.storages(module)
        attributes = {}
        metrics = metrics_to_reset(trainer) if small else ()
        left_out = {f"module.{name}" for name, part in module.named_modules() if id(part) in metrics}
        for owner, held, _ in _all_owners(trainer):
            # a resumed fit has no object that another one holds only later
            if owner in left_out or (owner.startswith(_HELD) and owner not in self._marks):
                continue
            if "training" in held and owner in modes:
                held["training"] = modes[owner]
            how = {"weights": () if _is_data(owner) else shared, "tensors": not _is_data(owner), "small": small}
            changed, _, _ = plain.changes(held, self._marks.get(owner, {}), **how)
            if changed and owner not in self._made_again:
                attributes[owner] = changed
        now_frozen = frozen(module)
        found = {
            "attributes": attributes,
            "frozen": sorted(now_frozen) if now_frozen != self._frozen else None,
            "buffers": copied(dict(unsaved_buffers(module))),
            "gradients": {},
            "transforms": self._replaced.changed(*leaves(trainer.train_dataloader)),
        }
        if not module.automatic_optimization:  # the module may use them in a later step
            found["gradients"] = copied({n: p.grad for n, p in module.named_parameters() if p.grad is not None})
        return found


def marked(trainer: Any, of: Container[str] | None = None, data: bool = True) -> dict[str, dict[str, str]]:
    """Return marks of the attributes: owner -> name -> mark. of: these owners; None: all. data: also the data."""
    found = {}
    for owner, held, _ in _all_owners(trainer):
        of_data = _is_data(owner)
        if (of is None or owner in of) and (data or not of_data):
            found[owner] = {name: plain.mark(value, tensors=not of_data) for name, value in held.items()}
    return found


def prepare(trainer: Any, found: Mapping[str, Any], whole: bool) -> dict[str, set[str]]:
    """Set the part of `put_back` from which a program makes loaders: the data module's, and numbers of the module.

    Return the names by owner. whole: at the start of an epoch; within one, a data module may load that part itself.
    """
    names: dict[str, set[str]] = {}
    data = trainer.datamodule is not None and (whole or of_lightning(trainer.datamodule.load_state_dict))
    for owner, held, put in list(_owners(trainer)):
        for name, state in found["attributes"].get(owner, {}).items() if owner in _CONFIGURED else ():
            if data if owner.startswith("datamodule") else isinstance(state, _SCALARS):
                with suppress(NotSupported):  # built otherwise in this attempt
                    put(name, objects.put_back(state, held.get(name), trainer.lightning_module.device))
                    names.setdefault(owner, set()).add(name)
    return names


def put_back(trainer: Any, found: Mapping[str, Any], trial: int, made: bool = False) -> list[str]:
    """Set what `Snapshot.changes` returned in an earlier attempt of a trial; return the names of what cannot be set.

    made: the loaders of this epoch are made after `prepare`, which may have changed the data module.
    """
    module, failed = trainer.lightning_module, []
    for owner, held, put in list(_all_owners(trainer)):
        if made and owner.startswith("datamodule"):
            continue
        for name, state in found["attributes"].get(owner, {}).items():
            if not _is_data(owner) and plain.is_shared(held.get(name), state, trial):
                continue
            try:
                put(name, objects.put_back(state, held.get(name), module.device))
            except Exception as error:  # built otherwise in this attempt, or another library's object refuses its state
                if not (isinstance(error, NotSupported) or owner.startswith(_HELD)):
                    raise
                failed.append(_called(owner, name))
    for loader in leaves(trainer.train_dataloader):  # Lightning has set the present epoch of these before
        for name, part in loader_parts(loader):
            if name in ("sampler", "batches.sampler") and hasattr(part, "set_epoch"):
                part.set_epoch(trainer.current_epoch)
    parameters = dict(module.named_parameters())
    if found["frozen"] is not None:
        for name, parameter in parameters.items():
            parameter.requires_grad_(name not in found["frozen"])
    set_buffers(module, found["buffers"])
    for name, gradient in found["gradients"].items():
        if name in parameters:
            parameters[name].grad = gradient.to(parameters[name].device, copy=True)
    return failed


def own_states(trainer: Any, ranks: Group) -> dict[str, Any]:
    """Return this rank's states of the program's callbacks that differ from those of rank 0. Every rank calls this."""
    if ranks.alone:
        return {}
    own = [c for _, c in _others(trainer) if not (of_lightning(type(c)) or of_lightning(c.state_dict))]
    states, marks, error = dict[str, Any](), dict[str, str](), None
    try:
        states = {callback.state_key: callback.state_dict() for callback in own}
        marks = {key: hashlib.blake2b(pickle.dumps(state)).hexdigest() for key, state in states.items()}
    except Exception as raised:  # the other ranks would wait for this one
        error = one_line(raised)
    found = ranks.gather((marks, error))
    for _, failed in found:
        if failed is not None:
            raise NotSupported(f"the state_dict of a callback cannot be saved on each rank: {failed}")
    return {key: state for key, state in states.items() if marks[key] != found[0][0].get(key)}


def numbers(trainer: Any) -> dict[str, Any]:
    """Return the numbers of the module, the data module and their hyperparameters, by owner/name."""
    held = [(owner, values) for owner, values, _ in _owners(trainer) if owner in _CONFIGURED]
    return {f"{owner}/{n}": v for owner, values in held for n, v in values.items() if type(v) in (int, float)}


def set_numbers(trainer: Any, found: Mapping[str, Any]) -> None:
    """Set what `numbers` returned."""
    for owner, _, put in list(_owners(trainer)):
        for place, value in found.items():
            if place.rpartition("/")[0] == owner:
                put(place.rpartition("/")[2], value)


def _all_owners(trainer: Any) -> Iterator[Owner]:
    """Yield `_owners`, and after each one the objects that it holds, which are no plain data.

    On one rank alone: every rank would send the others its whole average.
    """
    alone = ranks_of(trainer).alone
    saved = {id(one) for one in (*trainer.optimizers, *(config.scheduler for config in trainer.lr_scheduler_configs))}
    for owner, held, put in _owners(trainer):
        yield owner, held, put
        if alone and not _is_data(owner):
            yield from _inner(owner, held, saved)


def _inner(owner: str, held: Mapping[str, Any], saved: Container[int], depth: int = 2) -> Iterator[Owner]:
    """Yield the objects in attributes that are no plain data, and have some: of the program's, or by a state_dict."""
    for name, value in held.items():
        if type(value) in objects.PLAIN:
            continue
        place, items = _place(owner, name), [("", value)]  # names and values
        if isinstance(value, (list, tuple, dict)) and len(value) <= _FEW:
            items = [(f".{key}", one) for key, one in (value.items() if isinstance(value, dict) else enumerate(value))]
        for key, one in items:
            if of_program(type(one)):
                inner = objects.attributes_of(one)
                if depth and any(_with_state(part) or hasattr(part, "named_parameters") for part in inner.values()):
                    yield f"{place}{key}", inner, partial(object.__setattr__, one)
                    yield from _inner(f"{place}{key}", inner, saved, depth - 1)
            elif _with_state(one) and not (id(one) in saved or _is_part(one)):
                state: dict[str, Any] = {}
                with suppress(Exception):  # of an object that cannot have one
                    state = {k: v for k, v in one.state_dict().items() if all(t.numel() == 1 for t in tensors_in(v, 3))}
                yield f"{place}{key}", state, partial(_load, one)


def _place(owner: str, name: str) -> str:
    """Return the name of an owner that an attribute of another one holds."""
    return f"{owner if owner.startswith(_HELD) else _HELD + owner.rstrip('.')}.{name}"


def _with_state(value: Any) -> bool:
    """Return whether a value has a state_dict, and is no loader."""
    kind = type(value)
    return callable(getattr(kind, "load_state_dict", None)) and not hasattr(kind, "__iter__")


def _is_part(value: Any) -> bool:
    """Return whether a value is a model, or of a class that Lightning saves."""
    return hasattr(value, "named_parameters") or any(map(of_lightning, type(value).__mro__))


def _load(value: Any, name: str, state: Any) -> None:
    value.load_state_dict(value.state_dict() | {name: state})


def _owners(trainer: Any) -> Iterator[Owner]:
    """Yield all objects of a fit whose attributes may change in it; a data module and loaders with scalars only."""
    import torch

    module, datamodule = trainer.lightning_module, trainer.datamodule
    base = next(kind for kind in type(module).__mro__ if kind.__name__ == "LightningModule")
    theirs = vars(torch.nn.Module()).keys() - {"training"}
    for name, part in module.named_modules():
        hidden = theirs | (vars(base()).keys() - {"training"} if part is module else set())
        yield f"module.{name}", {n: v for n, v in vars(part).items() if n not in hidden}, partial(setattr, part)
    yield "hparams", dict(module.hparams), module.hparams.__setitem__
    if datamodule is not None:
        yield "datamodule.hparams", dict(datamodule.hparams), datamodule.hparams.__setitem__
    yield "trainer", {name: getattr(trainer, name) for name in _OF_TRAINER}, partial(setattr, trainer)
    for owner, callback in _without_state(trainer):
        yield owner, dict(vars(callback)), partial(setattr, callback)
    for owner, callback in _others(trainer):  # a LambdaCallback has functions
        for name, function in vars(callback).items():
            if variables := objects.variables_of(function):
                held = {variable: value for variable, (value, _) in variables.items()}
                yield f"{owner}.{name}", held, partial(_set_variable, variables)
    data = [] if datamodule is None else [("datamodule", datamodule)]
    for name, part in (*data, *data_parts(trainer)):
        own, again = is_own(part, name), set_again(part)
        held = {n: v for n, v in vars(part).items() if own or n == again or (isinstance(v, _SCALARS) and n[:1] != "_")}
        yield name, held, partial(setattr, part)


def data_parts(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of the training loaders: samplers, and data sets with those that they wrap."""
    for i, loader in enumerate(leaves(trainer.train_dataloader)):
        yield from ((f"train.{i}.{name}", part) for name, part in loader_parts(loader) if part is not loader)


def _numbers_of_data(trainer: Any) -> dict[str, Any]:
    """Return the scalars of the data that train, by owner."""
    return {
        owner: {name: value for name, value in held.items() if isinstance(value, _SCALARS)}
        for owner, held, _ in _owners(trainer)
        if owner.startswith("train.")
    }


def _held_weights(trainer: Any, owners: Container[str]) -> dict[str, str]:
    """Return fingerprints of the weights that attributes hold next to those of the module: models, optimizers.

    owners: those whose attributes are saved.
    """
    module, known = trainer.lightning_module, _known(trainer)
    hooked = {n for n, c in _without_state(trainer) if not (unused(c.on_save_checkpoint) and unused(c.state_dict))}
    saves = not of_lightning(module.on_save_checkpoint)  # perhaps what has a state_dict
    found = {}
    for owner, held, _ in _owners(trainer):
        for name, value in () if owner in hooked else held.items():
            itself = saves and owner == "module." and callable(getattr(type(value), "state_dict", None))
            if itself or type(value) in objects.PLAIN:
                continue
            parts = {name: value}
            if is_owner := of_program(type(value)) and _place(owner, name) in owners:
                parts = {f"{name}.{key}": one for key, one in objects.attributes_of(value).items()}
            for place, one in parts.items():
                weights = [*_weights_in(one, known, 3 - is_owner)]
                if weights and not plain.is_data(plain.mark(one, tensors=True)):
                    found[_called(owner, place)] = tensors.fingerprint_of(weights)
    return found


def _known(trainer: Any) -> set[int]:
    """Return the ids of the tensors of the module and of its optimizers, and of these."""
    module = trainer.lightning_module
    states = (state for optimizer in trainer.optimizers for state in optimizer.state.values())
    tensors = (tensor for state in states if isinstance(state, Mapping) for tensor in state.values())
    return {id(one) for one in (*module.parameters(), *module.buffers(), *trainer.optimizers, *tensors)}


def holds_average(trainer: Any) -> bool:
    """Return whether the module holds tensors like all weights that train, and does not save any by itself."""
    module, known = trainer.lightning_module, _known(trainer)
    trained = {p.shape for p in module.parameters() if p.requires_grad}
    held = (value for owner, of, _ in _owners(trainer) if owner.startswith("module.") for value in of.values())
    return of_lightning(module.on_save_checkpoint) and any(
        trained and trained <= {t.shape for t in _weights_in(value, known, 3)} for value in held
    )


def _called(owner: str, name: str) -> str:
    """Return how an attribute is called in messages."""
    inner = owner.removeprefix(_HELD).removeprefix("callback.").removeprefix("train.").partition(".")[2]
    return f"{inner or owner.rstrip('.')}.{name}"


def _is_data(owner: str) -> bool:
    """Return whether an owner is of the data. Its tensors are rows, and no other trial collects there."""
    return owner == "datamodule" or owner.startswith("train.")


def _weights_in(value: Any, known: set[int], depth: int) -> Iterator[Any]:
    """Yield the tensors in a value that no computation of this step made."""
    if id(value) in known or not depth:
        return
    if hasattr(value, "untyped_storage"):
        yield from [value] if value.is_leaf else []
    elif hasattr(value, "named_parameters"):
        yield from (t for t in (*value.parameters(), *value.buffers()) if id(t) not in known)
    elif hasattr(value, "zero_grad") and hasattr(value, "state_dict"):  # an optimizer
        yield from _weights_in(value.state_dict()["state"], known, depth + 2)
    elif isinstance(value, (list, tuple, deque, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _weights_in(one, known, depth - 1)
    elif of_program(type(value)):
        for one in objects.attributes_of(value).values():
            yield from _weights_in(one, known, depth - 1)
    elif of_lightning(type(value)):
        return  # it has the scores of models, as tensors
    elif callable(getattr(type(value), "state_dict", None)) and not hasattr(type(value), "__iter__"):  # no loader
        with suppress(Exception):  # of an object that cannot have one
            yield from _weights_in(value.state_dict(), known, depth)


def _has_environment(value: Any, depth: int = 2) -> bool:
    """Return whether a value is an environment of Gymnasium, or an object of the program that holds one."""
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(value).__mro__}
    if kinds & {(package, name) for package in ("gymnasium", "gym") for name in ("Env", "VectorEnv")}:
        return True
    inner = objects.attributes_of(value).values() if depth and of_program(type(value)) else ()
    return any(_has_environment(one, depth - 1) for one in inner)


def _without_state(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the program's own callbacks whose classes define no state_dict, with their names."""
    for owner, callback in _others(trainer):
        if not of_lightning(type(callback)) and of_lightning(callback.state_dict):
            yield owner, callback


def _others(trainer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the callbacks that are not haltune's, with their names."""
    others = [c for c in trainer.callbacks if type(c).__module__.partition(".")[0] != "haltune"]
    yield from ((f"callback.{name}", callback) for name, callback in plain.numbered(others))


def _set_variable(variables: Mapping[str, Any], name: str, value: Any) -> None:
    if name in variables:
        variables[name][1](value)
