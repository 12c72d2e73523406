"""What is left of a budget, and whether a run can still be trained in full with it.

What a run takes is what its epochs took so far, for each epoch that it lacks; a new one takes what an epoch took in
the mean. By the clock each attempt also takes what attempts took beside their epochs: start-up, checkpoints, decisions.
Wall-clock time is spent by all workers together; of anything else is set aside what runs under way are to take until
they are compared next. A run under way takes no new attempt; while it is judged, what it has just trained is not in the
log yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.records import TrialRecord

_SPARE = 1.1  # seconds and costs are not known exactly, epochs are
_HOUR = 3600.0

PerEpoch = Callable[[TrialRecord | None], float]


@dataclass(frozen=True)
class _Limit:
    """One of a budget: what is left of it, what an epoch of a run takes of it, and an attempt beside its epochs."""

    left: float
    rate: PerEpoch  # of a run; of a new one, None
    attempt: float = 0.0
    together: bool = False  # all workers spend it at once
    spare: float = _SPARE  # how many times what is expected the rate and an attempt are

    def share(self, trial: TrialRecord | None, epochs: float, spare: bool) -> float:
        """What so many epochs of a run take of what is left; infinite where nothing is."""
        takes = (self.attempt + epochs * self.rate(trial)) / (1.0 if spare else self.spare)
        return takes / self.left if self.left > 0.0 else float("inf")


@dataclass(frozen=True)
class Remaining:
    """Of the limits on what is trained; that on how many begin is none of them."""

    horizon: float
    limits: tuple[_Limit, ...]

    @classmethod
    def of(cls, history: History, horizon: float, going: TrialRecord | None = None) -> Remaining:
        """As the log tells it; going: for this run under way, as it is or as it is judged."""
        pending, attempts, trained = history.pending, 1.0, 0.0
        if going is not None:
            pending, attempts = [t for t in pending if t.id != going.id], 0.0
            trained = going.epoch - history.trial(going.id).epoch
        ahead = [(t, max(0.0, (t.until or horizon) - t.epoch)) for t in pending]
        limits = []
        for limit in _limits(history):
            aside = 0.0 if limit.together else sum(limit.rate(t) * epochs for t, epochs in ahead)
            aside += limit.rate(going) * trained
            left, attempt = limit.left - aside, attempts * limit.attempt
            limits.append(replace(limit, left=left, attempt=attempt))
        return cls(horizon, tuple(limits))

    def share(self, trial: TrialRecord | None, spare: bool = True) -> float:
        """Of what is left, what a run takes until it is trained in full, None: a new one. Above 1 it cannot be.

        spare: with some more, where what an epoch takes is not known exactly.
        """
        trained = 0.0 if trial is None else trial.epoch
        if trial is not None and trial.status is Status.PAUSED:
            trained = trial.checkpoint_epoch  # what was not saved is trained anew
        return max((limit.share(trial, self.horizon - trained, spare) for limit in self.limits), default=0.0)


def _limits(history: History) -> Iterator[_Limit]:
    budget, spent = history.budget, history.spent
    if budget is None or not spent.epochs:
        return
    if budget.epochs is not None:
        yield _Limit(budget.epochs - spent.epochs, lambda trial: 1.0, spare=1.0)
    if budget.cost is not None:
        yield _Limit(
            budget.cost - spent.cost,
            lambda t: _SPARE * _each(history.cost(t.id) or 0.0 if t else 0.0, t, spent.cost / spent.epochs),
        )
    training = spent.training + spent.validation
    measured = (
        min(1.0, spent.worker_time / training) if training else 0.0
    )  # who reports more tells of another clock
    beside = _SPARE * max(0.0, spent.worker_time - training) / max(1, history.moves)

    def rate(t: TrialRecord | None) -> float:
        seconds = float(t.seconds.sum()) if t is not None else 0.0
        return _SPARE * measured * _each(seconds, t, training / spent.epochs)

    if budget.time is not None:
        yield _Limit(float(budget.time) - spent.time, rate, beside, together=True)
    limits = [
        budget.worker_time,
        budget.money / budget.price * _HOUR if budget.money and budget.price else None,
    ]
    for limit in limits:
        if limit is not None:
            yield _Limit(float(limit) - spent.worker_time, rate, beside)


def _each(taken: float, trial: TrialRecord | None, mean: float) -> float:
    """An epoch of a run; in the mean over all, of one that has trained none."""
    return taken / trial.epoch if trial is not None and trial.epoch > 0.0 else mean
