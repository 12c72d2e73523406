"""What is searched: a space, a goal, a horizon, and the budget it may cost.

`value` is what the user reports, in the metric's own units. `score` is the same
number on [0, 1], 1 best: policies that need a scale use it, ranking never does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

from haltune.errors import InvalidInput, InvalidSpace
from haltune.foreign_words import KnowsArguments
from haltune.space import Space


@dataclass(frozen=True)
class _Goal(KnowsArguments):
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
    """Larger values of a metric are better.

    Args:
        metric: The name under which the training logs it, such as "val_acc".
        bounds: (lowest, highest) value that it can have, its own units: score = (value - low) / (high - low).
            Default: None, and the scale is learnt from what was reported.
        of: The epoch whose value a run counts for, everywhere: its "last", or its "best" where the best weights
            are kept. Default: "last".

    Raises:
        InvalidInput: For a metric that is no name, and bounds that are not two finite numbers, the smaller first.

    Example:
        >>> Maximize("val_acc", bounds=(0, 1)).better(0.9, than=0.8)
        True
    """

    sign = 1.0


class Minimize(_Goal):
    """Smaller values of a metric are better.

    Args:
        metric: The name under which the training logs it, such as "val_loss".
        bounds: (lowest, highest) value that it can have, its own units: score = (high - value) / (high - low).
            Default: None, and the scale is learnt from what was reported.
        of: The epoch whose value a run counts for, everywhere: its "last", or its "best" where the best weights
            are kept. Default: "last".

    Raises:
        InvalidInput: For a metric that is no name, and bounds that are not two finite numbers, the smaller first.

    Example:
        >>> Minimize("val_loss").better(0.2, than=float("nan"))
        True
    """

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
class Problem(KnowsArguments):
    """What is searched, what for, and how long a full training is.

    Args:
        space: What can be configured.
        goal: Maximize(...) or Minimize(...) of a metric.
        max_epochs: Epochs of a full training. Default: None, the infinite horizon, for policies that bring their
            own schedule: their trials have a `trial.max_epochs` of ENDLESS, which frameworks take.
        start: Configurations that are trained first, in their order, whatever the policy: defaults, guesses. More
            can follow by `study.enqueue`, which says how they are begun. Default: none.

    Raises:
        InvalidInput: For a space or a goal that is none, epochs that are no whole number of at least 1, and
            configurations to start with that are not of the space or that are given twice.

    Example:
        >>> from haltune import Float, Space
        >>> problem = Problem(Space({"lr": Float(1e-4, 1e-1, log=True)}), Minimize("val_loss"), max_epochs=30)
        >>> problem.goal.metric
        'val_loss'
    """

    space: Space
    goal: Goal
    max_epochs: int | None = None
    start: Sequence[Mapping[str, Any]] = field(default=(), hash=False)
    # read from a log, of whatever space that is by now
    of_log: bool = field(default=False, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.space, Space):
            raise InvalidInput(
                f"the first argument is a Space, not {type(self.space).__name__}: Space({{...}})"
            )
        if isinstance(self.goal, str):
            raise InvalidInput(f"the goal is Maximize({self.goal!r}) or Minimize({self.goal!r})")
        if not isinstance(self.goal, (Maximize, Minimize)):
            raise InvalidInput(
                "the goal is Maximize('val_acc', bounds=(0, 1)) or Minimize('val_loss'), "
                f"not {self.goal!r}; were space and goal swapped?"
            )
        n = self.max_epochs
        if n is not None and (isinstance(n, bool) or not isinstance(n, int) or n < 1):
            raise InvalidInput(f"max_epochs is a whole number of epochs, at least 1, or None; not {n!r}")
        object.__setattr__(self, "start", self._checked_start())

    def _checked_start(self) -> tuple[dict[str, Any], ...]:
        if isinstance(self.start, (str, Mapping)) or not isinstance(self.start, Sequence):
            raise InvalidInput(f"start is a list of configurations, [{{...}}, {{...}}], not {self.start!r}")
        found = tuple(self.checked(config, f"start[{i}]") for i, config in enumerate(self.start))
        keys = self.space.keys(found)
        for i, key in enumerate(keys):
            if (first := keys.index(key)) < i:
                raise InvalidInput(
                    f"start[{i}] is start[{first}] again: once is enough; study.enqueue(config, again=True) trains a "
                    "configuration once more"
                )
        return found

    def checked(self, config: Mapping[str, Any], what: str) -> dict[str, Any]:
        """A whole configuration in canonical form. Raises InvalidInput that names `what` is none."""
        try:
            canonical = self.space.canonical(config)
            broken = [c.name for c in self.space.constraints if not c.allows(canonical)]
        except InvalidSpace as error:
            raise InvalidInput(f"{what}: {error}") from error
        if broken:
            raise InvalidInput(f"{what}: the constraint {broken[0]!r} does not allow {canonical!r}")
        return canonical

    def to_json(self) -> dict[str, Any]:
        """A JSON form: what a study records and compares when it is reopened."""
        return {
            "space": self.space.to_json(),
            "goal": self.goal.to_json(),
            "max_epochs": self.max_epochs,
            **(
                {"start": list(self.start)} if self.start else {}
            ),  # logs from before there was any stay equal
        }

    @classmethod
    def from_json(
        cls,
        data: Mapping[str, Any],
        constraints: Mapping[str, Callable[[dict[str, Any]], bool]] | None = None,
    ) -> Problem:
        """The inverse of `to_json`. Raises InvalidSpace unless the functions of its constraints are supplied."""
        space = Space.from_json(data["space"], constraints)
        goal, start = goal_from_json(data["goal"]), data.get("start", ())
        return cls(space, goal, data["max_epochs"], start).as_of_log()

    def as_of_log(self) -> Problem:
        """This problem, in whatever space the log of its study is by now."""
        found = replace(self)
        object.__setattr__(found, "of_log", True)
        return found


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
        trials: How many may be begun; what was begun goes on.
        epochs: How many may be trained.
        time: Wall-clock time while any trial is held, decisions included: seconds, or a text such as "1h30m".
        worker_time: The same, summed over workers.
        money: Worker time at `price`, in the units of it.
        price: Of one worker for an hour; no limit by itself.
        cost: The sum of what trials report as `cost`, in its own units.

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
