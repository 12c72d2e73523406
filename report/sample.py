"""Which trials a picture shows where there are too many for one, and which points of their curves.

Up to MOST_TRIALS all are shown. Beyond, half of so many are the best, in the order of haltune.log.scores, and half
are spread over the others by their numbers, so that another trial changes few of them. Up to POINTS points in all, and
FINEST of one, every curve is whole; beyond, each has its share: its ends, and of parts of equal length the highest and
the lowest point each, so that no peak is lost. Totals are of all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from haltune.log.history import History
from haltune.log.records import TrialRecord

MOST_TRIALS = 2000  # trials: more are slow to draw, and nobody looks at them all
POINTS = 60_000  # of all curves
FINEST = 2000  # of a curve: more than a screen has pixels
_GOLDEN = (5.0**0.5 - 1.0) / 2.0
_FEWEST_POINTS = 20  # points of a curve


def shown_trials(history: History, most: int = MOST_TRIALS) -> list[int]:
    """The numbers of the trials that are shown, lowest first."""
    if len(history) <= most:
        return list(range(len(history)))
    best = [id for group in history.ranked() for id in group][: most // 2]
    others = np.setdiff1d(np.arange(len(history)), best)
    return sorted([*best, *_spread(others, most - len(best)).tolist()])


def _spread(numbers: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """So many of some numbers, spread over them: one number more changes one of those chosen at most.

    Those whose multiples of the golden ratio have the lowest fractions, which are spread like the numbers themselves.
    """
    return numbers[np.argsort(numbers * _GOLDEN % 1.0, kind="stable")[:most]]


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """At most `most` of `count` indices, in the middles of parts of equal length."""
    most = min(count, most)
    return (2 * np.arange(most) + 1) * count // (2 * most) if most else np.arange(0)


def points(record: TrialRecord, curves: int) -> NDArray[np.int64]:
    """The indices of a record's reports that are drawn, where there are so many curves."""
    values = record.values
    count, most = len(values), min(FINEST, max(_FEWEST_POINTS, POINTS // max(1, curves)))
    if count <= most:
        return np.arange(count)
    width = -(-count // (most // 2 - 2))
    parts = np.full(-(-count // width) * width, np.nan)
    parts[:count] = np.where(np.isfinite(values), values, np.nan)
    table, first = parts.reshape(-1, width), np.arange(0, count, width)
    known = np.isfinite(table)  # of a part without a value the first is drawn: a gap
    lowest = first + np.where(known, table, np.inf).argmin(axis=1)
    highest = first + np.where(known, table, -np.inf).argmax(axis=1)
    finite = np.flatnonzero(np.isfinite(values))
    ends = np.concatenate([[0, count - 1], finite[:1], finite[-1:]])
    return np.unique(np.concatenate([lowest, highest, ends])).astype(np.int64)
