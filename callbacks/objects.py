"""The state of Python objects as JSON, without pickle: environments and callbacks, which frameworks do not save.

`state_of` reads what an object remembers: numbers, texts, arrays, tensors, random generators, containers of these, and
the attributes of further objects. `put_back` writes it into an object of the same kind that the program has made again.
Functions, classes, files and loggers are the same in each process. Everything else, such as the memory of a simulator
written in C, has a state that cannot be read, so it raises NotSupported.

`data_of` reads an attribute of a program's object, and so only plain data: no object of a library, no weights, nothing
large.

None, a number and a text stand for themselves. Another value is {"is": its kind, ...}; if it occurs again, {"is":
"same", "as": its number}, in the order of reading.
"""

from __future__ import annotations

import base64
import copy
import csv
import datetime
import enum
import hashlib
import inspect
import io
import logging
import re
import struct
import sys
import threading
import types
import weakref
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from functools import cache, partial
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np

from haltune._utils.around import of_library, of_program
from haltune._utils.code import cells_of, opened_by
from haltune._utils.generators import damaged, is_generator, kind_of, new_generator, of_generator, set_generator
from haltune.errors import InvalidInput, NotSupported

from .tensors import storage

_CONSTANT = (
    type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, io.IOBase, logging.Logger,
    np.dtype, np.ufunc, type(csv.writer(io.StringIO())),
)  # fmt: skip
CONTAINERS: dict[type, str] = {
    list: "list", tuple: "tuple", deque: "deque", set: "set", frozenset: "frozenset", dict: "dict",
}  # fmt: skip
# immutable objects of Python that their arguments make again
_MADE_AGAIN: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        type(Path()), PurePosixPath, PureWindowsPath, datetime.datetime, datetime.date, datetime.time,
        datetime.timedelta, datetime.timezone, Decimal, Fraction, complex, range,
    )
}  # fmt: skip
_LARGEST, _LONGEST = 1 << 24, 10**6  # bytes of arrays, tensors and texts, values: of an attribute
SMALL, _SHORT = 1 << 20, 10**4  # likewise, in a file that the program itself saves, perhaps often
_FEW = 1000  # elements that are searched for an iterator
_NUMBERS = frozenset({type(None), bool, int, float})
PLAIN = _NUMBERS | {str}  # classes of values that are their own state
_MADE_BY_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class that a class statement made
_SHOWING = ("tqdm", "rich", "matplotlib", "wandb", "mlflow", "tensorboard", "tensorboardX")  # they only show a training
_OF_FILES = ("h5py", "zarr", "lmdb")  # parts of their files have no `close`
_FILES_OF_PYTHON = ("sqlite3", "zipfile", "tarfile")
# methods of what has a state of its own, such as an environment, a meter, a replay buffer or a scaler
_WITH_STATE = (
    "step", "reset", "sample", "fit", "partial_fit", "learn_one", "state_dict", "named_parameters", "untyped_storage",
)  # fmt: skip


Skips = Callable[[Any, str, Any], bool]  # object, name and value of an attribute -> whether it is no part of a state


def state_of(
    value: Any, parts: tuple[type, ...] = (), constant: tuple[type, ...] = (), skip: Skips = lambda *attribute: False
) -> Any:
    """Return the state of an object.

    parts: classes of objects that may be elements of containers, because they are the same ones in each process.
    constant: classes of objects without a state. skip: attributes that are not part of the state.

    Raises NotSupported if a part of it has an unknown state; the message names the part.
    """
    return _Reader(parts, (*_CONSTANT, *constant), skip).read(value, type(value).__name__)


def put_back(state: Any, value: Any, device: Any = None, apart: Sequence[Any] = ()) -> Any:
    """Write a state into an object, and return it. Of a value that is no object with attributes, return another one.

    device: of new tensors that were not on the CPU. apart: see `data_of`.

    Raises NotSupported if the object was built otherwise than the one of the state.
    """
    return _Writer(device, apart).write(state, value, type(value).__name__)


