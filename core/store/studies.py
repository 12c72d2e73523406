"""A study as its log alone has it: its problem, and what holds it.

While it is held nobody begins a trial, and those that train are saved at their next report, on all machines.
"""

from __future__ import annotations

from typing import Any

from haltune._utils.words import one_line
from haltune.errors import StoreError
from haltune.log.events import Created, Held
from haltune.log.history import History
from haltune.log.problem import Problem
from haltune.log.validity import ADVICE

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
