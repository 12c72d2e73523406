"""The callback for LightGBM: `lgb.train`, `lgb.cv` and its estimators with scikit-learn's interface.

A boosting round is an epoch. Make a Dataset for each trial, within the loop: after a continued training, a Dataset
keeps the scores of that booster, and LightGBM would start the next training from them. `lgb.cv` cannot continue
boosters, so its trials do not pause, and Ctrl-C ends them at once. LightGBM's early stopping works as usual.

A pause saves the booster as text. LightGBM does not save its random generators, so they start again. With
bagging_fraction, feature_fraction, extra_trees, use_quantized_grad, data_sample_strategy="goss" or boosting="dart" the
resumed rounds differ. Pass `seed=trial.attempt`, so that they do not repeat the first random numbers. linear_tree
resumes to about seven digits; a random forest (boosting="rf") cannot be continued. LightGBM's own callbacks also start
again: early stopping forgets earlier rounds, and for reset_parameter write
`learning_rate=lambda i: rate(i + trial.epoch)`.

If the goal counts a trial's best epoch, use predict(x, num_iteration=int(study.best.epoch)).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakSet

from haltune._utils.interruption import Interruption
from haltune.errors import InvalidInput, NotSupported
from haltune.study import Trial

from .base import Reporting
from .boosting import CANNOT_FOLD, begin, full_name, named

_CONTINUED: WeakSet[Any] = WeakSet()  # data sets whose initial scores are the predictions of a booster
_CV = f"lgb.cv {CANNOT_FOLD}: use lgb.train, or a policy that only stops"
_FOREST = 'a random forest (boosting="rf") cannot be continued: use gbdt, or a policy that only stops'
_SETS = (
    "valid_sets=[held_out], or fit eval_set=[(x, y)]; the metric's name is then 'valid_0-l2' or what LightGBM prints "
    "for the metric you give"
)


class HaltuneCallback(Reporting):
    """Callback that reports the goal's metric after boosting rounds, and stops when the policy decides so.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        monitor: "<name in valid_names>-<metric>", such as "valid_0-binary_logloss". If one data set has the metric, its
            name alone is enough. In `lgb.cv`, "valid-auc" is the mean over the folds. Default: None, the goal's metric.
        verbose: Print a line for every report. Default: False.
        record: "all" stores all metrics of the round with the report, "monitor" only this one. Default: "all".
        every: Number of rounds between reports; the last round is always reported. A report takes as long as a quick
            round. Default: 1.

    Raises:
        InvalidInput: If `trial` is not a trial, if no data set or more than one has the metric, if the Dataset was
            continued before, or if the training has two HaltuneCallbacks.
        NotSupported: If the training is distributed.

    Example:
        ::

            import lightgbm as lgb
            import numpy as np

            from haltune import Budget, Float, Minimize, Problem, Space, Study
            from haltune.callbacks.lightgbm import HaltuneCallback
            from haltune.policies import RandomSearch

            x = np.random.rand(200, 3)
            problem = Problem(Space({"learning_rate": Float(0.01, 0.5)}), Minimize("valid_0-l2"), max_epochs=5)
            for trial in Study(problem, RandomSearch(), budget=Budget(trials=2)):
                with trial:
                    data, held_out = lgb.Dataset(x[:150], x[:150, 0]), lgb.Dataset(x[150:], x[150:, 0])
                    lgb.train(trial.config | {"verbose": -1}, data, trial.max_epochs - trial.epoch,
                              init_model=trial.checkpoint, valid_sets=[held_out], callbacks=[HaltuneCallback(trial)])
    """

    _hint = "Call lgb.train(..., trial.max_epochs - trial.epoch, init_model=trial.checkpoint)"
    before_iteration = False
    _before = 0  # rounds of this trial trained before this training

    def __init__(
        self, trial: Trial, monitor: str | None = None, verbose: bool = False, record: str = "all", every: int = 1
    ) -> None:
        if not (isinstance(every, int) and every > 0):
            raise InvalidInput(f"every={every!r} is not a number of rounds. Use a whole number of at least 1.")
        super().__init__(trial, monitor, verbose, record)
        # after LightGBM's log and record, before its early stopping, which raises an exception; read from __dict__
        self.order = 25
        self.every = every

    def __call__(self, env: Any) -> None:
        """Report a round. It is LightGBM's only hook."""
        first = env.iteration == env.begin_iteration
        # the first round is already trained: it counts from when the callback was made
        lap = self._reporter.clock.lap() if first else None
        if first:
            self._begin(env)
        epoch = self._before + env.iteration - env.begin_iteration + 1
        last = env.iteration + 1 == env.end_iteration
        if not epoch % self.every or last:
            rows = env.evaluation_result_list or ()  # (data, metric, value, larger is better, deviation of folds)
            metrics = named((data, metric, value, (*rest, None)[0]) for data, metric, value, _, *rest in rows)
            value = metrics[full_name(self.monitor, metrics, "lgb.train", _SETS)]
            self._reporter.report(value, epoch, metrics, lap=lap)
        self._reporter.heed(epoch)
        if self._reporter.saves:
            self._pause(env)
        over = self._reporter.over
        if over or last:
            self._end(env)
        if over:
            from lightgbm.callback import EarlyStopException

            raise EarlyStopException(env.iteration, env.evaluation_result_list)

    def _begin(self, env: Any) -> None:
        machines = max(int(env.params.get(name) or 1) for name in ("num_machines", "num_machine"))
        if machines > 1:
            raise NotSupported(
                f"This training runs on {machines} machines, and each would report separately. With LightGBM, haltune "
                "supports one process only. Give it num_threads instead of machines."
            )
        begin(env.model)
        _need_fresh_data(env)
        # with a new booster the trial starts again; rounds without a split are not in the file
        self._before = int(self.trial.epoch) if env.begin_iteration else 0
        self._reporter.begin()
        self._reporter.defer(Interruption.within("train", "lightgbm."))
        self.trial.before_end(lambda: self._end(env))  # after early stopping, LightGBM calls no hook

    def _end(self, env: Any) -> None:
        self.trial.before_end(None)
        self._reporter.end_of_fit(_writing(env.model), ".txt")
        self._reporter.leave()

    def _pause(self, env: Any) -> None:
        write, names = _writing(env.model), ("boosting", "boosting_type", "boost")
        if write is None:
            self._reporter.decline(_CV)
        elif any(env.params.get(name) in ("rf", "random_forest") for name in names):
            self._reporter.decline(_FOREST, always=True)
        else:
            self._reporter.save(write, ".txt")


def _writing(model: Any) -> Callable[[Path], object] | None:
    """Return a function that saves a booster with all of its rounds; None for the boosters of lgb.cv."""
    return None if hasattr(model, "boosters") else lambda path: model.save_model(path, num_iteration=-1)


def _need_fresh_data(env: Any) -> None:
    """Raise InvalidInput if a training starts on a data set with the scores of another booster."""
    data = getattr(env.model, "train_set", None)
    if data is None:
        return
    if env.begin_iteration:
        _CONTINUED.add(data)
    elif data in _CONTINUED:
        raise InvalidInput(
            "This Dataset was used in a continued training, so LightGBM would start from that booster's predictions. "
            "Make a Dataset for each trial, within the loop, lgb.Dataset(x, y)."
        )