def data_of(
    value: Any,
    constant: tuple[type, ...] = (),
    weights: Container[int] = (),
    tensors: bool = False,
    small: bool = False,
    copies: bool = True,
    apart: list[Any] | None = None,
) -> Any:
    """Return the state of an attribute, for `put_back`, if it is plain data.

    Plain data are numbers, texts, arrays, tensors that do not train, random generators, lists and dicts of them, and
    objects of the program's own classes with these attributes.

    constant: see `state_of`. weights: `storages` of the model; a tensor in one is no state of its own. tensors: they
    stay tensors, of any size. small: only of up to `SMALL` bytes, and few values. copies: whether these are copied.
    apart: takes the large arrays, of any size; the state has their places in it.

    Raises NotSupported if it is something else.
    """
    if isinstance(value, (*_CONSTANT, *constant)):
        raise NotSupported(f"{type(value).__name__} is the same in each process")
    return _DataReader(constant, weights, tensors, small, copies, apart).read(value, type(value).__name__)


def is_made_again(value: Any) -> bool:
    return _MADE_AGAIN.get(type(value).__name__) is type(value)


@dataclass
class _Reader:
    _parts: tuple[type, ...]
    _constant: tuple[type, ...]
    _skip: Skips
    # id -> number and value; the value lives, so its id is not reused
    _seen: dict[int, tuple[int, Any]] = field(default_factory=dict)

    def read(self, value: Any, name: str, part: bool = True) -> Any:
        """name: of the value, for errors. part: whether an object is allowed here."""
        if type(value) in PLAIN:
            return value
        if isinstance(value, self._constant):
            return {"is": "constant"}
        if isinstance(value, enum.Enum):
            named = value.value if isinstance(value, enum.Flag) else value.name  # flags may be joined
            return {"is": "enum", "name": named, "class": _class(value)}
        if isinstance(value, (int, float, str)) and not isinstance(value, np.generic):
            return next(kind(value) for kind in (int, float, str) if isinstance(value, kind))
        if id(value) in self._seen:
            return {"is": "same", "as": self._seen[id(value)][0]}
        self._seen[id(value)] = len(self._seen), value
        if isinstance(value, bytes):
            return {"is": "bytes", "data": self._text(value)}
        if is_made_again(value):
            given: Any = (value.real, value.imag) if isinstance(value, complex) else value.__reduce__()[1]
            given = (str(value),) if isinstance(value, PurePath) else given  # a data set may have many
            return {"is": "made again", "kind": type(value).__name__, "of": [self.read(one, name) for one in given]}
        if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
            return self._array(value)
        if is_generator(value):
            return {"is": "generator", "kind": kind_of(value), "state": of_generator(value)}
        if hasattr(type(value), "untyped_storage"):  # a dict with __getattr__ = dict.get has any name
            return self._tensor(value, name)
        for kind, word in CONTAINERS.items():
            if isinstance(value, kind):
                state = {"is": word, "items": self._items(value, name), "longest": getattr(value, "maxlen", None)}
                named = hasattr(type(value), "_fields") or type(value) in _DICTS
                made = getattr(value, "default_factory", None)
                default = None if made is None else name_of(made)
                return state | ({"class": _class(value), "default": default} if named else {})
        if not self._is_read(value, part):
            raise NotSupported(f"the state of {name} ({type(value).__name__}) cannot be read")
        attributes = {
            key: {"is": "opened"} if opens(value, key, one) else self.read(one, f"{type(value).__name__}.{key}")
            for key, one in attributes_of(value).items()
            if not self._skip(value, key, one)
        }
        return {"is": "object", "class": _class(value), "attributes": attributes}

    def _is_read(self, value: Any, part: bool) -> bool:
        return _in_attributes(value) and (part or isinstance(value, self._parts))

    def _array(self, value: Any) -> dict[str, Any]:
        shape = list(value.shape) if isinstance(value, np.ndarray) else None
        kind: Any = value.dtype.str
        if value.dtype.str[1] == "V" and not value.dtype.name.startswith("void"):
            kind = value.dtype.name  # bfloat16, whose `str` is that of raw bytes
        elif value.dtype.names is not None:
            try:
                kind = np.lib.format.dtype_to_descr(value.dtype)  # of its fields
            except ValueError as error:  # they overlap, or are in another order
                raise NotSupported(f"an array of {value.dtype} cannot be saved") from error
        return {"is": "array", "data": self._text(value.tobytes()), "type": kind, "shape": shape}

    def _text(self, data: bytes) -> str:
        return base64.b64encode(data).decode("ascii")

    def _tensor(self, value: Any, name: str) -> dict[str, Any]:
        import torch

        held = value.detach().cpu()
        kind = str(held.dtype).removeprefix("torch.")
        array = held.contiguous().view(torch.uint8) if held.dim() else held.reshape(1).view(torch.uint8)
        data = self._array(array.numpy())
        return {"is": "tensor", "array": data, "type": kind, "shape": list(held.shape), "cpu": value.is_cpu}

    def _items(self, value: Any, name: str) -> list[Any]:
        def item(one: Any, place: Any) -> Any:
            called = name if type(one) in PLAIN else f"{name}[{place!r}]"
            return self.read(one, called, False)

        if isinstance(value, dict):
            return [[item(key, key), item(one, key)] for key, one in value.items()]
        return [item(one, i) for i, one in enumerate(value)]


