"""A callback averages the weights of the last epochs with NumPy, and sets them when the training ends."""

import keras
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.keras import HaltuneCallback

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


class Average(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.sum, self.count = None, 0

    def on_epoch_end(self, epoch, logs=None):
        if epoch >= 1:
            weights = self.model.get_weights()
            self.sum = weights if self.sum is None else [a + b for a, b in zip(self.sum, weights, strict=True)]
            self.count += 1

    def on_train_end(self, logs=None):
        if self.count:
            self.model.set_weights([total / self.count for total in self.sum])


def build(lr):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6, "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(lr), "mse")
    return model


def search(study):
    for trial in study:
        with trial:
            model = trial.load_model() or build(**trial.config)
            model.fit(x[:64], y[:64], 16, trial.max_epochs, verbose=0, initial_epoch=int(trial.epoch),
                      validation_data=(x[64:], y[64:]), callbacks=[Average(), HaltuneCallback(trial)])


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
