"""The program's own data sets, samplers and collators in a plain loop: numbers and orders that each pass changes.

A sampler may shuffle its batches in place, and a stream may count its passes. A training that resumes makes them again,
as they were at the start. So what has changed is saved with the random state, and put back.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b
from types import MethodType
from typing import Any

import numpy as np

from .around import OPAQUE, attributes, of_library
from .orders import Variables

_PARTS = (
    "dataset", "datasets", "sampler", "batch_sampler", "data_source", "collate_fn", "transform", "transforms",
    "target_transform",
)  # fmt: skip
_PLAIN = frozenset({type(None), bool, int, float, str})
_MOST, _FEW, _DEEP = 10**6, 20, 100  # numbers of an attribute, elements of a list, characters of a place
State = tuple[str | int | None, Any]  # the mark where the trial first started, None for what was not there; the value


class OwnData:
    """What the program's own data of a plain loop hold, as its training started."""

    def __init__(self) -> None:
        self._starts: dict[str, tuple[Any, dict[str, str | int]]] = {}  # by place: the object, and its marks
        self._saved: dict[str, State] = {}  # states of the checkpoint

    def begins(self, variables: Variables, saved: dict[str, State]) -> tuple[list[str], set[int], Variables]:
        """State that a loop starts, and put back what `changed` returned.

        Return the names of rows that are other ones now, the ids of the rows that are saved, and the other attributes.
        """
        self._saved |= saved
        parts, others = dict(parts_in(variables)), []
        for name, (start, state) in saved.items():
            place, _, attribute = name.rpartition(".")
            if (part := parts.get(place)) is not None:
                held, value = vars(part).get(attribute), _read(state)
                there = _mark(held) if attribute in vars(part) else None
                if type(state) is not dict or there == start or _sorted(held) == _sorted(value):
                    _put(part, attribute, held, value)
                elif there != _mark(value):
                    others.append(name.partition(".")[2])
        known = {place: start for place, start in self._starts.items() if start[0] is parts.get(place)}
        self._starts = {place: (part, _held(part)) for place, part in parts.items() if place not in known} | known
        held = [(f"{of}.{n}", mark, vars(part)[n]) for of, part in parts.items() for n, mark in _held(part).items()]
        saved_here = {id(value) for _, mark, value in held if type(mark) is str}
        return others, saved_here, [(name, value) for name, mark, value in held if type(mark) is int]

    def changed(self, variables: Variables) -> tuple[dict[str, State], Variables]:
        """Return the states of what has changed since, and what earlier attempts changed; and the other attributes.

        No state of an object that now holds another object, too, such as an open file: its numbers may be of that.
        """
        found, others = dict[str, State](), list[tuple[str, Any]]()
        for place, part in parts_in(variables):
            of, start = self._starts.get(place, (None, {}))
            now = _held(part)
            others += [(f"{place}.{name}", vars(part)[name]) for name, mark in now.items() if type(mark) is int]
            changed = {name for name, mark in now.items() if of is part and start.get(name) != mark}
            if all(type(now[name]) is str for name in changed):
                for name in changed | {name for name in now if f"{place}.{name}" in self._saved}:
                    first, _ = self._saved.get(f"{place}.{name}", (start.get(name), None))
                    found[f"{place}.{name}"] = first, _written(vars(part)[name])
        return found, others


def persistent(variables: Variables) -> str | None:
    """Return the name of a loader of torch whose workers have started and persist, or None."""
    for name, value in _reached(variables):
        # torch has no public name for the workers: without it, a loader that is read only later would count
        with suppress(Exception):  # a data set of the program that raises another error than AttributeError if asked
            if getattr(value, "persistent_workers", False) is True and vars(value).get("_iterator", value) is not None:
                return name.partition(".")[2]
    return None


def parts_in(variables: Variables) -> list[tuple[str, Any]]:
    """Return by place the objects of the program's own classes in loaders of torch, and data in variables."""
    found: dict[int, tuple[str, Any]] = {}

    def search(part: Any, place: str) -> None:
        part = part.__self__ if type(part) is MethodType else part
        if id(part) in found or len(place) > _DEEP or type(part) in OPAQUE:
            return
        if isinstance(part, (list, tuple)):
            for i, one in enumerate(part if len(part) <= _FEW else ()):
                search(one, f"{place}.{i}")
        elif hasattr(part, "__dict__") and not hasattr(part, "parameters"):
            found[id(part)] = place, part
            for name in _PARTS:
                search(vars(part).get(name), f"{place}.{name}")

    for name, value in _reached(variables):
        with suppress(Exception):  # an object of the program that raises where it is looked at
            search(value, name)
    return [(place, part) for place, part in found.values() if not of_library(type(part).__module__)]


