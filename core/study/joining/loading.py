"""A study opened by its log: its problem, policy and budget are there, and need not be said again."""

from __future__ import annotations

import os
from typing import Any, NoReturn, Unpack

from haltune._utils.disk import StrPath
from haltune.errors import NotSupported, StoreReadOnly
from haltune.errors.foreign_words import answering
from haltune.log.events import Created
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Problem
from haltune.log.spending import Outcome
from haltune.space.space import Constraints, constraints_from
from haltune.store.base import Store
from haltune.store.open import only_study, open_store
from haltune.store.studies import recorded_problem

from ..entrance.looking import ReadingSession
from ..entrance.opened import Rarer
from ..reading import Reading, first_event, read_study
from ..study import Study


@answering
def load_study(
    store: StrPath | Store,
    name: str | None = None,
    *,
    policy: Policy[Any] | None = None,
    constraints: Constraints = (),
    budget: Budget | str | None = None,
    **options: Unpack[Rarer],
) -> Study:
    """A study that is there already, to look at or to go on with, without its space, goal and policy said again.

    A log keeps everything but functions. Where its space has constraints, or its policy holds a function, and they are
    not given here, the study is there to look at, and what would go on with it raises NotSupported.

    Args:
        store: Where the log is: a path or a URL, as the Study was given it.
        name: Of the study. Default: None, the only one of the store.
        policy: The policy it was made with, where that holds functions or is your own. Default: None, as recorded.
        constraints: The constraints of its space, as Space takes them. Default: none.
        budget: As Study's. Default: None, the one recorded last.
        options: What else is not recorded, as Study's: checkpoints, keep_checkpoints, disk_quota, lease, patience.

    Returns:
        The study. Nothing is written to it until it is asked for a trial.

    Raises:
        StoreError: When there is no store or no such study, with the names of those there are.
        InvalidSpace: For constraints that are not those of its space.
        StudyMismatch: When the policy is not the one that it was made with.

    Example:
        >>> space = {"x": Float(-2.0, 2.0)}
        >>> study = Study(space, "loss", "search.db", max_epochs=1, seed=0, budget="3 trials")
        >>> _ = study.optimize(lambda trial: trial.config["x"] ** 2)
        >>> again = load_study("search.db")
        >>> len(again.trials), again.best == study.best, again.outcome.over
        (3, True, True)
        >>> again.budget = "5 trials"
        >>> len(again.optimize(lambda trial: trial.config["x"] ** 2).trials)
        5
    """
    found = open_store(store, reading=True)
    name = only_study(found, name)
    created = first_event(found, name)
    try:
        problem = _problem(created, constraints)
        decides = policy or _policy(created)
    except NotSupported as error:
        return _Shown(read_study(found, name, _folder(options)), str(error))
    try:
        study = Study(problem, decides, store, name, budget=budget, **options)
    except StoreReadOnly as error:  # an archive
        return _Shown(read_study(found, name, _folder(options)), str(error))
    if budget is None and study.history.recorded is not None:
        study.budget = study.history.recorded
    return study


def _problem(created: Created, constraints: Constraints) -> Problem:
    supplied = {c.name: c.predicate for c in constraints_from(constraints)}
    recorded = recorded_problem(created).space.constraints
    if recorded and not supplied:
        names = ", ".join(repr(c.name) for c in recorded)
        raise NotSupported(
            f"its space has the constraints {names}, functions of which a log keeps the names alone: give them, "
            "load_study(store, name, constraints={name: function})"
        )
    return Problem.from_json(created.problem, supplied)


def _policy(created: Created) -> Policy[Any]:
    from haltune.policies.from_spec import policy_from

    try:
        return policy_from(created.policy)
    except NotSupported as error:
        raise NotSupported(f"{error}; or give it here, load_study(store, name, policy=...)") from error


def _folder(options: Rarer) -> StrPath | None:
    given = options.get("checkpoints")
    return given if given is None or isinstance(given, str | os.PathLike) else given.folder


class _Shown(Study):
    """A study whose log does not hold all that decides, or cannot be written: to look at."""

    def __init__(self, reading: Reading, why: str) -> None:
        self.name, self.policy = reading.name, reading.policy
        self._reading, self._why = (
            reading,
            f"the study {reading.name!r} can be looked at, not gone on with: {why}",
        )
        self._begin(ReadingSession(reading, self._why))

    @property
    def outcome(self) -> Outcome:
        return self._reading.outcome

    def ask(self) -> NoReturn:
        raise NotSupported(self._why)
