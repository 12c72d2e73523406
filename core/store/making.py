"""Making a study, or finding the one that is there: with the same settings, in a space that may be wider by now.

One with other settings to which nothing was ever reported was made by mistake, a metric's name misspelt: it makes way.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from haltune._utils.differences import differences
from haltune._utils.process import checkable, surely_gone
from haltune.errors import StoreError, StudyMismatch
from haltune.errors.old_names import renamed
from haltune.log.events import (
    ADVICE,
    Budgeted,
    Created,
    Ended,
    Expired,
    Finished,
    Resumed,
    Slept,
    Started,
    plain,
)
from haltune.log.policy import Policy
from haltune.log.problem import Problem

from .base import Store
from .studies import recorded_problem

_log = logging.getLogger("haltune")
_UNREPORTED = (
    Created,
    Budgeted,
    Started,
    Resumed,
    Slept,
    Ended,
    Expired,
    Finished,
)  # without a report nothing was learnt


def make(
    store: Store, name: str, created: Created, seed: int | None, given: Problem, policy: Policy[Any]
) -> Created:
    """The first event of a study, which is `created` if there is none yet, or none but one without a report.

    Raises StudyMismatch for a study that was made with other settings, but for its space, of which the whole log says
    what it is; seed: None is any. given, policy: what `created` tells of; what the policy was taught when the study was
    made stays.
    """
    if store.create(name, created):
        return created
    first = next(store.read(name, stop=1), None)
    if not isinstance(first, Created):
        raise StoreError(f"event 0 of the study {name!r} in {store.url} does not make it. {ADVICE}")
    found = differences(renamed(first.policy), plain(policy.as_recorded(first.policy).spec), "policy.")
    if seed is not None and seed != first.seed:
        found.append(f"seed: recorded {first.seed}, given {seed}")
    differs = bool(found or differences(_lasting(first.problem), _lasting(created.problem)))
    if not differs and _fits(store, name, given, first):
        return first
    found = differences(first.problem, created.problem) + found
    if (length := _length_of_nothing(store, name)) and store.replace(name, created, length):
        _log.info(
            "the study %r in %s is made anew, for nothing was ever reported to it: %s",
            name, store.url, "; ".join(found),
        )  # fmt: skip
        return created
    if differs:
        raise _mismatch(store, name, found)
    return first


def _fits(store: Store, name: str, given: Problem, first: Created) -> bool:
    """False where a space lacks some of the one recorded first."""
    try:
        widens(store, name, given, recorded_problem(first))
    except StudyMismatch:
        return False
    return True


def _length_of_nothing(store: Store, name: str) -> int:
    """How many events a log has that nobody can miss; 0 for one that has others, or a worker who may live."""
    length = 0
    for event in store.read(name):
        if not isinstance(event, _UNREPORTED):
            return 0
        if isinstance(event, Started | Resumed) and not _is_past(event.worker):
            return 0
        length += 1
    return length


def _is_past(holder: str) -> bool:
    """Whether a worker is gone, or is this process, which begins again."""
    mine = checkable(holder) and holder.split("/")[3] == str(os.getpid())
    return mine or surely_gone(holder)


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
