"""The callback for CatBoost's estimators, on the CPU only: on GPUs, CatBoost calls no callbacks.

A boosting round is an epoch, and `iterations` is always the full number. Rounds that CatBoost does not evaluate
(metric_period) are not reported. Put this callback last: if a callback stops the training, CatBoost does
not call later callbacks in that round.

If fit gets **callback.snapshot, a pause saves CatBoost's snapshot, including the random state and the overfitting
detector. It lacks a part of exact leaves (as of MAE and Quantile) in ordered boosting, which is not paused. CatBoost
refuses a snapshot for other data or parameters. CatBoost writes the snapshot after fit, calls no callback then, and
replaces every error from within fit. So states are saved, and errors and Ctrl-C are raised, when the trial ends. What
callbacks, losses and metrics of the program remember is saved next to the snapshot, and restored when CatBoost asks for
the snapshot's path, before the first round.

The best trial's model is kept with the rounds up to the one with which the trial counts. With an eval_set, fit returns
the model of CatBoost's best round, unless use_best_model=False. So make the goal Minimize("validation-RMSE",
of="best"), with the metric of eval_metric=; otherwise that model does not have the trial's value, and is not kept.
"""

from __future__ import annotations

import math
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from haltune._utils.interruption import Interruption, caller, variables
from haltune.errors import NotSupported
from haltune.study import Trial
from haltune.study.trial import Fold

from .base import Reporting, of_instance
from .boosting import begins, full_name, keep_best, named
from .functions import OwnFunctions
from .reporter import digest, two_callbacks

_SNAPSHOT, _MODEL = ".snapshot", ".cbm"
_SELDOM = 10**8  # seconds: only the snapshot at the end is needed
_UNASKED = "CatBoost saves no state without **callback.snapshot: call fit(..., **callback.snapshot)"
_ORDERED = (
    'CatBoost does not continue exact leaves of boosting_type="Ordered" exactly (give it '
    'leaf_estimation_method="Gradient")'
)
_EXACT = ("MAE", "MAPE", "Quantile", "LogCosh")  # losses whose leaves are exact by default
_OWN_FOLDER = "Call fit(..., **callback.snapshot), or give each trial a train_dir and a snapshot_file of its own"
# trial -> weak reference to the callback of its last fit, which it holds until it ends
_FITS: weakref.WeakKeyDictionary[Trial, Callable[[], HaltuneCallback | None]] = weakref.WeakKeyDictionary()
_SETS = "eval_set=(x, y), and the metric by eval_metric=; its name is then 'validation-Logloss'"


