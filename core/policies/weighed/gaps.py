"""Which weights to ask next: those that look into a gap of the front.

Notation: C (n, goals) the costs of the front, c of `scalarisation`; w the weights. What has the largest
number under w lies on the ray c_i = t / w_i, and the front has come to t = min_j max_i w_i C_ji on it. The room there
is the volume that a point a fifth nearer to 0 on the ray would add to what the front dominates, below costs of 1.25:
bounded from above by min_j (V(p) - V(max(p, C_j))), V(p) = prod_i max(0, 1.25 - p_i), which needs but one pass.

Weights that look at one goal alone, where its best is found, have none; those between two distant points have much.
A part of the draws is even, for the front may go on beyond its ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from haltune._utils.arrays import Array
from haltune.log.history import History
from haltune.log.problem.dominance import non_dominated

from .scalarisation import Scalarisation, Weights

_STEP = 0.2  # of the ray: how much nearer to 0 a find is thought to be
_WORST = 1.25  # the cost below which volume counts: the front's worst, as its scales are learnt
_EVEN = 0.2  # of the draws
_LEAST = 1e-3  # for a weight of 0, whose ray has no end


def chances(history: History, known: Sequence[Weights]) -> Array:
    """(weights,) of being asked next, of sum 1; all alike while there is no front of two or more."""
    even = np.full(len(known), 1.0 / len(known))
    vectors = history.vectors() if history.problem.further else np.empty((0, 1))
    front = vectors[non_dominated(vectors)]
    if len(front) < 2:
        return even
    found = rooms(Scalarisation.at(history, known[0]).costs(front), np.array(known))
    return _EVEN * even + (1.0 - _EVEN) * found / found.sum() if found.sum() > 0.0 else even


def rooms(costs: Array, weights: Array) -> Array:
    """(weights,) the room along the ray of each; costs: (n, goals) of the front."""
    w = np.maximum(weights, _LEAST)[:, None, :]
    reached = (w * costs).max(axis=2).min(axis=1)
    points = (1.0 - _STEP) * reached[:, None] / w[:, 0, :]
    own, shared = _volume(points), _volume(np.maximum(points[:, None, :], costs))
    return np.asarray((own[:, None] - shared).min(axis=1))


def _volume(points: Array) -> Array:
    return np.asarray(np.maximum(0.0, _WORST - points).prod(axis=-1))
