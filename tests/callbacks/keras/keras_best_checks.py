"""The best run's Keras model back by one call. Run by test_callback.py."""

import keras
import numpy as np
import pytest
from keras_resume_checks import X, Y
from scripted import ENDS, scripted_study

from haltune.callbacks.keras import HaltuneCallback
from haltune.errors import InvalidInput


class Scripted(keras.callbacks.Callback):
    """Stands before haltune's: what an epoch came to is what the script says."""

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


def own_loss(y, predicted):  # no file of Keras' tells what it is
    return keras.ops.mean((y - predicted) ** 2)


@pytest.mark.parametrize("of", ["last", "best"])
@pytest.mark.parametrize("by_function", [False, True])
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
    drawn = np.random.get_state()[1].copy()  # noqa: NPY002
    back = best.load_model(lambda lr: make_model(lr, own_loss)) if by_function else best.load_model()
    for one, other in zip(back.get_weights(), states[best.trial, best.epoch], strict=True):
        np.testing.assert_array_equal(one, other)
    assert back.compiled
    assert float(back.optimizer.learning_rate) == pytest.approx(best.config["lr"])
    np.testing.assert_array_equal(np.random.get_state()[1], drawn)  # noqa: NPY002
    if not by_function:  # whoever keeps the whole model may build it as well
        again = best.load_model(make_model)
        np.testing.assert_array_equal(again.get_weights()[0], back.get_weights()[0])


def test_without_a_model_it_says_what_keeps_one():
    study = scripted_study("last", keep_checkpoints=0)
    with study.ask() as trial:
        trial.report(0.5)
    with pytest.raises(InvalidInput, match=r"no model of trial 0 was kept.*keep_checkpoints=1"):
        study.best.load_model()


class Own(keras.Model):
    """A class of the user's own that tells Keras nothing of its arguments, as many do."""

    def __init__(self, lr):
        super().__init__()
        self.layer = keras.layers.Dense(1)
        self.compile(keras.optimizers.SGD(lr), "mse")

    def call(self, x):
        return self.layer(x)


@pytest.mark.parametrize("of", ["last", "best"])
@pytest.mark.filterwarnings("ignore:a trial cannot be paused:haltune.errors.HaltuneWarning")
def test_of_a_model_that_keras_cannot_write_down_the_best_weights_are_kept(of):
    states, study = {}, scripted_study(of)
    for trial in study:
        with trial:
            model = trial.load_model() or Own(**trial.config)
            model.fit(
                X, Y, epochs=3, verbose=0, validation_data=(X, Y),
                callbacks=[Scripted(trial.id, states), HaltuneCallback(trial)],
            )  # fmt: skip
    best = study.best
    for one, other in zip(best.load_model(Own).get_weights(), states[best.trial, best.epoch], strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(InvalidInput, match=r"or study\.best\.load_model\(make_model\)"):
        best.load_model()
