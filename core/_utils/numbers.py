"""Numbers that a plain loop keeps from epoch to epoch in variables of its function, such as a patience of its own.

haltune cannot restore them. If a resumed trial starts with the first value of a number, although it paused with another
one, its program does not restore it either. Random keys of JAX count as numbers, too. So do weights, arrays and tensors
that the loop sets, such as the state of an LSTM or a batch that is read ahead, and how many elements collected data
have, such as a replay buffer; a list of values, and an entry of a dict, if the loop decides by it. A counter of the
module, which a function counts up by `global`, and that of an object made once continue from trial to trial instead.

A loop over `range` shows its start by the first step of an optimizer. Its reports show which function has the loop.
"""

from __future__ import annotations

import dis
import inspect
import sys
from collections import deque
from collections.abc import Collection, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from .around import attributes, frames, is_own, of_program, own_classes
from .code import carried_by, carried_within, counted_globals
from .decides import decides, only_collects, only_shows
from .interruption import variables

# str: of a random key, an array, a tensor, or collected data; None: no value yet, as a best one
Number = float | str | None
_KINDS = (bool, int, float, type(None))
_FEW = 4  # rows of an array, arrays in a dict or a tuple
_OTHER = object()


class InPlace(str):
    """Of what nothing sets while it changes: how many elements collected data have, a few numbers of a weight."""


class Row(str):
    """Of a row of values: a few of them."""

    length = 0  # how many values the row has


_EMPTY, _INDICES, _VALUES = InPlace("no elements"), "indices", "values"
_ENTRIES = 64  # of a dict that is looked into
_DEEP = 3  # dicts and tuples within one another, as of the state of an optimizer
_Held = dict[str, Number]
_HeldIn = dict[CodeType, tuple[int, int, _Held]]  # by function: its instruction and line, and what it holds
_NOWHERE = -1, -1, dict[str, Number]()


