"""Optuna's TPE with one of its pruners, which cannot resume: a pruned trial is over; and its Hyperband alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import optuna
    from recorded import Meter


def run(meter: Meter, seed: int, snapped: bool, pruner: str = "hyperband") -> None:
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

    prunes = (
        optuna.pruners.HyperbandPruner(min_resource=1, max_resource=horizon, reduction_factor=3)
        if pruner == "hyperband"
        else optuna.pruners.MedianPruner()
    )
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed), pruner=prunes,
        study_name=f"{task.name} {seed}",  # by which HyperbandPruner chooses brackets
    )  # fmt: skip
    study.optimize(objective)


class Hyperband:
    """The pruner on runs that others chose, one after the other. Raises ImportError without Optuna."""

    def __init__(self) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._studies: dict[str, optuna.Study] = {}

    def stops(self, name: str, before: list[np.ndarray], errors: np.ndarray) -> int:
        """The epoch at which it prunes errors (N,), N for never, after the runs before in the study of that name."""
        import optuna

        pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=len(errors), reduction_factor=3)
        if name not in self._studies:  # by its name and the number of a trial, Hyperband chooses the bracket
            self._studies[name] = optuna.create_study(study_name=name, pruner=pruner)
        study = self._studies[name]
        for curve in before[len(study.trials) :]:
            self._train(study, curve, obeys=False)
        return self._train(study, errors, obeys=True)

    @staticmethod
    def _train(study: optuna.Study, errors: np.ndarray, obeys: bool) -> int:
        import optuna

        trial = study.ask()
        for epoch, error in enumerate(errors.tolist(), 1):
            trial.report(error, epoch)
            if trial.should_prune() and obeys and epoch < len(errors):  # asked all the same: it counts its rungs so
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                return epoch
        study.tell(trial, float(errors[-1]))
        return len(errors)
