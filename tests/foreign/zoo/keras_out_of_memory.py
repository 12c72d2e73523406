"""A fit that runs out of memory in its third epoch, and is tried again with a smaller model."""

import keras
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.keras import HaltuneCallback

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


class Memory(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if self.model.count_params() > 100 and int(self.model.optimizer.iterations) == 8:
            raise MemoryError("Cannot allocate 2.00 GiB")


def build(lr, width):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(width), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(lr), "mse")
    return model


def fit(trial, width):
    model = trial.load_model() or build(trial.config["lr"], width)
    model.fit(
        x[:64],
        y[:64],
        16,
        trial.max_epochs,
        verbose=0,
        initial_epoch=int(trial.epoch) if trial.checkpoint else 0,
        validation_data=(x[64:], y[64:]),
        callbacks=[Memory(), HaltuneCallback(trial)],
    )


def search(study):
    for trial in study:
        with trial:
            try:
                fit(trial, 64)
            except MemoryError:
                fit(trial, 8)


def evaluate(path, config):
    return keras.models.load_model(path).evaluate(x[64:], y[64:], verbose=0)


zoo = dict(
    needs=["keras", "torch"],
    backend="torch",
    slow=True,
    says=[r"had reported epoch 2, and now trains again from its start.*The previous fit ended within an epoch"],
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[],
    updates=4,
    counts="keras",
    best_epoch=False,
)
