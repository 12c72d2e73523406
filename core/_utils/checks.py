"""Checks of numbers and functions given by users; errors state what is allowed."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from numbers import Real
from typing import Any

import numpy as np

from haltune.errors import InvalidInput

MOST_POINTS = 10**6  # of a design or a set of candidates, because each needs memory
LARGEST = 1e60  # for larger values, squares of variances overflow


def python_number(value: Any) -> Any:
    """Return a number or truth value of NumPy as Python's, a number as int or float; other values do not change."""
    if isinstance(value, np.floating):
        return float(value)
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, int | str) or not hasattr(type(value), "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:  # for example a tensor of floats
        return value


def pythonic(options: Any) -> None:
    """Convert the numbers in a dataclass to Python's, because they are compared, counted and written as JSON."""
    for field in fields(options):
        if field.init and (found := python_number(value := getattr(options, field.name))) is not value:
            object.__setattr__(options, field.name, found)


def unfit(function: Callable[..., object]) -> inspect.Signature | None:
    """Return the signature of a function that cannot be called with one argument; None if it can, or none is known."""
    with suppress(TypeError, ValueError):  # a built-in function without a signature
        signature = inspect.signature(function)
        try:
            signature.bind(None)
        except TypeError:
            return signature
    return None


def check_counts(**counts: Any) -> None:
    for what, count in counts.items():
        if what == "seed" and count is None:
            continue
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InvalidInput(f"{what}={count!r}: use a whole number, 0 or more")


def check_whole(owner: str, least: int, most: float = math.inf, /, **values: Any) -> None:
    """Raise InvalidInput for options of `owner` that are not whole numbers from `least` to `most`."""
    for option, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            limit = f" and at most {most:,}" if most < math.inf else ""
            raise InvalidInput(f"{owner}({option}={value!r}): use a whole number, at least {least}{limit}")


def check_kinds(options: Any, of: type | None = None) -> None:
    """Raise InvalidInput if a number or truth value of a dataclass has another type; the dataclass checks the ranges.

    of: check only the fields of this base class.
    """
    for field in fields(of or options):
        kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
        what, _, may_be_none = kind.partition(" | ")
        if what not in _KINDS or may_be_none not in ("", "None") or not field.init:
            continue
        value, (allowed, of_type) = getattr(options, field.name), _KINDS[what]
        fits = isinstance(value, of_type) and not (what == "int" and isinstance(value, bool))
        whole = what == "int" and isinstance(value, float) and value.is_integer()  # 40 / 2; the dataclass may refuse it
        if not (fits or whole or (value is None and may_be_none)):
            other = ", or None" if may_be_none else ""
            raise InvalidInput(
                f"{type(options).__name__}({field.name}={value!r}): use {allowed}{other}; got {type(value).__name__}"
            )


# of a field by its annotation: what is allowed, in words and as a type
_KINDS: dict[str, tuple[str, Any]] = {
    "float": ("a number", Real),
    "int": ("a whole number", int),
    "bool": ("True or False", bool),
}


def is_number(value: Any) -> bool:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that is too large for a float
        return False


def within(value: Any, low: float, high: float = math.inf) -> bool:
    return is_number(value) and low < value < high


def check_seconds(**durations: Any) -> None:
    for what, seconds in durations.items():
        if not within(seconds, 0.0):
            raise InvalidInput(f"{what}={seconds!r}: use seconds, more than 0")


def number(what: str, value: Any, positive: bool | None = False) -> float:
    """Return one number as a float. positive=True: > 0 and finite; False: any number.

    None: a duration or a cost, >= 0 and finite, at most 1e60 so that sums do not overflow.
    """
    shape = getattr(value, "shape", ())
    try:
        if isinstance(value, (str, bytes)) or (type(value) is not float and no_real_number(value)):
            raise TypeError
        # item: float(tensor) warns about a gradient. TensorFlow's tensors have none. + 0.0: SQLite has no -0.0
        found = float(getattr(value, "item", lambda: value)()) + 0.0
    except (TypeError, ValueError, OverflowError, RuntimeError, AttributeError):
        described = f"an array of shape {tuple(shape)}" if shape != () else repr(value)
        several = shape != () or isinstance(value, (list, tuple))
        hint = ". Give one of them, or the mean" if several else ""
        if isinstance(value, dict):
            hint = ". Give one of them"
        elif value is None:
            hint = ", as from a function without `return`"
        elif isinstance(value, (str, bytes)):
            hint = ", which is text. Give the number, such as float(text)"
        if why := no_real_number(value):
            described, hint = f"{why}, {described}", ""
        raise InvalidInput(f"{what} must be one number; got {described}{hint}") from None
    if positive is not False and not (math.isfinite(found) and found >= 0 and (found > 0 or not positive)):
        omit = "omit it, or add 1" if what == "epoch" else "add 1"
        allowed = f"above 0. The first {what} is 1: {omit}" if positive else "0 or more"
        raise InvalidInput(f"{what}={value!r}: use a finite number, {allowed}")
    return min(found, LARGEST) if positive is None else found


def no_real_number(value: Any) -> str:
    """Return "a complex number" or "a masked element", of which `float` silently takes a part; else ""."""
    kind = getattr(value, "dtype", None)
    if kind is None:
        return "a complex number" if isinstance(value, complex) else ""
    if "complex" in str(kind):
        return "a complex number"
    return "a masked element" if np.ma.is_masked(value) else ""


def timed(seconds: Any, validation: Any, since: float) -> tuple[float, float | None]:
    """Return the seconds of an epoch (by default `since` the last report), and its seconds of validation."""
    validated = None if validation is None else number("validation", validation, positive=None)
    if seconds is None:  # the clocks may differ: an epoch takes at least as long as its validation
        return max(since, validated or 0.0), validated
    took = number("seconds", seconds, positive=None)
    if validated is not None and validated > took * (1.0 + 1e-9) + 1e-9:
        raise InvalidInput(
            f"validation={validation!r} is more than seconds={seconds!r}. seconds is the whole epoch with its "
            "validation. Use seconds=training + validation"
        )
    return took, None if validated is None else min(validated, took)
