"""The oracle behind haltune.keras_tuner.Tuner: Keras Tuner's trials are those of a study, by the same numbers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from haltune.errors import InvalidInput, NotSupported
from haltune.log.decisions import Finish, Wait
from haltune.log.events import Status
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Maximize, Minimize, Problem
from haltune.space import Space
from haltune.space.domains import Constant
from haltune.study import Study, Trial
from haltune.study.session.session import Failure
from haltune.tuners.conductor import check_epochs

from .library import keras_tuner
from .spaces import hyperparameter_values, space_of

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
            why = Failure(_last_line(trial.message), trial.message) if failed else None
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


def _last_line(message: str | None) -> str:
    """The last line of a traceback."""
    return (message or "").strip().rpartition("\n")[2] or "the trial failed in Keras Tuner"


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
