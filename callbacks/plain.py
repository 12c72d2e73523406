"""Plain data in the attributes of a program's objects: what changes in a training, and whether it can be saved.

A mark is a text that changes with a value. Every loop saves what changes, and names by `unsaved` what it cannot save:
large data, of which a sample changes, and an iterator that is under way. `note` and `is_shared` tell the state of a
trial from what a program collects from all trials.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import sys
import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from haltune.errors import NotSupported

from . import objects
from .tensors import fingerprint_of, local

_SUMMED = 1 << 30  # bytes of an array whose sum is a part of its mark
_FEW = 1000  # elements of a sample
_TEXT = 100  # characters of a text that is its own mark
# reference to a list, an object or the like of the last fits, the trial of the fit, the mark at the fit's start
_HELD: list[tuple[Callable[[], Any], int, str]] = []
_MOST_HELD = 256
_LOCK = threading.RLock()  # threads may train trials at a time
SET = "set "  # before the mark of what a hook of a fit's start has set, which counts as a change
_COUNT = itertools.count()


def mark(
    value: Any,
    constant: tuple[type, ...] = (),
    weights: Container[int] = (),
    tensors: bool = False,
    small: bool = False,
) -> str:
    """Return a text that changes with the value; for what is not plain data, with the object. See `is_data`.

    Of large data it changes with a sample. With `tensors`, a value with a small or a huge one counts as changed at any
    time.
    """
    if type(value) in objects.PLAIN and not (isinstance(value, str) and len(value) > _TEXT):
        return f"plain {value!r}"
    try:
        state = objects.data_of(value, constant, weights, tensors, small, copies=False)
        text = json.dumps(state, default=_mark_of)
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    except objects.TooLarge:
        return f"large {'' if small else json.dumps(_sample(value))}"
    except (NotSupported, TypeError, ValueError, RuntimeError):
        return f"object {id(value)}"


def _sample(value: Any, few: int = _FEW) -> Any:
    """Return a few elements of a value, how many it has, and the sum of an array that is not huge; fewer of each."""
    if isinstance(value, (str, bytes)) and len(value) > _TEXT:
        return [len(value), str(value[:: len(value) // (few + 1) + 1])]
    if value is None or isinstance(value, (bool, int, float, str, bytes)) or objects.is_made_again(value):
        return str(value)
    if not few:
        return ""
    if isinstance(value, np.ndarray):
        whole = value.dtype.kind in "biufc" and value.nbytes <= _SUMMED and not isinstance(value, np.memmap)
        with np.errstate(all="ignore"):
            total = value.sum() if whole else ""
        return [list(value.shape), str(total), str(value.flat[:: value.size // few + 1].tolist())]
    if hasattr(type(value), "untyped_storage"):
        flat = local(value).reshape(-1)
        total = ""
        with suppress(RuntimeError):  # some kinds of numbers have no sum
            total = flat.sum().item() if flat.numel() * flat.element_size() <= _SUMMED else ""
        return [list(value.shape), str(total), str(flat[:: flat.numel() // few + 1].tolist())]
    if isinstance(value, tuple(objects.CONTAINERS)):
        items: Any = value.items() if isinstance(value, dict) else value
        count = len(items)
        chosen = list(itertools.islice(items, 0, None, count // few + 1))
        if isinstance(value, dict):
            return [count, [[str(key), _sample(one, few // 20)] for key, one in chosen]]
        return [count, [_sample(one, few // 20) for one in chosen]]
    inner = objects.attributes_of(value)
    return {str(name): _sample(one, few // 10) for name, one in inner.items()}


def _mark_of(tensor: Any) -> Any:
    """Return what changes with a tensor, of a size that is read faster than it is saved; else something new."""
    with suppress(RuntimeError):  # a kind that cannot be read so
        if objects.SMALL < tensor.nbytes <= _SUMMED and str(tensor.layout) == "torch.strided":
            return fingerprint_of([tensor])
    return next(_COUNT)


def is_data(marked: str) -> bool:
    """Return whether a mark is that of plain data that can be saved."""
    return not marked.startswith(("large ", "object "))


def is_large(marked: str) -> bool:
    """Return whether a mark is that of data that are too large to be saved."""
    return marked.startswith("large ")


def changes(
    values: Mapping[str, Any], marks: Mapping[str, str], **how: Any
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Return what changed since the marks: states of plain data, names of data that are lost, names of other objects.

    Lost are large data and iterators that are under way. how: the options of `mark`.
    """
    states: dict[str, Any] = {}
    lost: list[str] = []
    others: list[str] = []
    for name, value in values.items():
        now = mark(value, **how)
        changed = now != marks.get(name)
        if not changed and type(value) in objects.PLAIN:
            continue
        late = changed and is_made_late(value, marks.get(name))
        if is_data(now) and not late:
            if changed:
                states[name] = started(objects.data_of(value, **how), marks.get(name))
        elif late or (changed and is_large(now)) or objects.under_way(value):
            lost.append(name)
        elif changed and not callable(value):
            others.append(name)
    return states, lost, others


