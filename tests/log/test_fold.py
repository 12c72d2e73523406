"""A log folded: the history and the policy's state are at one position, whatever happens."""

from __future__ import annotations

from typing import Any

import pytest
from whims import PROBLEM, Whims
from worlds import search, small_study

from haltune.errors import StoreError
from haltune.log.events import Event, Reported
from haltune.log.policy import Fold
from haltune.policies import RandomSearch


class Trips(Whims):
    """Cannot fold the second report."""

    def fold(self, state: int, event: Event) -> int:
        if isinstance(event, Reported) and event.epoch == 2:
            raise ZeroDivisionError("by its own doing")
        return super().fold(state, event)


@pytest.fixture(scope="module")
def log() -> list[Event]:
    return list(search(small_study(RandomSearch(), problem=PROBLEM, trials=2)).events())


def test_it_reads_in_pieces_what_it_reads_at_once(log: list[Event]) -> None:
    whole, pieces = Fold(PROBLEM, Whims()), Fold(PROBLEM, Whims())
    whole.read(log)
    pieces.read(log[:7])
    pieces.read(iter(log[7:]))
    assert (pieces.state, pieces.history.position, pieces.last) == (whole.state, len(log), log[-1])
    assert [list(t.values) for t in pieces.history.trials] == [list(t.values) for t in whole.history.trials]


def test_what_a_policy_raises_moves_nothing_and_is_told_with_its_position(log: list[Event]) -> None:
    fold = Fold(PROBLEM, Trips(), "the study 's'")
    second = next(n for n, e in enumerate(log) if isinstance(e, Reported) and e.epoch == 2)
    with pytest.raises(StoreError, match=rf"event {second} of the study 's': Trips cannot fold it"):
        fold.read(log)
    assert (fold.history.position, fold.last) == (second, log[second - 1])
    with pytest.raises(ZeroDivisionError):
        fold.take(log[second])


def test_a_damaged_log_is_told_as_that_and_not_as_the_policys_mistake(log: list[Event]) -> None:
    class Strict(Whims):
        def fold(self, state: int, event: Any) -> int:
            if isinstance(event, Reported) and event.trial > 0:
                raise KeyError(event.trial)
            return super().fold(state, event)

    reports = [e for e in log if isinstance(e, Reported) and e.trial == 1]
    fold = Fold(PROBLEM, Strict())
    with pytest.raises(StoreError, match="event 1 of the study: reported of trial 1, and there are 0 yet"):
        fold.read([log[0], reports[0]])
