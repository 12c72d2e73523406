"""Numbers that a plain loop keeps from epoch to epoch in variables of its function, such as a patience of its own.

haltune cannot restore them. If a resumed trial starts with the first value of a number, although it paused with another
one, its program does not restore it either. Random keys of JAX count as numbers, too. So do weights, arrays and tensors
that the loop sets, such as the state of an LSTM or a batch that is read ahead, and how many elements collected data
have, such as a replay buffer. Of functions and objects that it replaces, the names count.
A counter of the module, which a function counts up by `global`, or an object there, such as a data set that becomes
harder, continues from trial to trial instead.
"""

from __future__ import annotations

import dis
import inspect
import itertools
import re
import sys
from collections import deque
from collections.abc import Collection, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Any
from weakref import ref

import numpy as np

from .around import attributes, frames, is_own, variables

# str: of a random key, an array, a tensor, collected data, a function or an object; None: no value yet, as a best one
Number = float | str | None
_KINDS = (bool, int, float, type(None))
_FEW = 4  # rows of an array, parts of a tuple
_OTHER = object()
_WIDE = 8  # more bytes than those before a jump that belong to it
_OF_VARIABLES, _KIND = re.compile("(LOAD|STORE)_(FAST|NAME|GLOBAL|DEREF|ATTR)"), re.compile("LOAD|STORE")


class InPlace(str):
    """Of what nothing sets while it changes: how many elements collected data have, a few numbers of a weight."""


_EMPTY, _INDICES = InPlace("no elements"), "indices"


@dataclass(frozen=True)
class _OfModule:
    """A number of the program's module, or in an object there, which is held weakly."""

    value: Any
    of: Any = None  # the weak reference

    @property
    def owner(self) -> Any:
        return None if self.of is None else self.of()


@dataclass
class Numbers:
    """What this process has seen of them: names and values, by trial and by the place where it paused."""

    _starts: dict[Hashable, dict[str, Number]] = field(default_factory=dict)
    _paused: dict[Hashable, dict[str, Number]] = field(default_factory=dict)
    # of the module, by place; None: where a trial starts
    _counters: dict[Hashable, dict[str, _OfModule]] = field(default_factory=dict)

    def starts(self, trial: Hashable, frame: FrameType) -> None:
        """State that a loop of a trial starts from its beginning, in a frame."""
        self._starts[trial] = _held(frame)

    def pauses(self, place: Hashable, frame: FrameType) -> None:
        """State that the loop pauses."""
        self._paused[place], self._counters[place] = _held(frame), _of_module(frame)

    def strays(self, place: Hashable, frame: FrameType) -> dict[str, tuple[Number, Number]]:
        """Return those of the module that are not as where a trial paused, or for None as where the first one started.

        Both values: the present one, and that of then.
        """
        now = _of_module(frame)
        then = self._counters.setdefault(place, now)
        both = [(name, one, then[name]) for name, one in now.items() if name in then]
        return {
            name: (one.value, before.value)
            for name, one, before in both
            if one.value != before.value and one.owner is before.owner  # another object is of another trial
        }

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
            and not (value == _EMPTY and str(paused[name]).endswith(_INDICES))  # a record of epochs
        }


def _carried(frame: FrameType) -> dict[str, Number]:
    """Return the numbers in variables of the program's function at its loop, which an epoch reads before it sets them.

    Also those in attributes of its objects, if a function reads and then sets them, and none sets them first. Data are
    collected in a container that nothing sets, and weights train in place. Arrays that an epoch fills are no such data.
    """
    if (loop := next(frames(frame), None)) is None:
        return {}
    carried, found = carried_by(loop.f_code, loop.f_lasti), {}
    for name, value, kind in _numbers(frame):
        of_class = {} if kind is None else _carried_by_methods(kind)
        key = name if kind is None else f".{name.partition('.')[2]}"
        both = [accesses[key] for accesses in (carried, of_class) if key in accesses]
        if (both or isinstance(value, InPlace)) and all(both):
            found[name] = value
    return found


