"""An optimizer within a LossScaleOptimizer, as for float16, with a decay by steps."""

import keras
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.keras import HaltuneCallback

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


def build(lr):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dense(1)])
    decay = keras.optimizers.schedules.CosineDecay(lr, 16)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(decay), 2.0**10, dynamic_growth_steps=6)
    model.compile(scaled, "mse")
    return model


def search(study):
    for trial in study:
        with trial:
            model = trial.load_model() or build(**trial.config)
            model.fit(x[:64], y[:64], 16, trial.max_epochs, verbose=0, initial_epoch=int(trial.epoch),
                      validation_data=(x[64:], y[64:]), callbacks=[HaltuneCallback(trial)])


def evaluate(path, config):
    return keras.models.load_model(path).evaluate(x[64:], y[64:], verbose=0)


zoo = dict(
    needs=["keras", "torch"],
    backend="torch",
    slow=True,
    says=[r"before the end of its learning-rate schedule"],
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
    counts="keras",
)
