"""The rules that every callback shares."""

import copy
import gc
import math
import pickle
import threading

import numpy as np
import pytest
from callback_fakes import OUTAGE, PAUSE, STOP, Clock, FakeTrial

from haltune.callbacks.reporter import Detached
from haltune.callbacks.reporter import Reporter
from haltune.errors import HaltuneWarning, InvalidInput, LeaseLost, NotSupported
from haltune.log.decisions import stop


def reporter(trial=None, **options):
    r = Reporter(trial or FakeTrial(), **options)
    r.begin()
    return r


def test_the_first_stop_is_latched_and_later_reports_are_not_judged():
    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    r = reporter(trial)
    assert [r.report(0.5, n) for n in (1, 2, 3, 4)] == [False, True, True, True]
    assert [c["judge"] for c in trial.reports] == [True, True, False, False]
    assert r.verdict is STOP


def test_a_pause_ends_the_training_and_asks_for_its_state():
    r = reporter(FakeTrial(verdicts={1.0: PAUSE}))
    trial = r.trial
    assert r.report(0.5, 1)
    assert (r.stopping, r.pausing) == (True, True)
    assert r.save(lambda path: None)
    r.end_of_fit()
    assert trial.endings == [None]
    assert not r.pausing


def test_a_stop_asks_for_no_state_but_a_cut_by_the_budget_does():
    r = reporter(FakeTrial(verdicts={1.0: STOP}))
    r.report(0.5, 1)
    assert not r.pausing
    r = reporter(FakeTrial(verdicts={1.0: stop("the budget is spent", policy="not asked")}))
    r.report(0.5, 1)
    assert r.pausing


CUT = stop("the budget is spent", policy="not asked")


@pytest.mark.parametrize("verdict", [PAUSE, CUT])
def test_a_training_that_ends_by_itself_in_the_epoch_of_a_pause_is_completed(verdict):
    r = reporter(FakeTrial(verdicts={1.0: verdict}))
    assert r.report(0.5, 1)
    r.ends_by_itself()
    assert not r.pausing
    r.end_of_fit()
    assert r.trial.endings == ["completed"]


def test_one_that_is_stopped_then_or_later_is_stopped():
    r = reporter(FakeTrial(verdicts={1.0: STOP}))
    r.report(0.5, 1)
    r.ends_by_itself()
    assert r.verdict is STOP
    r = reporter(FakeTrial(verdicts={1.0: PAUSE, 2.0: STOP}))
    r.report(0.5, 1)
    r.ends_by_itself()
    r.report(0.5, 2)  # min_epochs make it go on
    r.end_of_fit()
    assert (r.verdict, r.trial.endings) == (STOP, [None])


FULL = OSError(28, "No space left on device")


def test_a_save_that_fails_declines_the_pause_with_one_warning_and_is_tried_again():
    r = reporter(FakeTrial(max_epochs=9, verdicts={1.0: PAUSE, 2.0: PAUSE, 3.0: PAUSE}))
    trial = r.trial
    trial.full = FULL
    assert r.report(0.5, 1)
    with pytest.warns(HaltuneWarning, match="No space left on device.*trains on instead of losing its work"):
        assert not r.save(lambda path: None)
    assert (r.stopping, r.pausing, trial.declined) == (False, False, 1)
    assert r.report(0.5, 2)  # judged again
    assert not r.save(lambda path: None)  # no second warning
    trial.full = None
    assert r.report(0.5, 3)
    assert r.save(lambda path: None)
    assert [c["judge"] for c in trial.reports] == [True, True, True]


def test_a_loop_that_cannot_go_on_once_stopped_asks_for_room_first():
    r = reporter(FakeTrial(verdicts={1.0: PAUSE, 2.0: PAUSE}))
    trial = r.trial
    trial.full = FULL
    with pytest.warns(HaltuneWarning, match="No space left"):
        assert not r.report(0.5, 1, need=lambda: 100)
    trial.full = None
    assert r.report(0.5, 2, need=lambda: 100)


