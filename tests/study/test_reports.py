"""Reports of training code: accepted numbers, verdicts, and errors."""

from __future__ import annotations

import copy
import math
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from clocked import World
from whims import PROBLEM, STOP, Whims

from haltune import Action, Budget, Float, HaltuneWarning, Minimize, Study, Trial
from haltune.errors import InvalidInput
from haltune.log.events import JudgedEvery, Reported
from haltune.policies import Hyperband, RandomSearch


@pytest.fixture
def world() -> World:
    return World()


def test_epochs_count_from_one_and_default_to_the_next(world: World) -> None:
    trial = world.ask()
    for value in (0.1, 0.2, 0.3):
        trial.report(value)
    trial.report(0.5, epoch=7)
    trial.report(0.6)
    assert list(world.study.trials[0].epochs) == [1, 2, 3, 7, 8]


class Deep(Whims):
    """Records the number of frames through which it is called."""

    frames: list[str]

    def judge(self, *question: Any) -> Any:
        frame = sys._getframe()
        self.frames = [frame.f_code.co_qualname]
        while self.frames[-1] != "Trial.report":
            frame = cast("Any", frame.f_back)
            self.frames.append(frame.f_code.co_qualname)
        return super().judge(*question)


def test_a_report_passes_few_frames_before_the_policy(tmp_path: Path) -> None:
    policy = Deep()
    with Study(PROBLEM, policy, tmp_path / "deep.db", budget=Budget(trials=1)).ask() as trial:
        trial.report(0.5)
    assert len(policy.frames) <= 12, policy.frames


def test_seconds_default_to_the_time_since_the_last_report_returned(world: World) -> None:
    trial = world.ask()
    for lap in (3.0, 5.0):
        world.clock.now += lap
        trial.report(0.1)
    trial.report(0.1, seconds=11)
    assert list(world.study.trials[0].seconds) == [3.0, 5.0, 11.0]


def test_everything_that_was_reported_is_recorded(world: World) -> None:
    trial = world.ask()
    trial.report(0.5, 2, 7.0, validation=2.0, cost=1.5, metrics={"loss": 0.25, "lr": math.nan})
    event = world.events(Reported)[0]
    assert (event.value, event.epoch, event.seconds, event.validation, event.cost) == (0.5, 2.0, 7.0, 2.0, 1.5)
    assert event.metrics["loss"] == 0.25
    assert math.isnan(event.metrics["lr"])
    spent = world.study.spent
    assert (spent.epochs, spent.validation, spent.training) == (2.0, 2.0, 5.0)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_stored_as_it_is_and_never_the_best(world: World, bad: float) -> None:
    trial = world.ask()
    trial.report(0.3)
    assert trial.report(bad, metrics={"m": bad}).action is Action.CONTINUE
    np.testing.assert_array_equal(world.curve(), [0.3, bad])
    np.testing.assert_array_equal(world.study.trials[0].metrics["m"], [math.nan, bad])
    assert world.study.trials[0].scores[-1] == 0.0
    assert world.study.best is None  # a run counts for its last value, and has none
    trial.report(0.2)
    assert world.study.best is not None
    assert world.study.best.value == 0.2


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (np.zeros((2, 0)), r"shape \(2, 0\)"), ([0.1, 0.2], r"\[0.1, 0.2\]"), (10**400, "1000"),
        ("0.5", r"'0.5', which is text.*float\("),
        (np.complex128(0.5), "a complex number"), (np.array([1j]), "a complex number"), (0.5j, "a complex number"),
        (np.ma.masked, "a masked element"), (np.ma.array([0.5], mask=[True]), "a masked element"),
    ],
)  # fmt: skip
def test_what_is_not_one_number_is_refused_with_its_shape(world: World, value: Any, words: str) -> None:
    trial = world.ask()
    with pytest.raises(InvalidInput, match=f"value must be one number; got .*{words}") as caught:
        trial.report(value)
    assert ("or the mean" in str(caught.value)) == ("shape" in words or isinstance(value, list))
    with pytest.raises(InvalidInput, match="metric 'f1' must be one number"):
        trial.report(0.5, metrics={"f1": value})
    assert world.curve() == []


@pytest.mark.parametrize("value", [np.float32(0.5), np.array([[0.5]]), True])
def test_one_number_in_any_wrapping_is_taken(world: World, value: Any) -> None:
    trial = world.ask()
    trial.report(value, epoch=np.int64(1), seconds=np.float32(2.0))
    assert world.curve() == [float(np.asarray(value).item())]
    assert type(world.events(Reported)[0].value) is float


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"epoch": 0}, "The first epoch is 1: omit it"), ({"epoch": math.nan}, "epoch"), ({"seconds": -1}, "0 or more"),
        ({"validation": -1}, "validation"), ({"cost": math.inf}, "cost"),
    ],
)  # fmt: skip
def test_epochs_and_times_that_cannot_be_are_refused(world: World, arguments: dict[str, Any], words: str) -> None:
    trial = world.ask()
    with pytest.raises(InvalidInput, match=words):
        trial.report(0.5, **arguments)


