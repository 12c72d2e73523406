"""Two outputs with losses and metrics of their own; the search is by one metric of one output."""

import keras
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.keras import HaltuneCallback

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


def build(lr):
    inputs = keras.Input((4,))
    hidden = keras.layers.BatchNormalization()(keras.layers.Dense(8, "relu")(inputs))
    outputs = {"total": keras.layers.Dense(1, name="total")(hidden),
               "sign": keras.layers.Dense(1, "sigmoid", name="sign")(hidden)}
    model = keras.Model(inputs, outputs)
    model.compile(keras.optimizers.RMSprop(lr), loss={"total": "mse", "sign": "binary_crossentropy"},
                  metrics={"total": ["mae"], "sign": ["accuracy"]})
    return model


def targets(rows):
    return {"total": y[rows], "sign": (y[rows] > 0).astype("float32")}


def search(study):
    for trial in study:
        with trial:
            model = trial.load_model() or build(**trial.config)
            model.fit(x[:64], targets(slice(64)), 16, trial.max_epochs, verbose=0, initial_epoch=int(trial.epoch),
                      validation_data=(x[64:], targets(slice(64, 80))), callbacks=[HaltuneCallback(trial)])


def evaluate(path, config):
    model = keras.models.load_model(path)
    return model.evaluate(x[64:], targets(slice(64, 80)), verbose=0, return_dict=True)["total_mae"]


zoo = dict(
    needs=["keras", "torch"],
    backend="torch",
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_total_mae"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
    counts="keras",
)
