"""The callback for Keras 3, on any of its backends.

It reports after every epoch that measured the metric. The position is the number of trained epochs or of optimizer
steps, in the study's unit. With `every=` it also reports within an epoch, where it can stop but not pause. A pause
saves the whole model and the random state at the end of the epoch. A fit that resumes from it, in any process, equals
one without a pause. Under a TensorFlow strategy, call trial.load_model() within its scope.

Before the first pause of each kind of model, haltune tests the file: it loads it once on the CPU. If Keras cannot load
it (because of a custom loss or a lambda), the trial does not pause, with one warning. Then use
trial.load_model(make_model), which builds the model by your function.

In a resumed fit, these start again: the state of other callbacks (ReduceLROnPlateau, EarlyStopping), the order of data
that shuffle themselves (tf.data, generators, several workers of a PyDataset), the position in the data with
steps_per_epoch, and TensorFlow's own tf.random within layers. With TensorFlow, set the seed by
keras.utils.set_random_seed: otherwise it shuffles arrays differently in every process.

After an exception Keras calls no callback, so keep the fit inside `with trial:`. Without `every=` no hook runs on
batches, because such a hook would disable JAX's asynchronous dispatch.
"""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from haltune._utils.interruption import Interruption
from haltune.errors import InvalidInput, NotSupported
from haltune.study import Trial

from ..base import Reporting
from ..reporter import missing, no_schedule, scalars, two_callbacks
from . import saving, surroundings
from .saving import load_best, load_model

if TYPE_CHECKING:
    from keras.callbacks import Callback as _Base
else:
    _Base = object

__all__ = ["HaltuneCallback", "load_best", "load_model"]

_OURS = 2  # value of model.stop_training: true, but distinct from the True of other callbacks


