"""What more of a search would bring, whoever searches: as records fall among runs.

Notation: T is what was spent, B what would be; e is how far the best run lies above the others of the best quarter.

    chance that the best is beaten   B / (T + B): of runs in no order, each part of T + B holds the best by its size
    gain expected                    e / 2 log((T + B) / T), records of an exponential tail; where a bound leaves less
                                     than that, all of it in each case that the best is beaten
    of k runs that share the best    the chance is its kth power, the gain the less for it: all of them would lie in the
                                     part before; where all runs came to one value nothing is told, nor expected
    gain in one case of ten          of an exponential with twice that mean, where the best is beaten: e is uncertain

A bound is the goal's, or that of a metric known by its name, such as accuracy. What FARTHEST times what was spent
would bring was measured, and nothing beyond. Nothing is fitted. Searches that learn find better runs later, but those
are harder to find: over recorded trainings the chance comes true, for random search as for those that model what they
search; benchmarks/search/promises.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array
from haltune.log.history import History
from haltune.log.problem import Goal
from haltune.log.problem.metric_names import limit
from haltune.log.scores import measured

FEWEST_RUNS = 3  # runs with a value
FARTHEST = 4.0  # times what a search took: how far it was measured what more of it brings
_BEST = 4  # a quarter of the runs
_BOUNDED = 0.5  # of the gain of an exponential tail: metrics end somewhere
_UNSURE = 2.0  # how much wider the tail may be than it looks
_RARE = 0.1
_HUGE = float(np.finfo(np.float64).max)


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
    heights = measured([t.target(goal) for t in history.trials])
    heights = np.sort(heights[~np.isnan(heights)])[::-1]
    total = spent(history) if so_far is None else so_far
    if best is None or len(heights) < FEWEST_RUNS or not total > 0.0:
        return None
    top = goal.sign * best.value
    tied = max(1, int((heights == top).sum()))
    others = heights[1 : max(tied + 1, math.ceil(len(heights) / _BEST))]
    ahead = max(0.0, top - float(others.mean()))
    more = np.asarray(more, dtype=np.float64)
    share = more / (total + more)
    chance = share**tied if tied < len(heights) else np.zeros_like(share)
    room = _room(goal, heights, top)
    with np.errstate(over="ignore"):  # among values as large as numbers get, a gain is the largest number
        gain = np.minimum(_BOUNDED * ahead * share ** (tied - 1) * np.log1p(more / total), room)
        if room < _HUGE:
            gain = np.minimum(gain, chance * room)
        odds = np.maximum(chance / _RARE, 1.0)
        high = _UNSURE * np.log(odds) / np.maximum(chance, _RARE) * gain
    return Prospect(chance, gain, np.minimum(high, room))


def best_possible(goal: Goal, values: Array) -> float:
    """What no value betters: by the bounds of the goal, or by its metric's name; else infinite."""
    if goal.bounds is not None:
        return max(goal.bounds) if goal.sign > 0 else min(goal.bounds)
    known = limit(goal.metric, goal.sign, values[np.isfinite(values)])
    return goal.sign * math.inf if known is None else known


def _room(goal: Goal, heights: Array, top: float) -> float:
    """How far above the best a run may come."""
    return min(max(0.0, goal.sign * best_possible(goal, goal.sign * heights) - top), _HUGE)
