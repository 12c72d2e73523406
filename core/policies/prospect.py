"""What more of a search would bring, whoever searches: as records fall among runs.

Notation: T is what was spent, B what would be; e is how far the best run lies above the others of the best quarter.

    chance that the best is beaten   B / (T + B): of runs in no order, each part of T + B holds the best by its size
    gain expected                    e / 2 log((T + B) / T), records of an exponential tail; where a bound leaves less
                                     than that, all of it in each case that the best is beaten
    gain in one case of ten          of an exponential with twice that mean, where the best is beaten: e is uncertain

Nothing is fitted. Searches that learn find better runs later, but those are harder to find: over recorded trainings the
chance comes true, for random search as for those that model what they search; benchmarks/search/promises.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array
from haltune.log.history import History
from haltune.log.scores import measured

LEAST = 3  # runs with a value
_BEST = 4  # a quarter of the runs
_BOUNDED = 0.5  # of the gain of an exponential tail: metrics end somewhere
_UNSURE = 2.0  # how much wider the tail may be than it looks
_RARE = 0.1


@dataclass(frozen=True)
class Prospect:
    """After so much more each, of any shape; gains in units of the metric, at least 0 whatever the goal."""

    chance: Array  # that a run is better than the best
    gain: Array  # expected
    high: Array  # in one case of ten it is no less


def spent(history: History) -> float:
    """Seconds of wall-clock, as reports tell them; the cost where trials report one in units of their own."""
    totals = history.spent
    if totals.cost:
        return totals.cost
    reported = math.fsum(max(float(t.seconds.sum()), history.worker_seconds(t.id)) for t in history.trials)
    workers = totals.worker_time / totals.time if totals.time else 1.0
    return reported / max(workers, 1.0)


def prospect(history: History, more: ArrayLike, so_far: float | None = None) -> Prospect | None:
    """After `more` of what `so_far` is counted in, default `spent`; None before three runs have a value."""
    goal, best = history.problem.goal, history.best()
    heights = measured([goal.sign * t.target(goal) for t in history.trials])
    heights = np.sort(heights[~np.isnan(heights)])[::-1]
    total = spent(history) if so_far is None else so_far
    if best is None or len(heights) < LEAST or not total > 0.0:
        return None
    top = goal.sign * best.value
    others = heights[1 : max(2, math.ceil(len(heights) / _BEST))]
    ahead = max(0.0, top - float(others.mean()))
    more = np.asarray(more, dtype=np.float64)
    chance = more / (total + more)
    room = math.inf if goal.bounds is None else max(0.0, max(goal.sign * b for b in goal.bounds) - top)
    room = min(room, float(np.finfo(np.float64).max))
    with np.errstate(over="ignore"):  # among values as large as numbers get, a gain is the largest number
        gain = np.minimum(_BOUNDED * ahead * np.log1p(more / total), room)
        if goal.bounds is not None:
            gain = np.minimum(gain, chance * room)
        odds = np.maximum(chance / _RARE, 1.0)
        high = _UNSURE * np.log(odds) / np.maximum(chance, _RARE) * gain
    return Prospect(chance, gain, np.minimum(high, room))
