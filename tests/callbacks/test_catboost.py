"""HaltuneCallback in real CatBoost trainings."""

import copy
import pickle

import numpy as np
import pytest
from callback_fakes import OUTAGE, PAUSE, STOP, FakeTrial
from callback_studies import study
from paused_studies import pausing_study

catboost = pytest.importorskip("catboost", reason="CatBoost is not installed")

from haltune.callbacks.catboost import HaltuneCallback  # noqa: E402
from haltune.errors import HaltuneWarning, InvalidInput  # noqa: E402

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
Y = (X[:, 0] + X[:, 1] ** 2 + 0.5 * RNG.normal(size=120) > 0.8).astype(int)
PARAMS = {"thread_count": 1, "verbose": False, "depth": 3, "eval_metric": "Accuracy", "use_best_model": False}
MONITOR = "validation-Logloss"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # CatBoost writes a folder of its own where it runs


def train(*callbacks, rounds=5, kind=catboost.CatBoostClassifier, snapshot=None, sets=1, **params):
    """The model and its history."""
    model = kind(iterations=rounds, **PARAMS | params)
    held_out = [(X[80:], Y[80:])] * sets if sets > 1 else (X[80:], Y[80:]) if sets else None
    model.fit(X[:80], Y[:80], eval_set=held_out, callbacks=list(callbacks) or None, **(snapshot or {}))
    return model, model.get_evals_result()


def scores(model):
    return model.predict(X, prediction_type="RawFormulaVal")


def test_every_round_is_an_epoch_and_every_metric_is_recorded():
    trial = FakeTrial(max_epochs=5)
    _, log = train(HaltuneCallback(trial, MONITOR))
    assert trial.epochs == [1, 2, 3, 4, 5]
    assert trial.values == log["validation"]["Logloss"]
    assert trial.endings == []  # the trial's own end ends it
    recorded = [r["metrics"] for r in trial.reports]
    for data, column in log.items():
        for metric, values in column.items():
            assert [m.pop(f"{data}-{metric}") for m in recorded] == values
    assert recorded == [{}] * 5
    assert all(r["seconds"] > 0 for r in trial.reports)
    trial.last_act()
    assert trial.endings == [None]


def test_only_the_monitored_metric_is_recorded_on_request():
    trial = FakeTrial(max_epochs=2)
    train(HaltuneCallback(trial, MONITOR, record="monitor"), rounds=2)
    assert [r["metrics"] for r in trial.reports] == [{}, {}]


def test_rounds_that_catboost_does_not_evaluate_are_not_reported():
    trial = FakeTrial(max_epochs=10)
    _, log = train(HaltuneCallback(trial, MONITOR), rounds=10, metric_period=4)
    assert trial.epochs == [1, 5, 9, 10]
    assert trial.values == log["validation"]["Logloss"]


def test_the_metric_alone_is_enough_where_one_data_set_has_it():
    trial = FakeTrial("AUC", maximize=True)
    _, log = train(
        HaltuneCallback(trial), rounds=3, eval_metric="AUC"
    )  # which CatBoost does not measure in training
    assert trial.values == log["validation"]["AUC"]


def told(*callbacks, **options):
    """What is raised as the trial ends: CatBoost lets no other error out of fit."""
    model, _ = train(*callbacks, **options)
    assert model.tree_count_ == 1
    with pytest.raises(InvalidInput) as caught:
        callbacks[0].trial.last_act()
    assert callbacks[0].trial.endings == [caught.value]
    return str(caught.value)


def test_a_metric_of_several_data_sets_must_be_named_with_its_data_set():
    said = told(HaltuneCallback(FakeTrial("Logloss")), sets=2)
    assert "the metric 'Logloss' was logged for 3 data sets" in said
    trial = FakeTrial(max_epochs=2)
    train(HaltuneCallback(trial, "validation_1-Logloss"), sets=2, rounds=2)
    assert trial.epochs == [1, 2]


def test_a_misspelt_metric_lists_what_was_logged_and_the_nearest_name():
    said = told(HaltuneCallback(FakeTrial("validation-logloss")))
    assert "What was logged: learn-Accuracy, learn-Logloss, validation-Accuracy" in said
    assert "Did you mean 'validation-Logloss'?" in said
    assert "Give fit eval_set=(x, y)" in told(HaltuneCallback(FakeTrial("AUC")), sets=0)


