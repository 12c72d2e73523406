"""A PyDataset and a callback with lists that are made at random, and change in each epoch."""

import random

import keras
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.keras import HaltuneCallback

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


class Rows(keras.utils.PyDataset):
    def __init__(self):
        super().__init__()
        self.order = random.sample(range(64), 64)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        rows = self.order[index * 16 : index * 16 + 16]
        return x[rows], y[rows]

    def on_epoch_end(self):
        random.shuffle(self.order)


class Jitter(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.rates = [random.uniform(0.01, 0.03) for _ in range(3)]
        self.scale = random.random()

    def on_epoch_begin(self, epoch, logs=None):
        self.rates[epoch % 3] *= 0.9
        self.scale *= 0.9
        self.model.optimizer.learning_rate = sum(self.rates) * self.scale


def build(momentum):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01, momentum), "mse")
    return model


def search(study):
    for trial in study:
        with trial:
            model = trial.load_model() or build(**trial.config)
            model.fit(Rows(), epochs=trial.max_epochs, initial_epoch=int(trial.epoch), verbose=0,
                      validation_data=(x[64:], y[64:]), callbacks=[Jitter(), HaltuneCallback(trial)])


def evaluate(path, config):
    return keras.models.load_model(path).evaluate(x[64:], y[64:], verbose=0)


zoo = dict(
    needs=["keras", "torch"],
    backend="torch",
    slow=True,
    space={"momentum": Float(0.1, 0.9)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"momentum": 0.5}, {"momentum": 0.8}],
    pauses=[1, 3],
    updates=4,
    counts="keras",
)
