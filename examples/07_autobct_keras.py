"""AutoBCT tunes a small network in Keras, with any backend, and stops when another training is not worth its time."""

import os
import sys

import numpy as np
from sklearn.datasets import load_digits

from haltune import Float, Int, Maximize, Problem, Space, Study
from haltune.callbacks.keras import HaltuneCallback
from haltune.policies import AutoBCT
from haltune.report import live, summary, write

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras  # reads the environment
from keras import layers

MOST, EPOCHS = (int(n) for n in sys.argv[1:] or (20, 10))  # or: python examples/07_autobct_keras.py 3 2


def network(lr, **_):
    model = keras.Sequential([layers.Dense(64, activation="relu"), layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(lr), loss, metrics=["accuracy"])
    return model


images, y = load_digits(return_X_y=True)
x = (images / 16).astype(np.float32)
space = Space({"lr": Float(1e-4, 1e-1, log=True), "batch": Int(16, 256, log=True)})
# a minute of training must gain 1/60 of accuracy; a search that gains less than it costs ends
policy = AutoBCT(worst=0.5, best=1.0, score_per_hour=1.0, max_trainings=MOST)
problem = Problem(space, Maximize("val_accuracy", (0, 1)), EPOCHS)
study = Study(problem, policy, "digits_autobct.db", seed=0)
with live(study):
    for trial in study:
        with trial:
            keras.utils.clear_session()
            keras.utils.set_random_seed(trial.id)
            model = network(**trial.config)
            model.fit(
                x[:1200], y[:1200], batch_size=trial.config["batch"], epochs=trial.max_epochs, verbose=0,
                validation_data=(x[1200:], y[1200:]), callbacks=[HaltuneCallback(trial)],
            )  # fmt: skip
print(study.outcome.reason)
print(summary(study), f"curves: {write(study, 'digits_autobct.html')}", sep="\n")
