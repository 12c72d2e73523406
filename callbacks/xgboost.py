"""The callback for XGBoost: `xgb.train`, `xgb.cv` and its estimators with scikit-learn's interface.

A boosting round is an epoch. Put this callback first: if a callback stops the training, XGBoost does not call later
callbacks in that round. After an exception it calls none, so keep the training inside `with trial:`. `xgb.cv` cannot
continue boosters, so its trials do not pause, and Ctrl-C ends them at once.

A pause saves the booster (.ubj). XGBoost does not save its random generator, which starts again at `seed`. With
subsample, colsample_by*, a random feature_selector or dart's rate_drop the resumed rounds differ. Pass
`seed=trial.attempt`, so that they do not repeat the first random numbers; seed_per_iteration does not help. XGBoost's
own callbacks also start again: for a LearningRateScheduler write `lambda round: rate(round + trial.epoch)` and
params["eta"] = rate(trial.epoch - 1).

The best trial's booster is kept with all of its rounds. If the goal counts a trial's best epoch, the model of that
epoch is booster[: int(study.best.epoch)].
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from haltune._utils.interruption import Interruption
from haltune.errors import NotSupported

from .base import Reporting
from .boosting import CANNOT_FOLD, STARTED, begin, full_name, named

if TYPE_CHECKING:
    from xgboost.callback import TrainingCallback as _Base
else:
    _Base = object

_CV = f"xgb.cv {CANNOT_FOLD}: use xgb.train, or a policy that only stops"
_EVALS = (
    "evals=[(data, 'validation')], or fit eval_set=[(x, y)], and the metric by eval_metric=; its name is then "
    "'validation-logloss', or 'validation_0-logloss' of fit"
)


class HaltuneCallback(Reporting, _Base):  # type: ignore[misc, unused-ignore]
    """Callback that reports the goal's metric after every boosting round, and stops when the policy decides so.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        monitor: "<name in evals>-<metric>", such as "validation-logloss". If one data set has the metric, its name
            alone is enough. In `xgb.cv`, "test-logloss" is the mean over the folds. Default: None, the goal's metric.
        verbose: Print a line for every report. Default: False.
        record: "all" stores all metrics of the round with the report, "monitor" only this one. Default: "all".

    Raises:
        InvalidInput: If `trial` is not a trial, if no data set or more than one has the metric, or if the training has
            two HaltuneCallbacks.
        NotSupported: If the training is distributed.

    Example:
        ::

            import numpy as np
            import xgboost as xgb

            from haltune import Budget, Float, Minimize, Problem, Space, Study
            from haltune.callbacks.xgboost import HaltuneCallback
            from haltune.policies import RandomSearch

            x = np.random.rand(64, 3)
            data, held_out = xgb.DMatrix(x[:48], x[:48, 0]), xgb.DMatrix(x[48:], x[48:, 0])
            problem = Problem(Space({"eta": Float(0.1, 1.0)}), Minimize("validation-rmse"), max_epochs=5)
            for trial in Study(problem, RandomSearch(), budget=Budget(trials=2)):
                with trial:
                    xgb.train(trial.config, data, trial.max_epochs - trial.epoch, xgb_model=trial.checkpoint,
                              evals=[(held_out, "validation")], callbacks=[HaltuneCallback(trial)])
    """

    _homes = ("xgboost.callback",)
    _base = "TrainingCallback"
    _install = "pip install xgboost"
    _hint = "Call xgb.train(..., trial.max_epochs - trial.epoch, xgb_model=trial.checkpoint)"
    _before = 0  # rounds of this trial trained before this training

    # the hooks, in XGBoost's order

    def before_training(self, model: Any) -> Any:
        from xgboost import collective

        if (workers := collective.get_world_size()) > 1:
            raise NotSupported(
                f"This training runs on {workers} workers, and each would report separately. With XGBoost, haltune "
                "supports one process only. Give it nthread instead of workers."
            )
        begin(model)
        # XGBoost numbers a continued booster's rounds from 0; with a new booster the trial starts again
        self._before = int(self.trial.epoch) if model.num_boosted_rounds() else 0
        self._reporter.begin()
        self._reporter.defer(Interruption.within("train", "xgboost."))
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        return self._reporter.verdict is not None  # the verdict came in an earlier training

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        rows = ((data, metric, v[-1]) for data, columns in evals_log.items() for metric, v in columns.items())
        metrics = named((data, metric, *(v if isinstance(v, tuple) else (v, None))) for data, metric, v in rows)
        name = full_name(self.monitor, metrics, "xgb.train", _EVALS)
        self._reporter.report(metrics[name], self._before + epoch + 1, metrics)
        self._reporter.heed(self._before + epoch + 1)
        if self._reporter.saves and _folds(model):
            self._reporter.decline(_CV)
        elif self._reporter.saves:
            self._reporter.save(model.save_model, ".ubj")
        if self._reporter.stopping and _folds(model) and model.attr("best_iteration") is None:
            # at a stop, xgb.cv cuts its results after best_iteration, and crashes without one
            model.set_attr(best_iteration=str(epoch), best_score=str(metrics[name]))
        return self._reporter.over

    def after_training(self, model: Any) -> Any:
        STARTED.discard(model)
        self._reporter.end_of_fit(None if _folds(model) else model.save_model, ".ubj")
        self._reporter.leave()
        return model


def _folds(model: Any) -> bool:
    """Return whether these are the boosters of xgb.cv, one for each fold."""
    return hasattr(model, "cvfolds")
