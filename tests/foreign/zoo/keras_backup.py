"""BackupAndRestore in a folder of each trial, as on machines that are preempted."""

import keras
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.keras import HaltuneCallback

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


def build(lr):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(lr), "mse")
    return model


def search(study):
    for trial in study:
        with trial:
            model = trial.load_model() or build(**trial.config)
            backup = keras.callbacks.BackupAndRestore(f"backup/{trial.id}")
            model.fit(x[:64], y[:64], 16, trial.max_epochs, verbose=0, initial_epoch=int(trial.epoch),
                      validation_data=(x[64:], y[64:]), callbacks=[backup, HaltuneCallback(trial)])


def evaluate(path, config):
    return keras.models.load_model(path).evaluate(x[64:], y[64:], verbose=0)


zoo = dict(
    needs=["keras", "torch"],
    backend="torch",
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
    counts="keras",
)
