"""Holding a search: nobody begins a trial and those that train are saved at their next report, on all machines."""

from __future__ import annotations

from haltune.log.events import Held
from haltune.log.history import History

from .base import Store

_ANY = 2**31 - 1  # a position beyond every log: the event conflicts with nothing


def hold(store: Store, name: str, reason: str) -> None:
    """Hold the search until `lift`. Raises StoreError for an unknown name."""
    store.append(name, [Held(at=store.now(), reason=reason)], seen=_ANY, about=None)


def lift(store: Store, name: str, history: History) -> bool:
    """Let a held search go on; False when nobody held it."""
    if history.held is None:
        return False
    store.append(name, [Held(at=store.now(), reason=None)], seen=_ANY, about=None)
    return True
