"""HaltuneCallback in real LightGBM trainings: lgb.train, lgb.cv and LGBMClassifier."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
from callback_fakes import OUTAGE, PAUSE, STOP, FakeTrial
from callback_studies import study
from paused_studies import pausing_study

lgb = pytest.importorskip("lightgbm", reason="LightGBM is not installed")

from haltune import Float, Minimize, Study  # noqa: E402
from haltune.callbacks.lightgbm import HaltuneCallback  # noqa: E402
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 4))
Y = (X[:, 0] + X[:, 1] ** 2 + 0.5 * RNG.normal(size=240) > 0.8).astype(float)
PARAMS = {
    "objective": "binary", "metric": ["binary_error", "binary_logloss"], "num_threads": 1, "num_leaves": 5,
    "verbose": -1,
}  # fmt: skip
MONITOR = "validation-binary_logloss"


def train(*callbacks, rounds=5, evals=("train", "validation"), params=PARAMS, data=None, **options):
    """The booster and its history."""
    log = {}
    data = data or lgb.Dataset(X[:160], Y[:160])
    sets = {"train": data, "validation": lgb.Dataset(X[160:], Y[160:], reference=data)}
    recording = [lgb.record_evaluation(log)] if evals else []
    booster = lgb.train(
        params, data, rounds, valid_sets=[sets[name] for name in evals], valid_names=list(evals),
        callbacks=[*callbacks, *recording], **options,
    )  # fmt: skip
    return booster, log


def cv(*callbacks, rounds=5, **options):
    """The table of lgb.cv: columns "valid binary_logloss-mean" and so on."""
    data = lgb.Dataset(X[:160], Y[:160])
    return lgb.cv(PARAMS, data, rounds, nfold=3, callbacks=list(callbacks), **options)


def scores(booster):
    return booster.predict(X[160:], raw_score=True)


def test_every_round_is_an_epoch_and_every_metric_is_recorded():
    trial = FakeTrial(max_epochs=5)
    _, log = train(HaltuneCallback(trial, MONITOR))
    assert trial.epochs == [1, 2, 3, 4, 5]
    assert trial.values == log["validation"]["binary_logloss"]
    assert trial.endings == [None]
    recorded = [r["metrics"] for r in trial.reports]
    for data, column in log.items():
        for metric, values in column.items():
            assert [m.pop(f"{data}-{metric}") for m in recorded] == values
    assert recorded == [{}] * 5
    assert all(r["seconds"] > 0 for r in trial.reports)  # the first round's, too


def test_two_callbacks_in_one_training_are_an_error_and_one_after_the_other_are_not():
    both = HaltuneCallback(FakeTrial(), MONITOR), HaltuneCallback(FakeTrial(), MONITOR)
    with pytest.raises(InvalidInput, match=r"holds two HaltuneCallbacks.*delete the other line"):
        train(*both)
    with pytest.raises(InvalidInput, match="holds two HaltuneCallbacks"):
        cv(*(HaltuneCallback(FakeTrial(), "valid-binary_logloss") for _ in range(2)))
    booster, _ = train(HaltuneCallback(FakeTrial(), MONITOR), rounds=1)
    train(HaltuneCallback(FakeTrial(), MONITOR), rounds=1, init_model=booster)


def test_only_the_monitored_metric_is_recorded_on_request():
    trial = FakeTrial(max_epochs=2)
    train(HaltuneCallback(trial, MONITOR, record="monitor"), rounds=2)
    assert [r["metrics"] for r in trial.reports] == [{}, {}]


def test_the_goals_metric_alone_is_enough_where_one_data_set_has_it():
    trial = FakeTrial("binary_logloss")
    _, log = train(HaltuneCallback(trial), evals=["validation"], rounds=3)
    assert trial.values == log["validation"]["binary_logloss"]


def test_a_metric_of_several_data_sets_must_be_named_with_its_data_set():
    with pytest.raises(
        InvalidInput, match=r"2 data sets: name one, train-binary_logloss or validation-binary_logloss"
    ):
        train(HaltuneCallback(FakeTrial("binary_logloss")))


def test_a_misspelt_metric_lists_what_was_logged_and_the_nearest_name():
    with pytest.raises(
        InvalidInput,
        match=r"train-binary_logloss, validation-binary_error.*mean 'validation-binary_logloss'\?",
    ):
        train(HaltuneCallback(FakeTrial(), "validation-logloss"))


def test_a_training_without_validation_says_what_to_give():
    with pytest.raises(InvalidInput, match=r"Nothing was logged at all\. Give lgb\.train valid_sets="):
        train(HaltuneCallback(FakeTrial("binary_logloss")), evals=())


def test_rounds_may_be_reported_now_and_then_and_the_last_is():
    trial = FakeTrial(max_epochs=8, verdicts={6.0: STOP})
    booster, log = train(HaltuneCallback(trial, MONITOR, every=3), rounds=8)
    assert (trial.epochs, booster.num_trees()) == ([3, 6], 6)
    assert trial.values == log["validation"]["binary_logloss"][2::3]
    trial = FakeTrial(max_epochs=8)
    train(HaltuneCallback(trial, MONITOR, every=3), rounds=8)
    assert trial.epochs == [3, 6, 8]
    with pytest.raises(InvalidInput, match="every=0: report every so many rounds"):
        HaltuneCallback(trial, MONITOR, every=0)


def test_a_stop_ends_the_training_after_its_round():
    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    booster, log = train(HaltuneCallback(trial, MONITOR), rounds=9)
    assert (trial.epochs, booster.num_trees(), trial.endings) == ([1, 2], 2, [None])
    assert booster.best_iteration == 2
    assert len(log["validation"]["binary_logloss"]) == 2  # LightGBM's own record has the round


def test_a_training_begun_after_the_stop_trains_one_round_and_reports_none():
    callback = HaltuneCallback(FakeTrial(max_epochs=9, verdicts={2.0: STOP}), MONITOR)
    booster, _ = train(callback, rounds=9)
    booster, _ = train(callback, rounds=9, init_model=booster)
    assert (callback.trial.epochs, booster.num_trees()) == ([1, 2], 3)


def test_rounds_beyond_the_horizon_are_not_trained():
    trial = FakeTrial(max_epochs=3)
    booster, _ = train(HaltuneCallback(trial, MONITOR), rounds=9)
    assert (trial.epochs, booster.num_trees()) == ([1, 2, 3], 3)


@pytest.mark.parametrize("stops", [False, True])
def test_the_booster_is_the_same_with_and_without_the_callback(stops):
    trial = FakeTrial(max_epochs=5, verdicts={2.0: STOP} if stops else {})
    drawing = PARAMS | {"bagging_fraction": 0.5, "bagging_freq": 1, "feature_fraction": 0.5}
    told, _ = train(HaltuneCallback(trial, MONITOR), params=drawing)
    plain, _ = train(params=drawing, rounds=2 if stops else 5)
    np.testing.assert_array_equal(scores(told), scores(plain))


def test_a_booster_trained_before_the_trial_does_not_count():
    trial = FakeTrial(max_epochs=3)
    train(HaltuneCallback(trial, MONITOR), rounds=3, init_model=train(rounds=4)[0])
    assert trial.epochs == [1, 2, 3]


def test_a_training_begun_again_is_ignored_with_a_warning_that_names_init_model():
    trial = FakeTrial(max_epochs=3, epoch=2.0)
    with pytest.warns(HaltuneWarning, match="init_model=trial.checkpoint"):
        train(HaltuneCallback(trial, MONITOR), rounds=3)
    assert trial.epochs == [3]


def test_early_stopping_of_the_users_own_is_kept():
    trial = FakeTrial(max_epochs=80)
    stopping = lgb.early_stopping(2, first_metric_only=True, verbose=False)
    booster, log = train(HaltuneCallback(trial, MONITOR), stopping, rounds=80)
    rounds = len(log["validation"]["binary_logloss"])
    assert booster.best_iteration < rounds < 80
    assert trial.epochs == list(range(1, rounds + 1))
    assert trial.endings == []  # `with trial` ends it


def test_cross_validation_reports_the_mean_over_the_folds():
    trial = FakeTrial(max_epochs=4)
    table = cv(HaltuneCallback(trial, "valid-binary_logloss"), rounds=4)
    assert trial.values == table["valid binary_logloss-mean"]
    recorded = [r["metrics"]["valid-binary_logloss-std"] for r in trial.reports]
    assert recorded == table["valid binary_logloss-stdv"]
    again = FakeTrial(max_epochs=4)
    cv(HaltuneCallback(again, "binary_logloss"), rounds=4)
    assert again.values == trial.values


def test_a_stop_of_a_cross_validation_keeps_the_rounds_trained():
    trial = FakeTrial(max_epochs=9, verdicts={3.0: STOP})
    table = cv(HaltuneCallback(trial, "valid-binary_logloss"), rounds=9)
    assert table["valid binary_logloss-mean"] == trial.values
    assert (trial.epochs, trial.endings) == ([1, 2, 3], [None])


def test_a_cross_validation_cannot_pause_says_so_and_trains_on():
    trial = FakeTrial(max_epochs=4, verdicts={2.0: PAUSE})
    with pytest.warns(HaltuneWarning, match=r"lgb\.cv takes no boosters.*trains on"):
        table = cv(HaltuneCallback(trial, "valid-binary_logloss"), rounds=4)
    assert (trial.epochs, len(table["valid binary_logloss-mean"]), trial.declined) == ([1, 2, 3, 4], 4, 1)


def estimator(trial, **options):
    rounds = trial.max_epochs - int(trial.epoch)
    model = lgb.LGBMClassifier(n_estimators=rounds, num_leaves=5, n_jobs=1, verbose=-1)
    return model.fit(X[:160], Y[:160], eval_set=[(X[160:], Y[160:])], eval_metric="binary_logloss", **options)


def test_an_estimator_in_scikit_learns_manner_reports_too():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    trial = FakeTrial(max_epochs=9, verdicts={2.0: STOP})
    model = estimator(trial, callbacks=[HaltuneCallback(trial, "valid_0-binary_logloss")])
    assert trial.values == model.evals_result_["valid_0"]["binary_logloss"]
    assert (len(trial.values), model.n_estimators_) == (2, 2)


def test_an_estimator_in_scikit_learns_manner_pauses_and_goes_on_exactly():
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    for trial in pausing_study(at=(2,), epochs=6):
        with trial:
            callback = HaltuneCallback(trial, "valid_0-binary_logloss")
            model = estimator(trial, callbacks=[callback], init_model=trial.checkpoint)
    straight = estimator(FakeTrial(max_epochs=6))
    np.testing.assert_array_equal(model.predict_proba(X), straight.predict_proba(X))


# pausing


def search(s, *others, params=lambda trial: PARAMS, monitor=MONITOR):
    """Train every trial of a study as the docstring says; the last booster."""
    for trial in s:
        with trial:
            callbacks = [HaltuneCallback(trial, monitor), *others]
            left = trial.max_epochs - trial.epoch
            booster, _ = train(*callbacks, rounds=left, params=params(trial), init_model=trial.checkpoint)
    return booster


EXACT = {
    "gbdt": {},
    "by columns": {"force_col_wise": True},
    "deterministic": {"deterministic": True, "force_row_wise": True},
    "without the average": {"boost_from_average": False},
    "regression": {"objective": "regression", "metric": "l2"},
    "renewed leaves": {"objective": "regression_l1", "metric": "l1"},
    "several classes": {"objective": "multiclass", "num_class": 2, "metric": "multi_logloss"},
    "dart that drops nothing": {"boosting": "dart", "drop_rate": 0.0},
    "constraints": {"monotone_constraints": [1, 0, 0, 0], "lambda_l1": 0.1, "path_smooth": 1.0},
    "nothing left to split": {"min_gain_to_split": 20.0},
}


@pytest.mark.parametrize("params", EXACT.values(), ids=EXACT)
def test_a_resumed_training_equals_an_uninterrupted_one_digit_for_digit(params, tmp_path):
    params = PARAMS | params
    metric = params["metric"] if isinstance(params["metric"], str) else "binary_logloss"
    s = pausing_study(f"{tmp_path}/s.db", at=(2, 5), epochs=9)
    booster = search(s, params=lambda trial: params, monitor=f"validation-{metric}")
    straight, log = train(rounds=9, params=params)
    np.testing.assert_array_equal(scores(booster), scores(straight))
    assert booster.num_trees() == straight.num_trees()
    assert s.trials[0].attempt == 3
    assert s.trials[0].epochs.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert s.trials[0].values.tolist() == log["validation"][metric]


def test_linear_leaves_resume_to_seven_digits():
    params = PARAMS | {"linear_tree": True}
    straight, _ = train(rounds=6, params=params)
    resumed = search(pausing_study(epochs=6), params=lambda trial: params)
    np.testing.assert_allclose(scores(resumed), scores(straight), rtol=1e-6)


DRAWS = {
    "bagging": {"bagging_fraction": 0.5, "bagging_freq": 1},
    "features": {"feature_fraction": 0.5},
    "thresholds": {"extra_trees": True},
    "gradients": {"use_quantized_grad": True},
    "one side": {"data_sample_strategy": "goss", "learning_rate": 0.9},
    "dart": {"boosting": "dart", "drop_rate": 0.9},
}


@pytest.mark.parametrize("params", DRAWS.values(), ids=DRAWS)
def test_what_is_drawn_at_random_starts_again_in_a_resumed_training(params):
    params = PARAMS | params
    straight, _ = train(rounds=6, params=params)
    resumed = search(pausing_study(at=(3,), epochs=6), params=lambda trial: params)
    elsewhere = search(
        pausing_study(at=(3,), epochs=6), params=lambda trial: params | {"seed": trial.attempt}
    )
    assert not np.array_equal(scores(resumed), scores(straight))
    assert not np.array_equal(scores(resumed), scores(elsewhere))


def test_a_random_forest_is_not_paused_and_says_so():
    trial = FakeTrial(max_epochs=4, verdicts={2.0: PAUSE})
    forest = PARAMS | {"boosting": "rf", "bagging_fraction": 0.5, "bagging_freq": 1}
    with pytest.warns(HaltuneWarning, match=r"a random forest.*cannot be continued.*trains on"):
        booster, _ = train(HaltuneCallback(trial, MONITOR), rounds=4, params=forest)
    assert (trial.epochs, booster.num_trees(), trial.declined) == ([1, 2, 3, 4], 4, 1)
    with pytest.raises(lgb.basic.LightGBMError):  # which is why
        train(params=forest, init_model=booster)


def test_a_schedule_goes_on_as_the_docstring_says():
    def rate(round):
        return 0.5 / (1 + round)

    straight, _ = train(lgb.reset_parameter(learning_rate=rate), rounds=5)
    for trial in pausing_study(epochs=5):
        with trial:
            schedule = lgb.reset_parameter(learning_rate=lambda i, start=trial.epoch: rate(i + start))
            left = trial.max_epochs - trial.epoch
            booster, _ = train(
                HaltuneCallback(trial, MONITOR), schedule, rounds=left, init_model=trial.checkpoint
            )
    np.testing.assert_array_equal(scores(booster), scores(straight))


def test_a_data_set_that_was_continued_is_refused_for_a_training_from_the_start():
    data = lgb.Dataset(X[:160], Y[:160], free_raw_data=False)
    plain, _ = train(data=data)
    continued, _ = train(
        HaltuneCallback(FakeTrial(epoch=5.0, max_epochs=10), MONITOR), data=data, init_model=plain
    )
    np.testing.assert_array_equal(scores(continued), scores(train(rounds=10)[0]))
    wrong, _ = train(data=data)
    assert not np.array_equal(scores(wrong), scores(plain))  # LightGBM itself says nothing
    with pytest.raises(InvalidInput, match=r"make the Dataset within the loop, for each trial"):
        train(HaltuneCallback(FakeTrial(), MONITOR), data=data)


def test_a_pause_that_cannot_be_saved_trains_on_with_one_warning():
    trial = FakeTrial(max_epochs=4, verdicts={1.0: PAUSE, 3.0: PAUSE})
    trial.full = OSError(28, "No space left on device")
    with pytest.warns(HaltuneWarning, match="No space left.*trains on") as caught:
        booster, _ = train(HaltuneCallback(trial, MONITOR), rounds=4)
    assert len(caught) == 1
    assert (trial.epochs, booster.num_trees(), trial.declined) == ([1, 2, 3, 4], 4, 2)


def test_the_best_trials_keep_their_final_boosters():
    s = pausing_study(at=(), epochs=3, keep_checkpoints=1)
    booster = search(s)
    kept = lgb.Booster(model_file=s.best.checkpoint)
    assert (kept.num_trees(), s.best.checkpoint_epoch) == (3, 3)
    np.testing.assert_array_equal(scores(kept), scores(booster))


def test_after_early_stopping_which_tells_no_callback_the_booster_is_kept_as_lightgbm_leaves_it():
    s = pausing_study(at=(), epochs=60, keep_checkpoints=1)
    booster = search(s, lgb.early_stopping(2, first_metric_only=True, verbose=False))
    kept = lgb.Booster(model_file=s.best.checkpoint)
    assert (
        kept.num_trees() == booster.best_iteration < s.best.checkpoint_epoch == len(s.trials[0].epochs) < 60
    )
    np.testing.assert_array_equal(scores(kept), scores(booster))


# wrong use, outages, and what is left behind


def test_a_real_study_stops_trainings_and_goes_on_after_a_failure(tmp_path):
    def raises(env):
        if env.iteration == 1:
            raise ValueError("a bug")

    s = study(f"{tmp_path}/search.db")
    for trial in s:
        with trial:
            others = [raises] if trial.id == 1 else []
            train(HaltuneCallback(trial, MONITOR), *others, rounds=trial.max_epochs)
    assert [t.status for t in s.trials] == ["completed", "failed", "stopped"]
    assert [t.epochs.tolist() for t in s.trials] == [[1, 2, 3, 4], [1], [1, 2]]


def test_several_goals_are_reported_by_their_names():
    goals = [Minimize(MONITOR), Minimize("validation-binary_error")]
    s = Study({"lr": Float(0.1, 0.2)}, goals, max_epochs=3, budget="1 trial", seed=0, verbose=0)
    for trial in s:
        with trial:
            callback = HaltuneCallback(trial, record="monitor")
            train(callback, rounds=trial.max_epochs - trial.epoch, init_model=trial.checkpoint)
    log = train(rounds=3)[1]["validation"]
    assert s.trials[0].values.tolist() == log["binary_logloss"]
    assert s.trials[0].metrics["validation-binary_error"].tolist() == log["binary_error"]


def test_an_outage_does_not_end_the_training():
    trial = FakeTrial(max_epochs=3)
    trial.broken = OUTAGE

    def mends(env):
        trial.broken = OUTAGE if env.iteration < 2 else None

    with pytest.warns(HaltuneWarning, match="training continues"):
        train(mends, HaltuneCallback(trial, MONITOR), rounds=3)
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
        assert twin.order == 25
        assert twin.trial is trial
    with pytest.raises(NotSupported, match="unpickled"):
        train(pickle.loads(pickle.dumps(callback)))


def test_swapped_arguments_are_noticed():
    with pytest.raises(InvalidInput, match="swapped"):
        HaltuneCallback(MONITOR, FakeTrial())
    with pytest.raises(InvalidInput, match="record='none'"):
        HaltuneCallback(FakeTrial(), MONITOR, record="none")


def test_several_machines_say_that_they_are_not_supported():
    from types import SimpleNamespace

    env = SimpleNamespace(iteration=0, begin_iteration=0, params={"num_machines": 2})
    with pytest.raises(NotSupported, match="2 machines"):
        HaltuneCallback(FakeTrial(), MONITOR)(env)
