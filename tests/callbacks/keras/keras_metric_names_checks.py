"""Names of metrics that Keras numbers, in searches that build a model a trial. Run by test_callback.py, on torch."""

import keras
import numpy as np
import pytest
from callback_fakes import FakeTrial
from paused_studies import pausing_study

from haltune import Constraint, Float, Maximize, Problem, Space, Study
from haltune.callbacks.keras import HaltuneCallback
from haltune.errors import InvalidInput
from haltune.policies import RandomSearch

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")

X = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
Y = (X.sum(1, keepdims=True) > 0).astype("float32")


@pytest.fixture(autouse=True)
def first_in_its_process():
    """As in a process that has made no metric yet."""
    keras.backend.clear_session()


@keras.saving.register_keras_serializable()
class ShareOfOnes(keras.metrics.Mean):
    """A metric of the user's, without a name."""

    def __init__(self, name=None, **others):
        super().__init__(name=name, **others)

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(keras.ops.cast(y_pred > 0.5, "float32"))


def net(*metrics):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile(keras.optimizers.SGD(0.5), "binary_crossentropy", metrics=[*metrics], run_eagerly=True)
    return model


def two_headed(metrics):
    seen = keras.Input((3,))
    heads = [keras.layers.Dense(1, activation="sigmoid", name=name)(seen) for name in ("left", "right")]
    model = keras.Model(seen, heads)
    model.compile("sgd", "binary_crossentropy", metrics=metrics(), run_eagerly=True)
    return model


def search(goal, make, trials=3, y=Y, **options):
    """A search of so many trials, each with a model of its own; with it the logs of each fit."""
    constraints = options.pop("constraints", ())
    space, goals = Space({"lr": Float(1e-3, 1e-1)}), options.pop("goals", Maximize(goal))
    problem = Problem(space, goals, 2, constraints=constraints)
    study, logs = Study(problem, RandomSearch(trials), seed=0, verbose=0), []
    for trial in study:
        with trial:
            history = make().fit(
                X, y, validation_data=(X, y), epochs=2, callbacks=[HaltuneCallback(trial, **options)], verbose=0
            )
            logs.append(history.history)
    assert [t.status for t in study.trials] == ["completed"] * trials
    return study.trials, logs


def fit(trial, model):
    return model.fit(X, Y, validation_data=(X, Y), epochs=3, callbacks=[HaltuneCallback(trial)], verbose=0)


def at(logs, place, kind="auc"):
    """The values in validation of one of the metrics of a kind, in the order in which they were made."""
    names = [name for name in logs if name.startswith("val_") and kind in name]
    return logs[sorted(names, key=lambda name: (len(name), name))[place]]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (keras.metrics.AUC, "auc"),
        (keras.metrics.Precision, "precision"),
        (lambda: keras.metrics.MeanIoU(2), "mean_io_u"),
        (lambda: keras.metrics.F1Score(threshold=0.5), "f1_score"),
        (ShareOfOnes, "share_of_ones"),
    ],
)
def test_a_metric_without_a_name_has_the_same_name_in_every_trial(make, name):
    trials, logs = search(f"val_{name}", lambda: net(make()))
    assert [t.values.tolist() for t in trials] == [at(one, 0, name) for one in logs]
    assert [{*t.metrics} for t in trials] == [{name, f"val_{name}", "loss", "val_loss"}] * 3


def test_models_that_were_made_before_the_search_change_no_name():
    net(keras.metrics.AUC())
    trials, logs = search("val_auc", lambda: net(keras.metrics.AUC()))
    assert "val_auc_1" in logs[0]
    assert [t.values.tolist() for t in trials] == [at(one, 0) for one in logs]


@pytest.mark.parametrize(("goal", "place"), [("val_auc", 0), ("val_auc_1", 1)])
def test_two_metrics_of_a_class_stay_apart(goal, place):
    trials, logs = search(goal, lambda: net(keras.metrics.AUC(), keras.metrics.AUC(curve="PR")))
    other = {"val_auc": "val_auc_1", "val_auc_1": "val_auc"}[goal]
    assert [t.values.tolist() for t in trials] == [at(one, place) for one in logs]
    assert [t.metrics[other].tolist() for t in trials] == [at(one, 1 - place) for one in logs]
    assert {*trials[0].metrics} == {*trials[1].metrics} == {*trials[2].metrics}


