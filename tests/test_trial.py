"""Trials: what is reported, what is refused, and how an attempt ends."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from worlds import Clock, accuracy, problem, small_study, train

from haltune import Action, Budget, Finish, HaltuneWarning, Study, Trial, Verdict
from haltune.errors import InvalidInput
from haltune.events import Checkpointed, Ended, Reported, Status
from haltune.policies import RandomSearch
from haltune.store import MemoryStore


def begun(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    return trial


def plain_study(store: Any = None, **options: Any) -> Study:
    return small_study(RandomSearch(), store, **options)


def last(study: Study) -> Any:
    return list(study.events())[-1]


class StopsAt(RandomSearch):
    """Stops, or pauses, every trial at one epoch."""

    epoch, action = 2.0, Action.STOP

    def judge(self, state: Any, history: Any, trial: Any, rng: Any) -> Verdict:
        action = self.action if trial.epoch == self.epoch else Action.CONTINUE
        return Verdict(action, "as the test says")


# reports


def test_epochs_and_seconds_are_counted_when_they_are_not_given() -> None:
    clock = Clock(0.0)
    study = small_study(RandomSearch(), monotonic=clock)
    trial = begun(study)
    for seconds in (3.0, 5.0):
        clock.now += seconds
        trial.report(0.5)
    record = study.history.trial(0)
    assert list(record.epochs) == [1.0, 2.0]
    assert list(record.seconds) == [3.0, 5.0]
    assert trial.epoch == 2.0


def test_everything_that_was_reported_is_recorded() -> None:
    study = plain_study()
    begun(study).report(0.5, 2, 7.0, validation=2.0, cost=1.5, metrics={"loss": 0.25, "lr": math.nan})
    event = last(study)
    assert (event.value, event.epoch, event.seconds) == (0.5, 2.0, 7.0)
    assert (event.validation, event.cost) == (2.0, 1.5)
    assert event.metrics["loss"] == 0.25
    assert math.isnan(event.metrics["lr"])
    assert study.spent.validation == 2.0
    assert study.spent.training == 5.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float32(0.5), np.array(0.5), True])
def test_any_single_number_can_be_reported(value: Any) -> None:
    study = plain_study()
    begun(study).report(value)
    assert study.history.trial(0).values[0] == float(value) or math.isnan(float(value))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((np.zeros((3, 2)),), r"shape \(3, 2\)"),
        (("good",), "'good'"),
        ((None,), "None"),
        ((0.5, 0), "count from 1"),
        ((0.5, -1), "count from 1"),
        ((0.5, math.nan), "epoch"),
        ((0.5, 1, -3.0), "seconds"),
        ((0.5, 1, math.inf), "seconds"),
    ],
)
def test_what_is_not_a_report_is_refused_in_words_and_not_recorded(arguments: Any, words: str) -> None:
    study = plain_study()
    trial = begun(study)
    with pytest.raises(InvalidInput, match=words):
        trial.report(*arguments)
    assert len(study.history.trial(0).epochs) == 0


def test_an_epoch_reported_twice_is_ignored_with_one_warning() -> None:
    study = plain_study()
    trial = begun(study)
    trial.report(0.5, 2)
    with pytest.warns(HaltuneWarning, match="ckpt_path") as caught:
        for epoch in (2, 1, 2):
            trial.report(0.9, epoch)
    assert len(caught) == 1
    assert list(study.history.trial(0).values) == [0.5]
    assert not trial.report(0.6, 3).stops


def test_validations_within_an_epoch_are_recorded_and_only_whole_epochs_are_judged() -> None:
    study = plain_study()
    trial = begun(study)
    verdicts = [trial.report(0.5, epoch).action for epoch in (0.5, 1.0, 1.5, 2.0)]
    assert verdicts == [Action.UNJUDGED, Action.CONTINUE, Action.UNJUDGED, Action.CONTINUE]
    assert list(study.history.trial(0).whole) == [False, True, False, True]
    assert trial.epochs().__next__() == 3


def test_the_first_stop_stays_and_later_reports_are_stored_unjudged() -> None:
    study = small_study(StopsAt())
    trial = begun(study)
    verdicts = [trial.report(0.5) for _ in range(4)]
    assert [v.action for v in verdicts] == ["continue", "stop", "stop", "stop"]
    stored = [e.verdict.action for e in study.events() if isinstance(e, Reported)]
    assert stored == ["continue", "stop", "unjudged", "unjudged"]


def test_reports_delivered_late_are_stored_unjudged() -> None:
    study = small_study(StopsAt())
    trial = begun(study)
    trial.report(0.5)
    assert trial.report(0.5, judge=False).action is Action.UNJUDGED
    assert not (trial.verdict and trial.verdict.stops)
    assert len(study.history.trial(0).epochs) == 2


def test_the_last_epoch_is_not_judged() -> None:
    policy = StopsAt()
    object.__setattr__(policy, "epoch", 6.0)
    study = small_study(policy)
    trial = begun(study)
    train(trial)
    assert study.trials[0].status is Status.COMPLETED
    assert "trained in full" in trial.verdict.reason  # type: ignore[union-attr]


# how it ends


def test_the_status_tells_completed_stopped_and_paused_apart() -> None:
    pausing = StopsAt()
    object.__setattr__(pausing, "action", Action.PAUSE)
    for policy, expected in ((RandomSearch(), "completed"), (StopsAt(), "stopped"), (pausing, "paused")):
        study = small_study(policy)
        train(begun(study))
        assert study.trials[0].status == expected


def test_ending_is_idempotent_and_the_first_end_counts() -> None:
    study = plain_study()
    trial = begun(study)
    trial.report(0.5)
    trial.finish()
    trial.fail(ValueError("too late"))
    trial.interrupt()
    ends = [e for e in study.events() if isinstance(e, Ended)]
    assert [e.status for e in ends] == ["completed"]


def test_an_exception_is_recorded_with_its_traceback_and_raised_while_none_has_succeeded() -> None:
    study = plain_study()
    with pytest.raises(ZeroDivisionError) as caught, begun(study) as trial:
        trial.report(1 / 0)
    event = last(study)
    assert event.status == "failed"
    assert event.error == "ZeroDivisionError: division by zero"
    assert "trial.report(1 / 0)" in event.traceback
    assert "none has succeeded" in caught.value.__notes__[0]


def test_after_a_success_failures_are_tolerated_until_too_many_come_in_a_row() -> None:
    study = plain_study(trials=20, max_failures=3)
    train(begun(study))
    for _ in range(2):
        with begun(study):
            raise ValueError("diverged")
    train(begun(study))  # breaks the row
    for _ in range(2):
        with begun(study):
            raise ValueError("diverged")
    with pytest.raises(ValueError, match="diverged") as caught, begun(study):
        raise ValueError("diverged")
    assert "3 trials failed in a row" in caught.value.__notes__[0]
    assert [t.status for t in study.trials].count(Status.FAILED) == 5


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_ctrl_c_and_exits_are_never_swallowed_and_the_trial_is_offered_again(signal: type) -> None:
    study = plain_study()
    train(begun(study))
    with pytest.raises(signal), begun(study) as trial:
        trial.report(0.4)
        raise signal
    assert study.history.trial(1).status is Status.INTERRUPTED
    again = begun(study)
    assert (again.id, again.attempt, again.epoch) == (1, 2, 0.0)
    assert again.config == trial.config
    assert len(study.history.trial(1).epochs) == 0


def test_an_exception_after_the_training_ended_is_the_users() -> None:
    study = plain_study()
    train(begun(study))
    with pytest.raises(KeyError), begun(study) as trial:
        trial.report(0.5)
        trial.finish()
        raise KeyError("plotting went wrong")
    assert study.trials[1].status is Status.COMPLETED


def test_a_trial_without_a_report_fails_and_says_what_is_missing() -> None:
    study = plain_study()
    with pytest.raises(InvalidInput, match="HaltuneCallback"), begun(study):
        pass
    assert study.trials[0].error == "ended without one report"


def test_leaving_the_loop_gives_the_trial_back() -> None:
    study = plain_study()
    for trial in study:
        trial.report(0.5)
        break
    assert study.trials[0].status is Status.INTERRUPTED
    assert begun(study).id == 0


def test_a_loop_without_with_ends_its_trials_too() -> None:
    study = plain_study(trials=3)
    for trial in study:
        for epoch in trial.epochs():
            trial.report(accuracy(trial.config, epoch))
    assert [t.status for t in study.trials] == ["completed"] * 3


# leases and attempts


def lost_worker() -> tuple[Study, Trial, Study, Clock]:
    """A worker whose lease has run out while it trained, and another that sees it."""
    clock = Clock()
    store = MemoryStore(clock)
    slow, other = plain_study(store), plain_study(store)
    trial = begun(slow)
    trial.report(0.3, seconds=1.0)
    clock.now += 601
    return slow, trial, other, clock


def test_a_lease_that_expired_offers_the_trial_to_others() -> None:
    _, trial, other, _ = lost_worker()
    again = begun(other)
    assert (again.id, again.attempt) == (trial.id, 2)


def test_the_report_of_a_lost_worker_is_stored_and_stays_out_of_the_curve() -> None:
    slow, trial, other, _ = lost_worker()
    again = begun(other)
    again.report(0.7)
    with pytest.warns(HaltuneWarning, match="lease"):
        verdict = trial.report(0.9)
    assert verdict.stops
    stored = [e for e in slow.events() if isinstance(e, Reported) and e.value == 0.9]
    assert [e.verdict.action for e in stored] == ["unjudged"]
    trial.finish()
    other.sync()
    assert list(other.history.trial(0).values) == [0.7]
    assert other.history.trial(0).status is Status.RUNNING


def test_a_lease_that_expired_unnoticed_is_simply_renewed() -> None:
    slow, trial, _, _ = lost_worker()
    assert not trial.report(0.4).stops
    assert list(slow.history.trial(0).values) == [0.3, 0.4]


def test_a_heartbeat_and_a_report_renew_the_lease() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    one, two = plain_study(store), plain_study(store)
    trial = begun(one)
    for renew in (trial.heartbeat, lambda: trial.report(0.5), trial.heartbeat):
        clock.now += 500
        renew()
    assert begun(two).id == 1


def test_long_epochs_lengthen_the_lease() -> None:
    clock = Clock()
    store = MemoryStore(clock)
    one, two = plain_study(store), plain_study(store)
    begun(one).report(0.5, seconds=1000.0)
    clock.now += 4900
    assert begun(two).id == 1
    clock.now += 200
    assert begun(two).id == 0


def test_a_trial_whose_workers_are_lost_too_often_fails() -> None:
    clock = Clock()
    study = plain_study(MemoryStore(clock), max_retries=2)
    for attempt in (1, 2, 3):
        assert begun(study).attempt == attempt
        clock.now += 601
    assert begun(study).id == 1
    assert study.history.trial(0).status is Status.FAILED


def test_a_later_attempt_begins_at_the_last_checkpoint_and_supersedes() -> None:
    study = plain_study()
    trial = begun(study)
    for epoch in (1, 2, 3):
        trial.report(0.1 * epoch)
        if epoch == 2:
            trial.checkpointed("/somewhere/epoch2.ckpt", seconds=0.5)
    trial.interrupt()
    again = begun(study)
    assert (again.checkpoint, again.epoch, again.attempt) == ("/somewhere/epoch2.ckpt", 2.0, 2)
    assert next(iter(again.epochs())) == 3
    again.report(0.9)
    assert list(study.history.trial(0).values) == pytest.approx([0.1, 0.2, 0.9])
    assert study.spent.epochs == 4.0
    assert study.spent.checkpoint == 0.5
    assert any(isinstance(e, Checkpointed) for e in study.events())


def test_a_finished_study_hands_out_nothing() -> None:
    study = plain_study(budget=Budget(trials=1))
    train(begun(study))
    assert isinstance(study.ask(), Finish)
    assert problem().max_epochs == 6
