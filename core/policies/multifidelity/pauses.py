"""Whether runs can pause: found out from the first that was told to and could not."""

from __future__ import annotations

from haltune.log.events import Ended, Event, Reported, Status
from haltune.policies.guided.curve_rows import CurveRows
from haltune.policies.hyperband.climb import Climb, key_of


def declined(climb: Climb, rows: CurveRows, event: Event) -> bool:
    """True for a trial that paused with nothing to go on from, or was told to pause and trains on.

    climb, rows: what is known before the event.
    """
    if isinstance(event, Ended) and event.status is Status.PAUSED:
        watched = rows.trials.get(event.trial)
        return watched is not None and event.attempt == watched.attempt and watched.saved < watched.at
    if isinstance(event, Reported):
        on = climb.trials.get(event.trial)
        if on is None or not on.member.held or event.attempt != on.member.attempt or on.member.result is None:
            return False
        waiting = climb.step(on).waiting
        return event.epoch > on.member.had and waiting.drop(key_of(on.member, event.trial)) is not waiting
    return False
