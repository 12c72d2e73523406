"""haltune.keras_tuner: a tuner for Keras Tuner programs, instead of RandomSearch, BayesianOptimization or Hyperband.

    tuner = haltune.keras_tuner.Tuner(build, objective="val_accuracy", max_epochs=30, max_trials=20)
    tuner.search(x, y, validation_data=(x_val, y_val))
    model = tuner.get_best_models()[0]

haltune chooses configurations and decides which fit ends early, by default with its default search. A promoted trial
resumes where it was, with its optimizer. The oracle's trials are those of a study, with the same numbers.

The function that builds a model declares the space while it runs. Keras Tuner runs it until it has entered every
conditional scope. haltune also runs it with the largest value of every whole number and each option of every choice,
because `for i in range(hp.Int("layers", 1, 3)): hp.Int(f"units_{i}", ...)` declares the last units only with 3 layers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from haltune._utils.signals import interrupts
from haltune.callbacks.keras import HaltuneCallback
from haltune.display import plural
from haltune.errors import InvalidInput, InvalidSpace, NotSupported, StoreError, installing, warn
from haltune.hints import with_hints
from haltune.log.decisions import Finish, Wait
from haltune.log.events import Status
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Maximize, Minimize, Problem
from haltune.space import Space
from haltune.space.domains import Choice, Constant, Domain, Float, Int
from haltune.study import Study, Trial
from haltune.study.attempt import Failure
from haltune.study.view import read_study
from haltune.tuners import MOST_VALUES, check_epochs, choice_of

try:
    import keras_tuner

    # reads what run_trial returns: Keras Tuner exports nothing for it. Without it, a custom run_trial has no value
    from keras_tuner.src.engine import tuner_utils
except ImportError as error:
    raise ImportError(f"haltune.keras_tuner needs Keras Tuner: {installing('keras-tuner')}") from error

import keras

__all__ = ["Tuner"]

_hps = keras_tuner.engine.hyperparameters
_log = logging.getLogger("haltune")
_STORE, _NAME = "haltune.db", "study"  # in the project's folder
_PAUSE = 0.2  # seconds between calls of ask while others train


def explored(build: Callable[[Any], object], known: Any) -> Any:
    """Return the hyperparameters, including those that are declared only for some values of others.

    A combination that cannot be built declares what it declared before its error. Keras Tuner fails the trials of it.
    """
    tried: set[str] = set()
    while True:
        extremes = ((hp.name, value) for hp in known.space for value in _extremes(hp))
        name, value = next((e for e in extremes if repr(e) not in tried), (None, None))
        if name is None:
            return known
        tried.add(repr((name, value)))
        found = known.copy()
        found.values = hyperparameter_values({**known.values, name: value}, known)
        try:
            build(found)
        except keras_tuner.errors.FatalError:
            raise
        except Exception as error:  # MemoryError included
            _log.debug("build(hp) fails with %s=%r: %s", name, value, error)
        declared = [(hp.name, hp.conditions) for hp in known.space]
        known.merge([hp for hp in found.space if (hp.name, hp.conditions) not in declared])


def _extremes(hp: Any) -> list[Any]:
    if isinstance(hp, _hps.Int):
        return [hp.max_value]
    if isinstance(hp, _hps.Boolean):
        return [True, False]
    return list(hp.values) if isinstance(hp, _hps.Choice) else []


def space_of(known: Any) -> Space:
    """Return the space. Raises InvalidSpace if it is empty or a hyperparameter has no counterpart."""
    if not known.space:
        raise InvalidSpace(
            "There is nothing to search: build(hp) declares no hyperparameter. Use hp.Float('lr', ...) in it, or give "
            "hyperparameters=."
        )
    named: dict[str, list[Any]] = {}
    for hp in known.space:
        named.setdefault(hp.name, []).append(hp)
    return Space({name: _declared(name, kinds) for name, kinds in named.items()})


def hyperparameter_values(config: Mapping[str, Any], known: Any) -> dict[str, Any]:
    """Return the values of the active hyperparameters, with the default for a missing one.

    Those that only another program's fits have declared are included: this program's fit reads them.
    """
    found = known.copy()
    found.values = {}
    for hp in found.space:
        if hp.name not in found.values and found.is_active(hp):
            found.values[hp.name] = config.get(hp.name, hp.default)
    declared = {hp.name for hp in found.space}
    return {**{name: value for name, value in config.items() if name not in declared}, **found.values}


def _declared(name: str, kinds: list[Any]) -> Domain:
    """Return the domain of a name, which may be declared in several scopes."""
    domains = [_domain(name, hp) for hp in kinds]
    whens: list[dict[str, list[Any]]] = []
    for hp in kinds:
        when: dict[str, list[Any]] = {}
        for condition in hp.conditions:
            when[condition.name] = [v for v in condition.values if v in when.get(condition.name, condition.values)]
        whens.append(when)
    if any(d != domains[0] for d in domains):  # conditions are not set yet
        raise InvalidSpace(f"{name!r} has different ranges in several scopes. Use a different name in each.")
    if not all(whens):
        return domains[0]  # one of them is always active
    parents = {tuple(when) for when in whens}
    if len(whens) > 1 and (len(parents) > 1 or len(whens[0]) > 1):
        several = ", ".join(sorted({parent for when in whens for parent in when}))
        raise InvalidSpace(
            f"{name!r} is declared in scopes of several parameters, {several}. Use a different name in each."
        )
    merged = {parent: [v for when in whens for v in when[parent]] for parent in whens[0]}
    unique = {parent: list(dict.fromkeys(values)) for parent, values in merged.items()}
    return replace(domains[0], when=unique)  # type: ignore[type-var, unused-ignore]


def _domain(name: str, hp: Any) -> Domain:
    kind = type(hp).__name__
    if kind == "Fixed":
        return Constant(hp.value)
    if kind == "Boolean":
        return Choice([False, True])
    if kind == "Choice":
        return choice_of(list(hp.values), ordered=bool(hp.ordered))
    if kind not in ("Int", "Float"):
        why = f"{kind} is not supported. Use Float, Int, Choice, Boolean or Fixed"
    elif hp.step is not None and not (kind == "Int" and hp.step == 1 and hp.sampling == "linear"):
        values = [int(v) if kind == "Int" else float(f"{v:.12g}") for v in hp.values]
        if len(values) <= MOST_VALUES:
            return choice_of(values, ordered=True)
        why = f"it has more than {MOST_VALUES} steps. Omit step=, and round in build(hp)"
    elif hp.sampling == "reverse_log":
        why = "sampling='reverse_log' is not supported. Declare 1 - value with sampling='log'"
    else:
        return (Int if kind == "Int" else Float)(hp.min_value, hp.max_value, log=hp.sampling == "log")
    raise InvalidSpace(f"Keras Tuner's hyperparameter {name!r}: {why}.")


class Oracle(keras_tuner.Oracle):  # type: ignore[misc, unused-ignore]
    """Oracle with a study in the project's folder. If you start the program again, the search continues.

    Keras Tuner has no public names for the parts of an oracle that this one uses instead of it: its folder, the queue
    of trials to repeat, how often each was run, the table it prints, and the file of a trial.
    """

    def __init__(
        self,
        objective: Any,
        max_epochs: Any,
        min_epochs: Any,
        max_trials: int | None,
        policy: Policy[Any] | None,
        store: str | os.PathLike[str] | None,
        study: dict[str, Any],
        **others: Any,
    ) -> None:
        super().__init__(objective, max_trials, **others)
        self.max_epochs = check_epochs("haltune.keras_tuner.Tuner", max_epochs, min_epochs)
        self._min_epochs = min_epochs
        if hasattr(self.objective, "name_to_direction"):
            raise NotSupported(
                "objective: this search has one goal. Let the model log a scalarization of your goals, and name that."
            )
        if self.objective.name == "default_objective":
            raise InvalidInput(
                "Tuner needs objective=, the name of a value that fit logs after every epoch. Use 'val_accuracy', or "
                "keras_tuner.Objective('val_f1', 'max')."
            )
        kind = Maximize if self.objective.direction == "max" else Minimize
        self.goal = kind(self.objective.name, of="best")  # a trial's score is its best epoch's
        self.policy, self._store, self._options = policy, store, study
        self.held: dict[str, Trial] = {}  # running trials, by Keras Tuner's names
        self._study: Study | None = None
        self._searched: Any = None  # the hyperparameters of the study
        self.declares_late = self.overwrites = False  # a fit may declare hyperparameters; the folder is deleted

    @property
    def study(self) -> Study:
        """The study. It is opened at first use, when the project's folder and the space are known."""
        if self._study is None:
            self._searched = self._searched or self.get_space()
            if self.declares_late and not self._searched.space:
                raise InvalidSpace(
                    "There is nothing to search: fit or run_trial declares hyperparameters only while a trial trains. "
                    "Declare at least one before: known = keras_tuner.HyperParameters(); known.Float('x', -1.0, 1.0). "
                    "Then pass hyperparameters=known."
                )
            self._study = self._opened(Space({**self._recorded(), **space_of(self._searched).parameters}))
        return self._study

    def _recorded(self) -> dict[str, Domain]:
        """Return the parameters of a study in the user's store, if fits of another program may have declared some."""
        try:
            there = None if self._store is None else read_study(self._store, _NAME)
        except StoreError:  # the study is new
            there = None
        if there is None:
            return {}
        if self.overwrites and there.trials:
            warn(
                f"overwrite=True deletes the project's folder, but the study in {there.store.url} continues, with its "
                f"{plural(len(there.trials), 'trial')}. For a new search use another store=, or leave store= out."
            )
        return dict(there.history.problem.space.parameters) if self.declares_late else {}

    def _opened(self, space: Space) -> Study:
        problem = Problem(space, self.goal, self.max_epochs, min_epochs=self._min_epochs)
        store = Path(self._project_dir) / _STORE if self._store is None else self._store
        limit = Budget(trials=self.max_trials) if self.max_trials else Budget()
        study = Study(problem, self.policy, store, name=_NAME, budget=limit, **self._options)
        new = "Tuner(project_name=), or overwrite=True" if self._store is None else "Tuner(store=)"
        study.session.logger.extend = (
            f"To continue it, pass a larger Tuner(max_trials=). To start a new search, use another {new}."
        )
        return study

    def _search_what_was_found(self) -> None:
        """Widen the study by hyperparameters that trials declared later, in a HyperModel's fit, with their defaults."""
        known = {hp.name for hp in self._searched.space}
        defaults = {hp.name: hp.default for hp in reversed(self.hyperparameters.space) if hp.name not in known}
        if not defaults:
            return
        so_far_searched = self.study.history.problem.space.parameters  # by another program, too
        self._searched, self._study = self.get_space(), None
        wider = dict(space_of(self._searched).parameters)
        so_far = {n: Constant(value, when=wider[n].when) for n, value in defaults.items() if n not in so_far_searched}
        if so_far:
            self._opened(Space({**so_far_searched, **wider, **so_far}))
        self._study = self._opened(Space(wider))

    def create_trial(self, tuner_id: str) -> Any:
        """See keras_tuner.Oracle. Returns the next configuration, or a trial that resumes."""
        if (ongoing := self.ongoing_trials.get(tuner_id)) is not None:
            held = self.held.get(ongoing.trial_id)
            if held is not None and held.ended is None:
                return ongoing
            del self.ongoing_trials[tuner_id]  # Ctrl-C or an error has ended the search, which now starts again
        if len(self.study.history):
            self._search_what_was_found()
        answer = self.study.ask()
        if isinstance(answer, Wait):
            self.study.session.wait(_PAUSE, None)
        if isinstance(answer, Wait | Finish):
            self.tuner_ids.discard(tuner_id)
            return _trial(self.get_space(), "", "IDLE" if isinstance(answer, Wait) else "STOPPED")
        new = f"{answer.id:0{len(str(self.max_trials or 0))}d}"
        name = next((known for known in self.trials if int(known) == answer.id), new)
        self._need_own(answer, name)
        self.tuner_ids.add(tuner_id)
        self.held[name] = answer
        if name in self.trials:  # it was paused or interrupted
            self.trials[name].status = "RUNNING"
            self.trials[name].metrics = self._until(self.trials[name].metrics, answer.epoch)
            if name in self.end_order:
                self.end_order.remove(name)
        else:
            hyperparameters = self.get_space()
            hyperparameters.values = hyperparameter_values(answer.config, self.hyperparameters)
            self.trials[name] = _trial(hyperparameters, name, "RUNNING")
            self.start_order.append(name)
        self.ongoing_trials[tuner_id] = self.trials[name]
        self._save_trial(self.trials[name])
        self.save()
        self._display.on_trial_begin(self.trials[name])
        return self.trials[name]

    def _need_own(self, held: Trial, name: str) -> None:
        """Raise InvalidInput if the folder has a trial of this name from another study: Keras Tuner would train it."""
        known = self.trials[name].hyperparameters.values if name in self.trials else {}
        if all(known.get(key, value) == value for key, value in held.config.items()):
            return
        held.interrupt()
        raise InvalidInput(
            f"Trial {held.id} of the study in {self.study.store.url} has {held.config}, but the project's folder "
            f"{self._project_dir} has a trial {name} of another study, with {known}. Use another directory= or "
            "project_name=, the store= of that study, or overwrite=True."
        )

    def _until(self, metrics: Any, epochs: float) -> Any:
        """Return the values of the first epochs. Later ones are trained again: a killed process had reported them."""
        found = _trial(self.get_space(), "", "RUNNING").metrics
        for name, history in metrics.metrics.items() if epochs else ():
            found.register(name, history.direction)
            found.set_history(name, [one for one in history.get_history() if one.step < epochs])
        return found

    def end_trial(self, trial: Any) -> None:
        """See keras_tuner.Oracle. The study, not the oracle, offers a failed trial again."""
        held = self.held.pop(trial.trial_id, None)
        if held is not None and held.ended is None:
            failed = trial.status != "COMPLETED"
            last = (trial.message or "").strip().rpartition("\n")[2] or "the trial failed in Keras Tuner"
            held.fail(Failure(last, trial.message)) if failed else held.finish()
        super().end_trial(trial)
        self._retry_queue.clear()

    def _retry(self, trial: Any) -> bool:
        """See keras_tuner.Oracle. A trial that the study has ended, such as for a value that is NaN, is not retried."""
        if self.study.history.trial(int(trial.trial_id)).status is not Status.INTERRUPTED:
            self._run_times[trial.trial_id] = self.max_retries_per_trial + 1
        return bool(super()._retry(trial))

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "searched": self._searched and self._searched.get_config()}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if state.get("searched"):
            self._searched = keras_tuner.HyperParameters.from_config(state["searched"])

    def reload(self) -> None:
        """See keras_tuner.Oracle. The study offers interrupted trials again."""
        super().reload()
        self._retry_queue.clear()


