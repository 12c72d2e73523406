"""The tried configuration that a Gaussian process believes in most: the answer for noisy metrics."""

from __future__ import annotations

import numpy as np

from .gp import fit
from .history import Best, History


def recommend(history: History) -> Best | None:
    """The configuration with the highest posterior mean among the trials that reached furthest.

    A trial counts when its last finite value stands at the largest epoch that any trial reached;
    its value there is what `Best.value` says. None before there is one.
    """
    top = history.best()
    if top is None:
        return None
    reached = [
        t for t in history.trials if len(t.epochs) and t.epochs[-1] == top.epoch and np.isfinite(t.values[-1])
    ]
    x = history.problem.space.encode_many([t.config for t in reached])
    y = history.problem.goal.sign * np.array([t.values[-1] for t in reached])
    means = fit(x, y, rng=history.rng("fit", 0)).mean(x) if x.shape[1] else y
    t = reached[int(np.argmax(means))]
    return Best(t.id, dict(t.config), float(t.values[-1]), top.epoch)
