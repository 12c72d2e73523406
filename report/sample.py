"""Which trials a picture shows where there are too many for one, and which points of their curves.

Up to MOST trials all are shown. Beyond, half of MOST are the best, in the order of haltune.log.scores, and half are
taken at even distances from the others, by their numbers. Up to POINTS points in all every curve is whole; beyond,
each has its share: at even distances, and its ends and its best and worst points among them. Totals are of all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from haltune.log.history import History
from haltune.log.records import TrialRecord

MOST = 2000  # trials: more are slow to draw, and nobody looks at them all
POINTS = 100_000  # of all curves
_LEAST = 20  # points of a curve


def sample(history: History, most: int = MOST) -> list[int]:
    """The numbers of the trials that are shown, lowest first."""
    if len(history) <= most:
        return list(range(len(history)))
    best = [id for group in history.ranked() for id in group][: most // 2]
    others = np.setdiff1d(np.arange(len(history)), best)
    return sorted([*best, *others[evenly(len(others), most - len(best))].tolist()])


def evenly(count: int, most: int) -> NDArray[np.int64]:
    """At most `most` of `count` indices, in the middles of parts of equal length."""
    most = min(count, most)
    return (2 * np.arange(most) + 1) * count // (2 * most) if most else np.arange(0)


def points(record: TrialRecord, curves: int) -> NDArray[np.int64]:
    """The indices of a record's reports that are drawn, where there are so many curves."""
    count, most = len(record.values), max(_LEAST, POINTS // max(1, curves))
    if count <= most:
        return np.arange(count)
    finite = np.flatnonzero(np.isfinite(record.values))
    ends = [0, count - 1]
    if len(finite):
        values = record.values[finite]
        ends += [finite[0], finite[-1], finite[np.argmin(values)], finite[np.argmax(values)]]
    return np.union1d(evenly(count, most - 6), np.array(ends, dtype=np.int64))
