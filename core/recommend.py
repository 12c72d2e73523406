"""The tried configuration that a Gaussian process believes in most: the answer for noisy metrics."""

from __future__ import annotations

import numpy as np

from .gp import fit
from .history import Best, History


def recommend(history: History) -> Best | None:
    """The configuration with the highest posterior mean among the runs that compare with the best.

    These are the complete ones or, before there is one, those that went furthest; `Best.value` is what the run counts
    for. None before one has a value.
    """
    groups = history.ranked()
    if not groups:
        return None
    ids, goal = sorted(groups[0]), history.problem.goal
    x = np.array([history.point(i) for i in ids])
    y = goal.sign * np.array([history.trial(i).result(goal) for i in ids])
    means = fit(x, y, rng=history.rng("fit", 0)).mean(x) if x.shape[1] else y
    return history.as_best(ids[int(np.argmax(means))])
