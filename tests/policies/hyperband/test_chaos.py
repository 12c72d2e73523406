"""With dead workers, races and missing values only winners are promoted, and the search ends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from halving_log import Filling, plan_of, recomputed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laboratory import Lab, act, differences, happenings, rough

from examples import many, quickly
from haltune import Budget
from haltune.log.decisions import stop
from haltune.log.events import Resumed, Status
from haltune.log.policy import Wrapper
from haltune.policies import Hyperband, SuccessiveHalving

# -- anything may happen ----------------------------------------------------------------------

MADE: dict[str, tuple[Any, int, int]] = {  # name -> (policy, epochs, rounds)
    "hyperband": (lambda: Hyperband(), 9, 1),
    "eta 2, twice": (lambda: Hyperband(eta=2, rounds=2), 4, 2),
    "halving": (lambda: SuccessiveHalving(n=9), 9, 1),
    "below the horizon": (lambda: SuccessiveHalving(n=6, max_resource=4, eta=2), 7, 1),
    "retrains": (lambda: Hyperband(eta=2, resume=False), 4, 1),
}
ACTIONS = ["step"] * 12 + ["race"] * 4 + ["save", "fail", "early", "kill", "interrupt", "stuck", "late", "mourn"]


class Whimsical(Wrapper):
    """STOP at some epochs without a reason, as a stopping rule inside the rungs may."""

    def __init__(self, policy: Any, seed: int = 0, at: tuple[tuple[int, int], ...] | None = None) -> None:
        self.policy, self.seed, self.at = policy, seed, at

    def judge(self, state: Any, history: Any, trial: Any, rng: Any) -> Any:
        if self.at is not None:
            whim = (trial.id, trial.epoch) in self.at
            return stop("a whim") if whim else self.policy.judge(state, history, trial, rng)
        whim = np.random.default_rng([self.seed, trial.id, int(trial.epoch)]).random() < 0.1
        return stop("a whim") if whim else self.policy.judge(state, history, trial, rng)


def checked(lab: Lab, policy: Any, epochs: int, rounds: int) -> dict[int, Filling]:
    """Check the invariants of every log; `recomputed` asserts that only winners were promoted."""
    resume = policy.resume
    filled = recomputed(lab.log, plan_of(policy, policy.max_resource or epochs, rounds), resume)
    for trial in lab.study.trials:
        if trial.tags["rung"] and resume:
            assert trial.status is not Status.RUNNING or trial.attempt > 1
    for e in lab.log:
        if isinstance(e, Resumed) and e.by_policy:
            assert resume
    return filled


@pytest.mark.parametrize("name", quickly(MADE, "hyperband", "retrains"))
@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
@settings(max_examples=many(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=happenings(ACTIONS, 100),
    seed=st.integers(0, 10**6),
    bad=st.sampled_from([0.0, 0.1, 0.5]),
    halts=st.booleans(),
)
def test_after_any_events_only_winners_are_promoted_and_the_search_ends(
    name: str, steps: list[tuple[int, int, str]], seed: int, bad: float, halts: bool
) -> None:
    make, epochs, rounds = MADE[name]
    wrapped = (lambda: Whimsical(make(), seed)) if halts else make
    lab = Lab(wrapped, rough(seed, bad), epochs=epochs, workers=4)
    for number, other, action in steps:
        act(lab, number, other, action)
    for worker in lab.workers:
        worker.stuck = False
    lab.clock.now += 1e7  # workers that are gone hold nothing
    lab.run()
    filled = checked(lab, make(), epochs, rounds)
    assert len(filled) == len(plan_of(make(), epochs, rounds))
    assert all(f.closed for f in filled.values())
    assert all(t.status is not Status.RUNNING for t in lab.study.trials)
    assert differences(lab) == []


@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
@settings(max_examples=many(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=happenings(ACTIONS, 100),
    seed=st.integers(0, 10**6),
    limits=st.lists(st.integers(5, 80), min_size=1, max_size=4),
)
def test_a_budget_is_kept_after_any_events_and_a_larger_one_continues(
    steps: list[tuple[int, int, str]], seed: int, limits: list[int]
) -> None:
    make = lambda: Hyperband(rounds=1)  # noqa: E731
    lab = Lab(make, rough(seed), epochs=9, workers=4, budget=Budget(epochs=limits[0]))
    for number, other, action in steps:
        act(lab, number, other, action)
    for limit in sorted(limits):
        lab.budget = Budget(epochs=limit)
        for worker in lab.workers:
            worker.study.budget, worker.answer, worker.stuck = lab.budget, None, False
        lab.clock.now += 1e7
        for worker in lab.workers:
            if worker.trial is not None:
                worker.trial.heartbeat()
        lab.run()
        assert lab.study.spent.epochs <= max(limit, limits[0]) + 3  # what three others were training
        assert lab.study.outcome.over
        checked(lab, Hyperband(), 9, 1)
    assert differences(lab) == []


@pytest.mark.parametrize("resume", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
@settings(max_examples=many(20), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=happenings(ACTIONS, 60),
    seed=st.integers(0, 10**6),
    limits=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    halts=st.booleans(),
)
def test_rungs_close_with_those_that_started_when_nothing_more_may_and_a_larger_number_continues(
    resume: bool, steps: list[tuple[int, int, str]], seed: int, limits: list[int], halts: bool
) -> None:
    plain = lambda: Hyperband(resume=resume)  # noqa: E731
    make = (lambda: Whimsical(plain(), seed)) if halts else plain
    lab = Lab(make, rough(seed), epochs=9, workers=4, budget=Budget(trials=limits[0]))
    for number, other, action in steps:
        act(lab, number, other, action)
    for limit in limits:
        lab.budget = Budget(trials=limit)
        for worker in lab.workers:
            worker.study.budget, worker.answer, worker.stuck = lab.budget, None, False
        lab.clock.now += 1e7
        lab.run()
        filled = recomputed(lab.log, plan_of(plain(), 9, 9), resume)
        assert all(f.closed for f in filled.values())
        begun = sum(1 for t in lab.study.trials if "of" not in t.tags)
        assert begun <= max(limits)
    assert differences(lab) == []
