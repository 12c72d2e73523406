"""Changes in a training other than those of the weights, to save them or to report that they cannot be saved.

`Attributes` follows the attributes of the program's objects, such as callbacks. `extras` returns what a torch
model holds that is not in its state_dict. `fingerprint` shows whether weights are others.
"""

from __future__ import annotations

import datetime
import functools
import itertools
import re
import time
import types
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from haltune._utils.around import of_library, of_program
from haltune._utils.code import assigned, loaded, mentioned, set_first
from haltune._utils.generators import is_generator, set_states, states_of
from haltune._utils.own_generators import generators_in
from haltune.errors import NotSupported
from haltune.study import Trial

from . import objects, plain, tensors
from .reporter import digest
from .tensors import fingerprint_of

_LIBRARIES = ("transformers", "trl", "accelerate", "datasets", "haltune", "torch", "fastai", "fastcore")
# whose samplers draw a new order in each pass, or continue by an epoch's number or a generator, which loops save
_OF_SAMPLERS = (*_LIBRARIES, "lightning", "pytorch_lightning", "lightning_fabric", "sentence_transformers", "torchdata")
_OF_TORCH = ("training", "call_super_init", "_is_full_backward_hook")
# "_sampler": in the data set of a sampler that Lightning distributes; without it, its order would be lost
_OF_DATA = (
    "dataset", "sampler", "batch_sampler", "_sampler", "data_source", "collate_fn", "data_collator", "transform",
    "transforms", "target_transform",
)  # fmt: skip
_TRANSFORMS = ("transform", "transforms", "target_transform", "collate_fn", "data_collator")
_SET_AGAIN = {"WeightedRandomSampler": "weights", "SubsetRandomSampler": "indices", "Subset": "indices"}
_MINUTE = 60.0  # seconds in which a fit starts
_MAKE = "Define the classes of such objects at the top of a module, or make the objects before each attempt trains."
_AGAIN = "Let your program set it in each epoch from then on, such as if epoch >= 5: and not if epoch == 5:."

RESHAPED = (
    "the model has other parameters or buffers than at the start, and a new model lacks them (build them before the "
    "training)"
)

Found = Mapping[str, Mapping[str, Any]]
Owners = Iterable[tuple[str, Any]]