def end_of_loop(code: CodeType, place: int) -> int:
    """Return the offset behind the loop of a function that is at an instruction, or behind all if it is at none."""
    steps = [*dis.get_instructions(code)]
    at = next((step for step in reversed(steps) if step.offset <= place), None)
    return int(at.argval) if at is not None and at.opname == "FOR_ITER" else steps[-1].offset + 1


@lru_cache(1000)
def carried_by(code: CodeType, place: int = -1) -> dict[str, bool]:
    """Return the variables that a function sets after an instruction, and whether it may read each before it sets it.

    Likewise the attributes that it sets, with a dot before their names. Others read these. So one that a loop sets in
    some epochs alone, as behind `if epoch == 5`, counts, too. The loops within an epoch set what their code sets.
    """
    over = end_of_loop(code, place)
    steps = [step for step in dis.get_instructions(code) if step.offset > place]
    before = {step.offset: earlier for earlier, step in itertools.pairwise(steps)}
    stored = {*code.co_cellvars, *code.co_freevars}  # another function may set these
    used, read = set[str](), set[str]()
    now: set[str] | None = set()  # what is set on each way to an instruction; None: only an exception leads there
    jumps: dict[int, set[str]] = {}  # the same of the ways that jump to an offset
    ends: list[set[str]] = []  # what is set at each end of an epoch
    within = set[str]()  # attributes that an epoch sets
    until = 0  # the end of a loop within an epoch
    for step in steps:
        if step.offset >= over:  # behind the loop, or in a handler of an exception in it
            now = None
        elif (joined := jumps.get(step.offset)) is not None:
            now = {*joined} if now is None else now & joined
        cleared = step.opname.endswith("_AND_CLEAR")  # by a comprehension, from Python 3.12 on
        if not cleared and (found := _OF_VARIABLES.match(step.opname)):
            names = step.argval if isinstance(step.argval, tuple) else (step.argval,)  # Python 3.13 joins two
            for name, kind in zip(names, _KIND.findall(step.opname), strict=False):
                key = f".{name}" if found[2] == "ATTR" else name
                used.add(key)
                if kind == "LOAD" and key not in (stored if now is None else now):
                    read.add(key)
                elif kind == "STORE":
                    stored.add(key)
                    now = now if now is None else now | {key}
        elif step.opname == "FOR_ITER":
            until = max(until, step.argval)
        elif step.offset < until:
            continue
        elif step.opname in ("RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE"):
            now = None
        elif "JUMP" in step.opname:
            target, ahead = step.argval, step.argval > step.offset
            last = before.get(target)  # of a `while` loop, which jumps back behind its test
            if ahead and last is not None and "JUMP_BACKWARD" in last.opname and last.argval > step.offset:
                until = target
                continue
            if ahead and now is not None:
                jumps[target] = jumps.get(target, now) & now
            elif place - _WIDE < target <= place and now is not None:
                ends.append(now)
                within = {key for key in stored if key[0] == "."}
            if (ahead or target <= place) and "_IF_" not in step.opname:
                now = None
    if ends:
        read |= within - set.intersection(*ends)
    return {key: key in read for key in used & stored}


@lru_cache(100)
def _carried_by_methods(kind: type) -> dict[str, bool]:
    """The same of the attributes that methods of a class set, without those that make an object."""
    found: dict[str, bool] = {}
    for base in filter(lambda base: is_own(base.__module__), kind.__mro__):
        for name, method in vars(base).items():
            if isinstance(method := inspect.unwrap(method), FunctionType) and name != "__init__":
                for key, carried in carried_by(method.__code__).items():
                    found[key] = carried and found.get(key, True)
    return found


def _held(frame: FrameType) -> dict[str, Number]:
    return {name: value for name, value, _ in _numbers(frame)}


