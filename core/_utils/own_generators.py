"""Random generators that a program holds in variables, objects, and modules and classes that its code names."""

from __future__ import annotations

import functools
import json
import sys
import types
from collections import deque
from collections.abc import Hashable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .around import OPAQUE, attributes, frames, is_own, of_library, on_stack, own_classes
from .code import CODE, cells_of, named_by
from .data import OwnData
from .generators import is_generator, is_of_keras, is_of_tensorflow, kind_of, of_generator, set_generator, states_of
from .orders import Orders, Variables, seeded, taken
from .randomness import capture
from .updates import flags

_SHUFFLED, _UNDER_WAY, _DATA = "shuffled", "under way", "data"  # in place of the kind of a generator


class OwnGenerators:
    """Generators in variables of the functions that run a plain loop, or of modules and classes that their code names.

    And what the program's own data sets and samplers change, the names of other lists that the program shuffles, and of
    iterators over data from which it reads on.

    data: also the data, and the iterators, by `taken`. Otherwise the loop itself sees to them.
    """

    def __init__(self, data: bool = True) -> None:
        self._there: dict[int, tuple[Any, Any]] = {}  # by id: generators at the start of a loop, and their first states
        self._named: dict[str, Any] = {}  # generators by name: a function that has ended shows no variables
        self._saved: dict[str, Any] = {}  # the states of the checkpoint
        self._before: list[tuple[Any, Any]] = []  # generators that were restored, and their states before
        self._orders, self._begun = Orders(), False
        self._data = OwnData() if data else None

    def begins(self, path: Path | None) -> tuple[list[str], list[str]]:
        """State that a loop starts, and restore what `capture` has put into the random state in a file.

        Return the names of lists that were shuffled, and of datasets that begin to shuffle from a seed again; and those
        of iterators from which nothing is taken again.
        """
        self._begun, variables = True, on_stack()
        found, restored = _in_code(variables) | _in_variables(variables), {}
        if path is not None and path.is_file():
            self._saved = restored = json.loads(path.read_bytes()).get("own", {})
        for name in restored.keys() & found.keys():
            (kind, state), one = restored[name], found[name]
            if kind_of(one) == kind:
                before = of_generator(one)
                set_generator(one, state)
                if of_generator(one) != before:  # another trial has drawn since
                    self._before.append((one, before))
        self._named = found
        self._there = {id(one): self._there.get(id(one), (one, of_generator(one))) for one in found.values()}
        of: dict[str, dict[str, Any]] = {mark: {} for mark in (_SHUFFLED, _UNDER_WAY, _DATA)}
        for name, (kind, state) in restored.items():
            of.get(kind, {})[name] = state
        others, saved, held = ([], set[int](), []) if self._data is None else self._data.begins(variables, of[_DATA])
        lists = others + self._orders.begins([*variables, *held], of[_SHUFFLED], saved)
        lists += [] if path is None else seeded(variables)
        again = {name for name, value in (*variables, *held) if name in of[_UNDER_WAY] and taken(value) is False}
        return lists, sorted(name.partition(".")[2] for name in again)

    def ends(self) -> None:
        """State that the trial ends: one that all trials share continues where it was before."""
        for one, state in self._before:
            set_generator(one, state)
        self._before = []

    def capture(self) -> dict[str, Any]:
        """Return the random state of the process, with those generators that the loop draws from, and lists."""
        variables = on_stack() if self._begun else []
        states, held = ({}, []) if self._data is None else self._data.changed(variables)
        own: dict[str, Any] = {name: (_DATA, state) for name, state in states.items()}
        own |= dict.fromkeys(self._orders.shuffled([*variables, *held]), (_SHUFFLED, None))
        under_way = [name for name, value in (*variables, *held) if self._data is not None and taken(value)]
        own |= dict.fromkeys(under_way, (_UNDER_WAY, None))
        for name, one in (self._named | _in_variables(variables)).items() if self._there else ():
            before = self._there.get(id(one))
            drawn = before is not None and (name in self._saved or of_generator(one) != before[1])
            if drawn or is_of_keras(one):  # Keras gives it another seed in each process
                own[name] = kind_of(one), of_generator(one)
        return capture() | ({"own": own} if own else {}) | ({"trainable": trainable} if (trainable := flags()) else {})


