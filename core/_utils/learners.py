"""Estimators and boosters in the variables of a program: what a loop of the user's own trains without torch.

No hook shows that they train. So they are looked for where a trial begins, where its loop does, and where both end.

A learner has `partial_fit` (scikit-learn), `learn_one` (River), `fit` with warm_start=True, or `update` (boosters of
XGBoost and LightGBM).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from haltune.errors import NotSupported

from .around import OPAQUE, frames, variables
from .boosters import library_of, rounds_of

_SHORT = 20  # elements of a list
_SAMPLED = 32  # elements of an array
_WATCHED = "haltune_watches"
# learner -> its mark and the words of the error, if it is trained further in this state
_refused: WeakKeyDictionary[Any, tuple[str, str]] = WeakKeyDictionary()


def visible() -> list[Any]:
    """Return the learners in variables of the functions that are running, of their modules, and in `self`."""
    found: dict[int, Any] = {}
    seen: set[int] = set()

    def look(value: Any, depth: int) -> None:
        kind = type(value)
        if issubclass(kind, (*OPAQUE, FunctionType)) or id(value) in seen or kind.__module__.startswith("haltune."):
            return
        seen.add(id(value))
        with suppress(Exception):  # it has no weak references, is not fitted, or raises
            if hasattr(type(value), "get_booster"):
                value, size = value.get_booster(), value.n_estimators
                if 1 < size == rounds_of(value):  # it was trained as a whole
                    return
            if _trains_by(value) is not None:
                ref(value)
                found[id(value)] = value
            elif depth:
                for inner in _inside(value):
                    look(inner, depth - 1)

    for frame in frames():
        for value in (*(value for _, value in variables(frame)), *frame.f_globals.values()):
            look(value, 1)
    return [*found.values()]


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return [*value.values()] if len(value) <= _SHORT else ()
    if isinstance(value, (list, tuple)):
        return value if len(value) <= _SHORT else ()
    if isinstance(steps := getattr(value, "__dict__", {}).get("steps"), list):  # a pipeline
        return [step[-1] for step in steps]
    if isinstance(value, (type, FunctionType)) or type(value).__module__ == "builtins":
        return ()
    return [*getattr(value, "__dict__", {}).values()]


def _trains_by(value: Any) -> str | None:
    """Return the method by which a learner continues to train; None for other values."""
    kind = type(value)
    for name in ("partial_fit", "learn_one"):
        if callable(getattr(kind, name, None)) or hasattr(vars(kind).get(name), "fn"):
            return name
    if library_of(value) is not None:
        return "update"
    return "fit" if hasattr(kind, "fit") and getattr(value, "warm_start", None) is True else None


def mark(learner: Any) -> str:
    """Return a text that changes when a learner trains: a sample of what it has learnt, or the rounds of a booster."""
    with suppress(Exception):
        if library_of(learner) is not None:
            return str(rounds_of(learner))
        given = learner.get_params(deep=False) if hasattr(type(learner), "get_params") else {}
        return repr(_sample({name: one for name, one in vars(learner).items() if name not in given}, 3))
    return ""


def _sample(value: Any, depth: int) -> Any:
    if value is None or isinstance(value, (bool, int, float, str, np.generic)):
        return str(value)
    if isinstance(value, np.ndarray):
        return value.shape, value.flat[:: value.size // _SAMPLED + 1].tolist()
    if depth and isinstance(value, Mapping):
        return len(value), [(str(key), _sample(one, depth - 1)) for key, one in [*value.items()][-_SAMPLED:]]
    if depth and isinstance(value, (list, tuple)):
        return len(value), [_sample(one, depth - 1) for one in value[-_SAMPLED:]]
    if depth and hasattr(value, "__dict__") and not isinstance(value, (type, FunctionType)):
        return type(value).__name__, _sample(vars(value), depth - 1)
    return id(value)


# one that another training has trained


def refuse(learner: Any, now: str, words: str) -> None:
    """Let the next training of a learner raise NotSupported with these words, unless its mark has changed by then."""
    name = _trains_by(learner)
    owner = next((kind for kind in type(learner).__mro__ if name in vars(kind)), None)
    if name is None or owner is None:
        return
    _refused[learner] = now, words
    method = vars(owner)[name]
    if hasattr(method, "fn"):  # scikit-learn's available_if
        method.fn = _watched(method.fn)
    elif isinstance(method, FunctionType):
        setattr(owner, name, _watched(method))


def allow(learner: Any) -> None:
    """Take back `refuse`."""
    with suppress(TypeError):  # it cannot be hashed
        _refused.pop(learner, None)


def _watched(method: Callable[..., Any]) -> Callable[..., Any]:
    if hasattr(method, _WATCHED):
        return method

    @wraps(method)
    def trains(learner: Any, *args: Any, **named: Any) -> Any:
        now, words = _refused.get(learner, ("", ""))
        if words and mark(learner) == now:
            raise NotSupported(words)
        allow(learner)
        return method(learner, *args, **named)

    setattr(trains, _WATCHED, True)
    return trains
