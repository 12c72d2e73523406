"""Time held by trials, against counting seconds one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haltune import Budget
from haltune.log.spending import HeldTime, Spent

intervals = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 25)), max_size=12)


def covered(spans: list[tuple[int, int]]) -> int:
    """Whole seconds inside any [start, end]."""
    return len({second for start, end in spans for second in range(start, end)})


@given(intervals, intervals, st.randoms())
def test_wall_clock_is_the_union_and_worker_time_the_sum(
    closed: list[tuple[int, int]], running: list[tuple[int, int]], random: object
) -> None:
    clock = HeldTime()
    for id, (start, length) in enumerate(closed):
        clock.begin(id, start)
        clock.alive(id, start + length // 2)
        clock.end(id, start + length)
    for id, (start, length) in enumerate(running, 100):
        clock.begin(id, start)
        clock.alive(id, start + length)
        clock.alive(id, start)  # a clock set back takes nothing away
    spans = [(start, start + length) for start, length in closed + running]
    assert clock.wall() == covered(spans)
    assert clock.worker() == sum(end - start for start, end in spans)


@given(intervals, st.integers(0, 60), st.integers(0, 30))
def test_looking_ahead_changes_nothing(closed: list[tuple[int, int]], start: int, now: int) -> None:
    clock = HeldTime()
    for start_of_one, length in closed:
        clock.add(start_of_one, start_of_one + length)
    clock.begin(7, start)
    before = (clock.wall(), clock.worker())
    later = clock.at(7, start + now)
    assert later.wall() == covered([(a, a + b) for a, b in closed] + [(start, start + now)])
    assert (clock.wall(), clock.worker()) == before


def test_the_end_of_an_attempt_is_never_before_its_last_sign_of_life() -> None:
    clock = HeldTime()
    clock.begin(0, 10.0)
    clock.alive(0, 30.0)
    clock.end(0, 20.0)
    assert clock.wall() == 20.0


@pytest.mark.parametrize(
    ("budget", "spent", "words"),
    [
        (Budget(epochs=10), Spent(epochs=10), "10 epochs"),
        (Budget(time=60), Spent(time=60.0), "60 s of time"),
        (Budget(time="1min"), Spent(time=59.9), None),
        (Budget(worker_time="1h"), Spent(worker_time=3600.0), "3600 s of worker time"),
        (Budget(money=2, price=4), Spent(worker_time=1800.0), "2 of money"),
        (Budget(money=2, price=4), Spent(worker_time=1799.0), None),
        (Budget(epochs=0.1 * 3), Spent(epochs=0.1 + 0.1 + 0.1), "0.3 epochs"),
        (Budget(trials=3), Spent(trials=3), None),  # those that began may go on
    ],
)
def test_the_first_limit_reached_is_named(budget: Budget, spent: Spent, words: str | None) -> None:
    found = spent.exhausts(budget)
    assert (found is None) if words is None else (found is not None and words in found)


@pytest.mark.parametrize(
    ("budget", "share"),
    [
        (Budget(), None),
        (Budget(epochs=float("inf")), None),
        (Budget(epochs=40), 0.25),
        (Budget(epochs=40, trials=4), 0.5),
        (Budget(epochs=40, trials=4, time="10s"), 0.9),
        (Budget(trials=1, time="1h"), 1.0),
    ],
)
def test_the_limit_of_which_most_is_spent_says_how_far_a_search_is(budget: Budget, share: float | None) -> None:
    assert Spent(trials=2, epochs=10.0, time=9.0).share(budget) == share


def test_a_spent_number_of_trials_only_ends_the_starting() -> None:
    assert Spent(trials=3).starts_no_more(Budget(trials=3)) == "the budget of 3 trials is spent"
    assert Spent(trials=2).starts_no_more(Budget(trials=3)) is None
