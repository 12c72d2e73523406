"""What a run must keep to: a metric within limits, and by how much it is beyond them.

A run is feasible when every constraint holds at the epoch that it counts for. Its violation is the sum, over
constraints, of what it is beyond the limit, as a share of the limit's size (of 1 where the limit is 0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from haltune.errors import InvalidInput
from haltune.errors.foreign_words import KnowsArguments

from .metric_names import is_learnt


@dataclass(frozen=True)
class Constraint(KnowsArguments):
    """A metric that a run must keep within limits.

    Args:
        metric: The name under which runs report it, such as "params".
        at_most: The largest value that is allowed. Default: None, no such limit.
        at_least: The smallest value that is allowed. Default: None, no such limit.
        changes: Whether training changes the value. Where it does not (parameters, latency, memory) a run whose first
            report is beyond a limit is stopped there; where it does (a recall, a gap) a run that is beyond one is
            ranked behind all that are within, and its policy decides on it as on one that is that bad. Default: None,
            as the name tells: acc, loss, recall, gap and the like change, others do not.

    Raises:
        InvalidInput: For a metric that is no name, limits that are no finite numbers, none at all, or in the wrong
            order.

    Example:
        >>> Constraint("params", at_most=5e6).violation(6e6)
        0.2
    """

    metric: str
    at_most: float | None = None  # the metric's own units
    at_least: float | None = None
    changes: bool | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.metric, str) or not self.metric:
            raise InvalidInput(f"a constraint's metric is a name such as 'params', not {self.metric!r}")
        limits = {"at_most": self.at_most, "at_least": self.at_least}
        given = {
            name: _limit(self.metric, name, value) for name, value in limits.items() if value is not None
        }
        if not given:
            raise InvalidInput(f"Constraint({self.metric!r}) limits nothing: say at_most=, at_least= or both")
        for name, value in given.items():
            object.__setattr__(self, name, value)
        if len(given) == 2 and given["at_least"] > given["at_most"]:
            raise InvalidInput(
                f"Constraint({self.metric!r}, at_most={given['at_most']:g}, at_least={given['at_least']:g}): nothing "
                "is within both"
            )
        if self.changes is None:
            object.__setattr__(self, "changes", is_learnt(self.metric))
        elif not isinstance(self.changes, bool):
            raise InvalidInput(f"Constraint({self.metric!r}, changes={self.changes!r}): True or False")

    def violation(self, value: float) -> float:
        """By how much a value is beyond a limit, as a share of it: 0 within; infinite for NaN."""
        if math.isnan(value):
            return math.inf
        over = 0.0 if self.at_most is None else (value - self.at_most) / (abs(self.at_most) or 1.0)
        under = 0.0 if self.at_least is None else (self.at_least - value) / (abs(self.at_least) or 1.0)
        return max(0.0, over, under)

    def __str__(self) -> str:
        limits = {"at most": self.at_most, "at least": self.at_least}
        return f"{self.metric} {' and '.join(f'{k} {v:g}' for k, v in limits.items() if v is not None)}"

    def to_json(self) -> dict[str, Any]:
        """A JSON form: what makes it again."""
        return {
            "metric": self.metric,
            "at_most": self.at_most,
            "at_least": self.at_least,
            "changes": self.changes,
        }


def _limit(metric: str, name: str, value: Any) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        raise InvalidInput(f"Constraint({metric!r}, {name}={value!r}): a finite number")
    return float(value)


def violation(constraints: Sequence[Constraint], latest: Callable[[str], float]) -> float:
    """Of all constraints; latest: what a metric was when it was reported last."""
    return sum(c.violation(latest(c.metric)) for c in constraints)


def latest(column: Sequence[float]) -> float:
    """What was reported last of a metric stands until it is reported again; NaN before."""
    return next((value for value in reversed(column) if not math.isnan(value)), math.nan)


def checked_constraints(given: Any) -> tuple[Constraint, ...]:
    """Raises InvalidInput for what is no list of constraints, and for two of one metric."""
    if isinstance(given, Constraint):
        given = (given,)
    if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence):
        raise InvalidInput(f"constraints is a list, [Constraint('params', at_most=5e6)], not {given!r}")
    for one in given:
        if not isinstance(one, Constraint):
            raise InvalidInput(
                f"a constraint on a metric is Constraint('params', at_most=5e6), not {one!r}; one on configurations "
                "belongs to the space: Space({...}, constraints=[...])"
            )
    names = [c.metric for c in given]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidInput(
            f"two constraints on {twice[0]!r}: say both limits in one, Constraint({twice[0]!r}, at_most=, at_least=)"
        )
    return tuple(given)
