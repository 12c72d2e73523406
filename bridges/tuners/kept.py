"""A conductor as JSON: of a study in memory its log, of one in a file or a database only what it calls its trials.

What comes back holds the trials that it held, under the leases that they had: each goes on where it was, and what it
reports again is known already. Trials that the study began after the state was written are offered again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from haltune.errors import InvalidInput, LeaseLost
from haltune.log.codec import from_json, to_json, verdict_from_json, verdict_to_json
from haltune.log.events import OVER
from haltune.log.policy import Policy
from haltune.log.problem import Budget
from haltune.space.space import Constraints
from haltune.store.base import Lease, Store
from haltune.store.memory import MemoryStore
from haltune.study.joining.loading import load_study

from .conductor import UNLIMITED, Conductor

KeptState = dict[str, Any]
StoreLike = str | os.PathLike[str] | Store | None
_VERSION = 1


def state_of(conductor: Conductor | None) -> KeptState:
    """Strict JSON; None: of a search that has not begun."""
    if conductor is None:
        return {"haltune": _VERSION}
    study = conductor.study
    study.sync()
    log = study.session.log
    in_memory = isinstance(log.store, MemoryStore)
    return {
        "haltune": _VERSION,
        "name": study.name,
        "store": log.store.url,
        "holder": study.session.holder,
        "held": {name: [trial.id, trial.attempt] for name, trial in conductor.held.items()},
        "told": {name: verdict_to_json(t.verdict) for name, t in conductor.held.items() if t.verdict},
        "declined": conductor.declined,
        "pauses": conductor.pauses,
        "numbers": dict(conductor.numbers),
        "reasons": dict(conductor.reasons),
        "budget": study.budget.to_json(),
        **({"events": [to_json(event) for event in log.events()]} if in_memory else {}),
    }


def conductor_of(
    state: Mapping[str, Any],
    store: StoreLike = None,
    policy: Policy[Any] | None = None,
    constraints: Constraints = (),
) -> Conductor | None:
    """The inverse. store: where the log is, unless the state says it all. policy, constraints: see load_study.

    Raises InvalidInput for what is no such state, and what load_study raises.
    """
    if not isinstance(state, Mapping) or state.get("haltune") != _VERSION:
        raise InvalidInput("this is no state of a search by haltune, or one of a later version")
    if "name" not in state:
        return None
    name, holder = str(state["name"]), str(state["holder"])
    if "events" in state:
        store = _refilled(name, holder, state)
    budget = Budget(**state["budget"]) if state["budget"] else UNLIMITED
    study = load_study(
        store or str(state["store"]), name, policy=policy, constraints=constraints, budget=budget, verbose=0
    )
    conductor = Conductor(study, bool(state["pauses"]))
    conductor.numbers.update(state["numbers"])
    unheard = sum(t.status in OVER and t.id not in state["numbers"].values() for t in study.trials)
    if unheard and budget.trials is not None:  # the other tuner trains others in their place
        study.budget = replace(budget, trials=budget.trials + unheard)
    for key, (id, attempt) in state["held"].items():
        try:
            conductor.hold(key, study.take(id, attempt, holder, lambda: None))
        except LeaseLost:
            continue  # it ended after the state was written
    for key in conductor.held.keys() & state["told"].keys():
        conductor.held[key].verdict = verdict_from_json(state["told"][key])
    conductor.reasons.update(state["reasons"])
    conductor.declined = state["declined"]
    return conductor


def _refilled(name: str, holder: str, state: Mapping[str, Any]) -> MemoryStore:
    store = MemoryStore()
    first, *others = [from_json(event) for event in state["events"]]
    store.create(name, first)
    seen = store.append(name, others, seen=1, about=None) + len(others)
    for id, attempt in state["held"].values():
        now = store.now()
        store.append(name, [], seen=seen, about=id, lease=Lease(id, attempt, holder, now, now))
    return store


def write_state(state: KeptState, path: str | os.PathLike[str]) -> None:
    """Write a state."""
    Path(path).write_text(json.dumps(state, allow_nan=False), encoding="utf-8")


def read_state(path: str | os.PathLike[str]) -> KeptState:
    """What was written. Raises InvalidInput for another file."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidInput(f"{path} holds no state of a search by haltune: {error}") from error
    if not isinstance(found, dict):
        raise InvalidInput(f"{path} holds no state of a search by haltune")
    return found
