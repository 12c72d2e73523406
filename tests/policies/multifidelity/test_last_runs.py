"""What goes on as a budget ends: what began by then is trained in full, and in time."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import hill, slope, study
from worlds import Clock

from examples import many
from haltune import Budget, Maximize, Minimize, Study, Trial
from haltune.log.decisions import Start
from haltune.log.events import Reported, Resumed, Status
from haltune.policies import MultiFidelity
from haltune.policies.multifidelity.promotion.last_runs import CLOSING, too_late
from haltune.policies.multifidelity.promotion.remaining import Remaining
from haltune.store.memory import MemoryStore

EPOCHS = 9


def searched(
    budget: Budget, saves: bool = True, seed: int = 0, start_up: float = 0.0, **options: Any
) -> Study:
    """Trainings of 4 to 28 seconds, dearer with a."""
    found = study(MultiFidelity(candidates=40), budget, EPOCHS, seed, verbose=0, **options)
    clock: Clock = found.session.replica.store._clock  # type: ignore[attr-defined]
    for trial in found:
        with trial:
            clock.now += start_up
            trial._lap = clock.now
            for epoch in trial.epochs():
                clock.now += slope(trial.config) / EPOCHS
                trial.report(hill(trial.config) * epoch / (epoch + 1), cost=slope(trial.config) / EPOCHS)
            if saves and trial.verdict is not None and trial.verdict.resumable:
                trial.checkpointed(f"memory of {trial.id}")
    return found


def cut_off(found: Study) -> list[int]:
    """The trials that the end of the budget took by surprise."""
    return [t.id for t in found.trials if t.status in (Status.INTERRUPTED, Status.RUNNING)]


LIMITS = [
    Budget(time=200),
    Budget(time=60),
    Budget(worker_time=200),
    Budget(money=5, price=90),  # 200 seconds
    Budget(cost=200),
    Budget(epochs=100),
    Budget(time=200, epochs=100),
]


@pytest.mark.parametrize("budget", LIMITS, ids=str)
@pytest.mark.parametrize("saves", [True, False], ids=["pauses", "stops"])
def test_the_last_runs_end_in_time_and_one_is_trained_in_full(budget: Budget, saves: bool) -> None:
    for seed in range(3):
        found = searched(budget, saves, seed, start_up=0.5)
        assert any(t.epoch == EPOCHS for t in found.trials)
        assert found.best is not None
        assert found.best.epoch == EPOCHS
        assert not cut_off(found), found.outcome.reason
        ends = [
            e for e in found.events() if isinstance(e, Reported) and e.verdict.reason.startswith("the budget")
        ]
        assert all(found.trials[e.trial].epoch == EPOCHS for e in ends)


@cache
def lasts() -> list[tuple[Study, Resumed]]:
    """Searches, and what goes on in them because their budget ends; for reading alone."""
    found = [searched(Budget(epochs=60 + seed), seed=seed) for seed in range(6)]
    return [(f, e) for f in found for e in f.events() if isinstance(e, Resumed) and e.tags.get(CLOSING)]


def test_what_goes_on_last_says_why_and_is_not_compared_any_more() -> None:
    assert len(lasts()) > 2
    for found, e in lasts():
        assert e.until == EPOCHS
        assert "trains no new run in full, but this one" in e.reason
        assert found.trials[e.trial].epoch == EPOCHS
        events = [r for r in found.events() if isinstance(r, Reported) and r.trial == e.trial]
        verdicts = [r.verdict.action.value for r in events if r.attempt == e.attempt]
        assert set(verdicts[:-1]) == {"continue"}


def test_of_those_in_time_the_most_promising_goes_on() -> None:
    ranks = []
    for found, e in lasts():
        qualities = [hill(dict(t.config)) for t in found.trials]
        ranks.append(np.mean(np.array(qualities) < qualities[e.trial]))
    assert np.mean(ranks) > 0.7


def test_it_ends_before_its_budget_where_no_run_would_end_in_time_and_goes_on_with_more() -> None:
    store = MemoryStore(Clock())
    found = searched(Budget(time=200), store=store)
    assert "trains no other run in full" in found.outcome.reason
    assert 200 - 28 * 1.2 < found.spent.time < 200
    begun = len(found.trials)
    more = searched(Budget(time=400), store=store)
    assert len(more.trials) > begun


def test_a_budget_of_less_than_one_training_is_spent_as_far_as_it_goes() -> None:
    found = searched(Budget(epochs=EPOCHS - 2))
    assert found.spent.epochs == EPOCHS - 2


def test_what_the_user_enqueued_begins_however_late() -> None:
    found = searched(Budget(epochs=100))
    history = found.session.replica.history
    remaining = Remaining.of(history, EPOCHS)
    assert too_late(Start({"a": 0.5, "b": 0.5}), remaining, history)
    found.enqueue({"a": 0.5, "b": 0.5})
    assert not too_late(Start({"a": 0.5, "b": 0.5}), remaining, found.session.replica.history)


@settings(max_examples=many(10), deadline=None)
@given(seconds=st.floats(0.01, 1e4), start_up=st.floats(0.0, 1e4), sign=st.sampled_from([Maximize, Minimize]))
def test_a_run_takes_what_its_epochs_took_and_an_attempt(seconds: float, start_up: float, sign: Any) -> None:
    found = study(MultiFidelity(), Budget(time=1e9), EPOCHS, goal=sign("acc", (0, 1)), verbose=0)
    clock = found.session.replica.store._clock  # type: ignore[attr-defined]
    trial = found.ask()
    clock.now += start_up
    trial._lap = clock.now
    for _ in range(3):
        clock.now += seconds
        trial.report(0.5)
    history = found.session.replica.history
    remaining = Remaining.of(history, EPOCHS)
    left = 1e9 - history.spent.time
    assert remaining.share(history.trial(0)) * left == pytest.approx(1.1 * (start_up + 6 * seconds), rel=1e-6)
    assert remaining.share(None) * left == pytest.approx(1.1 * (start_up + 9 * seconds), rel=1e-6)


def test_epochs_that_runs_under_way_will_take_are_set_aside() -> None:
    found = study(MultiFidelity(), Budget(epochs=30), EPOCHS, verbose=0)
    one, two = found.ask(), found.ask()
    one.report(0.5)
    history = found.session.replica.history
    aside = sum(history.trial(t.id).until - history.trial(t.id).epoch for t in (one, two))
    assert Remaining.of(history, EPOCHS).share(None) == pytest.approx(EPOCHS / (29 - aside))


@pytest.mark.parametrize("budget", [Budget(time=120), Budget(epochs=360), Budget(worker_time=360)], ids=str)
def test_of_several_workers_none_is_cut_off_by_the_end(budget: Budget) -> None:
    found = study(MultiFidelity(candidates=40), budget, EPOCHS, verbose=0)
    clock: Clock = found.session.replica.store._clock  # type: ignore[attr-defined]
    at_work: list[tuple[Trial, Any]] = []
    while True:
        while len(at_work) < 3 and isinstance(trial := found.ask(), Trial):
            trial._lap = clock.now
            at_work.append((trial, trial.epochs()))
        if not at_work:
            break
        clock.now += 1.0
        for trial, epochs in list(at_work):
            epoch = next(epochs)
            if trial.report(hill(trial.config) * epoch / (epoch + 1), seconds=1.0).resumable:
                trial.checkpointed(f"memory of {trial.id}")
            if trial.verdict is None or trial.verdict.stops or epoch == EPOCHS:
                trial.finish()
                at_work.remove((trial, epochs))
    assert any(t.epoch == EPOCHS for t in found.trials)
    assert not cut_off(found), found.outcome.reason
    asked = [
        e for e in found.events() if isinstance(e, Reported) and e.verdict.reason.startswith("the budget")
    ]
    assert all(found.trials[e.trial].epoch == EPOCHS for e in asked)