def started(state: Any, marked: str | None) -> Any:
    """Return the state of an attribute with its mark when the trial first started, for `is_shared`."""
    if isinstance(state, dict) and "items" in state and marked is not None:
        state["start"] = marked.removeprefix(SET)
    return state


def is_made_late(value: Any, before: str | None) -> bool:
    """Return whether a dict makes its missing values by a function, which cannot be saved, and the start lacked it.

    before: the mark of the attribute at the start; None: there was none.
    """
    made = getattr(value, "default_factory", None)
    if made is None or objects.kind_named(objects.name_of(made)) is not None:
        return False
    return before is None or before.removeprefix(SET) in (mark(None), mark({}))


READ_AGAIN = "its data or samplers change while they are read, and an epoch is read again from its start"


def unsaved(name: str, value: Any) -> str:
    """Return the message about an attribute that changes and cannot be saved."""
    if objects.under_way(value):
        return (
            f"{name} is an iterator, whose place cannot be saved (delete it at the end of each epoch, and make a new "
            "one in the next)"
        )
    if is_large(mark(value)):
        return (
            f"{name} changes in training, or at its start, and is too large to be saved (above 16 MB, or a "
            "million values; delete it at the end of each epoch if no later step reads it)"
        )
    if is_made_late(value, None):
        return (
            f"{name} is made in training, with a function for its missing values, which cannot be saved (make it in "
            "__init__, or give it a class, such as list)"
        )
    return f"{name} changes in training and is not plain data (numbers, texts, arrays, or lists and dicts of them)"


def copied(name: str) -> str:
    """Return the message about an attribute with weights that a hook of the start of a fit copies."""
    return f"{name} is a copy of the weights, and a resumed fit copies later ones (copy them before the fit)"


# what trials share


def note(value: Any, trial: int, marked: str, before: str | None = None) -> None:
    """Note that a fit of a trial starts with a list, an object or the like, for `is_shared`.

    marked: its mark. before: that which was noted before a hook of the start has changed it.
    """
    if _is_constant(value):
        return
    with _LOCK:
        forget()
        refers = next((refers for refers, *_ in _HELD if refers() is value), None) or _reference(value)
        held = [one for one in _HELD if not (one[0] is refers and one[1] == trial and one[2] in (marked, before))]
        _HELD[:] = [*held, (refers, trial, marked)][-_MOST_HELD:]


def forget() -> None:
    """Forget what nothing else holds, before a fit needs the memory: a list may have tensors of a device."""
    with _LOCK:
        _HELD[:] = [one for one in _HELD if one[0]() is not None]


def _is_constant(value: Any) -> bool:
    """Return whether nothing in a value can change."""
    if isinstance(value, (tuple, frozenset)):
        return all(map(_is_constant, value))
    return (
        value is None or isinstance(value, (bool, int, float, str, bytes, np.generic)) or objects.is_made_again(value)
    )


def _reference(value: Any) -> Callable[[], Any]:
    """Return a reference that gives None once nothing else holds the value, whose memory a fit may need."""
    try:
        return weakref.ref(value)
    except TypeError:
        return _OfContainer(value)


class _OfContainer:
    """Reference to a list or a dict, which Python cannot refer to weakly."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __call__(self) -> Any:
        return self._value if sys.getrefcount(self._value) > _OWN_REFERENCES else None


_OWN_REFERENCES = 2  # that of the object, and that of the argument


def is_shared(value: Any, state: Any, trial: int) -> bool:
    """Return whether a value holds what a program collects from all trials, rather than a state of this trial.

    It does if a fit of another trial has started with it and with other contents, so that no program has reset it; or
    if it has all that is in the state, and more, such as records that the program has read from a file. A copy from
    before the pause would lose the rest. A value that is as when the trial first started is not shared, such as a list
    from which the trial has taken some.
    """
    if value is None:  # as those are that no longer exist
        return False
    with _LOCK:
        starts = [(of, marked) for refers, of, marked in _HELD if refers() is value]
    own = {marked for of, marked in starts if of == trial}
    if any(of != trial and own != {marked} for of, marked in starts):
        return True
    if not isinstance(value, tuple(objects.CONTAINERS)) or not isinstance(state, dict) or not state.get("items"):
        return False
    if state.get("start") == mark(value):
        return False
    with suppress(NotSupported, TypeError, ValueError):
        texts = [json.dumps(item) for item in objects.data_of(value)["items"]]
        before = [json.dumps(item) for item in state["items"]]
        ordered = isinstance(value, (list, tuple, deque))
        return texts[: len(before)] == before if ordered else {*before} <= {*texts}
    return False


def numbered(callbacks: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield callbacks with names: their numbers among those of a class. A resumed fit may have others before them."""
    counts = Counter[str]()
    for callback in callbacks:
        kind = type(callback).__qualname__.rpartition(".")[2]
        yield f"{counts[kind]}.{kind}", callback
        counts[kind] += 1