def _of_module(frame: FrameType) -> dict[str, _OfModule]:
    """Return the numbers of the program's module that a function of it reads, and then sets by `global`.

    Also those in attributes of objects of the module, if the loop, a function or a method sets them as it trains.
    """
    loop = next(frames(frame), None)
    if loop is None:
        return {}
    held, code = dict(loop.f_globals), loop.f_code
    own = [one.__code__ for one in held.values() if type(one) is FunctionType and one.__globals__ is loop.f_globals]
    names = {name for one in own for name in _set_globals(one) if carried_by(one)[name]}
    numbers = {name: _OfModule(_number(held[name])) for name in names & held.keys()}
    sets = [carried_by(code, loop.f_lasti), *(carried_by(one) for one in own if one is not code)]
    for name, value in held.items():
        inner = _attributes(value)
        methods = _carried_by_methods(type(value)) if inner else {}
        for key in inner.keys() - _set_before(code, loop.f_lasti):
            both = [found[f".{key}"] for found in (*sets, methods) if f".{key}" in found]
            if both and all(both):
                with suppress(TypeError):  # it cannot be referred to weakly
                    numbers[f"{name}.{key}"] = _OfModule(inner[key], ref(value))
    return {name: one for name, one in numbers.items() if type(one.value) in (int, float)}


@lru_cache(100)
def _set_before(code: CodeType, place: int) -> frozenset[str]:
    """Return the names of the attributes that a function sets before an instruction."""
    steps = (step for step in dis.get_instructions(code) if step.offset <= place)
    return frozenset(step.argval for step in steps if step.opname == "STORE_ATTR")


@lru_cache(1000)
def _set_globals(code: CodeType) -> frozenset[str]:
    return frozenset(step.argval for step in dis.get_instructions(code) if step.opname == "STORE_GLOBAL")


def _numbers(frame: FrameType) -> Iterator[tuple[str, Number, type | None]]:
    """Yield the numbers in variables at the program's loop, and in attributes of objects, with the object's class."""
    loop = next(frames(frame), None)
    sets = {} if loop is None else carried_by(loop.f_code, loop.f_lasti)
    for name, value in () if loop is None else variables(loop):
        if (number := _number(value)) is _OTHER:
            inner = ((key, _number(one), one) for key, one in _attributes(value).items())
            held = ((key, _object(one) if n is _OTHER and sets.get(f".{key}") else n) for key, n, one in inner)
            yield from ((f"{name}.{key}", n, type(value)) for key, n in held if n is not _OTHER)
            number = _object(value) if sets.get(name) else _OTHER
        if number is not _OTHER:
            yield name, number, None


def _object(value: Any) -> Any:
    """Return the name of a function, or of the class of an object that has a state or is of the program; else _OTHER.

    A loop may replace one in some epoch, such as a loss or a transform, or make an average then.
    """
    kind = type(value)
    if kind is FunctionType:
        return value.__qualname__
    has_state = callable(getattr(kind, "state_dict", None)) or is_own(kind.__module__)
    return kind.__qualname__ if has_state and not kind.__module__.startswith("haltune.") else _OTHER


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object of the program; if its class has a base of a library, no collected data."""
    found = attributes(value)
    if not found and is_own(type(value).__module__):
        with suppress(Exception):  # it raises if it is asked
            return {name: one for name, one in vars(value).items() if type(one) not in (list, set, deque)}
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
    """Return the number that an array or a tensor is, or a few of its numbers as text; _OTHER for a row of values."""
    with suppress(Exception):  # it is on no device, or has other elements than numbers
        if value.ndim == 0:
            number = value.item()
            return number if type(number) in _KINDS else _OTHER
        trains = getattr(value, "requires_grad", False) and value.is_leaf
        # a row of values may be a record, and so may an empty array, to which rows are added; a weight is none
        if len(value) and (value.ndim > 1 or trains):
            few = value[(slice(None, None, len(value) // _FEW + 1), *(n // 2 for n in value.shape[1:]))]
            text = f"[{' '.join(f'{number:.6g}' for number in few.tolist())}]"
            return InPlace(text) if trains else text
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
