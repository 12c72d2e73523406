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

from haltune._utils.checks import is_number
from haltune._utils.process import surely_gone
from haltune._utils.retry import retry
from haltune.errors import InvalidInput, NotSupported, StoreError
from haltune.log.events import Created, Event
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Goal, Maximize, Problem
from haltune.space import Space
from haltune.space.domains import Constant
from haltune.store.base import Store
from haltune.store.open import open_store
from haltune.store.studies import recorded_problem

from ..study import Study
from ..trial import Trial

VARIABLE = "HALTUNE_TRIAL"
_trials: dict[str, Trial] = {}  # of this process, by what it was told


def current_trial(
    defaults: Mapping[str, Any] | None = None,
    *,
    goal: Goal | None = None,
    max_epochs: int | None = None,
    policy: Policy[Any] | None = None,
) -> Trial:
    """The trial that a launcher started this program to train; the same object each time it is asked for.

    Args:
        defaults: The configuration of a stand-in, when no launcher started this program. Default: None, it needs one.
        goal: Of a stand-in; a callback needs the name of a metric that is logged. Default: None, Maximize("value").
        max_epochs: Of a stand-in, epochs of a full training. Default: None, nobody says.
        policy: Of a study whose policy holds functions, which a log cannot keep. Default: None, as recorded.

    Raises:
        LeaseLost: When the trial is not this launcher's any more.
        NotSupported: When the study cannot be rebuilt from its log.
        InvalidInput: When there is neither a launcher nor defaults, or the environment says what no launcher writes.

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


def told(study: Study, trial: Trial, marker: Path) -> str:
    """What the environment of a program says of its trial. marker: a file that appears when it should let go."""
    settings = study.settings
    return json.dumps({
        "store": study.store.address(), "name": study.name, "trial": trial.id, "attempt": trial.attempt,
        "holder": study.session.holder, "marker": str(marker), "budget": asdict(study.budget),
        **{name: getattr(settings, name) for name in _SAME},
    })  # fmt: skip


_SAME = ("checkpoints", "keep_checkpoints", "disk_quota", "lease", "max_failures", "max_retries", "patience")
_TEXT, _COUNT, _NUMBER, _TABLE = "a text", "a whole number", "a number", "a table"
_KINDS: dict[str, Callable[[Any], bool]] = {
    _TEXT: lambda value: isinstance(value, str) and value != "" and "\0" not in value,
    _COUNT: lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63,
    _NUMBER: is_number,
    _TABLE: lambda value: isinstance(value, dict),
}
_SAYS = {
    "store": _TEXT, "name": _TEXT, "trial": _COUNT, "attempt": _COUNT, "holder": _TEXT, "marker": _TEXT,
    "budget": _TABLE, "checkpoints": _TEXT, "keep_checkpoints": _COUNT, "disk_quota": f"{_NUMBER} or null",
    "lease": _NUMBER, "max_failures": _COUNT, "max_retries": _COUNT, "patience": _NUMBER,
}  # fmt: skip


def _read(text: str) -> dict[str, Any]:
    """What a launcher said. Raises InvalidInput that names the key for what none says."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _unsaid(f"is no JSON ({error}): {text[:60]!r}") from error
    if not isinstance(told, dict):
        raise _unsaid(f"is no table: {text[:60]!r}")
    if missing := [name for name in _SAYS if name not in told]:
        raise _unsaid(f"lacks {', '.join(missing)}")
    for name, kind in _SAYS.items():
        kind, _, optional = kind.partition(" or ")
        if not (_KINDS[kind](told[name]) or (optional and told[name] is None)):
            raise _unsaid(f"says {name} = {str(told[name])[:60]!r}: {kind}")
    try:
        told["budget"] = Budget(**told["budget"])
    except (TypeError, InvalidInput) as error:
        raise _unsaid(f"says budget = {str(told['budget'])[:60]!r}: {error}") from error
    return told


def _unsaid(what: str) -> InvalidInput:
    return InvalidInput(
        f"the environment variable {VARIABLE} {what}. Launchers set it for the programs that they start: unset it to "
        "train by itself, or start the program with `haltune run --study search.toml -- python train.py`"
    )


def leave_when(marker: Path, holder: str) -> Callable[[], str | None]:
    """Why a process that trains for a launcher should let go: it is asked to, or the launcher is no more."""

    def leaving() -> str | None:
        if marker.exists():
            return "the launcher was asked to stop: this run continues later"
        return "the launcher is gone: this run continues later" if surely_gone(holder) else None

    return leaving


def _stand_in(defaults: Mapping[str, Any] | None, goal: Goal | None, max_epochs: int | None) -> Trial:
    if defaults is None:
        raise InvalidInput(
            "no launcher started this program: give current_trial() the configuration to train by itself, "
            "current_trial({'lr': 1e-3}), or start it with `haltune run --study search.toml -- python train.py`"
        )
    from haltune.policies.random import RandomSearch

    space = Space({name: Constant(value) for name, value in defaults.items()})
    problem = Problem(space, goal or Maximize("value"), max_epochs)
    trial = Study(problem, RandomSearch(trials=1), name="stand-in", verbose=0).ask()
    assert isinstance(trial, Trial)
    return trial


def _handed_over(told: dict[str, Any], policy: Policy[Any] | None) -> Trial:
    def opened() -> tuple[Store, Event | None]:
        store = open_store(told["store"])
        return store, next(store.read(told["name"], stop=1), None)

    store, created = retry(opened, told["patience"])
    if not isinstance(created, Created):
        raise StoreError(f"{store.url} holds no study {told['name']!r}")
    if recorded_problem(created).space.constraints:
        raise NotSupported(
            "the study's space has constraints, functions that its log cannot keep: say them with bounds that name "
            "other parameters, or train by haltune.launch.run(study, train)"
        )
    from haltune.policies.from_spec import policy_from

    study = Study(
        Problem.from_json(created.problem), policy or policy_from(created.policy), store, told["name"],
        budget=told["budget"], verbose=0, **{name: told[name] for name in _SAME},
    )  # fmt: skip
    leaving = leave_when(Path(told["marker"]), told["holder"])
    return study.take(told["trial"], told["attempt"], told["holder"], leaving)
