"""A share that was counted, and how far it tells the true one."""

from __future__ import annotations

import math
from dataclasses import dataclass

from haltune.display import percent

_TAIL = 0.025  # beyond each end of a 95% interval


@dataclass(frozen=True)
class Rate:
    """A share that was counted."""

    count: int
    of: int

    @property
    def value(self) -> float:
        """The share; NaN of none."""
        return self.count / self.of if self.of else math.nan

    @property
    def interval(self) -> tuple[float, float]:
        """The exact 95% interval of Clopper and Pearson; (0, 1) of none."""
        from scipy.special import betaincinv  # a third of a second, in each process that looks at a search

        k, rest = self.count, self.of - self.count
        low = float(betaincinv(k, rest + 1, _TAIL)) if k else 0.0
        return low, float(betaincinv(k + 1, rest, 1.0 - _TAIL)) if rest else 1.0

    def __str__(self) -> str:
        if not self.of:
            return "0 of 0"
        low, high = self.interval
        shares = [percent(share) for share in (self.value, low, high)]
        return "{} of {}: {}, 95% interval {} to {}".format(self.count, self.of, *shares)


def enough(share: float) -> int:
    """How many that are counted without one tell that at most this share are; above 0."""
    return math.ceil(math.log(_TAIL) / math.log1p(-share))