class Attributes:
    """Record of the attributes of a program's objects, to detect changes since they were first seen.

    Of all methods: owners are the objects with their names; saved are the models and optimizers of the checkpoint.
    trial: of the fit. skip: names of attributes that frameworks set. hook: the method that frameworks call at the start
    of each fit, also of a resumed one. What it sets is part of the state. data_alone: other objects may change: a
    module may hold what its last forward pass computed.
    """

    def __init__(self, trial: int, *skip: str, hook: str = "", data_alone: bool = False) -> None:
        self._trial, self._skip, self._hook, self._data_alone = trial, skip, hook, data_alone
        self._copies: set[str] = set()  # names of what the hook has set, with a copy of the weights at the start
        self._seen: set[str] = set()  # names of objects
        self._marks: dict[str, str] = {}
        self._prints: dict[str, Any] = {}  # prints of what is not data
        self._states: dict[str, Any] = {}  # states that earlier attempts changed
        self._put: set[str] = set()  # names of the states that were restored
        self._at_pass: dict[str, Any] = {}  # numbers and texts as the present pass over the data started
        self.failed: list[str] = []  # names of those that could not be

    def see(self, owners: Owners, saved: Iterable[Any]) -> None:
        """Note the present attributes of objects that were not seen before; later ones count as changes."""
        new, saved = [(place, owner) for place, owner in owners if place not in self._seen], [*saved]
        self._seen |= {place for place, _ in new}
        set_by_hook, weights, known = self._set_by_hook(new), _storages(saved), known_of(*saved)
        for name, value in self._values(new).items():
            self._marks[name] = mark = plain.mark(value, weights=weights)
            if plain.is_data(mark):
                if name not in self._put:
                    plain.note(value, self._trial, mark)
                if name in set_by_hook:
                    self._marks[name] = f"{plain.SET}{mark}"
                continue
            if not (plain.is_large(mark) or self._data_alone):
                self._prints[name] = printed(value, known)
            if name in set_by_hook and has_copy(value, saved):
                self._copies.add(name)

    def changed(self, owners: Owners, saved: Iterable[Any]) -> dict[str, Any]:
        """Return the states of plain data that changed, in earlier attempts too."""
        states, _, _ = plain.changes(self._values(owners), self._marks, weights=_storages(saved))
        for name, earlier in self._states.items():
            if isinstance(earlier, dict):  # its start is that of the trial, not of this attempt
                plain.started(states.get(name), earlier.get("start"))
        return self._states | states

    def pass_starts(self, owners: Owners) -> None:
        """Note the numbers and texts of data, before a pass over them reads one."""
        self._at_pass = {name: value for name, value in self._values(owners).items() if type(value) in objects.PLAIN}

    def changed_within(self, owners: Owners, saved: Iterable[Any], passes: Container[int]) -> str | None:
        """Return why a pause within a pass loses a change of data.

        None if only generators changed, which loops save, numbers that loaders set again by set_epoch, or numbers
        before the pass started. passes: the numbers of the present passes.
        """
        values = self._values(owners := [*owners])
        again = {f"{place}.{name}" for place, owner in owners for name in set_by_epoch(type(owner))}
        for name in self.changed(owners, saved):
            value = values.get(name)
            before = name in self._at_pass and type(value) in objects.PLAIN and value == self._at_pass[name]
            if not (before or is_generator(value) or (name in again and type(value) is int and value in passes)):
                return plain.READ_AGAIN
        return None

    def lost(self, owners: Owners, saved: Iterable[Any]) -> str | None:
        """Return the message about an attribute that changed and cannot be saved; its place without the first part.

        Of a library's sampler, data and iterators count alone: it may hold a data set, which fills a cache.
        """
        values, saved = self._values(owners := [*owners]), [*saved]
        weights, known = _storages(saved), known_of(*saved)
        computed = _computed(owners) if self._data_alone else ()
        samplers = {place for place, owner in owners if is_library_sampler(owner, place)}
        for name, value in values.items():
            mark, before = plain.mark(value, weights=weights), self._marks.get(name)
            if plain.is_data(mark) or plain.is_large(mark):
                lost = mark != before and (plain.is_large(mark) or plain.is_made_late(value, before))
                lost = lost and name not in computed
            elif self._data_alone:
                lost = False
            else:
                now = printed(value, known)
                new = now is not None and _trains(value)  # a model, an optimizer or a tensor of its own
                trained = new if before is None else now != self._prints.get(name, "")
                lost = objects.under_way(value) or (trained and name.rpartition(".")[0] not in samplers)
            if lost:
                return plain.unsaved(_called(name), value)
            if name in self._copies:
                return plain.copied(_called(name))
        return None

    def put_back(self, owners: Owners, states: Mapping[str, Any], device: Any = None, always: bool = False) -> None:
        """Set what `changed` returned in an earlier attempt; what was built otherwise is in `failed`.

        always: also what fits of other trials hold, because it is not what a program collects of them: data.
        """
        self._states, self.failed = dict(states), []
        there = dict(owners)
        for name, state in states.items():
            place, _, attribute = name.rpartition(".")
            if (owner := there.get(place)) is None:
                continue
            value = vars(owner).get(attribute)
            own = always or name in self._put  # a hook that was called once more has changed it since
            if own or not plain.is_shared(value, state, self._trial):
                try:
                    setattr(owner, attribute, objects.put_back(state, value, device))
                    self._put.add(name)
                except NotSupported:
                    self.failed.append(_called(name))

    def _set_by_hook(self, owners: Owners) -> set[str]:
        """Return the names of the attributes that the start of a fit sets, by the code of its hook.

        The attributes before the start are not known, because callbacks may come before haltune's. Left out are times,
        which a resumed fit takes again.
        """
        found = set()
        for place, owner in owners if self._hook else ():
            sets, names = mentioned(type(owner), (self._hook,), assigned), mentioned(type(owner), (self._hook,))
            for name, value in vars(owner).items():
                number = value is None or isinstance(value, (bool, int, float, str))
                if name in (sets if number else names) - {*self._skip} and not is_time(value):
                    found.add(f"{place}.{name}")
        return found

    def _values(self, owners: Owners) -> dict[str, Any]:
        return {
            f"{place}.{name}": value
            for place, owner in owners
            for name, value in objects.held_by(owner, self._skip).items()
            if set_again(owner) in (None, name) or type(value) in objects.PLAIN
        }


