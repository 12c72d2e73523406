"""What a paused Keras training saves, how it goes on, and what is said when it cannot. Run by test_callback.py."""

import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
from callback_fakes import FakeTrial
from keras_resume_checks import STEPS, X, Y, deep, momentum, net, seed_everything
from paused_studies import pausing_study

from haltune import Budget
from haltune.callbacks.keras import HaltuneCallback, load_model, saving
from haltune.errors import HaltuneWarning, InvalidInput

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


def fit(trial, model=None, *others, **options):
    model = model or net(momentum(0.01))
    options = {"epochs": 4, "validation_data": (X, Y), "callbacks": [HaltuneCallback(trial), *others]} | options
    return model.fit(X, Y, verbose=0, batch_size=4, **options)


def test_an_average_of_the_weights_is_not_taken_for_the_weights():
    """Keras puts the average in place before on_train_end: what is saved then cannot go on."""
    study = pausing_study()
    with study.ask() as trial:
        model = net(keras.optimizers.SGD(0.1, use_ema=True))
        fit(trial, model)
    saved = keras.saving.load_model(trial.checkpoint)
    weights, average = (saved.trainable_variables[0].numpy(), saved.optimizer._model_variables_moving_average[0])
    assert not np.array_equal(weights, keras.ops.convert_to_numpy(average))
    np.testing.assert_array_equal(model.trainable_variables[0].numpy(), keras.ops.convert_to_numpy(average))


def test_the_last_weights_are_saved_and_not_those_that_early_stopping_restores():
    trial = pausing_study().ask()
    best_first = {"monitor": "val_loss", "mode": "max", "restore_best_weights": True}
    seed_everything(1)  # of which the loss falls
    model = net(momentum(0.01))
    fit(trial, model, keras.callbacks.EarlyStopping(patience=9, **best_first))
    saved = keras.saving.load_model(trial.checkpoint)
    assert not np.array_equal(saved.get_weights()[0], model.get_weights()[0])


def test_the_file_is_a_model_that_keras_itself_loads():
    trial = pausing_study().ask()
    model = net(momentum(0.1))
    fit(trial, model)
    assert trial.checkpoint.endswith(".keras")
    assert [p.name for p in Path(trial.checkpoint).parent.iterdir()] == [Path(trial.checkpoint).name]
    with zipfile.ZipFile(trial.checkpoint) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == 3  # with a fourth Keras unpacks all of it to a temporary folder
    loaded = keras.saving.load_model(trial.checkpoint)
    for a, b in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not trial.load_model(compile=False).compiled


def test_a_trial_that_begins_has_no_model():
    assert pausing_study().ask().load_model() is None


def test_a_checkpoint_of_another_kind_is_named():
    trial = FakeTrial(epoch=2)
    trial.checkpoint = "weights.h5"
    with pytest.raises(InvalidInput, match=r"'weights\.h5' is no \.keras file"):
        load_model(trial)


class Halved(keras.layers.Layer):
    def call(self, x):
        return x / 2


def test_a_class_of_the_users_is_handed_over_and_missed_with_advice():
    study = pausing_study()
    for trial in study:
        with trial:
            if trial.checkpoint:
                with pytest.raises(TypeError) as caught:
                    trial.load_model()
                assert "trial.load_model(custom_objects=" in caught.value.__notes__[0]
            model = trial.load_model(custom_objects={"Halved": Halved}) or keras.Sequential(
                [keras.Input((3,)), Halved(), keras.layers.Dense(1)]
            )
            if trial.checkpoint is None:
                model.compile("sgd", "mse")
            options = {"epochs": 4, "initial_epoch": trial.epoch, "callbacks": [HaltuneCallback(trial)]}
            model.fit(X, Y, validation_data=(X, Y), verbose=0, **options)
    assert study.trials[0].epochs.tolist() == [1, 2, 3, 4]


def resumed():
    """A trial that paused after two of its four epochs and is offered again."""
    study = pausing_study()
    with study.ask() as trial:
        fit(trial)
    return study.ask()


def test_a_fresh_model_for_a_resumed_trial_is_an_error():
    with pytest.raises(InvalidInput, match=r"continues after epoch 2.*trial\.load_model\(\) or make_model"):
        fit(resumed(), initial_epoch=2)


