"""What may be given where a number is asked for; everything else gets a sentence."""

from __future__ import annotations

import math
import operator
from dataclasses import fields
from numbers import Real
from typing import Any

import numpy as np

from haltune.errors import InvalidInput

MOST_POINTS = 10**6  # of a design or a set of candidates: each takes memory
LARGEST = 1e60  # squares of variances of what is larger are no numbers


def python_number(value: Any) -> Any:
    """A number as Python has it: NumPy's as an int or a float, whatever counts as an int; all else as it is."""
    if isinstance(value, np.floating):
        return float(value)
    if isinstance(value, int | str) or not hasattr(type(value), "__index__"):
        return value
    try:
        return operator.index(value)
    except TypeError:  # a tensor of floats, say
        return value


def pythonic(options: Any) -> None:
    """Make the numbers of a dataclass' fields Python's: they are compared, counted with and written as JSON."""
    for field in fields(options):
        if field.init and (found := python_number(value := getattr(options, field.name))) is not value:
            object.__setattr__(options, field.name, found)


def check_counts(**counts: Any) -> None:
    """Raises InvalidInput for what is no count; a seed may be None."""
    for what, count in counts.items():
        if what == "seed" and count is None:
            continue
        if isinstance(count, bool) or not isinstance(count, int) or count < 0:
            raise InvalidInput(f"{what}={count!r}: a whole number, 0 or more")


def check_whole(owner: str, least: int, most: float = math.inf, **values: Any) -> None:
    """Raises InvalidInput for options of `owner` that are no whole numbers of at least `least` and at most `most`."""
    for option, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            limit = f" and at most {most:,}" if most < math.inf else ""
            raise InvalidInput(f"{owner}({option}={value!r}): a whole number, at least {least}{limit}")


def check_kinds(options: Any, of: type | None = None) -> None:
    """Raises InvalidInput for a dataclass' fields of numbers that hold none; in which range they lie it checks itself.

    of: the class whose fields are checked, where that is one that its own derives from.
    """
    for field in fields(of or options):
        kind = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
        what, _, may_be_none = kind.partition(" | ")
        if what not in _NUMBERS or may_be_none not in ("", "None") or not field.init:
            continue
        value = getattr(options, field.name)
        if not (isinstance(value, Real) or (value is None and may_be_none)):
            other = ", or None" if may_be_none else ""
            raise InvalidInput(
                f"{type(options).__name__}({field.name}={value!r}): {_NUMBERS[what]}{other}, not {type(value).__name__}"
            )


_NUMBERS = {"float": "a number", "int": "a whole number"}


def is_number(value: Any) -> bool:
    """Whether it is a finite number, and no truth value."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float holds
        return False


def within(value: Any, low: float, high: float = math.inf) -> bool:
    """Whether it is a number between two others."""
    return is_number(value) and low < value < high


def check_seconds(**durations: Any) -> None:
    """Raises InvalidInput for what is no length of time."""
    for what, seconds in durations.items():
        if not within(seconds, 0.0):
            raise InvalidInput(f"{what}={seconds!r}: seconds, more than 0")


def number(what: str, value: Any, positive: bool | None = False) -> float:
    """One number as a float; positive=True: > 0 and finite, False: anything.

    None: a length of time or a cost, >= 0 and finite, counted to at most 1e60: sums of these stay numbers.
    """
    shape = getattr(value, "shape", ())
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        number = float(value if shape == () else value.item()) + 0.0  # no -0.0: SQLite has none
    except (TypeError, ValueError, OverflowError, RuntimeError, AttributeError):
        described = f"an array of shape {tuple(shape)}" if shape != () else repr(value)
        several = shape != () or isinstance(value, (list, tuple))
        hint = ": take the one that is meant, or the mean" if several else ""
        if isinstance(value, dict):
            hint = ": take the one that is meant"
        raise InvalidInput(f"{what} is one number, not {described}{hint}") from None
    if positive is not False and not (math.isfinite(number) and number >= 0 and (number > 0 or not positive)):
        allowed = "greater than 0 (epochs count from 1: leave it out, or add 1)" if positive else "0 or more"
        raise InvalidInput(f"{what}={value!r}: finite and {allowed}")
    return min(number, LARGEST) if positive is None else number


def timed(seconds: Any, validation: Any, since: float) -> tuple[float, float | None]:
    """The seconds of an epoch, `since` the last report where they are not given, and those of them that validated."""
    validated = None if validation is None else number("validation", validation, positive=None)
    if seconds is None:  # two clocks may differ: it lasted at least as long as its validation
        return max(since, validated or 0.0), validated
    took = number("seconds", seconds, positive=None)
    if validated is not None and validated > took * (1.0 + 1e-9) + 1e-9:
        raise InvalidInput(
            f"validation={validation!r} is more than seconds={seconds!r}: seconds is the whole epoch, its validation "
            "included; give seconds=training + validation"
        )
    return took, None if validated is None else min(validated, took)
