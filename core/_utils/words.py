"""In words: how many, how much, what settings, and what an error was."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from haltune.errors import text_of

_LONG = 1e7  # from here on a number is written by its power of ten
_ONE = {"epochs": "epoch", "seconds": "second", "trials": "trial", "samples": "sample"}


def plural(count: float, one: str, several: str | None = None) -> str:
    """1 epoch, 14 epochs, 2.5 epochs, 1,266,704 epochs; 1 study, 2 studies where `several` says so."""
    return f"{counted(count)} {one if count == 1 else several or one + 's'}"


def counted(count: float) -> str:
    """A number of things: 7, 2.5, 9999, 100,000."""
    return f"{count:g}" if abs(count) < 10_000 else f"{count:,.0f}"


def ordinal(n: int) -> str:
    """A place: 1st, 2nd, 3rd, 4th, 11th, 21st."""
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def amount(count: float, unit: str, digits: int = 6) -> str:
    """So much of a unit that is named in the plural: 1 epoch, 1e+06 epochs; one of the user's own stays as it is."""
    told = f"{count:.{digits}g}"
    return f"{told} {_ONE.get(unit, unit) if told == '1' else unit}"


def short(value: Any, digits: int = 4) -> str:
    """A value with few digits: 0.9134, 1.2e-05, 13310, 1.2e+08, True, adam."""
    if not isinstance(value, float) or not math.isfinite(value):
        return str(value)
    text = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in text and abs(value) < _LONG else text


def settings(config: Mapping[str, Any], digits: int = 3) -> str:
    """A configuration on one line: lr=0.01, width=32."""
    return (
        ", ".join(f"{name}={short(value, digits)}" for name, value in config.items())
        or "the only one there is"
    )


def duration(seconds: float) -> str:
    """Seconds as 0.4 s, 48 s, 3 min 20 s, 7 min, 34 min or 2 h 5 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")


def clock(seconds: float) -> str:
    """Seconds as a clock shows them: 0:07, 4:10, 1:04:10."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def clipped(text: str, most: int = 2000) -> str:
    """A text of at most so many characters: an error may be as long as it likes, a page may not."""
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def chance(p: float, of: int) -> str:
    """A probability as simulated curves tell it: "= 0.04"; to two decimals, below 0.01 to the first that is not 0.

    So many curves tell it; where its standard error is above 0.1 there is one decimal, and where none of them wins
    it is at most 3 / of at 95% (the rule of three).
    """
    if p == 0.0 and of:
        most = min(1.0, 3.0 / of)
        digits = max(1, math.ceil(-math.log10(most)))
        return f"< {min(1.0, math.ceil(most * 10.0**digits) / 10.0**digits):.{digits}f}"
    few = of > 0 and p >= 0.05 and p * (1.0 - p) > 0.01 * of
    if p > 0.995:
        return "> 0.9" if few else "> 0.99"
    if 0.0 < p < 0.01:
        p = float(f"{p:.0e}")
    digits = 1 if few else 2 if p >= 0.01 or p == 0.0 else math.ceil(-math.log10(p))
    return f"= {p:.{digits}f}"


def one_line(error: BaseException) -> str:
    """The kind of error and its first line."""
    kind, text = type(error).__name__, text_of(error).strip()
    return f"{kind}: {text.splitlines()[0]}" if text else kind
