"""Which run is the best after each event: by the one rule of haltune.log.scores, event by event."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from haltune.log import events as ev
from haltune.log.events import Status
from haltune.log.problem import Problem
from haltune.log.records import Growing
from haltune.log.scores import Standing

_NONE: Standing = (-1.0, 0.0, 0.0, -math.inf)  # of a run without a value: behind all others


@dataclass
class Leader:
    """The fold: what `History.best` would have told after each event, without asking all runs each time."""

    problem: Problem
    run: Growing | None = None  # the best
    _runs: list[Growing] = field(default_factory=list)
    _stands: Standing = _NONE

    @property
    def value(self) -> float:
        """That it counts for; NaN where there is none."""
        return math.nan if self.run is None else self.problem.goal.sign * self.run.counts

    def take(self, event: ev.Event) -> None:
        """The next event of the log."""
        match event:
            case ev.Started():
                self._runs.append(Growing.of(event, None, self.problem))
            case ev.Resumed():
                self._resume(self._runs[event.trial], event)
            case ev.Reported() | ev.Checkpointed() | ev.Kept() | ev.Ended() | ev.Expired():
                run = self._runs[event.trial]
                if event.attempt == run.attempt and run.status is Status.RUNNING:
                    self._happened(run, event)

    def _resume(self, run: Growing, e: ev.Resumed) -> None:
        if e.anew:
            run.checkpoint_epoch = 0.0
        run.rewind(run.checkpoint_epoch)
        run.attempt, run.resource, run.verdict, run.status = e.attempt, e.resource, None, Status.RUNNING
        self._rank(run)

    def _happened(self, run: Growing, e: ev.Event) -> None:
        match e:
            case ev.Reported():
                if e.epoch > run.epoch:
                    run.append(e)
                    self._rank(run)
            case ev.Checkpointed() | ev.Kept():
                run.save(e)
            case ev.Ended() | ev.Expired():
                run.status = e.status
                self._rank(run)

    def _rank(self, run: Growing) -> None:
        stands = run.stands() if run.counts > -math.inf else _NONE
        if run is self.run:
            fell, self._stands = stands < self._stands, stands
            if fell:
                self._rank_all()
        elif stands > _NONE and (self.run is None or (stands, -run.id) > (self._stands, -self.run.id)):
            self.run, self._stands = run, stands

    def _rank_all(self) -> None:
        valued = (run for run in self._runs if run.counts > -math.inf)
        self.run = max(valued, key=Growing.stands, default=None)
        self._stands = _NONE if self.run is None else self.run.stands()
