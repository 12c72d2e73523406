"""Open an existing study by its log, and the trial that a launcher passed to this process."""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, cast

from haltune._utils.disk import StrPath
from haltune._utils.process import new_holder, surely_gone
from haltune.display import one_line
from haltune.errors import InvalidInput, NotSupported, StoreError, StoreReadOnly
from haltune.hints import with_hints
from haltune.log.events import Created, Event
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Goal, Maximize, Problem
from haltune.log.spending import Outcome
from haltune.space import Space
from haltune.space.domains import Constant
from haltune.space.space import Constraints, constraints_from
from haltune.store.base import Store, retry
from haltune.store.checkpoints import Checkpointing
from haltune.store.open import Storage, only_study, open_store
from haltune.store.studies import recorded_problem

from .messages import Logger
from .session import Session
from .study import Study
from .trial import Trial
from .view import RecordedStudy, first_event, read_study


class ReadingSession:
    """The session of a study that is open for reading only: every change raises NotSupported."""

    def __init__(self, reading: RecordedStudy, why: str) -> None:
        self.log, self.budget, self._why = reading.log, reading.budget, why
        self.monotonic, self.logger = time.perf_counter, Logger(0)

    def sync(self) -> None:
        """Do nothing: the log was read once."""

    def first(self, work: Callable[[], Any]) -> Any:
        return work()

    def __getattr__(self, name: str) -> NoReturn:
        raise NotSupported(self._why)


@with_hints
def load_study(
    store: StrPath | Store | Storage,
    name: str | None = None,
    *,
    policy: Policy[Any] | None = None,
    constraints: Constraints = (),
    budget: Budget | str | None = None,
    checkpoints: StrPath | Checkpointing | None = None,
    max_failures: int = 5,
    verbose: int = 1,
) -> Study:
    """Open an existing study, to look at it or to continue it, without its space, goal and policy.

    A log keeps everything except functions. If the space has constraints or the policy holds a function, pass them
    here. Without them the study is open for reading only, and continuing it raises NotSupported.

    Args:
        store: Where the log is: the path or URL that the Study was created with.
        name: The study's name. Default: None, the only study of the store.
        policy: The policy of the study, if it holds functions or is your own. Default: None, the recorded one.
        constraints: The constraints of its space, as for Space. Default: none.
        budget: As in Study. Default: None, the budget recorded last.
        checkpoints: As in Study. Default: None, the folder that the study was created with.
        max_failures: As in Study. Default: 5.
        verbose: As in Study. Default: 1.

    Returns:
        The study. Nothing is written to it before you ask for a trial.

    Raises:
        StoreError: If there is no store or no such study; the error lists the names of its studies.
        InvalidSpace: If the constraints differ from those of its space.
        StudyMismatch: If the policy differs from the recorded one.

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
    folder = checkpoints.folder if isinstance(checkpoints, Checkpointing) else checkpoints
    try:
        problem = _problem(created, constraints)
        decides = policy or _policy(created)
    except NotSupported as error:
        return _Shown(read_study(found, name, folder), str(error))
    try:
        study = Study(
            problem, decides, store, name, budget=budget, checkpoints=checkpoints, max_failures=max_failures,
            verbose=verbose,
        )  # fmt: skip
    except StoreReadOnly as error:  # an archive
        return _Shown(read_study(found, name, folder), str(error))
    if budget is None and study.history.recorded is not None:
        study.budget = study.history.recorded
    return study


def _problem(created: Created, constraints: Constraints) -> Problem:
    supplied = {c.name: c.predicate for c in constraints_from(constraints)}
    recorded = recorded_problem(created).space.constraints
    if recorded and not supplied:
        names = ", ".join(repr(c.name) for c in recorded)
        raise NotSupported(
            f"Its space has the constraints {names}. They are functions, and the log keeps only their names. Pass "
            "them: load_study(store, name, constraints={name: function})."
        )
    return Problem.from_json(created.problem, supplied)


def _policy(created: Created) -> Policy[Any]:
    from haltune.policies.from_spec import policy_from

    try:
        return policy_from(created.policy)
    except NotSupported as error:
        raise NotSupported(f"{error} Or pass it here: load_study(store, name, policy=...).") from error


class _Shown(Study):
    """A study for reading only: its log lacks a function that decides, or cannot be written."""

    def __init__(self, reading: RecordedStudy, why: str) -> None:
        self.name, self.policy = reading.name, reading.policy
        self._reading = reading
        self._why = f"The study {reading.name!r} is open for reading only and cannot continue. {why}"
        self._begin(cast(Session, ReadingSession(reading, self._why)))

    @property
    def outcome(self) -> Outcome:
        return self._reading.outcome

    def ask(self) -> NoReturn:
        raise NotSupported(self._why)

    def _without_best(self) -> None:
        """Do nothing: the program of the study gives this hint."""


VARIABLE = "HALTUNE_TRIAL"
_trials: dict[str, Trial] = {}  # of this process, by the launcher's text


def current_trial(
    defaults: Mapping[str, Any] | None = None,
    *,
    goal: Goal | None = None,
    max_epochs: int | None = None,
    policy: Policy[Any] | None = None,
) -> Trial:
    """Return the trial that a launcher started this program to train; the same object at every call.

    Args:
        defaults: A configuration to train if no launcher started this program. Default: None, a launcher is required.
        goal: With `defaults`: the goal. A callback needs the name of a logged metric. Default: None, Maximize("value").
        max_epochs: With `defaults`: epochs of a full training. Default: None, not limited.
        policy: The policy of the study, if it holds functions, which a log cannot keep. Default: None, the recorded
            one.

    Raises:
        LeaseLost: If the launcher no longer holds the trial.
        NotSupported: If the study cannot be rebuilt from its log.
        InvalidInput: If there is neither a launcher nor defaults, or no launcher wrote the environment variable.

    Example:
        >>> trial = current_trial({"lr": 0.1}, goal=Maximize("acc"), max_epochs=3)
        >>> trial.config
        {'lr': 0.1}
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return _stand_in(defaults, goal, max_epochs)
    if text not in _trials:
        _trials[text] = _handed_over(_read(text), policy)
    return _trials[text]


