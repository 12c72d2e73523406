"""Properties of every training loop, in real trainings; for Keras run by keras/test_callback.py on each backend."""

import ast
import copy
import gc
import pickle
import warnings
import weakref
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from callback_fakes import OUTAGE, PAUSE, STOP, FakeTrial
from callback_studies import study
from fits import FITS, HAVE_A_FIT, LOOPS, Loop, drawn, seed
from paused_studies import pausing_study

import haltune.callbacks
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported

pytestmark = pytest.mark.filterwarnings(
    "ignore",
    "error::haltune.errors.HaltuneWarning",
    "ignore:this fit plans:haltune.errors.HaltuneWarning",
    "ignore:Trial 0 reports first:haltune.errors.HaltuneWarning",
)


@pytest.fixture(params=FITS)
def lib(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # CatBoost writes a folder of its own where it runs
    return LOOPS[request.param]()


def callback_modules():
    """The modules of haltune.callbacks that have a callback, or a loop of haltune's."""
    for path in Path(haltune.callbacks.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                kinds = {node.name, *(getattr(base, "id", "") for base in node.bases)}
                if kinds & {"TrainingLoop", "Reporting"} and node.name != "Reporting":
                    yield path.parent.name if path.name == "__init__.py" else path.stem


def test_every_callback_and_loop_has_a_fit():
    found = {*callback_modules()}
    assert {"keras", "lightning", "loop", "sklearn", "sharded"} <= found
    assert found - HAVE_A_FIT == set(), "add a Fit to tests/support/fits.py"


def test_every_round_is_an_epoch_and_every_metric_is_recorded(lib):
    trial = FakeTrial(max_epochs=5)
    _, log = lib.train(lib.told(trial))
    assert trial.epochs == [1, 2, 3, 4, 5]
    assert trial.values == lib.measured(log)
    recorded = [r["metrics"] for r in trial.reports]
    for data, column in log.items():
        for metric, values in column.items():
            assert [m.pop(lib.metric(data, metric)) for m in recorded] == values
    if lib.name not in ("transformers", "lightning"):  # which log more than they keep
        assert recorded == [{}] * 5
    assert all(r["seconds"] > 0 for r in trial.reports)  # the first round's, too
    if lib.name == "catboost":  # the trial's own end ends it
        assert trial.endings == []
        trial.last_act()
    assert trial.endings == [None]


def test_only_the_monitored_metric_is_recorded_on_request(lib):
    trial = FakeTrial(max_epochs=2)
    lib.train(lib.told(trial, record="monitor"), rounds=2)
    assert [r["metrics"] for r in trial.reports] == [{}, {}]
    with pytest.raises(InvalidInput, match="record='none'"):
        lib.told(FakeTrial(), record="none")
    with pytest.raises(InvalidInput, match="swapped"):
        lib.callback(lib.monitor, FakeTrial())


def test_a_stop_ends_the_training_after_its_round_and_the_horizon_does(lib):
    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    booster, log = lib.train(lib.told(trial), rounds=9)
    assert (trial.epochs, lib.rounds(booster), len(lib.measured(log))) == ([1, 2], 2, 2)
    trial = FakeTrial(max_epochs=3)
    booster, _ = lib.train(lib.told(trial), rounds=9)
    assert (trial.epochs, lib.rounds(booster)) == ([1, 2, 3], 3)


@pytest.mark.parametrize("stops", [False, True])
def test_what_is_trained_is_the_same_with_and_without_the_callback(lib, stops):
    callback = lib.told(FakeTrial(max_epochs=5, verdicts={2.0: STOP} if stops else {}))
    told, _ = lib.train(callback, **lib.drawing)
    np.testing.assert_array_equal(lib.scores(told), lib.straight(2 if stops else 5, 5))


RESUMED = [
    pytest.param(name, given, id=f"{name}, {case}", marks=given.marks)
    for name, kind in LOOPS.items()
    for case, given in kind.cases().items()
]


@pytest.mark.parametrize(("lib", "case"), RESUMED, indirect=["lib"])
def test_a_resumed_training_equals_an_uninterrupted_one_digit_for_digit(lib, case, tmp_path):
    once, straight = lib.trained(case, (), tmp_path / "straight")
    attempts, paused = lib.trained(case, case.at, tmp_path / "paused")
    assert (once, attempts) == (1, len(case.at) + 1)
    assert (straight["status"], straight["epochs"][-1]) == ("completed", case.last or case.length)
    assert differences(straight, paused, lib.lost(case)) == []


ONE_OF_EACH = [  # the others are slow
    pytest.param(*one.values, id=one.id, marks=(*one.marks, *[pytest.mark.slow] * (case != LOOPS[name].usual)))
    for one in RESUMED
    for name, case in [one.values]
]


@pytest.mark.parametrize(("lib", "case"), ONE_OF_EACH, indirect=["lib"])
def test_a_new_trial_after_a_resumed_one_draws_as_if_nothing_had_been_resumed(lib, case, tmp_path):
    lib.folder = tmp_path / "training"
    s = lib.study(case, case.at, f"{tmp_path}/s.db")
    trials, attempts = iter(s), range(1, len(case.at) + 2)
    for attempt in attempts:
        seed(attempt)
        with next(trials) as trial:
            lib.attempt(trial, *lib.callbacks(trial), **case.options)
        if attempt > 1:
            after = drawn()
            seed(attempt)
            assert differences(drawn(), after) == []
    assert trial.attempt == attempts[-1]


OF_A_KIND = ("loop", "lightning", "xgboost", "page", "keras")  # the loops of the others are as one of these
ONE_OF_A_KIND = [pytest.param(name, marks=[pytest.mark.slow] * (name not in OF_A_KIND)) for name in LOOPS]


@pytest.mark.parametrize("lib", ONE_OF_A_KIND, indirect=True)
def test_a_resumed_trial_that_no_block_contains_does_not_leave_the_random_state_of_its_training(lib, tmp_path):
    case = lib.usual

    def drawn_after(at, folder):
        lib.folder = tmp_path / folder
        s = lib.study(case, at, f"{lib.folder}.db")
        for attempt in range(len(at) + 1):
            seed(attempt)
            trial = s.ask()  # a block would restore the state, whatever the loop states
            lib.attempt(trial, *lib.callbacks(trial))
            trial.finish()
        return drawn()

    assert differences(drawn_after(case.at, "paused"), drawn_after((), "straight")) != []


@pytest.mark.parametrize("lib", [name for name in FITS if name not in ("transformers", "lightning")], indirect=True)
def test_a_subclass_of_the_callback_pauses_and_resumes_as_it_does(lib, tmp_path):
    lib.callback, case = type("Mine", (lib.callback,), {}), replace(lib.usual, at=(3,), length=6)
    once, straight = lib.trained(case, (), tmp_path / "straight")
    attempts, paused = lib.trained(case, case.at, tmp_path / "paused")
    assert (once, attempts) == (1, len(case.at) + 1)
    assert differences(straight, paused, lib.lost(case)) == []


TRAINED_ALONE = [  # one of each library is quick, in addition to the test without a study above
    pytest.param(name, given, id=f"{name}, {case}", marks=(*given.marks, *[pytest.mark.slow] * (given != kind.usual)))
    for name, kind in LOOPS.items()
    for case, given in kind.cases().items()
    if given.apart is not None and not issubclass(kind, Loop)
]


@pytest.mark.parametrize(("lib", "case"), TRAINED_ALONE, indirect=["lib"])
def test_a_training_of_a_study_equals_one_without_haltune_digit_for_digit(lib, case, tmp_path):
    _, straight = lib.trained(case, (), tmp_path / "straight")
    alone = lib.alone(case, tmp_path / "alone")
    assert differences(alone, {name: straight[name] for name in alone}, case.apart) == []


@pytest.mark.parametrize("lib", ONE_OF_A_KIND, indirect=True)
def test_a_trial_over_folds_that_pauses_within_and_between_them_equals_one_that_never_paused(lib, tmp_path):
    case = lib.usual
    within, end, again = case.at[0], case.length, case.length + case.at[-1]  # epochs of all folds together
    once, straight = lib.trained(case, (), tmp_path / "straight", folds=2)
    attempts, paused = lib.trained(case, [n / 2 for n in (within, end, again)], tmp_path / "paused", folds=2)
    assert (once, attempts) == (1, 4)
    assert (straight["status"], straight["epochs"][-1]) == ("completed", case.length)
    assert paused["starts"] == straight["starts"] == [(0, 0), (1, 0)]
    assert differences(straight, paused, lib.lost(case)) == []


def differences(one, other, ignored=frozenset(), name=""):
    """The names of what is not equal bit for bit in two nested states. ignored: keys."""
    if type(one) is not type(other):
        return [f"{name}: {one} {other}"]
    if isinstance(one, (list, tuple)):
        one, other = dict(enumerate(one)), dict(enumerate(other))
    if isinstance(one, dict):
        keys, others = one.keys() - ignored, other.keys() - ignored
        found = [f"{name}: {sorted(map(str, keys ^ others))}"] if keys != others else []
        return sum((differences(one[key], other[key], ignored, f"{name}/{key}") for key in keys & others), found)
    if isinstance(one, np.ndarray):
        same = (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    elif hasattr(one, "untyped_storage"):  # a tensor
        same = one.equal(other)
    else:
        same = callable(one) or repr(one) == repr(other)  # NaN equals NaN
    return [] if same else [f"{name}: {one} {other}"]


def test_a_pause_that_cannot_be_saved_trains_on_with_one_warning(lib):
    trial = FakeTrial(max_epochs=4, verdicts={1.0: PAUSE, 3.0: PAUSE})
    trial.full = OSError(28, "No space left on device")
    callback = lib.told(trial)
    asked = {"snapshot": callback.snapshot} if lib.name == "catboost" else {}
    with pytest.warns(HaltuneWarning, match="No space left.*keeps training") as caught:
        booster, _ = lib.train(callback, rounds=4, **asked)
    assert len([w for w in caught if w.category is HaltuneWarning]) == 1
    assert (trial.epochs, lib.rounds(booster), trial.declined) == ([1, 2, 3, 4], 4, 2)


# CatBoost writes its first state after the training, so haltune does not know its size before
@pytest.mark.parametrize("lib", [name for name in LOOPS if name != "catboost"], indirect=True)
def test_a_pause_for_which_the_quota_of_a_study_has_no_room_is_declined(lib, tmp_path):
    lib.folder, case = tmp_path / "training", lib.usual
    s = lib.study(case, case.at, disk_quota=10)
    with pytest.warns(HaltuneWarning, match="disk_quota.*keeps training"):
        lib.search(s, **case.options)
    (record,) = s.trials
    assert (record.status, record.attempt, record.epochs[-1]) == ("completed", 1, case.length)


def test_the_model_of_a_trial_that_is_to_be_kept_is_saved(lib):
    trial = FakeTrial(max_epochs=3)
    trial.kept = True
    lib.train(lib.told(trial), rounds=3)
    if lib.name == "catboost":
        trial.last_act()
    assert trial.checkpoint is not None


@pytest.mark.parametrize("handles", [False, True])
def test_a_real_study_stops_trainings_and_continues_after_a_failure(lib, handles, tmp_path):
    def raises(number):
        if number == (3 if lib.name == "catboost" else 2):
            raise ValueError("a bug")

    s = study(f"{tmp_path}/search.db")
    for trial in s:
        with trial:
            others = [lib.each_round(raises)] if trial.id == 1 else []
            with suppress(Exception) if handles else nullcontext():
                lib.train(*others, lib.told(trial), rounds=trial.max_epochs)
    stated = "whose fit an exception ends, also one that the program handles, fails: see reporter.fail and trial.fits"
    assert [t.status for t in s.trials] == ["completed", "failed", "stopped"], f"a trial {stated}"
    if handles and lib.name not in ("lightning", "pytorch_lightning"):  # others call no hook with the exception
        assert "which the program handled, ended its fit after epoch 1" in s.trials[1].error
    assert [t.epochs.tolist() for t in s.trials] == [[1, 2, 3, 4], [1], [1, 2]]


def test_an_outage_does_not_end_the_training(lib):
    trial = FakeTrial(max_epochs=3)
    trial.broken = OUTAGE

    def mends(number):
        trial.broken = OUTAGE if number < 3 else None

    with pytest.warns(HaltuneWarning, match="raining continues"):
        lib.train(lib.each_round(mends), lib.told(trial), rounds=3)
    assert trial.epochs == [1, 2, 3]


def test_after_the_training_the_callback_holds_no_model_and_copies_and_pickles(lib):
    trial = FakeTrial(max_epochs=2)
    callback = lib.told(trial)
    booster, _ = lib.train(callback, rounds=2)
    if lib.name == "catboost":
        trial.last_act()
    gone = weakref.ref(lib.model(booster))
    del booster
    gc.collect()
    assert gone() is None
    for twin in (copy.copy(callback), copy.deepcopy(callback)):
        assert type(twin) is type(callback)
        assert twin.trial is trial
    refusal = lib.package.CatBoostError if lib.name == "catboost" else NotSupported
    with pytest.raises(refusal, match="unpickled"):
        lib.train(pickle.loads(pickle.dumps(callback)))


def test_a_subclass_that_a_program_makes_for_each_trial_is_freed(lib):
    kind = type("Mine", (lib.callback,), {})
    callback = kind(FakeTrial(max_epochs=2), lib.monitor)
    assert isinstance(callback, kind)
    gone = weakref.ref(kind)
    del kind, callback
    gc.collect()
    assert gone() is None


def test_a_training_started_again_starts_the_curve_again_with_a_warning_that_says_how_to_continue(lib):
    trial = FakeTrial(max_epochs=3, epoch=2.0)
    with pytest.warns(HaltuneWarning, match=lib.hint):
        lib.train(lib.told(trial), rounds=3)
    assert (trial.attempt, trial.epochs) == (2, [1, 2, 3])


def test_a_fit_of_a_trial_that_has_ended_is_said_not_to_be_reported_and_nothing_else(lib):
    trial = FakeTrial(epoch=3.0)
    trial.ended, trial.checkpoint = "completed", "kept"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        lib.train(lib.told(trial), rounds=2)
    ours = [str(w.message) for w in told if w.category is HaltuneWarning]
    assert len(ours) == 1
    assert ours[0].startswith("Trial 7 has ended, so the epochs of this fit are not reported.")
    assert (trial.epochs, trial.endings) == ([], [])


@pytest.mark.parametrize("given", ["the model", "the kept file"])
def test_a_fit_that_continues_another_trial_is_refused_with_its_cause_and_changes_nothing(lib, given, tmp_path):
    lib.folder = tmp_path / "training"
    s = pausing_study(f"{tmp_path}/s.db", at=(), epochs=2, trials=2, metric=lib.monitor, keep=1, verbose=0)
    with s.ask() as first:
        model, _ = lib.train(*lib.callbacks(first), rounds=2)
    before = lib.scores(model)
    with pytest.raises(NotSupported, match=r"trial 1.* trial 0.*another configuration"), s.ask() as second:
        continuing = lib.continuing(model if given == "the model" else s.best.checkpoint)
        lib.train(*lib.callbacks(second), rounds=4, **continuing)
    assert [t.values.size for t in s.trials] == [2, 0]
    np.testing.assert_array_equal(lib.scores(model), before)


@pytest.mark.parametrize("at", [(), (1,)], ids=["in full", "to a pause"])
def test_a_second_training_in_one_trial_is_refused_with_the_advice_on_folds(lib, at, tmp_path):
    lib.folder = tmp_path / "training"
    s = pausing_study(f"{tmp_path}/s.db", at=at, epochs=2, metric=lib.monitor, verbose=0)
    refusal = lib.package.CatBoostError if lib.name == "catboost" else NotSupported
    with s.ask() as trial, pytest.raises(refusal, match=r"another model.*trial\.folds"):
        for _ in range(2):
            [ours] = lib.callbacks(trial)
            lib.train(ours, rounds=2, **{"snapshot": ours.snapshot} if lib.name == "catboost" else {})
    assert s.trials[0].epochs.tolist() == [1, 2][: 2 - len(at)]


@pytest.mark.parametrize("lib", [name for name, kind in FITS.items() if not kind.uncounted], indirect=True)
def test_a_round_with_fewer_updates_is_warned_of_at_its_report(lib, tmp_path):
    s = pausing_study(f"{tmp_path}/s.db", at=(), epochs=2, metric=lib.monitor, verbose=0)
    idle, options = lib.idling()
    with pytest.warns(HaltuneWarning, match=r"made (no update|\d+ updates?) from epoch 1 to 2\b"), s.ask() as trial:
        lib.train(*[idle] * (idle is not None), *lib.callbacks(trial), rounds=2, **options)


@pytest.mark.parametrize("lib", [name for name, kind in FITS.items() if hasattr(kind, "keeping")], indirect=True)
def test_the_advice_on_a_best_model_that_the_library_keeps_names_the_metric_and_direction_of_the_study(lib, tmp_path):
    lib.folder, trial = tmp_path / "training", FakeTrial(lib.monitor, max_epochs=2, maximize=True)
    keeper, options = lib.keeping()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        lib.train(*[keeper] * (keeper is not None), lib.callback(trial), rounds=2, **options)
    said = [*trial.hints, *(str(w.message) for w in told)]
    assert [text for text in said if f"Maximize({lib.monitor!r}, of='best')" in text], said


@pytest.mark.parametrize("lib", [name for name in FITS if name != "catboost"], indirect=True)
def test_a_misspelt_metric_lists_what_was_logged_and_the_nearest_name(lib):
    trial = FakeTrial()
    with pytest.raises(InvalidInput, match=rf"Logged names: .*{lib.monitor}.*mean '{lib.monitor}'"):
        lib.train(lib.callback(trial, lib.monitor[:-1]), rounds=3)
    assert trial.reports == []


def test_the_class_in_place_of_a_callback_says_what_to_write(lib):
    if lib.name in ("xgboost", "lightgbm"):  # they do not call it; XGBoost itself asks for an instance
        with pytest.raises((TypeError, AttributeError)):
            lib.train(lib.callback)
    else:
        with pytest.raises(Exception, match=r"HaltuneCallback is a class.* Write HaltuneCallback\(trial\)"):
            lib.train(lib.callback)
        mine = type("Mine", (lib.callback,), {})
        with pytest.raises(Exception, match=r"Mine is a class.* Write Mine\(trial\)"):
            lib.train(mine)


@pytest.mark.parametrize("lib", [name for name in FITS if name not in ("catboost", "lightning")], indirect=True)
def test_two_callbacks_in_one_training_are_an_error_and_one_after_the_other_are_not(lib):
    with pytest.raises(InvalidInput, match=r"holds two HaltuneCallbacks.*Delete one"):
        lib.train(lib.told(FakeTrial(max_epochs=5)), lib.told(FakeTrial(max_epochs=5)))
    if lib.name not in ("xgboost", "lightgbm"):  # which take a set of them
        with pytest.raises(InvalidInput, match=r"holds two HaltuneCallbacks.*Delete one"):
            lib.train(*[lib.told(FakeTrial(max_epochs=5))] * 2)
    trial = FakeTrial(max_epochs=1)
    lib.train(lib.told(trial), rounds=1)
    assert trial.epochs == [1]
