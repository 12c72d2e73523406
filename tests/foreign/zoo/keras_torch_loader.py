"""Keras trained from loaders of torch, with a schedule in the optimizer."""

import keras
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from haltune import Float, Minimize
from haltune.callbacks.keras import HaltuneCallback

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


def build(lr):
    schedule = keras.optimizers.schedules.CosineDecay(lr, 16)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.AdamW(schedule), "mse")
    return model


def search(study):
    rows = TensorDataset(torch.tensor(x), torch.tensor(y))
    for trial in study:
        with trial:
            train = DataLoader(torch.utils.data.Subset(rows, range(64)), 16, shuffle=True)
            val = DataLoader(torch.utils.data.Subset(rows, range(64, 80)), 16)
            model = trial.load_model() or build(**trial.config)
            model.fit(train, epochs=trial.max_epochs, verbose=0, initial_epoch=int(trial.epoch), validation_data=val,
                      callbacks=[HaltuneCallback(trial)])


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
    says=["before the end of its learning-rate schedule"],
)
