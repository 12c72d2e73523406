"""Whether runs can pause: found out from the first that was told to and could not."""

from __future__ import annotations

from dataclasses import dataclass, replace

from haltune.log.decisions import Action
from haltune.log.events import Ended, Event, Expired, Reported, Resumed, Status
from haltune.policies.guided.curve_rows import CurveRows


@dataclass(frozen=True)
class Pauses:
    """Who was told to pause, and whether one could not.

    A run that was killed, or interrupted, before it had paused tells nothing: it may have been about to save.
    """

    told: frozenset[int] = frozenset()  # under way, in the attempt in which they were told
    declined: bool = False  # one paused with nothing to go on from, or trained on

    def fold(self, rows: CurveRows, event: Event) -> Pauses:
        """What is known after `event`; rows: what was known before it."""
        if not isinstance(event, Reported | Ended | Expired | Resumed):
            return self
        watched = rows.trials.get(event.trial)
        if watched is None or (not isinstance(event, Resumed) and event.attempt != watched.attempt):
            return self  # superseded
        if not isinstance(event, Reported):
            paused = isinstance(event, Ended) and event.status is Status.PAUSED
            return self._after(self.told - {event.trial}, paused and watched.saved < watched.at)
        if event.trial in self.told:
            return self._after(self.told, watched.held and event.epoch > watched.at)
        pauses = watched.held and event.verdict.action is Action.PAUSE
        return self._after(self.told | {event.trial}, False) if pauses else self

    def _after(self, told: frozenset[int], declined: bool) -> Pauses:
        if told == self.told and declined <= self.declined:
            return self
        return replace(self, told=told, declined=self.declined or declined)