class HaltuneCallback(Reporting, _Base):  # type: ignore[misc]
    """Callback that reports the goal's metric to a trial, and stops or pauses the fit when the policy decides so.

    Put it after callbacks that add to the logs, and before SwapEMAWeights. Keras' TensorBoard and CSVLogger and the
    callbacks of tracking services are called after it. With the other metrics they log haltune_verdict (0 continues,
    1 paused, 2 stopped), haltune_p_win and haltune_epochs_saved.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        monitor: The name of the metric in Keras' logs. Default: None, the goal's.
        verbose: Print a line for every report. Default: False.
        record: "all" stores all scalars of the epoch's logs with the report, "monitor" only this one. Default: "all".
        every: Number of batches between reports within an epoch. Default: None, report after epochs only.
        validation: The data that `every` evaluates: (x, y), a dataset, or any input of model.evaluate. The metrics have
            the names of an epoch's logs, "val_loss". Default: None, use the training metrics of the epoch so far.

    Raises:
        InvalidInput: If `trial` is not a trial, if the metric is a vector or was never logged, or if a resumed trial
            trains another model than that of trial.load_model().
        NotSupported: If the fit has several processes.

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
    _install = "keras"
    _counts = ("epoch", "step")
    _hint = "Call model.fit(..., initial_epoch=trial.epoch) on the model of trial.load_model()"
    _held = frozenset({"_model", "_model_ref"})

    def __init__(
        self,
        trial: Trial,
        monitor: str | None = None,
        verbose: bool = False,
        record: str = "all",
        every: int | None = None,
        validation: Any = None,
    ) -> None:
        super().__init__(trial, monitor, verbose, record)
        if every is not None and (not isinstance(every, int) or every < 1):
            raise InvalidInput(f"every={every!r} is not a number of batches. Use a whole number of at least 1.")
        self._every, self._validation = every, validation
        self._hear_batches()

    def _hear_batches(self) -> None:
        if self._every is not None:
            self.on_train_batch_end = self._batch_ends  # Keras checks whether a callback has this hook

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in super().__getstate__().items() if k != "on_train_batch_end"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._hear_batches()

    def _setup(self) -> None:
        trial = self.trial
        checkpoint = trial.checkpoint if trial.epoch > 0 else None
        # the file from which the trial resumes, if haltune wrote it, until the first epoch starts
        self._resumed = checkpoint if checkpoint is not None and checkpoint.endswith(saving.OURS) else None
        self._proven = self._resumed is not None  # a file of this model could be loaded
        self._last_logs: list[str] | None = None  # the names in the last epoch's logs
        self._in_epoch = self._validated = False

    # Keras gives every callback its model. The reference is weak, because after an exception no hook can drop it.

    def set_model(self, model: Any) -> None:
        self._model_ref = weakref.ref(model)

    @property
    def model(self) -> Any:
        """The model during a fit; otherwise None."""
        ref = self.__dict__.get("_model_ref")
        return ref() if ref else None

    # the hooks, in Keras' order

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        surroundings.refuse_many_processes()
        reporter, params = self._reporter, self.params or {}
        self._in_epoch, self._last_logs = False, None
        epochs, steps = params.get("epochs"), params.get("steps")
        if self.trial.unit == "step":
            epochs = epochs * steps if epochs and steps else None
        reporter.begin(epochs, self.model)
        listed = surroundings.calling_list(self)
        if any(isinstance(c, HaltuneCallback) and c is not self for c in listed):
            raise two_callbacks("model.fit(callbacks=[...])")
        surroundings.put_trackers_behind(listed, self)
        if self.trial.epoch == 0:
            for sentence in surroundings.advice(self.trial, self, listed):
                reporter.advise(sentence)
        if self._resumed is not None and not _fresh(self.model):  # here, because the setup of a fit draws numbers
            try:
                saving.restore_randomness(self.model, self._resumed)
            except (OSError, BadZipFile) as error:  # deleted since the model was loaded
                why = f"the random state in {self._resumed} cannot be read ({error})"
                reporter.warn_once("random", f"{why}, so dropout and shuffling differ from an uninterrupted training")
        schedules = [c.schedule for c in listed if type(c).__name__ == "LearningRateScheduler"]
        reporter.schedule = lambda: surroundings.still_to_fall(self.model, params, schedules)
        reporter.defer(Interruption.within("fit", "keras."))
        if reporter.verdict is not None:
            self.model.stop_training |= _OURS

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._in_epoch, self._validated, self._epoch = True, False, epoch
        resumed, self._resumed = self._resumed, None
        starts = self.trial.unit == "step" or epoch >= self.trial.epoch
        if resumed is not None and starts and _fresh(self.model):
            raise InvalidInput(
                f"Trial {self.trial.id} continues after {self.trial.unit} {self.trial.epoch:g}, but the optimizer of "
                "this model has not made a step. Start with model = trial.load_model() or make_model(**trial.config), "
                "and do not compile the loaded model again."
            )

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        self._reporter.clock.validating()

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._reporter.clock.validated()
        self._validated = self._in_epoch

    def _batch_ends(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Hook on_train_batch_end, used with every=."""
        batches, reporter = (self.params or {}).get("steps"), self._reporter
        if (batch + 1) % (self._every or 1) or batch + 1 == batches:
            return  # the report comes at the end of the epoch
        if batches is None and self.trial.unit == "epoch":
            raise InvalidInput(
                "every= in a study that counts epochs needs the number of batches, which Keras does not know in the "
                "first epoch of these data. Set model.fit(..., steps_per_epoch=), or make the study with max_steps=."
            )
        if self._validation is not None:
            reporter.clock.validating()
            logs = evaluated(self.model, self._validation)
            reporter.clock.validated()
        named = plain_names(self.model, logs or {}, (self.monitor, *reporter.measures.others))
        if self.monitor in named:
            at_last = self._epoch + 1 >= (self.params or {}).get("epochs", math.inf)
            where = self._position(self._epoch + (batch + 1) / (batches or 1))
            reporter.report(named[self.monitor], where, scalars(named), need=_no_end if at_last else None)
        if reporter.stopping and not reporter.pausing:
            self.model.stop_training |= _OURS
        elif reporter.pausing:
            reporter.advise("Keras cannot resume within an epoch. Trials pause at the end of the epoch.", "within")

    def _position(self, epochs: float) -> float:
        return self._reporter.position(epoch=epochs, step=_iterations(self.model) or 0)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        reporter, trained = self._reporter, self._position(epoch + 1)
        self._in_epoch = False
        if int(self.model.stop_training) & _OURS:
            return  # the fit was stopped within the epoch
        logs = {} if logs is None else logs
        named = plain_names(self.model, logs, (self.monitor, *reporter.measures.others))
        self._last_logs = list(named)
        if self.monitor in named:
            reporter.report(named[self.monitor], trained, scalars(named))
        elif reporter.silent and (self._validated or not self.monitor.startswith("val_")):
            # with validation_freq > 1, val_ names are absent in some epochs; other absent names are misspelt
            raise self._missing("in the first epoch that should log it")
        reporter.trained = min(trained, self.trial.horizon or trained)
        reporter.heed(trained)
        self._heed_others()
        if self.trial.epoch == reporter.trained:
            if reporter.keeps_epoch:
                self._save(reporter.keep, saving.kept_suffix(self.trial, self.model))
            if reporter.saves:
                self._save(reporter.save, saving.suffix(self.trial), tried=not self._proven)
        if trackers := [c for c in surroundings.calling_list(self) if surroundings.is_tracker(c)]:
            logs.update(surroundings.tracked(reporter, epoch + 1, trackers))
        if reporter.over:
            self.model.stop_training |= _OURS

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        reporter = self._reporter
        self._heed_others()
        self.model.stop_training = bool(self.model.stop_training)
        silent = self._last_logs is not None and reporter.silent
        if not silent and not reporter.saves and reporter.keeps:
            self._save(reporter.save, saving.kept_suffix(self.trial, self.model))
        self._forget()
        if silent:
            raise self._missing("in this fit")
        reporter.end_of_fit()
        reporter.schedule = no_schedule
        reporter.leave()

    def _heed_others(self) -> None:
        """Do not pause a fit that EarlyStopping or another callback ends, called before or after this one."""
        if int(self.model.stop_training) & True:
            self._reporter.ends_by_itself()

    def _save(self, how: Callable[..., bool], suffix: str, tried: bool = False) -> None:
        model, trial = self.model, self.trial

        def write(path: Path) -> None:
            if tried:
                saving.write_tried(model, path, trial)
            else:
                saving.write(model, path)

        how(write, suffix)

    def _missing(self, when: str) -> Exception:
        names = self._last_logs or []
        unvalidated = self.monitor.startswith("val_") and not any(n.startswith("val_") for n in names)
        how = "Give model.fit validation data" if unvalidated else "Compute it, model.compile(metrics=[...])"
        if numbered := any(re.fullmatch(rf"{re.escape(self.monitor)}_\d+", n) for n in names):
            how = "Keras numbers metrics without a name in each model. Give each one a name, AUC(name='auc')"
        return missing(self.monitor, names, when, how, guess=not (unvalidated or numbered))


