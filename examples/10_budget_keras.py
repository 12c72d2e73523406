"""Five minutes for digits in Keras, with any backend: the search plans with the remaining time, and ends in time."""

import os
import sys

import numpy as np
from sklearn.datasets import load_digits

from haltune import Budget, Float, Int, Maximize, Problem, Space, Study
from haltune.callbacks.keras import HaltuneCallback
from haltune.policies import Rollout
from haltune.report import live, summary, write

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras  # reads the environment
from keras import layers

TIME = sys.argv[1] if len(sys.argv) > 1 else "5min"  # or: python examples/10_budget_keras.py 30s 2
EPOCHS = int(sys.argv[2]) if len(sys.argv) > 2 else 15

rates = {"lr": Float(1e-4, 1e-1, log=True), "dropout": Float(0, 0.7)}
sizes = {
    "depth": Int(1, 4),
    "width": Int(8, 512, log=True),
    "batch": Int(8, 256, log=True),
}  # these decide the training time


def network(lr, dropout, depth, width, **_):
    hidden = [layer for _ in range(depth) for layer in (layers.Dense(width, "relu"), layers.Dropout(dropout))]
    model = keras.Sequential([*hidden, layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(lr), loss, metrics=["accuracy"])
    return model


images, y = load_digits(return_X_y=True)
x = (images / 16).astype(np.float32)
problem = Problem(Space(rates | sizes), Maximize("val_accuracy", bounds=(0, 1)), max_epochs=EPOCHS)
policy = Rollout(affordable=0.9)  # a training starts if it ends in time with 90% probability
study = Study(problem, policy, "digits_budget_keras.db", seed=0, budget=Budget(time=TIME))
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
print(summary(study), f"curves: {write(study, 'digits_budget_keras.html')}", sep="\n")
