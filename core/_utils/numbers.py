"""Numbers that a plain loop keeps from epoch to epoch in variables of its function, such as a patience of its own.

haltune cannot restore them. If a resumed trial begins with the number of its start, although it had another one where
it paused, its program does not restore it either.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FrameType, FunctionType

from .around import attributes, frames, variables

Number = float | None  # None: no value yet, as a best one
_KINDS = (bool, int, float, type(None))
_OF_VARIABLES, _KIND = re.compile("(LOAD|STORE)_(FAST|NAME|GLOBAL|DEREF|ATTR)"), re.compile("LOAD|STORE")


@dataclass
class Numbers:
    """What this process has seen of them: names and values, by trial and by the place where it paused."""

    _starts: dict[Hashable, dict[str, Number]] = field(default_factory=dict)
    _paused: dict[Hashable, dict[str, Number]] = field(default_factory=dict)

    def starts(self, trial: Hashable, frame: FrameType) -> None:
        """State that a loop of a trial starts from its beginning, in a frame."""
        self._starts[trial] = _carried(frame)

    def pauses(self, place: Hashable, frame: FrameType) -> None:
        """State that the loop pauses."""
        self._paused[place] = _held(next(frames(frame), None))

    def resumes(self, trial: Hashable, place: Hashable, frame: FrameType) -> dict[str, tuple[Number, Number]]:
        """Return those that begin as at the start, although they had changed at the pause: their values at both."""
        started, paused, now = self._starts.get(trial, {}), self._paused.get(place, {}), _carried(frame)
        return {
            name: (value, paused[name])
            for name, value in started.items()
            if name in paused and paused[name] != value and name in now and now[name] == value
        }


def _carried(frame: FrameType) -> dict[str, Number]:
    """Return the numbers in variables of the program's function at its loop, which an epoch reads before it sets them.

    Also those in attributes of its objects, if a function that sets them reads them before.
    """
    loop = next(frames(frame), None)
    if loop is None:
        return {}
    read = _reads(loop.f_code, loop.f_lasti)
    return {
        name: value
        for name, value, kind in _numbers(loop)
        if (name in read if kind is None else f".{name.partition('.')[2]}" in read | _reads_of(kind))
    }


@lru_cache(100)
def _reads(code: CodeType, place: int = -1) -> frozenset[str]:
    """Return the variables that a function reads before it sets them, after an instruction of it.

    And each attribute that it reads and then sets, with a dot before its name.
    """
    first: dict[str, str] = {}  # "LOAD" or "STORE"
    stored = set()
    for step in dis.get_instructions(code):
        if step.offset > place and (found := _OF_VARIABLES.match(step.opname)):
            names = step.argval if isinstance(step.argval, tuple) else (step.argval,)  # Python 3.13 joins two
            for name, kind in zip(names, _KIND.findall(step.opname), strict=False):
                key = f".{name}" if found[2] == "ATTR" else name
                first.setdefault(key, kind)
                stored |= {key} if kind == "STORE" else set()
    return frozenset(key for key, kind in first.items() if kind == "LOAD" and (key[0] != "." or key in stored))


@lru_cache(100)
def _reads_of(kind: type) -> frozenset[str]:
    """Return the attributes that a method of a class reads and then sets."""
    own = [inspect.unwrap(one) for base in kind.__mro__ for one in vars(base).values() if isinstance(one, FunctionType)]
    return frozenset().union(*(_reads(one.__code__) for one in own if isinstance(one, FunctionType)))


def _held(frame: FrameType | None) -> dict[str, Number]:
    return {} if frame is None else {name: value for name, value, _ in _numbers(frame)}


def _numbers(frame: FrameType) -> Iterator[tuple[str, Number, type | None]]:
    """Yield the numbers in variables, and in attributes of objects, with the class of the object."""
    for name, value in variables(frame):
        if type(value) in _KINDS:
            yield name, value, None
        elif not hasattr(type(value), "reset"):  # else a meter, which each epoch sets to 0
            held = attributes(value).items()
            yield from ((f"{name}.{key}", number, type(value)) for key, number in held if type(number) in _KINDS)
