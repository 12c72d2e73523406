"""The contract between a study and whatever decides for it.

The laws, which `tests/laws` runs over every policy:

1. The same log prefix and seed give the same move and the same verdict, in any process.
2. `fold`, `propose` and `judge` write nothing; only a study appends.
3. Kill the process after any append and reopen: the search goes on to the same end.
4. A report and its verdict are one atomic append.
5. After a policy's `Finish`, `ask` keeps answering `Finish`, with the same reason.
6. Pending trials of other workers are in the history; a policy takes them into account or waits.
7. A budget is checked at `propose` and at `judge`.
8. NaN and infinity are stored, never promoted, never an incumbent, never in a Cholesky factor.
9. Coinciding bounds, a single trial, one epoch, a constant metric, a duplicate: each works.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from numpy.random import Generator

from .decisions import Move, Verdict
from .events import Event
from .history import History, TrialRecord
from .problem import Problem

S = TypeVar("S")


class Policy(Protocol[S]):
    """Decides. Its state is a pure fold over the log; its questions are pure functions of that state."""

    @property
    def spec(self) -> dict[str, Any]:
        """JSON that rebuilds the policy: {"policy": class name, option: value, ...}."""
        ...

    @property
    def endless(self) -> bool:
        """True when the policy never answers Finish, so that the study needs a budget."""
        ...

    def start(self, problem: Problem) -> S:
        """The state before any event. Raises InvalidInput when the problem does not suit the policy."""
        ...

    def fold(self, state: S, event: Event) -> S:
        """The state after `event`; `state` itself is left as it is. O(1) or O(n) an event."""
        ...

    def propose(self, state: S, history: History, rng: Generator) -> Move:
        """What a free worker does next."""
        ...

    def judge(self, state: S, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """Whether `trial` goes on, after the report that ends its arrays.

        `state` and `history` are those before that report; it is the last entry of `trial`.
        Asked at whole epochs before the horizon only.
        """
        ...

    # Three more that a policy may have:
    #   alive(state) -> frozenset of the paused trials that it may still resume, None for all: the checkpoints
    #       of the others are deleted. Without it all are kept until the policy finishes.
    #   plans = True: the study logs its budget, and again when it changes: `history.budget`. Without it that is None.
    #   best_anywhere = True: `study.best` is the best value at any epoch, not the best of those that went furthest.
