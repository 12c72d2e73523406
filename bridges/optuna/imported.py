"""What an Optuna study has found, as the log of a haltune study: to look at, and to learn from.

Its configurations are recorded as the user's own, which no policy chose, and what was pruned as stopped by the user.
Optuna keeps no times within a trial: its reports lie evenly between its beginning and its end.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from haltune._utils.words import plural
from haltune.errors import InvalidInput, InvalidSpace
from haltune.log.events import Created
from haltune.log.problem import Problem
from haltune.policies import RandomSearch
from haltune.space import Space
from haltune.store.base import Store
from haltune.store.memory import MemoryStore
from haltune.store.open import open_store
from haltune.study import Study
from haltune.study.joining.loading import load_study

from .curves import WHOLE, FrozenTrial, TrialState, curve_of
from .library import PROBLEM, optuna
from .objectives import objectives_of
from .recorded import RecordedTrial, Recorder
from .spaces import Translated, space_of

_log = logging.getLogger("haltune")


def from_study(
    study: optuna.Study,
    store: str | os.PathLike[str] | Store | None = None,
    name: str | None = None,
    *,
    max_epochs: int | None = None,
    space: Space | None = None,
) -> Study:
    """What an Optuna study has found, as a study of haltune: `Study(..., learn_from=[from_study(study)])`.

    Steps are taken for epochs, from 1 where Optuna's count from 0; a study that has none trains one epoch.

    Args:
        study: Optuna's study. Several objectives are several goals, of which `learn_from=` takes the first; its trials'
            constraints are constraints "constraint_0", ..., at most 0.
        store: Where the log is kept, as Study takes it. Default: None, memory.
        name: Of the study there. Default: None, its name in Optuna.
        max_epochs: Epochs of a full training. Default: None, those of the longest trial.
        space: What was searched. Default: None, as the trials show it: a parameter that some lack has the condition
            that tells these from the others.

    Returns:
        The study: `learn_from=` takes it, `problem.space` is its space. What has no counterpart here is logged.

    Raises:
        InvalidInput: For what is no study of Optuna's, when the store holds a study of that name, and for epochs that
            trials exceed.
        InvalidSpace: When no trial shows a space, or a distribution has no counterpart.

    Example:
        >>> import optuna
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> there = optuna.create_study(direction="maximize")
        >>> there.optimize(lambda trial: 1 / (1 + trial.suggest_float("lr", 1e-4, 1e-1, log=True)), n_trials=5)
        >>> past = from_study(there)
        >>> past.problem.space, past.best_value == there.best_value
        (Space({
            'lr': Float(0.0001, 0.1, log=True),
        }), True)
    """
    _check(study)
    trials = study.get_trials(deepcopy=False)
    translated = _translated(study, trials, space)
    runs, left_out = _runs(trials, translated)
    objectives = objectives_of(study, [(run.trial, run.curve) for run in runs])
    runs = [replace(run, further=objectives.further(run.trial)) for run in runs]
    horizon = _horizon(study, runs, max_epochs)
    problem = Problem(translated.space, objectives.goals, horizon, constraints=objectives.constraints)
    store = MemoryStore() if store is None else open_store(store)
    name = name or study.study_name
    events = Recorder(problem, RandomSearch(), study.study_name).events(runs)
    created = events[0]
    assert isinstance(created, Created)
    if not store.create(name, created) and not store.replace(
        name, created, 1
    ):  # 1: this was broken off before
        raise InvalidInput(
            f"{store.url} holds a study {name!r} already: load_study opens it, or give another name="
        )
    store.append(name, events[1:], seen=1, about=None)
    for said in [*translated.notes, *left_out, *objectives.notes]:
        _log.info("%r from Optuna: %s", name, said)
    return load_study(store, name, verbose=0)


def _check(study: Any) -> None:
    if not isinstance(study, optuna.Study):
        raise InvalidInput(
            f"from_study takes a study of Optuna's, optuna.load_study(study_name=..., storage=...), not {study!r}"
        )


def _translated(study: optuna.Study, trials: Sequence[FrozenTrial], space: Space | None) -> Translated:
    """The space that is given, that haltune wrote, or that the trials show."""
    if space is not None:
        return Translated.of_space(space)
    written = study.user_attrs.get(PROBLEM)
    if written is not None:
        return Translated.of_space(Space.from_json({**written["space"], "constraints": []}))
    return space_of([t for t in trials if t.state in WHOLE])


def _runs(trials: Sequence[FrozenTrial], translated: Translated) -> tuple[list[RecordedTrial], list[str]]:
    """What can be recorded, and what not."""
    from_zero = any(0 in t.intermediate_values for t in trials)
    runs, outside = [], 0
    for trial in trials:
        waits = trial.state is TrialState.WAITING
        params = trial.system_attrs.get("fixed_params", {}) if waits else trial.params
        try:
            config = translated.inward(params)
        except InvalidSpace:
            outside += 1
            continue
        runs.append(RecordedTrial(trial, config, curve_of(trial, from_zero)))
    said = (
        [f"{plural(outside, 'trial')} left out, which lack a parameter or lie outside the space"]
        if outside
        else []
    )
    return runs, said


def _horizon(study: optuna.Study, runs: list[RecordedTrial], given: int | None) -> int:
    """The epochs of a full training. Raises InvalidInput when a trial has more."""
    longest = max([1, *(max(run.curve) for run in runs if run.curve)])
    written = study.user_attrs.get(PROBLEM, {}).get("max_epochs")
    horizon = given or max(written or 1, longest)
    if horizon < longest:
        raise InvalidInput(f"max_epochs={horizon}: a trial of {study.study_name!r} has {longest}")
    return horizon
