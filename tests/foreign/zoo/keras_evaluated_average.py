"""A callback averages the weights as arrays, evaluates the average, and logs its value."""

import keras
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.keras import HaltuneCallback

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


class Average(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        self.average = self.model.get_weights()

    def on_epoch_end(self, epoch, logs=None):
        own = self.model.get_weights()
        self.average = [0.9 * a + 0.1 * w for a, w in zip(self.average, own, strict=True)]
        self.model.set_weights(self.average)
        logs["val_ema_loss"] = self.model.evaluate(x[64:], y[64:], verbose=0)
        self.model.set_weights(own)


def build(lr):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(lr), "mse")
    return model


def search(study):
    for trial in study:
        with trial:
            model = trial.load_model() or build(**trial.config)
            model.fit(x[:64], y[:64], 16, trial.max_epochs, verbose=0, initial_epoch=int(trial.epoch),
                      callbacks=[Average(), HaltuneCallback(trial)])


def evaluate(path, config):
    return keras.models.load_model(path).evaluate(x[64:], y[64:], verbose=0)


zoo = dict(
    needs=["keras", "torch"],
    backend="torch",
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_ema_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
    counts="keras",
    late=["A callback logs 'val_ema_loss', and Average.average, an average of the weights, changes in training"],
    keeps=False,
)
