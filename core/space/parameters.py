"""What stands for parameters where a space is written down."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from haltune.errors import InvalidSpace

from .domains import Choice, Constant, Domain, Float, Int

Parameters = Mapping[str, Any] | Iterable[tuple[str, Any]]


def as_domain(name: str, value: Any) -> Domain:
    """The domain itself, or a bare value as a constant. Raises InvalidSpace for what may mean something else."""
    if isinstance(value, Float | Int | Choice | Constant):
        return value
    try:
        constant = Constant(value)
    except InvalidSpace:
        meant = "for one value a text that your code turns into it, for a log keeps plain values alone"
    else:
        if not isinstance(value, list | tuple):
            return constant
        meant = f"Constant({value!r}) for the value itself"
    if isinstance(value, Mapping) and any(
        isinstance(v, Float | Int | Choice | Constant) for v in value.values()
    ):
        raise InvalidSpace(
            f"The parameter {name!r} holds parameters, and spaces do not nest: give each a name of its own, such as "
            f"{f'{name}_{next(iter(value))}'!r}."
        )
    raise InvalidSpace(
        f"The parameter {name!r} is given as {value!r}, which may mean several things. Write "
        f"Choice([...]) for one of these, Float(low, high) or Int(low, high) for a range, or {meant}."
    )


def domains_from(parameters: Parameters) -> dict[str, Domain]:
    """By name, checked one by one. Raises InvalidSpace."""
    pairs = list(parameters.items() if isinstance(parameters, Mapping) else parameters)
    found: dict[str, Domain] = {}
    for pair in pairs:
        name, value = pair if isinstance(pair, tuple | list) and len(pair) == 2 else (pair, math.nan)
        if not isinstance(name, str) or not name or name != name.strip():
            raise InvalidSpace(
                f"A space maps names (text without spaces around it) to domains; got {name!r}."
            )
        if name in found:
            raise InvalidSpace(
                f"The parameter {name!r} is given twice. Names must differ: rename or drop one."
            )
        found[name] = as_domain(name, value)
    return found
