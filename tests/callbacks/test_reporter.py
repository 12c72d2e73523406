"""The rules that every callback shares: what is reported, obeyed, saved, warned about and refused."""

import copy
import gc
import json
import math
import pickle
import random
import sys
import threading

import numpy as np
import pytest
from callback_fakes import OUTAGE, PAUSE, STOP, Clock, FakeTrial
from paused_studies import pausing_study

from haltune import Float, Maximize, Minimize, Study
from haltune.callbacks.randomness import capture, restore
from haltune.callbacks.ranks import Agreement
from haltune.callbacks.reporter import Reporter, missing, nearest
from haltune.errors import HaltuneWarning, InvalidInput, LeaseLost, NoRoom, NotSupported
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


@pytest.mark.parametrize(("verdict", "pauses"), [(STOP, False), (CUT, True)])
def test_a_stop_asks_for_no_state_but_a_cut_by_the_budget_does(verdict, pauses):
    r = told(verdict)
    r.report(0.5, 1)
    assert (r.stopping, r.pausing) == (True, pauses)


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


def test_the_horizon_ends_the_training_and_without_one_only_a_verdict_does():
    r = told(max_epochs=2)
    assert [r.report(0.5, 1), r.report(0.5, 2)] == [False, True]
    r.end_of_fit()
    assert r.trial.endings == [None]
    r = reporter(FakeTrial(max_epochs=None, verdicts={50.0: STOP}))
    assert [r.report(0.5, 49), r.report(0.5, 50)] == [False, True]


def test_a_repeated_epoch_is_ignored_with_one_warning_that_names_the_way_on():
    r = told(resume_hint="Use initial_epoch")
    r.report(0.5, 2)
    with pytest.warns(HaltuneWarning, match=r"reported epoch 2, so epoch 1 .*initial_epoch") as caught:
        [r.report(0.6, n) for n in (1, 2, 2.5)]
    assert (len(caught), r.trial.epochs) == (1, [2.0, 2.5])
    r = reporter(FakeTrial(max_epochs=9, epoch=5.0))  # resumed
    with pytest.warns(HaltuneWarning, match="already reported epoch 5"):
        r.report(0.5, 1)
    r.report(0.5, 6)
    assert r.trial.epochs == [6.0]


def test_a_fit_after_the_end_is_not_reported_and_not_stopped():
    r = told(max_epochs=1)
    r.report(0.5, 1)
    r.end_of_fit()
    with pytest.warns(HaltuneWarning, match="has ended"):
        r.begin(planned=1)
    assert not r.report(0.5, 2)
    assert r.trial.epochs == [1.0]


def test_a_trial_is_silent_until_its_first_value_in_whatever_fit():
    r = told()
    assert r.silent
    r.report(0.5, 1)
    r.begin()  # a second fit of the same attempt
    assert not r.silent
    assert not reporter(FakeTrial(max_epochs=9, epoch=4.0)).silent


def test_verbose_prints_the_verdict_and_its_reason(capsys):
    told(STOP, verbose=True).report(0.5, 1)
    assert capsys.readouterr().out == "trial 7, epoch 1: val_loss = 0.5, stop: P(beats 0.9) = 0.01\n"


# the value


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.array([[0.25]])])
def test_one_number_is_forwarded_finite_or_not(value):
    r = told()
    r.report(value, 1)
    np.testing.assert_equal(r.trial.values, [float(np.squeeze(value))])