def _called(name: str) -> str:
    """Return the name of an attribute for messages, without the number of its owner."""
    number, _, called = name.partition(".")
    return name.partition("/")[2].replace("/", ".").lstrip(".") or (called if number.isdecimal() else name)


def warn_of_failed(trial: Trial, *failed: str, advice: str = _MAKE) -> None:
    """Warn of what a resumed trial does not have as at the pause. failed: names of attributes, or of others."""
    if failed:
        trial.warn(
            f"Trial {trial.id} has resumed, but {', '.join(failed)} could not be restored as at the pause, so it "
            f"does not train as it would have without the pause. {advice}",
            advice,
            once=True,
        )


def of_modules(trial: int) -> Attributes:
    """Return a record of the attributes of `own_modules`, without those that torch gives each module."""
    import torch

    return Attributes(trial, *vars(torch.nn.Module()), data_alone=True)


def clocks() -> tuple[float, float, float]:
    """Return the present times of the clocks that a program may read at the start of a fit."""
    return time.time(), time.monotonic(), time.perf_counter()


def is_time(value: Any, since: tuple[float, float, float] | None = None) -> bool:
    """Return whether a value is a time of one of the `clocks`, or of day, since an earlier one. Default: a minute."""
    if isinstance(value, datetime.datetime):
        with suppress(ValueError, OverflowError, OSError):  # years that no clock has
            value = value.timestamp()
    if type(value) not in (int, float):
        return False
    now = clocks()
    return any(start <= value <= end for start, end in zip(since or (t - _MINUTE for t in now), now, strict=True))


def set_by_epoch(kind: type) -> set[str]:
    """Return the names of the attributes that set_epoch of a class sets, and no other method after its __init__."""
    others = tuple(name for name in dir(kind) if name not in ("__init__", "set_epoch"))
    by_epoch, by_others = (mentioned(kind, names, assigned, libraries=True) for names in (("set_epoch",), others))
    return by_epoch - by_others


def _computed(owners: list[tuple[str, Any]]) -> set[str]:
    """Return the attributes of modules that their forward computes, and no forward reads from an earlier pass."""

    def earlier(code: types.CodeType) -> set[str]:
        return loaded(code) - (set_first(code) if code.co_name == "forward" else set())

    sets = {type(owner): mentioned(type(owner), ("forward",), assigned) for _, owner in owners}
    reads = {name for kind in sets for name in mentioned(kind, ("forward",), earlier)}
    return {f"{place}.{name}" for place, owner in owners for name in sets[type(owner)] - reads}


def has_copy(value: Any, saved: Iterable[Any]) -> bool:
    """Return whether a value has a copy of weights of these models, as a tensor, an array or a model.

    Weights that are constant do not count, because others may be so, too.
    """
    weights = [w for part in saved if hasattr(part, "named_parameters") for w in tensors.weights(part)]
    storages = {*map(tensors.storage, weights)}
    others = [t for t in tensors_in(value, 3) if tensors.storage(t) not in storages]
    copied = {fingerprint_of([weight]) for weight in weights if _varies(weight)} if others else set()
    return any(_varies(t) and fingerprint_of([t]) in copied for t in others)


def _varies(tensor: Any) -> bool:
    flat = tensors.local(tensor).reshape(-1)
    return len(flat) > 1 and bool((flat != flat[0]).any())


def tensors_in(value: Any, depth: int) -> Iterator[Any]:
    """Yield the tensors and arrays in a value: lists, dicts, models, objects of the program, to a depth."""
    if hasattr(type(value), "untyped_storage"):
        yield value
    elif isinstance(value, np.ndarray) and value.dtype.kind == "f":
        import torch

        yield torch.tensor(value)
    elif _is_module(value):
        yield from value.parameters()
    elif depth:
        inner: Iterable[Any] = ()
        if isinstance(value, (list, tuple, dict)):
            inner = value.values() if isinstance(value, dict) else value
        elif of_program(type(value)):
            inner = objects.attributes_of(value).values()
        for one in inner:
            yield from tensors_in(one, depth - 1)