def test_metrics_of_other_goals_and_constraints_are_found_in_every_trial():
    goals = [Maximize("val_auc"), Maximize("val_precision")]
    trials, logs = search(
        "val_auc", lambda: net(keras.metrics.AUC(), keras.metrics.Precision(), keras.metrics.Recall()),
        goals=goals, constraints=[Constraint("val_recall", at_least=0.0)], record="monitor",
    )  # fmt: skip
    for trial, one in zip(trials, logs, strict=True):
        assert trial.values.tolist() == at(one, 0)
        assert {n: v.tolist() for n, v in trial.metrics.items()} == {
            "val_precision": at(one, 0, "precision"), "val_recall": at(one, 0, "recall"),
        }  # fmt: skip


@pytest.mark.parametrize("name", ["auc_1", "auc_7"])
def test_a_name_of_the_users_that_looks_like_a_number_of_keras_stays(name):
    for goal in (f"val_{name}", "val_loss"):
        trials, _ = search(goal, lambda: net(keras.metrics.AUC(name=name)))
        assert {*trials[0].metrics} == {*trials[1].metrics} == {*trials[2].metrics}
        assert goal in trials[0].metrics


@pytest.mark.parametrize("how", ["list", "dict", "alike"])
def test_the_metrics_of_several_outputs_keep_their_outputs(how):
    made = {
        "list": lambda: [[keras.metrics.AUC()], [keras.metrics.AUC()]],
        "dict": lambda: {"right": [keras.metrics.AUC()], "left": [keras.metrics.AUC()]},
        "alike": lambda: [[keras.metrics.AUC(name="auc_1")], [keras.metrics.AUC(name="auc_1")]],
    }[how]
    side, goal = {
        "list": ("right_auc", "right_auc_1"), "dict": ("left_auc", "left_auc_1"), "alike": ("right_auc", "right_auc_1")
    }[how]  # fmt: skip
    trials, logs = search(f"val_{goal}", lambda: two_headed(made), y=[Y, 1 - Y])
    for trial, one in zip(trials, logs, strict=True):
        assert trial.values.tolist() == at(one, 0, side)
    assert {*trials[0].metrics} == {*trials[1].metrics} == {*trials[2].metrics}


def test_a_metric_of_the_models_own_step_has_the_same_name_in_every_trial():
    class Steps(keras.Model):
        def __init__(self):
            super().__init__()
            self.layer = keras.layers.Dense(1, activation="sigmoid")
            self.auc = keras.metrics.AUC()

        def call(self, x):
            return self.layer(x)

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            self.auc.update_state(y, y_pred)
            return self.get_metrics_result()

    def make():
        model = Steps()
        model.compile("sgd", "binary_crossentropy", run_eagerly=True)
        return model

    trials, logs = search("val_auc", make)
    assert [t.values.tolist() for t in trials] == [at(one, 0) for one in logs]


@pytest.mark.parametrize("record", ["all", "monitor"])
@pytest.mark.parametrize(("goal", "place"), [("val_auc", 0), ("val_auc_1", 1)])
def test_a_model_that_was_saved_keeps_the_names_it_had(goal, place, record):
    for _ in range(3):
        net(keras.metrics.AUC(), keras.metrics.AUC(curve="PR"))  # numbered far on
    study, logs = pausing_study(metric=goal, verbose=0), []
    for trial in study:
        with trial:
            model = trial.load_model() or net(keras.metrics.AUC(), keras.metrics.AUC(curve="PR"))
            logs.append(
                model.fit(
                    X, Y, validation_data=(X, Y), epochs=4, initial_epoch=trial.epoch, verbose=0,
                    callbacks=[HaltuneCallback(trial, record=record)],
                ).history
            )  # fmt: skip
        keras.backend.clear_session()  # as in another process
    (found,) = study.trials
    assert found.attempt == 2
    assert found.values.tolist() == [*at(logs[0], place), *at(logs[1], place)]
    if record == "all":
        assert not np.isnan([*found.metrics.values()]).any()


def test_a_name_that_may_be_either_of_two_metrics_is_an_error_that_says_how_to_name_them():
    net(keras.metrics.AUC())
    model = net(keras.metrics.AUC(), keras.metrics.AUC(name="auc_1"))  # the first is called so by Keras
    with pytest.raises(InvalidInput, match=r"'val_auc_1' may be either of 2 metrics.*AUC\(name='my_auc_1'\)"):
        fit(FakeTrial("val_auc_1"), model)
    with pytest.raises(InvalidInput) as caught:
        fit(FakeTrial("val_auc"), model)
    assert "monitor='val_auc_1'" not in str(caught.value)


def test_the_logs_that_other_callbacks_read_are_as_keras_writes_them():
    net(keras.metrics.AUC())
    assert {"auc_1", "val_auc_1"} <= {*fit(FakeTrial("val_auc"), net(keras.metrics.AUC())).history}
