"""What runs have reached at the stages of training, from the rows of a study; and which of it a process keeps."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array, Indices
from haltune.gp.subset import subset
from haltune.log.history import History
from haltune.policies.guided.curve_rows import Row

from .log_regret import LogRegret
from .stage_kernel import Seen, Stages

LEARNT = 160  # values that hyperparameters are learnt from
KEPT = 400  # values that a process keeps: a decision costs as much in a long search


def seen_at_stages(history: History, rows: list[Row], stages: Stages, scale: LogRegret) -> Seen:
    """The rows (trial, epochs, raw value) at their stages, as targets of the scale.

    What diverged counts for the end: it stays so. An epoch that is none of the stages' counts for the nearest where the
    trial has no later row.
    """
    last = {trial: number for number, (trial, _, _) in enumerate(rows)}
    exact = {float(n): k for k, n in enumerate(stages.epochs)}
    taken: dict[tuple[int, int], float] = {}
    for number, (trial, epoch, value) in enumerate(rows):
        if not np.isfinite(value):
            taken[trial, len(stages.epochs) - 1] = value
        elif epoch in exact:
            taken[trial, exact[epoch]] = value
        elif last[trial] == number:
            taken[trial, _nearest(stages, epoch)] = value
    trials = list(dict.fromkeys(trial for trial, _ in taken))
    number_of = {trial: number for number, trial in enumerate(trials)}
    points: Array = np.array([history.point(trial) for trial in trials]).reshape(len(trials), stages.dim)
    run: Indices = np.array([number_of[trial] for trial, _ in taken], dtype=np.intp)
    stage: Indices = np.array([k for _, k in taken], dtype=np.intp)
    return Seen(points, run, stage, scale.targets(np.array(list(taken.values()))))


def _nearest(stages: Stages, epoch: float) -> int:
    t = np.log1p(epoch) / np.log1p(stages.epochs[-1])
    return int(np.abs(stages.times - t).argmin())


def spread(seen: Seen, limit: int, rng: Generator | None) -> Indices:
    """At most `limit` of the values: those of runs that went furthest, and of the others a part.

    That part is drawn by rng; without, it is the best, the latest and what fills the space (`gp.subset`).
    """
    if len(seen) <= limit:
        return np.arange(len(seen))
    reached = np.zeros(len(seen.points), dtype=np.intp)
    np.maximum.at(reached, seen.run, seen.stage)
    far = np.argsort(-reached[seen.run], kind="stable")[: limit // 2]
    rest = np.setdiff1d(np.arange(len(seen)), far)
    if rng is not None:
        return np.sort(np.concatenate([far, rng.choice(rest, limit - len(far), replace=False)]))
    kept = subset(seen.points[seen.run[rest]], seen.value[rest], limit - len(far))
    return np.sort(np.concatenate([far, rest[kept]]))