def _trial(hyperparameters: Any, name: str, status: str) -> Any:
    return keras_tuner.engine.trial.Trial(hyperparameters=hyperparameters, trial_id=name, status=status)


class Tuner(keras_tuner.Tuner):  # type: ignore[misc, unused-ignore]
    """Tuner for Keras models: stops bad trials early, and resumes promoted ones where they were.

    Use it instead of keras_tuner.RandomSearch, BayesianOptimization or Hyperband, with the same methods: search,
    get_best_models, get_best_hyperparameters, results_summary. The study is haltune.db in the project's folder. If you
    start the program again, the search continues. haltune's page and commands can open it.

    Args:
        hypermodel: build(hp), which returns a compiled model, or a keras_tuner.HyperModel. Default: None, for a
            subclass of Tuner whose run_trial(trial) returns the value.
        objective: The name of a value that fit logs after every epoch: "val_accuracy", or
            keras_tuner.Objective("val_f1", "max"). Default: None, an error.
        max_epochs: Epochs of a full training. Default: None, an error.
        max_trials: Number of configurations. Default: 10.
        min_epochs: No trial is stopped or paused before this epoch. Default: 0.
        policy: The policy that decides. Default: None, haltune.policies.MultiFidelity().
        seed: Seed of all randomness. Default: None, chosen at random and recorded.
        store: The study's store, as for Study. Default: None, haltune.db in the project's folder.
        learn_from: Prior studies, as for Study. Default: none.
        verbose: 1 to log what happens to each trial, or 0. Default: 1.
        hyperparameters: Known or fixed hyperparameters, as for keras_tuner.RandomSearch. Default: None.
        tune_new_entries: As for keras_tuner.RandomSearch. Default: True.
        allow_new_entries: As for keras_tuner.RandomSearch. Default: True.
        max_retries_per_trial: As for keras_tuner.RandomSearch. Default: 0.
        max_consecutive_failed_trials: As for keras_tuner.RandomSearch. Default: 3.
        others: As for keras_tuner.Tuner: directory, project_name, overwrite, optimizer, loss, metrics,
            distribution_strategy, max_model_size.

    Raises:
        InvalidInput: Without an objective or max_epochs, or with several executions per trial.
        InvalidSpace: If a hyperparameter has no counterpart.
        NotSupported: With several objectives, or under Keras Tuner's chief and workers.

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

    @with_hints
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
                "executions_per_trial: haltune judges a trial by its epochs, so it is executed once. For a noisy "
                "metric, use tuner.study.recommend()."
            )
        if "KERASTUNER_ORACLE_IP" in os.environ:
            raise NotSupported(
                "Keras Tuner's chief and workers are not supported. Start this program on each machine, with a "
                "separate directory and the same store='postgresql://...'."
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
        fits = getattr(type(self.hypermodel), "fit", None) is not keras_tuner.HyperModel.fit
        oracle.declares_late = fits or type(self).run_trial is not Tuner.run_trial
        oracle.overwrites = bool(others.get("overwrite"))

    @property
    def study(self) -> Study:
        """The study that decides: its trials, its verdicts, `study.best`."""
        return self.oracle.study  # type: ignore[no-any-return, unused-ignore]

    def search(self, *fit_args: Any, **fit_kwargs: Any) -> None:
        """See keras_tuner.Tuner. Raises InvalidInput if epochs differs from max_epochs."""
        epochs = fit_kwargs.pop("epochs", self.oracle.max_epochs)
        if epochs != self.oracle.max_epochs or "initial_epoch" in fit_kwargs:
            raise InvalidInput(
                f"search(epochs={epochs!r}): Tuner(max_epochs={self.oracle.max_epochs}) sets the length of a full "
                "training, and haltune sets the first epoch of each fit. Omit epochs and initial_epoch."
            )
        super().search(*fit_args, **fit_kwargs)

    def run_trial(self, trial: Any, *args: Any, **kwargs: Any) -> Any:
        """See keras_tuner.Tuner. Fits from the trial's last epoch until haltune ends the trial."""
        held = self.oracle.held[trial.trial_id]
        callbacks = [*kwargs.pop("callbacks", []), HaltuneCallback(held, self.oracle.objective.name)]
        given = {"epochs": self.oracle.max_epochs, "initial_epoch": int(held.epoch), "callbacks": callbacks}
        with self._holding(trial, held):
            return super().run_trial(trial, *args, **kwargs, **given)

    def on_epoch_end(self, trial: Any, model: Any, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """See keras_tuner.Tuner. The oracle gets the values of every epoch, over all fits of a trial."""
        if self.oracle.objective.has_value(logs or {}):
            self.oracle.update_trial(trial.trial_id, logs, step=epoch)

    def _run_and_update_trial(self, trial: Any, *fit_args: Any, **fit_kwargs: Any) -> None:
        found = self.run_trial(trial, *fit_args, **fit_kwargs)
        held = self.oracle.held[trial.trial_id]
        if held.epoch:  # on_epoch_end has updated the oracle
            return
        objective = self.oracle.objective
        try:  # a custom run_trial returns one value for the whole training
            if isinstance(found, list) and any(isinstance(r, keras.callbacks.History) for r in found):
                raise keras_tuner.errors.FatalValueError(
                    f"No epoch logged {objective.name!r} to haltune. A HyperModel's fit(hp, model, *args, **kwargs) "
                    "must pass all of them on to model.fit, callbacks and epochs included."
                )
            tuner_utils.validate_trial_results(found, objective, "fit or run_trial")
            metrics = tuner_utils.convert_to_metrics_dict(found, objective)
            self.oracle.update_trial(trial.trial_id, metrics)
            held.report(float(metrics[objective.name]), self.oracle.max_epochs)
        except Exception as error:
            held.fail(error)
            raise

    def _populate_initial_space(self) -> None:
        super()._populate_initial_space()
        if self.hypermodel is not None and self.oracle.tune_new_entries and self.oracle.allow_new_entries:
            self.oracle.update_space(explored(self.hypermodel.build, self.oracle.get_space()))

    @contextmanager
    def _holding(self, trial: Any, held: Trial) -> Iterator[None]:
        """Build the trial's model as it was, and do not overwrite its best weights, while it trains."""
        self._held = held
        best = Path(super()._get_checkpoint_fname(trial.trial_id))
        before = trial.metrics.get_best_value(held.goal.metric) if best.exists() and held.epoch else None
        try:
            yield
        except BaseException as error:
            if interrupts(error) or self.oracle._run_times[trial.trial_id] < self.oracle.max_retries_per_trial:
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
