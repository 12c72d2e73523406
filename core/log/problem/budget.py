"""What a search may cost."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from haltune._utils.checks import pythonic
from haltune.errors import InvalidInput
from haltune.errors.foreign_words import KnowsArguments

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)\s*")


def seconds_of(duration: float | str, what: str = "time") -> float:
    """Seconds in a duration such as "2h", "1h30m", "90 s", or a number of seconds.

    Raises InvalidInput for anything else, and for what is not positive and finite.
    """
    total = float("nan")
    if isinstance(duration, str):
        parts = list(_DURATION.finditer(duration.strip()))
        if parts and "".join(p.group(0) for p in parts) == duration.strip():
            total = sum(float(p.group(1)) * _UNITS[p.group(2)[0]] for p in parts)
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        with suppress(OverflowError):
            total = float(duration)
    if not (math.isfinite(total) and total > 0):
        raise InvalidInput(
            f"{what}={duration!r}: write a duration such as '2h', '1h30m', '90s', or seconds, more than 0 and finite"
        )
    return total


@dataclass(frozen=True)
class Budget(KnowsArguments):
    """What a whole search may cost, over all its workers. Every limit that is given holds; None is no limit.

    Args:
        trials: How many may be begun; what was begun goes on. Default: None.
        epochs: How many may be trained. Default: None.
        time: Wall-clock time while any trial is held, decisions included: seconds, or a text such as "1h30m".
            Default: None.
        worker_time: The same, summed over workers. Default: None.
        money: Worker time at `price`, in the units of it. Default: None.
        price: Of one worker for an hour; no limit by itself. Default: None.
        cost: The sum of what trials report as `cost`, in its own units. Default: None.

    Raises:
        InvalidInput: For a limit that is not positive, a duration that is none, and money without a price.

    Example:
        >>> Budget(time="1h30m", trials=50).time
        5400.0
    """

    trials: int | None = None
    epochs: float | None = None
    time: float | str | None = None  # seconds once built
    worker_time: float | str | None = None  # seconds once built
    money: float | None = None  # in the units of price
    price: float | None = None  # per worker-hour
    cost: float | None = None  # in the units of trial.report(cost=)

    def __post_init__(self) -> None:
        pythonic(self)
        for name in ("time", "worker_time"):
            if (duration := getattr(self, name)) is not None:
                object.__setattr__(self, name, seconds_of(duration, name))
        for name in ("trials", "epochs", "money", "price", "cost"):
            self._check_positive(name)
        if self.money is not None and self.price is None:
            raise InvalidInput("a budget of money needs price=, the cost of one worker for an hour")

    def _check_positive(self, name: str) -> None:
        if (limit := getattr(self, name)) is None:
            return
        number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
        if not number or not 0 < limit <= math.inf or (isinstance(limit, int) and limit >= 2**63):
            meant = f"; Budget(time={limit!r})?" if isinstance(limit, str) else ""
            raise InvalidInput(f"Budget({name}={limit!r}): a positive number, or None for no limit{meant}")
        if name == "trials" and limit % 1 > 0:  # not of infinity, which has no remainder
            raise InvalidInput(f"Budget(trials={limit!r}): a whole number, or None for no limit")

    @property
    def unlimited(self) -> bool:
        """True when no limit was given."""
        return all(getattr(self, f.name) is None for f in fields(self) if f.name != "price")

    def to_json(self) -> dict[str, Any]:
        """The limits that are given and finite; `Budget(**limits)` is the inverse."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: limit for name, limit in given.items() if limit is not None and math.isfinite(limit)}
