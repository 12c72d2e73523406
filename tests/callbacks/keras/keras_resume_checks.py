"""Keras models and the cases in which their trainings resume exactly, and one that does so in another process."""

import gc
import random

import keras
import numpy as np
import pytest
from fits import Case, few
from paused_studies import pausing_study

from haltune.callbacks.keras import HaltuneCallback

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")
BACKEND = keras.backend.backend()
once = pytest.mark.skipif(BACKEND != "torch", reason="the same on every backend, and fastest on torch")
X = np.random.default_rng(0).normal(size=(10, 3)).astype("float32")
Y = X.sum(1, keepdims=True)
STEPS = 3  # of 4 samples, the last of 2


def seed_everything(seed):
    if BACKEND == "torch":  # keras.utils.set_random_seed would import TensorFlow
        import torch

        gc.freeze()  # clear_session collects garbage: without this it walks through all that was imported
        keras.utils.clear_session()  # forgets Keras' own generator; the next is seeded by Python's
        torch.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002 - Keras draws from it
        random.seed(seed)
    else:
        keras.utils.set_random_seed(seed)


def momentum(lr):
    return keras.optimizers.SGD(lr, momentum=0.9, nesterov=True)


def net(optimizer, dtype=None):
    """A tiny model, without TensorFlow's graphs: they take seconds."""
    layers = [keras.layers.Dropout(0.3, dtype=dtype), keras.layers.Dense(1, dtype=dtype)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(optimizer, "mse", run_eagerly=BACKEND != "jax")
    return model


def deep(lr):
    """Two dropouts, batch statistics, a hidden layer; compiled with Keras's defaults."""
    layers = [
        keras.layers.Dropout(0.3),
        keras.layers.Dense(4, "tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(momentum(lr), "mse", metrics=["mae"])
    return model


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return STEPS

    def __getitem__(self, index):
        rows = slice(4 * index, 4 * index + 4)
        return X[rows] + np.random.normal(size=(1, 3)), Y[rows]  # noqa: NPY002 - augmented by the global generator


def state(model):
    """Everything that the next epoch depends on."""
    variables = [*model.variables, *model.optimizer.variables]
    return [*(keras.ops.convert_to_numpy(v).astype("float64") for v in variables), np.array(drawn())]


def drawn():
    """The next numbers of all global generators."""
    found = [random.random(), *np.random.random(2), *keras.ops.convert_to_numpy(keras.random.normal((2,)))]  # noqa: NPY002
    if BACKEND == "torch":
        import torch

        found += torch.rand(2).tolist()
    return found


def cosine(lr):
    schedule = keras.optimizers.schedules.CosineDecay(lr, 4 * STEPS - 5, warmup_target=2 * lr, warmup_steps=5)
    return keras.optimizers.Adam(schedule)


def averaged(lr):
    schedule = keras.optimizers.schedules.ExponentialDecay(lr, 5, 0.9)
    return keras.optimizers.AdamW(schedule, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=5)


def my_loss(y, p):
    return keras.ops.mean((y - p) ** 2)


def own_loss(lr=0.05):
    return compiled([keras.layers.Dropout(0.3), keras.layers.Dense(1)], lr, my_loss)


def subclass(lr=0.05):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.drop, self.out = keras.layers.Dropout(0.3), keras.layers.Dense(1)

        def call(self, x, training=False):
            return self.out(self.drop(x, training=training))

    model = Net()
    return compile(model, lr, "mse")


def compiled(layers, lr, loss="mse"):
    return compile(keras.Sequential([keras.Input((3,)), *layers]), lr, loss)


def compile(model, lr, loss):
    """With slots, averages and a schedule: all of it must come back."""
    rate = keras.optimizers.schedules.ExponentialDecay(lr, 5, 0.9)
    optimizer = keras.optimizers.Adam(rate, use_ema=True, ema_momentum=0.8)
    model.compile(optimizer, loss, run_eagerly=BACKEND == "tensorflow")
    return model


def changed_by_hand():
    model = net(momentum(0.01))
    model.optimizer.learning_rate = 0.01 / 3
    return model


ONCE = (once,)
CASES = {
    "a schedule": Case({"make": lambda: net(cosine(0.01)), "validation_data": None}, (2,), metric="loss"),
    "averaged weights": Case({"make": lambda: net(averaged(0.01)), "validation_data": None}, (2,), metric="loss"),
    "normalized batches, compiled": Case({"make": lambda: deep(0.01)}, metric="val_mae", marks=ONCE),
    "mixed precision": Case(
        {"make": lambda: net(cosine(0.01), "mixed_bfloat16"), "validation_data": None}, (2,), metric="loss"
    ),
    "a last attempt without a validation": Case({"validation_freq": 2}, (2,), 3, last=2),
    "shuffled and augmented batches": Case({"data": Batches, "validation_data": None}, (2,), metric="loss"),
    "a learning rate changed by hand": Case({"make": changed_by_hand}, (2,), metric="loss", marks=ONCE),
    "by steps": Case({"epochs": 4}, (STEPS, 3 * STEPS), 4 * STEPS, "step"),
    "built by a function, for its loss": Case({"make": own_loss, "by_function": True}),
    "built by a function, for its class": Case({"make": subclass, "by_function": True}, marks=ONCE),
}
CASES = few(
    CASES,
    "a schedule",
    "a last attempt without a validation",
    "shuffled and augmented batches",
    "by steps",
    "built by a function, for its class",
)


def test_a_resumed_trial_leaves_the_global_generators_as_they_were(tmp_path):
    study = pausing_study(f"{tmp_path}/s.db", at=(1,), epochs=2, verbose=0)

    def start(seed):
        seed_everything(seed)
        keras.random.normal((2,))  # makes Keras' own generator

    for attempt in (1, 2):
        start(attempt)
        with study.ask() as trial:
            model = trial.load_model() or net(momentum(0.01))
            plan = {"epochs": 2, "initial_epoch": trial.epoch, "callbacks": [HaltuneCallback(trial)]}
            model.fit(X, Y, verbose=0, validation_data=(X, Y), **plan)
            keras.random.normal((2,))
        found = drawn()
        start(attempt)
        assert (found == drawn()) == (attempt == 2)


def fit(trial):
    with trial:
        seed_everything(3 if trial.checkpoint is None else 77)  # a resumed process has drawn other numbers
        model = trial.load_model() or deep(trial.config["lr"])
        plan = {"epochs": 4, "initial_epoch": trial.epoch, "callbacks": [HaltuneCallback(trial)]}
        model.fit(X, Y, batch_size=4, verbose=0, validation_data=(X, Y), **plan)
        return state(model)  # the end of the trial restores the random state of its process


def resume(store, result):
    """Resume in a second process, which has nothing of the first."""
    study = pausing_study(store)
    np.savez(result, *fit(study.ask()))
    assert study.trials[0].epochs.tolist() == [1, 2, 3, 4]


def test_a_paused_training_resumes_in_another_process_and_in_compiled_steps_digit_for_digit(in_a_process, tmp_path):
    straight = fit(pausing_study(at=()).ask())
    store = f"sqlite:///{tmp_path}/search.db"
    study = pausing_study(store)
    fit(study.ask())
    assert study.trials[0].status == "paused"
    code = f"import keras_resume_checks as c; c.resume({store!r}, {str(tmp_path / 'state.npz')!r})"
    in_a_process(code, KERAS_BACKEND=BACKEND)
    with np.load(tmp_path / "state.npz") as paused:
        assert len(paused.files) == len(straight)
        for name, numbers in zip(paused.files, straight, strict=True):
            np.testing.assert_array_equal(paused[name], numbers)