def _iterations(model: Any) -> int | None:
    """Return the number of steps of a model's optimizer; None without an optimizer."""
    from keras import ops

    _sync(model)
    iterations = getattr(getattr(model, "optimizer", None), "iterations", None)
    return None if iterations is None else int(ops.convert_to_numpy(iterations))


def _fresh(model: Any) -> bool:
    """Return whether a model's optimizer has not made a step."""
    return _iterations(model) == 0


def _sync(model: Any) -> None:
    """Write the state that JAX has trained so far into the model."""
    getattr(model, "jax_state_sync", lambda: None)()


def _no_end() -> int:
    raise NotSupported("Keras cannot resume within an epoch, and this is the last epoch")


def evaluated(model: Any, validation: Any) -> dict[str, float]:
    """Evaluate a model within an epoch, without effect on the means of training metrics or on random numbers."""
    from keras import ops

    _sync(model)
    kept = [(v, ops.convert_to_numpy(v)) for metric in model.metrics for v in metric.variables]
    drawn = saving.capture_randomness(model)
    given = validation if isinstance(validation, tuple) else (validation,)
    logs = model.evaluate(*given, verbose=0, return_dict=True)
    for variable, value in kept:
        variable.assign(value)
    saving.set_randomness(model, drawn)
    return {f"val_{name}": value for name, value in logs.items()}


