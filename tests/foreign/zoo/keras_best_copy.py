"""A callback evaluates the model, logs the value, and keeps a copy of the best weights, which it sets as the training ends early."""

import keras
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.keras import HaltuneCallback

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


class Best(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.least, self.waits, self.weights = float("inf"), 0, None

    def on_epoch_end(self, epoch, logs=None):
        logs["val_own"] = value = self.model.evaluate(x[64:], y[64:], verbose=0)
        self.waits += 1
        if value < self.least:
            self.least, self.waits, self.weights = value, 0, self.model.get_weights()
        if self.waits > 5:
            self.model.set_weights(self.weights)
            self.model.stop_training = True


def build(lr):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(lr), "mse")
    return model


def search(study):
    for trial in study:
        with trial:
            model = trial.load_model() or build(**trial.config)
            model.fit(x[:64], y[:64], 16, trial.max_epochs, verbose=0, initial_epoch=int(trial.epoch),
                      callbacks=[HaltuneCallback(trial), Best()])


def evaluate(path, config):
    return keras.models.load_model(path).evaluate(x[64:], y[64:], verbose=0)


zoo = dict(
    needs=["keras", "torch"],
    backend="torch",
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_own"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.6}],
    pauses=[1, 3],
    updates=4,
    counts="keras",
)
