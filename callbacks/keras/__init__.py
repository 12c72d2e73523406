"""The callback for Keras 3, on any of its backends.

It reports after every epoch that measured the metric. The position is the number of trained epochs or of optimizer
steps, in the study's unit. With `every=` it also reports within an epoch, where it can stop but not pause. A pause
saves the whole model and the random state at the end of the epoch. A fit that resumes from it, in any process, equals
one without a pause. Under a TensorFlow strategy, call trial.load_model() within its scope.

At the first pause of a trial, haltune tests the file: it loads it on the CPU, and compares the models. Files of models
without classes of your own that differ only in numbers, such as widths, are tested once. If Keras cannot load the file
(because of a custom loss or a lambda), or if it lacks a setting, the trial does not pause, with one warning. Then use
trial.load_model(make_model), which builds the model by your function.

A resumed fit also restores:

- the trainable layers, and all optimizers that the model holds
- the plain attributes of layers, losses and other callbacks (EarlyStopping, ReduceLROnPlateau, your own), buffers of
  torch, and variables of Keras and random generators in modules that their code names
- the place in the data: the generators of a DataLoader or a PyDataset, the orders of a tf.data dataset that shuffles
  from a seed, and with steps_per_epoch the batches already read

A trial does not pause, with one warning, in these cases:

- An optimizer is not part of the model.
- The program compiles the model again between two fits.
- A fit ends, and another one may follow.
- A tf.data dataset shuffles from a seed and has no place after a pass, as with steps_per_epoch.
- Workers of a PyDataset hold batches for its next epoch.
- A compiled step draws by tf.random.

With TensorFlow, set the seed by keras.utils.set_random_seed: otherwise it shuffles arrays differently in every process.

haltune moves its callback behind all others except those that log, so it saves what they leave at the end of an epoch.
The kept model has the weights that were evaluated: with SwapEMAWeights, the averages.

After an exception Keras calls no callback, so keep the fit inside `with trial:`. Without `every=` no hook runs on
batches, because such a hook would disable JAX's asynchronous dispatch.
"""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

from haltune._utils import generators, own_generators
from haltune._utils.interruption import Interruption
from haltune._utils.learners import first_numbers
from haltune.errors import InvalidInput, NotSupported
from haltune.study import Trial
from haltune.study.fits import weak

from .. import carried
from ..base import Reporting, inherited, of_instance
from ..changes import warn_of_failed
from ..reporter import digest, missing, no_schedule, scalars, two_callbacks
from . import companions, draws, optimizers, places, saving, surroundings
from .averages import Averages
from .data import Data, batches_of_epoch
from .saving import load_best, load_model
from .twins import own_parts

if TYPE_CHECKING:
    from keras.callbacks import Callback as _Base
else:
    _Base = object

__all__ = ["HaltuneCallback", "load_best", "load_model"]


@dataclass
class _Attempt:
    """What the fits of an attempt of a trial have left."""

    number: int
    optimizer: Callable[[], Any] | None = None  # the optimizer of the first fit that trained
    before: int | None = None  # steps of the model before the trial, in a study that counts steps
    layers: weakref.WeakSet[Any] | None = None  # with trained weights, of the last fit
    # layer -> its mark when this attempt first trained it
    starts: weakref.WeakKeyDictionary[Any, str] = field(default_factory=weakref.WeakKeyDictionary)
    end: tuple[Any, Any] | None = None  # of the last fit that another one may follow: see `_end_of_fit`
    generators: list[tuple[Any, Any]] = field(default_factory=list)  # of the program, and their states at that end
    watch: companions.Watch | None = None  # of the last fit
    data: Data | None = None


_ATTEMPTS: weakref.WeakKeyDictionary[Trial, _Attempt] = weakref.WeakKeyDictionary()
# call of fit that was repeated with the same state -> whether its callbacks were the same; None: with another state
_REPEATED: dict[Any, bool | None] = {}
# layer -> the trial that trained it last, by `carried.who`, its number, and a mark of what it left
_TRAINED: weakref.WeakKeyDictionary[Any, tuple[str, int, str]] = weakref.WeakKeyDictionary()
_OURS = 2  # value of model.stop_training: true, but distinct from the True of other callbacks


