"""What is searched: a space, a goal, a horizon, and the budget it may cost.

`value` is what the user reports, in the metric's own units. `score` is the same
number on [0, 1], 1 best: policies that need a scale use it, ranking never does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Literal

from haltune.errors import InvalidInput
from haltune.space import Space


@dataclass(frozen=True)
class _Goal:
    metric: str  # the name under which the training loop logs it
    bounds: tuple[float, float] | None = None  # (lowest, highest) possible value, metric units
    of: Literal["last", "best"] = "last"  # the epoch whose value a run counts for

    sign = 0.0  # +1 when larger is better, -1 when smaller is

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise InvalidInput(f"the goal's metric is a name such as 'val_loss', not {self.metric!r}")
        if self.bounds is not None:
            object.__setattr__(self, "bounds", _checked_bounds(self.bounds))
        if self.of not in ("last", "best"):
            raise InvalidInput(
                f"of={self.of!r}: a run counts for its 'last' epoch, or for its 'best' where you keep the best weights"
            )

    def better(self, value: float, than: float) -> bool:
        """True when `value` ranks above `than`; what is not finite ranks below everything."""
        if not math.isfinite(value):
            return False
        return not math.isfinite(than) or self.sign * value > self.sign * than

    def to_json(self) -> dict[str, Any]:
        """A JSON form; `goal_from_json` reads it back."""
        name = "maximize" if self.sign > 0 else "minimize"
        other = {} if self.of == "last" else {"of": self.of}  # logs from before there was a choice stay equal
        return {"goal": name, "metric": self.metric, "bounds": self.bounds and list(self.bounds), **other}


class Maximize(_Goal):
    """Larger is better. With `bounds`, score = (value - low) / (high - low).

    of: a run counts for the value of its "last" epoch, or of its "best", everywhere.
    """

    sign = 1.0


class Minimize(_Goal):
    """Smaller is better. With `bounds`, score = (high - value) / (high - low). of: see Maximize."""

    sign = -1.0


Goal = Maximize | Minimize


def goal_from_json(data: Mapping[str, Any]) -> Goal:
    """The inverse of `to_json`."""
    bounds = tuple(data["bounds"]) if data["bounds"] else None
    kind = Maximize if data["goal"] == "maximize" else Minimize
    return kind(data["metric"], bounds, data.get("of", "last"))


def _checked_bounds(bounds: Any) -> tuple[float, float]:
    try:
        low, high = (float(b) for b in bounds)
    except (TypeError, ValueError):
        raise InvalidInput(f"bounds are two numbers (lowest, highest), not {bounds!r}") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidInput(
            f"bounds {bounds!r}: both must be finite and the first the smaller; "
            "leave bounds out when the metric has none, and the scale is learnt"
        )
    return low, high


ENDLESS = 1_000_000_000  # epochs that no training reaches


@dataclass(frozen=True)
class Problem:
    """A search space, a goal, and the number of epochs of a full training.

    `max_epochs=None` is the infinite horizon: policies that bring their own schedule accept it, and their
    trials have a `trial.max_epochs` of ENDLESS, which frameworks take.
    """

    space: Space
    goal: Goal
    max_epochs: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.space, Space):
            raise InvalidInput(f"the first argument is a Space, not {type(self.space).__name__}")
        if not isinstance(self.goal, (Maximize, Minimize)):
            raise InvalidInput(
                "the goal is Maximize('val_acc', bounds=(0, 1)) or Minimize('val_loss'), "
                f"not {self.goal!r}; were space and goal swapped?"
            )
        n = self.max_epochs
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise InvalidInput(f"max_epochs is a whole number of epochs, at least 1, or None; not {n!r}")

    def to_json(self) -> dict[str, Any]:
        """A JSON form: what a study records and compares when it is reopened."""
        return {
            "space": self.space.to_json(),
            "goal": self.goal.to_json(),
            "max_epochs": self.max_epochs,
        }

    @classmethod
    def from_json(
        cls,
        data: Mapping[str, Any],
        constraints: Mapping[str, Callable[[dict[str, Any]], bool]] | None = None,
    ) -> Problem:
        """The inverse of `to_json`. Raises InvalidSpace unless the functions of its constraints are supplied."""
        space = Space.from_json(data["space"], constraints)
        return cls(space, goal_from_json(data["goal"]), data["max_epochs"])


_UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(sec|s|min|m|h|d)\s*")


def seconds_of(duration: float | str, what: str = "time") -> float:
    """Seconds in a duration such as "2h", "1h30m", "90 s", or a number of seconds.

    Raises InvalidInput for anything else, and for what is not positive and finite.
    """
    total = float("nan")
    if isinstance(duration, str):
        parts = list(_DURATION.finditer(duration.strip()))
        if parts and "".join(p.group(0) for p in parts) == duration.strip():
            total = sum(float(p.group(1)) * _UNITS[p.group(2)] for p in parts)
    elif isinstance(duration, (int, float)) and not isinstance(duration, bool):
        with suppress(OverflowError):
            total = float(duration)
    if not (math.isfinite(total) and total > 0):
        raise InvalidInput(f"{what}={duration!r}: write a duration such as '2h', '1h30m', '90s', or seconds")
    return total


@dataclass(frozen=True)
class Budget:
    """What a whole search may cost. Every limit that is given holds; None is no limit.

    time: wall-clock while any trial is leased, decisions included ("2h" or seconds)
    worker_time: the same, summed over workers
    money: worker time x `price` per hour
    trials, epochs: counts, over all workers
    cost: what trials report as `cost`, summed, in its own units
    """

    trials: int | None = None
    epochs: float | None = None
    time: float | str | None = None  # seconds once built
    worker_time: float | str | None = None  # seconds once built
    money: float | None = None  # in the units of price
    price: float | None = None  # per worker-hour
    cost: float | None = None  # in the units of trial.report(cost=)

    def __post_init__(self) -> None:
        for name in ("time", "worker_time"):
            if (duration := getattr(self, name)) is not None:
                object.__setattr__(self, name, seconds_of(duration, name))
        for name in ("trials", "epochs", "money", "price", "cost"):
            self._check_positive(name)
        if self.money is not None and self.price is None:
            raise InvalidInput("a budget of money needs price=, the cost of one worker for an hour")

    def _check_positive(self, name: str) -> None:
        limit = getattr(self, name)
        if limit is None:
            return
        number = isinstance(limit, (int, float)) and not isinstance(limit, bool)
        if not number or not 0 < limit <= math.inf or (isinstance(limit, int) and limit >= 2**63):
            raise InvalidInput(f"Budget({name}={limit!r}): a positive number, or None for no limit")

    @property
    def unlimited(self) -> bool:
        """True when no limit was given."""
        return all(getattr(self, f.name) is None for f in fields(self) if f.name != "price")

    def to_json(self) -> dict[str, Any]:
        """The limits that are given and finite; `Budget(**limits)` is the inverse."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: limit for name, limit in given.items() if limit is not None and math.isfinite(limit)}
