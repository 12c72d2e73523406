"""A study read from its log alone: for looking at it, by whoever has neither its program nor its policy."""

from __future__ import annotations

from typing import Any

from .errors import StoreError
from .events import Created
from .history import History
from .problem import Problem
from .store import Store, only_study


def read_history(store: Store, name: str | None = None) -> tuple[str, History]:
    """The name and history of a study; of the only one in the store if `name` is None.

    Raises StoreError listing the studies there are.
    """
    name = only_study(store, name)
    log = store.read(name)
    first = next(log, None)
    if not isinstance(first, Created):
        raise StoreError(
            f"the study {name!r} in {store.url} does not begin as a study does: its log is damaged"
        )
    history = History(recorded_problem(first))
    for event in (first, *log):
        history.apply(event)
    return name, history


def recorded_problem(created: Created) -> Problem:
    """The problem of a log. Its constraints, functions of which only the names are kept, allow everything."""
    names: list[str] = created.problem["space"]["constraints"]
    return Problem.from_json(created.problem, dict.fromkeys(names, _allowed))


def _allowed(config: dict[str, Any]) -> bool:
    return True