def test_a_model_compiled_again_is_an_error_as_its_optimizer_is_lost():
    trial = resumed()
    model = trial.load_model()
    model.compile("sgd", "mse")
    with pytest.raises(InvalidInput, match="do not compile what it loads again"):
        fit(trial, model, initial_epoch=2)


def test_a_file_that_vanished_after_loading_costs_only_the_random_state():
    trial = resumed()
    model = trial.load_model()
    Path(trial.checkpoint).unlink()
    with pytest.warns(HaltuneWarning, match="random state in .* cannot be read"):
        fit(trial, model, initial_epoch=2)
    assert trial.epoch == 4


def test_random_generators_that_do_not_match_are_named():
    with pytest.warns(HaltuneWarning, match="had 2 random generators in its layers and this one has 1"):
        saving.set_randomness(net(momentum(0.1)), saving.capture_randomness(deep(0.1)))


def test_a_random_state_too_large_for_the_file_declines_the_pause(monkeypatch):
    monkeypatch.setattr(saving, "_COMMENT_LIMIT", 100)
    study = pausing_study()
    with study.ask() as trial, pytest.warns(HaltuneWarning, match="room for 100: .*keeps training"):
        fit(trial)
    assert study.trials[0].status == "completed"


def test_a_resumed_trial_may_be_trained_again_from_the_start_with_a_warning():
    trial = resumed()
    with pytest.warns(HaltuneWarning, match=r"initial_epoch=trial\.epoch\) on the model of trial\.load_model"):
        fit(trial)
    assert trial.epoch == 4


def test_two_phases_with_two_optimizers_are_one_trial():
    """Fine-tuning compiles again in the middle: that is no model forgotten."""
    trial, model = FakeTrial(max_epochs=4), net(momentum(0.1))
    callback = HaltuneCallback(trial)
    with pytest.warns(HaltuneWarning, match="plans 2 epochs"):
        model.fit(X, Y, validation_data=(X, Y), epochs=2, callbacks=[callback], verbose=0)
    model.compile("sgd", "mse")
    model.fit(X, Y, validation_data=(X, Y), epochs=4, initial_epoch=2, callbacks=[callback], verbose=0)
    assert trial.epochs == [1, 2, 3, 4]


def test_a_model_that_cannot_be_saved_trains_on_and_leaves_nothing_behind(tmp_path):
    class Stubborn(keras.layers.Layer):
        def call(self, x):
            return x

        def save_own_variables(self, store):
            raise OSError("no space left")

    study = pausing_study(folder=tmp_path)
    model = keras.Sequential([keras.Input((3,)), Stubborn(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    for trial in study:
        with trial, pytest.warns(HaltuneWarning, match="no space left"):
            fit(trial, model)
    assert study.trials[0].status == "completed"
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_a_pause_that_another_callback_takes_back_is_saved_again():
    class TakesBack(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 1:
                self.model.stop_training = False

    study = pausing_study()
    trial = study.ask()
    model = net(momentum(0.01))
    with trial:
        fit(trial, model, TakesBack())
    again = study.ask()
    assert again.epoch == 3
    assert int(again.load_model().optimizer.iterations) == 3 * STEPS


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("options", [{}, {"at": (), "budget": Budget(epochs=2)}])
def test_early_stopping_in_the_epoch_of_a_pause_completes_the_trial_wherever_it_stands(behind, options):
    study = pausing_study(**options)
    trial = study.ask()
    company = [keras.callbacks.EarlyStopping("val_loss", min_delta=1e9, patience=1), HaltuneCallback(trial)]
    model = net(momentum(0.01))
    with trial:
        fit(trial, model, callbacks=company[::-1] if behind else company)
    assert study.trials[0].epochs.tolist() == [1, 2]
    assert study.trials[0].status == "completed"
    assert model.stop_training is True


def test_the_final_model_is_kept_when_the_last_epoch_is_not_validated():
    study = pausing_study(at=(), epochs=3, keep=1)
    with study.ask() as trial:
        fit(trial, epochs=3, validation_freq=2)
    assert trial.epoch == 2
    assert int(keras.saving.load_model(study.best.checkpoint).optimizer.iterations) == 3 * STEPS


def test_a_trial_stopped_by_the_users_own_callback_is_not_paused():
    trial = FakeTrial(max_epochs=4)
    fit(trial, None, keras.callbacks.EarlyStopping(monitor="val_loss", min_delta=1e9, patience=0))
    assert trial.checkpoint is None
