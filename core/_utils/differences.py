"""What differs between two settings, in sentences: shown when a study is reopened with others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from haltune.display import clipped

# option of a policy -> what was recorded where nothing was given, and what is now: no difference
_DEFAULTS = {"rounds": (1, None), "cells": (100, 16)}


def differences(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "") -> list[str]:
    """One sentence for each entry that differs between two JSON objects."""
    kinds = old.get("policy"), new.get("policy")
    if kinds[0] != kinds[1] and all(isinstance(kind, str) for kind in kinds):
        return [
            f"{where}policy: recorded {kinds[0]!r}, given {kinds[1]!r}"
        ]  # options of one are none of the other
    found: list[str] = []
    for key in [*old, *(k for k in new if k not in old)]:
        name = f"{where}{key}"
        if key not in new:
            found.append(f"{name}: recorded {clipped(repr(old[key]), 80)}, now missing")
        elif key not in old:
            found.append(f"{name}: was not there, now {clipped(repr(new[key]), 80)}")
        elif (parts := (_by_name(old[key]), _by_name(new[key]))) and None not in parts:
            found += differences(parts[0] or {}, parts[1] or {}, f"{name}.")
            found += _order(old[key], new[key], name)
        elif old[key] != new[key] and (old[key], new[key]) != _DEFAULTS.get(key):
            found.append(
                f"{name}: recorded {clipped(repr(old[key]), 80)}, given {clipped(repr(new[key]), 80)}"
            )
    return found


def _order(old: Any, new: Any, name: str) -> list[str]:
    """A sentence when lists of the same names have them in another order."""
    if isinstance(old, Mapping) or isinstance(new, Mapping):
        return []
    before, now = [v["name"] for v in old], [v["name"] for v in new]
    if before == now or sorted(before) != sorted(now):
        return []
    return [f"{name}: recorded in the order {', '.join(before)}, given as {', '.join(now)}"]


def _by_name(value: Any) -> Mapping[str, Any] | None:
    """An object, or a list of named objects as one; None for anything else."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list) and value and all(isinstance(v, Mapping) and "name" in v for v in value):
        return {v["name"]: v for v in value}
    return None
