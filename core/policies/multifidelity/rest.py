"""The rest of a budget, and whether it trains a trial in full.

A trial's remaining epochs cost what its epochs cost so far; those of a new one cost the mean. A budget of time also
pays for what attempts took besides epochs: start-up, checkpoints, decisions. Wall-clock time is spent by all workers
at once; of any other budget the cost of running trials, until they are compared next, is reserved. A running trial
needs no new attempt. While a trial is judged, its last epoch is not in the log yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.problem import Budget
from haltune.log.records import TrialRecord

_SPARE = 1.1  # seconds and costs are not known exactly, epochs are
Rate = Callable[[TrialRecord | None], float]


def trials_alone(budget: Budget | None) -> int | None:
    """Return the limit of a budget that limits trials and nothing else; None for any other."""
    if budget is None or set({**vars(budget), "trials": None}.values()) != {None}:
        return None
    return budget.trials


class Remaining:
    """The rest of each limit of a budget, but that of trials, which limits only starts.

    judged: the running trial for which it is asked, perhaps with a report that is not in the log yet.
    """

    def __init__(self, history: History, horizon: float, judged: TrialRecord | None = None) -> None:
        self.horizon = horizon
        # of each limit: the rest, the cost of an epoch of a trial (None: a new one), the cost of an attempt besides its
        # epochs, and the factor of safety in these costs
        self.limits: list[tuple[float, Rate, float, float]] = []
        budget = history.budget
        if budget is None or trials_alone(budget) is not None or not (spent := history.spent).epochs:
            return
        pending, attempts, trained = history.pending, 1.0, 0.0
        if judged is not None:
            pending, attempts = [t for t in pending if t.id != judged.id], 0.0
            trained = judged.epoch - history.trial(judged.id).epoch
        ahead = [(t, max(0.0, (t.pause_at or horizon) - t.epoch)) for t in pending]

        def limit(left: float, rate: Rate, attempt: float = 0.0, spare: float = _SPARE, together: bool = False) -> None:
            """together: all workers spend it at once, and nothing is reserved."""
            aside = 0.0 if together else sum(rate(t) * epochs for t, epochs in ahead)
            aside += rate(judged) * trained
            self.limits.append((left - aside, rate, attempts * attempt, spare))

        def each(taken: float, trial: TrialRecord | None, mean: float) -> float:
            """Return the cost of an epoch of a trial; the mean over all if it has trained none."""
            return taken / trial.epoch if trial is not None and trial.epoch > 0.0 else mean

        if budget.epochs is not None:
            limit(budget.epochs - spent.epochs, lambda t: 1.0, spare=1.0)
        if budget.cost is not None:
            mean = spent.cost / spent.epochs

            def cost(t: TrialRecord | None) -> float:
                if t is None or history.furthest_superseded(t.id) is not None:  # its cost is that of more epochs
                    return _SPARE * mean
                return _SPARE * each(history.cost(t.id) or 0.0, t, mean)

            limit(budget.cost - spent.cost, cost)
        training = spent.training + spent.validation
        # reports of more seconds than a worker has spent come from another clock
        measured = min(1.0, spent.worker_time / training) if training else 0.0
        decisions = _SPARE * max(0.0, spent.worker_time - training) / max(1, history.moves)

        def seconds(t: TrialRecord | None) -> float:
            taken = float(t.seconds.sum()) if t is not None else 0.0
            return _SPARE * measured * each(taken, t, training / spent.epochs)

        if budget.time is not None:
            limit(float(budget.time) - spent.time, seconds, decisions, together=True)
        for most in (budget.worker_time, spent.payable(budget)):
            if most is not None:
                limit(float(most) - spent.worker_time, seconds, decisions)

    def share(self, trial: TrialRecord | None, spare: bool = True) -> float:
        """Return the share of the rest that a trial (None: a new one) needs to train in full; above 1 it cannot.

        spare: with a factor of safety where costs are not known exactly.
        """
        trained = 0.0 if trial is None else trial.epoch
        if trial is not None and trial.status is Status.PAUSED:
            trained = trial.checkpoint_epoch  # later epochs are trained again
        most = 0.0
        for left, rate, attempt, times in self.limits:
            takes = (attempt + (self.horizon - trained) * rate(trial)) / (1.0 if spare else times)
            most = max(most, takes / left if left > 0.0 else math.inf)
        return most

    def trains(self, trial: TrialRecord) -> bool:
        """Return whether a trial can still be trained in full."""
        return self.share(trial) <= 1.0