def _dtype(kind: Any) -> Any:
    """Return the type of a saved array; JSON has made lists of its tuples."""

    def tuples(kind: Any) -> Any:
        return kind if isinstance(kind, str) else [(name, tuples(of), *map(tuple, shape)) for name, of, *shape in kind]

    return np.lib.format.descr_to_dtype(tuples(kind))


class TooLarge(NotSupported):
    pass


class _DataReader(_Reader):
    """Reader of plain data alone."""

    def __init__(
        self,
        constant: tuple[type, ...],
        weights: Container[int],
        tensors: bool,
        small: bool,
        copies: bool,
        apart: list[Any] | None,
    ) -> None:
        super().__init__((object,), (*_CONSTANT, *constant), lambda *attribute: False)
        self._apart = apart
        self._weights, self._tensors, self._small, self._copies = weights, tensors, small, copies
        self._bytes, self._values = (SMALL, _SHORT) if small else (_LARGEST, _LONGEST)  # that may follow
        self._kinds: dict[type, bool] = {}  # of objects -> whether they are read

    def read(self, value: Any, name: str, part: bool = True) -> Any:
        if type(value) in _NUMBERS:
            return value
        if isinstance(value, (str, bytes)):
            self._bytes -= len(value)
        elif isinstance(value, np.ndarray):
            self._bytes -= 0 if self._is_apart(value) else value.nbytes
        elif isinstance(value, (list, tuple, deque, set, frozenset, dict)):
            self._values -= len(value)
        if min(self._bytes, self._values) < 0:
            raise TooLarge(f"{name} is too large")
        return super().read(value, name, part)

    def _is_read(self, value: Any, part: bool) -> bool:
        kind = type(value)
        if kind not in self._kinds:
            self._kinds[kind] = of_program(kind) and super()._is_read(value, part)
        self._values -= len(getattr(value, "__dict__", ()))
        return self._kinds[kind]

    def _text(self, data: bytes) -> str:
        return super()._text(data) if self._copies else hashlib.blake2b(data, digest_size=16).hexdigest()

    def _is_apart(self, value: Any) -> bool:
        """value: an array or a tensor."""
        return self._apart is not None and value.nbytes > SMALL and getattr(value.dtype, "kind", "") != "V"

    def _array(self, value: Any) -> dict[str, Any]:
        if self._apart is None or not self._is_apart(value):
            return super()._array(value)
        self._apart.append(value)
        return {"is": "array", "apart": len(self._apart) - 1}

    def _tensor(self, value: Any, name: str) -> dict[str, Any]:
        # a module may carry what it has computed, as the state of an LSTM, and detach it where it is read
        trains = value.requires_grad and (value.is_leaf or value.nbytes > SMALL)
        if trains or storage(value) in self._weights:
            raise NotSupported(f"{name} is of the weights or of their graph")
        self._bytes -= value.nbytes if (self._small or not self._tensors) and not self._is_apart(value) else 0
        if self._bytes < 0:
            raise TooLarge(f"{name} is too large")
        if self._tensors:
            tensor = value.detach().cpu().clone() if self._copies else value
            return {"is": "tensor itself", "tensor": tensor, "cpu": value.is_cpu}
        return super()._tensor(value, name)