@pytest.mark.parametrize(
    ("value", "sentence"),
    [(np.zeros(3), r"'val_loss'.*shape \(3,\)"), ([0.1, 0.2], r"shape \(2,\)"), ("high", "not a number")],
)
def test_what_is_not_one_number_is_refused(value, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        told().report(value, 1)


def test_further_scalars_are_stored_unless_the_monitor_alone_is_wanted():
    for record, stored in (("all", {"acc": 0.7, "val_loss": 0.5}), ("monitor", {})):
        r = told(record=record)
        r.report(0.5, 1, {"acc": 0.7, "val_loss": 0.5})
        assert r.trial.reports[0]["metrics"] == stored
    with pytest.raises(InvalidInput, match="'all' stores every scalar"):
        told(record="some")


def test_of_several_goals_each_is_needed_and_recorded():
    goals = [Maximize("acc"), Minimize("ms")]
    policy = RandomSearch()
    study = Study({"x": Float(0, 1)}, goals, max_epochs=2, budget="1 trial", verbose=0, policy=policy)
    r = reporter(study.ask(), record="monitor")
    r.report(0.5, 1, {"ms": 2.0, "extra": 1.0})
    assert dict(study.history.trial(0).metrics).keys() == {"ms"}
    with pytest.raises(InvalidInput, match="a report lacks 'ms'"):
        r.report(0.5, 2, {"extra": 1.0})


def test_the_studys_time_is_not_training_time():
    clock = Clock()

    class Slow(FakeTrial):
        def _record(self, *args, **kwargs):
            clock.tick(1000.0)
            return super()._record(*args, **kwargs)

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


def test_a_loop_that_cannot_go_on_once_stopped_asks_for_room_first():
    r = told(PAUSE, PAUSE)
    r.trial.full = FULL
    with pytest.warns(HaltuneWarning, match="No space left"):
        assert not r.report(0.5, 1, need=lambda: 100)
    r.trial.full = None
    assert r.report(0.5, 2, need=lambda: 100)


def test_what_the_budget_cuts_short_ends_even_unsaved():
    r = told(CUT)
    r.trial.full = FULL
    r.report(0.5, 1)
    with pytest.warns(HaltuneWarning, match="a later attempt starts further back"):
        r.save(lambda path: None)
    assert (r.stopping, r.trial.declined) == (True, 0)


# heartbeats


class Beats(FakeTrial):
    """Counts its heartbeats; `enough` is set at the third."""

    def __init__(self):
        super().__init__()
        self._heartbeat_seconds = 1e-4
        self.beats, self.enough = 0, threading.Event()

    def heartbeat(self):
        self.beats += 1
        if self.beats >= 3:
            self.enough.set()
        raise OUTAGE  # is no reason to give up


def lost(r):
    r.trial.broken = LeaseLost("offered to another worker")
    with pytest.warns(HaltuneWarning, match="no longer held by this worker") as caught:
        assert [r.report(0.5, 1), r.report(0.5, 2)] == [True, True]
    assert len(caught) == 1


@pytest.mark.parametrize(
    "ending",
    [
        lambda r: r.end_of_fit(),
        lambda r: r.end(),
        lambda r: r.fail(ValueError("a bug")),
        lambda r: r.fail(KeyboardInterrupt()),
        lambda r: setattr(r.trial, "ended", "stopped"),
        lambda r: r.release(),
        lost,
        None,
    ],
    ids=["end of fit", "end", "fail", "Ctrl-C", "with trial", "release", "lost lease", "nobody holds the reporter"],
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


@pytest.mark.parametrize("error", [OUTAGE, ZeroDivisionError("in judge")])
def test_what_waits_is_delivered_at_the_end_of_the_fit_or_counted_aloud(error):
    for mended in (True, False):
        r = told()
        r.trial.broken = error
        with pytest.warns(HaltuneWarning, match="raining continues"):
            r.report(0.5, 1)
        if mended:
            r.trial.broken = None
            r.end_of_fit()
            assert (r.trial.epochs, r.trial.endings) == ([1.0], [])  # another fit may follow
        else:
            with pytest.warns(HaltuneWarning, match="1 report of trial 7 could not be delivered"):
                r.end()


# the end


@pytest.mark.parametrize(
    ("error", "verdict", "ending"),
    [
        (KeyboardInterrupt(), None, "interrupted"),
        (SystemExit(1), None, "interrupted"),
        (KeyboardInterrupt(), STOP, None),  # the study derives: stopped
        (BUG := ValueError("a bug"), None, BUG),
    ],
)
def test_an_exception_ends_the_trial_by_its_kind(error, verdict, ending):
    r = told(verdict)
    r.report(0.5, 1)
    r.fail(error)
    assert r.trial.endings == [ending]


def test_end_and_fail_are_idempotent_and_never_raise():
    class Broken(FakeTrial):
        def finish(self, status=None):
            super().finish(status)
            raise OUTAGE

        fail = finish

    r, other = reporter(Broken()), reporter(Broken())
    r.end("interrupted")
    r.end()
    r.fail(ValueError("late"))
    other.fail(ValueError("x"))
    assert (r.trial.endings, len(other.trial.endings)) == (["interrupted"], 1)


# processes and copies


def test_a_pickled_reporter_describes_the_trial_and_refuses_to_train():
    trial = FakeTrial()
    r = pickle.loads(pickle.dumps(Reporter(trial)))
    seen = r.trial
    assert (seen.id, seen.config, seen.max_epochs, seen.horizon, seen.epoch) == (7, {"lr": 0.1}, 3, 3, 0.0)
    assert seen.goal == trial.goal
    with pytest.raises(NotSupported, match=r"unpickled.*HaltuneCallback\(trial\)"):
        r.begin()
    assert copy.deepcopy(r).trial.id == 7


def test_another_process_than_the_trials_takes_it_over_once(monkeypatch):
    trial = FakeTrial()
    r = Reporter(trial)
    r.begin()
    assert trial.homes == 0
    monkeypatch.setattr("os.getpid", lambda: -1)
    r.begin()
    r.begin()
    assert trial.homes == 1


# mistakes, and how often they are named


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("val_acc", FakeTrial()), r"swapped.* Write HaltuneCallback\(trial, monitor='val_acc'\)"),
        ((None,), "for trial in study"),
        ((3,), "for trial in study"),
        ((object(),), "for trial in study"),
        ((FakeTrial,), "for trial in study"),
        ((FakeTrial(), 3), "metric's name"),
    ],
)
def test_what_is_no_trial_or_no_name_is_refused(arguments, sentence):
    with pytest.raises(InvalidInput, match=sentence):
        Reporter(*arguments)


