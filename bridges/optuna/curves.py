"""A trial's intermediate values as a learning curve: Optuna's steps count from 0, and epochs from 1."""

from __future__ import annotations

import math

from haltune.log.events import Status

from .library import optuna

FrozenTrial = optuna.trial.FrozenTrial
TrialState = optuna.trial.TrialState
ENDS = {TrialState.COMPLETE: Status.COMPLETED, TrialState.PRUNED: Status.STOPPED}
WHOLE = tuple(ENDS)  # suggested all that they have


def curve_of(trial: FrozenTrial, from_zero: bool | None = None) -> dict[int, float]:
    """Epoch -> value, in order. from_zero: whether steps count from 0; None: they do where there is a step 0."""
    steps = sorted(trial.intermediate_values)
    begins = (bool(steps) and steps[0] == 0) if from_zero is None else from_zero
    return {step + begins: trial.intermediate_values[step] for step in steps}


def alike(value: float, final: float | None) -> bool:
    """Whether a value of the curve is what the trial came to."""
    return final is not None and math.isclose(value, final, rel_tol=1e-6, abs_tol=1e-12)