class _Writer:
    def __init__(self, device: Any, apart: Sequence[Any]) -> None:
        self._device, self._apart = device, apart
        self._seen: list[Any] = []  # values by their numbers

    def write(self, state: Any, value: Any, name: str) -> Any:
        """value: what is there now, or None."""
        if not isinstance(state, dict) or state["is"] == "constant":
            return value if isinstance(state, dict) else state
        if state["is"] == "same":
            return self._seen[state["as"]]
        if state["is"] == "enum":
            kind, named = type(value) if isinstance(value, enum.Enum) else kind_named(state.get("class")), state["name"]
            if kind is not None and issubclass(kind, enum.Enum):
                with suppress(LookupError, ValueError):
                    return kind[named] if isinstance(named, str) else kind(named)
            raise _otherwise(name)
        number = len(self._seen)
        self._seen.append(None)
        self._seen[number] = written = self._written(state, value, name, number)
        return written

    def _written(self, state: dict[str, Any], value: Any, name: str, number: int) -> Any:
        match state["is"]:
            case "bytes":
                return base64.b64decode(state["data"])
            case "made again":
                if state["kind"] not in _MADE_AGAIN:  # a path of another system
                    raise _otherwise(name)
                return _MADE_AGAIN[state["kind"]](*(self.write(one, None, name) for one in state["of"]))
            case "array":
                array = self._array_of(state)
                there = isinstance(value, np.ndarray) and value.shape == array.shape and value.dtype == array.dtype
                if state.get("in place") and there and value.flags.writeable:
                    value[...] = array
                    return value
                return array.copy()
            case "generator":
                generator = value if is_generator(value) else new_generator(state["kind"])
                with suppress(InvalidInput):
                    set_generator(generator, state["state"])
                    return generator
                raise _otherwise(name)
            case "tensor" | "tensor itself":
                tensor, there = self._tensor_of(state), value if hasattr(type(value), "untyped_storage") else None
                if not state["cpu"]:
                    tensor = tensor.to(self._device if there is None or there.is_cpu else there.device)
                return tensor.requires_grad_(there is not None and there.requires_grad)
            case "object":
                if value is None or _class(value) != state["class"]:
                    kind = kind_named(state["class"])
                    if kind is None or not of_program(kind):
                        raise _otherwise(name)
                    value = object.__new__(kind)
                self._seen[number] = value
                held, slots = attributes_of(value), _slots(type(value))
                for key, one in state["attributes"].items():
                    there, how = held.get(key), one["is"] if isinstance(one, dict) else None
                    stays = how == "constant" or (how == "opened" and is_opened(value, key, there))
                    if not stays:
                        written = None if how == "opened" else self.write(one, there, f"{type(value).__name__}.{key}")
                        if key in slots:
                            slots[key].__set__(value, written)
                        else:
                            vars(value)[key] = written
                return value
        return self._container(state, value, name, number)

    def _array_of(self, state: dict[str, Any]) -> Any:
        if "apart" in state:
            if state["apart"] >= len(self._apart):
                raise damaged(ValueError("its file of arrays is missing"))
            return self._apart[state["apart"]]
        flat = np.frombuffer(base64.b64decode(state["data"]), _dtype(state["type"]))
        return flat[0] if state["shape"] is None else flat.reshape(state["shape"])

    def _tensor_of(self, state: dict[str, Any]) -> Any:
        if state["is"] == "tensor itself":
            return state["tensor"].clone()
        import torch

        flat = torch.from_numpy(self._array_of(state["array"]).reshape(-1).copy())
        return flat.view(getattr(torch, state["type"])).reshape(state["shape"])

    def _container(self, state: dict[str, Any], value: Any, name: str, number: int) -> Any:
        items = state["items"]
        if state["is"] == "dict":
            now: Any = _dict_for(state, value, name)
            made = copy.copy(now) if number else now
            self._seen[number] = made
            pairs = []
            for key_state, one in items:
                key = self.write(key_state, None, name)
                pairs.append((key, self.write(one, now.get(key), f"{name}[{key!r}]")))
            made.clear()
            for key, one in pairs:  # `update` of a Counter would count them
                made[key] = one
            return made
        there = list(value) if isinstance(value, (list, tuple)) else []
        if len(there) != len(items):  # it collects: its elements are of no fixed places
            there = [None] * len(items)
        new: Any = deque(maxlen=state["longest"]) if state["is"] == "deque" else []
        # a part of the program that holds the same object sees it, as a data set sees a replay buffer
        if number == 0 and type(value) is type(new) and getattr(value, "maxlen", None) == state["longest"]:
            new = value
        self._seen[number] = new
        written = [self.write(one, now, f"{name}[{i}]") for i, (one, now) in enumerate(zip(items, there, strict=True))]
        new.clear()
        new.extend(written)
        if state["is"] == "tuple":
            kind = type(value) if hasattr(value, "_fields") else kind_named(state.get("class"))
            return tuple.__new__(kind, new) if kind is not None and issubclass(kind, tuple) else tuple(new)
        made_of = {"set": set, "frozenset": frozenset}.get(state["is"])
        if made_of is set and number == 0 and type(value) is set:
            value.clear()
            value.update(new)
            return value
        return made_of(new) if made_of else new


