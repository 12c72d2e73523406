"""A mean teacher: a callback moves a second model after the fit's, and logs its loss."""

import keras
import numpy as np

from haltune import Float, Minimize
from haltune.callbacks.keras import HaltuneCallback

x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
y = x.sum(1, keepdims=True)


class Teacher(keras.callbacks.Callback):
    def __init__(self, teacher):
        super().__init__()
        self.teacher = teacher

    def on_train_batch_end(self, batch, logs=None):
        for weight, student in zip(self.teacher.weights, self.model.weights, strict=True):
            weight.assign(0.9 * weight + 0.1 * student)

    def on_epoch_end(self, epoch, logs=None):
        logs["val_teacher"] = np.mean((self.teacher.predict(x[64:], verbose=0) - y[64:]) ** 2)


def build(lr):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(lr), "mse")
    return model


def search(study):
    for trial in study:
        with trial:
            model = trial.load_model() or build(**trial.config)
            teacher = keras.models.clone_model(model)
            teacher.set_weights(model.get_weights())
            model.fit(x[:64], y[:64], 16, trial.max_epochs, verbose=0, initial_epoch=int(trial.epoch),
                      validation_data=(x[64:], y[64:]), callbacks=[Teacher(teacher), HaltuneCallback(trial)])


def evaluate(path, config):
    raise FileNotFoundError("the file would have the student")


zoo = dict(
    needs=["keras", "torch"],
    backend="torch",
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_teacher"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
    counts="keras",
    late=["A callback logs 'val_teacher', and Teacher.teacher, a model apart from that of the fit"],
    keeps=False,
)
