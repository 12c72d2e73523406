"""A log folded: its history, and what a policy makes of it, at one position; and a fold that several policies keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from haltune.errors import HaltuneError

from .events import OVER, Created, Ended, Event, Expired, Started, Status, Widened
from .history import History
from .policy import Policy
from .problem import Problem
from .validity import unfolded

FinishedTrials = tuple[int, ...]  # ids of the trials that ended with something learnt, in log order
_TRAINED = (Status.COMPLETED, Status.STOPPED)


def fold_finished(finished: FinishedTrials, event: Event) -> FinishedTrials:
    """Append the trial of an `Ended` event that completed or was stopped."""
    return (*finished, event.trial) if isinstance(event, Ended) and event.status in _TRAINED else finished


def fold_over(finished: FinishedTrials, event: Event) -> FinishedTrials:
    """Append the trial of an event after which it is over, one that failed or was lost too often among them."""
    return (
        (*finished, event.trial) if isinstance(event, Ended | Expired) and event.status in OVER else finished
    )


class Fold:
    """A history and a policy's state, which take up one event after the other.

    A policy knows one space from its start on. So where the log widens it, the policy takes up again all that came
    before, from a start in the wider space: what was decided is recorded, and its state is as if it had always been so.

    whose: the study, in words, for errors. before: the events up to a position; without it they are kept.
    """

    def __init__(
        self,
        problem: Problem,
        policy: Policy[Any],
        whose: str = "the study",
        before: Callable[[int], Iterable[Event]] | None = None,
    ) -> None:
        self.policy = policy
        self.history = History(problem)
        self.history.whose = whose
        self.state: Any = policy.start(problem)
        self.last: Event | None = None  # that was taken up
        self.torn = False  # an exception came while one was taken up
        self._kept: list[Event] | None = [] if before is None else None
        self._before = before or (lambda _: self._kept or ())

    def take(self, event: Event) -> None:
        """Take up the next event. Raises StoreError for one that cannot follow, and what the policy raises."""
        if isinstance(event, Started):
            self.history.check(event)  # a policy makes room up to the trial's number
        try:
            state = self.policy.fold(self._state_for(event), event)
            self.torn = True
            self.history.apply(event)
        except BaseException:
            self.torn = True  # the policy's state may have changed
            raise
        self.state = state
        self.last = event
        if self._kept is not None:
            self._kept.append(event)
        self.torn = False

    def _state_for(self, event: Event) -> Any:
        """The policy's state before an event, in the space that the search is in from there on."""
        if not isinstance(event, Created | Widened):
            return self.state
        problem = self.history.problem_from(event)
        return self.state if problem is self.history.problem else self.under(problem)

    def under(self, problem: Problem) -> Any:
        """What the policy's state would be, had the problem been this one from the start."""
        state = self.policy.start(problem)
        for event in self._before(self.history.position):
            state = self.policy.fold(state, event)
        return state

    def read(self, events: Iterable[Event]) -> None:
        """Take up what a store has. Raises StoreError that names the event which cannot be taken up."""
        for event in events:
            try:
                self.take(event)
            except HaltuneError:
                raise
            except Exception as error:
                self.history.check(event)  # a damaged log is told as that
                raise unfolded(self.policy, self.history.position, self.history.whose, error) from error