def plain_names(model: Any, logs: Mapping[str, Any], wanted: Collection[str]) -> dict[str, Any]:
    """Return the logs of an epoch with names that are the same in every trial.

    Keras names a metric without a name after its class: "auc" for the first keras.metrics.AUC() of a process, then
    "auc_1", "auc_2". Here the metrics are numbered within each model. A name that the study reads does not change.

    Raises InvalidInput if a name in `wanted` could be either of two metrics.
    """
    metrics = list(_metrics(model))
    numbers: dict[str, dict[str, int]] = {}  # Keras' name for a class -> metric's name -> its number
    for _, metric in metrics:
        if (found := _numbered(metric)) is not None:
            numbers.setdefault(found[0], {})[metric.name] = found[1]
    plain: dict[str, str] = {}
    for stem, names in numbers.items():
        ordered = sorted(names, key=lambda name: names[name])
        plain |= {name: f"{stem}_{i}" if i else stem for i, name in enumerate(ordered)}
    renamed = {key: key.removesuffix(m.name) + plain[m.name] for key, m in metrics if m.name in plain}
    for name in wanted:
        bare = name.removeprefix("val_")
        either = [m for key, m in metrics if bare in (key, renamed.get(key))]
        if len(either) > 1:
            raise InvalidInput(
                f"{name!r} could be any of {len(either)} metrics of this model, because Keras numbers metrics without "
                f"a name. Give each metric a name, {type(either[0]).__name__}(name='my_{bare}')."
            )
    found_logs = {}
    for key, value in logs.items():
        bare = key.removeprefix("val_")
        new = key.removesuffix(bare) + renamed.get(bare, bare)
        found_logs[key if key in wanted and new not in wanted else new] = value
    return found_logs


def _metrics(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the metrics of a model with their names in its logs.

    Keras has no public list of the names that the metrics of compile(metrics=, weighted_metrics=) have in the logs of
    several outputs. Without these two lists, metrics that Keras numbers would have other names in each trial. A
    weighted metric with the name of another metric is logged as "weighted_" and this name.
    """
    for metric in model.metrics:
        plain, weighted = (getattr(metric, f"_flat_{kind}metrics", ()) for kind in ("", "weighted_"))
        if not plain and not weighted:
            yield metric.name, metric
        seen: set[str] = set()
        for one in filter(None, [*plain, *weighted]):  # a list for each output
            prefix = f"{one.output_name}_" if one.output_name else ""
            for m in one.metrics:
                again = prefix + m.name in seen and any(one is w for w in weighted)
                seen.add(prefix + m.name)
                yield f"{prefix}weighted_{m.name}" if again else prefix + m.name, m


def _numbered(metric: Any) -> tuple[str, int] | None:
    """Return Keras' name for a metric's class, and its number; None if the metric has another name."""
    # as Keras makes a name from that of a class, with functions that it does not export
    words = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", re.sub(r"\W+", "", type(metric).__name__))
    stem = re.sub("([a-z])([A-Z])", r"\1_\2", words).lower()
    found = re.fullmatch(rf"{re.escape(stem)}(?:_([1-9]\d*))?", metric.name)
    return found and (stem, int(found[1] or 0))
