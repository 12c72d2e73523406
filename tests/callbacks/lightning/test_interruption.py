"""Ctrl-C and SIGTERM in a Lightning fit: the epoch is finished and saved, and the second leaves at once."""

import os
import signal
import threading
from contextlib import suppress
from types import MappingProxyType

import pytest

pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from interrupted_fits import InterruptedFits  # noqa: E402
from lightning_nets import Net, make_trainer, shuffled  # noqa: E402
from paused_studies import pausing_study  # noqa: E402

from haltune import HaltuneWarning  # noqa: E402
from haltune._utils.interruption import Interruption  # noqa: E402
from haltune.callbacks.lightning import HaltuneCallback  # noqa: E402
from haltune.log.events import Status  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


@pytest.fixture(autouse=True)
def handlers():
    """Set the handlers of a terminal; check that none of haltune's is left."""
    before = [signal.signal(signal.SIGINT, signal.default_int_handler), signal.getsignal(signal.SIGTERM)]
    yield
    after = [signal.signal(n, h) for n, h in zip((signal.SIGINT, signal.SIGTERM), before, strict=True)]
    assert not any(isinstance(getattr(handler, "__self__", None), Interruption) for handler in after)


class Sends(pl.Callback):
    def __init__(self, *numbers, epoch=2, error=None):
        self.numbers, self.epoch, self.error = numbers, epoch, error

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if (trainer.current_epoch + 1, batch_idx) == (self.epoch, 1):
            for number in self.numbers:
                os.kill(os.getpid(), number)
            if self.error:
                raise self.error


def searched(store, *others, **options):
    """Run one training of 4 epochs, resumed as in the log."""
    study = pausing_study(store, at=(), verbose=0)
    for trial in study:
        with trial:
            pl.seed_everything(0, verbose=False)
            net = Net()
            trainer = make_trainer(*others, HaltuneCallback(trial), epochs=trial.max_epochs, **options)
            trainer.fit(net, shuffled(), shuffled(), ckpt_path=trial.checkpoint)
    return study, net.layers[0].weight.detach().numpy()


class TestInterruption(InterruptedFits):
    searched, sends = staticmethod(searched), Sends
    raised = MappingProxyType({signal.SIGINT: SystemExit, signal.SIGTERM: SystemExit})
    every_second_epoch = MappingProxyType({"check_val_every_n_epoch": 2})


def test_what_fails_after_it_is_no_failed_trial(tmp_path):
    with pytest.raises((KeyboardInterrupt, SystemExit)):  # right after the error, or in its stead
        with suppress(RuntimeError):
            searched(tmp_path / "search.db", Sends(signal.SIGINT, error=RuntimeError("a loader has gone")))
        threading.Event().wait(60)
    [trial] = pausing_study(tmp_path / "search.db", at=(), verbose=0).trials
    assert trial.status is Status.INTERRUPTED


def test_where_one_of_several_fits_ends_nothing_is_saved_because_the_next_one_configures_its_optimizer_again(tmp_path):
    says = pytest.warns(HaltuneWarning, match="its fit ends where it would pause")
    with pytest.raises((KeyboardInterrupt, SystemExit)), says:
        for trial in pausing_study(tmp_path / "search.db", at=(), verbose=0):
            with trial:
                trainer = make_trainer(Sends(signal.SIGINT), HaltuneCallback(trial), epochs=2)
                trainer.fit(Net(), shuffled(), shuffled())
    trial = pausing_study(tmp_path / "search.db", at=(), verbose=0).ask()
    assert (trial.id, trial.attempt, trial.epoch, trial.checkpoint) == (0, 2, 0, None)