def test_what_the_budget_cuts_short_ends_even_unsaved():
    r = reporter(FakeTrial(verdicts={1.0: stop("the budget is spent", policy="not asked")}))
    trial = r.trial
    trial.full = FULL
    r.report(0.5, 1)
    with pytest.warns(HaltuneWarning, match="a later attempt begins further back"):
        r.save(lambda path: None)
    assert r.stopping
    assert trial.declined == 0


def test_further_scalars_are_stored_unless_the_monitor_alone_is_wanted():
    r = reporter()
    trial = r.trial
    r.report(0.5, 1, {"acc": 0.7, r.metric: 0.5})
    assert trial.reports[0]["metrics"] == {"acc": 0.7, r.metric: 0.5}
    r = reporter(record="monitor")
    trial = r.trial
    r.report(0.5, 1, {"acc": 0.7})
    assert trial.reports[0]["metrics"] == {}
    with pytest.raises(InvalidInput, match="'all' stores every scalar"):
        reporter(record="some")


class Beats(FakeTrial):
    """Counts its heartbeats; `enough` is set at the third."""

    def __init__(self):
        super().__init__()
        self.heartbeat_seconds = 1e-4
        self.beats, self.enough = 0, threading.Event()

    def heartbeat(self):
        self.beats += 1
        if self.beats >= 3:
            self.enough.set()
        raise OUTAGE  # is no reason to give up


def beating(trial):
    """A reporter whose fit began, and the thread of its heartbeats."""
    before = set(threading.enumerate())
    r = reporter(trial)
    return r, [t for t in threading.enumerate() if t not in before and t.name == "haltune-heartbeat"]


def gone(threads):
    for thread in threads:
        thread.join(10)
    return not any(t.is_alive() for t in threads)


def test_a_long_epoch_is_covered_by_heartbeats_until_the_fit_is_over():
    trial = Beats()
    r, threads = beating(trial)
    assert trial.enough.wait(10)
    assert all(t.daemon for t in threads)
    r.end_of_fit()
    assert gone(threads)


@pytest.mark.parametrize(
    "ending",
    [
        lambda r: r.end(),
        lambda r: r.fail(ValueError("a bug")),
        lambda r: r.fail(KeyboardInterrupt()),
        lambda r: setattr(r.trial, "ended", "stopped"),
        lambda r: r.release(),
    ],
    ids=["end", "fail", "Ctrl-C", "with trial", "release"],
)
def test_heartbeats_stop_in_every_exit_path(ending):
    r, threads = beating(Beats())
    assert threads
    ending(r)
    assert gone(threads)


def test_heartbeats_stop_when_nobody_holds_the_reporter_any_more():
    r, threads = beating(Beats())
    del r
    gc.collect()
    assert gone(threads)


def test_a_lost_lease_ends_the_heartbeats():
    trial = Beats()
    r, threads = beating(trial)
    trial.broken = LeaseLost("offered to another worker")
    with pytest.warns(HaltuneWarning, match="no longer this worker's"):
        r.report(0.5, 1)
    assert gone(threads)


def test_the_horizon_ends_the_training():
    trial = FakeTrial(max_epochs=2)
    r = reporter(trial)
    assert [r.report(0.5, 1), r.report(0.5, 2)] == [False, True]
    r.end_of_fit()
    assert trial.endings == [None]


def test_without_a_horizon_only_a_verdict_stops():
    r = reporter(FakeTrial(max_epochs=None, verdicts={50.0: STOP}))
    assert not r.report(0.5, 49)
    assert r.report(0.5, 50)


def test_a_repeated_epoch_is_ignored_with_one_warning_that_names_the_way_on():
    trial = FakeTrial(max_epochs=9)
    r = reporter(trial, resume_hint="Use initial_epoch")
    r.report(0.5, 2)
    with pytest.warns(HaltuneWarning, match=r"epoch 2 already; epoch 1 .*initial_epoch") as caught:
        [r.report(0.6, n) for n in (1, 2, 2.5)]
    assert len(caught) == 1
    assert trial.epochs == [2.0, 2.5]


