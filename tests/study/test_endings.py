"""Ends of trials: complete, by an exception, by Ctrl-C, by leaving the loop, without a report."""

from __future__ import annotations

import errno
import gc
import logging
import math
from pathlib import Path
from typing import Any

import pytest
from clocked import World
from whims import PAUSE

from haltune import Action, Float, Study, Trial
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import HaltuneError, HaltuneWarning, InvalidInput, NoRoom, StoreError
from haltune.log.events import Ended, Reported, Resumed, Status


@pytest.fixture
def world() -> World:
    return World()


def test_an_exception_is_recorded_with_its_traceback_and_raised_while_none_has_succeeded(world: World) -> None:
    with pytest.raises(ZeroDivisionError) as caught, world.ask() as trial:
        trial.report(0.1)
        1 / 0  # noqa: B018
    ended = world.events(Ended)[0]
    assert (ended.status, ended.error) == (Status.FAILED, "ZeroDivisionError: division by zero")
    assert "1 / 0" in ended.traceback
    assert __file__ in ended.traceback
    assert caught.value.__notes__ == [
        "haltune: Trial 0 failed and none has succeeded yet. The training code may have a bug. The next start of this "
        "program continues with another trial."
    ]


def an_unknown_argument(trial: Any) -> None:
    trial.report(0.1, loss=0.3)


def a_wrong_value(trial: Any) -> None:
    trial.report("good")


def a_space_without_width(trial: Any) -> None:
    Float(2.0, 1.0)


