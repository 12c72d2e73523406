"""The state of Python objects as JSON, without pickle: environments and callbacks, which frameworks do not save.

`state_of` reads what an object remembers: numbers, texts, arrays, random generators, containers of these, and the
attributes of further objects. `put_back` writes it into an object of the same kind that the program has made again.
Functions, classes, files and loggers are the same in each process. Everything else, such as the memory of a simulator
written in C, has a state that cannot be read, so it raises NotSupported.

None, a number and a text stand for themselves. Another value is {"is": its kind, ...}; if it occurs again, {"is":
"same", "as": its number}, in the order of reading.
"""

from __future__ import annotations

import base64
import copy
import enum
import io
import logging
import types
from collections import deque
from collections.abc import Container
from contextlib import suppress
from typing import Any

import numpy as np

from haltune._utils.randomness import is_generator, kind_of, new_generator, of_generator, set_generator
from haltune.errors import InvalidInput, NotSupported

_CONSTANT = (
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, io.IOBase, logging.Logger,
    np.dtype, np.ufunc,
)  # fmt: skip
_CONTAINERS: dict[type, str] = {
    list: "list", tuple: "tuple", deque: "deque", set: "set", frozenset: "frozenset", dict: "dict",
}  # fmt: skip
_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that a class statement made


def state_of(
    value: Any, parts: tuple[type, ...] = (), constant: tuple[type, ...] = (), skip: Container[str] = ()
) -> Any:
    """Return the state of an object.

    parts: classes of objects that may be elements of containers, because they are the same ones in each process.
    constant: classes of objects without a state. skip: names of attributes that are not part of the state.

    Raises NotSupported if a part of it has an unknown state; the message names the part.
    """
    return _Reader(parts, (*_CONSTANT, *constant), skip).read(value, type(value).__name__)


def put_back(state: Any, value: Any) -> Any:
    """Write a state into an object, and return it. Of a value that is no object with attributes, return another one.

    Raises NotSupported if the object was built otherwise than the one of the state.
    """
    return _Writer().write(state, value, type(value).__name__)


class _Reader:
    def __init__(self, parts: tuple[type, ...], constant: tuple[type, ...], skip: Container[str]) -> None:
        self._parts, self._constant, self._skip = parts, constant, skip
        self._seen: dict[int, tuple[int, Any]] = {}  # id -> number and value; the value lives, so its id is not reused

    def read(self, value: Any, name: str, part: bool = True) -> Any:
        """name: of the value, for errors. part: whether an object is allowed here."""
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, self._constant):
            return {"is": "constant"}
        if isinstance(value, enum.Enum):
            return {"is": "enum", "name": value.name}
        if id(value) in self._seen:
            return {"is": "same", "as": self._seen[id(value)][0]}
        self._seen[id(value)] = len(self._seen), value
        if isinstance(value, bytes):
            return {"is": "bytes", "data": _text(value)}
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            shape = list(value.shape) if isinstance(value, np.ndarray) else None
            return {"is": "array", "data": _text(value.tobytes()), "type": value.dtype.str, "shape": shape}
        if is_generator(value):
            return {"is": "generator", "kind": kind_of(value), "state": of_generator(value)}
        if hasattr(value, "untyped_storage"):
            return {"is": "tensor", "array": self.read(value.detach().cpu().numpy(), name)}
        for kind, word in _CONTAINERS.items():
            if isinstance(value, kind):
                return {"is": word, "items": self._items(value, name), "longest": getattr(value, "maxlen", None)}
        if not _is_plain(value) or not (part or isinstance(value, self._parts)):
            raise NotSupported(f"the state of {name} ({type(value).__name__}) cannot be read")
        attributes = {
            key: self.read(one, f"{type(value).__name__}.{key}")
            for key, one in vars(value).items()
            if key not in self._skip
        }
        return {"is": "object", "class": _class(value), "attributes": attributes}

    def _items(self, value: Any, name: str) -> list[Any]:
        if isinstance(value, dict):
            pairs = [(key, one, f"{name}[{key!r}]") for key, one in value.items()]
            return [[self.read(key, called, False), self.read(one, called, False)] for key, one, called in pairs]
        return [self.read(one, f"{name}[{i}]", False) for i, one in enumerate(value)]


class _Writer:
    def __init__(self) -> None:
        self._seen: list[Any] = []  # values by their numbers

    def write(self, state: Any, value: Any, name: str) -> Any:
        """value: what is there now, or None."""
        if not isinstance(state, dict) or state["is"] == "constant":
            return value if isinstance(state, dict) else state
        if state["is"] == "same":
            return self._seen[state["as"]]
        if state["is"] == "enum":
            if not isinstance(value, enum.Enum):
                raise _otherwise(name)
            return type(value)[state["name"]]
        number = len(self._seen)
        self._seen.append(None)
        self._seen[number] = written = self._written(state, value, name, number)
        return written

    def _written(self, state: dict[str, Any], value: Any, name: str, number: int) -> Any:
        match state["is"]:
            case "bytes":
                return base64.b64decode(state["data"])
            case "array":
                flat = np.frombuffer(base64.b64decode(state["data"]), np.dtype(state["type"]))
                return flat[0] if state["shape"] is None else flat.reshape(state["shape"]).copy()
            case "generator":
                generator = value if is_generator(value) else new_generator(state["kind"])
                with suppress(InvalidInput):
                    set_generator(generator, state["state"])
                    return generator
                raise _otherwise(name)
            case "tensor":
                import torch

                array = torch.from_numpy(self.write(state["array"], None, name))
                return array if value is None else array.to(value.device).requires_grad_(value.requires_grad)
            case "object":
                if value is None or _class(value) != state["class"]:
                    raise _otherwise(name)
                self._seen[number] = value
                for key, one in state["attributes"].items():
                    if not (isinstance(one, dict) and one["is"] == "constant"):
                        vars(value)[key] = self.write(one, vars(value).get(key), f"{type(value).__name__}.{key}")
                return value
        return self._container(state, value, name, number)

    def _container(self, state: dict[str, Any], value: Any, name: str, number: int) -> Any:
        items = state["items"]
        if state["is"] == "dict":
            before = dict(value) if isinstance(value, dict) else {}
            made = copy.copy(value) if isinstance(value, dict) else {}
            made.clear()
            self._seen[number] = made
            for key_state, one in items:
                key = self.write(key_state, None, name)
                made[key] = self.write(one, before.get(key), f"{name}[{key!r}]")
            return made
        there = list(value) if isinstance(value, (list, tuple, deque)) else []
        there += [None] * (len(items) - len(there))
        new: Any = deque(maxlen=state["longest"]) if state["is"] == "deque" else []
        self._seen[number] = new
        for i, (one, now) in enumerate(zip(items, there, strict=False)):
            new.append(self.write(one, now, f"{name}[{i}]"))
        if state["is"] == "tuple":
            return type(value)(*new) if hasattr(value, "_fields") else tuple(new)
        made_of = {"set": set, "frozenset": frozenset}.get(state["is"])
        return made_of(new) if made_of else new


def _is_plain(value: Any) -> bool:
    """Return whether all that an object remembers is in its attributes: Python made its classes, without slots."""
    classes = [c for c in type(value).__mro__ if c is not object]
    python = all(c.__flags__ & _MADE_BY_PYTHON for c in classes)
    return python and hasattr(value, "__dict__") and not any(vars(c).get("__slots__") for c in classes)


def _class(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _otherwise(name: str) -> NotSupported:
    return NotSupported(
        f"The trial cannot resume, because {name} was built otherwise when it paused. Build the same environments and "
        "callbacks in each attempt"
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
