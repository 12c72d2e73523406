"""Names of metrics that Keras numbers, in searches that build a model a trial. Run by test_callback.py, on torch."""

import keras
import numpy as np
import pytest
from callback_fakes import FakeTrial
from paused_studies import pausing_study

from haltune import Float, Maximize, Problem, Space, Study
from haltune.callbacks.keras import HaltuneCallback
from haltune.errors import InvalidInput
from haltune.policies import RandomSearch

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")

X = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
Y = (X.sum(1, keepdims=True) > 0).astype("float32")


@pytest.fixture(autouse=True)
def first_in_its_process():
    """Reset Keras to the state of a process without metrics."""
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


def search(goal, make, y=Y):
    """A search of three trials, each with a model of its own; with it the logs of each fit."""
    problem = Problem(Space({"lr": Float(1e-3, 1e-1)}), Maximize(goal), 2)
    study, logs = Study(problem, RandomSearch(3), seed=0, verbose=0), []
    for trial in study:
        with trial:
            history = make().fit(X, y, validation_data=(X, y), epochs=2, callbacks=[HaltuneCallback(trial)], verbose=0)
            logs.append(history.history)
    assert [t.status for t in study.trials] == ["completed"] * 3
    return study.trials, logs


def fit(trial, model):
    return model.fit(X, Y, validation_data=(X, Y), epochs=3, callbacks=[HaltuneCallback(trial)], verbose=0)


def at(logs, place, kind="auc"):
    """The values in validation of one of the metrics of a kind, in the order in which they were made."""
    names = [name for name in logs if name.startswith("val_") and kind in name]
    return logs[sorted(names, key=lambda name: (len(name), name))[place]]


@pytest.mark.parametrize(
    ("make", "name"),
    [(keras.metrics.AUC, "auc"), (lambda: keras.metrics.MeanIoU(2), "mean_io_u"), (ShareOfOnes, "share_of_ones")],
)
def test_a_metric_without_a_name_has_the_same_name_in_every_trial(make, name):
    trials, logs = search(f"val_{name}", lambda: net(make()))
    assert [t.values.tolist() for t in trials] == [at(one, 0, name) for one in logs]
    assert [{*t.metrics} for t in trials] == [{name, f"val_{name}", "loss", "val_loss"}] * 3


@pytest.mark.parametrize(("goal", "place"), [("val_auc", 0), ("val_auc_1", 1)])
def test_two_metrics_of_a_class_stay_apart(goal, place):
    trials, logs = search(goal, lambda: net(keras.metrics.AUC(), keras.metrics.AUC(curve="PR")))
    other = {"val_auc": "val_auc_1", "val_auc_1": "val_auc"}[goal]
    assert [t.values.tolist() for t in trials] == [at(one, place) for one in logs]
    assert [t.metrics[other].tolist() for t in trials] == [at(one, 1 - place) for one in logs]
    assert {*trials[0].metrics} == {*trials[1].metrics} == {*trials[2].metrics}


def test_a_name_of_the_users_that_looks_like_a_number_of_keras_stays():
    trials, _ = search("val_auc_1", lambda: net(keras.metrics.AUC(name="auc_1")))
    assert {*trials[0].metrics} == {*trials[1].metrics} == {*trials[2].metrics}
    assert "val_auc_1" in trials[0].metrics


@pytest.mark.parametrize(
    ("made", "side"),
    [
        (lambda: [[keras.metrics.AUC()], [keras.metrics.AUC()]], "right"),
        (lambda: {"right": [keras.metrics.AUC()], "left": [keras.metrics.AUC()]}, "left"),
    ],
    ids=["list", "dict"],
)
def test_the_metrics_of_several_outputs_keep_their_outputs(made, side):
    side = f"{side}_auc"
    trials, logs = search(f"val_{side}_1", lambda: two_headed(made), y=[Y, 1 - Y])
    for trial, one in zip(trials, logs, strict=True):
        assert trial.values.tolist() == at(one, 0, side)
    assert {*trials[0].metrics} == {*trials[1].metrics} == {*trials[2].metrics}


@pytest.mark.parametrize(("goal", "place", "record"), [("val_auc", 0, "all"), ("val_auc_1", 1, "monitor")])
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


