"""What stands for a parameter where a space is written down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from haltune.errors import InvalidSpace

from .domains import Choice, Constant, Domain, Float, Int


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
