"""A study in a store: how it is made or found, its problem, what holds it, and what users ask of it while it runs.

While it is held nobody begins a trial, and those that train are saved at their next report, on all machines.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from haltune._utils.process import checkable, surely_gone
from haltune.display import one_line
from haltune.errors import InvalidInput, StoreError, StudyMismatch
from haltune.log.events import (
    ADVICE,
    OVER,
    Asked,
    Budgeted,
    Created,
    Ended,
    Enqueued,
    Expired,
    Finished,
    Held,
    Raised,
    Resumed,
    Slept,
    Started,
    Status,
    plain,
)  # fmt: skip
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Problem
from haltune.old_names import differences, renamed

from .base import Store

_log = logging.getLogger("haltune")
_ANY = 2**31 - 1  # a position beyond every log: the event conflicts with nothing
# without a report nothing was learnt
_UNREPORTED = (Created, Budgeted, Started, Resumed, Slept, Ended, Expired, Finished)


def recorded_problem(created: Created) -> Problem:
    """The problem of a log. Its constraints, functions of which only the names are kept, allow everything.

    Raises StoreError when it is none.
    """
    try:
        names: list[str] = created.problem["space"]["constraints"]
        return Problem.from_json(created.problem, dict.fromkeys(names, lambda config: True))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise StoreError(f"the problem in the log is none, {one_line(error)}. {ADVICE}") from error


def make(store: Store, name: str, created: Created, seed: int | None, given: Problem, policy: Policy[Any]) -> Created:
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
    if not differs:
        with suppress(StudyMismatch):  # its space lacks some of the one recorded first
            widens(store, name, given, recorded_problem(first))
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


def _length_of_nothing(store: Store, name: str) -> int:
    """How many events a log has that nobody can miss; 0 for one that has others, or a worker who may live."""
    length = 0
    for event in store.read(name):
        if not isinstance(event, _UNREPORTED):
            return 0
        if isinstance(event, Started | Resumed):
            mine = checkable(event.worker) and event.worker.split("/")[3] == str(os.getpid())
            if not (mine or surely_gone(event.worker)):  # this process begins again
                return 0
        length += 1
    return length


def widens(store: Store, name: str, given: Problem, now: Problem) -> bool:
    """Whether the space given has more than the one that the study has by now.

    Raises StudyMismatch when it lacks some of that, and for other configurations to start with.
    """
    if given.of_log:  # whatever the log says is meant
        return False
    found = [f"space: {said}" for said in given.space.lacking(now.space)]
    if not found:
        begun = replace(now, space=given.space.widening(now.space)).start
        wider = list(given.space.canonical_many(begun))
        found = differences({"start": wider} if wider else {}, {"start": list(given.start)} if given.start else {})
    if found:
        raise _mismatch(store, name, found)
    return given.space != now.space


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


def hold(store: Store, name: str, reason: str) -> None:
    """Hold the search until `lift`. Raises StoreError for an unknown name."""
    store.append(name, [Held(at=store.now(), reason=reason)], seen=_ANY, about=None)


def lift(store: Store, name: str, history: History) -> bool:
    """Let a held search go on; False when nobody held it."""
    if history.held is None:
        return False
    store.append(name, [Held(at=store.now(), reason=None)], seen=_ANY, about=None)
    return True


def ask_of(store: Store, name: str, history: History, trial: int, wish: str, reason: str) -> None:
    """Have one run stopped, or set aside ("pause"), at its next report, or let it continue.

    Raises InvalidInput for a run that this cannot be asked of, StoreError for an unknown name.
    """
    r = history.trial(trial)
    if r.status in OVER:
        raise InvalidInput(f"trial {trial} is over, {r.status}: nothing can be asked of it")
    if r.status is Status.PAUSED:
        raise InvalidInput(f"trial {trial} is paused: whether it continues, the policy decides")
    if wish == "continue" and trial not in history.wishes.runs:
        raise InvalidInput(f"nothing was asked of trial {trial}: it is {r.status}")
    asked = Asked(at=store.now(), trial=trial, attempt=r.attempt, wish=wish, reason=reason)
    store.append(name, [asked], seen=_ANY, about=None)


def enqueued(
    history: History, policy: Policy[Any], config: Mapping[str, Any], again: bool, now: float
) -> Enqueued | None:
    """What makes a configuration wait; None where it was begun or waits. Raises InvalidInput after the policy's end."""
    key = history.problem.space.key_of_canonical
    if not again and (key(config) in history.tried or key(config) in map(key, history.queue)):
        return None
    if history.finished is not None and not policy.plans:
        raise InvalidInput(
            f"the policy has ended this search for good, so that nothing more is begun: {history.finished}. "
            "Give a new search another name="
        )
    return Enqueued(at=now, config=plain(config))


def if_allowed(problem: Problem) -> str:
    """To be added to what waits, said by who has a log alone: it does not hold the constraints."""
    named = " and ".join(repr(c.name) for c in problem.space.constraints)
    return named and f", if {named} {'allow' if len(problem.space.constraints) > 1 else 'allows'} it"


def raise_limits(store: Store, name: str, history: History, limits: dict[str, Any]) -> Budget:
    """Raise limits of the budget, for all workers; what it is then, as far as the log tells.

    Raises InvalidInput for limits that are none, or that do not raise any, StoreError for an unknown name.
    """
    now = history.wishes.extended(history.recorded)
    try:
        given = Budget(**limits, price=now.price).to_json()
    except TypeError:
        raise InvalidInput(f"limits of a budget: {', '.join(now.to_json()) or 'none was given'}") from None
    given.pop("price", None)
    larger = {n: limit for n, limit in given.items() if (getattr(now, n) or limit) < limit}
    if not larger:
        raise InvalidInput(f"nothing is raised: the budget is {limits_of(now) or 'without a limit'}")
    store.append(name, [Raised(at=store.now(), budget=larger)], seen=_ANY, about=None)
    history.wishes.limits.update(larger)
    return history.wishes.extended(now)


def limits_of(budget: Budget) -> str:
    """Its limits in words, "" without one."""
    return ", ".join(f"{n} {limit:g}" for n, limit in budget.to_json().items() if n != "price")