def test_two_callbacks_in_one_training_are_an_error_and_one_after_the_other_are_not():
    assert "holds two HaltuneCallbacks" in told(*(HaltuneCallback(FakeTrial(), MONITOR) for _ in range(2)))
    trial = FakeTrial(max_epochs=4)
    callback = HaltuneCallback(trial, MONITOR)
    train(callback, rounds=2)
    with pytest.warns(HaltuneWarning, match=r"begin again.*callback\.snapshot"):
        train(callback, rounds=4)
    assert trial.epochs == [1, 2, 3, 4]


@pytest.mark.parametrize("stops", [False, True])
def test_the_model_is_the_same_with_and_without_the_callback(stops):
    trial = FakeTrial(max_epochs=5, verdicts={2.0: STOP} if stops else {})
    callback = HaltuneCallback(trial, MONITOR)
    model, _ = train(callback, snapshot=callback.snapshot, rsm=0.5)
    assert model.tree_count_ == (2 if stops else 5)
    straight, _ = train(rsm=0.5)
    expected = straight.predict(X, prediction_type="RawFormulaVal", ntree_end=model.tree_count_)
    np.testing.assert_array_equal(scores(model), expected)


def test_a_training_begun_after_the_stop_trains_one_round_and_reports_none():
    callback = HaltuneCallback(FakeTrial(max_epochs=9, verdicts={2.0: STOP}), MONITOR)
    train(callback, rounds=9)
    with pytest.warns(HaltuneWarning, match="begin again"):
        model, _ = train(callback, rounds=9)
    assert (callback.trial.epochs, model.tree_count_) == ([1, 2], 1)


def test_rounds_beyond_the_horizon_are_not_trained():
    trial = FakeTrial(max_epochs=3)
    model, _ = train(HaltuneCallback(trial, MONITOR), rounds=9)
    assert (trial.epochs, model.tree_count_) == ([1, 2, 3], 3)


# pausing


def search(s, *others, rounds=None, monitor=MONITOR, **params):
    """Train every trial of a study as the docstring says; the last model."""
    for trial in s:
        with trial:
            callback = HaltuneCallback(trial, monitor)
            model, _ = train(
                *others, callback, rounds=rounds or trial.max_epochs, snapshot=callback.snapshot, **params
            )
    return model


QUICK = ("as it is", "features and rows drawn", "ordered")
EXACT = {
    "as it is": {},
    "features and rows drawn": {"rsm": 0.5, "bootstrap_type": "Bernoulli", "subsample": 0.5},
    "nothing drawn": {"bootstrap_type": "No", "random_strength": 0},
    "ordered": {"boosting_type": "Ordered"},
    "by leaves": {"grow_policy": "Lossguide", "max_leaves": 4, "langevin": True, "boosting_type": "Plain"},
    "regression": {"kind": catboost.CatBoostRegressor, "loss_function": "MAE", "eval_metric": "MAE"},
}


@pytest.mark.parametrize(
    "params",
    [pytest.param(EXACT[n], id=n, marks=() if n in QUICK else pytest.mark.slow) for n in EXACT],
)
def test_a_resumed_training_equals_an_uninterrupted_one_digit_for_digit(params, tmp_path):
    metric = "MAE" if "kind" in params else "Logloss"
    s = pausing_study(tmp_path / "s.db", at=(2, 5), epochs=7, verbose=0)
    model = search(s, monitor=f"validation-{metric}", **params)
    straight, log = train(rounds=7, **params)
    np.testing.assert_array_equal(model.predict(X), straight.predict(X))
    if "kind" not in params:
        np.testing.assert_array_equal(scores(model), scores(straight))
    assert s.trials[0].attempt == 3
    assert s.trials[0].epochs.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert s.trials[0].values.tolist() == log["validation"][metric]


def test_a_resumed_training_reports_what_is_evaluated_now_and_then():
    s = pausing_study(at=(5,), epochs=10, verbose=0)
    model = search(s, metric_period=4)
    assert s.trials[0].epochs.tolist() == [1, 5, 9, 10]
    np.testing.assert_array_equal(scores(model), scores(train(rounds=10)[0]))


def test_the_overfitting_detector_remembers_what_was_before_a_pause():
    detects = {
        "early_stopping_rounds": 5,
        "learning_rate": 1.0,
        "eval_metric": "Logloss",
        "use_best_model": True,
    }
    straight, log = train(rounds=60, **detects)
    rounds = len(log["validation"]["Logloss"])
    assert straight.tree_count_ < rounds - 1 < 60
    s = pausing_study(at=(rounds - 2,), epochs=60, verbose=0, keep_checkpoints=1)
    model = search(s, **detects)
    assert (len(s.trials[0].epochs), model.tree_count_) == (rounds, straight.tree_count_)
    kept = catboost.CatBoostClassifier().load_model(s.best.checkpoint)
    np.testing.assert_array_equal(scores(kept), scores(straight))


