"""Making a study, or finding the one that is there: with the same settings, in a space that may be wider by now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from haltune._utils.differences import differences
from haltune.errors import StoreError, StudyMismatch
from haltune.log.events import Created
from haltune.log.problem import Problem
from haltune.log.validity import ADVICE

from .base import Store


def make(store: Store, name: str, created: Created, seed: int | None) -> Created:
    """The first event of a study, which is `created` if there is none yet.

    Raises StudyMismatch for a study that was made with other settings, but for its space, of which the whole log says
    what it is; seed: None is any.
    """
    if store.create(name, created):
        return created
    first = next(store.read(name, stop=1), None)
    if not isinstance(first, Created):
        raise StoreError(f"event 0 of the study {name!r} in {store.url} does not make it. {ADVICE}")
    found = differences(first.policy, created.policy, "policy.")
    if seed is not None and seed != first.seed:
        found.append(f"seed: recorded {first.seed}, given {seed}")
    if found or differences(_lasting(first.problem), _lasting(created.problem)):
        raise _mismatch(store, name, differences(first.problem, created.problem) + found)
    return first


def widens(store: Store, name: str, given: Problem, now: Problem) -> bool:
    """Whether the space given has more than the one that the study has by now.

    Raises StudyMismatch when it lacks some of that, and for other configurations to start with.
    """
    if given.of_log:  # whatever the log says is meant
        return False
    found = [f"space: {said}" for said in given.space.lacking(now.space)]
    if not found:
        begun = replace(now, space=given.space.widening(now.space)).start
        found = differences(_start(given.space.canonical_many(begun)), _start(given.start))
    if found:
        raise _mismatch(store, name, found)
    return given.space != now.space


def _start(configs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"start": list(configs)} if configs else {}


def _lasting(problem: Mapping[str, Any]) -> dict[str, Any]:
    """What of a problem stays, however its space is widened."""
    space = problem.get("space")
    named = space.get("constraints") if isinstance(space, Mapping) else space
    return {**problem, "space": named, "start": None}


def _mismatch(store: Store, name: str, found: list[str]) -> StudyMismatch:
    listing = "\n  - ".join(found)
    begin = (
        f"; it may begin with what {name!r} found, start=[load_study(...).best_params]. A space that contains the "
        "recorded one is taken: the search continues in it"
    )
    return StudyMismatch(
        f"{store.url} already holds a study {name!r} with other settings:\n  - {listing}\n"
        "Open it with the settings it was recorded with, or give the new one another name= or store="
        + (begin if any(text.startswith("space") for text in found) else "")
    )