def handover_text(study: Study, trial: Trial, marker: Path) -> str:
    """Return the environment variable's text for a trial's program. marker: once this file exists, it must stop."""
    settings = study.session.settings
    return json.dumps({
        "name": study.name, "trial": trial.id, "attempt": trial.attempt, "holder": study.session.holder,
        "marker": str(marker), "budget": asdict(study.budget), "max_failures": settings.max_failures,
        "store": vars(settings.store) | {"url": study.store.address()}, "checkpoints": vars(settings.checkpoints),
    })  # fmt: skip


_KINDS: dict[str, type] = {
    "store": dict, "name": str, "trial": int, "attempt": int, "holder": str, "marker": str, "budget": dict,
    "checkpoints": dict, "max_failures": int,
}  # fmt: skip


def _read(text: str) -> dict[str, Any]:
    """Return the launcher's data. Raises InvalidInput if no launcher wrote the text."""
    try:
        data: dict[str, Any] = json.loads(text)
        wrong = ", ".join(name for name, kind in _KINDS.items() if not isinstance(data[name], kind))
        made = {"budget": Budget, "store": Storage, "checkpoints": Checkpointing}
        data |= {name: kind(**data[name]) for name, kind in made.items()}
    except (ValueError, RecursionError, TypeError, LookupError, InvalidInput) as error:
        wrong = one_line(error)
    if wrong:
        raise InvalidInput(
            f"Cannot read the environment variable {VARIABLE} ({wrong}). Launchers set it for the programs that they "
            "start. To train without a launcher, unset it. To train with one, start the program with "
            "`haltune run search.toml -- python train.py`."
        )
    return data


def leave_when(marker: Path, holder: str) -> Callable[[], str | None]:
    """Return a function that returns why a process of a launcher must stop, or None: by request, or it is gone."""

    def leaving() -> str | None:
        if marker.exists():
            return "the launcher was asked to stop: this trial continues later"
        return "the launcher is gone: this trial continues later" if surely_gone(holder) else None

    return leaving


def _stand_in(defaults: Mapping[str, Any] | None, goal: Goal | None, max_epochs: int | None) -> Trial:
    if defaults is None:
        raise InvalidInput(
            "No launcher started this program. To train without one, pass a configuration: "
            "current_trial({'lr': 1e-3}). To use a launcher, start it with "
            "`haltune run search.toml -- python train.py`."
        )
    from haltune.policies.random import RandomSearch

    space = Space({name: Constant(value) for name, value in defaults.items()})
    problem = Problem(space, goal or Maximize("value"), max_epochs)
    trial = Study(problem, RandomSearch(trials=1), name="stand-in", verbose=0).ask()
    assert isinstance(trial, Trial)
    return trial


def _handed_over(data: dict[str, Any], policy: Policy[Any] | None) -> Trial:
    def opened() -> tuple[Store, Event | None]:
        store = open_store(data["store"])
        return store, next(store.read(data["name"], stop=1), None)

    store, created = retry(opened, data["store"].patience)
    if not isinstance(created, Created):
        raise StoreError(f"{store.url} holds no study {data['name']!r}")
    if recorded_problem(created).space.constraints:
        raise NotSupported(
            "The study's space has constraints. They are functions, which its log cannot keep. Write them as bounds "
            "that name other parameters, or train with haltune.launch.run(study, train)."
        )
    from haltune.policies.from_spec import policy_from

    study = Study(
        Problem.from_json(created.problem), policy or policy_from(created.policy), replace(data["store"], url=store),
        data["name"], budget=data["budget"], checkpoints=data["checkpoints"], max_failures=data["max_failures"],
        verbose=0,
    )  # fmt: skip
    marker = Path(data["marker"])
    trial = study.take(data["trial"], data["attempt"], data["holder"], leave_when(marker, data["holder"]))
    place = marker.with_name(f"trained-{data['trial']}-{data['attempt']}")
    follows: bool = study.session.once(
        trial, "is trained by another process", partial(_follows_a_killed_process, place)
    )
    if follows and not (trial.horizon is not None and trial.epoch >= trial.horizon):
        last = trial.history.trial(trial.id).checkpoint_epoch
        trial.restart(last, "Its program was started again, as by torchrun, without the states of later reports.")
    return trial


def _follows_a_killed_process(place: Path) -> bool:
    """Return whether a killed process has trained this attempt. Note this process, unless a living one is noted.

    A living process may have started this one, such as to load data. One that ended normally may have trained the first
    part of a training.
    """
    with suppress(OSError):  # the launcher is gone
        before = place.read_text(encoding="utf-8") if place.exists() else ""
        if not before or surely_gone(before):
            place.write_text(new_holder(), encoding="utf-8")
            atexit.register(partial(place.unlink, missing_ok=True))
        return surely_gone(before)
    return False
