"""The callback for Keras: each method says in a few lines what the reporter is to do."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from haltune.errors import InvalidInput
from haltune.log.records import Best
from haltune.study import Trial

from ..frameworks.portable import Reporting
from ..reporting.advice import HOLDS_THE_CLASS, missing, scalar, two_callbacks
from ..reporting.reporter import Reporter
from . import checkpoint, loading
from .interruption import interruption
from .metric_names import MetricNames
from .neighbours import calling_list, is_tracker, put_trackers_behind, tracked
from .processes import refuse_many_processes
from .schedules import schedule_advice, stopping_advice, swapping_advice

if TYPE_CHECKING:
    from keras.callbacks import Callback as _Base
else:
    _Base = object


_OURS = 2  # a bit of model.stop_training: as true as the True of other callbacks, and told from it


def load_model(trial: Trial, make_model: Callable[..., Any] | None = None, **options: Any) -> Any:
    """The model of a resumed trial, compiled and as it was when it was paused; None for a trial that begins.

    The random state is set as it was, too. Users call it as trial.load_model(). Call it when the trial begins, too:
    before a pause haltune tries whether what is saved could be loaded this way.

    Args:
        trial: The trial to train.
        make_model: Gives a compiled model, for models whose file Keras cannot load. Then make_model(**trial.config) is
            returned, for a resumed trial with the weights and the optimizer that it had. Default: None.
        options: Those of keras.saving.load_model, such as custom_objects.

    Raises:
        InvalidInput: When the trial's checkpoint is no .keras file, or not of the model that make_model gives.

    Example:
        model = trial.load_model() or build(trial.config)
    """
    if make_model is None:
        return loading.whole(trial, options)
    if options:
        raise InvalidInput(
            f"trial.load_model(make_model) loads no file of a whole model: leave out {[*options]}"
        )
    return loading.built(trial, make_model)


def load_best(best: Best, make_model: Callable[..., Any] | None = None, **options: Any) -> Any:
    """The model of the best run, compiled, after the epoch that it counts for. Users call study.best.load_model().

    Args:
        best: What study.best gives.
        make_model: Gives a compiled model, as for trial.load_model(make_model): make_model(**best.config) is returned,
            with the weights and the optimizer of the best run. Default: None, the model is in the file.
        options: Those of keras.saving.load_model, such as custom_objects.

    Raises:
        InvalidInput: When no model was kept, and when the file is no .keras file, or not of the model that make_model
            gives.

    Example:
        study.best.load_model().predict(x)
    """
    return loading.best(best, make_model, options)


class _Class(type):
    """Says of the class what is meant, where Keras looks on it for a hook that only instances have."""

    def __getattr__(cls, name: str) -> Any:
        raise AttributeError(HOLDS_THE_CLASS if name.startswith("on_") else f"{cls.__name__} has no {name}")


class HaltuneCallback(Reporting, _Base, metaclass=_Class):  # type: ignore[misc]
    """Reports the goal's metric to a trial, and stops or pauses the fit when the policy says so.

    Put it behind callbacks that add to the logs, and before SwapEMAWeights. Keras' TensorBoard and
    CSVLogger and the callbacks of tracking services are called after it and log, with the other metrics,
    haltune_verdict (0 going on, 1 paused, 2 stopped), haltune_p_win and haltune_epochs_saved.

    Args:
        trial: What `study.ask()` gave, or the loop over a study.
        monitor: The name of the metric in Keras' logs. Default: None, the goal's.
        verbose: Print a line for every report. Default: False.
        record: "all" scalars of the epoch's logs are stored with the report, or the "monitor" only. Default: "all".

    Raises:
        InvalidInput: When `trial` is not a trial, when the metric is a vector or was never logged, and when a resumed
            trial trains another model than trial.load_model() gives.
        NotSupported: For a fit of several processes.

    Example:
        ::

            import keras
            import numpy as np

            from haltune import Budget, Float, Minimize, Problem, Space, Study
            from haltune.callbacks.keras import HaltuneCallback
            from haltune.policies import RandomSearch

            def make_model(lr):
                model = keras.Sequential([keras.layers.Dense(1)])
                model.compile(keras.optimizers.SGD(lr), "mse")
                return model

            x, y = np.random.rand(32, 3), np.random.rand(32, 1)
            problem = Problem(Space({"lr": Float(0.01, 0.1)}), Minimize("val_loss"), max_epochs=2)
            for trial in Study(problem, RandomSearch(), budget=Budget(trials=2)):
                with trial:
                    model = trial.load_model() or make_model(**trial.config)
                    model.fit(x, y, epochs=trial.max_epochs, initial_epoch=trial.epoch, validation_split=0.25,
                              callbacks=[HaltuneCallback(trial)])
    """

    _homes = ("keras.callbacks",)
    _extra = "keras"
    _held = frozenset({"_model", "_model_ref"})

    def __init__(
        self, trial: Trial, monitor: str | None = None, verbose: bool = False, record: str = "all"
    ) -> None:
        super().__init__()
        hint = "Call model.fit(..., initial_epoch=trial.epoch) on the model of trial.load_model()"
        self._reporter = Reporter(trial, monitor, verbose, record=record, resume_hint=hint)
        self._resumed = trial.checkpoint if trial.epoch > 0 else None  # until its first epoch begins
        self._proven = _ours(self._resumed)  # a file of this model was loaded
        self._last_logs: list[str] | None = None  # the names in the last epoch's logs
        self._epoch: int | None = None  # the last one trained, from 1
        wanted = (self.monitor, *self._reporter.measures.others)
        self._names = MetricNames(wanted, [*trial.metrics] if self._proven else None)
        self._start()

    # Keras gives every callback its model; held weakly, as no hook lets us drop it after an exception.

    def set_model(self, model: Any) -> None:
        self._model_ref = weakref.ref(model)

    @property
    def model(self) -> Any:
        """The model in training; None outside a fit."""
        ref = self.__dict__.get("_model_ref")
        return ref() if ref else None

    # the hooks, in the order Keras calls them

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        refuse_many_processes()
        self._start()
        self._reporter.begin((self.params or {}).get("epochs"), self.model)
        if any(isinstance(c, HaltuneCallback) and c is not self for c in calling_list(self)):
            raise two_callbacks("model.fit(callbacks=[...])")
        self._look_around(calling_list(self))
        self._restore_randomness()
        self._reporter.hear(interruption())
        if self._reporter.verdict is not None:
            self.model.stop_training |= _OURS

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._in_epoch, self._validated = True, False
        self._need_the_trials_model(epoch)

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        self._reporter.clock.validating()

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._reporter.clock.validated()
        self._validated = self._in_epoch

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._in_epoch, self._epoch = False, epoch + 1
        logs = {} if logs is None else logs
        named = self._names.plain(self.model, logs)
        self._last_logs = list(named)
        if self.monitor in named:
            self._reporter.report(named[self.monitor], self._epoch, _scalars(named))
        else:
            self._wait_for_validation()
        self._reporter.heed(self._epoch)
        self._heed_others()
        if self._reporter.keeps_epoch and self.trial.epoch == self._epoch:
            self._save(checkpoint.write, self._reporter.keep, loading.kept_suffix(self.trial, self.model))
        if self._reporter.saves and self.trial.epoch == self._epoch:
            how = loading.of(self.trial)
            self._save(checkpoint.write if self._proven else partial(loading.write, loading=how))
        if trackers := [c for c in calling_list(self) if is_tracker(c)]:
            logs.update(tracked(self._reporter, self._epoch, trackers))
        if self._reporter.stopping or self._reporter.leaving:
            self.model.stop_training |= _OURS

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._heed_others()
        self.model.stop_training = bool(self.model.stop_training)
        silent = self._last_logs is not None and self._reporter.silent
        if not silent and not self._reporter.saves and self._reporter.keeps:
            self._save(checkpoint.write, suffix=loading.kept_suffix(self.trial, self.model))
        self._forget()
        if silent:
            raise self._missing("in this fit")
        self._reporter.end_of_fit()
        self._reporter.leave()

    def _start(self) -> None:
        self._in_epoch = False
        self._validated = False
        self._last_logs = self._epoch = None

    def _look_around(self, listed: list[Any]) -> None:
        """Have the trackers called after this one; advise on what does not fit the trial, where it begins."""
        put_trackers_behind(listed, self)
        if self.trial.epoch == 0:
            optimizer, horizon = getattr(self.model, "optimizer", None), self.trial.horizon
            advice = (
                schedule_advice(optimizer, (self.params or {}).get("steps"), horizon),
                stopping_advice(listed, self.trial.until, horizon),
                swapping_advice(listed, self),
            )
            for sentence in filter(None, advice):
                self._reporter.advise(sentence)

    def _restore_randomness(self) -> None:
        """Just before the first epoch, as setting a fit up draws numbers too."""
        if self._resumed is None or not _ours(self._resumed) or _fresh(self.model):
            return
        try:
            checkpoint.restore_randomness(self.model, self._resumed)
        except (OSError, BadZipFile) as error:  # deleted since the model was loaded
            why = f"the random state in {self._resumed} cannot be read ({error})"
            self._reporter.warn_once(
                "random", f"{why}: dropout and shuffling do not continue as they would have"
            )

    def _need_the_trials_model(self, epoch: int) -> None:
        resumed, self._resumed = self._resumed, None
        if _ours(resumed) and epoch >= self.trial.epoch and _fresh(self.model):
            raise InvalidInput(
                f"trial {self.trial.id} continues after epoch {self.trial.epoch:g}, but the optimizer of this model "
                "has not taken a step: begin with model = trial.load_model() or make_model(**trial.config), "
                "and do not compile what it loads again"
            )

    def _heed_others(self) -> None:
        """What EarlyStopping or another callback ends, before this one or behind it, is not paused."""
        if int(self.model.stop_training) & True:
            self._reporter.ends_by_itself()

    def _save(
        self,
        write: Callable[[Any, Path], None],
        how: Callable[..., bool] | None = None,
        suffix: str | None = None,
    ) -> None:
        model, how = self.model, how or self._reporter.save
        how(lambda path: write(model, path), suffix or loading.of(self.trial).suffix)

    def _wait_for_validation(self) -> None:
        """With validation_freq > 1 val_ names are absent in between; other absences are misspellings."""
        if self._reporter.silent and (self._validated or not self.monitor.startswith("val_")):
            raise self._missing("in the first epoch that had it to log")

    def _missing(self, when: str) -> Exception:
        unvalidated = self.monitor.startswith("val_") and not any(
            n.startswith("val_") for n in self._last_logs or ()
        )
        how = "Give model.fit validation data" if unvalidated else "Compute it, model.compile(metrics=[...])"
        if numbered := any(re.fullmatch(rf"{re.escape(self.monitor)}_\d+", n) for n in self._last_logs or ()):
            how = "Keras numbers metrics without a name, anew for each model: give each one, AUC(name='auc')"
        guess = not (unvalidated or numbered)
        return missing(self.monitor, self._last_logs or (), when, how, guess)


def _scalars(logs: Mapping[str, Any]) -> dict[str, float]:
    """What is one number in an epoch's logs."""
    found = {}
    for name, value in logs.items():
        if not isinstance(value, (str, bytes)):
            with suppress(InvalidInput):
                found[name] = scalar(value, name)
    return found


def _ours(path: str | None) -> bool:
    """True for a file that this callback wrote."""
    return path is not None and path.endswith(checkpoint.OURS)


def _fresh(model: Any) -> bool:
    """True for a model whose optimizer has not taken a step."""
    from keras import ops

    iterations = getattr(getattr(model, "optimizer", None), "iterations", None)
    return iterations is not None and int(ops.convert_to_numpy(iterations)) == 0
