"""BO-BOS tunes a small convolutional network in Keras, with any backend, on scikit-learn's digits."""

import os
import sys

import numpy as np
from sklearn.datasets import load_digits

from haltune import Budget, Choice, Float, Int, Maximize, Problem, Space, Study
from haltune.callbacks.keras import HaltuneCallback
from haltune.policies import BOBOS
from haltune.report import live, summary, write

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import keras  # reads the environment
from keras import layers

TRIALS, EPOCHS = (int(n) for n in sys.argv[1:] or (12, 30))  # or: python examples/02_keras.py 5 10

SPACE = Space(
    {
        "lr": Float(1e-4, 1e-1, log=True),
        "decay": Float(1e-6, 1e-1, log=True),
        "dropout": Float(0, 0.7),
        "channels": Int(2, 24, log=True),
        "kernel": Choice([1, 3, 5]),
        "batch": Int(32, 512, log=True),
    }
)


def network(lr, decay, dropout, channels, kernel, **_):
    image = [layers.Conv2D(channels, kernel, padding="same", activation="relu"), layers.MaxPool2D(2)]
    model = keras.Sequential([*image, layers.Flatten(), layers.Dropout(dropout), layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(lr, weight_decay=decay), loss, metrics=["accuracy"])
    return model


images, y = load_digits(return_X_y=True)
x = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
problem = Problem(SPACE, Maximize("val_accuracy", bounds=(0, 1)), max_epochs=EPOCHS)
study = Study(problem, BOBOS(), store="sqlite:///digits_keras.db", budget=Budget(trials=TRIALS))
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
print(summary(study), f"curves: {write(study, 'digits_keras.html')}", sep="\n")
if study.best:
    print("the best network:", study.best.load_model().evaluate(x[1200:], y[1200:], verbose=0, return_dict=True))
