"""A validation every second epoch of five in Keras: the last value of a trial is that of epoch 4."""

import keras
import numpy as np

from haltune import Float
from haltune.callbacks.keras import HaltuneCallback

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


def build(lr):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.RMSprop(lr), "mse")
    return model


def search(study):
    for trial in study:
        with trial:
            model = trial.load_model() or build(**trial.config)
            model.fit(x[:64], y[:64], 16, trial.max_epochs, verbose=0, initial_epoch=int(trial.epoch),
                      validation_data=(x[64:], y[64:]), validation_freq=2, callbacks=[HaltuneCallback(trial)])


def evaluate(path, config):
    return keras.models.load_model(path).evaluate(x[64:], y[64:], verbose=0)


zoo = dict(
    needs=["keras", "torch"],
    backend="torch",
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    max_epochs=5,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[2],
    updates=4,
    counts="keras",
    says=["reports last at epoch 4 of 5"],
    best_epoch=False,
)
