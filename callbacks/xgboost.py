"""The callback for XGBoost: `xgb.train`, `xgb.cv` and its estimators in scikit-learn's manner.

A boosting round is an epoch. Put the callback first: in a round in which one stops, XGBoost calls no later callback.
After an exception it calls none: keep the training inside `with trial:`. `xgb.cv` cannot continue boosters, so there a
trial does not pause and Ctrl-C ends it at once.

A pause saves the booster (.ubj). XGBoost's random generator is in no file and starts again at `seed`: with subsample,
colsample_by*, a random feature_selector or dart's rate_drop the resumed rounds differ. Pass `seed=trial.attempt`, so
that they do not repeat the first draws; seed_per_iteration does not help. XGBoost's own callbacks start again, too: for
a LearningRateScheduler write `lambda round: rate(round + trial.epoch)` and params["eta"] = rate(trial.epoch - 1).

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
    """Reports the goal's metric to a trial after every boosting round, and stops when the policy says so.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        monitor: "<name in evals>-<metric>", such as "validation-logloss", or the metric alone where one data set has
            it. In `xgb.cv` "test-logloss" is the mean over the folds. Default: None, the goal's metric.
        verbose: Print a line for every report. Default: False.
        record: "all" metrics of the round are stored with the report, or the "monitor" only. Default: "all".

    Raises:
        InvalidInput: When `trial` is not a trial, when no data set has the metric, or several have, and for two
            HaltuneCallbacks in one training.
        NotSupported: For distributed training.

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

    # the hooks, in the order XGBoost calls them

    def before_training(self, model: Any) -> Any:
        from xgboost import collective

        if (workers := collective.get_world_size()) > 1:
            raise NotSupported(
                f"this training runs on {workers} workers, and each would report on its own: "
                "haltune reports from xgb.train in one process. Give it nthread instead of workers"
            )
        begin(model)
        # XGBoost numbers a continued booster's rounds from 0; with a new booster the trial starts again
        self._before = int(self.trial.epoch) if model.num_boosted_rounds() else 0
        self._reporter.begin()
        self._reporter.defer(Interruption.within("train", "xgboost."))
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        return self._reporter.verdict is not None  # it came in a training before this one

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
            # xgb.cv cuts its results after best_iteration when it is stopped, and crashes where there is none
            model.set_attr(best_iteration=str(epoch), best_score=str(metrics[name]))
        return self._reporter.over

    def after_training(self, model: Any) -> Any:
        STARTED.discard(model)
        self._reporter.end_of_fit(None if _folds(model) else model.save_model, ".ubj")
        self._reporter.leave()
        return model


def _folds(model: Any) -> bool:
    """True for the boosters of xgb.cv, one a fold."""
    return hasattr(model, "cvfolds")
