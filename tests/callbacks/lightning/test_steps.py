"""Lightning in studies that count steps and parts of an epoch: positions, stops, and pauses within an epoch."""

import pytest
from callback_fakes import STOP, FakeTrial

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from lightning_nets import Net, make_trainer, seed, shuffled, ten_batches  # noqa: E402

from haltune.callbacks.lightning import HaltuneCallback  # noqa: E402
from haltune.errors import HaltuneWarning, InvalidInput  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")


def counting(unit, horizon, **more):
    trial = FakeTrial("val_loss", max_epochs=horizon, **more)
    trial.unit = unit
    return trial


def fit(trial, epochs=-1, train=None, checkpoint=None, others=(), **options):
    seed(3)
    trainer = make_trainer(*others, *([HaltuneCallback(trial)] if trial else []), epochs=epochs, **options)
    trainer.fit(Net(), train or ten_batches(), shuffled(), ckpt_path=checkpoint)
    return trainer


def test_global_steps_are_reported_across_epochs_and_the_last_is_validated():
    trial = counting("step", 25)
    trainer = fit(trial, max_steps=25, val_check_interval=4, check_val_every_n_epoch=None)
    assert (trial.epochs, trainer.global_step) == ([4, 8, 12, 16, 20, 24, 25], 25)


def test_steps_of_accumulated_batches_are_counted_once():
    trial = counting("step", 10)
    fit(trial, 2, val_check_interval=4, accumulate_grad_batches=2)
    assert trial.epochs == [2, 4, 7, 9, 10]


def test_an_epoch_that_validations_do_not_divide_is_validated_at_its_end():
    trial = FakeTrial(max_epochs=1)
    fit(trial, 1, val_check_interval=4)
    assert trial.epochs == [0.4, 0.8, 1.0]


@pytest.mark.parametrize(("planned", "says"), [({"max_steps": 15}, "15 steps"), ({"epochs": 2}, "20 steps")])
def test_a_fit_of_more_steps_is_warned_of(planned, says):
    with pytest.warns(HaltuneWarning, match=rf"plans {says}, but .* [Gg]ive the loop trial\.max_steps"):
        fit(counting("step", 12), val_check_interval=2, **planned)


def test_tokens_are_refused_without_a_function_that_counts_them():
    with pytest.raises(InvalidInput, match=r"counts tokens, but tokens=None is not .* make the study with max_steps="):
        HaltuneCallback(counting("token", 100))


def test_tokens_are_counted_batch_by_batch_and_the_last_ones_are_validated():
    trial = counting("token", 100)
    seed(3)
    trainer = make_trainer(
        HaltuneCallback(trial, tokens=lambda batch: batch[0].numel()), epochs=-1, val_check_interval=4
    )
    trainer.fit(Net(), ten_batches(), shuffled())
    assert (trial.epochs, trainer.global_step) == ([48, 96, 100], 9)  # a batch has 4 rows of 3


@pytest.mark.parametrize("unit", ["step", "epoch"])
def test_a_stop_within_an_epoch_ends_the_fit_there(unit):
    horizon, at = {"step": (10, 4), "epoch": (1, 0.4)}[unit]
    trial = counting(unit, horizon, verdicts={at: STOP})
    trainer = fit(trial, 1, val_check_interval=2)
    assert (trial.epochs[-1], trainer.global_step) == (at, 4)