_DICTS = (Counter, OrderedDict, defaultdict)


def _dict_for(state: dict[str, Any], value: Any, name: str) -> Any:
    """Return the dict that takes the items of a state: that of the program, or an empty one if it has no such dict."""
    kind, default = kind_named(state.get("class")), state.get("default")
    if isinstance(value, dict) and (kind not in _DICTS or type(value) in _DICTS):
        return value
    if kind is defaultdict:
        if default is not None and kind_named(default) is None:  # a function of the program
            raise _otherwise(name)
        return defaultdict(kind_named(default))
    return kind() if kind in _DICTS else {}


def _otherwise(name: str) -> NotSupported:
    return NotSupported(
        f"The trial cannot resume, because {name} was built differently when it paused. Build the same environments "
        "and callbacks in each attempt"
    )


# attributes

# whose objects are the same in each process, although a part of them is not in attributes
_FIXED = (types.SimpleNamespace, partial, re.Pattern, type(threading.Lock()), type(threading.RLock()))
_PLAIN_SIZE, _SLOT_SIZE = type("", (), {}).__basicsize__, struct.calcsize("P")


def _in_attributes(value: Any) -> bool:
    """Return whether all that an object remembers is in its attributes: Python made its classes.

    Classes of extensions may look so, such as those of MuJoCo's simulators; but their objects are larger.
    """
    classes = [c for c in type(value).__mro__ if c is not object]
    if not classes or not all(c.__flags__ & _MADE_BY_PYTHON or c is types.SimpleNamespace for c in classes):
        return False
    slots = [one for c in classes for one in vars(c).values() if isinstance(one, types.MemberDescriptorType)]
    return isinstance(value, _FIXED) or type(value).__basicsize__ <= _PLAIN_SIZE + _SLOT_SIZE * len(slots)


def attributes_of(value: Any) -> dict[str, Any]:
    """Return the attributes of an object, also those in slots."""
    slots = _slots(type(value))
    return {**getattr(value, "__dict__", {}), **{name: getattr(value, name) for name in slots if hasattr(value, name)}}


_NO_SLOTS: weakref.WeakSet[type] = weakref.WeakSet()  # classes: a data set may have very many objects of one


def _slots(kind: type) -> dict[str, Any]:
    if kind in _NO_SLOTS:
        return {}
    found = (item for base in reversed(kind.__mro__) for item in vars(base).items())
    slots = {name: one for name, one in found if isinstance(one, types.MemberDescriptorType)}
    if not slots:
        _NO_SLOTS.add(kind)
    return slots


