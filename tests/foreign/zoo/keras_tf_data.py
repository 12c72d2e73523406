"""Keras on TensorFlow from tf.data, shuffled and repeated, so that an epoch is steps_per_epoch batches."""

import keras
import numpy as np
import tensorflow as tf

from haltune import Float, Minimize
from haltune.callbacks.keras import HaltuneCallback

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


def build(lr):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(lr), "mse", run_eagerly=True)
    return model


def search(study):
    for trial in study:
        with trial:
            rows = tf.data.Dataset.from_tensor_slices((x[:64], y[:64]))
            train = rows.shuffle(64, seed=1).repeat().batch(16)
            model = trial.load_model() or build(**trial.config)
            model.fit(train, epochs=trial.max_epochs, steps_per_epoch=4, verbose=0, initial_epoch=int(trial.epoch),
                      validation_data=(x[64:], y[64:]), callbacks=[HaltuneCallback(trial)])


def evaluate(path, config):
    return keras.models.load_model(path).evaluate(x[64:], y[64:], verbose=0)


zoo = dict(
    needs=["keras", "tensorflow"],
    backend="tensorflow",
    slow=True,
    declines="its tf.data dataset shuffles from a seed, in another order in each pass",
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
    counts="keras",
)
