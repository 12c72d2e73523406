"""The orders of lists and of arrays of indices that a plain loop shuffles in place, as random.shuffle(train_data) does.

A training that resumes makes its list again, with the same elements. They are put in the order of the pause by what
they contain, so nothing changes where the program has done so itself. Lists and arrays of one length may belong
together, as texts and labels do: if one of them cannot be put back, none is.
"""

from __future__ import annotations

import base64
import hashlib
import marshal
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import PurePath
from typing import Any

import numpy as np

from .around import attributes, frames, is_made_by_python, variables

Order = tuple[str, str] | None  # a digest of the elements, and their places; None: they cannot be read
_LONGEST, _SHORT, _SAMPLED = 10**6, 20, 500


class Orders:
    """Those of a trial."""

    def __init__(self) -> None:
        # name -> id of the list or array where the loop began, and its mark
        self._starts: dict[str, tuple[int, Any]] = {}
        self._orders: dict[str, Order] = {}  # of what has been shuffled since the trial first started
        self._read: dict[str, tuple[Any, Order]] = {}  # name -> mark and order, when its elements were read last

    def begins(self, saved: Mapping[str, Order]) -> list[str]:
        """State that a loop begins, and restore orders; return the names of what cannot be restored."""
        self._orders |= saved
        held = _held()
        here = {name: (value, order) for name, order in saved.items() if (value := held.get(name)) is not None}
        places = {name: _places(value, order) for name, (value, order) in here.items()}
        lost = {len(value) for name, (value, _) in here.items() if places[name] is None}
        for name, (value, _) in here.items():
            if len(value) not in lost:
                value[:] = value[places[name]] if isinstance(value, np.ndarray) else [value[i] for i in places[name]]
        self._starts = {name: self._start(name, value) for name, value in held.items()}
        return sorted(name.partition(".")[2] for name, (value, _) in here.items() if len(value) in lost)

    def _start(self, name: str, value: Any) -> tuple[int, Any]:
        before = self._starts.get(name)
        return before if before is not None and before[0] == id(value) else (id(value), _mark(value))

    def states(self) -> dict[str, Order]:
        """Return the present orders of what the program has shuffled."""
        if not self._starts:
            return {}
        held = {name: value for name, value in _held().items() if self._starts.get(name, (0,))[0] == id(value)}
        now = {name: _mark(value) for name, value in held.items()}
        starts = {name: self._starts[name][1] for name in now}
        moved = {name for name, mark in now.items() if not np.array_equal(mark, starts[name])}
        shuffled = {name for name in moved if _is_shuffled(held[name], now[name], starts[name])}
        others = {len(held[name]) for name in moved - shuffled}
        for name in shuffled | (self._orders.keys() & now.keys()):
            self._orders[name] = None if len(held[name]) in others else self._order(name, held[name], now[name])
        return dict(self._orders)

    def _order(self, name: str, value: Any, mark: Any) -> Order:
        known = self._read.get(name)
        if known is None or not np.array_equal(known[0], mark):
            order = None
            with suppress(Exception):  # an element that cannot be read
                digest, by_key = _sorted(value)
                ranks = np.empty(len(by_key), "<i4")
                ranks[by_key] = np.arange(len(by_key))
                order = digest, base64.b64encode(ranks.tobytes()).decode()
            self._read[name] = known = mark, order
        return known[1]


def _held() -> dict[str, Any]:
    """Return the lists and arrays of the program's functions on the stack, also in their objects and short dicts."""
    found: dict[str, Any] = {}
    for frame in frames():
        for name, value in variables(frame):
            inner = value if type(value) is dict and len(value) <= _SHORT else attributes(value)
            for key, one in ((None, value), *inner.items()):
                of_array = type(one) is np.ndarray and one.ndim > 0
                if (of_array or type(one) is list) and 1 < len(one) <= _LONGEST and not name.startswith("__"):
                    found.setdefault(f"{frame.f_code.co_name}.{name}{'' if key is None else f'.{key}'}", one)
    return found


def _mark(value: Any) -> Any:
    """Return an array that changes with the order: ids of elements, indices, or a sample of other arrays."""
    if isinstance(value, list):
        return np.fromiter(map(id, value), np.uint64, len(value))
    if value.ndim == 1 and value.dtype.kind in "iu":
        return value.copy()
    return value[tuple(slice(None, None, n // (8 if i else _SAMPLED) + 1) for i, n in enumerate(value.shape))].copy()


def _is_shuffled(value: Any, now: Any, start: Any) -> bool:
    """Return whether it has the same elements as at the start, and those of an array are indices."""
    indices = isinstance(value, list) or (value.ndim == 1 and value.dtype.kind in "iu")
    if not indices or len(now) != len(start) or not np.array_equal(np.sort(now), np.sort(start)):
        return False
    return isinstance(value, list) or len(np.unique(now)) == len(now)


def _places(value: Any, order: Order) -> Any:
    """Return where the elements of an order are now; None if it has others."""
    with suppress(Exception):  # an element that cannot be read
        if order is not None and (isinstance(value, list) or value.flags.writeable):
            digest, by_key = _sorted(value)
            if digest == order[0]:
                return by_key[np.frombuffer(base64.b64decode(order[1]), "<i4")]
    return None


def _sorted(value: Any) -> tuple[str, Any]:
    """Return a digest of the elements of a list or an array, and their places by their keys."""
    elements = value.tolist() if isinstance(value, np.ndarray) else value
    keys = np.frombuffer(b"".join(hashlib.blake2b(_bytes(one), digest_size=8).digest() for one in elements), "<u8")
    by_key = np.argsort(keys, kind="stable")
    return hashlib.blake2b(keys[by_key].tobytes(), digest_size=16).hexdigest(), by_key


def _bytes(value: Any) -> bytes:
    try:
        return marshal.dumps(value, 0)  # of later formats, interned texts differ
    except ValueError:
        return marshal.dumps(_plain(value), 0)


def _plain(value: Any, depth: int = 8) -> Any:
    """Return what an element contains. Raises TypeError if that cannot be read."""
    kind = type(value)
    if not depth:
        raise TypeError("it is nested too deep")
    if isinstance(value, (list, tuple)):
        return [_plain(one, depth - 1) for one in value]
    if isinstance(value, dict):
        return [(_plain(key, depth - 1), _plain(one, depth - 1)) for key, one in value.items()]
    if hasattr(kind, "untyped_storage"):
        import torch

        flat = value.detach().cpu().reshape(-1)
        return [*value.shape], str(value.dtype), flat.view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return [*value.shape], value.dtype.str, value.tobytes()
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, weakref.ref) or value is None:  # to what holds it
        return None
    if is_made_by_python(kind):
        return kind.__qualname__, _plain(object.__getstate__(value), depth - 1)
    marshal.dumps(value, 0)
    return value
