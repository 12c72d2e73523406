"""A Keras training that was paused equals one that was not. Run by test_callback.py in a process for each backend."""

import gc
import random

import keras
import numpy as np
import pytest
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


def train(trials, make, data=None, epochs=4, **options):
    """Train these trials to their ends, however often they pause; the last model."""
    x, y, size = (data(), None, None) if data else (X, Y, 4)
    for trial in trials:
        with trial:
            seed_everything(3 if trial.checkpoint is None else 77)  # a resumed process has drawn other numbers
            keras.random.normal((2,))
            model = trial.load_model() or make(trial.config["lr"])
            more = {"epochs": epochs, "initial_epoch": trial.epoch, "callbacks": [HaltuneCallback(trial)]}
            model.fit(x, y, batch_size=size, verbose=0, **more, **options)
    return model


def state(model):
    """Everything that the next epoch depends on."""
    variables = [*model.variables, *model.optimizer.variables]
    numbers = [keras.ops.convert_to_numpy(v).astype("float64") for v in variables]
    drawn = [random.random(), *np.random.random(2), *keras.ops.convert_to_numpy(keras.random.normal((2,)))]  # noqa: NPY002
    if BACKEND == "torch":
        import torch

        drawn += torch.rand(2).tolist()
    return [*numbers, np.array(drawn)]


def both(make, at=(2,), metric="loss", epochs=4, **options):
    """The states and the values of a training in one go, and of one that paused."""
    results = []
    for pauses in ((), at):
        study = pausing_study(at=pauses, metric=metric, epochs=epochs)
        model = train(study, make, epochs=epochs, **options)
        (trial,) = study.trials
        assert (trial.status, trial.attempt) == ("completed", 1 + len(pauses))
        results.append((state(model), trial.values.tolist()))
    return results


def same(make, **options):
    (straight, values), (paused, again) = both(make, **options)
    assert values == again
    assert len(straight) == len(paused)
    for a, b in zip(straight, paused, strict=True):
        np.testing.assert_array_equal(a, b)


def cosine(lr):
    schedule = keras.optimizers.schedules.CosineDecay(lr, 4 * STEPS - 5, warmup_target=2 * lr, warmup_steps=5)
    return keras.optimizers.Adam(schedule)


def averaged(lr):
    schedule = keras.optimizers.schedules.ExponentialDecay(lr, 5, 0.9)
    return keras.optimizers.AdamW(schedule, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=5)


@pytest.mark.parametrize("optimizer", [momentum, cosine, averaged])
def test_a_paused_training_equals_one_that_was_not(optimizer):
    same(lambda lr: net(optimizer(lr)))


@once
def test_it_does_with_validation_and_over_two_pauses():
    same(deep, at=(1, 3), metric="val_mae", validation_data=(X, Y))


def continue_(store, result):
    """Continue in a second process, which has nothing of the first."""
    study = pausing_study(store)
    np.savez(result, *state(train(study, deep, validation_data=(X, Y))))
    assert study.trials[0].epochs.tolist() == [1, 2, 3, 4]


def test_it_does_in_another_process_and_in_compiled_steps(in_a_process, tmp_path):
    straight = state(train(pausing_study(at=()), deep, validation_data=(X, Y)))
    store = f"sqlite:///{tmp_path}/search.db"
    study = pausing_study(store)
    train([study.ask()], deep, validation_data=(X, Y))
    assert study.trials[0].status == "paused"
    code = f"import keras_resume_checks as c; c.go_on({store!r}, {str(tmp_path / 'state.npz')!r})"
    in_a_process(code, KERAS_BACKEND=BACKEND)
    with np.load(tmp_path / "state.npz") as paused:
        assert len(paused.files) == len(straight)
        for name, numbers in zip(paused.files, straight, strict=True):
            np.testing.assert_array_equal(paused[name], numbers)


def test_it_does_in_mixed_precision():
    same(lambda lr: net(cosine(lr), dtype="mixed_bfloat16"))


def test_it_does_when_the_last_leg_holds_no_validation():
    """A metric that was measured before the pause is not misspelt."""
    validation = {"validation_data": (X, Y), "validation_freq": 2}
    same(lambda lr: net(momentum(lr)), metric="val_loss", epochs=3, **validation)


def test_it_does_with_batches_that_are_shuffled_and_augmented():
    same(lambda lr: net(momentum(lr)), data=Batches)


@once
def test_it_does_when_the_learning_rate_was_changed_by_hand():
    def make(lr):
        model = net(momentum(lr))
        model.optimizer.learning_rate = lr / 3
        return model

    same(make)
