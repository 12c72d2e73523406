"""The rules that every callback shares: what is reported, obeyed, saved, warned about and refused."""

import gc
import math
import pickle
import re
import threading
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
from callback_fakes import OUTAGE, PAUSE, STOP, Clock, FakeTrial
from paused_studies import pausing_study

from haltune import Float, Maximize, Minimize, Study
from haltune.callbacks.reporter import Reporter, missing, nearest
from haltune.errors import HaltuneWarning, InvalidInput, LeaseLost, NotSupported
from haltune.log.decisions import stop
from haltune.policies import RandomSearch

FULL = OSError(28, "No space left on device")
CUT = stop("the budget is spent", policy="not asked")  # resumable


def reporter(trial=None, **options):
    r = Reporter(trial or FakeTrial(), **options)
    r.begin()
    return r


def told(*verdicts, max_epochs=9, **options):
    """A reporter whose trial gives these verdicts after its first epochs."""
    script = {n + 1.0: verdict for n, verdict in enumerate(verdicts) if verdict}
    return reporter(FakeTrial(max_epochs=max_epochs, verdicts=script), **options)


@pytest.mark.parametrize(("first", "last"), [(1, None), (3, None), (2, 8), (5, 5), (9, None), (2.5, None)])
def test_it_says_before_the_first_report_that_the_last_epoch_will_have_none(first, last):
    says = pytest.warns(HaltuneWarning, match=f"reports last at epoch {last} of 9") if last else nullcontext()
    with says:
        reporter(FakeTrial(max_epochs=9)).look_ahead(first)


# the verdict


def test_the_first_stop_is_latched_and_later_reports_are_not_judged():
    r = told(None, STOP)
    assert [r.report(0.5, n) for n in (1, 2, 3, 4)] == [False, True, True, True]
    assert [c["judge"] for c in r.trial.reports] == [True, True, False, False]
    assert r.verdict is STOP


def test_a_pause_ends_the_training_and_asks_for_its_state():
    r = told(PAUSE)
    assert r.report(0.5, 1)
    assert (r.stopping, r.pausing) == (True, True)
    assert r.save(lambda path: None)
    r.end_of_fit()
    assert (r.trial.endings, r.pausing) == ([None], False)


@pytest.mark.parametrize(
    ("verdicts", "status"), [((PAUSE,), "completed"), ((CUT,), "completed"), ((STOP,), None), ((PAUSE, STOP), None)]
)
def test_a_training_that_ends_by_itself_where_it_would_pause_is_completed_and_one_that_is_stopped_is_not(
    verdicts, status
):
    r = told(*verdicts)
    r.report(0.5, 1)
    r.ends_by_itself()
    if len(verdicts) > 1:
        r.report(0.5, 2)  # min_epochs make it continue
    r.end_of_fit()
    assert (r.trial.endings, r.pausing) == ([status], False)


def test_a_repeated_epoch_is_ignored_with_one_warning_that_names_the_way_on():
    r = told(resume_hint="Use initial_epoch")
    r.report(0.5, 1)
    r.report(0.5, 2)
    with pytest.warns(HaltuneWarning, match=r"reported epoch 2, so epoch 1.5 .*initial_epoch") as caught:
        [r.report(0.6, n) for n in (1.5, 2, 2.5)]
    assert (len(caught), r.trial.epochs) == (1, [1.0, 2.0, 2.5])


@pytest.mark.parametrize("resumed", [0.0, 5.0])
def test_a_loop_that_counts_from_its_start_again_starts_the_curve_again(resumed):
    r = reporter(FakeTrial(max_epochs=9, epoch=resumed))
    if not resumed:
        [r.report(0.5, n) for n in (1, 2, 3)]
    with pytest.warns(HaltuneWarning, match="trains again from 0"):
        [r.report(0.6, n) for n in (1, 2)]
    assert (r.trial.attempt, r.trial.epochs, r.trial.values) == (2, [1.0, 2.0], [0.6, 0.6])


