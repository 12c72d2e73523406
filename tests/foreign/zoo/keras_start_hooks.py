"""Callbacks that read or set the learning rate and the weights when the fit starts: warm-up, decay, pruning."""

import time

import keras
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.keras import HaltuneCallback

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


class Warmup(keras.callbacks.Callback):
    """Raises the rate in the first six steps."""

    def __init__(self, rate):
        super().__init__()
        self.rate, self.step = rate, 0

    def on_train_begin(self, logs=None):
        self.model.optimizer.learning_rate = self.rate / 6

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        if self.step < 6:
            self.model.optimizer.learning_rate = self.rate * (self.step + 1) / 6


class Lottery(keras.callbacks.Callback):
    """Keeps weights at 0 that it draws at the start, and stops after an hour."""

    def on_train_begin(self, logs=None):
        self.began = time.monotonic()
        self.masks = [np.random.random(w.shape) > 0.3 for w in self.model.get_weights()]  # noqa: NPY002
        self.prune()

    def prune(self):
        self.model.set_weights([w * mask for w, mask in zip(self.model.get_weights(), self.masks, strict=True)])

    def on_train_batch_end(self, batch, logs=None):
        self.prune()
        self.model.stop_training = time.monotonic() > self.began + 3600


class Anchor(keras.callbacks.Callback):
    """Pulls the weights to those at the start."""

    def on_train_begin(self, logs=None):
        self.start = keras.models.clone_model(self.model)
        self.start.set_weights(self.model.get_weights())

    def on_train_batch_end(self, batch, logs=None):
        for weight, start in zip(self.model.trainable_weights, self.start.trainable_weights, strict=True):
            weight.assign(0.9 * weight + 0.1 * start)


class Decay(keras.callbacks.Callback):
    """Lowers the rate that the fit starts with, once an epoch from the third on."""

    def on_train_begin(self, logs=None):
        self.rate = float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)) * 6

    def on_epoch_begin(self, epoch, logs=None):
        if epoch >= 2:
            self.model.optimizer.learning_rate = self.rate * 0.5 ** (epoch - 1)


def build(lr):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(lr), "mse")
    return model


def search(study):
    for trial in study:
        with trial:
            model = trial.load_model() or build(**trial.config)
            model.fit(x[:64], y[:64], 16, trial.max_epochs, verbose=0, initial_epoch=int(trial.epoch),
                      validation_data=(x[64:], y[64:]),
                      callbacks=[Warmup(trial.config["lr"]), HaltuneCallback(trial), Lottery(), Decay(), Anchor()])


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
