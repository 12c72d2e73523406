"""Keras in studies that count steps and parts of an epoch. Run by test_callback.py in a process for each backend."""

import contextlib
import copy
import logging
import pickle
import warnings

import keras
import numpy as np
import pytest
from callback_fakes import PAUSE, STOP, FakeTrial
from keras_resume_checks import STEPS, X, Y, momentum, net, once, seed_everything
from paused_studies import pausing_study

from haltune.callbacks.keras import HaltuneCallback
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


def fit(callback, model=None, before=(), **options):
    if model is None:
        seed_everything(3)
        model = net(momentum(0.01))
    options = {"epochs": 2, "validation_data": (X, Y), "batch_size": 4, "verbose": 0} | options
    return model, model.fit(X, Y, callbacks=[*before, callback] if callback else [], **options).history


def counting(unit, horizon, **more):
    trial = FakeTrial("val_loss", max_epochs=horizon, **more)
    trial.unit = unit
    return trial


def test_steps_of_the_optimizer_are_counted():
    trial = counting("step", 4 * STEPS)
    _, history = fit(HaltuneCallback(trial), epochs=4)
    assert (trial.epochs, trial.values) == ([STEPS, 2 * STEPS, 3 * STEPS, 4 * STEPS], history["val_loss"])


def test_steps_that_a_model_has_made_before_its_trial_do_not_count():
    study = pausing_study(at=(STEPS,), epochs=2 * STEPS, unit="step")
    for trial in study:
        with trial:
            model = trial.load_model() or fit(None)[0]
            fit(HaltuneCallback(trial), model, initial_epoch=int(trial.epoch) // STEPS)
    (found,) = study.trials
    assert (found.attempt, found.epochs.tolist()) == (2, [STEPS, 2 * STEPS])


@once
def test_steps_that_a_killed_attempt_has_left_in_a_backup_of_keras_count(tmp_path):
    class Dies(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise ValueError("killed")

    def train(trial, *others):
        backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
        fit(HaltuneCallback(trial), before=[backup, *others], epochs=4)

    study = pausing_study(at=(), epochs=4 * STEPS, unit="step", verbose=0)
    trial = study.ask()
    with pytest.raises(ValueError, match="killed"):
        train(trial, Dies())
    trial.interrupt()
    with pytest.warns(HaltuneWarning, match="BackupAndRestore continues this trial without its random numbers"):
        train(study.ask())
    assert study.trials[0].epochs.tolist() == [STEPS, 2 * STEPS, 3 * STEPS, 4 * STEPS]


@pytest.mark.parametrize("rung", [2 * STEPS, 3 * STEPS])
def test_the_patience_of_an_early_stopping_is_compared_with_a_rung_in_its_own_epochs(rung):
    trial = counting("step", 4 * STEPS)
    trial.pause_at = rung
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=1)
    model = net(momentum(0.01))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HaltuneWarning)
        model.fit(
            X, Y, epochs=4, batch_size=4, validation_data=(X, Y), verbose=0,
            callbacks=[stopping, HaltuneCallback(trial)],
        )  # fmt: skip
    heard = [str(w.message) for w in caught if "EarlyStopping" in str(w.message)]
    assert [("before epoch 3" in one, "patience=3" in one) for one in heard] == [(True, True)] * (rung == 3 * STEPS)


@pytest.mark.parametrize(("rung", "warned"), [(4, False), (6, True)])
def test_an_early_stopping_checks_a_validation_metric_in_the_epochs_that_validate(rung, warned):
    trial = counting("epoch", 8)
    trial.pause_at = rung
    stopping = keras.callbacks.EarlyStopping("val_loss", patience=1)
    model = net(momentum(0.01))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HaltuneWarning)
        model.fit(
            X, Y, epochs=8, batch_size=4, validation_data=(X, Y), validation_freq=2, verbose=0,
            callbacks=[stopping, HaltuneCallback(trial)],
        )  # fmt: skip
    assert any("before epoch 6" in str(w.message) and "patience=3" in str(w.message) for w in caught) == warned
    assert any("EarlyStopping" in str(w.message) for w in caught) == warned


def test_a_fit_of_more_steps_is_warned_of():
    with pytest.warns(HaltuneWarning, match=r"plans 6 steps, but .* [Gg]ive the loop trial\.max_steps"):
        fit(HaltuneCallback(counting("step", 5)))


def test_a_fit_that_accumulates_gradients_plans_the_updates_of_its_optimizer():
    trial = counting("step", 4)
    fit(HaltuneCallback(trial), net(keras.optimizers.SGD(0.01, gradient_accumulation_steps=3)), epochs=12 // STEPS)
    assert (trial.epochs[-1], trial.planned) == (4, 4)


def halves(epoch, rate):
    return 0.01 * 0.5**epoch


class Counts(keras.callbacks.Callback):
    seen = 0

    def on_epoch_end(self, epoch, logs=None):
        self.seen += 1


class Reads(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.last = epoch


@pytest.mark.parametrize(
    ("made", "given", "named", "continues"),
    [
        (lambda: keras.callbacks.LearningRateScheduler(halves), {}, "LearningRateScheduler", False),
        (Counts, {}, None, False),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (lambda: keras.callbacks.LearningRateScheduler(halves), {}, None, True),
                (Reads, {}, "Reads", False),
                (lambda: keras.callbacks.LambdaCallback(on_epoch_end=lambda e, _: e + 1), {}, "LambdaCallback", False),
                (lambda: keras.callbacks.EarlyStopping(patience=9, start_from_epoch=2), {}, "EarlyStopping", False),
                (lambda: keras.callbacks.EarlyStopping(patience=9), {}, None, False),
                (Counts, {"validation_freq": [1, 2, 4]}, "validation_freq", False),
            )
        ),
    ],
)
def test_a_resumed_fit_in_steps_that_counts_its_epochs_from_0_is_refused_where_one_depends_on_them(
    made, given, named, continues
):
    study = pausing_study(at=(2 * STEPS,), epochs=4 * STEPS, unit="step")
    refused = pytest.raises(
        NotSupported, match=rf"before epoch 2 .* with epoch 0, .*\({named}\).*trial\.step // {STEPS}\)"
    )
    with refused if named else contextlib.nullcontext():
        for trial in study:
            with trial:
                start = int(trial.epoch) // STEPS if continues else 0
                model = trial.load_model() or net(momentum(0.01))
                fit(HaltuneCallback(trial), model, [made()], epochs=4, initial_epoch=start, **given)
    assert study.trials[0].attempt == 2


