"""What a search is for: the metric to make as large, or as small, as can be.

`value` is what the user reports, in the metric's own units. `score` is the same
number on [0, 1], 1 best: policies that need a scale use it, ranking never does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from haltune.errors import InvalidInput
from haltune.errors.foreign_words import KnowsArguments


@dataclass(frozen=True)
class _MetricGoal(KnowsArguments):
    if TYPE_CHECKING:
        metric: str  # the name under which the training loop logs it
    else:
        metric: str = ""  # Maximize() is answered in words
    bounds: tuple[float, float] | None = None  # (lowest, highest) possible value, metric units
    of: Literal["last", "best"] = "last"  # the epoch whose value a run counts for

    sign = 0.0  # +1 when larger is better, -1 when smaller is

    def __post_init__(self) -> None:
        if self.metric == "":
            kind = type(self).__name__
            example = "val_acc" if self.sign > 0 else "val_loss"
            raise InvalidInput(f"{kind} what? Name the metric as the training logs it: {kind}({example!r})")
        if not isinstance(self.metric, str):
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


class Maximize(_MetricGoal):
    """Larger values of a metric are better.

    Args:
        metric: The name under which the training logs it, such as "val_acc". It has no default.
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


class Minimize(_MetricGoal):
    """Smaller values of a metric are better.

    Args:
        metric: The name under which the training logs it, such as "val_loss". It has no default.
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


def checked_goals(given: Any) -> tuple[Goal, ...]:
    """One goal or several. Raises InvalidInput for what is none, and for what does not go together."""
    goals = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    if not goals:
        raise InvalidInput(
            "goal=[] says nothing: [Maximize('val_acc'), Minimize('latency_ms')], or one of them"
        )
    for goal in goals:
        if isinstance(goal, str):
            raise InvalidInput(f"the goal is Maximize({goal!r}) or Minimize({goal!r})")
        if not isinstance(goal, (Maximize, Minimize)):
            raise InvalidInput(
                "the goal is Maximize('val_acc', bounds=(0, 1)) or Minimize('val_loss'), or a list of such, "
                f"not {goal!r}; were space and goal swapped?"
            )
    if len(goals) > 1:
        _check_several(goals)
    return goals


def _check_several(goals: Sequence[Goal]) -> None:
    names = [goal.metric for goal in goals]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidInput(f"two goals of {twice[0]!r}: each is of another metric")
    if of_best := [goal for goal in goals if goal.of == "best"]:
        raise InvalidInput(
            f"{type(of_best[0]).__name__}({of_best[0].metric!r}, of='best'): with several goals a run counts for its "
            "last epoch, for each goal may have another best one; leave of= out, and keep the best weights yourself"
        )


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