def _is_module(value: Any) -> bool:
    """Return whether it is a module of torch. A dict with __getattr__ = dict.get has any attribute."""
    return hasattr(value, "named_parameters") and not isinstance(value, dict)


def _storages(saved: Iterable[Any]) -> set[int]:
    return {place for part in saved if hasattr(part, "named_parameters") for place in tensors.storages(part)}


def known_of(*saved: Any) -> set[int]:
    """Return the ids of models, optimizers and what trains them, of what is in them and of what they wrap."""
    known: set[int] = set()
    for part in saved:
        inner = [getattr(part, name, None) for name in ("optimizer", "scheduler", "opt", "module")]
        known |= {id(one) for one in (part, *inner) if one is not None}
        known |= {id(t) for t in (*part.parameters(), *part.buffers())} if hasattr(part, "named_parameters") else set()
    return known


def printed(value: Any, known: set[int], depth: int = 3) -> Any:
    """Return a fingerprint of an object, to detect changes: a sample of its tensors, and its numbers; None without any.

    known: ids of the objects that the checkpoint has: see `known_of`.
    """
    if value is None or type(value) in (bool, int, float, str):
        return repr(value)
    if id(value) in known:
        return None
    if hasattr(type(value), "untyped_storage"):
        return fingerprint_of([value])
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.dtype.hasobject else plain.mark(value)  # it may be a file of any size
    if _is_module(value):
        tensors = [t for t in (*value.parameters(), *value.buffers()) if id(t) not in known]
        return fingerprint_of(tensors) if tensors else None  # a module around the model may have weights of its own
    if not depth or callable(value):
        return None
    if isinstance(value, dict):
        return len(value), {repr(key): printed(inner, known, depth - 1) for key, inner in _few(value.items())}
    if isinstance(value, (list, tuple, set, frozenset)) or type(value).__name__ == "deque":
        return len(value), [printed(inner, known, depth - 1) for inner in _few(value)]
    if callable(getattr(type(value), "state_dict", None)):  # an optimizer, a schedule
        with suppress(Exception):  # loaders of Accelerate have none, and raise
            return printed(value.state_dict(), known, 5)
        return None
    if type(value).__module__.split(".")[0] in _LIBRARIES or objects.is_showing(value):
        return None
    if hasattr(value, "iloc"):
        return of_table(value)
    generators = repr(states_of(generators_in(value, code=False)))
    inner = getattr(value, "__dict__", {}).items()
    whole = generators, {k: printed(None if objects.is_opened(value, k, v) else v, known, depth - 1) for k, v in inner}
    if not of_library(type(value).__module__) or objects.has_state(value):
        return whole
    return _OfLibrary(value, whole, {"generators": generators, **_state_in(value, known, depth)})


class _OfLibrary:
    """Print of a library's object. While it is the same object, only what it holds of a training counts.

    Such an object counts what it shows, and keeps what it has read or computed: numbers change and arrays appear.

    whole: its print as that of another object. held: the prints of what counts; arrays have names that end with "[]".
    """

    def __init__(self, value: Any, whole: Any, held: dict[str, Any]) -> None:
        self._refers: Any = lambda: None
        with suppress(TypeError):  # some cannot be referred to weakly
            self._refers = weakref.ref(value)
        self._whole, self._held = whole, held

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _OfLibrary):
            return False
        if (one := self._refers()) is None or one is not other._refers():
            return bool(self._whole == other._whole)
        here, there = self._held, other._held
        both = here.keys() & there.keys()
        return all(name in both or name.endswith("[]") for name in here.keys() | there.keys()) and all(
            here[name] == there[name] for name in both
        )

    __hash__ = None  # type: ignore[assignment]


