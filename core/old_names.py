"""Old names in programs and logs, and differences between recorded and given settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from haltune.display import clipped
from haltune.errors import InvalidInput, warn

P = ParamSpec("P")
T = TypeVar("T")

# class -> old name of an option -> its present name
_RENAMED = {
    "Ladder": {"patience": "min_trials_per_rung", "min_epochs": "min_resource"},
    "MultiFidelity": {"patience": "min_trials_per_rung"},
    "EIPerCost": {"cost": "cost_function"},
    "CostCooledEI": {"cost": "cost_function"},
    "LevelSetSearch": {"root_beta": "a"},
    "OptimalStopping": {"beside": "reference_curves"},
    **{name: {"until": "pause_at"} for name in ("Start", "Resume", "Verdict")},
}

# old name of a policy -> its present name, and the options that replace it
POLICIES: dict[str, tuple[str, dict[str, Any]]] = {
    "EIPerCost": ("EI", {"cost": "per"}),
    "CostCooledEI": ("EI", {"cost": "cooled"}),
    "LevelSetSearch": ("TruVaR", {"rule": "gchk"}),
    "Guided": ("MultiFidelity", {}),  # another search; its options do not apply
}
# policy, also by its old name -> options that old logs do not have, with the values that they mean
_ADDED: dict[str, dict[str, Any]] = {
    "EI": {"cost": None, "cost_function": None, "cost_model": "gp"},
    "MultiFidelity": {"min_share": 0.0},
    "TruVaR": {"rule": "truvar"},
    "Guided": {
        "initial": 20, "deviations": 3.0, "eta": 3, "first_cut": 6, "min_trials_per_rung": None, "candidates": 300,
        "min_share": 0.0,
    },
    "LevelSetSearch": {
        "implicit": None, "levels": [], "cost": None, "cost_model": None, "candidates": "all", "monotone": None,
        "anticipate": False, "accuracy": None, "beta": "practical", "delta": 0.1, "eta": 1.0, "r": 0.1, "slack": 0.0,
        "floor": 1e-6,
    },
}  # fmt: skip


def renamed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy's spec from a log as this version writes it, with inner policies."""
    values = {k: renamed(v) if isinstance(v, Mapping) and "policy" in v else v for k, v in spec.items()}
    if isinstance(stopping := values.get("stopping"), Mapping):
        names = _RENAMED["OptimalStopping"]
        values["stopping"] = {names.get(k, k): v for k, v in stopping.items()}
    name, inner = str(values.pop("policy", None)), values.get("inner")
    if name == "Guided" and not (isinstance(inner, Mapping) and inner.get("policy") in ("Ladder", "MultiFidelity")):
        return dict(spec)  # its trials have another schedule, so the log can only be read
    now, options = policy_now(name, values)
    return {"policy": now, **_ADDED.get(name, {}), **options} if "policy" in spec else options