def test_a_resumed_trial_counts_on_from_its_checkpoint():
    trial = FakeTrial(max_epochs=9, epoch=5.0)
    r = reporter(trial)
    with pytest.warns(HaltuneWarning, match="epoch 5 already"):
        r.report(0.5, 1)
    r.report(0.5, 6)
    assert trial.epochs == [6.0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_forwarded(value):
    trial = FakeTrial()
    reporter(trial).report(value, 1)
    np.testing.assert_equal(trial.values, [value])


def test_an_outage_is_bridged_by_one_warning_and_late_unjudged_reports():
    trial = FakeTrial(max_epochs=9)
    r = reporter(trial)
    trial.broken = OUTAGE
    with pytest.warns(HaltuneWarning, match="database is locked.*training continues") as caught:
        assert [r.report(0.5, 1), r.report(0.4, 2)] == [False, False]
    assert len(caught) == 1
    trial.broken = None
    r.report(0.3, 3)
    assert trial.epochs == [1.0, 2.0, 3.0]
    assert trial.values == [0.5, 0.4, 0.3]
    assert [c["judge"] for c in trial.reports] == [False, False, True]


def test_a_bug_in_a_policy_does_not_end_a_training():
    trial = FakeTrial()
    r = reporter(trial)
    trial.broken = ZeroDivisionError("in judge")
    with pytest.warns(HaltuneWarning, match="ZeroDivisionError: in judge"):
        r.report(0.5, 1)
    trial.broken = None
    r.end()
    assert trial.epochs == [1.0]


def test_what_waits_is_delivered_at_the_end_of_the_fit():
    trial = FakeTrial()
    r = reporter(trial)
    trial.broken = OUTAGE
    with pytest.warns(HaltuneWarning):
        r.report(0.5, 1)
    trial.broken = None
    r.end_of_fit()
    assert trial.epochs == [1.0]
    assert trial.endings == []  # another fit may follow


def test_reports_that_stay_undelivered_are_counted_aloud():
    trial = FakeTrial()
    r = reporter(trial)
    trial.broken = OUTAGE
    with pytest.warns(HaltuneWarning, match="training continues"):
        r.report(0.5, 1)
    with pytest.warns(HaltuneWarning, match="1 report of trial 7 could not be delivered"):
        r.end()


def test_a_lost_lease_stops_the_training_with_one_warning():
    trial = FakeTrial()
    r = reporter(trial)
    trial.broken = LeaseLost("it expired")
    with pytest.warns(HaltuneWarning, match="no longer this worker's") as caught:
        assert [r.report(0.5, 1), r.report(0.5, 2)] == [True, True]
    assert len(caught) == 1


def test_end_and_fail_are_idempotent_and_never_raise():
    class Broken(FakeTrial):
        def finish(self, status=None):
            super().finish(status)
            raise OUTAGE

        fail = finish

    trial = Broken()
    r = reporter(trial)
    r.end("interrupted")
    r.end()
    r.fail(ValueError("late"))
    assert trial.endings == ["interrupted"]
    other = Broken()
    reporter(other).fail(ValueError("x"))
    assert len(other.endings) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1)])
def test_ctrl_c_and_sigterm_interrupt(error):
    trial = FakeTrial()
    reporter(trial).fail(error)
    assert trial.endings == ["interrupted"]


def test_ctrl_c_after_a_stop_leaves_the_trial_stopped():
    trial = FakeTrial(max_epochs=9, verdicts={1.0: STOP})
    r = reporter(trial)
    r.report(0.5, 1)
    r.fail(KeyboardInterrupt())
    assert trial.endings == [None]  # the study derives: stopped


def test_other_exceptions_fail_the_trial():
    trial, error = FakeTrial(), ValueError("a bug")
    reporter(trial).fail(error)
    assert trial.endings == [error]


