"""Ctrl-C and SIGTERM in a Keras fit: the epoch is finished and saved. Run by test_callback.py."""

import os
import signal
from types import MappingProxyType

import keras
import pytest
from interrupted_fits import InterruptedFits, handlers  # noqa: F401
from keras_resume_checks import X, Y, momentum, net, seed_everything
from paused_studies import pausing_study

from haltune.callbacks.keras import HaltuneCallback

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


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
    """Run one training of 4 epochs, resumed as in the log."""
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


class TestInterruption(InterruptedFits):
    searched, sends = staticmethod(searched), Sends
    raised = MappingProxyType({signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: SystemExit})
    every_second_epoch = MappingProxyType({"validation_freq": 2})


def test_after_a_fit_that_failed_ctrl_c_waits_for_nothing(tmp_path):
    """Keras calls no hook then, so the handlers are not restored."""
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError):
        searched(tmp_path / "search.db", Sends(error=RuntimeError("of the user's own")))
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
