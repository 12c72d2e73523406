"""The end of a budget: trials that have started are trained in full, and in time."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import hill, slope, study
from worlds import Clock

from examples import many
from haltune import Budget, Study, Trial
from haltune.log.events import Reported, Resumed, Status
from haltune.policies import MultiFidelity
from haltune.policies.multifidelity.policy import CLOSING
from haltune.store.memory import MemoryStore

EPOCHS = 9


def searched(budget: Budget, saves: bool = True, seed: int = 0, start_up: float = 0.0, **options: Any) -> Study:
    """Return a search with trainings of 4 to 28 seconds, growing with a."""
    found = study(MultiFidelity(candidates=40), budget, EPOCHS, seed, verbose=0, **options)
    clock: Clock = found.session.replica.store.now  # type: ignore[attr-defined]
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
    pytest.param(Budget(time=60), marks=pytest.mark.slow),
    pytest.param(Budget(worker_time=200), marks=pytest.mark.slow),
    pytest.param(Budget(money=5, price=90), marks=pytest.mark.slow),  # 200 seconds
    pytest.param(Budget(cost=200), marks=pytest.mark.slow),
    Budget(epochs=100),
    Budget(time=200, epochs=100),
]


@pytest.mark.parametrize("budget", LIMITS, ids=str)
@pytest.mark.parametrize("saves", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["pauses", "stops"])
def test_the_last_runs_end_in_time_and_one_is_trained_in_full(budget: Budget, saves: bool) -> None:
    for seed in range(2):
        found = searched(budget, saves, seed, start_up=0.5)
        assert any(t.epoch == EPOCHS for t in found.trials)
        assert found.best is not None
        assert found.best.epoch == EPOCHS
        assert not cut_off(found), found.outcome.reason
        ends = [e for e in found.events() if isinstance(e, Reported) and e.verdict.reason.startswith("the budget")]
        assert all(found.trials[e.trial].epoch == EPOCHS for e in ends)


@cache
def lasts() -> list[tuple[Study, Resumed]]:
    """Return searches, and the trials that continue because the budget ends; read only."""
    found = [searched(Budget(epochs=40 + seed), seed=seed) for seed in range(6)]
    return [(f, e) for f in found for e in f.events() if isinstance(e, Resumed) and e.tags.get(CLOSING)]


def test_the_final_full_training_states_its_reason_and_is_not_compared() -> None:
    assert len(lasts()) > 2
    for found, e in lasts():
        assert e.pause_at == EPOCHS
        assert "too small for a new trial, but trains this one in full" in e.reason
        assert found.trials[e.trial].epoch == EPOCHS
        events = [r for r in found.events() if isinstance(r, Reported) and r.trial == e.trial]
        verdicts = [r.verdict.action.value for r in events if r.attempt == e.attempt]
        assert set(verdicts[:-1]) == {"continue"}


def test_of_those_in_time_the_best_continues() -> None:
    ranks = []
    for found, e in lasts():
        qualities = [hill(dict(t.config)) for t in found.trials]
        ranks.append(np.mean(np.array(qualities) < qualities[e.trial]))
    assert np.mean(ranks) > 0.7


def test_it_ends_before_its_budget_where_no_run_would_end_in_time_and_continues_with_more() -> None:
    store = MemoryStore(Clock())
    found = searched(Budget(time=200), store=store)
    assert "train another trial in full" in found.outcome.reason
    assert 200 - 28 * 1.2 < found.spent.time < 200
    started = len(found.trials)
    more = searched(Budget(time=400), store=store)
    assert len(more.trials) > started


Curve = Callable[[dict[str, Any], float, int], float]


def rises(config: dict[str, Any], epoch: float, epochs: int) -> float:
    return hill(config) * epoch / (epoch + 1)


def crosses(config: dict[str, Any], epoch: float, epochs: int) -> float:
    """Return a curve that leads first and is behind from the middle on."""
    return 0.9 * hill(config) if 2 * epoch > epochs else 0.3 - 0.1 * hill(config)


def wavers(config: dict[str, Any], epoch: float, epochs: int) -> float:
    return 0.9 * hill(config) * epoch / (epoch + 1) + 0.05 * math.sin(1e3 * config["a"] + 7 * epoch)


def shared(workers: int, budget: Budget, epochs: int, seed: int = 0, curve: Curve = rises, saves: bool = True) -> Study:
    """Trained by several workers, an epoch each a second."""
    found = study(MultiFidelity(candidates=16), budget, epochs, seed, verbose=0)
    clock: Clock = found.session.replica.store.now  # type: ignore[attr-defined]
    at_work: list[tuple[Trial, Any]] = []
    while True:
        while len(at_work) < workers and isinstance(trial := found.ask(), Trial):
            trial._lap = clock.now
            at_work.append((trial, trial.epochs()))
        if not at_work:
            return found
        clock.now += 1.0
        for trial, own in list(at_work):
            epoch = next(own)
            verdict = trial.report(curve(trial.config, epoch, epochs), seconds=1.0)
            if verdict.resumable and saves:
                trial.checkpointed(f"memory of {trial.id}")
            if verdict.stops or epoch == epochs:
                trial.finish()
                at_work.remove((trial, own))


def kept(found: Study, epochs: int) -> None:
    """One was trained in full, and the end of the budget took none by surprise."""
    assert any(t.epoch == epochs for t in found.trials), found.outcome.reason
    assert not cut_off(found), found.outcome.reason


def limits(trainings: int, workers: int, epochs: int) -> list[Budget]:
    """Return equal limits in epochs, worker seconds and time: at least two trainings of each worker."""
    whole = trainings * epochs * workers
    return [Budget(epochs=whole), Budget(worker_time=1.1 * whole), Budget(time=1.1 * trainings * epochs)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [0, 1, 2], ids=["epochs", "worker_time", "time"])
@pytest.mark.parametrize("curve", [crosses, *(pytest.param(c, marks=pytest.mark.slow) for c in (rises, wavers))])
@pytest.mark.parametrize("saves", [True, False], ids=["pauses", "stops"])
def test_of_several_workers_none_is_cut_off_by_the_end(kind: int, curve: Curve, saves: bool) -> None:
    for workers, epochs in ((2, 27), (5, 9)):
        kept(shared(workers, limits(2, workers, epochs)[kind], epochs, workers, curve, saves), epochs)


@settings(max_examples=many(20), deadline=None)
@given(
    workers=st.integers(2, 8), epochs=st.sampled_from([5, 9, 20, 30]), spare=st.integers(0, 40),
    seed=st.integers(0, 99), curve=st.sampled_from([rises, crosses, wavers]), saves=st.booleans(),
)  # fmt: skip
def test_a_budget_of_epochs_holds_whatever_is_trained(
    workers: int, epochs: int, spare: int, seed: int, curve: Curve, saves: bool
) -> None:
    kept(shared(workers, Budget(epochs=epochs * workers + spare), epochs, seed, curve, saves), epochs)


def test_of_several_workers_one_trains_in_full_first() -> None:
    resumed = [e for e in shared(4, Budget(epochs=200), 27).events() if isinstance(e, Resumed)]
    assert sum("first trial that trains in full" in e.reason for e in resumed) == 1


def test_without_checkpoints_a_budget_of_cost_trains_one_in_full_too() -> None:
    found = study(MultiFidelity(candidates=16), Budget(cost=81.0), 27, 1, verbose=0)
    at_work: list[tuple[Trial, Any]] = []
    while True:
        while len(at_work) < 2 and isinstance(trial := found.ask(), Trial):
            at_work.append((trial, trial.epochs()))
        if not at_work:
            break
        for trial, own in list(at_work):
            epoch = next(own)
            if trial.report(rises(trial.config, epoch, 27), cost=1.0).stops or epoch == 27:
                trial.finish()
                at_work.remove((trial, own))
    kept(found, 27)


def test_without_checkpoints_the_end_of_the_budget_trains_a_paused_trial_in_full() -> None:
    found = shared(1, Budget(epochs=150), 50, saves=False)
    assert sum(t.epoch == 50 for t in found.trials) >= 2
    assert any(t.tags.get("closing") for t in found.trials)
