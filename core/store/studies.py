"""A study as its log alone has it: its problem, what holds it, and what users ask of it while it runs.

While it is held nobody begins a trial, and those that train are saved at their next report, on all machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from haltune.display import one_line
from haltune.errors import InvalidInput, StoreError
from haltune.log.events import ADVICE, OVER, Asked, Created, Enqueued, Held, Raised, Status, plain
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Budget, Problem

from .base import Store

_ANY = 2**31 - 1  # a position beyond every log: the event conflicts with nothing


def recorded_problem(created: Created) -> Problem:
    """The problem of a log. Its constraints, functions of which only the names are kept, allow everything.

    Raises StoreError when it is none.
    """
    try:
        names: list[str] = created.problem["space"]["constraints"]
        return Problem.from_json(created.problem, dict.fromkeys(names, _allowed))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise StoreError(f"the problem in the log is none, {one_line(error)}. {ADVICE}") from error


def _allowed(config: dict[str, Any]) -> bool:
    return True


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
