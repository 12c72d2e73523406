"""Lightning in studies that count steps and parts of an epoch: positions, stops, and pauses within an epoch."""

import pytest
from callback_fakes import STOP, FakeTrial
from paused_studies import pausing_study

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed")

from lightning.pytorch.callbacks import EarlyStopping  # noqa: E402
from lightning_nets import Net, make_trainer, seed, shuffled  # noqa: E402
from torch.optim import SGD  # noqa: E402
from torch.optim import lr_scheduler as lr  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, TensorDataset  # noqa: E402

from haltune.callbacks.lightning import HaltuneCallback  # noqa: E402
from haltune.errors import HaltuneWarning, InvalidInput  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::haltune.errors.HaltuneWarning")
ROWS = TensorDataset(torch.randn(40, 3, generator=torch.Generator().manual_seed(0)))


def data(**options):
    return DataLoader(ROWS, batch_size=4, **{"shuffle": True} | options)  # 10 batches


class Stream(IterableDataset):
    """Rows without a number, drawn at random."""

    def __iter__(self):
        yield from zip(torch.randn(40, 3, generator=torch.Generator().manual_seed(int(torch.randint(9, ())))))


def counting(unit, horizon, **more):
    trial = FakeTrial("val_loss", max_epochs=horizon, **more)
    trial.unit = unit
    return trial


def fit(trial, epochs=-1, train=None, checkpoint=None, others=(), **options):
    seed(3)
    trainer = make_trainer(*others, *([HaltuneCallback(trial)] if trial else []), epochs=epochs, **options)
    trainer.fit(Net(), train or data(), shuffled(), ckpt_path=checkpoint)
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


@pytest.mark.parametrize(("planned", "says"), [({"max_steps": 5}, "5 steps"), ({"epochs": 2}, "20 steps")])
def test_a_fit_of_another_number_of_steps_is_warned_of(planned, says):
    with pytest.warns(HaltuneWarning, match=rf"plans {says}, but .* Give the loop trial\.max_steps"):
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
    trainer.fit(Net(), data(), shuffled())
    assert (trial.epochs, trainer.global_step) == ([48, 96, 100], 9)  # a batch has 4 rows of 3


@pytest.mark.parametrize("unit", ["step", "epoch"])
def test_a_stop_within_an_epoch_ends_the_fit_there(unit):
    horizon, at = {"step": (10, 4), "epoch": (1, 0.4)}[unit]
    trial = counting(unit, horizon, verdicts={at: STOP})
    trainer = fit(trial, 1, val_check_interval=2)
    assert (trial.epochs[-1], trainer.global_step) == (at, 4)


class Slow(Net):
    """It does not diverge in 3 epochs of 10 batches."""

    def __init__(self, optimize=lambda net: SGD(net.parameters(), lr=0.02, momentum=0.9)):
        super().__init__(optimize)


def cosine(net):
    optimizer = SGD(net.parameters(), lr=0.02, momentum=0.9)
    return {
        "optimizer": optimizer,
        "lr_scheduler": {"scheduler": lr.CosineAnnealingLR(optimizer, 20), "interval": "step"},
    }


class Own(Slow):
    """Its loader has a generator, and is made by the module."""

    def train_dataloader(self):
        return data(generator=torch.Generator().manual_seed(5))


WITHIN = {
    "one epoch": ({"epochs": 1}, (0.4, 0.8)),
    "several epochs": ({"epochs": 3}, (0.8, 1.2, 2.0, 2.4)),
    "twice in an epoch but the first": ({"epochs": 2}, (1.2, 1.6)),
    "worker processes": ({"epochs": 2, "train": lambda: data(num_workers=1)}, (0.4, 1.6)),
    "a generator of the loader": (
        {"epochs": 2, "train": lambda: data(generator=torch.Generator().manual_seed(7))},
        (0.4, 1.6),
    ),
    "a loader of the module": ({"epochs": 2, "net": Own, "train": lambda: None}, (0.4, 1.6)),
    "a schedule by steps": ({"epochs": 2, "net": lambda: Slow(cosine)}, (0.4, 1.6)),
    "accumulation": ({"epochs": 2, "accumulate_grad_batches": 2}, (0.4, 1.6)),
    "early stopping": ({"epochs": 2, "others": lambda: [EarlyStopping("val_loss", patience=4)]}, (0.4, 1.6)),
    "by steps": ({"epochs": -1, "max_steps": 20, "unit": "step", "check_val_every_n_epoch": None}, (4, 10, 16)),
    "data without a length": (
        {"epochs": -1, "max_steps": 20, "unit": "step", "check_val_every_n_epoch": None}
        | {"train": lambda: DataLoader(Stream(), batch_size=4)},
        (4, 8, 16),
    ),
    "by tokens": ({"epochs": 2, "unit": "token", "accumulate_grad_batches": 2}, (48, 72, 192)),
}


@pytest.mark.parametrize(("options", "at"), WITHIN.values(), ids=WITHIN)
def test_a_fit_paused_within_an_epoch_equals_an_uninterrupted_one_digit_for_digit(options, at, tmp_path):
    options = {"val_check_interval": 2, "net": Slow, "train": data, "others": list, "unit": "epoch", **options}
    net, train, others, unit = (options.pop(name) for name in ("net", "train", "others", "unit"))

    def fitted(number, *callbacks, checkpoint=None):
        seed(number)
        trainer = make_trainer(*others(), *callbacks, **options)
        model, loaders = net(), [loader for loader in (train(),) if loader is not None]
        trainer.fit(model, *loaders, val_dataloaders=shuffled(), ckpt_path=checkpoint)
        return {name: value.clone() for name, value in model.state_dict().items()}, torch.rand(3)

    horizon = 240 if unit == "token" else options.get("max_steps", options["epochs"])  # 12 a batch
    count = {"tokens": lambda batch: batch[0].numel()} if unit == "token" else {}
    straight, drawn = fitted(0, HaltuneCallback(whole := counting(unit, horizon), **count))
    study = pausing_study(f"{tmp_path}/s.db", at=at, epochs=whole.max_epochs, unit=unit)
    for attempt, trial in enumerate(study):
        with trial:
            weights, next_drawn = fitted(attempt, HaltuneCallback(trial, **count), checkpoint=trial.checkpoint)
    (record,) = study.trials
    assert (record.attempt, record.status.value) == (len(at) + 1, "completed")
    assert record.epochs.tolist() == whole.epochs
    assert record.values.tolist() == whole.values
    assert all(torch.equal(weights[name], value) for name, value in straight.items())
    assert torch.equal(next_drawn, drawn)
