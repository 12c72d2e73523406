"""Which run is the best after each event: by the one rule of haltune.log.scores, event by event."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from haltune.log import events as ev
from haltune.log import scores
from haltune.log.growing import Growing
from haltune.log.problem import Problem


@dataclass
class BestSoFar:
    """The fold: what `History.best` would have told after each event, by the runs' values alone."""

    problem: Problem
    _runs: list[Growing] = field(default_factory=list)
    _top: scores.TopRun = field(default_factory=scores.TopRun)

    @property
    def run(self) -> Growing | None:
        """The best."""
        top = self._top.among(self._runs)
        return None if top is None else self._runs[top]

    @property
    def value(self) -> float:
        """That it counts for; NaN where there is none."""
        run = self.run
        return math.nan if run is None else self.problem.goal.sign * run.counts

    def take(self, event: ev.Event) -> None:
        """The next event of the log."""
        match event:
            case ev.Started():
                self._runs.append(Growing.of(event, None, self.problem))
            case ev.Resumed():
                self._runs[event.trial].resume(event)
            case ev.AttemptEvent():
                self._runs[event.trial].take(event)
            case _:
                return
        self._top.weigh(self._runs[event.trial])
