"""Models with a train_step of their own, and loops without fit. Run by test_callback.py, on torch."""

import keras
import numpy as np
import pytest
import torch
from keras_resume_checks import X, Y, seed_everything
from paused_studies import pausing_study

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


class OwnStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer, self.drop, self.out = (
            keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.5), keras.layers.Dense(1),
        )  # fmt: skip
        self.loss_tracker = keras.metrics.Mean(name="loss")

    def call(self, x, training=False):
        return self.out(self.drop(self.layer(x), training=training))

    def train_step(self, data):
        self.loss_tracker.update_state(stepped(self, *data))
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        x, y = data
        self.loss_tracker.update_state(keras.ops.mean((self(x) - y) ** 2))
        return {"loss": self.loss_tracker.result()}

    @property
    def metrics(self):
        return [self.loss_tracker]


def own_step(lr):
    model = OwnStep()
    model.compile(optimizer=keras.optimizers.SGD(lr, momentum=0.9))
    return model


def fitted(at):
    """A search of one training, whose model has a train_step of its own."""
    study = pausing_study(at=at, keep_checkpoints=1, verbose=0)
    for trial in study:
        with trial:
            seed_everything(1)
            model = trial.load_model(own_step)
            model.fit(
                X, Y, batch_size=4, epochs=trial.max_epochs, initial_epoch=trial.epoch, validation_data=(X, Y),
                verbose=0, callbacks=[HaltuneCallback(trial)],
            )  # fmt: skip
    return study, study.best.load_model(own_step)


def looped(at):
    """A search of one training, in a loop of the user's own."""
    study = pausing_study(at=at, keep_checkpoints=1, verbose=0)
    for trial in study:
        with trial:
            seed_everything(1)
            model = trial.load_model()
            if model is None:
                model = keras.Sequential(
                    [
                        keras.layers.Input(X.shape[1:]), keras.layers.Dense(4, "relu"), keras.layers.Dropout(0.5),
                        keras.layers.Dense(1),
                    ]
                )  # fmt: skip
                model.compile(keras.optimizers.SGD(trial.config["lr"], momentum=0.9), "mse")
            loop = TrainingLoop(trial, save=model.save, suffix=".keras")
            for _ in loop:
                loss = stepped(model, keras.ops.convert_to_tensor(X), keras.ops.convert_to_tensor(Y))
                loop.report(float(loss))
    return study, study.best.load_model()


@pytest.mark.parametrize("searched", [fitted, looped])
def test_it_pauses_and_goes_on_as_if_it_had_not_and_the_best_comes_back(searched):
    straight, as_ever = searched(())
    paused, model = searched((2,))
    assert [t.attempt for t in paused.trials] == [2]
    assert list(paused.trials[0].values) == list(straight.trials[0].values)
    assert type(model) is type(as_ever)
    for a, b in zip(model.get_weights(), as_ever.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