@pytest.mark.parametrize(
    ("planned", "sentence"),
    [
        (2, r"plans 2 epochs.*compared at epoch 4.*Give the loop trial\.max_epochs.*max_epochs=2 in"),
        (9, "plans 9 epochs.*max_epochs is 4.*short.*max_epochs=9 in"),
    ],
)
def test_a_fit_that_plans_another_number_of_epochs_is_warned_about_once_a_study(planned, sentence):
    study = pausing_study(at=(), trials=2)
    with pytest.warns(HaltuneWarning, match=sentence) as caught:
        for trial in (study.ask(), study.ask()):
            Reporter(trial).begin(planned)
    assert len(caught) == 1
    Reporter(FakeTrial(max_epochs=3)).begin(planned=3)


def test_one_model_for_several_trials_is_warned_about_once_a_study():
    class Model:
        """Anything that can be told apart."""

    study, model = pausing_study(at=(), trials=4), Model()
    first, second, third = study.ask(), study.ask(), study.ask()
    Reporter(first).begin(model=model)
    Reporter(first).begin(model=model)  # the same trial again
    Reporter(second).begin(model=Model())
    with pytest.warns(HaltuneWarning, match="Trial 1 trains the model that trial 0 has trained") as said:
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
        ("train_los", ["train_loss"], "train_loss"),
        ("val_score", ["val_Score_1"], "val_Score_1"),
    ],
)
def test_no_name_is_advised_that_would_search_for_something_else(name, logged, meant):
    assert nearest(name, logged) == meant
    said = str(missing(name, logged, "in the first epoch", "Log it"))
    assert f"monitor={meant or 'name'!r}" in said
    assert ("If you mean" in said) == bool(meant)


# Ranks agree: rank 0 answers or raises for all, and nobody waits alone


