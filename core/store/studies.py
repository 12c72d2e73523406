"""A study in a store: create or open it, read its problem, pause it, and record users' requests while it runs.

While the search is paused no trial starts, and running trials are saved at their next report, on all machines.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from haltune._utils.process import is_mine
from haltune.display import clipped, one_line
from haltune.errors import InvalidInput, StoreError, StudyMismatch
from haltune.log import events as ev
from haltune.log.events import ADVICE, OVER, Created, Status, plain
from haltune.log.history import History
from haltune.log.outcomes import outcome_of
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Problem, length_argument
from haltune.space import Space

from .base import LAST, Store, holder_is_gone

_log = logging.getLogger("haltune")
_NOTE = 2000  # characters of a note
# a log with only these events has no reports
_UNREPORTED = (Created, ev.Budgeted, ev.Started, ev.Resumed, ev.Slept, ev.Ended, ev.Expired, ev.Finished)


def recorded_problem(created: Created) -> Problem:
    """Return the problem of a log. Its constraints allow everything, because the log has only their names.

    Raises StoreError if the log has no valid problem.
    """
    try:
        names: list[str] = created.problem["space"]["constraints"]
        return Problem.from_json(created.problem, dict.fromkeys(names, lambda config: True))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise StoreError(f"the problem in the log is invalid, {one_line(error)}. {ADVICE}") from error


def make(store: Store, name: str, created: Created, seed: int | None, given: Problem, policy: Policy[Any]) -> Created:
    """Return the first event of a study: `created` if there is no study, or only one without a report.

    given, policy: the problem and the policy of `created`. The policy keeps the prior studies of its first start.
    Raises StudyMismatch if the study was created with other settings. The space may be wider or narrower.
    seed: None accepts any seed.
    """
    if store.create(name, created):
        return created
    first = next(store.read(name, stop=1), None)
    if not isinstance(first, Created):
        raise StoreError(f"event 0 of the study {name!r} in {store.url} does not create it. {ADVICE}")
    continued = policy.as_recorded(first.policy)
    found = differences(plain(continued.completed(first.policy)), plain(continued.spec), "policy.")
    if seed is not None and seed != first.seed:
        found.append(f"seed: recorded {first.seed}, given {seed}")
    recorded = _completed(first.problem, plain(recorded_problem(first).to_json()))
    differs = bool(found or differences(_lasting(recorded), _lasting(created.problem)))
    if not differs:
        with suppress(StudyMismatch):  # the given space lacks a part of the first recorded one
            continued_in(store, name, given, recorded_problem(first))
            return first
    found = differences(_as_given(recorded), _as_given(created.problem)) + found
    if (length := _length_of_nothing(store, name)) and store.replace(name, created, length):
        _log.info(
            "the study %r in %s is created again, because it had no report: %s",
            name, store.url, "; ".join(found),
        )  # fmt: skip
        return created
    if differs:
        raise _mismatch(store, name, found)
    return first


def _length_of_nothing(store: Store, name: str) -> int:
    """Return the length of a log without reports; 0 if it has reports or its worker may be alive."""
    length = 0
    for event in store.read(name):
        if not isinstance(event, _UNREPORTED):
            return 0
        if isinstance(event, ev.Started | ev.Resumed) and not (
            is_mine(event.worker) or holder_is_gone(store, event.worker)  # the same process starts again
        ):
            return 0
        length += 1
    return length


def continued_in(store: Store, name: str, given: Problem, now: Problem) -> Space | None:
    """Return the space in which the study continues with a given problem; None if it is the study's current space.

    Raises StudyMismatch if no space contains both, or if `start` has other configurations. Those outside a narrower
    space may be missing there.
    """
    if given.of_log:  # accepts the space of the log
        return None
    space = given.space if not given.space.lacking(now.space) else given.space.covering(now.space)
    found = [f"space: {lacks}" for lacks in space.lacking(now.space)]
    if not found:
        narrowed = space != given.space
        space = space.widening(now.space)
        space = space.narrowed_to(given.space) if narrowed else space
        start = [config for config in replace(now, space=space).start if space.contains(config)]
        found = differences({"start": given.space.canonical_many(start)}, {"start": list(given.start)})
    if found:
        raise _mismatch(store, name, found)
    return None if given.space == now.space.inside else space


def differences(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "") -> list[str]:
    """Return one sentence per difference between two JSON objects."""
    kinds = old.get("policy"), new.get("policy")
    if kinds[0] != kinds[1] and all(isinstance(kind, str) for kind in kinds):
        return [f"{where}policy: recorded {kinds[0]!r}, given {kinds[1]!r}"]  # their options cannot be compared
    found: list[str] = []
    for key in [*old, *(k for k in new if k not in old)]:
        name = f"{where}{key}"
        if key not in new:
            found.append(f"{name}: recorded {clipped(repr(old[key]), 80)}, now missing")
        elif key not in old:
            found.append(f"{name}: was missing, now {clipped(repr(new[key]), 80)}")
        elif (parts := (_by_name(old[key]), _by_name(new[key]))) and None not in parts:
            found += differences(parts[0] or {}, parts[1] or {}, f"{name}.")
            found += _order(old[key], new[key], name)
        elif old[key] != new[key]:
            found.append(f"{name}: recorded {clipped(repr(old[key]), 80)}, given {clipped(repr(new[key]), 80)}")
    return found


def _order(old: Any, new: Any, name: str) -> list[str]:
    """Return a sentence if two lists have the same names in another order."""
    if isinstance(old, Mapping) or isinstance(new, Mapping):
        return []
    before, now = [v["name"] for v in old], [v["name"] for v in new]
    if before == now or sorted(before) != sorted(now):
        return []
    return [f"{name}: recorded in the order {', '.join(before)}, given as {', '.join(now)}"]


def _by_name(value: Any) -> Mapping[str, Any] | None:
    """Return an object, or a list of named objects as one; None for anything else."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, list) and value and all(isinstance(v, Mapping) and "name" in v for v in value):
        return {v["name"]: v for v in value}
    return None


