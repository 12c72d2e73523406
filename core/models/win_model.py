"""The probability that a trial wins, by its configuration and its errors at a few epochs.

Simulated paths use the curve of a trial and other curves, but no configuration. The Gaussian process of stages
(`stage_process`) uses both: it learns how alike configurations end, and how well the epochs 1, 2, 4, ... predict the
end. From it

    p_model = T_m((mean - z) / sqrt(deviation^2 + s^2))

with the mean and the deviation of the trial's final target, given the trials at rest and its own errors so far; z is
the target of the incumbent, and s the error of hyperparameters that are learnt from few trials. T_m is Student's t with
as many degrees of freedom as trials were trained in full: only these show how far apart final values are.
`calibrated` joins p_model with the share of the paths that win.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import logit, stdtr

from haltune._utils.arrays import Array

from .curve_rows import CurveTable
from .scales import SIZE, Heights, NormalScores
from .stage_process import (
    LEARNT,
    VALUES_KEPT,
    Seen,
    StageKernel,
    StageProcess,
    Stages,
    learn_kernel,
    seen_at_stages,
    spread,
    stage_epochs,
)

_FEWEST = 4  # trials trained in full: with fewer, a rule that stops too much would never learn that it does
_RATIO = 2  # of the epochs of stages
_FURTHEST = 7.0  # log odds of p_model, to either side
_LEARNT_ERROR = SIZE / 3  # s, as in final_values


@dataclass(frozen=True)
class WinModel:
    """The process, given the errors of trials at rest."""

    scale: NormalScores
    kernel: StageKernel
    seen: Seen
    complete: int  # m, trials trained in full

    @classmethod
    def of(cls, points: Array, errors: Array) -> WinModel | None:
        """Learn from trials with configurations (trials, d) in the unit cube and errors (trials, horizon).

        Errors are NaN after the last epoch of a trial. None for fewer than four full trainings or equal errors.
        """
        complete = int(np.isfinite(errors[:, -1]).sum())
        if complete < _FEWEST or not points.shape[1]:
            return None
        horizon = errors.shape[1]
        stages = Stages(stage_epochs(horizon, ratio=_RATIO), points.shape[1])
        rows = _rows(errors, stages)
        if (heights := Heights.of(rows)) is None:
            return None
        scale = NormalScores.of(heights.known)
        seen = seen_at_stages(points, rows, stages, scale.targets(rows.height))
        kernel = learn_kernel(stages, seen.at(spread(seen, LEARNT, np.random.default_rng(len(seen)))))
        return cls(scale, kernel, seen.at(spread(seen, VALUES_KEPT, None)), complete)

    def log_odds(self, point: Array, errors: Array, threshold: float) -> float:
        """Return the log odds that a trial at `point` (d,) with errors (n,) ends with an error below `threshold`."""
        stages, here = self.kernel.stages, point[None]
        rows = _rows(errors[None], stages)
        own = seen_at_stages(here, rows, stages, self.scale.targets(rows.height))
        mean, deviation = StageProcess.of(self.kernel, self.seen.union(own)).ends(here, seen=True)
        ahead = mean[0] - self.scale.targets(np.array(-threshold))
        p = stdtr(self.complete, ahead / math.hypot(deviation[0], _LEARNT_ERROR))
        return float(np.clip(logit(p), -_FURTHEST, _FURTHEST))


def _rows(errors: Array, stages: Stages) -> CurveTable:
    """Return the errors (trials, n) at the stages' epochs, and the last of each trial, as heights."""
    known = np.isfinite(errors)
    kept = np.zeros_like(known)
    kept[:, [n - 1 for n in stages.epochs if n <= errors.shape[1]]] = True
    last = known.sum(axis=1) - 1
    kept[np.arange(len(errors)), last] = True
    trial, epoch = np.nonzero(kept & known)
    return CurveTable(trial, epoch.astype(np.float64) + 1.0, -errors[trial, epoch])


_FLATTENS, _LOWERS = 0.8, 0.5  # calibrated log odds: 0.8 of those of the paths, less 0.5
_OF_PATHS, _OF_MODEL, _RAISES = 0.45, 0.7, 0.1  # the same with the log odds of the model


def calibrated(share: float, log_odds: float | None = None) -> float:
    """Return the probability of winning when `share` of the matched paths win.

    log_odds: of the model; None without one. Too many of the paths win, because a part of an early lead is noise. Both
    maps are logistic regressions over recorded tasks; benchmarks/search/lived.py shows both halves of them.
    """
    if not 0.0 < share < 1.0:
        return share
    of_paths = math.log(share / (1.0 - share))
    joined = _FLATTENS * of_paths - _LOWERS
    if log_odds is not None:
        joined = _OF_PATHS * of_paths + _OF_MODEL * log_odds + _RAISES
    return 1.0 / (1.0 + math.exp(-joined))