def policy_now(name: str, options: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the present name and options of an earlier version's policy."""
    now, own = POLICIES.get(name, (name, {}))
    if name == "Guided":
        return now, {}
    names = _RENAMED.get(name, {})
    values = {**own, **{names.get(k, k): v for k, v in options.items()}}
    if name == "LevelSetSearch" and "a" in values:  # it was root_beta, 3 by default
        values["a"] = None if values["a"] == 3.0 else values["a"] ** 2
    return now, values


def continues_as(spec: Mapping[str, Any]) -> str | None:
    """Return the sentence for a log whose policy was removed, so that another one continues it."""
    if spec.get("policy") == "Guided":
        return (
            "The study was recorded with Guided, which was removed. You can read it; it continues with MultiFidelity()."
        )
    return continues_as(inner) if isinstance(inner := spec.get("inner"), Mapping) else None


def takes_old_names(cls: type[T]) -> type[T]:
    """Let a class accept the old names of its options, with a warning."""
    name, made, names = cls.__name__, vars(cls)["__init__"], _RENAMED[cls.__name__]

    @wraps(made)
    def __init__(self: Any, *args: Any, **options: Any) -> None:
        for old in names.keys() & options.keys() if options else ():  # fast: each report makes a verdict
            if (new := names[old]) in options:
                raise InvalidInput(f"{name}({old}=..., {new}=...) are the same option. Use only {new}=.")
            every = " Study(..., min_epochs=) sets the minimum of every policy." if old == "min_epochs" else ""
            warn(f"{name}({old}=) is now {new}=. Use {name}({new}={options[old]!r}).{every}")
            options[new] = options.pop(old)
        made(self, *args, **options)

    __init__.old_names = names  # type: ignore[attr-defined]
    setattr(cls, "__init__", __init__)  # noqa: B010
    return cls


# old argument of Study and load_study -> its present argument, and its name there
MOVED = {
    "lease": ("store", "lease"), "patience": ("store", "patience"), "max_retries": ("store", "max_retries"),
    "keep_checkpoints": ("checkpoints", "keep"), "disk_quota": ("checkpoints", "disk_quota"),
}  # fmt: skip


def moved(old: Mapping[str, Any], argument: str) -> dict[str, Any]:
    """Return the old arguments that now belong to `argument`, by their new names."""
    return {MOVED[name][1]: value for name, value in old.items() if MOVED.get(name, ("",))[0] == argument}


def takes_moved(**kinds: Callable[..., Any]) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function accept arguments that are now in a group, with a warning.

    kinds: argument -> class of the group.
    """

    def accepting(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def taken(*args: P.args, **named: P.kwargs) -> T:
            if MOVED.keys().isdisjoint(named):
                return function(*args, **named)
            now = {name: value for name, value in named.items() if name not in MOVED}
            bound = inspect.signature(function).bind_partial(*args, **now)
            groups = []
            for argument, kind in kinds.items():
                if not (options := moved(named, argument)):
                    continue
                given = bound.arguments.get(argument)
                if isinstance(given, kind):  # type: ignore[arg-type]
                    raise InvalidInput(f"{', '.join(options)}: use only {argument}={kind.__name__}(...).")
                bound.arguments[argument] = kind(given, **options)
                shown = [
                    *(["..."] if given is not None else []),
                    *(f"{k}={clipped(repr(v), 80)}" for k, v in options.items()),
                ]
                groups.append(f"{argument}={kind.__name__}({', '.join(shown)})")
            old = ", ".join(f"{name}=" for name in named if name in MOVED)
            warn(f"{old}: these arguments are now in a group. Use {', '.join(groups)}.")
            return function(*bound.args, **bound.kwargs)

        taken.old_names = MOVED  # type: ignore[attr-defined]
        return taken

    return accepting


# option of a policy -> old and new record of the default, which are equal
_DEFAULTS = {"rounds": (1, None), "cells": (100, 16), "K1": (500.0, 1000.0)}


def differences(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "") -> list[str]:
    """Return one sentence per difference between two JSON objects."""
    kinds = old.get("policy"), new.get("policy")
    if kinds[0] != kinds[1] and all(isinstance(kind, str) for kind in kinds):
        return [f"{where}policy: recorded {kinds[0]!r}, given {kinds[1]!r}"]  # their options cannot be compared
    found: list[str] = []
    for key in [*old, *(k for k in new if k not in old)]:
        name = f"{where}{key}"
        if key not in new:
            found.append(f"{name}: recorded {clipped(repr(old[key]), 80)}, now missing")
        elif key not in old:
            found.append(f"{name}: was missing, now {clipped(repr(new[key]), 80)}")
        elif (parts := (_by_name(old[key]), _by_name(new[key]))) and None not in parts:
            found += differences(parts[0] or {}, parts[1] or {}, f"{name}.")
            found += _order(old[key], new[key], name)
        elif old[key] != new[key] and (old[key], new[key]) != _DEFAULTS.get(key):
            found.append(f"{name}: recorded {clipped(repr(old[key]), 80)}, given {clipped(repr(new[key]), 80)}")
    return found


def _order(old: Any, new: Any, name: str) -> list[str]:
    """Return a sentence if two lists have the same names in another order."""
    if isinstance(old, Mapping) or isinstance(new, Mapping):
        return []
    before, now = [v["name"] for v in old], [v["name"] for v in new]
    if before == now or sorted(before) != sorted(now):
        return []
    return [f"{name}: recorded in the order {', '.join(before)}, given as {', '.join(now)}"]


def _by_name(value: Any) -> Mapping[str, Any] | None:
    """Return an object, or a list of named objects as one; None for anything else."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list) and value and all(isinstance(v, Mapping) and "name" in v for v in value):
        return {v["name"]: v for v in value}
    return None
