"""haltune.keras_tuner.Tuner: a keras_tuner.Tuner whose fits haltune stops, pauses and resumes.

Behind it stands an oracle whose trials are those of a study, by the same numbers. A function that builds shows what it
searches while it runs. Keras Tuner runs it until every conditional scope was entered; here also with the largest value
of every whole number and each option of every choice, because `for i in range(hp.Int("layers", 1, 3)):
hp.Int(f"units_{i}", ...)` names the last units with the most layers alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from haltune._utils.signals import interrupts
from haltune.callbacks.keras import HaltuneCallback
from haltune.errors import InvalidInput, InvalidSpace, NotSupported, installing
from haltune.errors.foreign_words import answering
from haltune.log.decisions import Finish, Wait
from haltune.log.events import Status
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Maximize, Minimize, Problem
from haltune.space import Space
from haltune.space.domains import Choice, Constant, Domain, Float, Int
from haltune.study import Study, Trial
from haltune.study.attempt import Failure
from haltune.tuners.conductor import check_epochs
from haltune.tuners.domains import MOST_VALUES

try:
    import keras_tuner
    from keras_tuner.src.engine import tuner_utils  # what results may be: there is no public way
except ImportError as error:
    raise ImportError(f"haltune.keras_tuner needs Keras Tuner: {installing('keras-tuner')}") from error

import keras

_hps = keras_tuner.engine.hyperparameters
HyperParameters = keras_tuner.HyperParameters


def explored(build: Callable[[Any], object], known: Any) -> Any:
    """Hyperparameters with those that only some values of others bring about."""
    tried: set[str] = set()
    while True:
        extremes = [(hp.name, value) for hp in known.space for value in _extremes(hp)]
        left = [(name, value) for name, value in extremes if f"{name}={value!r}" not in tried]
        if not left:
            return known
        name, value = left[0]
        tried.add(f"{name}={value!r}")
        found = known.copy()
        found.values = hyperparameter_values({**known.values, name: value}, known)
        build(found)
        known.merge([hp for hp in found.space if not known._exists(hp.name, hp.conditions)])


def _extremes(hp: Any) -> list[Any]:
    if isinstance(hp, _hps.Int):
        return [hp.max_value]
    if isinstance(hp, _hps.Boolean):
        return [True, False]
    return list(hp.values) if isinstance(hp, _hps.Choice) else []


def space_of(known: Any) -> Space:
    """Raises InvalidSpace for what haltune has not, and where nothing is searched."""
    if not known.space:
        raise InvalidSpace(
            "build(hp) asks hp for nothing, so that there is nothing to search: hp.Float('lr', ...), or give "
            "hyperparameters="
        )
    named: dict[str, list[Any]] = {}
    for hp in known.space:
        named.setdefault(hp.name, []).append(hp)
    return Space({name: _declared(name, kinds) for name, kinds in named.items()})


def hyperparameter_values(config: Mapping[str, Any], known: Any) -> dict[str, Any]:
    """A configuration as hyperparameters have it: those that are active, in its order, others by their default."""
    found = known.copy()
    found.values = {}
    for hp in found.space:
        if hp.name not in found.values and found.is_active(hp):
            found.values[hp.name] = config.get(hp.name, hp.default)
    return dict(found.values)


def _declared(name: str, kinds: list[Any]) -> Domain:
    """The domain of a name, which several scopes may ask for alike."""
    domains = [_domain(name, hp) for hp in kinds]
    whens = [_when(name, hp) for hp in kinds]
    if any(d != domains[0] for d in domains):  # which have no conditions yet
        raise InvalidSpace(
            f"{name!r} is asked for in several scopes with other ranges: give each a name of its own"
        )
    if not all(whens):
        return domains[0]  # one of them is always there
    parents = {tuple(when) for when in whens}
    if len(whens) > 1 and (len(parents) > 1 or len(whens[0]) > 1):
        several = ", ".join(sorted({parent for when in whens for parent in when}))
        raise InvalidSpace(
            f"{name!r} is asked for in scopes of several parameters, {several}: give each a name of its own"
        )
    merged = {parent: [v for when in whens for v in when[parent]] for parent in whens[0]}
    when = {parent: list(dict.fromkeys(values)) for parent, values in merged.items()}
    return replace(domains[0], when=when)  # type: ignore[type-var, unused-ignore]


def _when(name: str, hp: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for condition in hp.conditions:
        values = [v for v in condition.values if v in found.get(condition.name, condition.values)]
        found[condition.name] = values
    return found


def _domain(name: str, hp: Any) -> Domain:
    try:
        if isinstance(hp, _hps.Fixed):
            return Constant(hp.value)
        if isinstance(hp, _hps.Boolean):
            return Choice([False, True])
        if isinstance(hp, _hps.Choice):
            return (
                Choice(hp.values, ordered=bool(hp.ordered)) if len(hp.values) > 1 else Constant(hp.values[0])
            )
        return _range(hp)
    except InvalidSpace as error:
        raise InvalidSpace(f"Keras Tuner's hyperparameter {name!r}: {error}") from error


def _range(hp: Any) -> Domain:
    whole = isinstance(hp, _hps.Int)
    if not whole and not isinstance(hp, _hps.Float):
        raise InvalidSpace(
            f"{type(hp).__name__} is not known here; Float, Int, Choice, Boolean and Fixed are"
        )
    if hp.step is not None and not (whole and hp.step == 1 and hp.sampling == "linear"):
        values = [int(v) if whole else float(f"{v:.12g}") for v in hp.values]
        if len(values) > MOST_VALUES:
            raise InvalidSpace(f"more than {MOST_VALUES} steps: leave step= out, and round in build(hp)")
        return Choice(values, ordered=True) if len(values) > 1 else Constant(values[0])
    if hp.sampling == "reverse_log":
        raise InvalidSpace("sampling='reverse_log' is not known here: ask for 1 - value by sampling='log'")
    kind = Int if whole else Float
    return kind(hp.min_value, hp.max_value, log=hp.sampling == "log")


_STORE = "haltune.db"  # in the project's folder
_PAUSE = 0.2  # seconds between questions while others train


class Oracle(keras_tuner.Oracle):  # type: ignore[misc, unused-ignore]
    """Asks a study, kept in the project's folder, so that a program which is started again goes on with it."""

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
        self.goal = _goal(self.objective)
        self.policy, self._store, self._options = policy, store, study
        self.held: dict[str, Trial] = {}  # by Keras Tuner's names
        self._study: Study | None = None
        self._searched: Any = None  # the hyperparameters of the study

    @property
    def study(self) -> Study:
        """The study, opened when it is first asked for: by then the project's folder is known, and the space."""
        if self._study is None:
            self._searched = self._searched or self.get_space()
            self._study = self._opened(space_of(self._searched))
        return self._study

    def _opened(self, space: Space) -> Study:
        problem = Problem(space, self.goal, self.max_epochs, min_epochs=self._min_epochs)
        store = Path(self._project_dir) / _STORE if self._store is None else self._store
        limit = Budget(trials=self.max_trials) if self.max_trials else Budget()
        return Study(problem, self.policy, store, budget=limit, **self._options)

    def _search_what_was_found(self) -> None:
        """Widen the study by what trials asked for since, in a HyperModel's fit: so far it had its default."""
        known = {hp.name for hp in self._searched.space}
        defaults = {
            hp.name: hp.default for hp in reversed(self.hyperparameters.space) if hp.name not in known
        }
        if not defaults:
            return
        self._searched, self._study = self.get_space(), None
        wider = dict(space_of(self._searched).parameters)
        so_far = {name: Constant(value, when=wider[name].when) for name, value in defaults.items()}
        self._opened(Space(wider | so_far))
        self._study = self._opened(Space(wider))

    def create_trial(self, tuner_id: str) -> Any:
        """See keras_tuner.Oracle: the next configuration, or a trial that goes on."""
        if tuner_id in self.ongoing_trials:
            return self.ongoing_trials[tuner_id]
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
        self.tuner_ids.add(tuner_id)
        self.held[name] = answer
        if name in self.trials:  # it paused, or was broken off
            self.trials[name].status = "RUNNING"
            if not answer.epoch:  # it begins anew, and what it was then counts no more
                self.trials[name].metrics = _trial(self.get_space(), name, "RUNNING").metrics
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

    def end_trial(self, trial: Any) -> None:
        """See keras_tuner.Oracle. A trial that is tried again the study offers again."""
        held = self.held.pop(trial.trial_id, None)
        if held is not None and held.ended is None:
            failed = trial.status != "COMPLETED"
            last = (trial.message or "").strip().rpartition("\n")[2] or "the trial failed in Keras Tuner"
            why = Failure(last, trial.message) if failed else None
            held.session.end(held, Status.FAILED if failed else None, why)
        super().end_trial(trial)
        self._retry_queue.clear()

    def get_state(self) -> dict[str, Any]:
        return {**super().get_state(), "searched": self._searched and self._searched.get_config()}

    def set_state(self, state: dict[str, Any]) -> None:
        super().set_state(state)
        if state.get("searched"):
            self._searched = keras_tuner.HyperParameters.from_config(state["searched"])

    def tries_again(self, name: str) -> bool:
        """Whether a trial that failed now is begun once more."""
        return bool(self._run_times[name] < self.max_retries_per_trial)

    def reload(self) -> None:
        """See keras_tuner.Oracle. What was under way the study offers again."""
        super().reload()
        self._retry_queue.clear()


def _trial(hyperparameters: Any, name: str, status: str) -> Any:
    return keras_tuner.engine.trial.Trial(hyperparameters=hyperparameters, trial_id=name, status=status)


def _goal(objective: Any) -> Maximize | Minimize:
    """Raises NotSupported for several goals, InvalidInput for none."""
    if hasattr(objective, "name_to_direction"):
        raise NotSupported(
            "objective: this search has one goal; let the model log what weighs several into one, and name that"
        )
    if objective.name == "default_objective":
        raise InvalidInput(
            "objective= is needed, the name of what fit logs after every epoch: 'val_accuracy', or "
            "keras_tuner.Objective('val_f1', 'max')"
        )
    kind = Maximize if objective.direction == "max" else Minimize
    return kind(objective.name, of="best")  # a trial's score is that of its best epoch


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