def test_without_its_snapshot_a_run_is_not_paused_and_it_says_what_to_write():
    trial = FakeTrial(max_epochs=4, verdicts={2.0: PAUSE})
    with pytest.warns(HaltuneWarning, match=r"\*\*callback\.snapshot.*trains on"):
        model, _ = train(HaltuneCallback(trial, MONITOR), rounds=4)
    assert (trial.epochs, model.tree_count_, trial.declined) == ([1, 2, 3, 4], 4, 1)


def test_a_pause_for_which_there_is_no_room_trains_on_with_one_warning():
    trial = FakeTrial(max_epochs=4, verdicts={1.0: PAUSE, 3.0: PAUSE})
    trial.full = OSError(28, "No space left on device")
    callback = HaltuneCallback(trial, MONITOR)
    with pytest.warns(HaltuneWarning, match="No space left.*trains on") as caught:
        model, _ = train(callback, rounds=4, snapshot=callback.snapshot)
    assert len(caught) == 1
    assert (trial.epochs, model.tree_count_, trial.declined) == ([1, 2, 3, 4], 4, 2)


def test_a_snapshot_that_was_asked_for_and_not_passed_on_is_no_pause():
    s = pausing_study(at=(2,), epochs=4, verbose=0)
    with (
        pytest.warns(HaltuneWarning, match=r"\*\*callback\.snapshot.*begins again further back"),
        s.ask() as trial,
    ):
        callback = HaltuneCallback(trial, MONITOR)
        assert callback.snapshot["save_snapshot"]
        train(callback, rounds=4)
    assert s.trials[0].status == "interrupted"


def test_the_best_trials_keep_their_final_models():
    s = pausing_study(at=(), epochs=3, keep_checkpoints=1, verbose=0)
    model = search(s)
    kept = catboost.CatBoostClassifier().load_model(s.best.checkpoint)
    np.testing.assert_array_equal(scores(kept), scores(model))


# wrong use, outages, and what is left behind


class Calls:
    """A callback of the user's own."""

    def __init__(self, call):
        self.call = call

    def after_iteration(self, info):
        self.call(info.iteration)
        return True


def test_a_real_study_stops_trainings_and_goes_on_after_a_failure(tmp_path):
    def raises(iteration):
        if iteration == 2:
            raise ValueError("a bug")

    s = study(tmp_path / "search.db")
    for trial in s:
        with trial:
            others = [Calls(raises)] if trial.id == 1 else []
            train(*others, HaltuneCallback(trial, MONITOR), rounds=trial.max_epochs)
    assert [t.status for t in s.trials] == ["completed", "failed", "stopped"]
    assert [t.epochs.tolist() for t in s.trials] == [[1, 2, 3, 4], [1], [1, 2]]


def test_an_outage_does_not_end_the_training():
    trial = FakeTrial(max_epochs=3)

    def mends(iteration):
        trial.broken = OUTAGE if iteration < 3 else None

    with pytest.warns(HaltuneWarning, match="training continues"):
        train(Calls(mends), HaltuneCallback(trial, MONITOR), rounds=3)
    assert trial.epochs == [1, 2, 3]


def test_after_the_trial_the_callback_holds_no_model_and_copies_and_pickles():
    trial = FakeTrial(max_epochs=2)
    callback = HaltuneCallback(trial, MONITOR)
    train(callback, rounds=2)
    trial.last_act()
    assert callback._model is None
    for twin in (copy.copy(callback), copy.deepcopy(callback)):
        assert twin.trial is trial
    with pytest.raises(catboost.CatBoostError, match=r"NotSupported: this callback was unpickled"):
        train(pickle.loads(pickle.dumps(callback)))


def test_a_mistake_ends_the_trial_as_failed_and_is_raised():
    s = pausing_study(metric="validation-logloss", verbose=0)
    with pytest.raises(InvalidInput, match="Did you mean 'validation-Logloss'"), s.ask() as trial:
        train(HaltuneCallback(trial))
    assert (s.trials[0].status, s.trials[0].error[:12]) == ("failed", "InvalidInput")


def test_swapped_arguments_are_noticed():
    with pytest.raises(InvalidInput, match="swapped"):
        HaltuneCallback(MONITOR, FakeTrial())
    with pytest.raises(InvalidInput, match="record='none'"):
        HaltuneCallback(FakeTrial(), MONITOR, record="none")
