"""What the process is to foretell: the logarithm of the regret of the best run so far."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from haltune._utils.arrays import Array
from haltune.policies.guided.targets import median_and_best

_WORST = 20.0  # widths below the best: what diverged, and all that is as bad


@dataclass(frozen=True, slots=True)
class LogRegret:
    """Targets -log(1 + (best - value) / width): 0 for the best so far, -log 2 for the median of the first trials.

    Near the best a difference counts for what it is, far below it for its ratio; so runs that diverge do not make all
    others look equal, and yet a bad run tells worse ones apart. The median is that of trials which were not chosen for
    their promise.
    """

    sign: float  # of the goal
    best: float  # sign * value
    width: float

    @classmethod
    def of(cls, values: Array, first: Array, sign: float) -> LogRegret | None:
        """From measured values (n,), and those that the first trials have come to; None when none is finite."""
        if (found := median_and_best(values, first, sign)) is None:
            return None
        median, best = found
        width = min(best - median, float(np.finfo(np.float64).max))
        return cls(sign, best, width if width > 0 else max(abs(best), 1.0))

    def targets(self, values: Array) -> Array:
        """Of measured values (n,); what is not finite is at the bottom."""
        v = np.where(np.isfinite(values), self.sign * values, -np.inf)
        with np.errstate(over="ignore"):
            return -np.log1p(np.clip((self.best - v) / self.width, 0.0, _WORST))

    def value(self, target: float) -> float:
        """The metric that a target stands for; above 0 on a straight line, for nothing was seen there."""
        above = target if target > 0 else -float(np.expm1(-target))
        return self.sign * (self.best + self.width * above)

    def deviation(self, target: float, deviation: float) -> float:
        """A small deviation of the target, in the metric's unit."""
        return self.width * deviation * float(np.exp(-min(target, 0.0)))