def _reached(variables: Variables, depth: int = 3) -> Iterator[tuple[str, Any]]:
    """Yield the loaders, data sets and samplers in variables, in objects of the program and in short lists there."""
    torch: Any = sys.modules.get("torch.utils.data")
    kinds = () if torch is None else (torch.DataLoader, torch.Dataset, torch.Sampler)
    for name, value in variables if kinds else ():
        if issubclass(kind := type(value), kinds):
            yield name, value
        elif depth:
            inner: Any = attributes(value).items()
            if kind in (list, tuple, dict) and len(value) <= _FEW:
                inner = value.items() if kind is dict else enumerate(value)
            yield from _reached([(f"{name}.{key}", one) for key, one in inner], depth - 1)


class _Other(Exception):
    """A value is no number, text or row of them, or a long one."""


def _held(part: Any) -> dict[str, str | int]:
    """Return the marks of the attributes of an object: a text of numbers, texts and rows; the id of other objects."""
    return {name: _mark(value) or id(value) for name, value in vars(part).items()}


def _mark(value: Any) -> str | None:
    """Return a text that changes with a number, a text or a row of them; None for others."""
    digest, left = blake2b(digest_size=16), _MOST

    def add(value: Any) -> None:
        nonlocal left
        kind = type(value)
        if kind not in (*_PLAIN, list, tuple):
            value = _array(value)
        left -= 1 if kind in _PLAIN else value.size if isinstance(value, np.ndarray) else len(value)
        if left < 0:
            raise _Other
        if isinstance(value, np.ndarray):
            digest.update(f"{kind.__name__} {value.dtype} {value.shape} ".encode() + value.tobytes())
        elif kind in _PLAIN or {*map(type, value)} <= _PLAIN:
            digest.update(f"{kind.__name__} {value!r} ".encode())
        else:
            digest.update(f"{kind.__name__} {len(value)} ".encode())
            for one in value:
                add(one)

    with suppress(Exception):  # `_Other`, or an object that raises where it is looked at
        add(value)
        return digest.hexdigest()
    return None


def _array(value: Any) -> Any:
    """Return the array of one, or of a tensor in memory that does not train. Raises _Other for others."""
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        return np.asarray(value)
    if hasattr(type(value), "untyped_storage") and value.device.type == "cpu" and not value.requires_grad:
        return value.numpy()
    raise _Other


def _written(value: Any) -> Any:
    """Return a value as JSON: itself, or the kind and the elements of a row."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in (list, tuple):
        return {kind.__name__: [*value] if {*map(type, value)} <= _PLAIN else [_written(one) for one in value]}
    of = "array" if isinstance(value, (np.ndarray, np.generic)) else "tensor"
    array = _array(value)
    return {of: array.tolist(), "dtype": str(array.dtype)}


def _read(state: Any) -> Any:
    """Return what `_written` was given."""
    if type(state) is not dict:
        return state
    if "dtype" not in state:
        [(kind, items)] = state.items()
        items = [_read(one) for one in items]
        return items if kind == "list" else tuple(items)
    array = np.array(state.get("array", state.get("tensor")), state["dtype"])
    return sys.modules["torch"].from_numpy(array) if "tensor" in state else array[()]


def _sorted(value: Any) -> str | None:
    """Return the same text for rows that differ in their order alone."""
    with suppress(Exception):
        return json.dumps(sorted(json.dumps(_written(one)) for one in value))
    return None


def _put(part: Any, name: str, held: Any, value: Any) -> None:
    """Set an attribute; a row of the same kind in place, because other objects may have it, too."""
    with suppress(Exception):  # a row that cannot be written
        if type(held) is type(value) and type(value) not in (*_PLAIN, tuple) and len(held) == len(value):
            held[:] = value
            return
    with suppress(Exception):  # a property without a setter
        setattr(part, name, value)
