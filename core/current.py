"""The trial that this program was started to train, by a launcher that set it in the environment.

    trial = haltune.current_trial({"lr": 1e-3, "width": 64}, max_epochs=20)

Every process of a distributed training inherits it. Without a launcher it is a stand-in with the program's own
defaults, so that the same program trains by itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .errors import InvalidInput, NotSupported, StoreError
from .events import Created, Event
from .holder import surely_gone
from .patience import patiently
from .policy import Policy
from .problem import Budget, Goal, Maximize, Problem
from .space import Space
from .spaces.domains import Constant
from .store import Store, address, open_store
from .study import Study
from .trial import Trial

VARIABLE = "HALTUNE_TRIAL"
_trials: dict[str, Trial] = {}  # of this process, by what it was told


def current_trial(
    defaults: Mapping[str, Any] | None = None,
    *,
    goal: Goal | None = None,
    max_epochs: int | None = None,
    policy: Policy[Any] | None = None,
) -> Trial:
    """The trial to train; the same object each time it is asked for.

    defaults: the configuration of a stand-in, when no launcher started this program. goal, max_epochs: likewise,
    Maximize("value") if None; a callback needs the name of a metric that is logged. policy: for a study whose
    policy holds functions, which a log cannot keep.

    Raises LeaseLost when the trial is not this launcher's any more, NotSupported when the study cannot be
    rebuilt from its log, InvalidInput when there is neither a launcher nor defaults.
    """
    text = os.environ.get(VARIABLE)
    if text is None:
        return _stand_in(defaults, goal, max_epochs)
    if text not in _trials:
        _trials[text] = _handed_over(json.loads(text), policy)
    return _trials[text]


def told(study: Study, trial: Trial, marker: Path) -> str:
    """What the environment of a program says of its trial. marker: a file that appears when it should let go."""
    arguments = study.arguments
    return json.dumps({
        "store": address(arguments["store"]), "name": study.name, "trial": trial.id, "attempt": trial.attempt,
        "holder": study.holder, "marker": str(marker), "budget": asdict(study.budget),
        **{name: arguments[name] for name in _SAME},
    })  # fmt: skip


_SAME = ("checkpoints", "keep_checkpoints", "disk_quota", "lease", "max_failures", "max_retries", "patience")


def leave_when(marker: Path, holder: str) -> Callable[[], str | None]:
    """Why a process that trains for a launcher should let go: it is asked to, or the launcher is no more."""

    def leaving() -> str | None:
        if marker.exists():
            return "the launcher was asked to stop: this run goes on later"
        return "the launcher is gone: this run goes on later" if surely_gone(holder) else None

    return leaving


def _stand_in(defaults: Mapping[str, Any] | None, goal: Goal | None, max_epochs: int | None) -> Trial:
    if defaults is None:
        raise InvalidInput(
            "no launcher started this program: give current_trial() the configuration to train by itself, "
            "current_trial({'lr': 1e-3}), or start it with `haltune run --study search.toml -- python train.py`"
        )
    from .policies.random import RandomSearch

    space = Space({name: Constant(value) for name, value in defaults.items()})
    problem = Problem(space, goal or Maximize("value"), max_epochs)
    trial = Study(problem, RandomSearch(trials=1), name="stand-in").ask()
    assert isinstance(trial, Trial)
    return trial


def _handed_over(told: dict[str, Any], policy: Policy[Any] | None) -> Trial:
    def opened() -> tuple[Store, Event | None]:
        store = open_store(told["store"])
        return store, next(store.read(told["name"], stop=1), None)

    store, created = patiently(opened, told["patience"])
    if not isinstance(created, Created):
        raise StoreError(f"{store.url} holds no study {told['name']!r}")
    if created.problem["space"]["constraints"]:
        raise NotSupported(
            "the study's space has constraints, functions that its log cannot keep: say them with bounds that name "
            "other parameters, or train by haltune.launch.run(study, train)"
        )
    from .policies.rebuild import policy_from

    study = Study(
        Problem.from_json(created.problem), policy or policy_from(created.policy), store, told["name"],
        budget=Budget(**told["budget"]), **{name: told[name] for name in _SAME},
    )  # fmt: skip
    leaving = leave_when(Path(told["marker"]), told["holder"])
    return study.take(told["trial"], told["attempt"], told["holder"], leaving)
