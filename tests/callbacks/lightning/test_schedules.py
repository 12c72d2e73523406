"""Schedules and early stopping that do not fit the horizon are named, with the fix; others are left alone."""

import re
import warnings

import pytest
from callback_fakes import FakeTrial

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from lightning.pytorch.callbacks import EarlyStopping  # noqa: E402
from lightning_nets import BATCHES, Net, make_trainer, shuffled  # noqa: E402
from torch.optim import SGD  # noqa: E402
from torch.optim import lr_scheduler as lr  # noqa: E402

from haltune.callbacks.lightning import HaltuneCallback  # noqa: E402
from haltune.errors import HaltuneWarning  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")
EPOCHS = 6
STEPS = EPOCHS * BATCHES


def given(trial, *others, schedule=None, interval="epoch", frequency=1, **options):
    """The warnings of a fit of one epoch, ended by a Ctrl-D of the user's own."""

    class Once(pl.Callback):
        def on_train_batch_start(self, trainer, *args):
            trainer.should_stop = True

    def optimize(net):
        optimizer = SGD(net.parameters(), lr=0.1)
        config = {"scheduler": schedule(optimizer), "interval": interval, "frequency": frequency}
        return {"optimizer": optimizer, "lr_scheduler": config} if schedule else optimizer

    def plain(net):
        return SGD(net.parameters(), lr=0.1)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = make_trainer(
            Once(), *others, HaltuneCallback(trial, "train_loss"), epochs=EPOCHS, **options
        )
        trainer.fit(Net(optimize if schedule else plain), shuffled(), shuffled())
    return [str(w.message) for w in caught if issubclass(w.category, HaltuneWarning)]


def sequence(*schedules, milestone):
    return lambda o: lr.SequentialLR(o, [s(o) for s in schedules], milestones=[milestone])


def warm_up(o):
    return lr.LinearLR(o, 0.1, total_iters=2)


def cosine(steps):
    return lambda o: lr.CosineAnnealingLR(o, steps)


FIT = {
    "a cosine over all epochs": (cosine(EPOCHS), "epoch"),
    "a cosine that ends with the last epoch": (cosine(EPOCHS - 1), "epoch"),
    "a cosine over all steps": (cosine(STEPS), "step"),
    "one cycle over all steps": (lambda o: lr.OneCycleLR(o, 0.2, STEPS), "step"),
    "a polynomial over all epochs": (lambda o: lr.PolynomialLR(o, EPOCHS), "epoch"),
    "a warm-up and then a cosine": (sequence(warm_up, cosine(EPOCHS - 2), milestone=2), "epoch"),
    "a warm-up alone": (warm_up, "epoch"),
    "steps": (lambda o: lr.StepLR(o, 2), "epoch"),
    "milestones": (lambda o: lr.MultiStepLR(o, [2, 40]), "epoch"),
    "restarts": (lambda o: lr.CosineAnnealingWarmRestarts(o, 2), "epoch"),
    "an exponential": (lambda o: lr.ExponentialLR(o, 0.9), "epoch"),
}
MISFIT = {
    "a cosine over a rung": (cosine(2), "epoch", r"CosineAnnealingLR\(T_max=2\).*T_max=trial\.max_epochs\."),
    "a cosine over too many epochs": (cosine(100), "epoch", r"ends after 100 epochs.*trial\.max_epochs=6"),
    "a cosine that counts epochs as steps": (cosine(EPOCHS), "step", r"which is 18 steps.*estimated_stepping"),
    "one cycle stepped by epochs": (lambda o: lr.OneCycleLR(o, 0.2, STEPS), "epoch", "OneCycleLR"),
    "a polynomial over a rung": (lambda o: lr.PolynomialLR(o, 2), "epoch", r"PolynomialLR\(total_iters=2\)"),
    "a warm-up beside a whole cosine": (
        sequence(warm_up, cosine(EPOCHS), milestone=2), "epoch", r"T_max=trial\.max_epochs - 2",
    ),
    "a chain": (lambda o: lr.ChainedScheduler([warm_up(o), cosine(2)(o)]), "epoch", "CosineAnnealingLR"),
}  # fmt: skip


@pytest.mark.parametrize("name", FIT)
def test_a_schedule_that_fits_is_left_alone(name):
    schedule, interval = FIT[name]
    assert given(FakeTrial("train_loss", EPOCHS), schedule=schedule, interval=interval) == []


@pytest.mark.parametrize("name", MISFIT)
def test_a_schedule_that_ends_elsewhere_is_named_with_its_fix(name):
    schedule, interval, sentence = MISFIT[name]
    (warning,) = given(FakeTrial("train_loss", EPOCHS), schedule=schedule, interval=interval)
    assert re.search(sentence, warning)


def test_the_frequency_and_accumulated_batches_count():
    trial = FakeTrial("train_loss", EPOCHS)
    assert given(trial, schedule=cosine(EPOCHS // 2), frequency=2) == []
    halved = {"schedule": cosine(EPOCHS * 2), "interval": "step", "accumulate_grad_batches": 2}
    assert given(FakeTrial("train_loss", EPOCHS), **halved) == []


def test_a_schedule_is_not_judged_without_a_horizon():
    trial = FakeTrial("train_loss", EPOCHS)
    trial.max_epochs = None
    assert given(trial, schedule=cosine(2)) == []


def stopping(until, patience, epoch=0.0, **options):
    trial = FakeTrial("train_loss", EPOCHS, epoch=epoch)
    trial.until = until
    return given(trial, EarlyStopping("val_loss", patience=patience, strict=False), **options)


def test_an_early_stopping_that_can_fire_before_the_first_rung_is_named():
    (warning,) = stopping(until=4, patience=2)
    assert "EarlyStopping(monitor='val_loss', patience=2) can end this training before epoch 4" in warning
    (often,) = stopping(until=4, patience=8, val_check_interval=1 / 3)  # 8 validations are under 3 epochs
    assert "patience=8" in often


def test_an_early_stopping_that_leaves_the_first_rung_alone_is_left_alone():
    assert stopping(until=4, patience=3) == []  # the first epoch always improves
    assert stopping(until=2, patience=0) == []
    assert stopping(until=EPOCHS, patience=1) == []  # no rung before the end
    assert stopping(until=4, patience=2, check_val_every_n_epoch=2) == []