@pytest.mark.parametrize("mistake", [an_unknown_argument, a_wrong_value, a_space_without_width])
def test_a_mistake_that_haltune_refuses_says_that_the_trial_is_offered_again(
    world: World, mistake: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(HaltuneError), world.ask() as first:
        mistake(first)
    assert world.study.trials[0].status is Status.INTERRUPTED
    assert "Trial 0 was interrupted. The next start of this program, or the next study.ask(), trains" in caplog.text
    again = world.ask()
    assert (again.id, again.attempt, again.config) == (0, 2, first.config)
    with pytest.raises(HaltuneError), again:  # a program that handles it does not search for ever
        mistake(again)
    assert world.study.trials[0].status is Status.FAILED


def test_a_trial_that_paused_is_logged_when_the_loop_is_left(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "haltune"):
        for trial in Study({"x": Float(0.0, 1.0)}, "acc", max_epochs=9, budget="3 trials", seed=0):
            for _ in (loop := TrainingLoop(trial, save=lambda path: path.write_text("weights"))):
                loop.report(0.5)
            break
    assert "Trial 0 paused at epoch 1 of 9: acc 0.5" in caplog.text


def test_such_a_mistake_of_one_configuration_fails_it_once_another_has_succeeded(world: World) -> None:
    world.succeed()
    with world.ask() as trial:
        trial.report(0.1, 1e6)
    assert world.study.trials[1].status is Status.FAILED


def test_a_trial_without_a_finite_value_is_no_success(world: World) -> None:
    with world.ask() as trial:
        trial.report(math.nan)
    with pytest.raises(KeyError), world.ask() as trial:
        raise KeyError("typo")


def test_the_explanation_of_a_failed_trial_has_its_traceback(world: World) -> None:
    world.succeed()
    with world.ask() as trial:
        1 / 0  # noqa: B018
    told = world.study.explain(trial.id)
    assert "1 / 0" in told
    assert __file__ in told


def test_after_a_success_the_search_continues_until_too_many_fail_in_a_row(caplog: pytest.LogCaptureFixture) -> None:
    world = World(trials=20, max_failures=3)
    world.succeed()
    with caplog.at_level(logging.WARNING, "haltune"):
        for _ in range(2):
            with world.ask():
                raise ValueError("unlucky")
        world.succeed()  # the row is broken
        for _ in range(2):
            with world.ask():
                raise ValueError("unlucky")
    assert caplog.text.count("the search continues: ValueError: unlucky") == 4
    with pytest.raises(ValueError, match="unlucky") as caught, world.ask():
        raise ValueError("unlucky")
    assert caught.value.__notes__ == [
        "haltune: 3 trials failed in a row (max_failures). The next start of this program continues with another trial."
    ]
    assert [t.status for t in world.study.trials].count(Status.FAILED) == 5


@pytest.mark.parametrize("loop", [False, True])
def test_a_loop_that_saves_is_not_advised_to_as_its_trial_is_interrupted_before_a_pause(
    world: World, loop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(KeyboardInterrupt), world.ask() as trial:
        if loop:
            next(iter(TrainingLoop(trial, save=lambda path: path.touch())))
        trial.report(0.5)
        raise KeyboardInterrupt
    assert "trains it from scratch, because it has no checkpoint." in caplog.text
    assert ("call trial.save(write)" in caplog.text) == (not loop)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        NoRoom("checkpoints would take 2 GB, but disk_quota is 1 GB"),
        RuntimeError("[enforce fail at inline_container.cc:858] . PytorchStreamWriter failed writing file data/2"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_full_disk_ends_the_program_with_its_own_error_and_the_trial_is_offered_again(
    world: World, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    world.succeed()
    with pytest.raises(type(error)) as caught, world.ask() as trial:
        trial.report(0.3)
        raise error
    assert caught.value is error
    assert world.study.trials[1].status is Status.INTERRUPTED
    assert "Trial 1 was interrupted. The next start of this program" in caplog.text
    again = world.ask()
    assert (again.id, again.attempt) == (1, 2)
    with again:  # a program that handles the error does not search for ever
        raise error
    assert world.study.trials[1].status is Status.FAILED


def test_shared_memory_that_is_full_is_no_full_disk(world: World) -> None:
    world.succeed()
    with world.ask():
        raise RuntimeError("unable to write to file </torch_318_1>: No space left on device (28)")
    assert world.study.trials[1].status is Status.FAILED


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interruptions_are_never_swallowed_and_the_trial_is_offered_again(
    world: World, kind: type[BaseException]
) -> None:
    world.succeed()
    with pytest.raises(kind), world.ask() as trial:
        trial.report(0.1)
        raise kind
    assert world.study.trials[1].status is Status.INTERRUPTED
    again = world.ask()
    assert (again.id, again.attempt, again.epoch, again.config) == (1, 2, 0.0, trial.config)
    assert world.study.history.failures_in_a_row == 0


def test_a_broken_store_does_not_hide_the_exception_of_the_training(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise StoreError("the disk is gone")

    with pytest.raises(ZeroDivisionError) as caught, world.ask():
        monkeypatch.setattr(world.store, "append", broken)
        1 / 0  # noqa: B018
    assert "haltune could not record this: the disk is gone" in caught.value.__notes__


def test_breaking_out_of_the_loop_gives_the_trial_back(world: World) -> None:
    for trial in world.study:
        trial.report(0.1)
        break
    gc.collect()
    assert world.study.trials[0].status is Status.INTERRUPTED
    assert world.ask(world.another()).id == 0


def test_a_trial_that_ends_without_a_report_says_how_to_report(world: World) -> None:
    with pytest.raises(
        InvalidInput, match=r"Trial 0 ended without one report.*trial.report.*HaltuneCallback.*another trial"
    ):
        for trial in world.study:
            assert trial.config
    assert world.study.trials[0].status is Status.FAILED
    assert world.study.trials[0].error == "ended without one report"


def test_a_trial_that_ends_without_a_report_after_others_reported_is_told_of_files_that_all_share(world, caplog):
    first = world.ask()
    first.report(0.5)
    first.finish()
    world.ask().finish()
    (said,) = [r.getMessage() for r in caplog.records if "ended without one report" in r.getMessage()]
    assert "though other trials reported" in said
    assert "load only trial.checkpoint" in said
    assert "after every epoch" not in said


def test_ending_twice_is_ending_once(world: World) -> None:
    trial = world.ask()
    trial.report(0.1)
    trial.finish()
    trial.finish()
    trial.interrupt()
    trial.fail(ValueError())
    with pytest.raises(ValueError, match="afterwards"), trial:
        raise ValueError("afterwards")
    assert [e.status for e in world.events(Ended)] == [Status.COMPLETED]
    assert world.study.trials[0].status is Status.COMPLETED


def test_a_report_after_the_end_is_stored_out_of_the_curve(world: World) -> None:
    trial = world.ask()
    trial.report(0.1)
    trial.finish()
    with pytest.warns(
        HaltuneWarning, match=r"trial 0 has ended \(completed\), by study.tell\(\), trial.finish\(\)"
    ) as told:
        late = [trial.report(0.9), trial.report(0.8)]
    assert len(told) == 1
    assert {(v.stops, "has ended (completed)" in v.reason, "lease" in v.reason) for v in late} == {(True, True, False)}
    assert world.curve() == [0.1]
    assert [e.verdict.action for e in world.events(Reported)] == [Action.CONTINUE, *2 * [Action.UNJUDGED]]
    assert world.study.spent.epochs == 1


def test_a_trial_whose_pause_was_declined_answers_the_program_that_it_was_not_cut(world: World) -> None:
    with world.ask() as trial:
        trial.report(PAUSE)
        trial.decline_pause()
        assert not trial.verdict.stops  # what a program asks after its fit, as in howto/own_callbacks
    assert world.study.trials[0].status is Status.COMPLETED


def test_a_declined_pause_is_not_why_a_trial_ends_that_continued_after_it(world: World) -> None:
    trial = world.ask()
    trial.report(PAUSE)
    trial.decline_pause()
    trial.report(0.1)
    assert "cut because" not in world.study.explain(trial.id, whole=False)
    trial.finish("interrupted")
    assert world.study.trials[0].ended_because == ""


def test_a_pause_lets_the_policy_resume(world: World) -> None:
    with world.ask() as trial:
        trial.report(0.1)
        trial.checkpointed("one.ckpt")
        trial.report(PAUSE)
        trial.checkpointed("two.ckpt")
    assert world.study.trials[0].status is Status.PAUSED
    again = world.ask()
    assert (again.id, again.attempt, again.checkpoint, again.epoch) == (0, 2, "two.ckpt", 2.0)
    assert again.verdict is None
    assert next(again.epochs()) == 3
    assert world.events(Resumed)[0].by_policy


@pytest.mark.parametrize("returned", [None, 0.6])
def test_a_function_has_nothing_left_to_train_where_its_early_stopping_and_a_pause_came_together(
    returned: float | None, tmp_path: Path
) -> None:
    world = World(trials=1, checkpoints=tmp_path)

    def train(trial: Trial) -> float | None:
        if trial.checkpoint is None:  # it resumes with a patience that has run out
            trial.report(PAUSE, 1)
            trial.save(lambda path: path.write_text("its patience has run out"))
        return returned

    world.study.optimize(train)
    [one] = world.study.trials
    assert (one.status, one.attempt, list(one.values)) == (Status.COMPLETED, 2, [PAUSE])
