"""A machine that sleeps, or a clock that is set: no trial is lost, and no budget is charged."""

from __future__ import annotations

import random
from typing import Any

import pytest
from clocked import World
from hypothesis import given, settings
from hypothesis import strategies as st

from haltune import Trial
from haltune.log.events import Expired, Status

HOUR = 3600.0


@pytest.fixture
def world() -> World:
    return World(trials=20)


def train(world: World, trial: Trial, epochs: int = 1, seconds: float = 10.0) -> None:
    for _ in range(epochs):
        world.clock.now += seconds
        trial.report(0.1)


# -- the watch --------------------------------------------------------------------------------------


# -- nobody is lost -----------------------------------------------------------------------------------


def test_a_process_never_expires_what_it_trains_itself(world: World) -> None:
    trials = [world.ask() for _ in range(4)]
    for trial in trials:
        train(world, trial)
    world.laps.sleep(HOUR)
    trials[0].finish()
    trials.append(world.ask())
    assert trials[-1].id == 4
    for trial in trials[1:]:
        assert not trial.report(0.3).stops
    world.clock.now += HOUR  # and when an epoch truly outlasts its lease
    assert world.ask().id == 5
    assert world.events(Expired) == []


@pytest.mark.parametrize("seconds", [HOUR, 1e9, -HOUR])
def test_workers_that_sleep_together_lose_no_trial_and_notice_later_which_is_lost(world: World, seconds: float) -> None:
    lost, other = world.ask(), world.another()
    assert world.ask(other).id == 1
    world.clock.now += 100
    world.laps.sleep(seconds)
    assert world.ask(other).id == 2
    world.clock.now += 490
    assert world.ask(other).id == 3
    assert world.events(Expired) == []
    world.clock.now += 20
    assert world.ask(other).id == lost.id  # 610 seconds are over, whatever the clock says


# -- nothing is charged ---------------------------------------------------------------------------------


def test_workers_that_start_on_a_clock_that_was_set_back_are_not_charged_for_it() -> None:
    """Three workers that train two epochs a trial; the oracle counts the seconds that each was held."""
    for seed in range(40):
        draw = random.Random(seed)
        world = World(trials=10**6)
        studies = [world.study, world.another(), world.another()]
        held: list[tuple[Trial, float] | None] = [None] * 3
        charged, steps = 0.0, draw.randint(8, 25)
        back = {draw.randrange(steps): draw.choice([HOUR, 2 * HOUR, 120.0])}
        for step in range(steps):
            worker = draw.randrange(3)
            world.clock.now += draw.choice([1.0, 20.0, 60.0])
            world.laps.sleep(-back.get(step, 0.0))
            if (training := held[worker]) is None:
                held[worker] = world.ask(studies[worker]), world.laps()
                continue
            trial, began = training
            trial.report(0.1)
            if trial.epoch == 2:
                trial.finish()
                charged += world.laps() - began
                held[worker] = None
        studies[0].sync()
        now = sum(world.laps() - began for _, began in filter(None, held))
        assert not world.events(Expired)
        assert studies[0].spent.worker_time <= charged + now + 1e-3
        assert studies[0].spent.time <= studies[0].spent.worker_time + 1e-3


steps = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from([1.0, 20.0, 60.0]), st.sampled_from([0.0, 0.0, 9.0, 1e5])),
    min_size=5, max_size=40,
)  # fmt: skip


@settings(deadline=None)
@given(steps)
def test_whatever_sleeps_between_reports_workers_are_charged_for_what_they_were_awake(steps: Any) -> None:
    """Three workers; the oracle counts the seconds of the monotonic clock from the start to the last report."""
    world = World(trials=3)
    studies = [world.study, world.another(), world.another()]
    trials = [world.ask(study) for study in studies]
    began = world.laps()
    last = [began] * 3
    before = 0.0
    for worker, awake, asleep in steps:
        world.clock.now += awake
        world.laps.sleep(asleep)
        if trials[worker].epoch < 10:
            trials[worker].report(0.1)
            last[worker] = world.laps()
        studies[0].sync()
        spent = studies[0].spent
        assert spent.worker_time == pytest.approx(sum(at - began for at in last), abs=1e-3)
        assert before - 1e-6 <= spent.time
        before = spent.time
    assert before <= world.laps() - began + 1e-3
    assert not world.events(Expired)
    assert all(t.status is Status.RUNNING for t in studies[0].trials)
