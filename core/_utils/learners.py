"""Estimators, boosters and layers of Keras in the variables of a program: what a plain loop trains without torch.

No hook shows that they train. So they are looked for where a trial starts, where its loop does, and where both end.

A learner has `partial_fit` (scikit-learn), `learn_one` (River), `fit` with warm_start=True, or `update` (boosters of
XGBoost and LightGBM). A layer of Keras is one, too: the methods of the models that have it train it, or an optimizer.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from functools import wraps
from hashlib import sha256
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from haltune.errors import NotSupported

from .around import OPAQUE, frames
from .boosters import library_of, rounds_of
from .interruption import variables

_WITHOUT = (*OPAQUE, FunctionType)  # classes of values that are no learners, and hold none
_SHORT = 20  # elements of a list
_SAMPLED = 32  # elements of an array
_OF_WEIGHT = 1024  # elements of a weight of Keras
_WATCHED = "haltune_watches"
# learner -> its mark and the words of the error, if it is trained further in this state
_refused: WeakKeyDictionary[Any, tuple[str, str]] = WeakKeyDictionary()


def visible() -> list[Any]:
    """Return the learners in variables of the functions that are running, of their modules, and in `self`."""
    found: dict[int, Any] = {}
    seen: set[int] = set()

    def look(value: Any, depth: int) -> None:
        kind = type(value)
        if issubclass(kind, _WITHOUT) or id(value) in seen or kind.__module__.startswith("haltune."):
            return
        seen.add(id(value))
        with suppress(Exception):  # it has no weak references, is not fitted, or raises
            if hasattr(type(value), "get_booster"):
                value, size = value.get_booster(), value.n_estimators
                if 1 < size == rounds_of(value):  # it was trained as a whole
                    return
            if of_keras(value):
                found.update((id(one), one) for one in value._flatten_layers() if one._trainable_variables)
            elif _trains_by(value):
                ref(value)
                found[id(value)] = value
            elif depth:
                for inner in _inside(value):
                    look(inner, depth - 1)

    for frame in frames():
        for value in (*variables(frame).values(), *frame.f_globals.values()):
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


def of_keras(value: Any) -> bool:
    """Return whether it is a layer of Keras, or a model."""
    return any(kind.__name__ == "Layer" and kind.__module__.startswith("keras.") for kind in type(value).__mro__)


def _trains_by(value: Any) -> list[str]:
    """Return the methods by which a learner continues to train; none for other values."""
    kind = type(value)
    if library_of(value) is not None:
        return ["update"]
    names = ["fit"] if hasattr(kind, "fit") and getattr(value, "warm_start", None) is True else []
    for name in ("partial_fit", "learn_one"):
        if callable(getattr(kind, name, None)) or hasattr(vars(kind).get(name), "fn"):
            names.append(name)
    return names


def mark(learner: Any) -> str:
    """Return a text that changes when a learner trains: a sample of what it has learnt, or the rounds of a booster.

    It is empty if that cannot be read, as within the compiled code of Keras.
    """
    with suppress(Exception):
        if of_keras(learner):
            return _mark_of_layer(learner)
        if library_of(learner) is not None:
            return str(rounds_of(learner))
        given = learner.get_params(deep=False) if hasattr(type(learner), "get_params") else {}
        return repr(_sample({name: one for name, one in vars(learner).items() if name not in given}, 3))
    return ""


def _mark_of_layer(layer: Any) -> str:
    """Return a digest of the weights that may train, without those of the layers in it."""
    tensorflow: Any = sys.modules["tensorflow"] if sys.modules["keras"].backend.backend() == "tensorflow" else None
    with nullcontext() if tensorflow is None else tensorflow.init_scope():  # the values, also where it is compiled
        return sha256(b"".join(one.tobytes() for one in first_numbers(layer._trainable_variables))).hexdigest()


def first_numbers(weights: Iterable[Any]) -> list[Any]:
    """Return the first numbers of each weight of Keras, by which it is recognized."""
    ops = sys.modules["keras"].ops
    return [ops.convert_to_numpy(ops.reshape(weight, (-1,))[:_OF_WEIGHT]) for weight in weights]


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
    """Let the next training of a learner raise NotSupported with these words, unless its mark has changed by then.

    No library calls a hook when a plain loop trains a learner. So its class gets methods that look into `_refused`
    first, in place of its own, and keeps them for the rest of the process. Without them, a trial would train what
    another trial has trained.
    """
    _refused[learner] = now, words
    for name in _trains_by(learner):
        _watch(type(learner), name)
    if of_keras(learner):
        keras = sys.modules["keras"]
        _watch(keras.Model, "fit")
        _watch(keras.Model, "train_on_batch")
        _watch(keras.optimizers.Optimizer, "apply")


def allow(learner: Any) -> None:
    """Take back `refuse`."""
    with suppress(TypeError):  # it cannot be hashed
        _refused.pop(learner, None)


def _watch(kind: type, name: str) -> None:
    owner = next((one for one in kind.__mro__ if name in vars(one)), None)
    method: Any = None if owner is None else vars(owner)[name]
    if hasattr(method, "fn"):  # scikit-learn's available_if
        method.fn = _watched(method.fn, name)
    elif isinstance(method, FunctionType):
        setattr(owner, name, _watched(method, name))


def _watched(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    if hasattr(method, _WATCHED):
        return method

    @wraps(method)
    def trains(trainer: Any, *args: Any, **named: Any) -> Any:
        weights = _weights_of(trainer, args, named) if _refused else set()
        asks = of_keras(trainer) and _has_callback(named.get("callbacks"))  # it checks itself whose weights these are
        for learner, (before, words) in [*_refused.items()]:
            own = learner is trainer and name in _trains_by(learner)
            if own or (weights and not weights.isdisjoint(_own_weights(learner))):
                now = mark(learner)
                if now == before and not asks:
                    raise NotSupported(words)
                if now or asks:
                    allow(learner)
        return method(trainer, *args, **named)

    setattr(trains, _WATCHED, True)
    return trains


def _own_weights(learner: Any) -> Iterable[int]:
    return map(id, learner._trainable_variables if of_keras(learner) else ())


def _weights_of(trainer: Any, args: Any, named: Mapping[str, Any]) -> set[int]:
    """Return the ids of the weights that a model or an optimizer of Keras is about to train."""
    if of_keras(trainer):
        return {*map(id, trainer.trainable_weights)}
    given = args[1] if len(args) > 1 else named.get("trainable_variables")
    given = getattr(trainer, "_trainable_variables", None) if given is None else given
    return {*map(id, given)} if isinstance(given, (list, tuple)) else set()


def _has_callback(given: Any) -> bool:
    """Return whether callbacks of a fit, one or a list of Keras, have one of haltune."""
    given = getattr(given, "callbacks", given)
    given = given if isinstance(given, (list, tuple)) else [given]
    return any(kind.__module__.startswith("haltune.") for one in given for kind in type(one).__mro__)
