"""Estimators and boosters in the variables of a program: what a loop of the user's own trains without torch.

No hook shows that they train. So they are looked for where a trial begins, where its loop does, and where both end.

A learner has `partial_fit` (scikit-learn), `learn_one` (River), `fit` with warm_start=True, or `update` (boosters of
XGBoost and LightGBM).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import wraps
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np

from haltune.errors import NotSupported

from .around import frames, variables
from .interruption import caller

PLAIN = (type(None), int, float, str, bytes, type, ModuleType, FunctionType, BuiltinFunctionType, np.ndarray)
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
        if isinstance(value, PLAIN) or id(value) in seen or type(value).__module__.startswith("haltune."):
            return
        seen.add(id(value))
        with suppress(Exception):  # it has no weak references, is not fitted, or raises
            if hasattr(type(value), "get_booster"):
                value, size = value.get_booster(), value.n_estimators
                if 1 < size == _rounds(value):  # it was trained as a whole
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
    if _library(value) is not None:
        return "update"
    return "fit" if hasattr(kind, "fit") and getattr(value, "warm_start", None) is True else None


def _library(value: Any) -> str | None:
    """Return the library of a booster."""
    for kind in type(value).__mro__:
        library = kind.__module__.partition(".")[0]
        if (library, kind.__name__) in (("xgboost", "Booster"), ("lightgbm", "Booster"), ("catboost", "CatBoost")):
            return library
    return None


def _rounds(booster: Any) -> int:
    if (library := _library(booster)) == "catboost":
        return int(booster.tree_count_)
    return int(booster.num_boosted_rounds() if library == "xgboost" else booster.current_iteration())


def mark(learner: Any) -> str:
    """Return a text that changes when a learner trains: a sample of what it has learnt, or the rounds of a booster."""
    with suppress(Exception):
        if _library(learner) is not None:
            return str(_rounds(learner))
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


# random numbers that the file of a booster lacks

_RANDOM = {("feature_selector", "random"), ("feature_selector", "shuffle"), ("lambdarank_pair_method", "mean")}


def drawn_by_xgboost(parameters: Iterable[tuple[str, Any]]) -> str:
    """Return the names of the parameters by which a training of XGBoost draws random numbers, or an empty text."""
    found = set()
    for name, value in parameters:
        if name == "lambdarank_unbiased":
            draws = str(value) not in ("0", "False", "false")
        elif name == "subsample" or name.startswith("colsample_by"):
            draws = float(value) < 1
        elif name in ("rate_drop", "one_drop"):
            draws = float(value) > 0
        else:
            draws = (name, str(value)) in _RANDOM
        if draws:
            found.add(name)
    return " and ".join(sorted(found))


def drawn_by_lightgbm(given: Mapping[str, str]) -> str:
    """Return the same for LightGBM. given: the parameters in the text of a booster, see `parameters_of`."""

    def number(name: str, usual: float = 0.0) -> float:
        return float(given.get(name) or usual)

    fractions = ("bagging_fraction", "pos_bagging_fraction", "neg_bagging_fraction")
    drawing = [name for name in fractions if number("bagging_freq") and number(name, 1.0) < 1]
    drawing += [name for name in ("feature_fraction", "feature_fraction_bynode") if number(name, 1.0) < 1]
    drawing += ["extra_trees"] * (number("extra_trees") > 0)
    drawing += ["use_quantized_grad"] * (number("use_quantized_grad") * number("stochastic_rounding", 1.0) > 0)
    drawing += ["goss"] * ("goss" in (given.get("boosting"), given.get("data_sample_strategy")))
    drawing += ["dart"] * (given.get("boosting") == "dart" and number("drop_rate", 0.1) > 0)
    drawing += ["rank_xendcg"] * (given.get("objective") == "rank_xendcg")
    return " and ".join(drawing)


def parameters_of(text: str) -> dict[str, str]:
    """Return the parameters in the text of a booster of LightGBM."""
    return dict(line[1:-1].split(": ", 1) for line in text.partition("parameters:")[2].split("\n") if ": " in line)


def values_in(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parameters in a configuration of XGBoost."""
    for name, value in node.items() if isinstance(node, dict) else enumerate(node):
        if isinstance(value, (dict, list)):
            yield from values_in(value)
        else:
            yield str(name), value


def unsaved(drawn: str, library: str) -> str:
    """Return why a training that draws does not pause."""
    what = "estimates" if drawn == "lambdarank_unbiased" else "random numbers"
    return f"{library} does not save the {what} of {drawn}, so a resumed training would differ"


def forgets(booster: Any, by_hand: bool) -> str | None:
    """Return why a booster that a loop of the user's own trains cannot resume exactly, or None.

    by_hand: by `update` of this object. `lgb.train` draws afresh in each call, so not within one that is running, which
    a callback of the program reports. `xgb.train` continues to draw.
    """

    library = _library(booster)
    if library == "xgboost" and (drawn := drawn_by_xgboost(values_in(json.loads(booster.save_config())))):
        return unsaved(drawn, "XGBoost")
    if library == "lightgbm" and (by_hand or caller("train", "lightgbm.") is not None):
        given = parameters_of(booster.model_to_string(num_iteration=1))
        return unsaved(drawn, "LightGBM") if (drawn := drawn_by_lightgbm(given)) else None
    if library == "catboost" and booster.is_fitted():
        given = booster.get_all_params()["iterations"]
        if _rounds(booster) > given or given == 1:  # it continues another one, or the next one continues it
            return (
                "CatBoost continues a model from a file differently from one in memory (train in one fit, with "
                "haltune.callbacks.catboost)"
            )
    return None
