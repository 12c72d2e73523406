"""A log as it would read, had its runs been trained for one goal: a fold of it under each weights.

The state of the search is the log itself, a list that grows, and how much of it is meant: so a state never changes.
What is folded under some weights is kept and taken up where it was left; under other scales all is folded anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from haltune._utils.arrays import Array
from haltune.log.events import Event, Reported, Rescaled
from haltune.log.fold import Fold
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord

from .scalarisation import Scalarisation, Weights


class View:
    """A log folded under one scalarisation, as far as it was asked for."""

    def __init__(self, problem: Problem, policy: Policy[Any], by: Scalarisation) -> None:
        self.by, self.taken = by, 0
        self.fold = Fold(by.of(problem), policy)

    @property
    def history(self) -> History:
        """Of the one goal."""
        return self.fold.history

    def read(self, events: list[Event], end: int) -> None:
        """Take up the log to a position."""
        for event in events[self.taken : end]:
            if isinstance(event, Rescaled) and self.by.problem.further:
                self.history.position += 1  # the one goal has a scale of its own
            elif isinstance(event, Reported):
                self.fold.take(replace(event, value=self._value(event)))
            else:
                self.fold.take(event)
            self.taken += 1

    def _value(self, event: Reported) -> float:
        said = {self.by.problem.goal.metric: event.value, **event.metrics}
        return self.by.value(lambda metric: self._latest(event.trial, metric, said.get(metric, math.nan)))

    def _latest(self, trial: int, metric: str, said: float) -> float:
        """A goal is in every report; what is limited alone may have been said before."""
        goals = [goal.metric for goal in self.by.problem.goals]
        return said if metric in goals or not math.isnan(said) else self.history.latest(trial, metric)

    def lead(self, trial: TrialRecord) -> float:
        """How far the report to be judged lies above what the others have come to; minus infinity where unknown."""
        lead = float(self.seen(trial).values[-1]) - self.history.incumbent(exclude=trial.id)
        return lead if math.isfinite(lead) else -math.inf

    def seen(self, trial: TrialRecord) -> TrialRecord:
        """A trial whose last entry is the report to be judged, as its policy sees it."""
        said = {name: float(column[-1]) for name, column in trial.metrics.items()}
        said[self.by.problem.goal.metric] = float(trial.values[-1])
        value = self.by.value(lambda metric: self._latest(trial.id, metric, said.get(metric, math.nan)))
        before, scale = self.history.trial(trial.id), self.history.scale_of(trial.id)
        score = math.nan if scale is None else float(scale.score(value))
        return replace(trial, values=_longer(before.values, value), scores=_longer(before.scores, score))


def _longer(column: Array, last: float) -> Array:
    longer = np.append(column, last)
    longer.flags.writeable = False
    return longer


@dataclass(eq=False)
class WeighedLog:
    """A log, and what was folded of it."""

    problem: Problem
    policy: Policy[Any]
    events: list[Event] = field(default_factory=list)
    _views: dict[Weights, View] = field(default_factory=dict)

    def view(self, end: int, by: Scalarisation) -> View:
        """The log to a position under some scalarisation."""
        if any((view.by.spans, view.by.scale) != (by.spans, by.scale) for view in self._views.values()):
            self._views.clear()
        found = self._views.get(by.weights)
        if found is None or found.taken > end:
            found = self._views[by.weights] = View(self.problem, self.policy, by)
        found.read(self.events, end)
        return found


@dataclass(frozen=True, eq=False)
class LogPrefix:
    """A log up to a position: what a search for several goals remembers."""

    log: WeighedLog
    count: int = 0

    def after(self, event: Event) -> LogPrefix:
        """With one event more. O(1), unless another state has gone on from here: then the log is copied."""
        log = self.log
        if len(log.events) != self.count:
            log = WeighedLog(log.problem, log.policy, log.events[: self.count])
        log.events.append(event)
        return LogPrefix(log, self.count + 1)

    def view(self, history: History, weights: Weights) -> View:
        """Under some weights, by the scales in force."""
        return self.log.view(self.count, Scalarisation.at(history, weights))

    def __repr__(self) -> str:
        return f"LogPrefix({self.count} events)"
