"""A result that a trial reported to Tune: the value, the epoch and the user's other numbers."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray.tune.result import AUTO_RESULT_KEYS, TIME_THIS_ITER_S, TRAINING_ITERATION

from haltune.log.decisions import Verdict
from haltune.tuners.conductor import Conductor

_OWN = (*AUTO_RESULT_KEYS, "trial_id", "experiment_tag", "done", "date", "should_checkpoint")


@dataclass(frozen=True)
class Result:
    """What counts of a result."""

    value: float
    epoch: float
    seconds: float | None
    metrics: dict[str, float]

    @classmethod
    def of(cls, result: Mapping[str, Any] | None, metric: str, time_attr: str) -> Result | None:
        """None where the metric or the time is missing."""
        told: Mapping[str, Any] = result or {}
        value: Any = told.get(metric)
        epoch: Any = told.get(time_attr)
        if not _is_number(value) or not _is_number(epoch) or not float(epoch) > 0:
            return None
        others = {
            str(name): float(number)
            for name, number in told.items()
            if name not in (*_OWN, metric, time_attr)
            and not str(name).startswith("config/")
            and _is_number(number)
        }
        seconds: Any = told.get(TIME_THIS_ITER_S)
        return cls(float(value), float(epoch), float(seconds) if _is_number(seconds) else None, others)

    def told(self, conductor: Conductor, name: str, judge: bool = True) -> Verdict:
        """What the study says to it."""
        return conductor.report(name, self.value, self.epoch, self.seconds, self.metrics, judge)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


__all__ = ["TRAINING_ITERATION", "Result"]
