"""What the program's own functions of a training remember: callbacks, objectives, losses and metrics.

Libraries do not save it with a model, so a resumed training would begin with what they remember at the start.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

from haltune._utils.around import of_library, of_program
from haltune._utils.code import counted_globals, names_in
from haltune._utils.generators import is_generator
from haltune._utils.own_generators import of_code
from haltune.errors import NotSupported
from haltune.study import Trial

from . import carried, objects, plain

_OWN = ".callbacks"  # the suffix of the file next to a model
_FEW = 1000  # elements that are looked into


class OwnFunctions:
    """What the program's own functions of a training remember: plain data in their attributes and variables.

    Of the variables of a module, these are those that a function reads and then sets by `global`, and generators that
    its code names.

    callbacks, functions: all callbacks, and all objectives and metrics, of the training.
    starts: it does not resume. saved: objects that are saved by themselves; some functions are methods of them.
    """

    def __init__(
        self, callbacks: Iterable[Any], functions: Iterable[Any], trial: Trial, starts: bool, saved: Iterable[Any] = ()
    ) -> None:
        apart = {id(one) for one in saved}
        own, used = [*_parts(callbacks, {*apart})], [*_parts(filter(None, functions), {*apart})]
        self._parts, self._callbacks, self._trial = [*own, *used], len(own), trial.id
        self._generators = [of_code(one) for one in self._parts]
        self.parameters: Mapping[str, Any] = {}  # of a booster before the first round, set by its loop
        self._marks = {path: plain.mark(value) for path, value, _ in self._places()}
        for path, value, _ in self._places():
            if plain.is_data(self._marks[path]):
                plain.note(value, trial.id, self._marks[path])
        for one, now in zip(self._parts, self._counts(), strict=True):
            left = carried.begins(one, carried.who(trial), now)
            if left and starts:
                carried.warn(trial, _name(one), left[0])

    def hooks_were_called(self) -> None:
        """Take objects that callbacks set as the training started, such as a progress bar, for what they start with.

        A resumed training calls these hooks again.
        """
        for path, value, _ in self._places():
            if not plain.is_data(marked := plain.mark(value)):
                self._marks[path] = marked

    def ends(self) -> None:
        """State that the training ends."""
        for one, now in zip(self._parts, self._counts(), strict=True):
            carried.ends(one, now)

    def _counts(self) -> list[dict[str, str]]:
        """Return for each function the marks of its data by the names of its attributes and variables.

        Those of a callback are numbers and texts: most only record, in lists and dictionaries, and change nothing.
        """
        found: list[dict[str, str]] = [{} for _ in self._parts]
        for path, value, _ in self._places():
            at, _, name = path.partition("/")
            records = int(at) < self._callbacks and isinstance(value, Collection) and not isinstance(value, str)
            if not (records or is_generator(value)) and plain.is_data(now := plain.mark(value)):
                found[int(at)][name.removeprefix(_name(self._parts[int(at)])).lstrip(".")] = now
        return found

    def write(self, path: Path, parameters: Mapping[str, Any], library: Any = None) -> None:
        """Save next to a model what has changed. Raises NotSupported if a part of it cannot be saved.

        parameters: the present ones of a booster. A callback may have set some, such as the learning rate.
        library: what the library itself would forget, as JSON.
        """
        if (why := self.unsaved()) is not None:
            raise NotSupported(why)
        (states, _), before = self._changes(), self.parameters
        set_ = {name: v for name, v in parameters.items() if plain.mark(v) != plain.mark(before.get(name))}
        if states or set_ or library:
            found = {"states": states, "set": objects.data_of(set_ or None), "library": library}
            # a metric of the program's may return a number of NumPy
            Path(f"{path}{_OWN}").write_text(json.dumps(found, default=methodcaller("item")), encoding="utf-8")

    def put_back(self, path: str) -> tuple[Any, Any]:
        """Set what `write` saved next to a model; return the parameters that a callback has set, and `library`."""
        file = Path(f"{path}{_OWN}")
        found = json.loads(file.read_bytes()) if file.exists() else {"states": {}, "set": None}
        states = found["states"]
        there = {name for name, _, _ in self._places()}
        for name, value, put in [*self._places(), *self._lacking(states.keys() - there)]:
            if name in states and (is_generator(value) or not plain.is_shared(value, states[name], self._trial)):
                with suppress(NotSupported):  # built otherwise in this attempt
                    put(objects.put_back(states[name], value))
        return objects.put_back(found["set"], None), found.get("library")

    def unsaved(self) -> str | None:
        """Return the message about what has changed and cannot be saved, or None."""
        _, unsaved = self._changes()
        return next((plain.unsaved(name.partition("/")[2], value) for name, value in unsaved.items()), None)

    def changed(self) -> str | None:
        """Return the name of a function, or of the class of an object, that remembers another thing now, or None."""
        states, unsaved = self._changes()
        return next((_name(self._parts[int(name.partition("/")[0])]) for name in (*states, *unsaved)), None)

    def _changes(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the states of what changed, and the values of what changed and cannot be saved."""
        values = {name: value for name, value, _ in self._places()}
        states, lost, others = plain.changes(values, self._marks)
        return states, {name: values[name] for name in (*lost, *others)}

    def _lacking(self, names: Iterable[str]) -> Iterator[tuple[str, Any, Callable[[Any], object]]]:
        """Yield attributes that the program sets where it trains, so that a new object has none yet."""
        for name in names:
            at, _, path = name.partition("/")
            one = self._parts[int(at)] if int(at) < len(self._parts) else None
            attribute = path.removeprefix(f"{_name(one)}.")
            if hasattr(one, "__dict__") and attribute != path and attribute.isidentifier():
                yield name, None, partial(setattr, one, attribute)

    def _places(self) -> Iterator[tuple[str, Any, Callable[[Any], object]]]:
        for i, one in enumerate(self._parts):
            name = f"{i}/{_name(one)}"
            for key, (value, put) in objects.variables_of(one).items():
                yield f"{name}.{key}", value, put
            for key, value in self._generators[i].items():
                yield f"{name}.{key}", value, lambda value: None
            if isinstance(one, types.FunctionType):
                for key in counted_globals(one.__code__) & one.__globals__.keys():
                    yield f"{name}.global {key}", one.__globals__[key], partial(one.__globals__.__setitem__, key)
            if isinstance(one, (partial, types.FunctionType)):  # its arguments are the same objects, but change
                given = (one.args, one.keywords) if isinstance(one, partial) else (one.__defaults__, one.__kwdefaults__)
                for at, value in (*enumerate(given[0] or ()), *(given[1] or {}).items()):
                    yield f"{name}[{at}]", value, lambda value: None
            if not isinstance(one, partial):
                for key, value in objects.held_by(one).items():
                    yield f"{name}.{key}", value, partial(setattr, one, key)