class Ranks:
    """Broadcasts between threads; a rank that waits alone breaks the barrier instead of hanging."""

    def __init__(self, size):
        self.size, self.sent = size, {}
        self.barrier = threading.Barrier(size, timeout=20)

    def run(self, work):
        """What `work(agreement)` returned or raised, by rank."""
        outcomes = [None] * self.size

        def one(rank):
            def broadcast(value, source):
                if rank == source:
                    self.sent["value"] = value
                self.barrier.wait()
                heard = self.sent["value"]
                self.barrier.wait()
                return heard

            try:
                outcomes[rank] = work(Agreement(rank, self.size, broadcast))
            except BaseException as error:
                outcomes[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return outcomes


def test_only_rank_0_is_asked_and_all_hear_its_answer():
    asked = []

    def work(ranks):
        return ranks.decide(lambda: asked.append(ranks.rank) or ("stop", ranks.rank))

    assert Ranks(3).run(work) == [("stop", 0)] * 3
    assert asked == [0]


@pytest.mark.parametrize("error", [InvalidInput("no 'val_los'"), NoRoom("full"), KeyboardInterrupt("enough")])
def test_what_rank_0_raises_is_raised_on_all_of_the_same_type_and_in_the_same_words(error):
    def work(ranks):
        def question():
            raise error

        ranks.decide(question)

    outcomes = Ranks(3).run(work)
    assert [(type(e), str(e)) for e in outcomes] == [(type(error), str(error))] * 3
    assert outcomes[0] is error  # with its traceback


class Unsendable(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_an_error_that_cannot_be_sent_arrives_in_words():
    def work(ranks):
        def question():
            raise Unsendable("this", "that")

        ranks.decide(question)

    own, other = Ranks(2).run(work)
    assert isinstance(own, Unsendable)
    assert (type(other), str(other)) == (RuntimeError, "Unsendable: this and that")


def test_every_ranks_value_is_gathered_in_order():
    assert Ranks(3).run(lambda ranks: ranks.gather(10 * ranks.rank)) == [[0, 10, 20]] * 3


def test_a_process_by_itself_broadcasts_nothing():
    def broadcast(value, source):
        raise AssertionError("nobody is there")

    alone = Agreement(0, 1, broadcast)
    assert (alone.decide(lambda: 3), alone.gather("x")) == (3, ["x"])
    with pytest.raises(InvalidInput, match="mine"):
        alone.decide(lambda: (_ for _ in ()).throw(InvalidInput("mine")))


# Random state: what was captured goes on with the same numbers, through JSON, in another process


def draws():
    some = [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn()]  # noqa: NPY002
    if (torch := sys.modules.get("torch")) is not None:
        some += [*torch.rand(3).tolist(), *torch.randperm(5).tolist()]
    return some


def test_restored_generators_draw_the_same_numbers():
    pytest.importorskip("torch")
    for burnt in range(4):  # gauss keeps every other number back
        for _ in range(burnt):
            draws()
        state = json.loads(json.dumps(capture()))
        first = draws()
        random.seed(1), np.random.seed(1), sys.modules["torch"].manual_seed(1)  # noqa: NPY002
        assert draws() != first
        restore(state)
        assert draws() == first


def test_another_process_goes_on_where_this_one_was(in_a_process):
    state, first = json.dumps(capture()), [random.random(), np.random.rand()]  # noqa: NPY002
    source = (
        "import json, random, sys\nimport numpy as np\nfrom haltune.callbacks.randomness import restore\n"
        f"restore(json.loads({state!r}))\nprint([random.random(), np.random.rand()])\n"
        "assert 'torch' not in sys.modules"
    )
    assert json.loads(in_a_process(source)) == first


@pytest.mark.gpu
def test_cuda_generators_are_among_them():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    torch.rand(1, device="cuda")
    state = json.loads(json.dumps(capture()))
    first = torch.rand(4, device="cuda")
    torch.cuda.manual_seed_all(3)
    restore(state)
    assert torch.equal(torch.rand(4, device="cuda"), first)
