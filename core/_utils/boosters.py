"""Boosters of XGBoost, LightGBM and CatBoost: their rounds, and what their files lack for a training to continue."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .interruption import caller

_RANDOM = {("feature_selector", "random"), ("feature_selector", "shuffle"), ("lambdarank_pair_method", "mean")}


def library_of(value: Any) -> str | None:
    """Return the library of a booster."""
    for kind in type(value).__mro__:
        library = kind.__module__.partition(".")[0]
        if (library, kind.__name__) in (("xgboost", "Booster"), ("lightgbm", "Booster"), ("catboost", "CatBoost")):
            return library
    return None


def rounds_of(booster: Any) -> int:
    if (library := library_of(booster)) == "catboost":
        return int(booster.tree_count_)
    return int(booster.num_boosted_rounds() if library == "xgboost" else booster.current_iteration())


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

    by_hand: the loop calls `update` of this object. `lgb.train` draws afresh in each call, so the booster can resume
    unless such a call is running, from which a callback of the program reports. `xgb.train` continues to draw.
    """
    library = library_of(booster)
    if library == "xgboost" and (drawn := drawn_by_xgboost(values_in(json.loads(booster.save_config())))):
        return unsaved(drawn, "XGBoost")
    if library == "lightgbm" and (by_hand or caller("train", "lightgbm.") is not None):
        given = parameters_of(booster.model_to_string(num_iteration=1))
        return unsaved(drawn, "LightGBM") if (drawn := drawn_by_lightgbm(given)) else None
    if library == "catboost" and booster.is_fitted():
        given = booster.get_all_params()["iterations"]
        if rounds_of(booster) > given or given == 1:  # it continues another one, or the next one continues it
            return (
                "CatBoost continues a model from a file differently from one in memory (train in one fit, with "
                "haltune.callbacks.catboost)"
            )
    return None
