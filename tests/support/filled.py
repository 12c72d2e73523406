"""A study with reports, written to a store without training."""

from __future__ import annotations

from workers import created

from haltune.log.decisions import continue_
from haltune.log.events import Reported
from haltune.store.base import Store


def report(epoch: float, reason: str = "") -> Reported:
    """Return a report of trial 0, which did not start."""
    return Reported(
        at=epoch, trial=0, attempt=1, epoch=epoch, value=0.5, seconds=1.0, verdict=continue_(reason), seen=1, metrics={}
    )


def fill(store: Store, reports: int, reason: str = "") -> None:
    """A study and so many reports."""
    store.create("s", created())
    for epoch in range(1, reports + 1):
        store.append("s", [report(float(epoch), reason)], seen=10**9, about=None)