def _state_in(value: Any, known: set[int], depth: int) -> dict[str, Any]:
    """Return the prints of the arrays, tensors, optimizers and objects of the program in an object, by their places."""
    found: dict[str, Any] = {}

    def search(value: Any, place: str, depth: int) -> None:
        kind = type(value)
        own = any(of_library(base.__module__) for base in kind.__mro__) or of_program(kind)
        if isinstance(value, np.ndarray):
            found[f"{place}[]"] = printed(value, known, depth)
        elif objects.has_state(value) or (own and not of_library(kind.__module__)):
            if (one := printed(value, known, depth)) is not None:
                found[place] = one
        elif depth and not callable(value):
            items: Any = vars(value).items() if hasattr(value, "__dict__") else ()
            if isinstance(value, (list, tuple, set, frozenset, dict)):
                items = value.items() if isinstance(value, dict) else enumerate(value)
            for name, inner in _few([*items]):
                search(inner, f"{place}.{name}", depth - 1)

    for name, inner in vars(value).items() if hasattr(value, "__dict__") else ():
        search(inner, str(name), depth - 1)
    return found


def of_table(table: Any) -> str | None:
    """Return a text that differs between tables of pandas with other rows: a sample of them, and sums."""
    with suppress(Exception):  # another library may have tables that are read otherwise
        few = table.iloc[:: len(table) // 1000 + 1]
        held = [table.shape, [*getattr(table, "columns", ())], few.index.tolist(), few.to_numpy().tolist()]
        with suppress(TypeError, ValueError):  # rows without numbers
            held.append(table.sum(numeric_only=True).tolist())
        return digest([repr(held).encode()])
    return None


def _few(values: Any) -> Iterator[Any]:
    """Return at most a thousand elements: a data set may have any number, such as pictures."""
    return itertools.islice(values, 0, None, len(values) // 1000 + 1)


def _trains(value: Any) -> bool:
    """Return whether it is a tensor, a model or an optimizer, rather than something that shows or measures."""
    names = () if isinstance(value, dict) else ("untyped_storage", "named_parameters", "zero_grad")
    return any(hasattr(value, name) for name in names)


# a torch model


def extras(model: Any) -> dict[str, dict[str, Any]]:
    """Return what changes in a torch model and is not in its state_dict: flags, modes, numbers, marks of buffers."""
    modules = dict(model.named_modules())
    return {
        "flags": {name: parameter.requires_grad for name, parameter in model.named_parameters()},
        "modes": {name: module.training for name, module in modules.items()},
        "numbers": {
            f"{module}.{name}": number
            for module, holder in modules.items()
            if type(holder).__name__ != tensors.FSDP1
            for name, value in vars(holder).items()
            if type(number := value.item() if isinstance(value, np.generic) else value) in (bool, int, float)
            and name not in _OF_TORCH
        },
        "buffers": {name: fingerprint_of([buffer]) for name, buffer in unsaved_buffers(model)},
    }


def differences(model: Any, before: Found, earlier: Found) -> dict[str, dict[str, Any]]:
    """Return the extras of a model that differ from those before, and those that earlier attempts changed."""
    now = extras(model)
    changed = {kind: {k: v for k, v in of.items() if v != before[kind].get(k)} for kind, of in now.items()}
    buffers, changed["buffers"] = changed["buffers"], {}
    for name, buffer in unsaved_buffers(model):
        with suppress(NotSupported):  # too large
            changed["buffers"] |= {name: objects.data_of(buffer)} if name in buffers else {}
    return {kind: {**earlier.get(kind, {}), **of} for kind, of in changed.items()}


def left_out(models: Sequence[tuple[Any, Found]], modules: Attributes, saved: Iterable[Any]) -> str | None:
    """Return the message about a part of a model that changed, and that neither its state nor `differences` has.

    models: all of the fit, each with its extras then. modules: the record of their modules.
    """
    for model, before in models:
        if any(getattr(getattr(module, "rankallocator", None), "exp_avg_ipt", None) for module in model.modules()):
            return "AdaLoRA chooses its ranks by averages that are not part of the model's state"
        for name, buffer in unsaved_buffers(model):
            if plain.is_large(plain.mark(buffer)) and fingerprint_of([buffer]) != before["buffers"].get(name):
                return plain.unsaved(name, buffer)
    return modules.lost(own_modules(*(model for model, _ in models)), saved)


def set_extras(model: Any, found: Found) -> None:
    """Set what `differences` returned in an earlier attempt; names that the model lacks are left out."""
    parameters, modules = dict(model.named_parameters()), dict(model.named_modules())
    for name in parameters.keys() & found.get("flags", {}).keys():
        parameters[name].requires_grad_(found["flags"][name])
    for name in modules.keys() & found.get("modes", {}).keys():
        modules[name].training = found["modes"][name]
    for name, value in found.get("numbers", {}).items():
        module, _, attribute = name.rpartition(".")
        if module in modules:
            setattr(modules[module], attribute, value)
    set_buffers(model, {name: objects.put_back(state, None) for name, state in found.get("buffers", {}).items()})


def set_buffers(model: Any, found: Mapping[str, Any]) -> None:
    """Set buffers that a state_dict lacks, by their names; some grow in a training, or are None at its start."""
    modules, weight = dict(model.named_modules()), next(iter(model.parameters()), None)
    for name, tensor in found.items():
        module, _, own = name.rpartition(".")
        if own in getattr(modules.get(module), "_non_persistent_buffers_set", ()):
            buffers = modules[module]._buffers
            now = buffers.get(own)
            if now is not None and now.shape == tensor.shape and 0 not in now.stride():
                now.copy_(tensor)
            else:
                there = weight if now is None else now
                buffers[own] = tensor.clone() if there is None else tensor.to(there.device, copy=True)


def unsaved_buffers(model: Any) -> list[tuple[str, Any]]:
    """Return the names and values of the buffers that a state_dict lacks.

    torch names them in a private set of each module only. Without it, they would start again in a resumed trial.
    """
    found = []
    for prefix, part in model.named_modules():
        for name in sorted(part._non_persistent_buffers_set):
            if (buffer := part._buffers.get(name)) is not None:
                found.append((f"{prefix}.{name}" if prefix else name, buffer))
    return found


def own_modules(*models: Any) -> list[tuple[str, Any]]:
    """Return the modules of the program's own classes in torch models, by place."""
    return [
        (f"model {i}/{name}", module)
        for i, model in enumerate(models)
        for name, module in model.named_modules()
        if not of_library(type(module).__module__)
    ]


def is_own(part: Any, place: str) -> bool:
    """Return whether an object of a torch loader is the program's own, or a library's sampler that may keep an order.

    place: its name in the loader.
    """
    return not of_library(type(part).__module__) or is_library_sampler(part, place)


def set_again(part: Any) -> str | None:
    """Return the attribute of a sampler or a data set of torch that a program may set again in each epoch, or None.

    So does active learning, with the rows that it has chosen.
    """
    of_torch = type(part).__module__.partition(".")[0] == "torch"
    return _SET_AGAIN.get(type(part).__name__) if of_torch else None


def is_library_sampler(part: Any, place: str) -> bool:
    """Return whether an object of a torch loader is a library's sampler that may keep an order. place: see `is_own`."""
    home = type(part).__module__
    other = of_library(home) and home.partition(".")[0] not in _OF_SAMPLERS
    return other and place.endswith(("sampler", "batches"))


def own_parts(*loaders: Any) -> list[tuple[str, Any]]:
    """Return by place what `is_own` or `set_again` names in torch loaders: data sets, samplers, functions."""
    return [(place, part) for place, part in _parts_of(*loaders) if is_own(part, place) or set_again(part)]


def _parts_of(*loaders: Any) -> list[tuple[str, Any]]:
    """Return torch loaders and the objects in them, by place."""
    found: dict[int, tuple[str, Any]] = {}

    def search(part: Any, place: str) -> None:
        if isinstance(part, types.MethodType) and of_program(type(part.__self__)):
            part = part.__self__
        if hasattr(part, "__dict__") and id(part) not in found and len(place) < 100:
            found[id(part)] = place, part
            for name in _OF_DATA:
                search(vars(part).get(name), f"{place}/{name}")
            for name in ("datasets", "transforms"):
                several = vars(part).get(name)
                for i, one in enumerate(several if isinstance(several, (list, tuple)) else ()):
                    search(one, f"{place}/{name}/{i}")

    for i, loader in enumerate(loaders):
        search(loader, f"data {i}")
    return [*found.values()]


class Replaced:
    """Record of the transforms and collators of torch loaders, which a training may replace: no checkpoint has them.

    A program that sets them in each epoch does so where it resumes, too. So whether the first ones are there again is
    known at the end of the first epoch after a pause.
    """

    def __init__(self) -> None:
        self._start: dict[str, str] | None = None  # texts at the start of this attempt, by place
        # those at the start of the trial and at the pause, of what earlier attempts replaced
        self._paused: Mapping[str, Sequence[str | None]] = {}
        self._doubts = False  # this attempt has not ended an epoch since

    def see(self, *loaders: Any) -> None:
        """Note the present ones, once."""
        if self._start is None:
            self._start = _transforms_in(*loaders)

    def changed(self, *loaders: Any) -> dict[str, list[str | None]]:
        """Return the texts of those that were replaced, at the start of the trial and now."""
        first: dict[str, str | None] = {**(self._start or {}), **{name: one for name, (one, _) in self._paused.items()}}
        now = _transforms_in(*loaders)
        return {name: [first.get(name), text] for name, text in now.items() if text != first.get(name)}

    def put_back(self, found: Mapping[str, Sequence[str | None]]) -> None:
        """Note what `changed` returned in an earlier attempt."""
        self._paused, self._doubts = found, True

    def doubt(self, trial: Trial, *loaders: Any) -> None:
        """Warn once, at the end of an epoch, of those that are as at the trial's start, and were not at the pause."""
        doubts, self._doubts = self._doubts, False
        if doubts and self._paused:
            now = _transforms_in(*loaders)
            again = (_called(name) for name, (first, _) in self._paused.items() if now.get(name) == first)
            warn_of_failed(trial, *again, advice=_AGAIN)


def _transforms_in(*loaders: Any) -> dict[str, str]:
    parts = _parts_of(*loaders)
    return {f"{place}.{name}": text for place, part in parts for name, text in transforms_of(part).items()}


def transforms_of(part: Any) -> dict[str, str]:
    """Return texts of the transforms and collators of a loader, a data set or a sampler, by name.

    That of one which another process has made is the same.
    """
    held = {name: vars(part).get(name) for name in _TRANSFORMS}
    return {name: _text(one) for name, one in held.items() if one is not None}


def _text(one: Any) -> str:
    with suppress(Exception):  # the program's repr may raise
        one = one.func if isinstance(one, functools.partial) else one  # its arguments may be large
        if (code := getattr(one, "__code__", None)) is not None:
            return f"{one.__module__}.{one.__qualname__} {code.co_firstlineno}"
        return re.sub(" at 0x[0-9a-fA-F]+", "", repr(one))
    return ""


def generators_of(loader: Any, *others: Any) -> dict[str, Any]:
    """Return the generators of the data of a torch loader. others: further parts of it."""
    names = ("dataset", "collate_fn", "sampler", "batch_sampler", "generator", "synchronized_generator")
    return generators_in(*(getattr(loader, name, None) for name in names), *others)


def makers(loader: Any) -> list[Any]:
    """Return the collators of a loader that make a generator at their first batch, as that of language modeling."""
    collator = getattr(loader, "collate_fn", None)  # the Trainer's contains that of the program
    both = [collator, getattr(collator, "data_collator", None)]
    return [one for one in both if hasattr(one, "create_rng") and getattr(one, "seed", None) is not None]


def set_generators(states: Mapping[str, Any], loader: Any, *others: Any) -> dict[str, Any]:
    """Restore `generators_of` a loader, and return them. A collator has one of its own only if it had made it."""
    for maker in makers(loader):
        if maker.generator is None:
            maker.create_rng()
        named = [place for place, one in generators_of(loader, *others).items() if one is maker.generator]
        if not states.keys() & {*named}:
            maker.generator = None
    found = generators_of(loader, *others)
    set_states(found, dict(states))
    return found


def fingerprint(*models: Any) -> str:
    """Return a text that differs between torch models with other weights."""
    return fingerprint_of([p for model in models for p in tensors.weights(model) if p.is_floating_point()])
