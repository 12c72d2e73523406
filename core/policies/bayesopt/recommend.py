"""The tried configuration that a Gaussian process believes in most: the answer for noisy metrics."""

from __future__ import annotations

import numpy as np

from haltune.gp import fit
from haltune.log.history import History
from haltune.log.records import Best
from haltune.log.scores import plausible


def recommend(history: History) -> Best | None:
    """The configuration with the highest posterior mean among the runs that compare with the best.

    These are the complete ones or, before there is one, those that went furthest; `Best.value` is what the run counts
    for. None before one has a value. Runs that came out absurdly far below the best are left out.
    """
    groups = history.ranked()
    if not groups:
        return None
    every = sorted(groups[0])
    targets = plausible([history.trial(i).target(history.problem.goal) for i in every], reach=1e3)
    known = np.isfinite(targets)
    if not known.any():
        return history.best()
    ids, y = [i for i, told in zip(every, known, strict=True) if told], targets[known]
    x = history.points[ids]
    means = fit(x, y, rng=history.rng("fit", 0)).mean(x) if x.shape[1] else y
    return history.as_best(ids[int(np.argmax(means))])