def _class(value: Any) -> str:
    return name_of(type(value))


def name_of(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', '')}"


def kind_named(called: str | None) -> Any:
    """Return the class of this name, as of `_class`; None if this process has none, or another kind of object."""
    left = (called or "").split(".")
    for i in range(len(left) - 1, 0, -1):
        found: Any = sys.modules.get(".".join(left[:i]))
        for part in left[i:]:
            found = getattr(found, part, None)
        if isinstance(found, type):
            return found
    return None


def is_opened(owner: Any, name: str, value: Any) -> bool:
    """Return whether an attribute is a file that the owner's code opens where it is None, as in a resumed fit.

    So do data sets with a file of HDF5, LMDB or SQLite. Not so a file that is read line by line: it has a place.
    """
    if (kind := type(value)) in PLAIN:
        return False
    package = kind.__module__.partition(".")[0]
    file = package in (*_OF_FILES, *_FILES_OF_PYTHON) or (hasattr(kind, "close") and of_library(kind.__module__))
    return file and not hasattr(kind, "__next__") and not has_state(value) and name in opened_by(type(owner))


def opens(owner: Any, name: str, value: Any) -> bool:
    """Return whether an attribute is such a file, or None until it is opened: both are the same state."""
    return is_opened(owner, name, value) or (value is None and name in opened_by(type(owner)))


def held_by(owner: Any, skip: Container[str] = ()) -> dict[str, Any]:
    """Return the attributes of an object that may be a state, without those named in `skip`.

    What only shows a training is none, nor is a file that the owner's code opens again.
    """
    opened = opened_by(type(owner))
    return {
        name: value
        for name, value in getattr(owner, "__dict__", {}).items()
        if name not in skip
        and not (_shows(type(value).__module__) or (name in opened and is_opened(owner, name, value)))
    }


def is_showing(value: Any) -> bool:
    """Return whether an object only shows a training, such as a progress bar, a figure or a tracker."""
    return _shows(type(value).__module__)


@cache
def _shows(module: str) -> bool:
    return module.partition(".")[0] in _SHOWING and of_library(module)


def has_state(value: Any) -> bool:
    """Return whether the numbers of an object of a library are a state, or settings that a program may change."""
    if type(value).__module__.partition(".")[0] in _OF_FILES:
        return False
    if isinstance(value, Mapping):
        return not isinstance(value, dict)

    def has(*methods: str) -> bool:
        return any(callable(getattr(type(value), name, None)) for name in methods)

    return has(*_WITH_STATE) or (has("update") and has("get", "compute"))  # the latter is a running mean


def variables_of(function: Any) -> dict[str, tuple[Any, Callable[[Any], object]]]:
    """Return the variables of enclosing functions that a function uses: name -> value, and what sets it."""
    if not isinstance(function, types.FunctionType):
        return {}
    cells = cells_of(function).items()
    return {name: (cell.cell_contents, partial(setattr, cell, "cell_contents")) for name, cell in cells}


def under_way(value: Any, depth: int = 3) -> bool:
    """Return whether a value is an iterator that has not ended, or holds one: its place cannot be read."""
    if isinstance(value, types.GeneratorType):
        if inspect.getgeneratorstate(value) == inspect.GEN_CREATED:  # made again so, unless it has an epoch's number
            return bool(inspect.getgeneratorlocals(value).keys() - {"self"})
        return inspect.getgeneratorstate(value) != inspect.GEN_CLOSED
    if hasattr(type(value), "__next__"):
        starts_again = type(value).__module__.partition(".")[0] in ("lightning", "pytorch_lightning")  # in each epoch
        return not isinstance(value, io.IOBase) and not starts_again
    if not depth:
        return False
    inner: Any = ()
    if isinstance(value, (list, tuple, dict)) and len(value) <= _FEW:
        inner = value.values() if isinstance(value, dict) else value
    elif of_program(type(value)):
        inner = attributes_of(value).values()
    return any(under_way(one, depth - 1) for one in inner)