class HaltuneCallback(Reporting):
    """Callback that reports the goal's metric after every boosting round, and stops when the policy decides so.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        monitor: "<data>-<metric>", such as "validation-Logloss"; with several data sets "validation_0-Logloss". If
            one data set has the metric, its name alone is enough. Default: None, the goal's metric.
        verbose: Print a line for every report. Default: False.
        record: "all" stores all metrics of the round with the report, "monitor" only this one. Default: "all".

    Raises:
        InvalidInput: If `trial` is not a trial. When the trial ends, after one round: if no data set or more than one
            has the metric, or if the training has two HaltuneCallbacks.

    Example:
        ::

            import numpy as np
            from catboost import CatBoostRegressor

            from haltune import Budget, Float, Minimize, Problem, Space, Study
            from haltune.callbacks.catboost import HaltuneCallback
            from haltune.policies import RandomSearch

            x = np.random.rand(64, 3)
            space = Space({"learning_rate": Float(0.01, 0.5)})
            problem = Problem(space, Minimize("validation-RMSE"), max_epochs=5)
            for trial in Study(problem, RandomSearch(), budget=Budget(trials=2)):
                with trial:
                    callback = HaltuneCallback(trial)
                    model = CatBoostRegressor(iterations=trial.max_epochs, verbose=False, **trial.config)
                    model.fit(x[:48], x[:48, 0], eval_set=(x[48:], x[48:, 0]), callbacks=[callback],
                              **callback.snapshot)
    """

    _held = frozenset({"_model", "_prepared", "_own", "_later"})
    _hint = "Call fit(..., callbacks=[callback], **callback.snapshot)"
    _model: Any = None  # the estimator, from the start of fit until the trial ends
    _prepared: Any = None  # the estimator of a fit that may train no round, because its snapshot is finished
    _file: Path | None = None  # where CatBoost writes its snapshot
    _round = _evaluations = 0
    _given = 0  # rounds of the model that fit was given to continue
    _cuts = False  # whether CatBoost keeps the best round
    _exact = False  # whether it estimates exact leaves in ordered boosting
    _own: OwnFunctions | None = None  # the program's own callbacks, loss and metrics
    _in_time = False  # `_own` was read before the first round
    _later: OwnFunctions | None = None  # those of `_own` that are callbacks after this one

    def _setup(self) -> None:
        if self.trial.ended is None and self.trial not in _FITS:
            self.trial.before_end(self._miss)

    @property
    def snapshot(self) -> dict[str, Any]:
        """Arguments for `fit` with which a trial can pause and resume: `fit(..., **callback.snapshot)`."""
        if self._file is None:
            folder = tempfile.mkdtemp(prefix="haltune-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            self._file = Path(folder, "catboost")
            checkpoint = self.trial.checkpoint
            if checkpoint is not None and checkpoint.endswith(_SNAPSHOT):
                shutil.copy(checkpoint, self._file)  # CatBoost writes over it
        return {"save_snapshot": True, "snapshot_file": _File(self), "snapshot_interval": _SELDOM}

    def _read_functions(self, given: Mapping[str, Any], in_time: bool) -> None:
        """Restore what the program's own functions remembered.

        given: the variables of the fit. in_time: before CatBoost has called one of the functions.
        """
        callbacks, params = given["callbacks"] or [], given["params"]
        own = [params.get(name) for name in ("loss_function", "eval_metric", "custom_metric")]
        own = [one for value in own for one in (value if isinstance(value, list) else [value])]
        hooks = [other.after_iteration for other in callbacks if other is not self]
        checkpoint = self.trial.resumes_from
        resumes = checkpoint is not None and checkpoint.endswith(_SNAPSHOT)
        self._own, self._in_time = OwnFunctions(hooks, own, self.trial, not resumes), in_time
        self._later = OwnFunctions(hooks[callbacks.index(self) :] if self in callbacks else (), (), self.trial, False)
        if resumes and in_time:
            self._own.put_back(str(checkpoint))
            self._prepared = given["self"] if given["init_model"] is None else None

    @of_instance
    def after_iteration(self, info: Any) -> bool:
        """CatBoost's only hook, after each round: True to continue."""
        try:
            return self._report(info)
        except Exception as error:
            # CatBoost would replace it by its own error (catboost/catboost#1744), and quote it in later errors
            self._model, failed = None, error
            if self.trial.ended is not None:  # it does not end again
                raise
            self.trial.before_end(lambda: self._fail(failed))
            return False

    def _report(self, info: Any) -> bool:
        lap = None
        if self._model is None or info.iteration <= self._round:
            lap = self._reporter.clock.lap()  # the first round counts from when the callback was made
            self._begin(info.iteration)
        metrics, evaluations = _last(info.metrics)
        self._round, before, self._evaluations = info.iteration, self._evaluations, evaluations
        if evaluations > before:
            value = metrics[full_name(self.monitor, metrics, "fit", _SETS)]
            self._reporter.report(value, info.iteration, metrics, need=self._need, lap=lap)
        self._reporter.heed(info.iteration)
        if self._reporter.pausing and (why := self._cannot_pause()):
            self._reporter.decline(why, always=True)
        return not self._reporter.over

    def _cannot_pause(self) -> str | None:
        """Return why a resumed training would differ, or None."""
        if self._file is None:
            return _UNASKED
        if self._exact:
            return _ORDERED
        if self._later is not None and (name := self._later.changed()):
            return f"CatBoost calls {name} after haltune's callback, so not in the last round (put haltune's last)"
        if self._own is not None and not self._in_time and (name := self._own.changed()):
            return (
                f"CatBoost called {name} before haltune could restore what it remembers (pass **callback.snapshot to "
                "fit, unchanged)"
            )
        return None if self._own is None else self._own.unsaved()

    def _begin(self, iteration: int) -> None:
        self._prepared = None
        # CatBoost gives its only hook neither the model nor the other callbacks (catboost/catboost#1942), so they are
        # read from the call. Without them no model is kept, and two HaltuneCallbacks would report every round.
        fit, period = caller("_fit", "catboost."), 1
        if given := variables(fit):
            if sum(isinstance(other, HaltuneCallback) for other in given["callbacks"]) > 1:
                raise two_callbacks("callbacks=[...]")
            self._model = given["self"]
            params = given["params"]
            if self._own is None:
                self._read_functions(given, False)
            self._cuts = params.get("use_best_model", bool(given["train_params"]["eval_sets"]))
            period = params.get("metric_period") or 1
            exact = str(params.get("loss_function")).partition(":")[0] in _EXACT
            exact = params.get("leaf_estimation_method", "Exact" if exact else None) == "Exact"
            self._exact = exact and params.get("boosting_type") == "Ordered"
        # the metrics of the first round include evaluations of rounds before this training
        self._evaluations = math.ceil((iteration - 1) / period)
        self._training = _Training()
        earlier = _FITS.get(self.trial, lambda: None)()
        if earlier is not None and earlier._model is not None and earlier._reporter.over:
            earlier._end()  # the trial ends before another fit, which CatBoost did not announce
        self._refuse_snapshot(iteration - 1)
        rounds = None if fit is None or "iterations" not in params else params["iterations"] - iteration + 1
        begins(self._reporter, rounds, self._training, iteration - 1, self._owner(given))
        _FITS[self.trial] = weakref.ref(self)
        if self._cuts:
            self._reporter.advise_best("CatBoost (use_best_model)")
        ends = "after this round, without a save" if self._file is None else "after the next save"
        loop = None if fit is None else fit.f_code
        self._reporter.defer(Interruption(fit is not None, loop, patient=True, ends=ends))
        self.trial.before_end(self._end)

    def _owner(self, given: Mapping[str, Any]) -> int | str | None:
        """Return the trial of the study whose model the fit was given to continue, or None."""
        self._given, before = 0, given.get("init_model")
        if before is None:
            return None
        loaded = given["train_params"]["init_model"]
        self._given = 0 if loaded is None else loaded.tree_count_
        if isinstance(before, (str, os.PathLike)) and (owner := self.trial.owner(before)) is not None:
            return owner
        return None if loaded is None else self.trial.signer(_mark(loaded))

    def _refuse_snapshot(self, position: int) -> None:
        """Raise NotSupported if CatBoost has continued a snapshot beyond all that the trial has reported."""
        trial = self.trial
        if position <= trial.epoch or isinstance(trial, Fold):  # a fold refuses the state of another one itself
            return
        before = trial.history.furthest_superseded(trial.id)  # a killed attempt, whose snapshot it may be
        if position > (reached := trial.epoch if before is None else max(trial.epoch, before.epoch)):
            raise NotSupported(
                f"Trial {trial.id} has trained {reached:g} rounds, but CatBoost continues a snapshot of {position} "
                f"rounds, of another training. {_OWN_FOLDER}."
            )

    def _miss(self) -> None:
        """End the trial if CatBoost has called the callback in no round; fail it, unless it resumes.

        Then it had paused in the round in which CatBoost's overfitting detector ended the training.
        """
        self._model, self._prepared = self._prepared, None
        if self._model is not None:
            self._end()
        if self.trial.epoch == 0:
            self._fail(
                NotSupported(
                    f"CatBoost called the callback of trial {self.trial.id} in no round. If fit found a finished "
                    f"snapshot of another training: {_OWN_FOLDER}. Otherwise give fit callbacks=[callback], and train "
                    "on the CPU: on GPUs CatBoost calls no callbacks."
                )
            )

    def _need(self) -> int:
        """Return the bytes of the snapshot that a pause needs, at least those of the one from which it resumed."""
        return self._file.stat().st_size if self._file is not None and self._file.exists() else 0

    def _end(self) -> None:
        model, self._model = self._model, None
        _FITS.pop(self.trial, None)
        if self._own is not None:
            self._own.ends()
        reporter = self._reporter
        if model is not None and not model.is_fitted() and not reporter.over:
            reporter.postpone()  # after an error, which the program has handled
            return
        if reporter.saves:
            reporter.save(self._write, _SNAPSHOT, over=True, resumes_only=True)  # it has no model to load
        if model is not None and model.is_fitted():
            self.trial.sign(_mark(model))
        keep_best(reporter, partial(self._write_model, model), _MODEL)
        reporter.end_of_fit(lambda path: self._write_model(model, path, int(self.trial.epoch)), _MODEL)
        reporter.leave()

    def _fail(self, error: Exception) -> None:
        self._reporter.postpone()
        self.trial.fail(error)
        raise error

    def _write_model(self, model: Any, path: Path, rounds: int) -> None:
        """Save the model of the first rounds of the trial.

        Raises NotSupported if CatBoost has cut later ones than its own best.
        """
        there = model.tree_count_ - self._given
        if there < rounds:
            do = ". Make the goal the metric of eval_metric=, or pass use_best_model=False"
            do = do if self.trial.goal.of == "best" else ""  # otherwise it was advised at the start
            raise NotSupported(f"CatBoost kept its best round {there}, but the trial counts with {rounds}{do}")
        if rounds < self._round and model.get_all_params().get("model_shrink_rate"):
            raise NotSupported(
                f"CatBoost's later rounds have shrunk the leaves of round {rounds} (model_shrink_rate, langevin), with "
                "which the trial counts. Pass use_best_model=False, and count the last round by the goal's of='last'"
            )
        if rounds < there:  # only symmetric trees can be cut
            model = model.copy()
            model.shrink(self._given + rounds)
        model.save_model(str(path))

    def _write(self, path: Path) -> None:
        if self._file is None or not self._file.exists():
            raise NotSupported(_UNASKED)
        shutil.copy(self._file, path)
        if self._own is not None:
            self._own.write(path, {})


class _File(os.PathLike[str]):
    """Path of a snapshot. CatBoost asks for it when it prepares a fit; its only hook comes after the first round."""

    def __init__(self, callback: HaltuneCallback) -> None:
        self._callback = callback

    def __fspath__(self) -> str:
        if given := variables(caller("_prepare_train_params", "catboost.")):
            self._callback._read_functions(given, True)
        return str(self._callback._file)

    __str__ = __fspath__

    def __deepcopy__(self, memo: dict[int, Any]) -> _File:
        return self  # an estimator copies its parameters


def _mark(model: Any) -> str:
    return digest([np.asarray(model.get_leaf_values())])


class _Training:
    """One call of fit: an estimator that is fitted again starts from scratch."""


def _last(columns: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, float], int]:
    """Return the metrics of the last evaluation by "<data>-<metric>", and the number of evaluations."""
    rows = [(data, metric, values) for data, of in columns.items() for metric, values in of.items() if values]
    metrics = named((data, metric, values[-1], None) for data, metric, values in rows)
    return metrics, max((len(values) for *_, values in rows), default=0)