class HaltuneCallback(Reporting, _Base):  # type: ignore[misc]
    """Callback that reports the goal's metric to a trial, and stops or pauses the fit when the policy decides so.

    Its place among the callbacks does not matter: it is called after all others. Keras' TensorBoard and CSVLogger and
    the callbacks of tracking services are called after it. With the other metrics they log haltune_verdict (0
    continues, 1 paused, 2 stopped), haltune_p_win and haltune_epochs_saved.

    Args:
        trial: The trial, from `study.ask()` or `for trial in study`.
        monitor: The name of the metric in Keras' logs. Default: None, the goal's.
        verbose: Print a line for every report. Default: False.
        record: "all" stores all scalars of the epoch's logs with the report, "monitor" only this one. Default: "all".
        every: Number of batches between reports within an epoch. With steps_per_execution, the report comes after the
            first step that reaches each multiple. Default: None, report after epochs only.
        validation: The data that `every` evaluates: (x, y), a dataset, or any input of model.evaluate. The metrics have
            the names of an epoch's logs, "val_loss". Default: None, use the training metrics of the epoch so far.

    Raises:
        InvalidInput: If `trial` is not a trial, if the metric is a vector, was never logged or is always 0 because the
            model's own step does not update it, or if a resumed trial trains another model than that of
            trial.load_model().
        NotSupported: If the fit has several processes, or if that of a resumed trial does not continue its model.

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
    # Keras asks for them before it calls `set_model`
    on_batch_end, on_train_batch_end, on_test_batch_end, on_predict_batch_end = (inherited() for _ in range(4))
    params: Any = None  # set by Keras; a CallbackList without parameters sets none

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
        tied = {"on_train_batch_end", "_averages", "_watch", "_data", "_step", "_training", "_called"}
        return {k: v for k, v in super().__getstate__().items() if k not in tied}

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
        self._in_epoch = self._validated = False  # within an epoch; it has validated
        self._starts = False  # the next epoch is the first of a fit, in a study that counts epochs
        self._of: int | str | None = None  # the trial whose weights the model has at the start of the fit
        self._called: Any = None  # where the program calls this fit
        self._within_fit = False  # this fit has set the model
        # a mark of all weights in the last evaluation of the epoch, and whether recurrent layers carried something
        self._evaluated: tuple[str, bool] | None = None
        self._changed: Mapping[str, Any] | None = None  # states that had changed when that evaluation started
        # when that evaluation started, the metrics that the epoch's training had not updated
        self._unset: Collection[str] | None = None
        self._tested: Collection[str] = ()  # names of the metrics of the last evaluation
        self._averages: Averages | None = None  # that other callbacks hold, from the first epoch of the fit on
        self._epoch = self._reported_batch = 0  # the present epoch, from 0; batches in it at its last report
        self._updates: int | None = None  # of the model's optimizers, when the fit started
        self._due: int | None = None  # the epoch with which a resumed fit has to start
        self._loaded = ""  # a mark of the model that the trial resumes with

    # Keras gives every callback its model. The reference is weak, because after an exception no hook can drop it.

    @of_instance
    def set_model(self, model: Any) -> None:
        self._model_ref = weakref.ref(model)
        # before the hooks of a fit's start, which set numbers and the model as if it started
        attempt, callbacks = _attempt(self.trial), self._others(surroundings.calling_list(self))
        self._called = surroundings.place_of_fit()
        self._within_fit = self._called is not None
        owners = places.owners_in(model, callbacks)
        self._averages = None
        self._watch = attempt.watch = companions.Watch(self.trial.id, owners, attempt.watch)
        self._data = attempt.data = self._data_of_fit(attempt.data)
        end, attempt.end = attempt.end, None
        if end is not None:
            same, now = callbacks.keys() <= self._watch.same, self._end_of_fit()
            repeated = not self._data.read_before and now[0] == end[0] and (not same or now[1] == end[1])
            repeated &= all(generators.of_generator(one) == state for one, state in attempt.generators)
            _REPEATED[self._called] = same if repeated and _REPEATED.get(self._called, same) == same else None
        self._more = None
        if self._resumed is not None and attempt.optimizer is None and not self._reporter.ended and not _fresh(model):
            self._more = saving.more_of(self._resumed)
            # the program may have changed what it has loaded, such as by weights from a pretraining
            self._loaded = _mark_all(model) if self._more is None else self._more["mark"]
            if self._more is not None and not self._more["within"]:
                self._continue(self._resumed, self._more)

    def _heed_backup(self, listed: list[Any]) -> None:
        """Let the trial continue from its own checkpoint, if BackupAndRestore has loaded another state."""
        if surroundings.has_backup(listed, self.model):
            if self.trial.epoch == 0:
                surroundings.refuse_backup(self.model, self.trial)
                self._reporter.advise(
                    "BackupAndRestore continues this trial without its random numbers and without the state of other "
                    "callbacks, so it differs from an uninterrupted training. Remove it: trial.load_model() and "
                    "initial_epoch=trial.epoch do its work.",
                    "backup",
                )
            elif self._resumed is not None and self._loaded:
                saving.load_again(self.model, self._resumed)
                # Keras starts at the backup's epoch otherwise, whatever initial_epoch the program gives
                self.model._initial_epoch = None

    def _data_of_fit(self, earlier: Data | None) -> Data:
        trial = self.trial
        return Data(trial.id, (carried.who(trial), trial.attempt), earlier, self._validation)

    def _others(self, listed: list[Any]) -> dict[str, Any]:
        return places.callbacks_in(listed, lambda c: c is self or surroundings.is_listener(c))

    @property
    def model(self) -> Any:
        """The model during a fit; otherwise None."""
        ref = self.__dict__.get("_model_ref")
        return ref() if ref else None

    # the hooks, in Keras' order

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        surroundings.refuse_many_processes()
        listed = surroundings.calling_list(self)
        if sum(isinstance(c, HaltuneCallback) for c in listed) > 1:  # one object in two places, too
            raise two_callbacks("callbacks=[...]")
        if surroundings.moved_last(listed, self):
            return  # Keras calls it again, after the others
        within, self._within_fit = self._within_fit, False
        if not within and (place := surroundings.place_of_fit()) is not None:
            # the program has made a CallbackList before the fit, perhaps for several: it has neither data nor epochs
            self._called, (fitted, self.params) = place, surroundings.plan_of_fit()
            self._model_ref = weakref.ref(fitted)
            self._data = _attempt(self.trial).data = self._data_of_fit(None)
        reporter, params, model = self._reporter, self.params or {}, self.model
        self._in_epoch, self._last_logs = False, None
        epochs, steps = params.get("epochs"), params.get("steps")
        if self.trial.unit == "step":
            epochs = optimizers.planned_steps(model, epochs, steps)
        self._heed_backup(listed)
        self._of = self.trial.signer(_mark(model))
        if reporter.silent and (how := surroundings.lacks_validation(self.monitor, self.trial, listed)):
            raise InvalidInput(
                f"The metric {self.monitor!r} is one of validations, but this fit validates in no epoch. {how}; or "
                "name a training metric, HaltuneCallback(trial, monitor='name')."
            )
        refuse_shadowed_loss(model, self.monitor)
        self.trial.before_end(None)
        reporter.begin(epochs, model, of=self._of)
        attempt = _attempt(self.trial)
        if not reporter.ended:
            self._refuse_trained_layers(attempt)
            carried.warn_of_own(self.trial, self._others(listed).values(), self.trial.epoch == 0)
        self._starts = self.trial.unit == "epoch"  # Keras does not show its first epoch before it starts
        if reporter.ended or attempt.optimizer is not None:  # an earlier fit of it has resumed, or has ended the trial
            self._resumed, self._proven = None, False
        if self.trial.epoch == 0:
            for sentence in surroundings.advice(self.trial, listed, steps):
                reporter.advise(sentence)
            surroundings.advise_best(reporter, listed)
        self._watch.hooks_were_called()
        self._step, more, self._more = companions.Compiled.of(model), self._more, None
        if self._resumed is not None and not _fresh(model):
            if more is not None:
                self._step.numbers = more["compiled"]
            if more is None or more["within"]:  # here, because the setup of a fit draws numbers
                self._continue(self._resumed, more)
        if attempt.before is None and self.trial.unit == "step":
            begun = int(self.trial.epoch)
            # without a file of haltune, what a trial continues is its own, as from a backup of Keras
            own = self._resumed is None and (begun or surroundings.has_backup(listed, model))
            attempt.before = 0 if own else max(0, optimizers.steps_before(model) - begun)
        self._training, self._updates = optimizers.Training(model), optimizers.updates_of(model)
        by_epochs = any(type(c).__name__ == "LearningRateScheduler" for c in listed)
        self._rates = [surroundings.rate_of(model)] if by_epochs else []
        reporter.schedule = lambda: surroundings.still_to_fall(self.model, params, self._rates)
        reporter.defer(Interruption.within("fit", "keras."))
        if reporter.verdict is not None:
            model.stop_training |= _OURS

    def _continue(self, path: str, more: Mapping[str, Any] | None) -> None:
        """Restore the state of the fit from a pause's file, whose model is loaded already."""
        model, reporter = self.model, self._reporter
        if more is not None and more["within"]:
            self._refuse_other_end(more["ends"])
            self._due = more.get("epoch")
        self.trial.restores_randomness(self._watch.give_back)
        try:
            if more is not None:
                if self._loaded != _mark_all(model):
                    saving.load_again(model, path)
                apart = more["apart"]
                failed = self._data.put_back(more["data"], lambda state: draws.set_randomness(model, state), apart)
                failed += self._watch.put_back(more["attributes"], apart)
                warn_of_failed(self.trial, *failed)
                orders = self._data.put_orders_back(more["data"])
                warn_of_failed(self.trial, *orders, advice="Build the dataset within the loop over trials, with seed=.")
                for name, variables in companions.of_metrics(model).items():
                    companions.set_values(variables, more["metrics"].get(name, []))
                companions.reset_unbuilt(model)
                companions.set_values(companions.carried(model), more["carried"])
                optimizers.add_batches(model, more["batches"] - optimizers.batches_of(model))
                if more["repeated"] is not None:
                    _REPEATED.setdefault(self._called, more["repeated"])
            saving.restore_randomness(model, path)  # last, because reading data again draws numbers
        except (OSError, BadZipFile) as error:  # deleted since the model was loaded
            why = f"the random state in {path} cannot be read ({error})"
            reporter.warn_once("random", f"{why}, so dropout and shuffling differ from an uninterrupted training")

    def _refuse_other_end(self, before: int | None) -> None:
        """Raise NotSupported if the fit of the pause ended at another epoch, and the end or start of a fit matters."""
        ends, model = (self.params or {}).get("epochs"), self.model
        acts = surroundings.at_ends_of_fits(self._others(surroundings.calling_list(self)), model)
        if self._data.within:
            acts.append("steps_per_epoch")
        if ends != before and acts:
            raise NotSupported(
                f"Trial {self.trial.id} paused within a fit that ends at epoch {before}, and this one ends at epoch "
                f"{ends}, so what happens at the start or the end of a fit ({acts[0]}) would come at other epochs than "
                f"in a training without a pause. Call model.fit(..., epochs={before}) here, or train in one fit."
            )

    def _refuse_loop_without_start(self) -> None:
        """Raise InvalidInput in a loop of the program's own that has not called on_train_begin."""
        if "_step" not in vars(self):
            raise InvalidInput(
                "This loop does not call on_train_begin. Call the hooks of the callbacks by "
                "keras.callbacks.CallbackList(callbacks, model=model): on_train_begin(), on_epoch_begin(epoch), "
                "on_epoch_end(epoch, logs), on_train_end(). End the loop if model.stop_training is true."
            )

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._refuse_loop_without_start()
        model = self.model
        self._in_epoch, self._validated, self._epoch, self._reported_batch = True, False, epoch, 0
        self._evaluated = self._changed = self._unset = None
        resumed, self._resumed = self._resumed, None
        starts = self.trial.unit == "step" or epoch >= self.trial.epoch
        if resumed is not None and starts and _fresh(model):
            raise NotSupported(
                f"Trial {self.trial.id} continues after {self.trial.unit} {self.trial.epoch:g}, but the optimizer of "
                "this model has not made a step. Start with model = trial.load_model() or make_model(**trial.config), "
                "and do not compile the loaded model again."
            )
        if resumed is not None and not starts and epoch == 0 and not _fresh(model):
            raise NotSupported(
                f"Trial {self.trial.id} continues after epoch {self.trial.epoch:g}, and this fit trains a model that "
                "has been trained, but counts from epoch 0. Call model.fit(..., initial_epoch=trial.epoch)."
            )
        due, self._due = self._due, None
        others = [other for other in surroundings.calling_list(self) if other is not self]
        if due not in (None, epoch) and (of := surroundings.reads_epochs(others)):
            steps = (self.params or {}).get("steps")
            by_steps = self.trial.unit == "step" and steps and self.trial.epoch == due * steps
            raise NotSupported(
                f"Trial {self.trial.id} paused before epoch {due} of its fit, and this one starts with epoch {epoch}, "
                f"so what depends on the epoch ({of}) would differ from a training without a pause. Call "
                f"model.fit(..., initial_epoch={f'trial.step // {steps}' if by_steps else due})."
            )
        if self._starts:
            self._starts = False
            self._reporter.starts(self._position(epoch))
        self.trial.begins_epoch(epoch + 1)  # after an exception Keras calls no callback
        self._refuse_new_model(epoch)
        left = self._watch.epoch_begins(carried.who(self.trial))
        if left is not None and self.trial.epoch == 0 and _attempt(self.trial).optimizer is None:
            self._warn_of_left(left, others)
        self._data.epoch_begins(lambda: draws.capture_randomness(model))
        self._averages = self._averages or Averages(model, self._others(others))
        if (name := self._step.epoch_begins()) is not None:
            self._reporter.advise(
                f"{self._watch.called(name)} changes between epochs, but the compiled step has the value of its first "
                "epoch, so the change has no effect. Make it a keras.Variable, or call compile(run_eagerly=True).",
                "compiled",
            )

    def _warn_of_left(self, name: str, others: list[Any]) -> None:
        """Warn that a trial starts with a variable that another has changed, unless a hook on batches may set it."""
        hooks = ("on_train_batch_begin", "on_batch_begin")
        if not any(surroundings.overrides(one, *hooks) for one in self._others(others).values()):
            self.trial.warn(
                f"Another training has changed {name}, and this one starts with the change. If it affects a training "
                "or a value, make it for each trial, or set it when a trial starts.",
                "left",
                once=True,
            )

    def _refuse_new_model(self, epoch: int) -> None:
        """Raise NotSupported if an untrained model starts where another one of this attempt ended."""
        trial, model, attempt = self.trial, self.model, _attempt(self.trial)
        layers = weakref.WeakSet(layer for layer in _own_layers(model) if layer.trainable_weights)
        new = attempt.layers is not None and attempt.layers.isdisjoint(layers) and self._of is None
        if new and trial.unit == "epoch" and epoch >= trial.epoch > 0 and _fresh(model):
            raise NotSupported(
                f"Trial {trial.id} has trained another model to epoch {trial.epoch:g}, and this fit starts an "
                "untrained one there. If the training starts again, fit with initial_epoch=0. If it continues, fit the "
                "model of trial.load_model()."
            )
        attempt.layers = layers

    def _refuse_trained_layers(self, attempt: _Attempt) -> None:
        """Raise NotSupported if a part of the model is as another trial has left it, such as a base that all share."""
        model, own = self.model, carried.who(self.trial)
        for layer in _own_layers(model):
            of, trial, left = _TRAINED.get(layer, (own, 0, ""))
            mark = _mark(model, layer.weights) if of != own or layer not in attempt.starts else ""
            if of != own and mark == left:
                whose = "another fold of it" if trial == self.trial.id else f"trial {trial}"
                raise NotSupported(
                    f"This fit of trial {self.trial.id} starts with the layer {layer.name!r} as {whose} has left it, "
                    "so it would continue that training. Build all layers for each training, within the loop, or reset "
                    "their weights. If they must not train, as in a teacher, set trainable = False before compile."
                )
            attempt.starts.setdefault(layer, mark)

    def _note_trained_layers(self, attempt: _Attempt) -> None:
        for layer in attempt.layers or ():
            mark = _mark(self.model, layer.weights)
            if mark != attempt.starts.get(layer, mark):
                _TRAINED[layer] = carried.who(self.trial), self.trial.id, mark

    def on_test_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        self._reporter.clock.validating()
        if self._in_epoch:
            self._unset = unset_metrics(self.model, "train_step")  # the evaluation resets all
            self._evaluated = _mark(self.model, self.model.weights), companions.carries(self.model)
            if own_parts(self.model):
                self._changed = self._watch.changes()[0]

    def on_test_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._reporter.clock.validated()
        self._validated = self._in_epoch
        if self._in_epoch:
            self._step.steps_end()
            refuse_unset(self.model, "test_step", self._names, logs or {})
        self._tested = {f"val_{name}" for name in logs or {}}

    def _batch_ends(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Hook on_train_batch_end, used with every=."""
        batches, reporter = (self.params or {}).get("steps"), self._reporter
        every = self._every or 1
        if (batch + 1) // every == self._reported_batch // every or (batches is not None and batch + 1 >= batches):
            return  # between two multiples, or the report comes at the end of the epoch
        self._reported_batch = batch + 1  # the first at or after a multiple: Keras may train several batches at once
        if batches is None and self.trial.unit == "epoch":
            raise InvalidInput(
                "every= in a study that counts epochs needs the number of batches, which Keras does not know in the "
                "first epoch of these data. Set model.fit(..., steps_per_epoch=), or make the study with max_steps=."
            )
        if self._validation is not None:
            reporter.clock.validating()
            by = surroundings.averagers(surroundings.calling_list(self))
            logs = evaluated(self.model, self._validation, by, self._names)
            self._tested = {*logs}
            reporter.clock.validated()
        named = plain_names(self.model, logs or {}, self._names)
        if self.monitor in named:
            at_last = self._epoch + 1 >= (self.params or {}).get("epochs", math.inf)
            where = self._position(self._epoch + (batch + 1) / (batches or 1), batch + 1)
            reporter.report(named[self.monitor], where, scalars(named), need=_no_end if at_last else None)
            if reporter.keeps_epoch:
                self._keep(reporter.keep)
        elif self._validation is None and self.monitor.startswith("val_"):
            reporter.advise(
                f"HaltuneCallback(trial, every={every}) reports nothing within an epoch, because {self.monitor!r} is a "
                "metric of validations. Give it validation=(x, y) too, or name a training metric by monitor=.",
                "every",
            )
        if reporter.stopping and not reporter.pausing:
            self._keep_last()
            self.model.stop_training |= _OURS
        elif reporter.pausing:
            reporter.advise("Keras cannot resume within an epoch. Trials pause at the end of the epoch.", "within")

    @property
    def _names(self) -> tuple[str, ...]:
        """The names of the metrics that the study reads."""
        return self.monitor, *self._reporter.measures.others

    def _position(self, epochs: float, batches: int = 0) -> float:
        """batches: of the present epoch that are not counted yet."""
        if self.trial.unit == "epoch":
            return self._reporter.position(epoch=epochs)
        optimizers.sync(self.model)
        made = optimizers.steps_of(self.model, batches) - (_attempt(self.trial).before or 0)
        return self._reporter.position(step=made)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._refuse_loop_without_start()
        reporter, model, params = self._reporter, self.model, self.params or {}
        trial, monitor = reporter.trial, reporter.metric
        optimizers.add_batches(model, batches_of_epoch(params.get("steps")))
        self._step.epoch_ends()
        trained = self._position(epoch + 1)
        self._in_epoch = False
        trial.begins_epoch(None)
        if int(model.stop_training) & _OURS:
            return  # the fit was stopped within the epoch
        attempt = _attempt(trial)
        if attempt.optimizer is None:
            attempt.optimizer = weak(getattr(model, "optimizer", None))
        trial.sign(_mark(model))  # a ModelCheckpoint may save this epoch
        if self._averages is not None and self._by_callback:
            self._averages.epoch_ends(model)
        if self._rates:
            self._rates.append(surroundings.rate_of(model))
        names = self._names
        logs = {} if logs is None else logs
        of_step = {name: value for name, value in logs.items() if not name.startswith("val_")}
        refuse_unset(model, "train_step", names, of_step, self._unset)
        named = plain_names(model, logs, names)
        self._last_logs = list(named)
        if self._reported_batch and trial.epoch == trained:
            pass  # with its last batch, of data whose length is not known
        elif monitor in named:
            reporter.look_ahead(trained)
            reporter.report(named[monitor], trained, scalars(named), updates=self._updates_made(model))
        elif reporter.silent and (self._validated or not monitor.startswith("val_")):
            # with validation_freq > 1, val_ names are absent in some epochs; other absent names are misspelt
            raise self._missing("in the first epoch that should log it")
        reporter.heed(trained)
        self._heed_others()
        reporter.trained = min(trained, trial.horizon or trained)
        if trial.epoch == reporter.trained:
            if reporter.keeps_epoch:
                self._keep(reporter.keep)
            if reporter.saves:
                self._pause()
        # afterwards Keras averages weights, and EarlyStopping restores its own
        follows = not reporter.over and self._another_follows()
        if follows and reporter.trained != trial.epoch:
            trial.before_end(self._keep_last)  # warns if it cannot, unless another fit validates later
        elif (reporter.over or model.stop_training or epoch + 1 == params.get("epochs")) and not reporter.saves:
            self._keep_last()
        if trackers := [c for c in surroundings.calling_list(self) if surroundings.is_tracker(c)]:
            logs.update(surroundings.tracked(reporter, epoch + 1, trackers))
        if reporter.over:
            model.stop_training |= _OURS
        elif follows:
            attempt.end, attempt.generators = self._end_of_fit(), own_generators.in_running()

    def _keep_last(self) -> None:
        if self._reporter.keeps:
            self._keep(self._reporter.save)

    def _updates_made(self, model: Any) -> int | None:
        """Return the updates of this fit, if the model's optimizers count them."""
        made = optimizers.updates_of(model)
        if made is None or self._updates is None or _compiled_again(self.trial, model):
            return None
        return made - self._updates or None

    def _end_of_fit(self) -> tuple[Any, Any]:
        """Return all that the program may change until its next fit: of the model, of callbacks."""
        model, marks = self.model, self._watch.marks()
        of_callbacks = {path: marks.pop(path) for path in [*marks] if not path.startswith(places.OF_MODEL)}
        flags, drawn = [w.trainable for w in model.weights], draws.capture_randomness(model)
        optimizer = weak(getattr(model, "optimizer", None))
        return (self._called, optimizer, flags, _mark_all(model), drawn, marks), of_callbacks

    def _another_follows(self) -> bool:
        """Return whether the present epoch is the last of this fit, and the program has to fit again."""
        last = self._epoch + 1 == (self.params or {}).get("epochs")
        trained = self._reporter.trained or self.trial.epoch
        return last and self._called is not None and trained < (self.trial.horizon or math.inf)

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        reporter = self._reporter
        self._heed_others()
        self.model.stop_training = bool(self.model.stop_training)
        self._note_trained_layers(_attempt(self.trial))
        carried.leave(self._others(surroundings.calling_list(self)).values())
        self._watch.leaves(carried.who(self.trial))
        silent = self._last_logs is not None and reporter.silent
        silent &= not (self._another_follows() and surroundings.validates_rarely())
        if "epochs" not in (self.params or {}) and not silent and not reporter.saves:
            self._keep_last()  # in a loop that calls the hooks by hand, any epoch may be the last
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

    def _keep(self, how: Callable[..., bool]) -> None:
        """Save the model with the weights that were evaluated."""
        model = self.model
        optimizers.sync(model)
        with surroundings.averaged(surroundings.calling_list(self)):
            if self._changed_since_evaluated():
                self._reporter.advise(
                    "The model of an epoch is not the one that was evaluated, so no model is kept: it would not have "
                    "the value of its trial. A callback changes its weights afterwards, or a stateful layer starts the "
                    "evaluation with what it carries. Change them, or reset the layer, before the evaluation.",
                    "kept",
                )
                return
            if average := self._average():
                self._reporter.advise(
                    f"A callback logs {self.monitor!r}, and {average}, an average of the weights, changes in "
                    "training. So no model is kept: it would not have the value of its trial. Put the average into "
                    "the model in on_test_begin, and the trained weights back in on_epoch_begin.",
                    "kept",
                )
                return
            if self._by_callback and (other := self._watch.other_model()) is not None:
                self._reporter.advise(
                    f"A callback logs {self.monitor!r}, and {other}, a model apart from that of the fit, changes in "
                    "training. So no model is kept: it would not have the value of its trial. Make it an attribute of "
                    "the model that is fitted.",
                    "kept",
                )
                return
            try:
                changed = self._watch.changes()[0]
                before = changed if self._changed is None else self._changed
                # an evaluation without its losses has the same metrics, and most layers draw in training alone
                without = () if self.monitor.endswith("loss") else ("loss ",)
                read = [p for p, state in before.items() if not (p.startswith(without) or places.is_drawn(p, state))]
                suffix = saving.kept_suffix(self.trial, model, changed, read)
            except NotSupported as error:
                self._reporter.advise(
                    f"The model of trial {self.trial.id}, the best so far, is not kept: {error}", "kept"
                )
            else:
                how(lambda path: saving.write(model, path), suffix)

    @property
    def _by_callback(self) -> bool:
        """True if the value is that of a validation which a callback makes."""
        return self.monitor.startswith("val_") and self.monitor not in self._tested

    def _average(self) -> str | None:
        """Return the name of an average that a callback holds, if the value may be that of it."""
        if self._averages is None or not self._by_callback:
            return None
        return self._averages.changed(self.model, self._others(surroundings.calling_list(self)))

    def _changed_since_evaluated(self) -> bool:
        return self._evaluated is not None and self._evaluated != (_mark(self.model, self.model.weights), False)

    def _pause(self) -> None:
        """Save the state of the training."""
        model, trial, reporter = self.model, self.trial, self._reporter

        def write(path: Path) -> None:
            if _compiled_again(trial, model):
                raise NotSupported(
                    "its program compiles the model again after it has trained, and would do so in a resumed fit, "
                    "which loses the optimizer's state"
                )
            within, repeated = not self._another_follows(), _REPEATED.get(self._called)
            if not within and repeated is None:
                raise NotSupported(
                    "this fit ends before max_epochs, and the program may change the model, a callback or random "
                    "numbers before another fit. Train in one fit, and make such changes in a callback"
                )
            self._training.check(model)
            apart = companions.Apart(model)
            of_callbacks = within or bool(repeated)
            changed, unread = self._watch.changes(within, of_callbacks, apart, lasting=True)
            if unread:
                raise NotSupported(unread[0])
            more = {
                "attributes": changed,
                "within": within,  # a fit, whose hooks of the start have been called
                "ends": (self.params or {}).get("epochs"),  # that fit
                "epoch": self._epoch + 1,  # with which it continues
                "mark": _mark_all(model),
                "data": self._data.state(within, apart),
                "apart": apart.arrays,
                "metrics": {name: companions.values_of(of) for name, of in companions.of_metrics(model).items()},
                "carried": companions.values_of(companions.carried(model)),
                "batches": optimizers.batches_of(model),
                "compiled": self._step.numbers,
                "repeated": repeated,
            }
            saving.check_optimizer(model, trial)
            if draws.draws_by_tensorflow(model):
                raise NotSupported(
                    "its compiled step draws by tf.random, whose place TensorFlow does not give. Draw by keras.random "
                    "with a keras.random.SeedGenerator"
                )
            if self._proven:
                saving.write(model, path, more)
            else:
                saving.write_tried(model, path, trial, more)

        other = bool(surroundings.averagers(surroundings.calling_list(self))) or self._changed_since_evaluated()
        other |= self._average() is not None
        reporter.save(write, saving.suffix(trial), resumes_only=other)

    def _missing(self, when: str) -> Exception:
        names = self._last_logs or []
        unvalidated = self.monitor.startswith("val_") and not any(n.startswith("val_") for n in names)
        rare = surroundings.lacks_validation(self.monitor, self.trial) if unvalidated else None
        how = rare or "Give model.fit validation data" if unvalidated else "Compute it, model.compile(metrics=[...])"
        if numbered := any(re.fullmatch(rf"{re.escape(self.monitor)}_\d+", n) for n in names):
            how = "Keras numbers metrics without a name in each model. Give each one a name, AUC(name='auc')"
        elif numbered := re.sub(r"_\d+", "", self.monitor) in [re.sub(r"_\d+", "", name) for name in names]:
            how = "Keras numbers layers without a name in each process. Name the output layers, Dense(1, name='price')"
        return missing(self.monitor, names, when, how, guess=not (unvalidated or numbered))


def _attempt(trial: Trial) -> _Attempt:
    """Return the record of a trial's present attempt."""
    found = _ATTEMPTS.get(trial)
    if found is None or found.number != trial.attempt:
        # a fit may go on where its trial has started again
        found = _ATTEMPTS[trial] = _Attempt(trial.attempt, before=None if found is None else found.before)
    return found


def _compiled_again(trial: Trial, model: Any) -> bool:
    """Return whether a model was compiled in this attempt after an epoch had trained."""
    first = _attempt(trial).optimizer
    return first is not None and first() is not getattr(model, "optimizer", None)


def _fresh(model: Any) -> bool:
    """Return whether no optimizer of a model has made a step."""
    return optimizers.updates_of(model) == 0


def _own_layers(model: Any) -> list[Any]:
    """Return the layers of a model, and of the models in it, that have weights."""
    return [layer for layer in optimizers.layers_of(model) if layer.weights and not hasattr(layer, "layers")]


def _mark(model: Any, weights: list[Any] | None = None) -> str:
    """Return a mark of weights, from the first numbers of each. Default: None, the trained ones."""
    optimizers.sync(model)
    return digest(first_numbers(model.trainable_weights if weights is None else weights))


def _mark_all(model: Any) -> str:
    """Return a mark of all weights and of the optimizers."""
    of_optimizers = [v for one in optimizers.optimizers_of(model).values() for v in one.variables]
    return _mark(model, [*model.weights, *of_optimizers])


def _no_end() -> int:
    raise NotSupported("Keras cannot resume within an epoch, and this is the last epoch")


def evaluated(model: Any, validation: Any, averagers: list[Any], names: Collection[str]) -> dict[str, float]:
    """Evaluate a model within an epoch, without effect on the means of training metrics or on random numbers.

    averagers: callbacks that put averaged weights into the model while it is evaluated. names: see `refuse_unset`.
    """
    from keras import ops

    optimizers.sync(model)
    kept = [(v, ops.convert_to_numpy(v)) for of in companions.of_metrics(model).values() for v in of]
    drawn = draws.capture_randomness(model)
    given = validation if isinstance(validation, tuple) else (validation,)
    logs = model.evaluate(*given, callbacks=averagers, verbose=0, return_dict=True)
    refuse_unset(model, "test_step", names, logs)
    for variable, value in kept:
        variable.assign(value)
    draws.set_randomness(model, drawn)
    return {f"val_{name}": value for name, value in logs.items()}


def plain_names(model: Any, logs: Mapping[str, Any], wanted: Collection[str]) -> dict[str, Any]:
    """Return the logs of an epoch with names that are the same in every trial.

    Keras names a metric without a name after its class: "auc" for the first keras.metrics.AUC() of a process, then
    "auc_1", "auc_2". Here the metrics are numbered within each model. A name that the study reads does not change.

    Raises InvalidInput if a name in `wanted` could be either of two metrics.
    """
    metrics = _metrics(model)
    numbers: dict[str, dict[str, int]] = {}  # Keras' name for a class -> metric's name -> its number
    for _, metric in metrics:
        if (found := companions.numbered(metric)) is not None:
            numbers.setdefault(found[0], {})[metric.name] = found[1]
    plain: dict[str, str] = {}
    for stem, names in numbers.items():
        ordered = sorted(names, key=lambda name: names[name])
        plain |= {name: f"{stem}_{i}" if i else stem for i, name in enumerate(ordered)}
    renamed = {key: key.removesuffix(m.name) + plain[m.name] for key, m in metrics if m.name in plain}
    for name in wanted:
        bare = name.removeprefix("val_")
        either = [m for key, m in metrics if bare in (key, renamed.get(key))]
        if len(either) > 1 and any(map(companions.numbered, either)):
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


def refuse_shadowed_loss(model: Any, monitor: str) -> None:
    """Raise InvalidInput if Keras would log the model's own metric as "val_loss", which no evaluation updates."""
    kind = type(model)
    own = [m for m in model.metrics if m.name == "loss"]
    listed = not kind.metrics.fget.__module__.startswith("keras.")
    shadows = len(own) > 1 or (bool(own) and listed)
    if monitor == "val_loss" and shadows and kind.test_step.__module__.startswith("keras."):
        raise InvalidInput(
            f"'val_loss' would be 0 in each epoch: Keras logs the model's own metric {type(own[-1]).__name__}"
            "(name='loss') in place of the loss of compile(), and only train_step updates it. Give it another name, "
            "or update it in a test_step of the model."
        )


def unset_metrics(model: Any, step: str) -> set[str]:
    """Return the names in the logs of means that no batch has updated; none if `step` of the model is Keras' own.

    step: "train_step" or "test_step", which has made these batches.
    """
    made = getattr(type(model), step, None)
    if made is None or made.__module__.startswith("keras."):
        return set()
    from keras import ops
    from keras.metrics import Mean

    optimizers.sync(model)
    means = [(name, metric) for name, metric in _metrics(model) if isinstance(metric, Mean)]
    return {name for name, mean in means if not ops.convert_to_numpy(mean.count).any()}


def refuse_unset(
    model: Any, step: str, names: Collection[str], logs: Mapping[str, Any], unset: Collection[str] | None = None
) -> None:
    """Raise InvalidInput if Keras has logged the 0 of a metric that `step` never updates, in place of what it returns.

    If a step returns the names of the model's metrics, Keras logs these metrics. One of them is Keras' own "loss",
    which only Keras' own steps update.

    names: those that the study reads. logs: of the batches that `step` has made. unset: of `unset_metrics` after them.
    """
    prefix = "val_" if step == "test_step" else ""
    own = {name for name in logs if not name.startswith("learning_rate")}  # which LearningRateScheduler adds
    for name in unset_metrics(model, step) if unset is None else unset:
        if prefix + name in names and logs.get(name) == 0 and own == {*model.get_metrics_result()}:
            raise InvalidInput(
                f"'{prefix}{name}' would be 0 in each epoch: Keras logs the model's metric {name!r} in place of what "
                f"{step} returns, and {step} does not update it. Return another name, or update it there: "
                f"for m in self.metrics: if m.name == {name!r}: m.update_state({name})."
            )


def _metrics(model: Any) -> list[tuple[str, Any]]:
    """Return the metrics of a model with their names in its logs.

    Keras has no public list of the names that the metrics of compile(metrics=, weighted_metrics=) have in the logs of
    several outputs. Without these two lists, metrics that Keras numbers would have other names in each trial. A
    weighted metric with the name of another metric is logged as "weighted_" and this name.
    """
    found = []
    for metric in model.metrics:
        plain, weighted = (getattr(metric, f"_flat_{kind}metrics", ()) for kind in ("", "weighted_"))
        if not plain and not weighted:
            found.append((metric.name, metric))
        seen: set[str] = set()
        for one in filter(None, [*plain, *weighted]):  # a list for each output
            prefix = f"{one.output_name}_" if one.output_name else ""
            for m in one.metrics:
                again = prefix + m.name in seen and any(one is w for w in weighted)
                seen.add(prefix + m.name)
                found.append((f"{prefix}weighted_{m.name}" if again else prefix + m.name, m))
    return found
