"""Tiny Lightning modules and trainers, and a search that trains straight or with a pause."""

import random

import lightning.pytorch as pl
import numpy as np
import torch
from paused_studies import pausing_study
from torch.utils.data import DataLoader, TensorDataset

from haltune.callbacks.lightning import HaltuneCallback

ROWS, BATCH = 12, 4
BATCHES = ROWS // BATCH


def momentum(net):
    """A function of the module, so that nets pickle into spawned processes."""
    return torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


class Net(pl.LightningModule):
    """Dropout, noise from three generators, metrics of steps, epochs, validations and epoch ends."""

    def __init__(self, optimize=momentum):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1)
        )
        self.optimize = optimize

    def loss(self, batch):
        return self.layers(batch).pow(2).mean()

    def training_step(self, batch, index):
        noise = np.random.rand() + random.random() + torch.rand(())  # noqa: NPY002
        loss = self.loss(batch[0] * (1 + 0.1 * noise))
        self.log("train_loss", loss, on_step=True, on_epoch=True)
        return loss

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch[0]) + 0.001 * torch.rand(()))

    def on_train_epoch_start(self):
        self.log("drawn", torch.rand(()))  # drawn between the epoch's start and its shuffling

    def on_train_epoch_end(self):
        self.log("afterwards", torch.rand(()))

    def configure_optimizers(self):
        return self.optimize(self)


def rows():
    return TensorDataset(torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0)))


def shuffled(**options):
    return DataLoader(rows(), batch_size=BATCH, shuffle=True, **options)


def seed(number):
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002
    torch.manual_seed(number)


def make_trainer(*callbacks, epochs, **options):
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 1,
        "accelerator": "cpu",
    }
    return pl.Trainer(max_epochs=epochs, callbacks=list(callbacks), **quiet | options)


def search(
    at, make_net=Net, make_data=shuffled, others=list, metric="val_loss", store=None, epochs=4, budget=None, **options
):
    """Train one trial of a study that pauses it after the epochs `at`; the study, the last trainer, the next draw."""
    study = pausing_study(store, at=at, metric=metric, epochs=epochs, budget=budget)
    for attempt, trial in enumerate(study):
        seed(attempt)  # a resumed attempt starts with other random numbers
        trainer = make_trainer(*others(), HaltuneCallback(trial), epochs=trial.max_epochs, **options)
        with trial:
            trainer.fit(make_net(), make_data(), make_data(), ckpt_path=trial.checkpoint)
    return study, trainer, random.random() + np.random.rand() + float(torch.rand(()))  # noqa: NPY002
