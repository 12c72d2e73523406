"""A frozen base, then fine-tuning in a second fit, as in the guide on transfer learning."""

import keras
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.keras import HaltuneCallback

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


def build(lr):
    base = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh")], name="base")
    base.trainable = False
    model = keras.Sequential([keras.Input((4,)), base, keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(lr), "mse")
    return model


def search(study):
    for trial in study:
        with trial:
            model = trial.load_model() or build(**trial.config)
            common = dict(batch_size=16, verbose=0, validation_data=(x[64:], y[64:]))
            if trial.epoch < 2:
                model.fit(x[:64], y[:64], epochs=2, initial_epoch=int(trial.epoch),
                          callbacks=[HaltuneCallback(trial)], **common)
                if trial.verdict and trial.verdict.stops:
                    continue
                model.get_layer("base").trainable = True
                model.compile(keras.optimizers.Adam(trial.config["lr"] / 10), "mse")
            model.fit(x[:64], y[:64], epochs=trial.max_epochs, initial_epoch=int(trial.epoch),
                      callbacks=[HaltuneCallback(trial)], **common)


def evaluate(path, config):
    return keras.models.load_model(path).evaluate(x[64:], y[64:], verbose=0)


zoo = dict(
    needs=["keras", "torch"],
    backend="torch",
    slow=True,
    says=["the program may change the model, a callback or random numbers before another fit"],
    declines="compiles the model again after it has trained",
    late=["compiles the model again after it has trained"],
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[2, 3],
    updates=4,
    counts="keras",
)
