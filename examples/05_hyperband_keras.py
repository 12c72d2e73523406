"""Hyperband on digits in Keras, with any backend: the best trials of each rung resume exactly where they were."""

import os
import sys

import numpy as np
from sklearn.datasets import load_digits

from haltune import Float, Int, Maximize, Problem, Space, Study
from haltune.callbacks.keras import HaltuneCallback
from haltune.policies import Hyperband
from haltune.report import live, summary, write

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras  # reads the environment
from keras import layers

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 9  # or: python examples/05_hyperband_keras.py 27


def network(lr, dropout, width):
    hidden = [layers.Dense(width, activation="relu"), layers.Dropout(dropout)]
    model = keras.Sequential([*hidden, layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(lr), loss, metrics=["accuracy"])
    return model


images, y = load_digits(return_X_y=True)
x = (images / 16).astype(np.float32)
space = Space({"lr": Float(1e-4, 1e-1, log=True), "dropout": Float(0, 0.7), "width": Int(8, 256, log=True)})
policy = Hyperband(EPOCHS, eta=3, sampler="sobol")
print(policy.table().table())  # configurations and epochs of each bracket
problem = Problem(space, Maximize("val_accuracy", (0, 1)), EPOCHS)
study = Study(problem, policy, "digits_hyperband_keras.db", seed=0)
with live(study):
    for trial in study:
        with trial:
            keras.utils.clear_session()
            model = trial.load_model() or network(**trial.config)
            model.fit(
                x[:1200], y[:1200], batch_size=64, verbose=0, validation_data=(x[1200:], y[1200:]),
                epochs=trial.max_epochs, initial_epoch=trial.epoch, callbacks=[HaltuneCallback(trial)],
            )  # fmt: skip
print(summary(study), f"curves: {write(study, 'digits_hyperband_keras.html')}", sep="\n")
if study.best:
    print("the best network:", study.best.load_model().evaluate(x[1200:], y[1200:], verbose=0, return_dict=True))
