"""One Keras training on two devices: MirroredStrategy on TensorFlow. Run by test_callback.py in its own process."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from callback_fakes import STOP, FakeTrial
from paused_studies import pausing_study

from haltune.callbacks.keras import HaltuneCallback

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")
two = [tf.config.LogicalDeviceConfiguration()] * 2  # before TensorFlow's first operation
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
Y = X.sum(1, keepdims=True)


def net(lr=0.01):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dropout(0.3), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(lr), "mse")
    return model


def fit(trial, load=None):
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = load(trial) if load else (trial.load_model() if trial.checkpoint else None) or net()
    assert model.distribute_strategy.num_replicas_in_sync == 2
    options = {"epochs": trial.max_epochs, "initial_epoch": trial.epoch, "callbacks": [HaltuneCallback(trial)]}
    history = model.fit(X, Y, validation_data=(X, Y), batch_size=8, verbose=0, **options)
    return model, history.history["val_loss"]


def test_two_replicas_are_one_training_that_reports_and_stops():
    trial = FakeTrial(max_epochs=4, verdicts={2.0: STOP}, epoch=0)
    _, values = fit(trial)
    assert trial.epochs == [1, 2]
    assert trial.values == values


def own_loss(lr):
    model = net(lr)
    model.compile(keras.optimizers.Adam(lr), lambda y, p: keras.ops.mean((y - p) ** 2))
    return model


LOADED = [pytest.param(None, id="whole"), pytest.param(lambda trial: trial.load_model(own_loss), id="by the function")]


@pytest.mark.parametrize("load", LOADED)
def test_they_pause_and_resume_as_if_they_had_not(load):
    def trained(*at):
        study = pausing_study(at=at)
        for trial in study:
            with trial:
                keras.utils.set_random_seed(3 if trial.checkpoint is None else 77)
                model, _ = fit(trial, load)
        (record,) = study.trials
        assert record.attempt == 1 + len(at)
        variables = [*model.variables, *model.optimizer.variables]
        return [keras.ops.convert_to_numpy(v) for v in variables], record.values

    (straight, values), (paused, again) = trained(), trained(2)
    assert values.tolist() == again.tolist()
    for a, b in zip(straight, paused, strict=True):
        np.testing.assert_array_equal(a, b)
