"""Budgets as a planner sees them: what is left of each, and what points take of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from haltune._utils.arrays import Array, Mask
from haltune.errors import InvalidInput

SLACK = 1.0 + 1e-9  # rounding may not make a plan unaffordable that spends all


@dataclass(frozen=True, eq=False)
class Means:
    """What is left of b budgets, and what the m points take of each.

    Raises InvalidInput when the shapes do not fit or a cost is negative.
    """

    left: Array  # (b,), infinite: no limit
    first: Array  # (b, m), of a point from where the search stands
    after: Array | None = None  # (b, m, m), of the column's point after the row's; None: `first` always

    def __post_init__(self) -> None:
        budgets, points = self.first.shape
        good = self.left.shape == (budgets,) and (
            self.after is None or self.after.shape == (budgets, points, points)
        )
        if not good or budgets < 1:
            raise InvalidInput(
                f"left (b,), first (b, m) and after (b, m, m), b at least 1; not {self.left.shape}, {self.first.shape} "
                f"and {None if self.after is None else self.after.shape}"
            )
        if (self.first < 0).any() or (self.after is not None and (self.after < 0).any()):
            raise InvalidInput("costs are not negative")

    @property
    def then(self) -> Array:
        """(b, m or 1, m) costs after the first step, by the point before."""
        return np.asarray(self.first[:, None, :] if self.after is None else self.after)

    def affordable(self) -> Mask:
        """(m,) what can be paid now, of every budget."""
        return np.asarray((self.first <= self.left[:, None] * SLACK).all(axis=0))

    def price(self, costs: Array) -> Array:
        """One cost (...,) of several (b, ...): the largest share of what is left. With one budget, its cost."""
        finite = np.isfinite(self.left) & (self.left > 0)
        if len(self.left) == 1 or not finite.any():
            return np.asarray(costs[0])
        shape = (-1,) + (1,) * (costs.ndim - 1)
        return np.asarray((costs[finite] / self.left[finite].reshape(shape)).max(axis=0))