@dataclass
class Numbers:
    """What this process has seen of them: names and values, by trial and by the place where it paused."""

    _starts: dict[Hashable, _HeldIn] = field(default_factory=dict)
    _paused: dict[Hashable, _HeldIn] = field(default_factory=dict)
    _around: _HeldIn = field(default_factory=dict)  # the functions that run the block of the trial
    _counters: dict[Hashable, _Held] = field(default_factory=dict)  # by place; None: where a trial starts
    # objects -> the trial that had one first, and its numbers then
    _objects: WeakKeyDictionary[Any, tuple[Hashable, _Held]] = field(default_factory=WeakKeyDictionary)

    def enters(self, frame: FrameType) -> None:
        """State that the block of a trial is entered."""
        self._around = {one.f_code: (one.f_lasti, one.f_lineno, {}) for one in frames(frame)}

    def starts(self, trial: Hashable, frame: FrameType, counted: bool) -> None:
        """State that a loop of a trial starts from its beginning, in a frame. counted: not perhaps in several calls."""
        _add(self._starts.setdefault(trial, {}), frame, keep=not counted)

    def pauses(self, place: Hashable, frame: FrameType) -> None:
        """State that the loop pauses; the last call before the end of the trial counts, while the function runs."""
        _add(self._paused.setdefault(place, {}), frame)
        self._counters[place] = _of_module(frame)

    def strays(self, place: Hashable, frame: FrameType) -> dict[str, tuple[Number, Number]]:
        """Return the counters that are not as at a place where a trial paused, or for None where the first one started.

        Both values: the present one, and that of then.
        """
        now = _of_module(frame)
        then = self._counters.setdefault(place, now)
        return {name: (value, then[name]) for name, value in now.items() if then.get(name, value) != value}

    def shared(self, trial: Hashable, frame: FrameType) -> dict[str, tuple[Number, Number]]:
        """Return the numbers of objects that another trial has changed and that are not only shown: both values."""
        found: dict[str, tuple[Number, Number]] = {}
        for name, one in _objects(frame).items():
            with suppress(TypeError):  # it cannot be hashed, or referred to weakly
                kind: type = type(one)
                now = _counted(one)
                first, then = self._objects.setdefault(one, (trial, now)) if now else (trial, now)
                changed = [
                    (key, value) for key, value in now.items() if first != trial and value != then.get(key, value)
                ]
                codes = tuple(of.f_code for of in frames(frame) if name.partition(".")[0] in _variables(of.f_code))
                shown = {key for key, _ in changed if only_shows(codes, f"{name}.{key}", kind)}
                found |= {f"{name}.{key}": (value, then[key]) for key, value in changed if key not in shown}
        return found

    def in_loop(self, place: Hashable, frame: FrameType) -> bool:
        """Return whether the loop that paused at a place is running, as far as that is known."""
        return any(self._loop(place, one) is not None for one in frames(frame))

    def _loop(self, place: Hashable, one: FrameType) -> int | None:
        """Return the instruction before the loop of a function that runs now, if it is the one that paused."""
        inside, _, _ = self._paused.get(place, {}).get(one.f_code, _NOWHERE)
        outside, _, _ = self._around.get(one.f_code, _NOWHERE)
        return _loop_with(one.f_code, inside, one.f_lasti, outside)

    def resumes(
        self, trial: Hashable, place: Hashable, frame: FrameType, counted: bool
    ) -> dict[str, tuple[Number, Number]]:
        """Return those that have their first value again, although they had another at the pause: both values.

        counted: by `epochs`, so that the nearest function has the loop, and it starts here.
        """
        started, paused, found = self._starts.get(trial, {}), self._paused.get(place, {}), {}
        for one in [*frames(frame)][: 1 if counted else None]:
            begins = one.f_lasti if counted else self._loop(place, one)
            if begins is None or (code := one.f_code) not in started or code not in paused:
                continue
            (*_, first), (_, line, then) = started[code], paused[code]
            _, around, _ = self._around.get(code, _NOWHERE)
            for name, value, kind in _carried(one, begins):
                before = then.get(name)
                if name not in then or first.get(name, _OTHER) != value or value == before:
                    continue
                if name.endswith("]") or _is_record(value, before):
                    named = decides(code, name, line, around)
                elif isinstance(before, str):  # weights, arrays or data
                    named = value != _EMPTY or kind is not None or not only_collects(code, name, line, around)
                else:
                    named = not only_shows((code,), name, kind)
                if named:
                    found[name] = value, before
        return found


def _add(held: _HeldIn, frame: FrameType, keep: bool = False) -> None:
    """Note what the program's functions on the stack hold. keep: what is noted of a name stays."""
    for one in reversed([*frames(frame)]):
        *_, before = held.get(one.f_code, _NOWHERE)
        now = {name: value for name, value, _ in _numbers(one)}
        held[one.f_code] = one.f_lasti, one.f_lineno, now | before if keep else now


@lru_cache(100)
def _loop_with(code: CodeType, *positions: int) -> int | None:
    """Return the instruction before the outermost loop of a function with the first two positions, not the third."""
    ends: dict[int, int] = {}  # by start
    for step in dis.get_instructions(code):
        if "JUMP_BACKWARD" in step.opname:
            ends[step.argval] = step.offset
    inside, here, outside = positions
    starts = [a for a, b in ends.items() if a <= min(inside, here) <= max(inside, here) <= b and not a <= outside <= b]
    return min(starts) - 1 if starts else None


def _is_record(value: Number, then: Number | None) -> bool:
    """Return whether it is a record of epochs that starts again: indices, or a row that becomes longer."""
    if isinstance(then, Row):
        return not isinstance(value, Row) or value.length != then.length
    return str(then).endswith(_VALUES) or (value == _EMPTY and str(then).endswith(_INDICES))