@pytest.mark.parametrize("goal", ["val_accuracy", "val_weighted_accuracy", "val_left_weighted_accuracy"])
def test_a_metric_that_is_also_weighted_has_the_names_of_keras(goal):
    seen = keras.Input((3,))
    names = ["left", "right"] if "left" in goal else ["one"]
    model = keras.Model(seen, [keras.layers.Dense(1, "sigmoid", name=name)(seen) for name in names])
    both = [["accuracy"] for _ in names]
    model.compile("sgd", ["binary_crossentropy"] * len(names), metrics=both, weighted_metrics=both, run_eagerly=True)
    trial, y = FakeTrial(goal, max_epochs=1), [Y] * len(names)
    data = {"validation_data": (X, y, [np.linspace(0, 1, len(X))] * len(names)), "verbose": 0}
    history = model.fit(X, y, callbacks=[HaltuneCallback(trial)], **data).history
    assert trial.values == history[goal]


def test_a_name_that_may_be_either_of_two_metrics_is_an_error_that_says_how_to_name_them():
    net(keras.metrics.AUC())
    model = net(keras.metrics.AUC(), keras.metrics.AUC(name="auc_1"))  # the first is called so by Keras
    with pytest.raises(InvalidInput, match=r"'val_auc_1' could be any of 2 metrics.*AUC\(name='my_auc_1'\)"):
        fit(FakeTrial("val_auc_1"), model)


def test_outputs_whose_layers_have_no_name_are_an_error_that_says_how_to_name_them():
    goal = ""
    for _ in range(2):
        seen = keras.Input((3,))
        model = keras.Model(seen, [keras.layers.Dense(1)(seen) for _ in "ab"])
        model.compile("sgd", ["mse"] * 2, metrics=[["mae"]] * 2, run_eagerly=True)
        goal = goal or f"val_{model.output_names[1]}_mae"
    data = {"validation_data": (X, [Y] * 2), "verbose": 0}
    with pytest.raises(InvalidInput, match=r"Name the output layers, Dense\(1, name='price'\), or name another one"):
        model.fit(X, [Y] * 2, callbacks=[HaltuneCallback(FakeTrial(goal, max_epochs=1))], **data)


class ByHand(keras.Model):
    """Returns its losses under names of its own choice, and updates the metric of that name if it is to."""

    def __init__(self, train, test, updates=()):
        super().__init__()
        self.dense, self.names, self.updates = keras.layers.Dense(1), {"train": train, "test": test}, updates
        self.dense.build((None, 3))
        self.built = True
        self.compile(keras.optimizers.SGD(0.1), run_eagerly=True)

    def call(self, x):
        return self.dense(x)

    def lost(self, step, data):
        loss = keras.ops.mean((self(data[0]) - data[1]) ** 2)
        for metric in self.metrics if step in self.updates else ():
            metric.update_state(loss)
        return loss, dict.fromkeys(self.names[step], loss)

    def train_step(self, data):
        self.zero_grad()
        loss, logs = self.lost("train", data)
        loss.backward()
        self.optimizer.apply([w.value.grad for w in self.trainable_weights], self.trainable_weights)
        return {name: value.detach() for name, value in logs.items()}

    def test_step(self, data):
        return self.lost("test", data)[1]


@pytest.mark.parametrize(
    ("goal", "options", "model"),
    [
        ("val_loss", {}, {"train": ["loss"], "test": ["loss"], "updates": ["train"]}),
        ("loss", {}, {"train": ["loss"], "test": ["loss"], "updates": ["test"]}),
        ("loss", {"validation_data": None}, {"train": ["loss"], "test": []}),
        ("val_loss", {"every": 1}, {"train": ["loss"], "test": ["loss"]}),
    ],
    ids=["validation", "training", "without validation", "within an epoch"],
)
def test_a_loss_that_keras_would_log_as_0_is_refused(goal, options, model):
    trial, every = FakeTrial(goal), {"every": options.pop("every"), "validation": (X, Y)} if "every" in options else {}
    with pytest.raises(InvalidInput, match=rf"'{goal}' would be 0 in each epoch.* does not update it\. .*update_state"):
        ByHand(**model).fit(
            X, Y, 16, epochs=3, verbose=0, callbacks=[HaltuneCallback(trial, **every)],
            **{"validation_data": (X, Y)} | options,
        )  # fmt: skip
    assert trial.values == []


@pytest.mark.parametrize(
    ("goal", "model"),
    [
        ("val_loss", {"train": ["loss"], "test": ["loss"], "updates": ["test"]}),
        ("loss", {"train": ["loss"], "test": ["loss"], "updates": ["train"]}),
        ("val_error", {"train": ["loss"], "test": ["error"]}),
        ("val_loss", {"train": ["loss"], "test": ["loss", "error"]}),
    ],
)
def test_a_loss_of_a_step_of_the_programs_that_keras_logs_is_the_value(goal, model):
    trial = FakeTrial(goal)
    history = fit(trial, ByHand(**model)).history
    assert trial.values == history[goal]
    assert min(trial.values) > 0