def test_reports_within_an_epoch_leave_the_training_as_it_is():
    straight, plain = fit(None)
    trial = FakeTrial(max_epochs=2)
    model, history = fit(HaltuneCallback(trial, every=1, validation=(X, Y)))
    assert trial.epochs == pytest.approx([1 / 3, 2 / 3, 1, 4 / 3, 5 / 3, 2])
    assert [trial.values[2], trial.values[5]] == history["val_loss"] == plain["val_loss"]
    assert history["loss"] == pytest.approx(plain["loss"])
    for a, b in zip(model.get_weights(), straight.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_without_data_the_metric_of_training_is_reported_in_steps():
    trial = counting("step", 2 * STEPS)
    _, history = fit(HaltuneCallback(trial, "loss", every=2))
    assert trial.epochs == [2, 3, 5, 6]
    assert trial.values[1::2] == pytest.approx(history["loss"])


def test_reports_within_an_epoch_of_a_metric_of_validations_need_its_data():
    trial = FakeTrial(max_epochs=2)
    with pytest.warns(
        HaltuneWarning, match=r"every=1\) reports nothing within an epoch, .* validation=\(x, y\)"
    ) as said:
        fit(HaltuneCallback(trial, every=1))
    assert (len([w for w in said if "every=1" in str(w.message)]), trial.epochs) == (1, [1, 2])


def test_the_last_batch_of_data_of_unknown_length_is_reported_once():
    trial, model = counting("step", 2 * STEPS), net(momentum(0.01))
    callback = HaltuneCallback(trial, "loss", every=STEPS)
    model.fit(((X[:4], Y[:4]) for _ in range(STEPS)), epochs=1, verbose=0, callbacks=[callback])
    assert trial.epochs == [STEPS]


def test_a_stop_within_an_epoch_ends_the_fit_there():
    trial = counting("step", 2 * STEPS, verdicts={4: STOP})
    model, _ = fit(HaltuneCallback(trial, every=1, validation=(X, Y)))
    assert (trial.epochs, int(model.optimizer.iterations), trial.endings) == ([1, 2, 3, 4], 4, [None])


def test_a_pause_within_an_epoch_waits_for_its_end_and_is_declined_in_the_last():
    trial = counting("step", 2 * STEPS, verdicts={1: PAUSE})
    with pytest.warns(HaltuneWarning, match="pause at the end of the epoch"):
        fit(HaltuneCallback(trial, every=1, validation=(X, Y)))
    assert (trial.epochs, trial.declined, trial.checkpoint is not None) == ([1, 2, 3], 0, True)
    trial = counting("step", 2 * STEPS, verdicts={4: PAUSE})
    with pytest.warns(HaltuneWarning, match="this is the last epoch; it keeps training"):
        fit(HaltuneCallback(trial, every=1, validation=(X, Y)))
    assert (trial.epochs[-1], trial.declined) == (6, 1)


def test_wrong_use_is_refused_at_once():
    with pytest.raises(InvalidInput, match=r"counts tokens, and this .* max_epochs= or max_steps="):
        HaltuneCallback(counting("token", 9))
    with pytest.raises(InvalidInput, match="every=0 is not a number of batches"):
        HaltuneCallback(FakeTrial(), every=0)


@pytest.mark.parametrize("twin", [copy.copy, lambda callback: pickle.loads(pickle.dumps(callback))])
def test_a_copy_hears_batches_itself(twin):
    callback = HaltuneCallback(FakeTrial(), every=2)
    assert twin(callback).on_train_batch_end.__self__ is not callback


def falling(epoch, rate):
    return rate * (1 - (epoch + 1) / 5)


@pytest.mark.parametrize(
    ("rate", "callbacks", "named"),
    [
        (0.01, (), None),
        pytest.param(
            keras.optimizers.schedules.CosineDecay(0.01, 4 * STEPS), (), "(CosineDecay)", marks=pytest.mark.slow
        ),
        (0.01, (keras.callbacks.LearningRateScheduler(falling),), "(LearningRateScheduler)"),
    ],
)
def test_a_learning_rate_that_is_to_fall_at_the_first_pause_is_said_once(rate, callbacks, named, caplog):
    caplog.set_level(logging.INFO, "haltune")
    for trial in pausing_study(at=(1, 3), trials=2):
        with trial:
            model = trial.load_model() or net(keras.optimizers.SGD(rate))
            options = {"epochs": trial.max_epochs, "initial_epoch": int(trial.epoch), "validation_data": (X, Y)}
            model.fit(X, Y, batch_size=4, verbose=0, callbacks=[*callbacks, HaltuneCallback(trial)], **options)
    hints = [line for line in caplog.messages if "learning-rate schedule" in line]
    assert len(hints) == (named is not None)
    assert all(
        f"Trial 0 was judged at epoch 1, before the end of its learning-rate schedule {named}" in line for line in hints
    )
