"""Boosting with XGBoost, LightGBM and CatBoost, beyond what test_every_loop.py asks of each loop."""

import gc
import os
import signal
import threading
import types
import warnings
import weakref
from collections import defaultdict

import numpy as np
import pytest
from callback_fakes import PAUSE, STOP, FakeTrial
from fits import BOOSTING, HELD_OUT, TRAIN, X, Y
from paused_studies import pausing_study

from haltune import Constant, Int, Minimize, Study
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported
from haltune.policies import RandomSearch


@pytest.fixture(params=BOOSTING)
def lib(request, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # CatBoost writes a folder of its own where it runs
    return BOOSTING[request.param]()


@pytest.fixture(params=["xgboost", "lightgbm"])
def gradient(request):
    """The two that continue boosters, cross-validate and let errors out of a training."""
    return BOOSTING[request.param]()


xgboost_alone = pytest.mark.parametrize("lib", ["xgboost"], indirect=True)
lightgbm_alone = pytest.mark.parametrize("lib", ["lightgbm"], indirect=True)
catboost_alone = pytest.mark.parametrize("lib", ["catboost"], indirect=True)


DRAWS = [
    pytest.param("xgboost", params, name, id=f"xgboost, {name}")
    for name, params in {
        "subsample": {"subsample": 0.5},
        "colsample_bylevel": {"colsample_bylevel": 0.5},
        "rate_drop": {"booster": "dart", "rate_drop": 0.5},
        "feature_selector": {"booster": "gblinear", "updater": "coord_descent", "feature_selector": "random"},
    }.items()
] + [
    pytest.param("lightgbm", params, name, id=f"lightgbm, {name}")
    for name, params in {
        "bagging_fraction": {"subsample": 0.5, "subsample_freq": 1},
        "neg_bagging_fraction": {"neg_bagging_fraction": 0.5, "bagging_freq": 1},
        "feature_fraction": {"colsample_bytree": 0.5},
        "extra_trees": {"extra_trees": True},
        "goss": {"data_sample_strategy": "goss"},
        "dart": {"boosting": "dart"},
        "use_quantized_grad": {"use_quantized_grad": True},
        "linear_tree": {"linear_tree": True},
        "cegb_penalty_feature_coupled": {"cegb_penalty_feature_coupled": [5.0] * 4},
    }.items()
]


@pytest.mark.parametrize(("lib", "params", "name"), DRAWS, indirect=["lib"])
def test_a_training_that_would_resume_with_other_random_numbers_is_not_paused_and_says_so_once(lib, params, name):
    if name == "feature_selector":
        params = params | {"max_depth": None}
    s = pausing_study(at=(3,), epochs=6, trials=2, metric=lib.monitor, verbose=0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = lib.search(s, **params)
    ours = [str(w.message) for w in told if w.category is HaltuneWarning]
    assert len(ours) == 1
    assert ours[0].startswith("A trial cannot be paused, because ")
    assert name in ours[0]
    assert [(t.attempt, t.epoch) for t in s.trials] == [(1, 6), (1, 6)]
    np.testing.assert_array_equal(lib.scores(model), lib.scores(lib.train(rounds=6, **params)[0]))


@pytest.mark.parametrize("rates", [lambda: lambda round: 0.5 / (1 + round), lambda: [0.5, 0.4, 0.3, 0.2, 0.1, 0.05]])
def test_a_schedule_of_the_library_continues_after_a_pause(gradient, rates):
    s = pausing_study(at=(2, 4), epochs=6, metric=gradient.monitor, verbose=0)
    for trial in s:
        with trial:
            booster, _ = gradient.attempt(trial, gradient.callback(trial), gradient.recounting(rates()))
    plain, log = gradient.train(gradient.recounting(rates()), rounds=6)
    assert s.trials[0].attempt == 3
    assert s.trials[0].values.tolist() == log["validation"][gradient.loss]
    np.testing.assert_array_equal(gradient.scores(booster), gradient.scores(plain))


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("pauses", [(), (1, 2), (3,)])
@pytest.mark.parametrize(("given", "other"), [("learning_rate", "eta"), ("eta", "learning_rate")])
@xgboost_alone
def test_a_rate_that_callbacks_set_by_both_of_its_names_is_that_of_a_training_without_haltune(
    lib, given, other, pauses, every
):
    class Sets(lib.package.callback.TrainingCallback):
        def before_iteration(self, model, epoch, log):
            if epoch % every == 0:
                model.set_param({other: 0.05})
            return False

    def callbacks():
        return Sets(), lib.recounting(lambda round: 0.5 / (1 + round))

    s = pausing_study(at=pauses, epochs=6, metric=lib.monitor, verbose=0)
    for trial in s:
        with trial:
            booster, _ = lib.attempt(trial, lib.callback(trial), *callbacks(), **{given: 0.4})
    plain, log = lib.train(*callbacks(), rounds=6, **{given: 0.4})
    assert s.trials[0].attempt == 1 + len(pauses)
    assert s.trials[0].values.tolist() == log["validation"][lib.loss]
    np.testing.assert_array_equal(lib.scores(booster), lib.scores(plain))


def numbered(gradient):
    """Callbacks that set the rate by the library's number of a round, and by how many it has recorded."""
    columns = {}

    def rate(number, log):
        return 0.5 / (1 + number + max((len(column) for of in log.values() for column in of.values()), default=0))

    if gradient.name == "xgboost":

        def before(_, model, epoch, log):
            model.set_param("learning_rate", rate(epoch, log))
            return False

        kind = gradient.package.callback.TrainingCallback
        return [type("Rates", (kind,), {"before_iteration": before})()]

    def rates(env):
        env.model.reset_parameter({"learning_rate": rate(env.iteration - env.begin_iteration, columns)})

    rates.before_iteration = True
    return [rates, gradient.package.record_evaluation(columns)]


def test_callbacks_of_the_program_get_the_numbers_and_values_of_all_rounds_after_a_pause(gradient):
    s = pausing_study(at=(2, 4), epochs=6, metric=gradient.monitor, verbose=0)
    for trial in s:
        with trial:
            ours = gradient.callback(trial, record="monitor")
            booster, _ = gradient.attempt(trial, ours, *numbered(gradient))
    plain, log = gradient.train(*numbered(gradient), rounds=6)
    assert s.trials[0].attempt == 3
    assert s.trials[0].values.tolist() == log["validation"][gradient.loss]
    np.testing.assert_array_equal(gradient.scores(booster), gradient.scores(plain))


@pytest.mark.parametrize("first", [False, True])
@xgboost_alone
def test_an_object_that_a_callback_makes_when_the_training_starts_prevents_no_pause(lib, first):
    def made():
        class Shows(lib.package.callback.TrainingCallback):
            def before_training(self, model):
                self.lock, self.shown = threading.Lock(), 0
                return model

            def after_iteration(self, model, epoch, log):
                self.shown += 1
                return self.shown > 4

        return Shows()

    s = pausing_study(at=(2,), epochs=9, metric=lib.monitor, verbose=0)
    for trial in s:
        with trial:
            lib.attempt(trial, *[lib.callback(trial), made()][:: -1 if first else 1])
    assert (s.trials[0].attempt, s.trials[0].epochs.tolist()) == (2, [1, 2, 3, 4, 5])


@xgboost_alone
def test_files_that_xgboost_saves_have_the_numbers_of_all_rounds_after_a_pause(lib, tmp_path):
    def saved(at):
        (folder := tmp_path / f"{at}").mkdir()
        for trial in pausing_study(at=at, epochs=9, metric=lib.monitor, verbose=0):
            with trial:
                lib.attempt(trial, lib.callback(trial), lib.package.callback.TrainingCheckPoint(folder, interval=2))
        return {path.name: lib.rounds(lib.load(path)) for path in folder.iterdir()}

    assert saved((3, 6)) == saved(()) != {}


@pytest.mark.parametrize("order", [10, 40])
@lightgbm_alone
def test_a_callback_of_the_program_that_ends_the_training_leaves_a_last_round_that_is_reported_and_kept(lib, order):
    class Ends:
        def __init__(self):
            self.order, self.left = order, 5

        def __call__(self, env):
            self.left -= 1
            if not self.left:
                raise lib.package.callback.EarlyStopException(env.iteration, env.evaluation_result_list)

    for at in ((), (2,)):
        s = pausing_study(at=at, epochs=9, metric=lib.monitor, keep=1, verbose=0)
        for trial in s:
            with trial:
                lib.attempt(trial, lib.callback(trial, every=2), Ends())
        assert s.trials[0].attempt == 1 + len(at)
        assert s.trials[0].epochs.tolist() == [2, 4, 5]
        assert loss(lib, lib.load(s.best.checkpoint)) == pytest.approx(s.best.value, rel=1e-5)


def test_an_objective_of_the_program_that_another_function_calls_continues_after_a_pause(gradient):
    def annealed(by):
        n = 0

        def objective(predictions, data):
            nonlocal n
            n += 1
            return (predictions - data.get_label()) / n, np.ones_like(predictions)

        if by == "default":
            return lambda predictions, data, of={"n": 0}: one_more(of, predictions, data)
        return lambda predictions, data: objective(predictions, data)

    def one_more(of, predictions, data):
        of["n"] += 1
        return (predictions - data.get_label()) / of["n"], np.ones_like(predictions)

    for by in ("closure", "default"):
        s = pausing_study(at=(2,), epochs=5, metric=gradient.monitor, verbose=0)
        xgboost = gradient.name == "xgboost"
        for trial in s:
            with trial:
                made = annealed(by)
                options = {"options": {"obj": made}} if xgboost else {"objective": lambda trial, made=made: made}
                gradient.attempt(trial, gradient.callback(trial), **options)
        _, log = gradient.train(
            rounds=5, **({"options": {"obj": annealed(by)}} if xgboost else {"objective": annealed(by)})
        )
        assert s.trials[0].attempt == 2
        assert s.trials[0].values.tolist() == log["validation"][gradient.loss]


noise, calls, last = np.random.default_rng(2), 0, None


def noisy(predictions, data):
    """An objective that draws from a generator of its module, and counts its calls there; it never reads `last`."""
    global calls, last
    calls, last = calls + 1, data
    drawn = 0.01 * noise.normal(size=len(predictions))
    return (predictions - data.get_label()) / calls + drawn, np.ones_like(predictions)


def test_what_an_objective_has_in_variables_of_its_module_continues_after_a_pause(gradient):
    global calls
    how = {"options": {"obj": noisy}} if gradient.name == "xgboost" else {"objective": noisy}
    per_trial = how if gradient.name == "xgboost" else {"objective": lambda trial: noisy}
    start, calls = noise.bit_generator.state, 0
    _, log = gradient.train(rounds=5, **how)
    noise.bit_generator.state, calls = start, 0
    s = pausing_study(at=(2,), epochs=5, metric=gradient.monitor, verbose=0)
    for trial in s:
        if trial.attempt > 1:  # not what a resumed training is to find
            noise.normal()
            calls = 70
        with trial:
            gradient.attempt(trial, gradient.callback(trial), **per_trial)
    assert s.trials[0].attempt == 2
    assert s.trials[0].values.tolist() == log["validation"][gradient.loss]


def test_a_booster_whose_rounds_are_updated_is_not_paused():
    xgb = BOOSTING["xgboost"]().package
    data, held_out = xgb.DMatrix(X[TRAIN], Y[TRAIN]), xgb.DMatrix(X[HELD_OUT], Y[HELD_OUT])
    whole = xgb.train({"max_depth": 3}, xgb.DMatrix(X[HELD_OUT], Y[HELD_OUT]), 4)
    s = pausing_study(at=(2,), epochs=4, metric="validation-rmse", verbose=0)
    for trial in s:
        with trial, pytest.warns(HaltuneWarning, match=r"cannot be paused, because XGBoost updates .*process_type"):
            xgb.train({"process_type": "update", "updater": "refresh"}, data, trial.max_epochs - trial.epoch,
                      xgb_model=trial.checkpoint or whole, evals=[(held_out, "validation")], verbose_eval=False,
                      callbacks=[BOOSTING["xgboost"]().callback(trial)])  # fmt: skip
    assert [(t.attempt, t.epoch) for t in s.trials] == [(1, 4)]


def test_what_a_metric_of_the_program_remembers_continues_after_a_pause(gradient):
    def smoothed():
        seen = []

        def smooth(predictions, data):
            seen.append(float(np.mean(predictions)))
            smooth.calls += 1
            return ("smooth", float(np.sum(seen)) / smooth.calls, False)[: 2 if gradient.name == "xgboost" else 3]

        smooth.calls = 0
        return {"custom_metric" if gradient.name == "xgboost" else "feval": smooth}

    s = pausing_study(at=(2,), epochs=5, metric="validation-smooth", verbose=0)
    for trial in s:
        with trial:
            gradient.attempt(trial, gradient.callback(trial), options=smoothed())
    _, log = gradient.train(rounds=5, options=smoothed())
    assert s.trials[0].attempt == 2
    assert s.trials[0].values.tolist() == log["validation"]["smooth"]


def test_what_a_metric_of_the_program_sets_first_in_training_continues_after_a_pause(gradient):
    def counted():
        def count(predictions, data):
            count.calls = getattr(count, "calls", 0) + 1
            return ("count", float(count.calls), False)[: 2 if gradient.name == "xgboost" else 3]

        return {"custom_metric" if gradient.name == "xgboost" else "feval": count}

    s = pausing_study(at=(2, 3), epochs=5, metric="validation-count", verbose=0)
    for trial in s:
        with trial:
            gradient.attempt(trial, gradient.callback(trial), options=counted())
    _, log = gradient.train(rounds=5, options=counted())
    assert s.trials[0].attempt == 3
    assert s.trials[0].values.tolist() == log["validation"]["count"]


@lightgbm_alone
def test_numbers_and_arrays_of_numpy_in_metrics_and_parameters_do_not_prevent_a_pause(lib):
    def wrong(predictions, data):
        return "wrong", ((predictions > 0.5) != data.get_label()).sum(), False

    options = {"options": {"feval": wrong}, "monotone_constraints": np.zeros(X.shape[1], int)}
    s = pausing_study(at=(2,), epochs=5, metric="validation-wrong", verbose=0)
    for trial in s:
        with trial:
            lib.attempt(trial, lib.callback(trial), **options)
    _, log = lib.train(rounds=5, **options)
    assert s.trials[0].attempt == 2
    assert s.trials[0].values.tolist() == log["validation"]["wrong"]


@catboost_alone
def test_catboost_does_not_pause_where_a_later_callback_changes_and_says_to_put_haltunes_last(lib):
    class Record:
        def __init__(self):
            self.rounds = []

        def after_iteration(self, info):
            self.rounds.append(info.iteration)
            return True

    s = pausing_study(at=(2,), epochs=4, metric=lib.monitor, verbose=0)
    for trial in s:
        callback, record = lib.callback(trial), Record()
        with pytest.warns(HaltuneWarning, match=r"calls .*Record after haltune's .*put haltune's last"), trial:
            lib.train(callback, record, rounds=4, snapshot=callback.snapshot)
    assert (s.trials[0].attempt, s.trials[0].epoch, record.rounds) == (1, 4, [1, 2, 3])


@lightgbm_alone
def test_a_callback_of_the_program_that_removes_a_round_is_refused_before_it_does(lib):
    def rolls_back(env):
        env.model.rollback_one_iter()

    s = pausing_study(at=(), epochs=4, metric=lib.monitor, verbose=0)
    trial = s.ask()
    with pytest.raises(NotSupported, match=r"rollback_one_iter.*EarlyStopException"), trial:
        lib.attempt(trial, lib.callback(trial), rolls_back)
    booster, _ = lib.attempt(trial := s.ask(), lib.callback(trial))
    booster.rollback_one_iter()  # after the training it is the program's


@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
def test_a_training_of_one_round_gets_no_advice_for_loops_without_a_callback(lib, caplog):
    goal = Minimize(lib.monitor, rank_by="lifts")
    s = pausing_study(at=(), epochs=4, metric=goal, verbose=1)
    for trial in s:
        with trial:
            lib.train(lib.callback(trial), rounds=1)
    assert "without a report of 'lifts'" in caplog.text
    assert "trial.report" not in caplog.text


def test_a_second_training_after_a_handled_error_is_not_told_what_it_does_already(gradient):
    def fails(round):
        if round == 3:
            raise MemoryError

    s = pausing_study(at=(), epochs=4, metric=gradient.monitor, verbose=0)
    for trial in s:
        with trial, pytest.warns(HaltuneWarning, match=r"from its start.*The previous fit ended with an exception\.$"):
            with pytest.raises(MemoryError):
                gradient.attempt(trial, gradient.callback(trial), gradient.each_round(fails))
            gradient.train(gradient.callback(trial), rounds=4)
    assert (s.trials[0].status, s.trials[0].epoch) == ("completed", 4)


def test_a_trial_that_ends_early_because_its_training_is_given_fewer_rounds_says_so(lib):
    s = pausing_study(at=(), epochs=4, trials=2, metric=lib.monitor, verbose=0)
    with pytest.warns(HaltuneWarning) as told:
        for trial in s:
            with trial:
                lib.train(lib.callback(trial), rounds=3)
    [one] = [str(w.message) for w in told if w.category is HaltuneWarning]
    assert "ended after epoch 3, as its last fit planned" in one
    assert "max_epochs=3 in the search" in one


class Waits:
    """A patience of the program's own, as an objective or a callback."""

    def __init__(self):
        self.seen = 0

    def __call__(self, *given):
        self.seen += 1

    def after_iteration(self, *given):
        self.seen += 1
        return self.seen > 100


class Records:
    def __init__(self):
        self.rounds = []

    def after_iteration(self, model, round, logged):
        self.rounds.append(round)
        return False


@xgboost_alone
@pytest.mark.parametrize("fresh", [False, True])
def test_a_callback_that_a_program_makes_once_and_that_counts_is_warned_of_and_one_that_records_is_not(lib, fresh):
    def made(kind):
        return type(kind.__name__, (kind, lib.package.callback.TrainingCallback), {})()

    waits, records = made(Waits), made(Records)
    s = pausing_study(at=(), epochs=3, trials=3, metric=lib.monitor, verbose=0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for trial in s:
            with trial:
                waits = made(Waits) if fresh else waits
                lib.attempt(trial, lib.callback(trial), waits, records)
    ours = [str(w.message) for w in told if w.category is HaltuneWarning]
    assert len(ours) == (not fresh)
    assert fresh or "Waits has been in another training, which changed its seen, and this one continues" in ours[0]


@catboost_alone
def test_a_callback_of_catboost_that_a_program_makes_once_is_warned_of_where_it_follows_haltunes(lib):
    class Counts:
        def __init__(self):
            self.seen = 0

        def after_iteration(self, info):
            self.seen += 1
            return True

    counts, s = Counts(), pausing_study(at=(), epochs=3, trials=2, metric=lib.monitor, verbose=0)
    with pytest.warns(HaltuneWarning, match="Counts has been in another training, which changed its seen"):
        for trial in s:
            with trial:
                lib.train(lib.callback(trial), counts, rounds=3)


def test_a_metric_of_a_program_that_is_made_once_and_remembers_is_warned_of_and_one_that_resets_is_not(gradient):
    def mean(predictions, data):
        mean.calls += 1
        return ("mean", float(np.mean(predictions)), False)[: 2 if gradient.name == "xgboost" else 3]

    for resets in (True, False):
        mean.calls = 0
        s = pausing_study(at=(1,), epochs=3, trials=2, metric="validation-mean", verbose=0)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            for trial in s:
                with trial:
                    if resets and trial.attempt == 1:
                        mean.calls = 0
                    options = {"custom_metric" if gradient.name == "xgboost" else "feval": mean}
                    gradient.attempt(trial, gradient.callback(trial), options=options)
        ours = [str(w.message) for w in told if w.category is HaltuneWarning]
        assert len(ours) == (not resets)
        assert resets or "mean has been in another training, which changed its calls" in ours[0]


@catboost_alone
def test_a_path_of_catboosts_snapshot_that_is_read_before_fit_pauses_no_callback_that_changes(lib):
    class Record:
        def __init__(self):
            self.rounds = []

        def after_iteration(self, info):
            self.rounds.append(info.iteration)
            return True

    s = pausing_study(at=(2,), epochs=4, metric=lib.monitor, verbose=0)
    for trial in s:
        callback = lib.callback(trial)
        snapshot = callback.snapshot | {"snapshot_file": os.fspath(callback.snapshot["snapshot_file"])}
        with (
            pytest.warns(HaltuneWarning, match=r"called .*Record before haltune could restore.*\(pass \*\*callback"),
            trial,
        ):
            lib.train(Record(), callback, rounds=4, snapshot=snapshot)
    assert (s.trials[0].attempt, s.trials[0].epoch) == (1, 4)


def test_a_trial_that_paused_where_it_is_best_keeps_that_model(lib):
    rate = {"xgboost": {"eta": 3.0}, "lightgbm": {"learning_rate": 3.0}, "catboost": {"learning_rate": 1.0}}[lib.name]
    for pauses in ((), (1, 2, 3)):
        s = pausing_study(at=pauses, epochs=6, keep=1, metric=Minimize(lib.monitor, of="best"), verbose=0)
        for trial in s:
            with trial:
                lib.attempt(trial, lib.callback(trial), **rate)
        assert (s.trials[0].attempt, s.best.epoch < 6) == (1 + len(pauses), lib.name != "catboost")
        assert loss(lib, lib.load(s.best.checkpoint)) == pytest.approx(s.best.value, rel=1e-5)


@catboost_alone
@pytest.mark.parametrize("pauses", [(), (2,)])
def test_a_catboost_trial_that_a_callback_ends_in_the_round_after_its_pause_keeps_a_model(lib, pauses):
    def ends(info):
        return info.iteration < 3

    s = pausing_study(at=pauses, epochs=6, keep=1, metric=Minimize(lib.monitor, of="best"), verbose=0)
    for trial in s:
        with trial:
            lib.attempt(trial, types.SimpleNamespace(after_iteration=ends), lib.callback(trial))
    assert (s.trials[0].attempt, s.trials[0].epoch, s.best.epoch) == (1 + len(pauses), 2, 2)
    assert loss(lib, lib.load(s.best.checkpoint)) == pytest.approx(s.best.value, rel=1e-5)


# early stopping of the library


def overfit(lib, **options):
    """A training whose validation loss rises early, with the library's early stopping."""
    if lib.name == "catboost":
        return {"learning_rate": 1.0, "eval_metric": "Logloss", "use_best_model": True, "early_stopping_rounds": 5}
    return {"eta": 1.0} if lib.name == "xgboost" else {"learning_rate": 1.0, "min_data_in_leaf": 3}


def stopper(lib, rounds=5, **options):
    """The library's early stopping by its callback, if it has one."""
    if lib.name == "xgboost":
        return [lib.package.callback.EarlyStopping(rounds=rounds, **options)]
    if lib.name == "lightgbm":
        return [lib.package.early_stopping(rounds, first_metric_only=False, verbose=False)]
    return []


class Stopped:
    """A library whose trainings end by its early stopping, after haltune's callback or before it."""

    def __init__(self, lib, first=False, **options):
        self.lib, self.first, self.options = lib, first, options

    def search(self, s):
        for trial in s:
            with trial:
                ours = self.lib.callback(trial)
                callbacks = [*stopper(self.lib, **self.options), ours]
                model, _ = self.lib.attempt(trial, *callbacks[:: 1 if self.first else -1], **overfit(self.lib))
        return model


def loss(lib, model):
    """The validation loss of a model, as its library predicts with it."""
    predicted = 1 / (1 + np.exp(-lib.scores(model)))
    predicted = predicted if lib.name != "catboost" else predicted[HELD_OUT]
    return -np.mean(np.where(Y[HELD_OUT] > 0.5, np.log(predicted), np.log(1 - predicted)))


@pytest.mark.parametrize("of", ["last", "best"])
def test_where_early_stopping_ends_a_training_the_kept_model_has_the_best_value(lib, of):
    goal = Minimize(lib.monitor, of=of)
    s = pausing_study(at=(), epochs=60, trials=2, keep=1, metric=goal, verbose=0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        Stopped(lib).search(s)
    ours = [str(w.message) for w in told if w.category is HaltuneWarning]
    epochs = s.trials[0].epochs
    assert len(epochs) < 60
    if of == "best":
        assert ours == []
        assert s.best.epoch == s.best.checkpoint_epoch < epochs[-1]
    else:
        advice, *others = ours
        assert f"Make the goal Minimize('{lib.monitor}', of='best')" in advice
        assert ["is not kept: CatBoost kept its best round" in text for text in others] == [True] * (
            lib.name == "catboost"
        )
    if lib.name == "catboost" and of == "last":  # CatBoost's own cut is after all hooks
        assert s.best.checkpoint is None
    else:
        assert loss(lib, lib.load(s.best.checkpoint)) == pytest.approx(s.best.value, rel=1e-5)


@pytest.mark.parametrize("first", [False, True])
def test_early_stopping_remembers_the_rounds_before_a_pause(gradient, first):
    straight = pausing_study(at=(), epochs=60, metric=gradient.monitor, verbose=0)
    paused = pausing_study(at=(3, 4), epochs=60, metric=gradient.monitor, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HaltuneWarning)
        one, other = (Stopped(gradient, first).search(s) for s in (straight, paused))
    assert 6 < len(straight.trials[0].epochs) < 60
    assert paused.trials[0].attempt == 3
    assert paused.trials[0].values.tolist() == straight.trials[0].values.tolist()
    np.testing.assert_array_equal(gradient.scores(one), gradient.scores(other))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("before", [(), (3,), (-1,)])
def test_a_trial_that_would_pause_in_the_round_of_its_early_stopping_is_complete(lib, first, before):
    straight = pausing_study(at=(), epochs=60, metric=lib.monitor, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HaltuneWarning)
        one = Stopped(lib, first).search(straight)
        end = len(straight.trials[0].epochs)
        paused = pausing_study(at=(*(at % end for at in before), end), epochs=60, metric=lib.monitor, verbose=0)
        other = Stopped(lib, first).search(paused)
    assert end < 60
    assert paused.trials[0].values.tolist() == straight.trials[0].values.tolist()
    np.testing.assert_array_equal(lib.scores(one), lib.scores(other))


@pytest.mark.filterwarnings("ignore:.*keeps the model of its best round")
def test_a_training_that_early_stopping_ends_where_it_cannot_pause_gets_no_warning_that_it_continues(gradient):
    def trained(*at):
        s = pausing_study(at=at, epochs=60, metric=gradient.monitor, verbose=0)
        with (trial := s.ask()):
            drawing = {"subsample": 0.999} if gradient.name == "xgboost" else {"feature_fraction": 0.999}
            gradient.attempt(trial, gradient.callback(trial), *stopper(gradient), **overfit(gradient) | drawing)
        return len(s.trials[0].epochs)

    end = trained()
    assert trained(end) == end < 60


NOT_IN_THE_LOG = [("xgboost", {"record": "monitor"}), ("lightgbm", {"record": "monitor"}), ("lightgbm", {"every": 3})]


@pytest.mark.parametrize(("gradient", "options"), NOT_IN_THE_LOG, indirect=["gradient"])
def test_early_stopping_remembers_rounds_whose_metrics_are_not_in_the_log(gradient, options):
    def trained(*at):
        s = pausing_study(at=at, epochs=60, metric=Minimize(gradient.monitor, of="best"), verbose=0)
        for trial in s:
            with trial:
                ours = gradient.callback(trial, **options)
                booster, _ = gradient.attempt(trial, ours, *stopper(gradient), **overfit(gradient))
        assert (s.trials[0].attempt, s.trials[0].epoch < 60) == (1 + len(at), True)
        return s.trials[0].values.tolist(), booster.best_iteration, gradient.scores(booster).tolist()

    at = (3, 6) if "every" in options else (2, 4)
    assert trained(*at) == trained()


def test_early_stopping_remembers_the_rounds_of_a_fold_before_a_pause(gradient):
    def trained(*at):
        s = pausing_study(at=at, epochs=30, metric=gradient.monitor, verbose=0)
        for trial in s:
            with trial:
                for fold in trial.folds(2, of="best"):
                    gradient.attempt(fold, gradient.callback(fold), *stopper(gradient), **overfit(gradient))
        assert (s.trials[0].attempt, s.trials[0].epoch < 30) == (1 + len(at), True)
        return s.trials[0].values.tolist()

    assert trained(1, 3, 6) == trained()


@xgboost_alone
def test_a_ranking_whose_position_biases_xgboost_forgets_is_not_paused(lib):
    xgb = lib.package
    data, held_out = (
        xgb.DMatrix(X[rows], Y[rows] > 0.5, qid=np.arange(len(Y[rows])) // 8) for rows in (TRAIN, HELD_OUT)
    )
    for trial in pausing_study(at=(2,), epochs=4, metric="validation-rmse", verbose=0):
        with trial, pytest.warns(HaltuneWarning, match="does not save the estimates of lambdarank_unbiased"):
            parameters = {"objective": "rank:ndcg", "lambdarank_unbiased": True, "eval_metric": "rmse"}
            xgb.train(parameters, data, 4, evals=[(held_out, "validation")], verbose_eval=False,
                      callbacks=[lib.callback(trial)])  # fmt: skip


@catboost_alone
@pytest.mark.parametrize("pauses", [(), (2,)])
@pytest.mark.parametrize("of_best_round", [True, False])
def test_a_catboost_trial_that_pauses_in_its_last_round_keeps_its_model_or_says_why_not(lib, of_best_round, pauses):
    params = overfit(lib) | {"use_best_model": of_best_round}
    s = pausing_study(at=(), epochs=60, metric=lib.monitor, verbose=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HaltuneWarning)
        with (trial := s.ask()):
            lib.attempt(trial, lib.callback(trial), **params)
    end = len(s.trials[0].epochs)
    s = pausing_study(at=(*pauses, end), epochs=60, keep=1, metric=lib.monitor, verbose=0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for trial in s:
            with trial:
                lib.attempt(trial, lib.callback(trial), **params)
    said = [str(w.message) for w in told if "is not kept" in str(w.message)]
    assert (len(s.trials[0].epochs), s.trials[0].attempt, len(said)) == (end, 2 + len(pauses), of_best_round)
    if of_best_round:
        assert s.best.checkpoint is None
    else:
        assert loss(lib, lib.load(s.best.checkpoint)) == pytest.approx(s.best.value, rel=1e-5)


@pytest.mark.filterwarnings("ignore:.*keeps the model of its best round")
def test_a_pause_in_the_last_round_of_a_training_with_early_stopping_is_no_end_of_the_trial(gradient):
    s = pausing_study(at=(4,), epochs=8, metric=gradient.monitor, verbose=0)
    for trial in s:
        with trial:
            booster = trial.checkpoint
            while trial.epoch < 8 and not (trial.verdict is not None and trial.verdict.stops):
                ours = gradient.callback(trial)
                booster, _ = gradient.train(ours, *stopper(gradient, 50), rounds=4, start=booster)
    assert [(t.status, t.attempt, t.epoch) for t in s.trials] == [("completed", 2, 8)]


@pytest.mark.filterwarnings("ignore:.*its best round, but")
@pytest.mark.parametrize("first", [False, True])
def test_early_stopping_that_does_not_stop_chooses_its_round_as_without_haltune(gradient, first):
    def trained(*ours):
        callbacks = [*ours, *stopper(gradient, 50)]
        return gradient.train(*callbacks[:: -1 if first else 1], rounds=20, **overfit(gradient))

    (booster, log), (plain, values) = trained(gradient.callback(FakeTrial(gradient.monitor, max_epochs=20))), trained()
    assert (booster.best_iteration, log) == (plain.best_iteration, values)
    assert min(log["validation"][gradient.loss]) < log["validation"][gradient.loss][-1]
    ours = gradient.callback(FakeTrial(gradient.fold_loss, max_epochs=20))
    folds, without = (gradient.cv(*c, *stopper(gradient, 50), rounds=20) for c in ((ours,), ()))
    assert {name: list(values) for name, values in folds.items()} == {n: list(v) for n, v in without.items()}


@pytest.mark.filterwarnings("ignore:.*keeps the model of its best round")
@xgboost_alone
def test_a_pause_that_cannot_be_saved_leaves_the_best_round_of_early_stopping(lib, monkeypatch):
    def full(model, path):
        raise OSError(28, "No space left on device")

    plain, _ = lib.train(*stopper(lib, 50), rounds=20, **overfit(lib))
    monkeypatch.setattr(lib.package.Booster, "save_model", full)
    trial = pausing_study(at=(15,), epochs=20, metric=lib.monitor, verbose=0).ask()
    with trial, pytest.warns(HaltuneWarning, match="No space left"):
        booster, _ = lib.attempt(trial, lib.callback(trial), *stopper(lib, 50), **overfit(lib))
    assert booster.best_iteration == plain.best_iteration < 14


@pytest.mark.filterwarnings("ignore:.*keeps the model of its best round")
@xgboost_alone
def test_a_training_that_haltune_stops_has_the_best_round_of_early_stopping(lib):
    seen = []
    other = lib.package.callback.TrainingCallback()
    other.after_iteration = lambda model, epoch, log: bool(seen.append(epoch))
    for end in (1, 3):
        trial = FakeTrial(lib.monitor, max_epochs=9, verdicts={float(end): STOP})
        booster, _ = lib.train(other, *stopper(lib, 5, save_best=True), lib.callback(trial), rounds=9)
        assert (booster.best_iteration, booster.num_boosted_rounds()) == (end - 1, end)
    assert seen == [0, 0, 1, 2]


@pytest.mark.parametrize("name", ["xgboost", "lightgbm"])
def test_the_best_round_of_trees_that_later_rounds_change_is_kept_as_it_was(name):
    lib = BOOSTING[name]()
    s = pausing_study(at=(), epochs=30, keep=1, metric=Minimize(lib.monitor, of="best"), verbose=0)
    options = {"booster": "dart", "rate_drop": 0.3} if name == "xgboost" else {"boosting": "dart"}
    lib.search(s, **options, **overfit(lib))
    assert 1 < s.best.epoch == s.best.checkpoint_epoch < 30
    assert loss(lib, lib.load(s.best.checkpoint)) == pytest.approx(s.best.value, rel=1e-5)


@xgboost_alone
def test_a_booster_of_another_trial_is_not_continued(lib, tmp_path):
    keeping = lib.package.callback.TrainingCheckPoint(tmp_path, interval=1)
    s = pausing_study(at=(), epochs=3, trials=2, metric=lib.monitor, verbose=0)
    with pytest.raises(NotSupported, match="loaded a state of trial 0"):
        for trial in s:
            with trial:
                last = sorted(tmp_path.glob("*"))
                lib.train(lib.callback(trial), keeping, rounds=3, start=last[-1] if last else None)
    assert [t.status for t in s.trials] == ["completed", "interrupted"]


@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
@pytest.mark.parametrize("paused", [False, True])
@xgboost_alone
def test_a_booster_of_the_same_trial_of_another_study_is_not_continued(lib, paused, tmp_path):
    one = pausing_study(at=(2,) if paused else (), epochs=3, metric=lib.monitor, verbose=0)
    other = Study({"lr": Constant(1.0)}, Minimize(lib.monitor), max_epochs=6, budget="1 trial", verbose=0)
    keeping = lib.package.callback.TrainingCheckPoint(tmp_path, interval=1)
    with one.ask() as trial:
        lib.train(lib.callback(trial), keeping, rounds=3)
    last = one.trials[0].checkpoint if paused else sorted(tmp_path.glob("*"))[-1]
    with pytest.raises(NotSupported, match="a booster of trial 0 of another study"), other.ask() as trial:
        lib.train(lib.callback(trial), rounds=3, start=last)
    assert len(other.trials[0].values) == 0


def test_a_file_of_another_trial_is_not_continued(gradient):
    s = pausing_study(at=(), epochs=3, trials=2, keep=1, metric=gradient.monitor, verbose=0)
    with pytest.raises(NotSupported, match="loaded a state of trial 0"):
        for trial in s:
            with trial:
                start = s.best.checkpoint if s.best else None
                gradient.train(gradient.callback(trial), rounds=3, start=start)
    assert [t.status for t in s.trials] == ["completed", "interrupted"]


def continued(lib, callback, start):
    """A training that continues a model of the user's own: an object, or a file."""
    if lib.name == "catboost":
        model = lib.package.CatBoostClassifier(iterations=3, **lib.given)
        sets = (X[HELD_OUT], Y[HELD_OUT])
        return model.fit(X[TRAIN], Y[TRAIN], eval_set=sets, callbacks=[callback], init_model=start)
    return lib.train(callback, rounds=3, start=start)[0]


def test_a_second_phase_of_a_training_numbers_its_rounds_as_without_haltune(gradient):
    def phases(trial=None):
        seen, ours = [], lambda: [] if trial is None else [gradient.callback(trial)]
        first, _ = gradient.train(gradient.each_round(seen.append), *ours(), rounds=3)
        keeps, options = gradient.keeping()
        second, _ = gradient.train(gradient.each_round(seen.append), *ours(), keeps, rounds=3, start=first, **options)
        return seen, gradient.rounds(second), second.best_iteration

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HaltuneWarning)  # that they keep their best round, and end early
        with pausing_study(at=(), epochs=6, metric=gradient.monitor, verbose=0).ask() as trial:
            found = phases(trial)
    assert found == phases()


@pytest.mark.parametrize("in_file", [False, True])
def test_a_model_that_the_program_kept_of_another_trial_is_not_continued(lib, in_file):
    s = pausing_study(at=(), epochs=3, trials=2, metric=lib.monitor, verbose=0)
    kept = None
    with pytest.raises(NotSupported, match=r"trial 1 loaded a state of trial 0"):
        for trial in s:
            trial.__enter__()
            kept = continued(lib, lib.callback(trial), kept)
            if in_file:
                kept.save_model("kept")
                kept = "kept"
            trial.finish()
    assert [t.epoch for t in s.trials] == [3, 0]


def test_a_checkpoint_that_is_continued_again_after_an_error_counts_from_its_own_round(gradient):
    def fails(number):
        if number == 5:
            raise MemoryError

    s = pausing_study(at=(2,), epochs=6, metric=gradient.monitor, verbose=0)
    for trial in s:
        with trial:
            if (start := trial.checkpoint) is not None:
                with pytest.raises(MemoryError):
                    gradient.train(gradient.callback(trial), gradient.each_round(fails), rounds=4, start=start)
                assert trial.epoch == 4
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                booster, _ = gradient.train(gradient.callback(trial), rounds=6 if start is None else 4, start=start)
    whole, log = gradient.train(rounds=6)
    assert gradient.rounds(booster) == 6
    np.testing.assert_array_equal(gradient.scores(booster), gradient.scores(whole))
    assert s.trials[0].values.tolist() == log["validation"][gradient.loss]


@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
@pytest.mark.parametrize("saved", [1, 4])
@xgboost_alone
def test_a_file_that_the_program_saved_in_another_round_than_haltune_counts_with_its_own_rounds(lib, saved, tmp_path):
    def saves_and_fails(_, model, epoch, log):
        if model.num_boosted_rounds() == saved:
            model.save_model(own)
        if model.num_boosted_rounds() == saved + 1:
            raise MemoryError
        return False

    own = tmp_path / "own.ubj"
    killed = type("Killed", (lib.package.callback.TrainingCallback,), {"after_iteration": saves_and_fails})
    s = pausing_study(at=(2,) if saved > 2 else (), epochs=6, metric=lib.monitor, verbose=0)
    if saved > 2:
        with s.ask() as trial:
            lib.train(lib.callback(trial), rounds=6)
    trial = s.ask()
    with pytest.raises(MemoryError):
        lib.train(lib.callback(trial), killed(), rounds=6, start=trial.checkpoint)
    trial.interrupt()
    with s.ask() as trial:
        booster, _ = lib.train(lib.callback(trial), rounds=6 - saved, start=own)
    assert lib.rounds(booster) == s.trials[0].epoch == 6
    assert s.trials[0].values.tolist() == lib.train(rounds=6)[1]["validation"][lib.loss]


@pytest.mark.parametrize("made", [int, lambda: 0])
@xgboost_alone
def test_a_dict_that_makes_its_missing_values_by_a_function_is_not_paused_if_training_makes_it(lib, made):
    class Tallies(lib.package.callback.TrainingCallback):
        def after_iteration(self, model, epoch, log):
            if not hasattr(self, "seen"):
                self.seen = defaultdict(made)
            self.seen[epoch % 2] += 1
            found.append(dict(self.seen))
            return False

    found = []
    s = pausing_study(at=(3,), epochs=5, metric=lib.monitor, verbose=0)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", HaltuneWarning)
        for trial in s:
            with trial:
                lib.attempt(trial, Tallies(), lib.callback(trial))
    assert (s.trials[0].attempt, found[-1]) == (2 if made is int else 1, {0: 3, 1: 2})
    said = [str(w.message) for w in warned if "Tallies.seen is made in training, with a function" in str(w.message)]
    assert len(said) == (made is not int)


def test_a_model_of_no_trial_is_continued_in_each(lib):
    base = lib.train(rounds=2)[0]
    s = pausing_study(at=(), epochs=3, trials=2, metric=lib.monitor, verbose=0)
    for trial in s:
        with trial:
            assert lib.rounds(continued(lib, lib.callback(trial), base)) == 5
    assert [(t.status, t.epoch) for t in s.trials] == [("completed", 3)] * 2


def test_a_fit_after_a_stop_ends_at_once(lib):
    trial = FakeTrial(max_epochs=9, epoch=2.0)
    trial.ended, trial.verdict = "stopped", STOP
    with warnings.catch_warnings():
        warnings.simplefilter("error", HaltuneWarning)  # it may be the next phase of a training that pauses
        model, _ = lib.train(lib.told(trial), rounds=9)
    assert lib.rounds(model) <= 1


# names of metrics


def test_a_metric_of_several_data_sets_must_be_named_with_its_data_set(gradient):
    trial = FakeTrial(gradient.loss)
    _, log = gradient.train(gradient.callback(trial), evals=["validation"], rounds=3)
    assert trial.values == log["validation"][gradient.loss]
    names = f"2 data sets. Name one, train-{gradient.loss} or validation-{gradient.loss}"
    with pytest.raises(InvalidInput, match=names):
        gradient.train(gradient.callback(FakeTrial(gradient.loss)))


def test_a_metric_that_is_not_measured_says_what_to_give(gradient):
    with pytest.raises(InvalidInput, match=rf"mean '{gradient.fold_loss}-mean'"):
        gradient.cv(gradient.callback(FakeTrial(), f"{gradient.fold_loss[:-1]}-mean"))
    with pytest.raises(InvalidInput, match=gradient.nothing_to_measure):
        gradient.train(gradient.callback(FakeTrial(gradient.loss)), evals=[])


# boosters that are continued


@xgboost_alone
def test_a_continued_booster_counts_on_although_xgboost_counts_from_0(lib):
    trial = FakeTrial(max_epochs=5)
    callback = lib.told(trial)
    booster, _ = lib.train(callback, rounds=2)
    lib.train(callback, rounds=3, start=booster)
    assert (trial.epochs, trial.endings) == ([1, 2, 3, 4, 5], [None])


# cross-validation


def test_cross_validation_reports_the_mean_over_the_folds(gradient):
    trial, again = FakeTrial(max_epochs=4), FakeTrial(max_epochs=4)
    table = gradient.cv(gradient.callback(trial, gradient.fold_loss), rounds=4)
    assert trial.values == table[gradient.fold_column]
    (deviations,) = (v for k, v in table.items() if gradient.loss in k and "std" in k and "train" not in k)
    assert [r["metrics"][f"{gradient.fold_loss}-std"] for r in trial.reports] == deviations
    gradient.cv(gradient.callback(again, f"{gradient.fold_loss}-mean"), rounds=4)
    assert again.values == trial.values


def test_a_stop_of_a_cross_validation_keeps_the_rounds_trained(gradient):
    trial = FakeTrial(max_epochs=9, verdicts={3.0: STOP})
    table = gradient.cv(gradient.callback(trial, gradient.fold_loss), rounds=9)
    assert table[gradient.fold_column] == trial.values
    assert (trial.epochs, trial.endings) == ([1, 2, 3], [None])


@pytest.mark.parametrize("options", [{}, {"every": 4}])
def test_a_cross_validation_with_early_stopping_counts_all_its_rounds_or_the_best_one(gradient, options):
    if options and gradient.name == "xgboost":
        pytest.skip("it reports each round")
    trained = []
    for of in ("last", "best"):
        study, rounds = pausing_study(at=(), epochs=60, metric=Minimize(gradient.fold_loss, of=of), verbose=0), []
        with warnings.catch_warnings(record=True) as told, study.ask() as trial:
            warnings.simplefilter("always")
            ours, counter = gradient.callback(trial, **options), gradient.each_round(rounds.append)
            table = gradient.cv(ours, counter, *stopper(gradient, 2), rounds=60)
        best, advised = table[gradient.fold_column], [str(w.message) for w in told]
        trained.append(study.trials[0].epoch)
        assert len(best) < len(rounds) == trained[-1] < 60
        if of == "last":
            assert len(advised) == 1
            assert "b.cv after its best round, but a trial of this study counts with its last round" in advised[0]
        else:
            assert advised == []
            assert study.best.value == best[-1] or gradient.name == "lightgbm"  # which stops by the other metric
    assert trained[0] == trained[1]


@lightgbm_alone
@pytest.mark.filterwarnings("ignore:Trial 0 ended after epoch 4:haltune.errors.HaltuneWarning")
def test_a_callback_of_two_cross_validations_reports_the_second_as_it_would_alone(lib):
    study = pausing_study(at=(), epochs=9, metric=lib.fold_loss, verbose=0)
    with pytest.warns(HaltuneWarning, match="trains again from its start"), study.ask() as trial:
        callback = lib.callback(trial, every=4)
        tables = [lib.cv(callback, rounds=4, seed=seed) for seed in range(2)]
    assert study.trials[0].values.tolist() == tables[1][lib.fold_column][3:]
    assert tables[0] != tables[1]


def test_a_cross_validation_cannot_pause_says_so_and_trains_on(gradient):
    trial = FakeTrial(max_epochs=4, verdicts={2.0: PAUSE})
    with pytest.warns(HaltuneWarning, match=r"b\.cv takes no boosters.*keeps training"):
        table = gradient.cv(gradient.callback(trial, gradient.fold_loss), rounds=4)
    assert (trial.epochs, len(table[gradient.fold_column]), trial.declined) == ([1, 2, 3, 4], 4, 1)
    assert all(r["judge"] for r in trial.reports)


# estimators in scikit-learn's manner


def estimator(lib, trial, *callbacks, checkpoint=None):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    rounds, held_out = trial.max_epochs - int(trial.epoch), [(X[HELD_OUT], Y[HELD_OUT])]
    if lib.name == "xgboost":
        model = lib.package.XGBClassifier(n_estimators=rounds, eval_metric="logloss", n_jobs=1, callbacks=callbacks)
        return model.fit(X[TRAIN], Y[TRAIN], eval_set=held_out, verbose=False, xgb_model=checkpoint)
    model = lib.package.LGBMClassifier(n_estimators=rounds, num_leaves=5, n_jobs=1, verbose=-1)
    options = {"eval_metric": "binary_logloss", "callbacks": list(callbacks), "init_model": checkpoint}
    return model.fit(X[TRAIN], Y[TRAIN], eval_set=held_out, **options)


def test_an_estimator_in_scikit_learns_manner_reports_stops_and_resumes_exactly(gradient):
    name = f"{'validation_0' if gradient.name == 'xgboost' else 'valid_0'}-{gradient.loss}"
    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    estimator(gradient, trial, gradient.callback(trial, name))
    assert trial.epochs == [1, 2]
    for trial in pausing_study(at=(2,), epochs=6):
        with trial:
            model = estimator(gradient, trial, gradient.callback(trial, name), checkpoint=trial.checkpoint)
    straight = estimator(gradient, FakeTrial(max_epochs=6))
    np.testing.assert_array_equal(model.predict_proba(X), straight.predict_proba(X))


def test_an_estimator_that_does_not_continue_is_told_of_the_arguments_of_its_own_fit(gradient):
    name = f"{'validation_0' if gradient.name == 'xgboost' else 'valid_0'}-{gradient.loss}"
    study = pausing_study(at=(2,), epochs=4, metric=name, verbose=0)
    with study.ask() as trial:
        estimator(gradient, trial, gradient.callback(trial))
    with pytest.warns(HaltuneWarning, match=rf"rounds, and give .*train or fit {gradient.hint}"), study.ask() as trial:
        estimator(gradient, trial, gradient.callback(trial))


# LightGBM's own


@lightgbm_alone
def test_rounds_may_be_reported_now_and_then_and_the_last_is(lib):
    trial = FakeTrial(max_epochs=8, verdicts={6.0: STOP})
    booster, log = lib.train(lib.told(trial, every=3), rounds=8)
    assert (trial.epochs, booster.num_trees(), booster.best_iteration) == ([3, 6], 6, 6)
    assert trial.values == log["validation"]["binary_logloss"][2::3]
    trial = FakeTrial(max_epochs=8)
    lib.train(lib.told(trial, every=3), rounds=8)
    assert trial.epochs == [3, 6, 8]
    with pytest.raises(InvalidInput, match="every=0 is not a number of rounds"):
        lib.told(trial, every=0)


@lightgbm_alone
def test_a_random_forest_is_not_paused_and_says_so(lib):
    trial = FakeTrial(max_epochs=4, verdicts={2.0: PAUSE})
    forest = {"boosting": "rf", "bagging_fraction": 0.5, "bagging_freq": 1}
    with pytest.warns(HaltuneWarning, match=r"a random forest.*cannot be continued.*keeps training"):
        booster, _ = lib.train(lib.told(trial), rounds=4, **forest)
    assert (trial.epochs, booster.num_trees(), trial.declined) == ([1, 2, 3, 4], 4, 1)
    with pytest.raises(lib.package.basic.LightGBMError):  # which is why
        lib.train(start=booster, **forest)


@lightgbm_alone
def test_a_fold_that_cannot_be_paused_is_named_because_its_trial_may_pause_between_folds(lib):
    s = pausing_study(at=(0.5, 2), epochs=4, verbose=0, metric=lib.monitor)
    with pytest.warns(HaltuneWarning, match="^A fold cannot be paused, because a random forest"):
        for trial in s:
            with trial:
                for fold in trial.folds(2):
                    lib.train(lib.callback(fold), rounds=4, boosting="rf", bagging_fraction=0.5, bagging_freq=1)
    assert (s.trials[0].attempt, s.trials[0].epoch) == (2, 4)


@pytest.mark.parametrize("subsets", [False, True])
@lightgbm_alone
def test_a_trial_on_the_data_set_of_another_one_is_not_paused_because_it_could_not_resume(lib, subsets):
    def data():
        return shared.subset(np.arange(len(X[TRAIN]))) if subsets else shared

    shared = lib.package.Dataset(X[TRAIN], Y[TRAIN])
    for trial in pausing_study(at=(), trials=2, metric=lib.monitor, verbose=0):
        with trial:
            lib.train(lib.callback(trial), rounds=4, data=data() if trial.id else None)
    s = pausing_study(at=(2,), metric=lib.monitor, verbose=0)
    with pytest.warns(HaltuneWarning, match="cannot be paused, because LightGBM continues no booster on a Dataset"):
        for trial in s:
            with trial:
                lib.train(lib.callback(trial), rounds=4, data=data())
    assert [(t.status, t.attempt, t.epoch) for t in s.trials] == [("completed", 1, 4)]


@lightgbm_alone
def test_a_data_set_with_initial_scores_is_not_paused(lib):
    def trained(*callbacks):
        data = lib.package.Dataset(X[TRAIN], Y[TRAIN], init_score=X[TRAIN, 0])
        return lib.train(*callbacks, data=data, rounds=6)

    s = pausing_study(at=(3,), epochs=6, metric=lib.monitor, verbose=0)
    for trial in s:
        with trial, pytest.warns(HaltuneWarning, match=r"LightGBM forgets the init_score.*keeps training"):
            trained(lib.callback(trial))
    assert [(t.attempt, t.epoch) for t in s.trials] == [(1, 6)]
    assert list(s.trials[0].values) == trained()[1]["validation"][lib.loss]


@lightgbm_alone
def test_a_data_set_that_was_continued_is_refused_for_a_training_from_the_start(lib):
    data = lib.package.Dataset(X[TRAIN], Y[TRAIN], free_raw_data=False)
    plain, _ = lib.train(data=data)
    continued, _ = lib.train(lib.told(FakeTrial(epoch=5.0, max_epochs=10)), data=data, start=plain)
    np.testing.assert_array_equal(lib.scores(continued), lib.scores(lib.train(rounds=10)[0]))
    wrong, _ = lib.train(data=data)
    assert not np.array_equal(lib.scores(wrong), lib.scores(plain))  # LightGBM itself says nothing
    with pytest.raises(InvalidInput, match=r"Make a Dataset for each trial, within the loop"):
        lib.train(lib.told(FakeTrial()), data=data)


# CatBoost's own: it evaluates now and then, pauses by its snapshot, and lets no error of others out of fit


@catboost_alone
@pytest.mark.parametrize("at", [5, 9])  # CatBoost evaluates the round after the latter
def test_rounds_that_catboost_does_not_evaluate_are_not_reported(lib, at):
    s = pausing_study(at=(at,), epochs=10, metric=lib.monitor, verbose=0)
    model = lib.search(s, metric_period=4)
    assert s.trials[0].epochs.tolist() == [1, 5, 9, 10]
    np.testing.assert_array_equal(lib.scores(model), lib.scores(lib.train(rounds=10)[0]))


@catboost_alone
def test_a_mistake_is_raised_as_the_trial_ends(lib):
    def told(*callbacks, **options):
        assert lib.rounds(lib.train(*callbacks, **options)[0]) == 1
        with pytest.raises(InvalidInput) as caught:
            callbacks[0].trial.last_act()
        assert callbacks[0].trial.endings == [caught.value]
        return str(caught.value)

    assert "'Logloss' was logged for 3 data sets" in told(lib.callback(FakeTrial("Logloss")), sets=2)
    said = told(lib.callback(FakeTrial("validation-logloss")))
    assert "Logged names: learn-Accuracy, learn-Logloss, validation-Accuracy" in said
    assert "If you mean 'validation-Logloss'" in said
    assert "Give fit eval_set=(x, y)" in told(lib.callback(FakeTrial("AUC")), sets=0)
    assert "holds two HaltuneCallbacks" in told(*(lib.told(FakeTrial()) for _ in range(2)))


@pytest.mark.parametrize("lib", ["lightgbm"], indirect=True)
def test_lightgbms_error_about_a_class_in_place_of_a_callback_gets_a_note(lib):
    with pytest.raises(AttributeError) as caught, pausing_study(metric=lib.monitor).ask():
        lib.train(lib.callback)
    assert "haltune: a class stands in callbacks=[...]. Write an instance" in caught.value.__notes__[0]


@lightgbm_alone
def test_lightgbms_error_about_a_data_set_on_which_it_has_trained_gets_a_note(lib):
    data = lib.package.Dataset(X[TRAIN], Y[TRAIN])
    booster, _ = lib.train(rounds=2, data=data)
    with pytest.raises(lib.package.basic.LightGBMError) as caught, pausing_study(metric=lib.monitor).ask() as trial:
        lib.train(lib.callback(trial), start=booster, data=data)
    assert "haltune: LightGBM cannot continue a booster on a Dataset" in caught.value.__notes__[0]


@catboost_alone
@pytest.mark.parametrize(("rounds", "said"), [(2, r"continues a snapshot of 2 rounds, of another"), (4, "in no round")])
def test_a_snapshot_that_trials_share_is_refused(lib, rounds, said):
    s = pausing_study(at=(), epochs=4, trials=2, metric=lib.monitor, verbose=0)
    shared = {"save_snapshot": True, "snapshot_file": "shared", "snapshot_interval": 0}
    lib.train(rounds=rounds, snapshot=shared)
    with pytest.raises(NotSupported, match=rf"{said}.*callback\.snapshot.*train_dir"):
        for trial in s:
            with trial:
                lib.train(lib.callback(trial), rounds=4, snapshot=shared)
    assert [(t.status, t.epoch) for t in s.trials] == [("interrupted", 0)]


@catboost_alone
def test_the_overfitting_detector_remembers_what_was_before_a_pause(lib):
    detects = {"early_stopping_rounds": 5, "learning_rate": 1.0, "eval_metric": "Logloss", "use_best_model": True}
    straight, log = lib.train(rounds=60, **detects)
    rounds = len(log["validation"]["Logloss"])
    assert straight.tree_count_ < rounds - 1 < 60
    goal = Minimize(lib.monitor, of="best")
    s = pausing_study(at=(rounds - 2,), epochs=60, metric=goal, verbose=0, keep=1)
    model = lib.search(s, **detects)
    assert (len(s.trials[0].epochs), model.tree_count_) == (rounds, straight.tree_count_)
    np.testing.assert_array_equal(lib.scores(lib.load(s.best.checkpoint)), lib.scores(straight))


def test_a_trial_that_has_failed_after_its_training_is_held_by_nothing(lib):
    def failed():
        with pytest.raises(ValueError, match="a bug"), (trial := s.ask()):
            lib.train(callback := lib.callback(trial), rounds=2)
            gone = weakref.ref(callback)
            raise ValueError("a bug")
        return gone

    s = pausing_study(at=(), epochs=4, metric=lib.monitor, verbose=0)
    gone = failed()
    gc.collect()
    assert [t.status for t in s.trials] == ["failed"]
    assert gone() is None


@catboost_alone
def test_trees_that_catboost_cannot_cut_are_kept_whole(lib):
    s = pausing_study(at=(3,), epochs=6, metric=lib.monitor, verbose=0, keep=1)
    model = lib.search(s, grow_policy="Lossguide", max_leaves=4)
    assert s.best.checkpoint_epoch == 6
    np.testing.assert_array_equal(lib.scores(lib.load(s.best.checkpoint)), lib.scores(model))


@catboost_alone
def test_a_best_round_whose_leaves_later_rounds_have_shrunk_is_not_kept(lib):
    s = pausing_study(at=(), epochs=30, metric=Minimize(lib.monitor, of="best"), verbose=0, keep=1)
    with pytest.warns(HaltuneWarning, match="later rounds have shrunk the leaves of round"):
        lib.search(s, **overfit(lib) | {"model_shrink_rate": 0.05})
    assert (s.best.epoch < 30, s.best.checkpoint) == (True, None)


@pytest.mark.parametrize("method", ["Exact", "Gradient"])
@catboost_alone
def test_ordered_boosting_with_exact_leaves_is_not_paused_and_with_others_is(lib, method):
    from catboost import CatBoostRegressor

    s = pausing_study(at=(2,), epochs=5, metric="validation-MAE", verbose=0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for trial in s:
            with trial:
                ours = lib.callback(trial)
                given = {"leaf_estimation_method": method} if method == "Gradient" else {}  # the default of this loss
                model = CatBoostRegressor(iterations=5, loss_function="MAE", boosting_type="Ordered", verbose=False,
                                          use_best_model=False, **given)  # fmt: skip
                model.fit(X[TRAIN], X[TRAIN, 0], eval_set=(X[HELD_OUT], X[HELD_OUT, 0]), callbacks=[ours],
                          **ours.snapshot)  # fmt: skip
    assert s.trials[0].attempt == (1 if method == "Exact" else 2)
    refused = ["cannot be paused, because CatBoost does not continue exact leaves" in str(w.message) for w in told]
    assert any(refused) == (method == "Exact")


@catboost_alone
def test_without_its_snapshot_a_catboost_training_is_not_paused_and_it_says_what_to_write(lib):
    trial = FakeTrial(max_epochs=4, verdicts={2.0: PAUSE})
    with pytest.warns(HaltuneWarning, match=r"\*\*callback\.snapshot.*keeps training"):
        model, _ = lib.train(lib.told(trial), rounds=4)
    assert (trial.epochs, model.tree_count_, trial.declined) == ([1, 2, 3, 4], 4, 1)


@pytest.mark.parametrize(("saves", "ends"), [(True, "the next save"), (False, "this round, without a save")])
@catboost_alone
def test_a_signal_says_whether_catboost_saves_before_it_ends(lib, saves, ends, caplog):
    study = pausing_study(at=(), trials=1, epochs=4, verbose=0)

    def train():
        trial = study.ask()
        with trial:
            callback = lib.callback(trial, lib.monitor)
            interrupts = lib.each_round(lambda number: number == 3 and os.kill(os.getpid(), signal.SIGINT))
            lib.train(interrupts, callback, rounds=4, snapshot=callback.snapshot if saves else None)

    with warnings.catch_warnings(), pytest.raises(KeyboardInterrupt):
        warnings.simplefilter("ignore")
        train()
    assert f"Ctrl-C received: training ends after {ends}; a second signal ends it at once" in caplog.messages
    assert (study.trials[0].epoch, study.trials[0].checkpoint is not None) == (2, saves)


@pytest.mark.parametrize(("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_a_signal_in_catboosts_first_round_is_not_taken_for_an_error_of_its_training(number, raised):
    catboost = pytest.importorskip("catboost")
    from haltune.callbacks.catboost import HaltuneCallback

    class Sends:
        def after_iteration(self, info):
            if info.iteration == 1 and trial.id == 1:
                os.kill(os.getpid(), number)
            return True

    goal = Minimize("learn-RMSE", of="best")
    study = Study({"depth": Int(1, 4)}, goal, max_epochs=2, policy=RandomSearch(trials=3), verbose=0)
    rows = np.random.default_rng(0).random((20, 2))
    with pytest.raises(raised):
        for trial in study:
            with trial:
                model = catboost.CatBoostRegressor(
                    iterations=2, verbose=False, allow_writing_files=False, thread_count=1, **trial.config
                )
                model.fit(rows, rows.sum(1), callbacks=[Sends(), HaltuneCallback(trial)])
    assert [t.status.value for t in study.trials] == ["completed", "interrupted"]
