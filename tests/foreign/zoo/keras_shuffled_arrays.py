"""Keras on TensorFlow with shuffled arrays, which it shuffles by a seed from the time when the fit is set up."""

import keras
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.keras import HaltuneCallback

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


def build(lr):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2),
                              keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(lr), "mse")
    return model


def search(study):
    for trial in study:
        with trial:
            model = keras.models.load_model(trial.checkpoint) if trial.checkpoint else build(**trial.config)
            model.fit(x, y, 16, trial.max_epochs, verbose=0, initial_epoch=int(trial.epoch), validation_split=0.2,
                      callbacks=[HaltuneCallback(trial)])


def evaluate(path, config):
    return keras.models.load_model(path).evaluate(x[64:], y[64:], verbose=0)


def trained(path):
    return int(keras.models.load_model(path).optimizer.iterations)


zoo = dict(
    needs=["keras", "tensorflow"],
    backend="tensorflow",
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
    counts="keras",
    hidden=True,
)