def test_the_studys_time_is_not_training_time():
    clock = Clock()

    class Slow(FakeTrial):
        def report(self, *args, **kwargs):
            clock.tick(1000.0)
            return super().report(*args, **kwargs)

    trial = Slow()
    r = Reporter(trial, now=clock)
    clock.tick(50.0)  # before training starts
    r.begin()
    for n in (1, 2):
        clock.tick(3.0)
        r.clock.validating()
        clock.tick(2.0)
        r.clock.validated()
        r.report(0.5, n)
    assert [(c["seconds"], c["validation"]) for c in trial.reports] == [(5.0, 2.0), (5.0, 2.0)]


def test_a_string_for_a_trial_asks_whether_arguments_were_swapped():
    with pytest.raises(InvalidInput, match=r"swapped\? Write HaltuneCallback\(trial, monitor='val_acc'\)"):
        Reporter("val_acc", FakeTrial())


@pytest.mark.parametrize("wrong", [None, 3, object(), FakeTrial])
def test_what_is_no_trial_is_told_where_trials_come_from(wrong):
    with pytest.raises(InvalidInput, match="for trial in study"):
        Reporter(wrong)


def test_a_monitor_that_is_no_name_is_refused():
    with pytest.raises(InvalidInput, match="metric's name"):
        Reporter(FakeTrial(), 3)


@pytest.mark.parametrize("vector", [np.zeros(3), [0.1, 0.2, 0.3]])
def test_a_vector_prints_its_shape(vector):
    with pytest.raises(InvalidInput, match=r"'val_loss'.*shape \(3,\)"):
        reporter().report(vector, 1)


def test_an_array_of_one_number_is_that_number():
    trial = FakeTrial()
    reporter(trial).report(np.array([[0.25]]), 1)
    assert trial.values == [0.25]


def test_a_text_is_no_number():
    with pytest.raises(InvalidInput, match="not a number"):
        reporter().report("high", 1)


def test_a_fit_planned_too_short_is_pointed_out():
    with pytest.warns(HaltuneWarning, match=r"plans 2 epochs.*compared at 3.*trial\.max_epochs"):
        Reporter(FakeTrial(max_epochs=3)).begin(planned=2)


def test_a_fit_planned_too_long_is_told_which_number_of_epochs_counts():
    with pytest.warns(HaltuneWarning, match=r"plans 9 epochs.*max_epochs is 3, which counts.*make 9 the max"):
        Reporter(FakeTrial(max_epochs=3)).begin(planned=9)
    Reporter(FakeTrial(max_epochs=3)).begin(planned=3)


def test_a_fit_after_the_end_is_not_reported_and_not_stopped():
    trial = FakeTrial(max_epochs=1)
    r = reporter(trial)
    r.report(0.5, 1)
    r.end_of_fit()
    with pytest.warns(HaltuneWarning, match="has ended"):
        r.begin(planned=1)
    assert not r.report(0.5, 2)
    assert trial.epochs == [1.0]


def test_a_pickled_reporter_describes_the_trial_and_refuses_to_train():
    trial = FakeTrial()
    r = pickle.loads(pickle.dumps(Reporter(trial)))
    assert r.trial == Detached(7, {"lr": 0.1}, 3, 3, trial.goal, 0.0)
    with pytest.raises(NotSupported, match=r"unpickled.*HaltuneCallback\(trial\)"):
        r.begin()
    assert copy.deepcopy(r).trial == r.trial


def test_another_process_than_the_trials_takes_it_over_once(monkeypatch):
    trial = FakeTrial()
    r = Reporter(trial)
    r.begin()
    assert trial.homes == 0
    monkeypatch.setattr("os.getpid", lambda: -1)
    r.begin()
    r.begin()
    assert trial.homes == 1


def test_verbose_prints_the_verdict_and_its_reason(capsys):
    reporter(FakeTrial(verdicts={1.0: STOP}), verbose=True).report(0.5, 1)
    assert capsys.readouterr().out == "trial 7, epoch 1: val_loss = 0.5, stop: P(beats 0.9) = 0.01\n"