@pytest.mark.parametrize("batches", [10, 49])
def test_a_position_summed_from_batches_is_a_whole_epoch(world: World, batches: int) -> None:
    trial = world.ask()
    for epoch in (1, 2, 3):
        trial.report(0.5, epoch=sum([1 / batches] * epoch * batches))
    reports = world.events(Reported)
    assert [e.epoch for e in reports] == [1.0, 2.0, 3.0]
    assert [e.verdict.action for e in reports] == [Action.CONTINUE] * 3  # judged


def test_two_first_reports_that_are_close_do_not_set_how_often_trials_are_judged(world: World) -> None:
    trial = world.ask()
    actions = [trial.report(0.5, epoch=epoch).action for epoch in (0.5, 0.5000001, 1.0, 1.5)]
    assert actions == [Action.CONTINUE, Action.UNJUDGED, Action.CONTINUE, Action.CONTINUE]
    assert [e.every for e in world.events(JudgedEvery)] == [0.5]


@pytest.mark.parametrize(("unit", "first"), [("step", 100.0), ("epoch", 0.5)])
def test_the_first_trial_with_two_reports_sets_how_often_trials_are_judged(unit: str, first: float) -> None:
    length: dict[str, Any] = {f"max_{unit}s": 1000 if unit == "step" else 10}
    study = Study({"x": Float(0.0, 1.0)}, "loss", policy=RandomSearch(), budget="4 trials", **length)
    # as after each epoch, where the batch size is searched
    for trial, every in zip(study, (first, 4 * first, first, 4 * first), strict=True):
        with trial:
            for n in (1, 2):
                trial.report(0.5, **{unit: n * every})
    assert [e.every for e in study.events() if isinstance(e, JudgedEvery)] == [first]


def test_an_epoch_reported_again_is_ignored_with_one_warning(world: World) -> None:
    trial = world.ask()
    trial.report(0.1)
    trial.report(0.2)
    with pytest.warns(HaltuneWarning, match=r"reported epoch 2 after epoch 2; the report is ignored") as w:
        for epoch in (2, 1.5):
            assert trial.report(0.9, epoch=epoch).action is Action.CONTINUE
    assert len(w) == 1
    assert world.curve() == [0.1, 0.2]
    assert len(world.events(Reported)) == 2


def test_two_reports_an_epoch_are_named_as_a_possible_cause(world: World) -> None:
    trial = world.ask()
    with pytest.warns(HaltuneWarning, match=r"Report each epoch once: several metrics go into one dict"):
        for epoch in (1, 2):
            trial.report(0.1)
            trial.report(0.2, epoch=epoch)


def test_a_copy_of_a_trial_is_named_where_both_report(world: World) -> None:
    trial = world.ask()
    other = copy.copy(trial)
    trial.report(0.1)
    with pytest.warns(HaltuneWarning, match="but another process or a copy of the trial object has reported epoch 1"):
        other.report(0.9)
    trial.finish("stopped")
    with pytest.warns(HaltuneWarning, match=r"a copy of the trial object has ended trial 0 \(stopped\), so training"):
        assert other.report(0.9).stops
    assert world.curve() == [0.1]


def test_a_late_delivery_is_stored_unjudged(world: World) -> None:
    trial = world.ask()
    assert trial.report(STOP, judge=False).action is Action.UNJUDGED
    assert trial.report(0.2).action is Action.CONTINUE
    assert world.curve() == [STOP, 0.2]


def test_the_numbers_of_a_verdict_are_a_dict_also_if_another_worker_reported_meanwhile(tmp_path: Path) -> None:
    others: list[Trial] = []

    class Interleaved(Hyperband):
        def judge(self, state: Any, history: Any, trial: Any, rng: Any) -> Any:
            if trial.id == 0 and others:
                others.pop().report(0.1)
            return super().judge(state, history, trial, rng)

    def worker() -> Trial:
        store = tmp_path / "s.db"
        study = Study(
            {"x": Float(0.0, 1.0)},
            Minimize("loss"),
            store,
            max_epochs=9,
            seed=0,
            budget="4 trials",
            policy=Interleaved(),
        )
        trial = study.ask()
        assert isinstance(trial, Trial)
        return trial

    first, second = worker(), worker()
    others.append(second)
    assert type(first.report(0.3).evidence) is dict
    assert not others