def _completed(recorded: Any, read: Any) -> Any:
    """Return recorded JSON with the keys that are newer than it. read: the JSON of what this version read from it."""
    if isinstance(recorded, Mapping) and isinstance(read, Mapping):
        return {**read, **{name: _completed(value, read.get(name)) for name, value in recorded.items()}}
    if isinstance(recorded, list) and isinstance(read, list) and len(recorded) == len(read):
        return [_completed(*pair) for pair in zip(recorded, read, strict=True)]
    return recorded


def _lasting(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a problem that do not change when its space is widened."""
    space = problem.get("space")
    named = space.get("constraints") if isinstance(space, Mapping) else space
    return {**problem, "space": named, "start": None}


def _as_given(problem: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a problem by the names of the arguments of Study."""
    length = "max_epochs" if problem.get("max_epochs") is None else length_argument(problem["unit"])
    return {length if k == "max_epochs" else k: v for k, v in problem.items()}


def _mismatch(store: Store, name: str, found: list[str]) -> StudyMismatch:
    listing = "\n  - ".join(found)
    learns = f"With learn_from=[({store.url!r}, {name!r})] the new study learns from its trials"
    wider = ". In a wider or narrower space of the same parameters the same study continues"
    return StudyMismatch(
        f"{store.url} already has a study {name!r} with other settings:\n  - {listing}\n"
        f"Open it with the recorded settings, or use another name= or store= for the new study. {learns}, and with "
        f"start=[...] it trains your configurations first{wider * any(text.startswith('space') for text in found)}"
    )


def _append(store: Store, name: str, event: ev.Event) -> None:
    """Append a user's request, which no reader refuses: it is about the whole search, or a trial of its history."""
    store.append(name, [event], seen=LAST, about=None)


def hold(store: Store, name: str, reason: str) -> None:
    _append(store, name, ev.Held(at=store.now(), reason=reason))


def lift(store: Store, name: str, history: History) -> bool:
    if history.held is None:
        return False
    _append(store, name, ev.Held(at=store.now(), reason=None))
    return True


def ask_of(store: Store, name: str, history: History, trial: int, wish: str, reason: str) -> None:
    """Ask a trial to stop or pause at its next report, or to continue.

    Raises InvalidInput if the trial cannot do this, StoreError for an unknown name.
    """
    r = history.trial(trial)
    if r.status in OVER:
        raise InvalidInput(f"trial {trial} has ended ({r.status}), so it cannot {wish}")
    if r.status is Status.PAUSED:
        raise InvalidInput(f"trial {trial} is paused, so the policy decides whether it continues")
    if wish == "continue" and trial not in history.wishes.runs:
        raise InvalidInput(f"trial {trial} has no request to withdraw; it is {r.status}")
    _append(store, name, ev.Asked(at=store.now(), trial=trial, attempt=r.attempt, wish=wish, reason=reason))


def note_on(store: Store, name: str, history: History, trial: int, text: str) -> None:
    """Record a user's note on a trial, instead of its earlier note; an empty one removes it.

    Raises InvalidInput for an unknown trial or a text that is too long, StoreError for an unknown name.
    """
    history.trial(trial)
    if len(text) > _NOTE:
        raise InvalidInput(f"A note has at most {_NOTE} characters; this one has {len(text)}. Shorten it.")
    _append(store, name, ev.Noted(at=store.now(), trial=trial, text=text.strip()))


def enqueued(
    history: History, policy: Policy[Any], config: Mapping[str, Any], again: bool, now: float
) -> ev.Enqueued | None:
    """Return the event that enqueues a configuration; None if it was started or enqueued. Raises InvalidInput."""
    key = history.problem.space.key_of_canonical
    if not again and (key(config) in history.tried or key(config) in map(key, history.queue)):
        return None
    if history.finished is not None and not policy.plans:
        raise InvalidInput(
            f"the policy has finished this search, so no new trial can start: {history.finished}. "
            "Start a new search with another name="
        )
    return ev.Enqueued(at=now, config=plain(config))


def known(history: History, config: Mapping[str, Any]) -> str:
    """Return why a configuration in canonical form was not enqueued."""
    key = history.problem.space.key_of_canonical
    same = [t for t in history.trials if key(dict(t.config)) == key(config)]
    if not same:
        return "Not enqueued: this configuration is in the queue already"
    return f"Not enqueued: trial {same[-1].id} has this configuration ({outcome_of(same[-1], history.problem).words})"


def if_allowed(problem: Problem) -> str:
    """Return words to add if constraints are unknown to a reader of the log: ", if 'small' allows it"."""
    named = " and ".join(repr(c.name) for c in problem.space.constraints)
    return named and f", if {named} {'allow' if len(problem.space.constraints) > 1 else 'allows'} it"


def raise_limits(store: Store, name: str, history: History, limits: dict[str, Any]) -> Budget:
    """Raise limits of the budget for all workers; return the new budget as far as it is logged.

    Raises InvalidInput for invalid limits or if no limit is raised, StoreError for an unknown name.
    """
    now = history.wishes.extended(history.recorded)
    try:
        given = Budget(**limits, price=now.price).to_json()
    except TypeError:
        raise InvalidInput(
            f"unknown limit. The limits of this budget are: {', '.join(now.to_json()) or 'none'}"
        ) from None
    given.pop("price", None)
    larger = {n: limit for n, limit in given.items() if (getattr(now, n) or limit) < limit}
    if not larger:
        raise InvalidInput(f"no limit is raised. The budget is {limits_of(now) or 'unlimited'}")
    _append(store, name, ev.Raised(at=store.now(), budget=larger))
    history.wishes.limits.update(larger)
    return history.wishes.extended(now)


def limits_of(budget: Budget) -> str:
    return ", ".join(f"{n} {limit:g}" for n, limit in budget.to_json().items() if n != "price")