def _parts(functions: Iterable[Any], seen: set[int] | None = None) -> Iterator[Any]:
    """Yield the functions and objects of the program in callables: libraries wrap them, and so do programs."""
    seen = set() if seen is None else seen
    for one in functions:
        one = one.__self__ if isinstance(one, types.MethodType) else one
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, partial):
            yield from _parts([one.func], seen)
            yield one
            continue
        if own := not from_library(one):
            yield one
        held = [*(value for value, _ in objects.variables_of(one).values()), *getattr(one, "__dict__", {}).values()]
        kinds = (types.FunctionType, types.MethodType, partial)
        inner = (v for v in held if isinstance(v, kinds) or (not own and callable(v) and of_program(type(v))))
        yield from _parts([v for v in inner if not from_library(getattr(v, "__self__", v))], seen)


def refers(function: Any, to: Any, depth: int = 4) -> bool:
    """Return whether a function of the program uses an object, directly or in what it holds."""
    if function is to or not depth:
        return function is to
    held: list[Any] = []
    if isinstance(function, types.MethodType):
        of, inner = function.__self__, function.__func__
        names = names_in(inner.__code__) if isinstance(inner, types.FunctionType) else set()
        held = [of] if of is to else [inner, *_named(of, names)]
        above = [vars(base).get(inner.__name__) for base in type(of).__mro__[1:]] if "super" in names else []
        held += [types.MethodType(one, of) for one in above if isinstance(one, types.FunctionType)]
    elif isinstance(function, partial):
        held = [function.func, *function.args, *function.keywords.values()]
    elif isinstance(function, types.FunctionType):
        names = names_in(function.__code__)
        used = [value for value, _ in objects.variables_of(function).values()] + [*(function.__defaults__ or ())]
        for one in (*used, *(function.__globals__.get(name) for name in names)):
            whole = one is to or not of_program(type(one))
            held += [one] if whole else _named(one, names)
    elif isinstance(function, (dict, list, tuple)) and len(function) <= _FEW:
        held = [*(function.values() if isinstance(function, dict) else function)]
    elif of_program(type(function)):
        held = [*objects.attributes_of(function).values()]
    return any(refers(one, to, depth - 1) for one in held)


def _named(one: Any, names: set[str]) -> list[Any]:
    """Return the attributes and methods of an object of the program with these names; all attributes if none has one.

    The object itself may then be passed on.
    """
    kind = type(one)
    if not of_program(kind):
        return []
    held = objects.attributes_of(one)
    held = {**held, **getattr(one, "_modules", {})} if hasattr(one, "named_parameters") else held  # of torch
    methods = (getattr(of, "fget", of) for of in (getattr(kind, name, None) for name in names - held.keys()))
    found = [held[name] for name in names & held.keys()]
    found += [types.MethodType(of, one) for of in methods if isinstance(of, types.FunctionType)]
    return found or [*held.values()]


def _name(one: Any) -> str:
    one = one.func if isinstance(one, partial) else one
    return str(getattr(one, "__qualname__", type(one).__qualname__))


def from_library(one: Any) -> bool:
    """Return whether a function, or the class of an object, is of an installed package or of haltune."""
    return of_library(one.__module__ if isinstance(one, types.FunctionType) else type(one).__module__)
