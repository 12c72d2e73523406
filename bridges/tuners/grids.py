"""The values of a range with steps, exactly: in binary, steps of 0.1 do not meet 0.3."""

from __future__ import annotations

from decimal import Decimal

MOST_VALUES = 1000  # values that are listed


def grid_values(low: float, high: float, step: float) -> tuple[float, ...] | None:
    """low, low + step, ... up to high, whole where all three are; None where they are too many."""
    if isinstance(low, int) and isinstance(high, int) and isinstance(step, int):
        values = range(low, high + 1, step)
        return tuple(values) if len(values) <= MOST_VALUES else None
    first, pace = Decimal(str(low)), Decimal(str(step))
    count = int((Decimal(str(high)) - first) / pace) + 1
    return tuple(float(first + k * pace) for k in range(count)) if count <= MOST_VALUES else None