def _carried(loop: FrameType, begins: int) -> Iterator[tuple[str, Number, type | None]]:
    """Yield the numbers in variables of a function, which an epoch reads before it sets them; see `_numbers`.

    begins: the instruction before its loop.

    Also those in attributes of its objects, if a function reads and then sets them, and none sets them first, nor the
    loop the object; for a model, and others with a base of a library, whose methods may count calls, the loop is to be
    that function. Data are collected in a container that nothing sets, and weights train in place. Arrays that an epoch
    fills are no such data.
    """
    carried = carried_within(loop.f_code) | carried_by(loop.f_code, begins)
    for name, value, kind in _numbers(loop):
        of_class = {} if kind is None else _carried_by_methods(kind, loop.f_code)
        variable = name.partition(".")[0].partition("[")[0]
        key = variable if kind is None else f".{name.rpartition('.')[2]}"
        both = [accesses[key] for accesses in (carried, of_class) if key in accesses]
        by_loop = kind is None or of_program(kind) or key in carried
        if (
            (both or isinstance(value, InPlace) or name.endswith("]"))
            and all(both)
            and by_loop
            and carried.get(variable, True)
        ):
            yield name, value, kind


@lru_cache(100)
def _carried_by_methods(kind: type, loop: CodeType | None = None) -> dict[str, bool]:
    """The same of the attributes that methods of a class set, without those that make an object, and the loop's."""
    found: dict[str, bool] = {}
    for base in own_classes(kind):
        for name, method in vars(base).items():
            method = inspect.unwrap(method)
            if isinstance(method, FunctionType) and name != "__init__" and method.__code__ is not loop:
                for key, carried in carried_by(method.__code__).items():
                    found[key] = carried and found.get(key, True)
    return found


def _of_module(frame: FrameType) -> dict[str, Number]:
    """Return the numbers of the program's module that one of its functions reads, and then sets by `global`."""
    loop = next(frames(frame), None)
    held = {} if loop is None else dict(loop.f_globals)
    own = [one for one in held.values() if type(one) is FunctionType and loop and one.__globals__ is loop.f_globals]
    codes = [one.__code__ for one in own]
    counted = {name for code in codes for name in counted_globals(code)}
    names = {n for n in counted if not only_shows(tuple(code for code in codes if n in code.co_names), n)}
    return {name: number for name in names & held.keys() if type(number := _number(held[name])) in (int, float)}


def _objects(frame: FrameType) -> dict[str, Any]:
    """Return the objects of the program's classes that its functions on the stack, and the nearest module, hold.

    Also those in their attributes, and the data of a loader of torch.
    """
    loop = next(frames(frame), None)
    places = [{} if loop is None else loop.f_globals, *map(variables, reversed([*frames(frame)]))]
    held = {name: one for place in places for name, one in place.items()}
    for name, one in [*held.items()]:
        of_torch = type(one).__module__.startswith("torch.utils.data.")
        inner = {key: vars(one).get(key) for key in ("dataset", "sampler")} if of_torch else _attributes(one)
        held |= {f"{name}.{key}": part for key, part in inner.items()}
    names = {id(one): name for name, one in held.items() if is_own(type(one).__module__)}  # one of each object
    return {name: held[name] for name in names.values()}


def _variables(code: CodeType) -> set[str]:
    return {*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars}


def _counted(value: Any) -> _Held:
    """Return the numbers of an object that its methods read and then set, and none sets first."""
    kind: type = type(value)
    carried = _carried_by_methods(kind)
    held = ((name, _number(one)) for name, one in _attributes(value).items() if carried.get(f".{name}"))
    return {name: one for name, one in held if type(one) in _KINDS}


def _numbers(loop: FrameType) -> Iterator[tuple[str, Number, type | None]]:
    """Yield the numbers in variables of a function, in dicts and in attributes of objects, with the object's class."""
    for name, value in variables(loop).items():
        yield from _inside(name, value)