@dataclass
class Restarts:
    """Generators in variables of a loop that haltune does not restore: those that start again where a trial resumes.

    Their states before the first steps of two epochs, and at a pause, show it. Each epoch may make one again.
    """

    _starts: dict[Hashable, dict[str, Any]] = field(default_factory=dict)  # by trial: before its first step
    _paused: dict[Hashable, dict[str, Any]] = field(default_factory=dict)  # by place
    _draws_on: dict[str, bool] = field(default_factory=dict)  # whether an epoch continues from the one before
    _again: set[str] = field(default_factory=set)  # those that started again in the trial that trains

    def steps(self, trial: Hashable, resumes: Hashable, starts: bool) -> bool:
        """State that an epoch makes its first step; return whether generators have started again in a resumed trial.

        resumes: the place of the pause after which it is the first one, or None. starts: it is the first of the trial.
        """
        first = self._starts.get(trial, {})
        if not starts and resumes is None and first.keys() <= self._draws_on.keys() and not self._again:
            return False
        now = _states_now()
        if starts:
            self._starts[trial], self._again = now | first, set()
        elif resumes is None:
            self._draws_on |= {name: now[name] != state for name, state in first.items() if name in now}
        else:
            paused = self._paused.get(resumes, {})
            self._again = {n for n, s in first.items() if n in paused and now.get(n) == s != paused[n]}
        found = {name for name in self._again if self._draws_on.get(name)}
        self._again -= self._draws_on.keys()
        return bool(found)

    def pauses(self, place: Hashable) -> None:
        """State that a trial pauses."""
        self._paused.setdefault(place, {}).update(_states_now())


def _states_now() -> dict[str, Any]:
    return states_of(_in_variables(on_stack()))


def in_running() -> list[tuple[Any, Any]]:
    """Return the generators in variables of the program's functions that are running, and their states."""
    found = {id(one): one for one in _in_variables(on_stack()).values()}
    return [(one, of_generator(one)) for one in found.values()]


def _in_variables(variables: Variables) -> dict[str, Any]:
    """Return the generators by the functions and variables that hold them."""
    found: dict[str, Any] = {}
    for name, value in variables:
        if _may_hold(type(value)):
            held: dict[str, Any] = {}
            with suppress(Exception):  # an object of the program that raises where it is looked at
                held = generators_in(value, depth=3, code=False)  # which are variables themselves
                for path, model in _models(value):
                    held |= {f"{path}.{inner}": one for inner, one in of_model(model).items()}
            found |= {f"{name}{path[1:]}": one for path, one in held.items()} | found
    return found


def _in_code(variables: Variables) -> dict[str, Any]:
    """Return the generators of modules and classes of the program that code names, by functions and variables.

    The code is that of the functions that are running, with the functions that it names, and of objects in variables.
    """
    found: dict[str, Any] = {}
    objects = [(name, value) for name, value in variables if type(value) is not types.FunctionType]
    for name, value in (*((frame.f_code.co_name, frame) for frame in frames()), *objects):
        if _may_hold(kind := type(value)):
            held = of_code(value, depth=4 if kind is types.FrameType else 2)  # 2: the rows of a loader, and no more
            found |= {f"{name}{path[1:]}": one for path, one in held.items()} | found
    return found


def _may_hold(kind: type) -> bool:
    """Return whether a value of a class may hold generators of the program."""
    return not issubclass(kind, OPAQUE) and not kind.__module__.startswith("haltune.")


def _models(value: Any) -> list[tuple[str, Any]]:
    """Return what may be a model: a variable, and the attributes of an object of the program."""
    return [("0", value), *((f"0.{name}", held) for name, held in attributes(value).items())]


def of_model(model: Any) -> dict[str, Any]:
    """Return the generators of a model: those of Keras' layers, which Keras does not save (keras-team/keras#19796).

    Of torch, those of modules of the program's own classes, as for noise.
    """
    keras = sys.modules.get("keras")
    if keras is not None and isinstance(model, keras.layers.Layer):
        return {f"seed{i}": v for i, v in enumerate(filter(is_of_keras, model.variables))}
    named = model.named_modules() if callable(getattr(type(model), "named_modules", None)) else ()
    own = ((name, module) for name, module in named if not of_library(type(module).__module__))
    return {f"{path}.{name}": one for path, module in own for name, one in vars(module).items() if is_generator(one)}


