"""Searches with Keras: the user's own steps, the best model, pages, goals. Run by test_callback.py, on torch."""

import keras
import numpy as np
import pytest
import torch
from documents import blocks
from keras_resume_checks import X, Y, momentum, net, seed_everything
from paused_studies import PausesAt, pausing_study
from scripted import ENDS, scripted_study

from haltune import Checkpointing, Constraint, Float, Minimize, Study
from haltune.callbacks.keras import HaltuneCallback
from haltune.callbacks.loop import TrainingLoop
from haltune.errors import InvalidInput
from haltune.policies import RandomSearch

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
    study = pausing_study(at=at, keep=1, verbose=0)
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
    study = pausing_study(at=at, keep=1, verbose=0)
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


# The best run's Keras model back by one call. Run by test_callback.py


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
    study = scripted_study("last", checkpoints=Checkpointing(keep=0))
    with study.ask() as trial:
        trial.report(0.5)
    with pytest.raises(InvalidInput, match=r"no model of trial 0 was kept.*Checkpointing\(keep=0\)"):
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


# The blocks in Keras on the pages of documentation, as a reader would paste them. Run by test_callback.py


def documents_make_model(lr, width):
    model = keras.Sequential([keras.layers.Dense(width), keras.layers.Dense(2, "softmax")])
    model.compile(keras.optimizers.SGD(lr), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def test_the_blocks_train_and_give_the_best_model_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x, y = np.random.default_rng(0).random((32, 3), "float32"), np.arange(32) % 2
    names = {
        "make_model": documents_make_model,
        "x": x,
        "y": y,
        "x_val": x,
        "y_val": y,
        "HaltuneCallback": HaltuneCallback,
    }
    (beside,) = blocks("docs/coming_from.md", lambda text: "best.load_model()" in text)
    beside.run(names, {"max_epochs=30": "max_epochs=2", '"20 trials"': '"2 trials"'})
    assert names["study"].outcome.over
    assert names["model"].count_params()  # study.best.load_model()


# A Keras fit of several goals and a constraint: stopped, paused, what is missing. Run by test_callback.py


class Logs(keras.callbacks.Callback):
    """Puts numbers that training does not make beside those that it does, as users do."""

    def __init__(self, said):
        super().__init__()
        self.said = said

    def on_epoch_end(self, epoch, logs=None):
        logs.update({name: number(epoch + 1) for name, number in self.said.items()})


def a_study(policy, trials=1, **options):
    return Study(
        {"lr": Float(1e-3, 1e-1, log=True)}, [Minimize("val_loss"), Minimize("ms")], max_epochs=4, policy=policy,
        constraints=[Constraint("params", at_most=5)], budget=f"{trials} trials", verbose=0, seed=0, **options,
    )  # fmt: skip


def fit(trial, said, **options):
    model = trial.load_model() or net(momentum(trial.config["lr"]))
    callbacks = [Logs(said), HaltuneCallback(trial, **options)]
    model.fit(
        X, Y, verbose=0, batch_size=4, epochs=trial.max_epochs, initial_epoch=trial.epoch, validation_data=(X, Y),
        callbacks=callbacks,
    )  # fmt: skip
    return model


SAID = {"ms": lambda epoch: 2.0 + epoch, "params": lambda epoch: 4.0, "extra": lambda epoch: 1.0}


@pytest.mark.parametrize("record", ["all", "monitor"])
def test_goals_and_constraints_are_taken_from_the_logs(record):
    study = a_study(RandomSearch())
    for trial in study:
        with trial:
            fit(trial, SAID, record=record)
    told = study.trials[0]
    assert told.metrics["ms"].tolist() == [3.0, 4.0, 5.0, 6.0]
    assert told.metrics["params"].tolist() == [4.0] * 4
    assert ("extra" in told.metrics) == (record == "all")
    assert [r.trial for r in study.pareto_front()] == [0]


def test_a_run_beyond_the_constraint_is_stopped_after_its_first_epoch():
    study = a_study(RandomSearch())
    for trial in study:
        with trial:
            fit(trial, SAID | {"params": lambda epoch: 6.0})
    told = study.trials[0]
    assert told.epochs.tolist() == [1.0]
    assert "allowed is params at most 5" in told.verdict.reason


class PausesForSeveral(PausesAt):
    several_goals = True


def test_a_paused_fit_of_several_goals_equals_one_that_was_not():
    models, curves = [], []
    for at in ((), (2,)):
        study = a_study(PausesForSeveral(1, at=at))
        seed_everything(3)
        attempts = 0
        for trial in study:
            with trial:
                model, attempts = fit(trial, SAID), attempts + 1
        models.append([keras.ops.convert_to_numpy(w) for w in model.weights])
        curves.append((study.trials[0].values.tolist(), study.trials[0].metrics["ms"].tolist()))
        assert attempts == 1 + len(at)
        assert study.trials[0].tags["weights"]
    for whole, paused in zip(*models, strict=True):
        np.testing.assert_array_equal(whole, paused)
    assert curves[0] == curves[1]


def test_a_goal_that_is_not_logged_is_told():
    study = a_study(RandomSearch())
    with pytest.raises(InvalidInput, match="a report lacks 'ms'"), study.ask() as trial:
        fit(trial, {"params": lambda epoch: 1.0})
