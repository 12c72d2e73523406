"""What runs have reached at the stages of training, from the rows of a study; and which of it a process keeps."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array, Indices
from haltune.gp import subset
from haltune.log.history import History
from haltune.policies.guided.curve_rows import CurveTable

from .seen import Seen
from .stage_kernel import Stages

LEARNT = 160  # values that hyperparameters are learnt from
VALUES_KEPT = 400  # values that a process keeps: a decision costs as much in a long search


class TargetMap(Protocol):
    """Turns values into targets, larger is better."""

    def targets(self, values: Array, /) -> Array:
        """Of values of any shape; what is not finite is at the bottom."""


def seen_at_stages(history: History, rows: CurveTable, stages: Stages, scale: TargetMap) -> Seen:
    """The rows at their stages, as targets of the scale.

    What diverged counts for the end: it stays so. A trial's first row at or after a stage's epoch counts for that
    stage, the latest where it passes several; another one for the nearest where the trial has no later row.
    """
    number, count = np.arange(len(rows)), len(stages.epochs)
    marks = np.array(stages.epochs, dtype=np.float64)
    stage = np.maximum(np.searchsorted(marks, rows.epoch, side="right") - 1, 0)
    passes = (rows.epoch >= marks[stage]) & (_before(rows) < marks[stage])
    stage = np.where(passes, stage, _nearest(stages, rows.epoch))
    last = np.full(int(rows.trial.max(initial=-1)) + 1, -1)
    last[rows.trial] = number  # of equals the later stays
    diverged = ~np.isfinite(rows.value)
    stage = np.where(diverged, count - 1, stage)
    taken = np.flatnonzero(diverged | passes | (last[rows.trial] == number))
    trial, stage, value = rows.trial[taken], stage[taken], rows.value[taken]
    _, first, which = np.unique(trial * count + stage, return_index=True, return_inverse=True)
    latest = np.empty(len(first), dtype=np.intp)
    latest[which] = np.arange(len(taken))
    order = np.argsort(first)  # as they were first seen
    first, latest = first[order], latest[order]
    trials, run = _numbered(trial[first])
    return Seen(history.points[trials], run, stage[first], scale.targets(value[latest]))


def _numbered(trial: Indices) -> tuple[Indices, Indices]:
    """The different ones as they come, and of each which it is."""
    found, first, which = np.unique(trial, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(found), dtype=np.intp)
    place[order] = np.arange(len(found))
    return found[order], place[which]


def _before(rows: CurveTable) -> Array:
    """(n,) the epoch of the same trial's row before, 0 for its first."""
    order = np.argsort(rows.trial, kind="stable")
    trial, epoch = rows.trial[order], rows.epoch[order]
    found = np.zeros(len(rows))
    found[order[1:]] = np.where(trial[1:] == trial[:-1], epoch[:-1], 0.0)
    return found


def _nearest(stages: Stages, epochs: Array) -> Indices:
    t = np.log1p(epochs) / np.log1p(stages.epochs[-1])
    return np.asarray(np.abs(stages.times[:, None] - t).argmin(axis=0))


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
