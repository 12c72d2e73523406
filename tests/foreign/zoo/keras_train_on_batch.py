"""A loop of the user's own over model.train_on_batch, which saves the whole model."""

import keras
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.loop import TrainingLoop

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


def build(lr):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(lr), "mse")
    return model


def search(study):
    for trial in study:
        with trial:
            model = keras.models.load_model(trial.checkpoint) if trial.checkpoint else build(**trial.config)
            loop = TrainingLoop(trial, save=model.save, suffix=".keras")
            for _ in loop:
                for rows in np.random.permutation(64).reshape(4, 16):  # noqa: NPY002
                    model.train_on_batch(x[rows], y[rows])
                with loop.validation():
                    value = model.test_on_batch(x[64:], y[64:])
                model.reset_metrics()
                loop.report(float(np.ravel(value)[0]))


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
