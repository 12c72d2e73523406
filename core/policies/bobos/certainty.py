"""How sure the surrogate is of the end of a curve: what it learns of each, and condition C2 of BO-BOS."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from haltune._utils.arrays import Array
from haltune.gp import Posterior
from haltune.log.decisions import Verdict, go_on
from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.records import TrialRecord
from haltune.policies.bayesopt import TrainingRows, epoch_coordinate, targets

_MARKS = (0.02, 0.2, 0.4, 0.6, 0.8)  # epochs 1, 10, 20, 30, 40 of 50: BO-BOS, appendix D


def marked_rows(history: History, trial: TrialRecord) -> TrainingRows:
    """Rows [x, epoch_coordinate(n)] with scores, at the marked epochs before the last and at the last."""
    return _rows_at(history, trial, _MARKS)


def late_rows(history: History, trial: TrialRecord) -> TrainingRows:
    """The same without the first epoch: so unlike the others that it shortens the lengthscale for all."""
    return _rows_at(history, trial, _MARKS[1:])


def _rows_at(history: History, trial: TrialRecord, shares: Sequence[float]) -> TrainingRows:
    horizon = float(history.problem.max_epochs or 1)
    if trial.status is Status.FAILED:  # whatever it came to before, no training ends well there
        return _known(history.points[trial.id], np.ones(1), targets(history, np.array([np.nan])))
    marks = {max(1.0, float(round(share * horizon))) for share in shares}
    chosen = [i for i, n in enumerate(trial.epochs) if n in marks or i == len(trial.epochs) - 1]
    y = targets(history, trial.counting(history.problem.goal)[chosen])
    return _known(history.points[trial.id], epoch_coordinate(trial.epochs[chosen], horizon), y)


def _known(x: Array, coordinates: Array, y: Array) -> TrainingRows:
    known = np.isfinite(y)
    return np.column_stack([np.tile(x, (len(y), 1)), coordinates])[known], y[known]


def certain_enough(
    before: Posterior | None, history: History, trial: TrialRecord, kappa: float, verdict: Verdict
) -> Verdict:
    """C2 of BO-BOS: a stop at epoch n stands only if sigma([x, N]) <= kappa sigma([x, n]).

    before: the belief over [x, epoch_coordinate(n)] of the trials that ended before this one; without it a stop stands.
    """
    if before is None:
        return verdict
    x = history.points[trial.id]
    place = epoch_coordinate(trial.epoch, float(history.problem.max_epochs or 1))
    end, now = np.sqrt(before.variance(np.vstack([np.append(x, 1.0), np.append(x, place)])))
    evidence = {**verdict.evidence, "sd_end": float(end), "sd_now": float(now), "kappa": kappa}
    if end <= kappa * now:
        return Verdict(verdict.action, verdict.reason, evidence)
    reason = (
        f"would stop, but the surrogate knows too little: sd {end:.3g} at the end > {kappa:g} x {now:.3g} now"
    )
    return go_on(reason, **evidence)
