"""The callback for XGBoost: `xgb.train`, `xgb.cv` and the estimators that look like scikit-learn's.

    from haltune.callbacks.xgboost import HaltuneCallback

    with trial:
        xgb.train(params, data, trial.max_epochs - trial.epoch, xgb_model=trial.checkpoint,
                  evals=[(held_out, "validation")], callbacks=[HaltuneCallback(trial, "validation-logloss")])

A boosting round is an epoch. Put the callback first: XGBoost asks no further one in a round in which one
stops. After an exception XGBoost calls no callback: keep the training inside `with trial:`.

Ctrl-C and SIGTERM let the round under way be trained and save the booster, so that the same program continues exactly
there; in `xgb.cv`, which takes no boosters to continue from, they are heard at once. A second one leaves at once.

The best run's booster is kept, with all of its rounds: xgb.Booster(model_file=study.best.checkpoint)
gives it back, and where the goal counts a run's best epoch, booster[: int(study.best.epoch)] is what it counts for.

A pause saves the booster (.ubj). A resumed training equals an uninterrupted one digit for digit as long as
XGBoost draws nothing at random. Its generator is in no file and starts again at `seed`: with subsample,
colsample_by*, a random feature_selector or dart's rate_drop the resumed rounds are other ones, and with the
same seed they draw what the first rounds drew, so give `seed=trial.attempt` then; seed_per_iteration does not
mend it. XGBoost's own callbacks start again too: a LearningRateScheduler counts rounds from 0, so
write `lambda round: rate(round + trial.epoch)` and params["eta"] = rate(trial.epoch - 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from haltune.errors import NotSupported

from .base import Reporting
from .boosting import BEGUN, CANNOT_FOLD, begin, full_name, named
from .interruption import Interruption

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
        trial: What `study.ask()` gave, or the loop over a study.
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
        # XGBoost numbers a continued booster's rounds from 0; a new booster begins the trial again
        self._before = int(self.trial.epoch) if model.num_boosted_rounds() else 0
        self._reporter.begin()
        self._reporter.defer(Interruption.within("train", "xgboost."))
        return model

    def before_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        return self._reporter.verdict is not None  # it came in a training before this one

    def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
        rows = ((data, metric, v[-1]) for data, columns in evals_log.items() for metric, v in columns.items())
        metrics = named(
            (data, metric, *(v if isinstance(v, tuple) else (v, None))) for data, metric, v in rows
        )
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
        BEGUN.discard(model)
        self._reporter.end_of_fit(None if _folds(model) else model.save_model, ".ubj")
        self._reporter.leave()
        return model


def _folds(model: Any) -> bool:
    """True for the boosters of xgb.cv, one a fold."""
    return hasattr(model, "cvfolds")
