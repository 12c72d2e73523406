"""What the functions of a program hold around a loop: models, averages, optimizers, schedules, random generators."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from types import BuiltinFunctionType, FrameType, ModuleType
from typing import Any

import numpy as np

from .interruption import variables, with_known_classes

_MOST = 10  # functions that are looked into
# classes of values that hold nothing to look for
OPAQUE = (type(None), int, float, str, bytes, type, ModuleType, BuiltinFunctionType, np.ndarray)
_OF_PYTHON = sys.stdlib_module_names - {"__main__"}
_WITHOUT_STATE = _OF_PYTHON - {"types", "argparse"}  # programs hold their settings in a SimpleNamespace or a Namespace


def of_program(kind: type) -> bool:
    """Return whether a class and its bases are of the user's program: libraries restore theirs."""
    if kind.__module__.partition(".")[0] in _WITHOUT_STATE:
        return False
    return not any(of_library(base.__module__) for base in kind.__mro__)


@cache
def of_library(module: str) -> bool:
    """Return whether a module is of an installed package or of haltune."""
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return module.partition(".")[0] == "haltune" or _is_installed(file)


def _is_installed(file: str) -> bool:
    return "site-packages" in file or "dist-packages" in file


@cache
def is_own(module: str | None) -> bool:
    """Return whether a module is of the user's program, and not of an installed package or of Python."""
    return str(module).partition(".")[0] not in _OF_PYTHON and not of_library(str(module))


def own_classes(kind: type) -> list[type]:
    """Return the classes of the user's program among a class and its bases."""
    return [base for base in kind.__mro__ if is_own(base.__module__)]


def frames(frame: FrameType | None = None) -> Iterator[FrameType]:
    """Yield the program's functions and modules on the stack, from a frame on, without those of packages and Python.

    Default: None, the frame that calls.
    """
    frame, left = sys._getframe(1) if frame is None else frame, _MOST
    while frame is not None and left:
        # a package may run code of its own by another name, such as a worker of pytest-xdist
        if is_own(frame.f_globals.get("__name__")) and not _is_installed(frame.f_code.co_filename):
            left -= 1
            yield frame
        frame = frame.f_back


def on_stack() -> list[tuple[str, Any]]:
    """Return the variables of the program's functions on the stack, each with the name of its function."""
    return [(f"{frame.f_code.co_name}.{name}", value) for frame in frames() for name, value in variables(frame).items()]


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object of the program; none of others, and of one that raises if it is asked."""
    if of_program(type(value)):
        with suppress(Exception):
            return with_known_classes(vars(value))
    return {}


def stateful(frame: FrameType | None) -> Iterator[tuple[str, Any]]:
    """Yield what the program's functions on the stack hold that has a state, by name, also in their objects."""
    for one in frames(frame):
        for name, value in variables(one).items():
            if _has_state(type(value)) or _averages(value):
                yield name, value
            if not _has_state(type(value)):
                inner = attributes(value).items()
                yield from ((f"{name}.{p}", held) for p, held in inner if _has_state(type(held)) or _averages(held))


def state_of(value: Any) -> Any:
    """Return the state of what `stateful` yields."""
    return value.state_dict() if _has_state(type(value)) else _averages(value)


def _averages(value: Any) -> dict[str, dict[str, Any]]:
    """Return the tensors that an object of the program holds by names of weights, as hand-written averages do."""
    return {
        name: held
        for name, held in attributes(value).items()
        if type(held) is dict
        and all(hasattr(type(one), "untyped_storage") for one in held.values())  # of many others it asks only one
        and any(str(key).endswith("weight") for key in held)
    }


def _has_state(kind: type) -> bool:
    return callable(getattr(kind, "state_dict", None))  # a value may raise if it is asked itself
