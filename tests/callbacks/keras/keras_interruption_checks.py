"""Ctrl-C and SIGTERM in a Keras fit: the epoch is finished and saved. Run by test_callback.py."""

import os
import signal

import keras
import numpy as np
import pytest
from keras_resume_checks import X, Y, momentum, net, seed_everything
from paused_studies import pausing_study

from haltune.callbacks.keras import HaltuneCallback
from haltune.log.events import Status

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


@pytest.fixture(autouse=True)
def handlers():
    """As in a terminal, and as they were afterwards."""
    before = [signal.signal(signal.SIGINT, signal.default_int_handler), signal.getsignal(signal.SIGTERM)]
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is before[1]
    signal.signal(signal.SIGINT, before[0])


class Sends(keras.callbacks.Callback):
    def __init__(self, *numbers, epoch=2, error=None):
        super().__init__()
        self.numbers, self.epoch, self.error = numbers, epoch, error

    def on_epoch_begin(self, epoch, logs=None):
        if epoch + 1 == self.epoch:
            for number in self.numbers:
                os.kill(os.getpid(), number)
            if self.error:
                raise self.error


def searched(store, *others, **options):
    """One training of 4 epochs, from where the log says."""
    study = pausing_study(store, at=(), verbose=0)
    for trial in study:
        with trial:
            seed_everything(1)
            model = trial.load_model() or net(momentum(0.01))
            model.fit(
                X, Y, epochs=trial.max_epochs, initial_epoch=trial.epoch, verbose=0, batch_size=4,
                validation_data=(X, Y), callbacks=[*others, HaltuneCallback(trial)], **options,
            )  # fmt: skip
    return study, model.get_weights()[0]


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_the_epoch_is_finished_and_saved_and_the_search_goes_on_exactly_there(number, raised, tmp_path):
    with pytest.raises(raised):
        searched(tmp_path / "search.db", Sends(number))
    study, weights = searched(tmp_path / "search.db")
    straight, as_ever = searched(tmp_path / "straight.db")
    assert [(t.status, t.attempt, t.checkpoint_epoch) for t in study.trials] == [(Status.COMPLETED, 2, 2.0)]
    assert list(study.trials[0].values) == list(straight.trials[0].values)
    np.testing.assert_array_equal(weights, as_ever)


def test_a_second_one_leaves_at_once(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path / "search.db", Sends(signal.SIGINT, signal.SIGINT))
    [trial] = pausing_study(tmp_path / "search.db", at=(), verbose=0).trials
    assert (trial.status, trial.epoch, trial.checkpoint) == (Status.INTERRUPTED, 1.0, None)


def test_in_the_last_epoch_the_trial_is_complete(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path / "search.db", Sends(signal.SIGINT, epoch=4))
    [trial] = pausing_study(tmp_path / "search.db", at=(), verbose=0).trials
    assert (trial.status, trial.epoch) == (Status.COMPLETED, 4.0)


def test_between_validations_it_trains_on_to_the_next(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        searched(tmp_path / "search.db", Sends(signal.SIGINT, epoch=1), validation_freq=2)
    [trial] = pausing_study(tmp_path / "search.db", at=(), verbose=0).trials
    assert (trial.status, trial.checkpoint_epoch) == (Status.INTERRUPTED, 2.0)


def test_after_a_fit_that_failed_ctrl_c_waits_for_nothing(tmp_path):
    """Keras calls no hook then, so nobody sets the handlers back."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError):
        searched(tmp_path / "search.db", Sends(error=RuntimeError("of the user's own")))
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
