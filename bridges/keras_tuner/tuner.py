"""haltune.keras_tuner.Tuner: a keras_tuner.Tuner whose fits haltune stops, pauses and goes on with."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from haltune._utils.signals import interrupts
from haltune.callbacks.keras import HaltuneCallback
from haltune.errors import InvalidInput, NotSupported
from haltune.errors.foreign_words import answering
from haltune.log.policy import Policy
from haltune.study import Study, Trial

from .library import keras, keras_tuner, tuner_utils
from .oracle import Oracle
from .spaces import explored


class Tuner(keras_tuner.Tuner):  # type: ignore[misc, unused-ignore]
    """Searches the hyperparameters of a Keras model; runs that lose end early, promoted ones go on where they were.

    In the place of keras_tuner.RandomSearch, BayesianOptimization or Hyperband, with their methods: search,
    get_best_models, get_best_hyperparameters, results_summary. The study lies in the project's folder, haltune.db: a
    program that is started again goes on with it, and haltune's page and commands open it.

    Args:
        hypermodel: build(hp), which returns a compiled model, or a keras_tuner.HyperModel. Default: None, for a class
            derived from this one whose run_trial(trial) returns the value.
        objective: What fit logs after every epoch: "val_accuracy", or keras_tuner.Objective("val_f1", "max").
            Default: None, which is refused: it must be said.
        max_epochs: Epochs of a full training. Default: None, which is refused likewise.
        max_trials: Configurations that are begun. Default: 10.
        min_epochs: Epochs before which no trial is stopped or paused, as EarlyStopping's start_from_epoch. Default: 0.
        policy: What decides. Default: None, haltune.policies.MultiFidelity().
        seed: Of all randomness. Default: None, drawn and recorded.
        store: Where the study is kept, as Study takes it. Default: None, haltune.db in the project's folder.
        learn_from: Earlier studies, as Study takes them. Default: none.
        verbose: Whether haltune says what becomes of each trial, 0 or 1. Default: 1.
        hyperparameters: As keras_tuner.RandomSearch has it: known or fixed beforehand. Default: None.
        tune_new_entries: As there. Default: True.
        allow_new_entries: As there. Default: True.
        max_retries_per_trial: As there. Default: 0.
        max_consecutive_failed_trials: As there. Default: 3.
        others: As keras_tuner.Tuner has them: directory, project_name, overwrite, optimizer, loss, metrics,
            distribution_strategy, max_model_size.

    Raises:
        InvalidInput: For no objective, no number of epochs, and several executions of a trial.
        InvalidSpace: For hyperparameters that haltune has not.
        NotSupported: For several objectives, and under Keras Tuner's chief and workers.

    Example:
        ::

            import keras
            import numpy as np

            from haltune.keras_tuner import Tuner

            def build(hp):
                model = keras.Sequential([keras.layers.Dense(1)])
                model.compile(keras.optimizers.SGD(hp.Float("lr", 0.001, 0.1, sampling="log")), "mse")
                return model

            x, y = np.random.rand(32, 3), np.random.rand(32, 1)
            tuner = Tuner(build, "val_loss", max_epochs=3, max_trials=3, directory="runs")
            tuner.search(x, y, validation_split=0.25, verbose=0)
            print(tuner.get_best_hyperparameters()[0].values, tuner.get_best_models()[0])
    """

    @answering
    def __init__(
        self,
        hypermodel: Any = None,
        objective: Any = None,
        max_epochs: int | None = None,
        max_trials: int | None = 10,
        *,
        min_epochs: int = 0,
        policy: Policy[Any] | None = None,
        seed: int | None = None,
        store: str | os.PathLike[str] | None = None,
        learn_from: Sequence[Any] = (),
        verbose: int = 1,
        hyperparameters: Any = None,
        tune_new_entries: bool = True,
        allow_new_entries: bool = True,
        max_retries_per_trial: int = 0,
        max_consecutive_failed_trials: int = 3,
        **others: Any,
    ) -> None:
        if others.get("executions_per_trial", 1) != 1:
            raise InvalidInput(
                "executions_per_trial: a run is judged by its own epochs, so it is executed once; noise is looked "
                "through by tuner.study.recommend()"
            )
        if "KERASTUNER_ORACLE_IP" in os.environ:
            raise NotSupported(
                "Keras Tuner's chief and workers are not: start this program on each machine, with a directory of its "
                "own and one store='postgresql://...'"
            )
        study = {"seed": seed, "learn_from": learn_from, "verbose": verbose}
        oracle = Oracle(
            objective, max_epochs, min_epochs, max_trials, policy, store, study,
            seed=seed, hyperparameters=hyperparameters, tune_new_entries=tune_new_entries,
            allow_new_entries=allow_new_entries,
            max_retries_per_trial=max_retries_per_trial,
            max_consecutive_failed_trials=max_consecutive_failed_trials,
        )  # fmt: skip
        self._held: Trial | None = None  # while it trains
        super().__init__(oracle, hypermodel, **others)

    @property
    def study(self) -> Study:
        """The study that decides: its trials, its verdicts, `study.best`."""
        return self.oracle.study  # type: ignore[no-any-return, unused-ignore]

    def search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        """See keras_tuner.Tuner. Raises InvalidInput for other epochs than max_epochs."""
        epochs = fit_kwargs.pop("epochs", self.oracle.max_epochs)
        if epochs != self.oracle.max_epochs or "initial_epoch" in fit_kwargs:
            raise InvalidInput(
                f"search(epochs={epochs!r}): how long a full training is says Tuner(max_epochs="
                f"{self.oracle.max_epochs}), and where each goes on haltune; leave epochs and initial_epoch out"
            )
        super().search(*fit_args, **fit_kwargs)

    def run_trial(self, trial: Any, *args: Any, **kwargs: Any) -> Any:
        """See keras_tuner.Tuner: a fit from where the trial was, until haltune ends it."""
        held = self.oracle.held[trial.trial_id]
        callbacks = [*kwargs.pop("callbacks", []), HaltuneCallback(held, self.oracle.objective.name)]
        told = {"epochs": self.oracle.max_epochs, "initial_epoch": int(held.epoch), "callbacks": callbacks}
        with self._holding(trial, held):
            return super().run_trial(trial, *args, **kwargs, **told)

    def on_epoch_end(self, trial: Any, model: Any, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """See keras_tuner.Tuner: the oracle knows the values of every epoch, over all of a trial's fits."""
        if self.oracle.objective.has_value(logs or {}):
            self.oracle.update_trial(trial.trial_id, logs, step=epoch)

    def _run_and_update_trial(self, trial: Any, *fit_args: Any, **fit_kwargs: Any) -> None:
        found = self.run_trial(trial, *fit_args, **fit_kwargs)
        held = self.oracle.held[trial.trial_id]
        if not held.epoch:  # else on_epoch_end has told the oracle
            try:
                self._tell_the_end(trial, held, found)
            except Exception as error:
                held.fail(error)
                raise

    def _tell_the_end(self, trial: Any, held: Trial, found: Any) -> None:
        """A training of the user's own came to a value, which counts for the whole."""
        if isinstance(found, list) and any(isinstance(result, keras.callbacks.History) for result in found):
            raise keras_tuner.errors.FatalValueError(
                f"no epoch logged {self.oracle.objective.name!r} to haltune: a HyperModel's fit(hp, model, *args, "
                "**kwargs) hands all of them on to model.fit, callbacks and epochs among them"
            )
        tuner_utils.validate_trial_results(found, self.oracle.objective, "fit or run_trial")
        metrics = tuner_utils.convert_to_metrics_dict(found, self.oracle.objective)
        self.oracle.update_trial(trial.trial_id, metrics)
        held.report(float(metrics[self.oracle.objective.name]), self.oracle.max_epochs)

    def _populate_initial_space(self) -> None:
        super()._populate_initial_space()
        if self.hypermodel is not None and self.oracle.tune_new_entries and self.oracle.allow_new_entries:
            self.oracle.update_space(explored(self.hypermodel.build, self.oracle.get_space()))

    @contextmanager
    def _holding(self, trial: Any, held: Trial) -> Iterator[None]:
        """While a trial trains: its model is built as it was, and its best weights so far are not written over."""
        self._held = held
        best = Path(super()._get_checkpoint_fname(trial.trial_id))
        before = trial.metrics.get_best_value(held.goal.metric) if best.exists() and held.epoch else None
        try:
            yield
        except BaseException as error:
            if interrupts(error) or self.oracle.tries_again(trial.trial_id):
                held.interrupt()
            else:
                held.fail(error)
            raise
        finally:
            written = Path(self._get_checkpoint_fname(trial.trial_id))
            self._held = None
            if written != best and written.exists():
                now = self.oracle.get_trial(trial.trial_id).metrics.get_best_value(held.goal.metric)
                written.replace(best) if before != now else written.unlink()

    def _try_build(self, hp: Any) -> Any:
        build = super()._try_build
        return build(hp) if self._held is None else self._held.load_model(lambda **config: build(hp))

    def _get_checkpoint_fname(self, trial_id: str) -> Any:
        found = super()._get_checkpoint_fname(trial_id)
        resumed = self._held is not None and self._held.epoch > 0 and self._held.attempt > 1
        return str(Path(found).with_name(f"resumed.{Path(found).name}")) if resumed else found
