"""A result that a trial reported to another tuner, a dict: the value, the epoch and the user's other numbers."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from haltune.log.decisions import Verdict

from .conductor import Conductor


@dataclass(frozen=True)
class Words:
    """What a tuner calls the parts of a result."""

    metric: str
    epoch: str
    seconds: str  # of this result alone; "" where it does not say
    is_own: Callable[[str], bool]  # whether the tuner adds it itself


@dataclass(frozen=True)
class Result:
    """What counts of a result."""

    value: float
    epoch: float
    seconds: float | None
    metrics: dict[str, float]

    @classmethod
    def of(cls, result: Mapping[str, Any] | None, words: Words) -> Result | None:
        """None where the metric or the epoch is missing, or is no number."""
        told: Mapping[str, Any] = result or {}
        value, epoch, seconds = (told.get(name) for name in (words.metric, words.epoch, words.seconds))
        if not isinstance(value, numbers.Real) or not isinstance(epoch, numbers.Real) or not float(epoch) > 0:
            return None
        others = {
            str(name): float(number)
            for name, number in told.items()
            if isinstance(number, numbers.Real)
            and not isinstance(number, bool)
            and name not in (words.metric, words.epoch)
            and not words.is_own(str(name))
        }
        took = float(seconds) if isinstance(seconds, numbers.Real) else None
        return cls(float(value), float(epoch), took, others)

    def told(self, conductor: Conductor, name: str, judge: bool = True) -> Verdict:
        """What the study says to it."""
        return conductor.report(name, self.value, self.epoch, self.seconds, self.metrics, judge)
