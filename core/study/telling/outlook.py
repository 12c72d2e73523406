"""Whether a search finds a better configuration if it continues for as long as it has taken so far.

Of 2n values in random order the best lies in the second half with probability 1/2, whatever their distribution: the
law of records. Two facts make it more likely, and over recorded searches the probability is 0.7 then:

    ahead    a trial that may continue has a better value already than the best, which is the best complete one; 0.9 for
             random search, where such a trial surely continues
    rising   the policy predicts values, and the best trial is among the last quarter that started

benchmarks/search/forecast_calibration.py compares the stated probabilities with what followed. They hold within 0.1 for
the default search and for random search, and are stated for these alone: for Hyperband (0.5: 0.39, 0.7: 0.55) and
GP-UCB (0.24, 0.47) they were too high. Gains were not predictable: a multiple of the spread of the values that was
exceeded in one case of four on one half of the tasks was exceeded in one of five on the other, and in two of three
where the spread was small. So none is stated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from haltune.display import duration, plural, short
from haltune.errors import InvalidInput
from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.metric_names import limit
from haltune.log.problem import Goal
from haltune.log.records import Best

FEWEST, MOST = 5, 200  # trials: the range over which the probabilities were measured
EVEN, RAISED, NEAR = 0.5, 0.7, 0.9
_LAST = 0.25  # of the trials
_DISTINCT = (
    0.5  # of the values; a metric that takes few values ties with the best more often than it beats it
)
_CONTINUES = (Status.RUNNING, Status.PAUSED, Status.INTERRUPTED)


@dataclass(frozen=True)
class Outlook:
    """The probability that continuing finds a better configuration; print it."""

    best: Best
    metric: str
    probability: float  # 0 where the best value is the metric's bound
    more: float  # as much again as was spent: seconds, or cost where trials report it
    cost: bool

    def __str__(self) -> str:
        if not self.probability:
            return (
                f"{self.metric} {short(self.best.value)} is the best possible value: it cannot be improved."
            )
        more = f"another {self.more:.3g} of cost" if self.cost else f"another {duration(self.more)}"
        return (
            f"If the search continues for {more}, as much as it has taken so far, it finds a better configuration "
            f"with an estimated probability of {self.probability:.0%}."
        )


def outlook(history: History, predicts: bool | None) -> Outlook:
    """Estimate whether a search for one goal finds a better configuration in as much time again.

    Args:
        history: the search.
        predicts: whether its policy predicts values; see `Policy.predicts`.

    Raises:
        InvalidInput: For a policy that was not measured, with fewer or more trials than were measured, and for a metric
            that takes few values.
    """
    if predicts is None:
        raise InvalidInput(
            "The probability of finding a better configuration was measured for the default search and for random "
            "search. It is not estimated for other policies."
        )
    goal, best, trials = history.problem.goal, history.best(), history.trials
    values = np.array([t.target(goal) for t in trials])
    known = values[np.isfinite(values)]
    if best is None or len(known) < FEWEST or len(trials) > MOST:
        raise InvalidInput(
            f"The search has {plural(len(known), 'trial')} with a value. The probability of finding a better one was "
            f"measured for {FEWEST} to {MOST} trials, and is not estimated for others."
        )
    spent = history.spent
    workers = spent.worker_time / spent.time if spent.time else 1.0
    reported = (spent.training + spent.validation) / max(
        workers, 1.0
    )  # more, where results are told afterwards
    more = spent.cost or max(spent.time, reported)
    top = goal.sign * best.value
    if top >= goal.sign * _bound(goal, goal.sign * known):
        return Outlook(best, goal.metric, 0.0, more, bool(spent.cost))
    if len(np.unique(known)) < _DISTINCT * len(known):
        raise InvalidInput(
            f"More than half of the trials share their value of {goal.metric} with another. The probability of finding "
            "a better one is not estimated for such metrics. Evaluate on more data to tell trials apart."
        )
    ahead = any(t.status in _CONTINUES and value > top for t, value in zip(trials, values, strict=True))
    rising = predicts and best.trial >= (1.0 - _LAST) * len(trials)
    probability = NEAR if ahead and not predicts else RAISED if ahead or rising else EVEN
    return Outlook(best, goal.metric, probability, more, bool(spent.cost))


def _bound(goal: Goal, values: np.ndarray) -> float:
    """The best possible value: by the goal's bounds, or by its metric's name; else infinite."""
    if goal.bounds is not None:
        return goal.bounds[goal.sign > 0]
    known = limit(goal.metric, goal.sign, values)
    return goal.sign * math.inf if known is None else known
