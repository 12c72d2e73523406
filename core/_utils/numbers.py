"""Numbers that a plain loop keeps from epoch to epoch in variables of its function, such as a patience of its own.

haltune cannot restore them. If a resumed trial starts with the first value of a number, although it paused with another
one, its program does not restore it either. Random keys of JAX count as numbers, too. So do weights, arrays and tensors
that the loop sets, such as the state of an LSTM or a batch that is read ahead, and how many elements collected data
have, such as a replay buffer. A counter of the module, which a function counts up by `global`, continues from
trial to trial instead.
"""

from __future__ import annotations

import inspect
import sys
from collections import deque
from collections.abc import Collection, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy as np

from .around import attributes, frames, is_own, of_program, own_classes
from .code import carried_by, counted_globals
from .interruption import variables

# str: of a random key, an array, a tensor, or collected data; None: no value yet, as a best one
Number = float | str | None
_KINDS = (bool, int, float, type(None))
_FEW = 4  # rows of an array, parts of a tuple
_OTHER = object()


class InPlace(str):
    """Of what nothing sets while it changes: how many elements collected data have, a few numbers of a weight."""


class Row(str):
    """Of a row of values: a few of them."""

    length = 0  # how many values the row has


_EMPTY, _INDICES = InPlace("no elements"), "indices"


@dataclass
class Numbers:
    """What this process has seen of them: names and values, by trial and by the place where it paused."""

    _starts: dict[Hashable, dict[str, Number]] = field(default_factory=dict)
    _paused: dict[Hashable, dict[str, Number]] = field(default_factory=dict)
    _counters: dict[Hashable, dict[str, Number]] = field(default_factory=dict)  # by place; None: where a trial starts

    def starts(self, trial: Hashable, frame: FrameType) -> None:
        """State that a loop of a trial starts from its beginning, in a frame."""
        self._starts[trial] = _held(frame)

    def pauses(self, place: Hashable, frame: FrameType) -> None:
        """State that the loop pauses."""
        self._paused[place], self._counters[place] = _held(frame), _of_module(frame)

    def strays(self, place: Hashable, frame: FrameType) -> dict[str, tuple[Number, Number]]:
        """Return the counters that are not as at a place where a trial paused, or for None where the first one started.

        Both values: the present one, and that of then.
        """
        now = _of_module(frame)
        then = self._counters.setdefault(place, now)
        return {name: (value, then[name]) for name, value in now.items() if then.get(name, value) != value}

    def resumes(self, trial: Hashable, place: Hashable, frame: FrameType) -> dict[str, tuple[Number, Number]]:
        """Return those that have their first value again, although they had another at the pause: both values."""
        started, paused, now = self._starts.get(trial, {}), self._paused.get(place, {}), _carried(frame)
        return {
            name: (value, paused[name])
            for name, value in started.items()
            if name in paused
            and paused[name] != value
            and name in now
            and now[name] == value
            and not _is_record(value, paused[name])
        }


def _is_record(value: Number, then: Number) -> bool:
    """Return whether it is a record of epochs that starts again: indices, or a row that becomes longer."""
    if isinstance(then, Row):
        return not isinstance(value, Row) or value.length != then.length
    return value == _EMPTY and str(then).endswith(_INDICES)


def _carried(frame: FrameType) -> dict[str, Number]:
    """Return the numbers in variables of the program's function at its loop, which an epoch reads before it sets them.

    Also those in attributes of its objects, if a function reads and then sets them, and none sets them first, nor the
    loop the object; for a model, and others with a base of a library, whose methods may count calls, the loop is to be
    that function. Data are collected in a container that nothing sets, and weights train in place. Arrays that an epoch
    fills are no such data.
    """
    if (loop := next(frames(frame), None)) is None:
        return {}
    carried, found = carried_by(loop.f_code, loop.f_lasti), {}
    for name, value, kind in _numbers(frame):
        of_class = {} if kind is None else _carried_by_methods(kind, loop.f_code)
        variable, _, attribute = name.partition(".")
        key = variable if kind is None else f".{attribute}"
        both = [accesses[key] for accesses in (carried, of_class) if key in accesses]
        by_loop = kind is None or of_program(kind) or key in carried
        if (both or isinstance(value, InPlace)) and all(both) and by_loop and carried.get(variable, True):
            found[name] = value
    return found


@lru_cache(100)
def _carried_by_methods(kind: type, loop: CodeType) -> dict[str, bool]:
    """The same of the attributes that methods of a class set, without those that make an object, and the loop's."""
    found: dict[str, bool] = {}
    for base in own_classes(kind):
        for name, method in vars(base).items():
            method = inspect.unwrap(method)
            if isinstance(method, FunctionType) and name != "__init__" and method.__code__ is not loop:
                for key, carried in carried_by(method.__code__).items():
                    found[key] = carried and found.get(key, True)
    return found


def _held(frame: FrameType) -> dict[str, Number]:
    return {name: value for name, value, _ in _numbers(frame)}


def _of_module(frame: FrameType) -> dict[str, Number]:
    """Return the numbers of the program's module that one of its functions reads, and then sets by `global`."""
    loop = next(frames(frame), None)
    held = {} if loop is None else dict(loop.f_globals)
    own = (one for one in held.values() if type(one) is FunctionType and loop and one.__globals__ is loop.f_globals)
    names = {name for one in own for name in counted_globals(one.__code__)}
    return {name: number for name in names & held.keys() if type(number := _number(held[name])) in (int, float)}


def _numbers(frame: FrameType) -> Iterator[tuple[str, Number, type | None]]:
    """Yield the numbers in variables at the program's loop, and in attributes of objects, with the object's class."""
    loop = next(frames(frame), None)
    for name, value in variables(loop).items():
        if (number := _number(value)) is not _OTHER:
            yield name, number, None
        else:
            held = ((key, _number(one)) for key, one in _attributes(value).items())
            yield from ((f"{name}.{key}", number, type(value)) for key, number in held if number is not _OTHER)


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
                return _OTHER
            return f"[{' '.join(map(str, np.asarray(value).ravel()))}]"
    if issubclass(kind, (np.ndarray, np.generic)) or hasattr(kind, "untyped_storage"):
        return _of_array(value)
    if kind is tuple and 0 < len(value) <= _FEW:  # as the two states of an LSTM
        parts = [_number(part) for part in value]
        return " ".join(parts) if all(type(part) is str for part in parts) else _OTHER
    return _size(value) if kind in (list, set, deque) else _OTHER


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
    """Return the size of data: of arrays, tensors, what has some, or indices; _OTHER for a record of values."""
    if not data:
        return _EMPTY
    with suppress(Exception):  # another thread changes them, or an element raises if it is asked
        one = next(iter(data))
        if type(one) is int:
            return InPlace(f"{len(data)} {_INDICES}")
        parts = one.values() if isinstance(one, dict) else one if isinstance(one, tuple) else (one,)
        if any(getattr(part, "shape", ()) for part in parts):
            return InPlace(f"{len(data)} elements")
    return _OTHER