def generators_in(*roots: Any, depth: int = 4, code: bool = True) -> dict[str, Any]:
    """Return the generators of Python, NumPy, torch and TensorFlow that objects hold: path -> generator, each once.

    Attributes and short lists are searched to a depth: a transform of a data set, the sampler of a loader. Wrappers of
    data or of an environment do not count, nor does the place in a list of objects. The nearest come first.

    code: also those in variables of modules and classes that the program's code names.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    left = deque((root, str(i), depth) for i, root in enumerate(roots) if type(root) not in _LEAVES)
    while left and len(seen) < _MOST:
        value, path, depth = left.popleft()
        if is_generator(value) or is_of_tensorflow(value):
            if id(value) not in seen:
                seen.add(id(value))
                while path in found:  # as in the modules of a class and of its base
                    path += "'"
                found[path] = value
        elif depth and id(value) not in seen and not _keeps_books(type(value).__module__):
            seen.add(id(value))
            of_list, wrapped = isinstance(value, (list, tuple)), []
            for name, inner in (*_inside(value), *(_of_code(value) if code else ())):
                if type(inner) in _LEAVES:
                    continue
                if name in _WRAPPED or (of_list and not isinstance(inner, (list, tuple, dict))):
                    wrapped.append((inner, f"{path}.{name}", depth))
                else:
                    left.append((inner, f"{path}.{name}", depth - 1))
            left.extendleft(reversed(wrapped))
    return found


def of_owners(owners: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the generators that the objects of a framework's loop hold or that their code names: each once.

    Of torch models these are those of modules of the program's own classes. What an object holds of the framework is
    another owner.

    owners: models, callbacks, data modules and the like, with names that are the same where a trial resumes.
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for place, owner in owners:
        is_model = callable(getattr(type(owner), "named_modules", None))
        for name, part in owner.named_modules() if is_model else [("", owner)]:
            if is_model and of_library(type(part).__module__):
                continue
            with suppress(Exception):  # an object of the program that raises where it is looked at
                for attribute, value in (*(vars(part).items() if is_model else _inside(part)), *_of_code(part)):
                    if type(value).__module__.partition(".")[0] not in _FRAMEWORKS:
                        for path, one in generators_in(value, depth=3).items():
                            if id(one) not in seen:
                                seen.add(id(one))
                                found[f"{place}.{name}.{attribute}{path[1:]}"] = one
    return found


# of objects that hold a whole training
_FRAMEWORKS = ("lightning", "pytorch_lightning", "transformers", "trl", "accelerate", "fastai", "fastcore")
_SHORT, _MOST = 20, 20_000  # elements of a list, objects that are searched
_LEAVES = frozenset({type(None), bool, int, float, str, bytes, np.ndarray})
# attributes of wrappers, of which there may be many: around an environment of Gymnasium, of a data set, as by MONAI
_WRAPPED = frozenset({"env", "envs", "dataset", "datasets", "transform", "transforms"})


@functools.cache
def _keeps_books(module: str) -> bool:
    """Return whether a module is of haltune's own records, such as a trial: they hold nothing of the program's data."""
    return module.startswith("haltune.") and not module.startswith("haltune.callbacks.")


def _inside(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(str(key), inner) for key, inner in value.items()] if len(value) <= _SHORT else []
    if isinstance(value, (list, tuple)):
        return [(str(i), inner) for i, inner in enumerate(value)] if len(value) <= _SHORT else []
    if isinstance(value, functools.partial):
        return [("func", value.func), ("args", value.args), ("keywords", value.keywords)]
    if isinstance(value, types.FunctionType):  # the variables of the functions around it
        return [(name, cell.cell_contents) for name, cell in cells_of(value).items()]
    if isinstance(value, (type, types.ModuleType)) or hasattr(value, "parameters"):
        return []  # a model is no data
    owner = getattr(value, "__self__", None)  # of a method
    return [*getattr(value, "__dict__", {}).items(), *([] if owner is None else [("__self__", owner)])]


def _of_code(value: Any) -> list[tuple[str, Any]]:
    """Return the generators of an object's class, and those and the functions of the program that its code names."""
    own = () if isinstance(value, CODE) else own_classes(type(value))
    held = [(f"class {name}", one) for of in own for name, one in vars(of).items() if is_generator(one)]
    return held + [
        (f"module {name}", one)  # the object may have an attribute with this name
        for name, one in named_by(value)
        if is_generator(one) or is_own(one.__module__ if (kind := type(one)) is types.FunctionType else kind.__module__)
    ]


def of_objects(*roots: Any, depth: int = 4) -> dict[str, Any]:
    """Return the generators that some objects hold, or that their code names; none if an object raises."""
    with suppress(Exception):  # an object of the program that raises where it is looked at
        return generators_in(*roots, depth=depth)
    return {}


def of_code(*roots: Any, depth: int = 4) -> dict[str, Any]:
    """Return the generators in variables of modules and classes that the program's code of some objects names."""
    held = of_objects(*roots, depth=depth)
    return {path: one for path, one in held.items() if ".module " in path or ".class " in path}
