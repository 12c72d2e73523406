"""Models whose file Keras cannot load: not paused, or built by the user's function. Run by test_callback.py."""

import gc
import warnings
import weakref
from weakref import WeakKeyDictionary

import keras
import numpy as np
import pytest
from callback_fakes import FakeTrial
from keras_resume_checks import X, Y, compiled, once, own_loss, seed_everything, state, subclass
from paused_studies import pausing_study

from haltune.callbacks.keras import HaltuneCallback, load_model, saving
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


@pytest.fixture(autouse=True)
def forget_answers(monkeypatch):
    monkeypatch.setattr(saving, "_ANSWERS", WeakKeyDictionary())


unloadable = pytest.mark.parametrize("make", [own_loss, pytest.param(subclass, marks=(once, pytest.mark.slow))])


def train(study, load, **options):
    """Train the trials of a study; return the last model and haltune's messages."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HaltuneWarning)
        for trial in study:
            with trial:
                seed_everything(3 if trial.checkpoint is None else 77)
                keras.random.normal((2,))
                model = load(trial)
                more = {"epochs": 4, "initial_epoch": trial.epoch, "callbacks": [HaltuneCallback(trial)]}
                model.fit(X, Y, validation_data=(X, Y), batch_size=4, verbose=0, **more | options)
    return model, [str(w.message) for w in caught if issubclass(w.category, HaltuneWarning)]


def whole_or_new(make):
    return lambda trial: trial.load_model() or make(**trial.config)


def by_function(make):
    return lambda trial: trial.load_model(make)


def same(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@unloadable
def test_a_pause_that_could_not_be_loaded_is_declined_with_one_warning_and_the_run_is_as_it_was(make):
    straight, _ = train(pausing_study(at=()), whole_or_new(make))
    expected = state(straight)
    study = pausing_study(at=(1, 2), trials=2)
    _, said = train(study, whole_or_new(make))
    assert [(t.status, t.attempt, t.epoch) for t in study.trials] == [("completed", 1, 4)] * 2
    assert len(said) == 1
    assert "trial.load_model(make_model)" in said[0]
    assert "keeps training" in said[0]
    study = pausing_study(at=(1, 2))
    model, _ = train(study, whole_or_new(make))
    same(state(model), expected)


@once
def test_the_second_fit_of_a_trial_whose_model_is_kept_tests_the_file_of_its_pause():
    s = pausing_study(at=(3,), keep=1)
    said = []
    for trial in s:
        with trial:
            model = trial.load_model() or own_loss()
            for epochs in (2, 4):
                said += fitted(model, trial, epochs) if trial.epoch < epochs else []
    assert [(t.status, t.attempt, t.epoch) for t in s.trials] == [("completed", 1, 4)]
    assert len(said) == 1
    assert "could not be loaded again" in said[0]


def fitted(model, trial, epochs):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HaltuneWarning)
        given = {"validation_data": (X, Y), "batch_size": 4, "verbose": 0, "callbacks": [HaltuneCallback(trial)]}
        model.fit(X, Y, epochs=epochs, initial_epoch=trial.epoch, **given)
    return [str(w.message) for w in caught if issubclass(w.category, HaltuneWarning)]


@once
def test_a_model_of_an_own_class_with_numbered_layers_pauses_by_its_function():
    class Penalized(keras.Model):
        def compute_loss(self, *data, **given):
            return super().compute_loss(*data, **given) + 1e-3 * sum(
                keras.ops.sum(w**2) for w in self.trainable_weights
            )

    def make(lr=0.05):
        inputs = keras.Input((3,))
        model = Penalized(inputs, keras.layers.Dense(1)(keras.layers.Dropout(0.3)(inputs)))
        model.compile(keras.optimizers.Adam(lr), "mse")
        return model

    straight, _ = train(pausing_study(at=()), by_function(make))
    expected = state(straight)[:-1]  # without random numbers, which the end of the trial has put back
    s = pausing_study(at=(1, 2))
    model, said = train(s, by_function(make))
    assert (said, s.trials[0].attempt) == ([], 3)
    same(state(model)[:-1], expected)


@once
def test_another_model_and_another_optimizer_are_named():
    study = pausing_study()
    train([study.ask()], by_function(own_loss))
    trial = study.ask()
    with pytest.raises(InvalidInput, match="do not fit make_model's model"):
        trial.load_model(lambda lr: compiled([keras.layers.Dense(2), keras.layers.Dense(1)], lr))

    def plain(lr):
        model = own_loss(lr)
        model.compile("sgd", "mse")
        return model

    with pytest.raises(InvalidInput, match="the same optimizer"):
        trial.load_model(plain)
    with pytest.raises(InvalidInput, match=r"the function that builds the model, trial\.load_model\(make_model\)"):
        trial.load_model()


@once
def test_what_is_no_function_of_the_configuration_is_named():
    trial = pausing_study().ask()
    with pytest.raises(InvalidInput, match="a function that returns a compiled model"):
        trial.load_model(own_loss())
    with pytest.raises(InvalidInput, match=r"returned None\. Return a Keras model"):
        trial.load_model(lambda lr: None)
    with pytest.raises(InvalidInput, match=r"Remove .*safe_mode"):
        trial.load_model(own_loss, safe_mode=False)


@once
def test_a_class_that_only_the_build_registers_costs_no_training_in_another_process():
    def build(lr=0.01):
        @keras.saving.register_keras_serializable("mine")
        class Halved(keras.layers.Layer):
            def call(self, inputs):
                return inputs / 2

        return compiled([Halved(), keras.layers.Dense(1)], lr)

    study = pausing_study()
    train([study.ask()], whole_or_new(build))
    del keras.saving.get_custom_objects()["mine>Halved"]  # as in another process
    with pytest.raises(NotSupported, match=r"Could not locate class 'Halved'.*register .* before the loop over trials"):
        train(study, whole_or_new(build))
    assert study.trials[0].status == "interrupted"
    train(study, by_function(build))
    assert (study.trials[0].status, study.trials[0].epochs.tolist()) == ("completed", [1, 2, 3, 4])


@once
@pytest.mark.filterwarnings("ignore:.*does not have a `build.. method")
def test_a_subclass_that_is_built_by_its_shape_without_weights_resumes_and_comes_back():
    class Ported(keras.Model):
        def __init__(self):
            super().__init__()
            self.out = keras.layers.Dense(1)

        def call(self, inputs):
            return self.out(inputs)

    def build(lr=0.01):
        model = Ported()
        model.compile(keras.optimizers.Adam(lr), "mse")
        model.build((None, 3))
        return model

    straight, _ = train(pausing_study(at=()), by_function(build))
    study = pausing_study(keep=1)
    resumed, said = train(study, by_function(build))
    assert (study.trials[0].attempt, said) == (2, [])
    same(resumed.get_weights(), straight.get_weights())
    same(study.best.load_model(build).get_weights(), resumed.get_weights())


@once
def test_a_damaged_file_next_to_the_weights_is_an_error_of_one_sentence(tmp_path):
    path = tmp_path / f"a{saving.WEIGHTS_SUFFIX}"
    model = own_loss()
    model.optimizer.build(model.trainable_variables)
    saving.write(model, path)
    (tmp_path / f"{path.name}.random").write_text("{")
    trial = FakeTrial(epoch=1)
    trial.config, trial.checkpoint = {}, str(path)
    with pytest.raises(InvalidInput, match=r"random state .* is damaged .* Restore it from a copy"):
        load_model(trial, own_loss)


@once
def test_a_program_whose_objects_hold_the_model_and_make_it_lets_it_go():
    class Experiment:
        def make(self, **config):
            return compiled([keras.layers.Dense(1)], 0.01)

    one, trial = Experiment(), pausing_study().ask()
    one.model = trial.load_model(one.make)
    model = weakref.ref(one.model)
    del one
    gc.collect()
    assert model() is None
