"""HaltuneCallback in real XGBoost trainings: xgb.train, xgb.cv and XGBClassifier."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
from callback_fakes import OUTAGE, PAUSE, STOP, FakeTrial
from callback_studies import study
from paused_studies import pausing_study

xgb = pytest.importorskip("xgboost", reason="XGBoost is not installed")

from haltune.callbacks.xgboost import HaltuneCallback  # noqa: E402
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4)).astype("float32")
Y = (X[:, 0] + X[:, 1] ** 2 + 0.5 * RNG.normal(size=120) > 0.8).astype("float32")
DATA, HELD_OUT = xgb.DMatrix(X[:80], Y[:80]), xgb.DMatrix(X[80:], Y[80:])
PARAMS = {"objective": "binary:logistic", "eval_metric": ["error", "logloss"], "nthread": 1, "max_depth": 3}
EVALS = [(DATA, "train"), (HELD_OUT, "validation")]
MONITOR = "validation-logloss"


def train(*callbacks, rounds=5, evals=EVALS, params=PARAMS, **options):
    """The booster and its history."""
    log = {}
    booster = xgb.train(
        params,
        DATA,
        rounds,
        evals=evals,
        callbacks=list(callbacks),
        evals_result=log,
        verbose_eval=False,
        **options,
    )
    return booster, log


def cv(*callbacks, rounds=5, **options):
    """The table of xgb.cv: columns test-logloss-mean and so on."""
    return xgb.cv(PARAMS, DATA, rounds, nfold=3, callbacks=list(callbacks), as_pandas=False, **options)


def margins(booster):
    return booster.predict(HELD_OUT, output_margin=True)


def test_every_round_is_an_epoch_and_every_metric_is_recorded():
    trial = FakeTrial(max_epochs=5)
    _, log = train(HaltuneCallback(trial, MONITOR))
    assert trial.epochs == [1, 2, 3, 4, 5]
    assert trial.values == log["validation"]["logloss"]
    assert trial.endings == [None]
    recorded = [r["metrics"] for r in trial.reports]
    for data, column in log.items():
        for metric, values in column.items():
            assert [m.pop(f"{data}-{metric}") for m in recorded] == values
    assert recorded == [{}] * 5


def test_two_callbacks_in_one_training_are_an_error_and_one_after_the_other_are_not():
    both = HaltuneCallback(FakeTrial(), MONITOR), HaltuneCallback(FakeTrial(), MONITOR)
    with pytest.raises(InvalidInput, match=r"holds two HaltuneCallbacks.*delete the other line"):
        train(*both)
    with pytest.raises(InvalidInput, match="holds two HaltuneCallbacks"):
        cv(*both)
    booster, _ = train(HaltuneCallback(FakeTrial(), MONITOR), rounds=1)
    train(HaltuneCallback(FakeTrial(), MONITOR), rounds=1, xgb_model=booster)


def test_only_the_monitored_metric_is_recorded_on_request():
    trial = FakeTrial(max_epochs=2)
    train(HaltuneCallback(trial, MONITOR, record="monitor"), rounds=2)
    assert [r["metrics"] for r in trial.reports] == [{}, {}]


def test_the_goals_metric_alone_is_enough_where_one_data_set_has_it():
    trial = FakeTrial("logloss")
    _, log = train(HaltuneCallback(trial), evals=EVALS[1:], rounds=3)
    assert trial.values == log["validation"]["logloss"]


def test_a_metric_of_several_data_sets_must_be_named_with_its_data_set():
    with pytest.raises(InvalidInput, match=r"2 data sets: name one, train-logloss or validation-logloss"):
        train(HaltuneCallback(FakeTrial("logloss")))


def test_a_misspelt_metric_lists_what_was_logged_and_the_nearest_name():
    with pytest.raises(InvalidInput, match=r"train-logloss, validation-error.*mean 'validation-logloss'\?"):
        train(HaltuneCallback(FakeTrial(), "validation-loglos"))
    with pytest.raises(InvalidInput, match=r"mean 'test-logloss-mean'\?"):
        cv(HaltuneCallback(FakeTrial(), "test-loglos-mean"))


def test_a_training_without_evals_says_what_to_give():
    with pytest.raises(InvalidInput, match=r"Nothing was logged at all\. Give xgb\.train evals="):
        train(HaltuneCallback(FakeTrial("logloss")), evals=[])


def test_a_stop_ends_the_training_after_its_round():
    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    booster, _ = train(HaltuneCallback(trial, MONITOR), rounds=9)
    assert (trial.epochs, booster.num_boosted_rounds(), trial.endings) == ([1, 2], 2, [None])


def test_a_training_begun_after_the_stop_trains_nothing():
    callback = HaltuneCallback(FakeTrial(max_epochs=9, verdicts={2.0: STOP}), MONITOR)
    booster, _ = train(callback, rounds=9)
    booster, _ = train(callback, rounds=9, xgb_model=booster)
    assert booster.num_boosted_rounds() == 2


def test_rounds_beyond_the_horizon_are_not_trained():
    trial = FakeTrial(max_epochs=3)
    booster, _ = train(HaltuneCallback(trial, MONITOR), rounds=9)
    assert (trial.epochs, booster.num_boosted_rounds()) == ([1, 2, 3], 3)


@pytest.mark.parametrize("stops", [False, True])
def test_the_booster_is_the_same_with_and_without_the_callback(stops):
    trial = FakeTrial(max_epochs=5, verdicts={2.0: STOP} if stops else {})
    drawing = PARAMS | {"subsample": 0.5, "colsample_bynode": 0.5}
    told, _ = train(HaltuneCallback(trial, MONITOR), params=drawing)
    plain, _ = train(params=drawing, rounds=2 if stops else 5)
    assert told.save_raw() == plain.save_raw()


def test_a_continued_booster_counts_on_although_xgboost_counts_from_0():
    trial = FakeTrial(max_epochs=5)
    callback = HaltuneCallback(trial, MONITOR)
    booster, _ = train(callback, rounds=2)
    train(callback, rounds=3, xgb_model=booster)
    assert (trial.epochs, trial.endings) == ([1, 2, 3, 4, 5], [None])


def test_a_booster_trained_before_the_trial_does_not_count():
    trial = FakeTrial(max_epochs=3)
    train(HaltuneCallback(trial, MONITOR), rounds=3, xgb_model=train(rounds=4)[0])
    assert trial.epochs == [1, 2, 3]


def test_a_training_begun_again_is_ignored_with_a_warning_that_names_xgb_model():
    trial = FakeTrial(max_epochs=3, epoch=2.0)
    with pytest.warns(HaltuneWarning, match="xgb_model=trial.checkpoint"):
        train(HaltuneCallback(trial, MONITOR), rounds=3)
    assert trial.epochs == [3]


def test_early_stopping_of_the_users_own_is_kept():
    trial = FakeTrial(max_epochs=50)
    booster, _ = train(HaltuneCallback(trial, MONITOR), rounds=50, early_stopping_rounds=2)
    rounds = booster.num_boosted_rounds()
    assert rounds < 50
    assert trial.epochs == list(range(1, rounds + 1))
    assert trial.endings == []  # another training may follow; `with trial` ends it


def test_cross_validation_reports_the_mean_over_the_folds():
    trial = FakeTrial(max_epochs=4)
    table = cv(HaltuneCallback(trial, "test-logloss"), rounds=4)
    assert trial.values == table["test-logloss-mean"]
    assert [r["metrics"]["test-logloss-std"] for r in trial.reports] == table["test-logloss-std"]
    again = FakeTrial(max_epochs=4)
    cv(HaltuneCallback(again, "test-logloss-mean"), rounds=4)
    assert again.values == trial.values


def test_xgb_cv_crashes_on_a_plain_true_which_is_why_the_callback_sets_best_iteration():
    class Stops(xgb.callback.TrainingCallback):
        def after_iteration(self, model, epoch, evals_log):
            return True

    with pytest.raises(TypeError):
        cv(Stops())


def test_a_stop_of_a_cross_validation_keeps_the_rounds_trained():
    trial = FakeTrial(max_epochs=9, verdicts={3.0: STOP})
    table = cv(HaltuneCallback(trial, "test-logloss"), rounds=9)
    assert table["test-logloss-mean"] == trial.values
    assert (trial.epochs, trial.endings) == ([1, 2, 3], [None])


def test_a_stop_of_a_cross_validation_leaves_early_stoppings_best_round():
    trial = FakeTrial(max_epochs=60, verdicts={40.0: STOP})
    table = cv(HaltuneCallback(trial, "test-logloss"), rounds=60, early_stopping_rounds=39)
    best = int(np.argmin(trial.values[:39]))
    assert best < 39
    assert table["test-logloss-mean"] == trial.values[: best + 1]


def test_a_cross_validation_cannot_pause_says_so_and_trains_on():
    trial = FakeTrial(max_epochs=4, verdicts={2.0: PAUSE})
    with pytest.warns(HaltuneWarning, match=r"xgb\.cv takes no boosters.*trains on"):
        table = cv(HaltuneCallback(trial, "test-logloss"), rounds=4)
    assert (trial.epochs, len(table["test-logloss-mean"]), trial.declined) == ([1, 2, 3, 4], 4, 1)
    assert all(r["judge"] for r in trial.reports)


def test_an_estimator_in_scikit_learns_manner_reports_too():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    options = {"n_estimators": 9, "eval_metric": "logloss", "n_jobs": 1}
    model = xgb.XGBClassifier(callbacks=[HaltuneCallback(trial, "validation_0-logloss")], **options)
    model.fit(X[:80], Y[:80], eval_set=[(X[80:], Y[80:])], verbose=False)
    assert trial.values == model.evals_result()["validation_0"]["logloss"]
    assert len(trial.values) == 2


# pausing


def search(s, *others, params=lambda trial: PARAMS, monitor=MONITOR):
    """Train every trial of a study as the docstring says; the last booster."""
    for trial in s:
        with trial:
            callbacks = [HaltuneCallback(trial, monitor), *others]
            left = trial.max_epochs - trial.epoch
            booster, _ = train(*callbacks, rounds=left, params=params(trial), xgb_model=trial.checkpoint)
    return booster


EXACT = {
    "hist": {},
    "exact": {"tree_method": "exact"},
    "approx": {"tree_method": "approx"},
    "by leaves": {"grow_policy": "lossguide", "max_leaves": 4},
    "linear": {"booster": "gblinear"},
    "dart that drops nothing": {"booster": "dart"},
    "several classes": {"objective": "multi:softprob", "num_class": 2, "eval_metric": "mlogloss"},
    "adaptive leaves": {"objective": "reg:absoluteerror"},
    "several trees a round": {"num_parallel_tree": 2},
    "constraints": {"monotone_constraints": "(1,0,0,0)", "gamma": 0.1, "reg_alpha": 0.1},
}


@pytest.mark.parametrize("params", EXACT.values(), ids=EXACT)
def test_a_resumed_training_equals_an_uninterrupted_one_digit_for_digit(params, tmp_path):
    params = PARAMS | params
    if params.get("booster") == "gblinear":
        del params["max_depth"]
    metric = "mlogloss" if "num_class" in params else "logloss"
    s = pausing_study(f"{tmp_path}/s.db", at=(2, 5), epochs=7)
    booster = search(s, params=lambda trial: params, monitor=f"validation-{metric}")
    straight, log = train(rounds=7, params=params)
    np.testing.assert_array_equal(margins(booster), margins(straight))
    assert booster.save_raw() == straight.save_raw()
    assert s.trials[0].attempt == 3
    assert s.trials[0].epochs.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert s.trials[0].values.tolist() == log["validation"][metric]


@pytest.mark.parametrize("each_round", [False, True])
def test_what_is_drawn_at_random_starts_again_in_a_resumed_training(each_round):
    params = PARAMS | {"subsample": 0.5, "seed_per_iteration": each_round}
    straight, _ = train(rounds=4, params=params)
    resumed = search(pausing_study(epochs=4), params=lambda trial: params)
    elsewhere = search(pausing_study(epochs=4), params=lambda trial: params | {"seed": trial.attempt})
    assert not np.array_equal(margins(resumed), margins(straight))
    assert not np.array_equal(margins(resumed), margins(elsewhere))


def test_a_schedule_goes_on_as_the_docstring_says():
    def rate(round):
        return 0.5 / (1 + round)

    straight, _ = train(xgb.callback.LearningRateScheduler(rate), params=PARAMS | {"eta": 0.7}, rounds=5)
    for trial in pausing_study(epochs=5):
        with trial:
            schedule = xgb.callback.LearningRateScheduler(lambda i, start=trial.epoch: rate(i + start))
            booster, _ = train(
                HaltuneCallback(trial, MONITOR),
                schedule,
                params=PARAMS | {"eta": rate(trial.epoch - 1) if trial.epoch else 0.7},
                rounds=trial.max_epochs - trial.epoch,
                xgb_model=trial.checkpoint,
            )
    np.testing.assert_array_equal(margins(booster), margins(straight))


def test_a_pause_that_cannot_be_saved_trains_on_with_one_warning():
    trial = FakeTrial(max_epochs=4, verdicts={1.0: PAUSE, 3.0: PAUSE})
    trial.full = OSError(28, "No space left on device")
    with pytest.warns(HaltuneWarning, match="No space left.*trains on") as caught:
        booster, _ = train(HaltuneCallback(trial, MONITOR), rounds=4)
    assert len(caught) == 1
    assert (trial.epochs, booster.num_boosted_rounds(), trial.declined) == ([1, 2, 3, 4], 4, 2)


def test_the_best_trials_keep_their_final_boosters():
    s = pausing_study(at=(), epochs=3, keep_checkpoints=1)
    booster = search(s)
    kept = xgb.Booster(model_file=s.checkpoints.located(s.trials[0].checkpoint))
    np.testing.assert_array_equal(margins(kept), margins(booster))


# wrong use, outages, and what is left behind


def test_a_real_study_stops_trainings_and_goes_on_after_a_failure(tmp_path):
    class Raises(xgb.callback.TrainingCallback):
        def before_iteration(self, model, epoch, evals_log):
            if epoch == 1:
                raise ValueError("a bug")

    s = study(f"{tmp_path}/search.db")
    for trial in s:
        with trial:
            others = [Raises()] if trial.id == 1 else []
            train(HaltuneCallback(trial, MONITOR), *others, rounds=trial.max_epochs)
    assert [t.status for t in s.trials] == ["completed", "failed", "stopped"]
    assert [t.epochs.tolist() for t in s.trials] == [[1, 2, 3, 4], [1], [1, 2]]


def test_an_outage_does_not_end_the_training():
    trial = FakeTrial(max_epochs=3)
    trial.broken = OUTAGE

    class Mends(xgb.callback.TrainingCallback):
        def before_iteration(self, model, epoch, evals_log):
            trial.broken = OUTAGE if epoch < 2 else None

    with pytest.warns(HaltuneWarning, match="training continues"):
        train(HaltuneCallback(trial, MONITOR), Mends(), rounds=3)
    assert trial.epochs == [1, 2, 3]


def test_after_the_training_the_callback_holds_no_booster_and_copies_and_pickles():
    trial = FakeTrial(max_epochs=2)
    callback = HaltuneCallback(trial, MONITOR)
    booster, _ = train(callback, rounds=2)
    gone = weakref.ref(booster)
    del booster
    gc.collect()
    assert gone() is None
    for twin in (copy.copy(callback), copy.deepcopy(callback)):
        assert isinstance(twin, xgb.callback.TrainingCallback)
        assert twin.trial is trial
    with pytest.raises(NotSupported, match="unpickled"):
        train(pickle.loads(pickle.dumps(callback)))


def test_swapped_arguments_are_noticed():
    with pytest.raises(InvalidInput, match="swapped"):
        HaltuneCallback(MONITOR, FakeTrial())
    with pytest.raises(InvalidInput, match="record='none'"):
        HaltuneCallback(FakeTrial(), MONITOR, record="none")


def test_several_workers_say_that_they_are_not_supported(monkeypatch):
    monkeypatch.setattr(xgb.collective, "get_world_size", lambda: 2)
    with pytest.raises(NotSupported, match="2 workers"):
        train(HaltuneCallback(FakeTrial(), MONITOR))


def test_importing_the_module_imports_no_framework(in_a_process):
    assert in_a_process("import sys, haltune.callbacks.xgboost; print('xgboost' in sys.modules)") == "False\n"
