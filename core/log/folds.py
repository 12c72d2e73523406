"""Small folds that several policies keep as their state."""

from __future__ import annotations

from .events import Ended, Event, Status

Finished = tuple[int, ...]  # ids of the trials that ended with something learnt, in log order


def fold_finished(finished: Finished, event: Event) -> Finished:
    """Append the trial of an `Ended` event that completed or was stopped."""
    if isinstance(event, Ended) and event.status in (Status.COMPLETED, Status.STOPPED):
        return (*finished, event.trial)
    return finished
