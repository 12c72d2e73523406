"""The plain loop over the reporter."""

import pytest
from callback_fakes import OUTAGE, STOP, Clock, FakeTrial

from haltune.callbacks.loop import TrainingLoop
from haltune.errors import HaltuneWarning, InvalidInput


def test_it_trains_to_the_horizon_and_times_validation_apart():
    clock, trial = Clock(), FakeTrial(max_epochs=3)
    loop = TrainingLoop(trial, now=clock)
    for epoch in loop:
        clock.tick(4.0)
        with loop.validation():
            clock.tick(1.0)
        loop.report(1.0 / epoch)
    assert trial.values == [1.0, 1 / 2, 1 / 3]
    assert {(r["seconds"], r["validation"]) for r in trial.reports} == {(5.0, 1.0)}
    assert trial.endings == [None]


def test_it_ends_after_a_stop():
    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    loop = TrainingLoop(trial)
    trained = [(epoch, loop.report(0.5)) for epoch in loop]
    assert trained == [(1, False), (2, True)]


def test_a_resumed_trial_goes_on_after_its_checkpoint():
    trial = FakeTrial(max_epochs=4, epoch=2.0)
    loop = TrainingLoop(trial)
    assert [epoch for epoch in loop if loop.report(0.5) or epoch] == [3, 4]


def test_a_trial_at_its_horizon_trains_nothing():
    assert list(TrainingLoop(FakeTrial(max_epochs=2, epoch=2.0))) == []


def test_epochs_without_a_report_still_come_to_an_end():
    trial = FakeTrial(max_epochs=3)
    assert list(TrainingLoop(trial)) == [1, 2, 3]
    assert trial.reports == []


def test_an_outage_does_not_end_the_training():
    trial = FakeTrial(max_epochs=3)
    loop = TrainingLoop(trial)

    def train():
        for epoch in loop:
            trial.broken = OUTAGE if epoch < 3 else None
            loop.report(0.5)

    with pytest.warns(HaltuneWarning, match="training continues"):
        train()
    assert trial.epochs == [1, 2, 3]


def test_a_report_outside_the_loop_is_refused():
    with pytest.raises(InvalidInput, match="within the loop"):
        TrainingLoop(FakeTrial()).report(0.5)