# the value


@pytest.mark.parametrize("value", [math.nan, -math.inf, np.array([[0.25]])])
def test_one_number_is_forwarded_finite_or_not(value):
    r = told()
    r.report(value, 1)
    np.testing.assert_equal(r.trial.values, [float(np.squeeze(value))])


@pytest.mark.parametrize(
    ("value", "sentence"),
    [(np.zeros(3), r"'val_loss'.*shape \(3,\)"), ("high", "not a number"), (np.complex64(1), "a complex number"),
     (np.ma.masked, "a masked element")],
)  # fmt: skip
def test_what_is_not_one_number_is_refused(value, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        told().report(value, 1)


def test_of_several_goals_each_is_needed_and_recorded():
    goals = [Maximize("acc"), Minimize("ms")]
    policy = RandomSearch()
    study = Study({"x": Float(0, 1)}, goals, max_epochs=2, budget="1 trial", verbose=0, policy=policy)
    r = reporter(study.ask(), record="monitor")
    r.report(0.5, 1, {"ms": 2.0, "extra": 1.0})
    assert dict(study.history.trial(0).metrics).keys() == {"ms"}
    with pytest.raises(InvalidInput, match="The report has no 'ms'"):
        r.report(0.5, 2, {"extra": 1.0})


def test_the_studys_time_is_not_training_time():
    clock = Clock()

    class Slow(FakeTrial):
        def record(self, *args, **kwargs):
            clock.tick(1000.0)
            return super().record(*args, **kwargs)

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


# saving


def test_a_save_that_fails_declines_the_pause_with_one_warning_and_is_tried_again():
    r = told(PAUSE, PAUSE, PAUSE)
    trial = r.trial
    trial.full = FULL
    assert r.report(0.5, 1)
    with pytest.warns(HaltuneWarning, match="No space left on device.*keeps training"):
        assert not r.save(lambda path: None)
    assert (r.stopping, r.pausing, trial.declined) == (False, False, 1)
    assert r.report(0.5, 2)  # judged again
    assert not r.save(lambda path: None)  # no second warning
    trial.full = None
    assert r.report(0.5, 3)
    assert r.save(lambda path: None)
    assert [c["judge"] for c in trial.reports] == [True, True, True]


def test_what_the_budget_cuts_short_ends_even_unsaved():
    r = told(CUT)
    r.trial.full = FULL
    r.report(0.5, 1)
    with pytest.warns(HaltuneWarning, match="a later attempt starts at an earlier epoch"):
        r.save(lambda path: None)
    assert (r.stopping, r.trial.declined) == (True, 0)


# heartbeats


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


def lost(r):
    r.trial.broken = LeaseLost("offered to another worker")
    with pytest.warns(HaltuneWarning, match="This worker no longer holds trial") as caught:
        assert [r.report(0.5, 1), r.report(0.5, 2)] == [True, True]
    assert len(caught) == 1


@pytest.mark.parametrize(
    "ending",
    [
        lambda r: r.end_of_fit(),
        lambda r: r.fail(KeyboardInterrupt()),
        lambda r: setattr(r.trial, "ended", "stopped"),
        lost,
        None,
    ],
    ids=["end of fit", "Ctrl-C", "with trial", "lost lease", "nobody holds the reporter"],
)
def test_a_long_epoch_is_covered_by_heartbeats_until_the_fit_is_over(ending):
    before = set(threading.enumerate())
    r = reporter(Beats())
    threads = [t for t in threading.enumerate() if t not in before and t.name == "haltune-heartbeat"]
    assert r.trial.enough.wait(10)
    assert threads
    assert all(t.daemon for t in threads)
    if ending is not None:
        ending(r)
    else:
        del r
        gc.collect()
    for thread in threads:
        thread.join(10)
    assert not any(t.is_alive() for t in threads)


# a study out of reach


def test_an_outage_is_bridged_by_one_warning_and_late_unjudged_reports():
    r = told()
    trial = r.trial
    trial.broken = OUTAGE
    with pytest.warns(HaltuneWarning, match="database is locked.*raining continues") as caught:
        assert [r.report(0.5, 1), r.report(0.4, 2)] == [False, False]
    assert len(caught) == 1
    trial.broken = None
    r.report(0.3, 3)
    assert (trial.epochs, trial.values) == ([1.0, 2.0, 3.0], [0.5, 0.4, 0.3])
    assert [c["judge"] for c in trial.reports] == [False, False, True]


def test_a_full_disk_where_ranks_meet_is_raised_as_the_others_do_not_get_the_verdict():
    r = told()
    r.trial.broken = FULL
    with pytest.raises(OSError, match="No space left"):
        r.report(0.5, 1)


@pytest.mark.parametrize(
    ("verdict", "ending"), [(None, "another rank was lost"), (PAUSE, "another rank was lost"), (STOP, "None")]
)
def test_a_fit_that_ends_as_another_rank_was_lost_counts_as_a_lost_attempt_unless_it_was_to_stop(verdict, ending):
    distributed = pytest.importorskip("torch.distributed", reason="PyTorch is not installed")
    r = told(verdict)
    r.report(0.5, 1)
    r.fail(distributed.DistNetworkError("the store is gone"))
    assert [str(said).partition(":")[0] for said in r.trial.endings] == [ending]


def test_a_fit_in_which_a_signal_has_ended_another_rank_first_is_interrupted():
    class Waiting:
        waits, known = True, False

        def __enter__(self):
            return self

    distributed = pytest.importorskip("torch.distributed", reason="PyTorch is not installed")
    r = told()
    r.defer(Waiting())
    r.fail(distributed.DistNetworkError("the store is gone"))
    assert r.trial.endings == ["interrupted"]


def test_what_waits_is_delivered_at_the_end_of_the_fit_or_counted_aloud():
    for mended in (True, False):
        r = told()
        r.trial.broken = OUTAGE
        with pytest.warns(HaltuneWarning, match="raining continues"):
            r.report(0.5, 1)
        if mended:
            r.trial.broken = None
            r.end_of_fit()
            assert (r.trial.epochs, r.trial.endings) == ([1.0], [])  # another fit may follow
        else:
            with pytest.warns(HaltuneWarning, match="1 report of trial 7 could not be delivered"):
                r.end()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("val_acc", FakeTrial()), r"swapped.* Write HaltuneCallback\(trial, monitor='val_acc'\)"),
        ((None,), "for trial in study"),
        ((FakeTrial(), 3), "name of a logged metric"),
    ],
)
def test_what_is_no_trial_or_no_name_is_refused(arguments, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        Reporter(*arguments)


@pytest.mark.parametrize(
    ("metric", "maximize", "monitor", "advice"),
    [
        ("val_acc", True, "val_loss", r"Leave monitor= out to report val_acc, .* with Minimize\('val_loss'\)"),
        ("score", True, "val_loss", r"Leave monitor= out to report score, .* with Minimize\('val_loss'\)"),
        ("val_loss", False, "valid/acc", r"a study with Minimize\('val_loss'\), .* with Maximize\('valid/acc'\)"),
        ("val_acc", True, "valid/acc", None),
        ("val_acc", True, "score", None),
        ("val_acc", True, None, None),
        ("val_acc", False, None, None),  # the study warns of the goal itself
        ("val_acc", False, "val_acc", None),
    ],
)
def test_a_monitored_metric_that_is_better_the_other_way_round_is_hinted_at(metric, maximize, monitor, advice):
    Reporter(trial := FakeTrial(metric, maximize=maximize), monitor)
    assert len(trial.hints) == (advice is not None)
    assert re.search(advice or "", "".join(trial.hints))


def test_a_fit_that_plans_more_than_the_search_is_warned_about_once_a_study():
    study = pausing_study(at=(), trials=2)
    with pytest.warns(
        HaltuneWarning, match=r"plans 9 epochs.*max_epochs is 4.*before the end of.*max_epochs=9 in"
    ) as said:
        for trial in (study.ask(), study.ask()):
            Reporter(trial).begin(9)
    assert len(said) == 1


@pytest.mark.parametrize("fits", [(2,), (2, 4), (1, 2)])
def test_a_trial_that_ends_early_as_its_last_fit_planned_is_warned_about_once_a_study(fits):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for trial in pausing_study(at=(), trials=2):
            with trial:
                for planned in fits:
                    reporter = Reporter(trial)
                    reporter.begin(planned)
                    for epoch in range(int(trial.epoch) + 1, planned + 1):
                        reporter.report(0.5, epoch)
                    reporter.end_of_fit()
    sentence = (
        "Trial 0 ended after epoch 2, as its last fit planned, but the search compares final values at epoch 4. "
        "Give the loop trial.max_epochs, or set max_epochs=2 in the search, unless your program ended it early."
    )
    assert [str(one.message) for one in said] == ([] if fits[-1] == 4 else [sentence])


def test_a_trial_that_a_callback_ends_in_the_last_epoch_of_a_fit_is_not_warned_about():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for trial in pausing_study(at=(), trials=1):
            with trial:
                reporter = Reporter(trial)
                reporter.begin(2)
                reporter.report(0.5, 1)
                reporter.report(0.6, 2)
                reporter.ends_by_itself()
                reporter.end_of_fit()


def test_one_model_for_several_trials_is_warned_about_once_a_study():
    class Model:
        """A model with an identity."""

    study, model = pausing_study(at=(), trials=4), Model()
    first, second, third = study.ask(), study.ask(), study.ask()
    Reporter(first).begin(model=model)
    Reporter(first).begin(model=model)  # the same trial again
    Reporter(second).begin(model=Model())
    with pytest.warns(HaltuneWarning, match="Trial 1 trains the same model object as trial 0") as said:
        for trial in (second, third):
            Reporter(trial).begin(model=model)
    assert len(said) == 1
    Reporter(pausing_study(at=(), trials=1).ask()).begin(model=model)  # of another search


@pytest.mark.parametrize(
    ("name", "logged", "meant"),
    [
        ("val_loss", ["val_acc"], None),  # followed, it would look for the worst accuracy
        ("val_loss", ["val_acc", "val_los"], "val_los"),
        ("val_acc", ["train_acc"], None),  # nor for what was learnt by heart
        ("val_acc", ["acc", "train_acc"], "acc"),
    ],
)
def test_no_name_is_advised_that_would_search_for_something_else(name, logged, meant):
    assert nearest(name, logged) == meant
    said = str(missing(name, logged, "in the first epoch", "Log it"))
    assert f"monitor={meant or 'name'!r}" in said
    assert ("If you mean" in said) == bool(meant)


@pytest.mark.parametrize(
    ("pauses", "named"), [((), "completed.* for trial 1"), ((2,), "paused.* for its next attempt")]
)
def test_a_callback_of_an_ended_trial_is_refused_while_another_is_to_be_trained(pauses, named):
    reporter = None
    for trial in pausing_study(at=pauses, trials=2):
        if reporter is not None:
            with pytest.raises(NotSupported, match=rf"callback of trial 0, which has ended \({named}") as caught:
                reporter.begin(model=object())
            assert "make a trainer and HaltuneCallback(trial) for each trial" in str(caught.value)
            break
        reporter = Reporter(trial)
        reporter.begin(model=object())
        for epoch in range(1, 5):
            if not reporter.over:
                reporter.report(0.5, epoch)
        reporter.end_of_fit(lambda path: path.write_text("state"), ".txt")


def test_an_unpickled_callback_whose_fit_ends_does_nothing():
    reporter = pickle.loads(pickle.dumps(Reporter(FakeTrial())))
    reporter.end_of_fit()
    reporter.fail(ValueError("of its process"))
    assert reporter.trial.id == FakeTrial().id
    assert reporter.trial.ended is None