def _inside(
    name: str, value: Any, kind: type | None = None, depth: int = 2
) -> Iterator[tuple[str, Number, type | None]]:
    """Yield the numbers in a value of that name, to a depth; at the last one plain numbers alone."""
    number = _number(value)
    if number is not _OTHER and (depth or type(number) in _KINDS):
        yield name, number, kind
    if depth and type(value) is dict:
        held: list[tuple[Any, Any]] = []
        with suppress(RuntimeError):  # another thread changes it
            held = [*value.items()] if len(value) <= _ENTRIES else []
        numbers = ((key, _number(one)) for key, one in held if type(key) is str and type(one) in (*_KINDS, list))
        yield from ((f"{name}[{key!r}]", number, kind) for key, number in numbers if number is not _OTHER)
    elif depth and number is _OTHER:
        for key, one in _attributes(value).items():
            yield from _inside(f"{name}.{key}", one, type(value), depth - 1)


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object of the program; if its class has a base of a library, the numbers alone."""
    found = attributes(value)
    if not found and is_own(type(value).__module__):
        with suppress(Exception):  # it raises if it is asked
            return {name: one for name, one in vars(value).items() if type(one) in _KINDS}
    return found


def _number(value: Any) -> Any:
    """Return a number, or those of a random key of JAX or of arrays as text; _OTHER for other values."""
    kind = type(value)
    if kind in _KINDS:
        return value
    if kind.__module__.partition(".")[0] in ("jax", "jaxlib"):
        with suppress(Exception):  # it is deleted
            if str(value.dtype).startswith("key<") and value.shape == ():
                value = sys.modules["jax"].random.key_data(value)
            elif value.dtype != np.uint32 or value.shape != (2,):
                return _of_array(value)
            return f"[{' '.join(map(str, np.asarray(value).ravel()))}]"
    if issubclass(kind, (np.ndarray, np.generic)) or hasattr(kind, "untyped_storage"):
        return _of_array(value)
    if issubclass(kind, (dict, tuple)):  # as the two states of an LSTM, or that of an optimizer in JAX
        arrays = [*islice(_arrays_in(value), _FEW)]
        texts = [one if isinstance(one, str) else f"[{one}]" for one in map(_number, arrays) if one is not _OTHER]
        return " ".join(texts) if any(one.ndim for one in arrays) else _OTHER
    return _size(value) if kind in (list, set, deque) else _OTHER


def _arrays_in(value: Any, deep: int = _DEEP) -> Iterator[Any]:
    """Yield the arrays in nested dicts and tuples, which may contain themselves."""
    with suppress(RuntimeError):  # another thread changes it
        parts = dict.values(value) if isinstance(value, dict) else tuple.__iter__(value)
        for part in [*islice(parts, _ENTRIES)]:
            if issubclass(type(part), (dict, tuple)):
                yield from _arrays_in(part, deep - 1) if deep else ()
            elif hasattr(type(part), "ndim"):
                yield part


def _of_array(value: Any) -> Any:
    """Return the number that an array or a tensor is, or a few of its numbers as text; _OTHER for other elements."""
    with suppress(Exception):  # it is on no device, or has other elements than numbers
        if value.ndim == 0:
            number = value.item()
            return number if type(number) in _KINDS else _OTHER
        trains = getattr(value, "requires_grad", False) and value.is_leaf
        if len(value):  # an empty one may be a record, to which rows are added
            few = value[(slice(None, None, len(value) // _FEW + 1), *(n // 2 for n in value.shape[1:]))]
            text = f"[{' '.join(f'{number:.6g}' for number in few.tolist())}]"
            if trains or value.ndim > 1:
                return InPlace(text) if trains else text
            row = Row(text)
            row.length = len(value)
            return row
    return _OTHER


def _size(data: Collection[Any]) -> Any:
    """Return the size of data: of arrays, tensors, what has some, or indices; _OTHER for other elements."""
    if not data:
        return _EMPTY
    with suppress(Exception):  # another thread changes them, or an element raises if it is asked
        one = next(iter(data))
        if type(one) is int:
            return InPlace(f"{len(data)} {_INDICES}")
        if isinstance(one, float | np.floating):
            return InPlace(f"{len(data)} {_VALUES}")
        parts = one.values() if isinstance(one, dict) else one if isinstance(one, tuple) else (one,)
        if any(getattr(part, "shape", ()) for part in parts):
            return InPlace(f"{len(data)} elements")
    return _OTHER
