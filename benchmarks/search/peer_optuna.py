"""Optuna's TPE with its HyperbandPruner. It cannot resume: a pruned trial is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from recorded import Meter


def run(meter: Meter, seed: int, snapped: bool) -> None:
    """Trials until the meter is full. Optuna models the points that it proposed. Raises ImportError without it."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    task = meter.task
    horizon = task.scores.shape[1]

    def objective(trial: optuna.Trial) -> float:
        point = [trial.suggest_float(f"u{i}", 0.0, 1.0) for i in range(task.points.shape[1])]
        row, value = meter.take(np.array(point)), 0.0
        for epoch in range(1, horizon + 1):
            value = meter.train(row, epoch)
            trial.report(value, epoch)
            if meter.full:
                trial.study.stop()
                break
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=horizon, reduction_factor=3)
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed), pruner=pruner
    )
    study.optimize(objective)
