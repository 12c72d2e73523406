"""The cost of a search, recomputed from its events with sets and sums: no part is lost or counted twice."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from whims import PAUSE, PROBLEM, STOP, Whims
from worlds import Clock

from examples import many
from haltune import Budget, Study, Trial
from haltune.errors import InvalidInput
from haltune.log import events as ev
from haltune.log.history import History
from haltune.log.spending import Spent
from haltune.store.memory import MemoryStore
from haltune.study.session import clocked

PARTS = ("training", "validation", "checkpoint", "start_up", "deciding")
TICK = 0.25  # of the clock: sums of these are exact
ticks = st.integers(0, 8).map(lambda n: n * TICK)


class Thinking(Whims):
    """Every answer takes time."""

    def __init__(self, clock: Clock, thoughts: Any) -> None:
        super().__init__()
        self.clock, self.thoughts = clock, thoughts

    def propose(self, *question: Any) -> Any:
        self.clock.now += self.thoughts()
        return super().propose(*question)

    def judge(self, *question: Any) -> Any:
        self.clock.now += self.thoughts()
        return super().judge(*question)


def recomputed(events: Sequence[ev.Event]) -> Spent:
    """Return the spending of a log in parts: seconds as sets of ticks, all others as sums."""
    attempts: dict[tuple[int, int], list[ev.Event]] = {}
    for event in events:
        if isinstance(event, ev.Started | ev.Resumed):
            attempts[event.trial, event.attempt if isinstance(event, ev.Resumed) else 1] = [event]
        elif (key := (getattr(event, "trial", None), getattr(event, "attempt", None))) in attempts:
            attempts[key].append(event)  # type: ignore[index]
    held: list[set[int]] = []
    spent = dict.fromkeys((f.name for f in fields(Spent)), 0.0)
    epochs: dict[int, float] = {}  # trial -> where its attempt is
    saved: dict[int, float] = {}
    for (trial, _), (begun, *rest) in attempts.items():
        assert isinstance(begun, ev.Started | ev.Resumed)
        epochs[trial] = saved.get(trial, 0.0)
        counted = until_over(rest)
        last = max([begun.at, *(e.last_alive if isinstance(e, ev.Expired) else e.at for e in counted)])
        start = begun.at - begun.deciding
        held.append(set(range(round(start / TICK), round(last / TICK))))
        spent["deciding"] += begun.deciding
        reports = []
        for e in counted:
            if isinstance(e, ev.Reported) and e.epoch > epochs[trial]:
                spent["epochs"] += e.epoch - epochs[trial]
                epochs[trial] = e.epoch
                reports.append(e)
            elif isinstance(e, ev.Checkpointed):
                saved[trial] = e.epoch
                spent["checkpoint"] += e.seconds
        for e in reports:
            spent["validation"] += e.validation or 0.0
            spent["training"] += e.seconds - (e.validation or 0.0)
            spent["deciding"] += e.deciding
            spent["cost"] += e.cost or 0.0
        if begun.price is not None:
            spent["priced_time"] += TICK * len(held[-1])
            spent["paid"] += TICK * len(held[-1]) * begun.price / 3600
        if reports:
            spent["start_up"] += reports[0].at - reports[0].seconds - begun.at
    spent["trials"] = len({trial for trial, _ in attempts})
    spent["worker_time"] = TICK * sum(map(len, held))
    spent["time"] = TICK * len(set().union(*held))
    spent["unit"] = "epoch"  # type: ignore[assignment]
    return Spent(**spent)  # type: ignore[arg-type]


def until_over(events: Sequence[ev.Event]) -> list[ev.Event]:
    """The events of an attempt up to its end: what comes after it changes nothing."""
    ends = [n for n, e in enumerate(events) if isinstance(e, ev.Ended | ev.Expired)]
    return list(events[: ends[0] + 1] if ends else events)


class Work:
    """One worker, whose every step moves the clock."""

    def __init__(self, store: MemoryStore, clock: Clock, data: st.DataObject) -> None:
        self.clock, self.data = clock, data
        thoughts = lambda: data.draw(ticks)  # noqa: E731
        with clocked(clock):
            self.study = Study(PROBLEM, Thinking(clock, thoughts), store, seed=0, budget=Budget(trials=9))
        self.study.session.set_price(data.draw(st.sampled_from([None, 0, 3600, 7200])))  # sums of these are exact
        self.trial: Trial | None = None

    def step(self) -> None:
        """Ask and start up; or train, report, and perhaps save; or give the trial back."""
        draw, clock = self.data.draw, self.clock
        if self.trial is None:
            answer = self.study.ask()
            if isinstance(answer, Trial):
                self.trial = answer
                clock.now += draw(ticks)  # starts up
            return
        if self.trial.verdict is not None and self.trial.verdict.stops:
            self.over()
            return
        training, validation = draw(ticks), draw(ticks)
        clock.now += training + validation
        value = draw(st.sampled_from([0.1, 0.2, STOP, PAUSE, math.nan]))
        cost = draw(st.none() | ticks)
        self.trial.report(value, seconds=training + validation, validation=validation, cost=cost)
        if draw(st.booleans()):
            saving = draw(ticks)
            clock.now += saving
            self.trial.checkpointed("a/path", saving)
        if draw(st.integers(0, 5)) == 0 or self.trial.epoch == PROBLEM.max_epochs:
            self.over()

    def over(self) -> None:
        if self.trial is not None:
            self.trial.interrupt() if self.data.draw(st.integers(0, 3)) == 0 else self.trial.finish()
            self.trial = None


@settings(max_examples=many(30), deadline=None)
@given(st.data(), st.integers(1, 3))
def test_spending_is_what_its_events_add_up_to_at_every_position(data: st.DataObject, workers: int) -> None:
    clock = Clock(1000.0)
    store = MemoryStore(clock)
    crew = [Work(store, clock, data) for _ in range(workers)]
    for n in data.draw(st.lists(st.integers(0, workers - 1), min_size=3, max_size=24)):
        crew[n].step()
    events, history = list(store.read("study")), History(PROBLEM)
    for n, event in enumerate(events, 1):
        history.apply(event)
        assert replace(history.spent, trials_without_gain=0) == recomputed(events[:n])  # counted in log/test_gains.py


@settings(max_examples=many(30), deadline=None)
@given(st.data())
def test_the_parts_of_a_worker_s_time_sum_to_the_whole(data: st.DataObject) -> None:
    clock = Clock(1000.0)
    work = Work(MemoryStore(clock), clock, data)
    for _ in range(data.draw(st.integers(1, 30))):
        work.step()
    if work.trial is not None and work.trial.verdict is None:
        work.step()  # what is started up but reports nothing is no part yet
    work.over()
    spent = work.study.spent
    assert sum(getattr(spent, part) for part in PARTS) == spent.worker_time == spent.time


def test_a_validation_cannot_last_longer_than_its_epoch() -> None:
    with clocked(Clock()):
        study = Study(PROBLEM, Whims(), budget=Budget(trials=1))
    trial = study.ask()
    assert isinstance(trial, Trial)
    with pytest.raises(InvalidInput, match=r"validation=3\.0 is more than seconds=2\.0.*with its validation"):
        trial.report(0.1, seconds=2.0, validation=3.0)
    assert len(study.history.trial(0).epochs) == 0
    trial.report(0.1, seconds=0.1 + 0.2, validation=0.30000000000000010)  # a last digit of rounding
    trial.report(0.1, validation=3.0)  # by a clock of the caller's own: it lasted at least as long
    assert study.spent.validation == pytest.approx(3.3)
    assert study.spent.training == 0.0
    assert list(study.history.trial(0).seconds) == pytest.approx([0.3, 3.0])
