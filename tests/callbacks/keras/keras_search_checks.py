"""Searches with Keras: a loop of the user's own, the best model, the page. Run by test_callback.py, on torch."""

import keras
import numpy as np
import pytest
import torch
from documents import blocks
from keras_resume_checks import X, Y, momentum, net, seed_everything
from paused_studies import pausing_study
from scripted import ENDS, scripted_study

from haltune.callbacks.keras import HaltuneCallback
from haltune.callbacks.loop import TrainingLoop

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


def stepped(model, x, y):
    """One step of gradient descent, by torch."""
    model.zero_grad()
    loss = keras.ops.mean((model(x, training=True) - y) ** 2)
    loss.backward()
    with torch.no_grad():
        model.optimizer.apply([w.value.grad for w in model.trainable_weights], model.trainable_weights)
    return loss


def looped(at):
    """A search of one training, in a loop of the user's own."""
    study = pausing_study(at=at, keep=1, verbose=0)
    for trial in study:
        with trial:
            seed_everything(1)
            model = trial.load_model()
            if model is None:
                model = net(momentum(trial.config["lr"]))
            loop = TrainingLoop(trial, save=model.save, suffix=".keras")
            for _ in loop:
                loss = stepped(model, keras.ops.convert_to_tensor(X), keras.ops.convert_to_tensor(Y))
                loop.report(float(loss))
    return study, study.best.load_model()


def test_a_loop_of_the_users_own_pauses_and_resumes_as_if_it_had_not_and_the_best_comes_back():
    straight, as_ever = looped(())
    paused, model = looped((2,))
    assert [t.attempt for t in paused.trials] == [2]
    assert list(paused.trials[0].values) == list(straight.trials[0].values)
    assert type(model) is type(as_ever)
    for a, b in zip(model.get_weights(), as_ever.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


class Scripted(keras.callbacks.Callback):
    """A callback before haltune's that replaces the value of an epoch by the script's."""

    def __init__(self, trial, states):
        super().__init__()
        self.trial, self.states = trial, states

    def on_epoch_end(self, epoch, logs=None):
        logs["val_loss"] = ENDS[self.trial][epoch]
        self.states[self.trial, epoch + 1] = self.model.get_weights()


def make_model(lr, loss="mse"):
    model = keras.Sequential([keras.Input(X.shape[1:]), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(lr, momentum=0.9), loss)
    return model


def own_loss(y, predicted):  # no file of Keras names its class
    return keras.ops.mean((y - predicted) ** 2)


@pytest.mark.parametrize(("of", "by_function"), [("last", False), ("best", True)])
def test_the_best_model_comes_back_whole_and_by_its_function(of, by_function):
    states, study = {}, scripted_study(of)
    for trial in study:
        with trial:
            if by_function:
                model = trial.load_model(lambda lr: make_model(lr, own_loss))
            else:
                model = trial.load_model() or make_model(**trial.config)
            model.fit(
                X, Y, epochs=3, verbose=0, validation_data=(X, Y),
                callbacks=[Scripted(trial.id, states), HaltuneCallback(trial)],
            )  # fmt: skip
    best = study.best
    assert (best.trial, best.epoch, best.checkpoint_epoch) == ((0, 3, 3) if of == "last" else (1, 2, 2))
    back = best.load_model(lambda lr: make_model(lr, own_loss)) if by_function else best.load_model()
    for one, other in zip(back.get_weights(), states[best.trial, best.epoch], strict=True):
        np.testing.assert_array_equal(one, other)
    assert back.compiled
    assert float(back.optimizer.learning_rate) == pytest.approx(best.config["lr"])


def documents_make_model(lr, width):
    model = keras.Sequential([keras.layers.Dense(width), keras.layers.Dense(2, "softmax")])
    model.compile(keras.optimizers.SGD(lr), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def test_the_blocks_train_and_give_the_best_model_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = np.random.default_rng(0).random((32, 3), "float32"), np.arange(32) % 2
    names = {"make_model": documents_make_model, "x": x, "y": y, "x_val": x, "y_val": y}
    names["HaltuneCallback"] = HaltuneCallback
    (beside,) = blocks("docs/coming_from.md", lambda text: "best.load_model()" in text)
    beside.run(names, {"max_epochs=30": "max_epochs=2", '"20 trials"': '"2 trials"'})
    assert names["study"].outcome.over
    assert names["model"].count_params()  # study.best.load_model()


@pytest.mark.parametrize(
    ("fits", "reported"),
    [
        ([(2, [1]), (4, [4])], [1, 4]),
        ([(2, [4]), (4, [4])], [4]),
        ([(1, 2), (2, 2), (3, 2), (4, 2)], [2, 4]),
        ([(3, 2), (4, 2)], [2, 4]),
    ],
)
def test_fits_of_which_only_a_later_one_validates_at_the_end_keep_a_model_and_are_warned_of_nothing(fits, reported):
    study = pausing_study(at=(), keep=1, verbose=0)
    for trial in study:
        with trial:
            model, start = net(momentum(0.01)), 0
            for end, validates in fits:
                model.fit(X, Y, epochs=end, initial_epoch=start, validation_data=(X, Y), validation_freq=validates,
                          verbose=0, callbacks=[HaltuneCallback(trial)])  # fmt: skip
                start = end
    assert study.trials[0].epochs.tolist() == reported
    assert study.best.load_model().evaluate(X, Y, verbose=0) == pytest.approx(study.best.value, rel=1e-5)


def test_the_last_of_several_fits_says_that_its_model_was_not_validated():
    study = pausing_study(at=(), keep=1, verbose=0)
    for trial in study:
        with pytest.warns(match=r"is not kept: it has trained to epoch 2, but its value is that of epoch 1"), trial:
            net(momentum(0.01)).fit(X, Y, epochs=2, validation_data=(X, Y), validation_freq=[1], verbose=0,
                                    callbacks=[HaltuneCallback(trial)])  # fmt: skip
    assert study.best.checkpoint is None
