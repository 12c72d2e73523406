"""Searches under a strategy of Lightning with two ranks; run as a script by test_distributed.py.

    python distributed_search.py STRATEGY FOLDER SCENE...

Every rank writes its trainings to FOLDER, and every process of this script the messages of its study.
"""

import atexit
import copy
import json
import logging
import os
import sys
import warnings
from dataclasses import replace
from pathlib import Path

import lightning.pytorch as pl
import torch
from callback_studies import study as stopping_study
from lightning.fabric.plugins import TorchCheckpointIO
from lightning_nets import BATCH, Net, make_trainer, rows, seed, shuffled
from paused_studies import pausing_study
from torch.utils.data import DataLoader, TensorDataset

from haltune import Minimize
from haltune.callbacks.lightning import HaltuneCallback
from haltune.errors import HaltuneError

warnings.simplefilter("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Told(Net):
    """Draws other numbers on every rank and in every attempt; writes down how it ended."""

    def __init__(self, trial, folder, scene):
        super().__init__()
        self.name = f"{scene}-{trial.id}-{trial.attempt}"
        self.rate, self.folder, self.attempt = trial.config["lr"], folder, trial.attempt

    on_train_epoch_start = pl.LightningModule.on_train_epoch_start  # that of Net declines a pause within an epoch

    def setup(self, stage):
        seed(10 * self.attempt + self.trainer.global_rank)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate, momentum=0.9)

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch[0]) + self.global_rank, sync_dist=True)

    def on_train_end(self):
        weights = [float(p.detach().double().sum()).hex() for p in self.parameters()]
        seen = {"lr": self.rate, "epochs": self.trainer.current_epoch, "weights": weights}
        (self.folder / f"{self.name}-rank{self.global_rank}.json").write_text(json.dumps(seen))


class OnlyThere(Told):
    """Logs the metric where rank 0 never sees it."""

    def validation_step(self, batch, index):
        if self.global_rank:
            self.log("val_loss", 1.0)


class OnRank0(Told):
    """Logs all metrics on rank 0 alone."""

    def training_step(self, batch, index):
        loss = self.loss(batch[0])
        if self.trainer.is_global_zero:
            self.log("train_loss", loss, rank_zero_only=True)
        return loss

    def validation_step(self, batch, index):
        loss = self.loss(batch[0])
        if self.trainer.is_global_zero:
            self.log("val_loss", loss, rank_zero_only=True)


class Noting(TensorDataset):
    """Rows that are noted on rank 1 alone, as rare ones may be."""

    def __init__(self):
        super().__init__(*rows().tensors)
        self.rare = []

    def __getitem__(self, index):
        if torch.distributed.is_initialized() and torch.distributed.get_rank():
            self.rare.append(index)
        return super().__getitem__(index)


class Averages(pl.Callback):
    """Averages the weights in a copy, on rank 1 alone."""

    average = None

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_rank:
            self.average = self.average or copy.deepcopy(module.layers)
            for mean, weight in zip(self.average.parameters(), module.layers.parameters(), strict=True):
                mean.data.lerp_(weight.data, 0.1)


class Remembers(pl.Callback):
    """Lowers the weights by a sum of its rank, which is in its state."""

    sum = 0.0

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.sum += 1.0 + trainer.global_rank
        module.trace = self.sum

    def state_dict(self):
        return {"sum": self.sum}

    def load_state_dict(self, state):
        self.sum = state["sum"]


class Traced(Told):
    """Its loss has the sum of a callback."""

    trace = 0.0

    def training_step(self, batch, index):
        return super().training_step(batch, index) / (1 + self.trace)


class Broken(TorchCheckpointIO):
    def save_checkpoint(self, *args, **kwargs):
        raise OSError("the disk broke")


def train(strategy, folder, scene, trial, monitor=None, kind=Told, data=rows, others=tuple, **options):
    pl.seed_everything(trial.attempt, verbose=False)  # also the order in which ranks share out the data
    seed(0)
    net = kind(trial, folder, scene)
    options |= {"strategy": strategy, "devices": 2}
    trainer = make_trainer(*others(), HaltuneCallback(trial, monitor), epochs=trial.max_epochs, **options)
    trainer.fit(net, DataLoader(data(), BATCH, shuffle=True), shuffled(), ckpt_path=trial.checkpoint)


def search(study, strategy, folder, scene, **options):
    told = []
    for trial in study:
        with trial:
            train(strategy, folder, scene, trial, **options)
        told.append([trial.id, trial.attempt, trial.config["lr"], trial.epoch, trial.ended, trial.verdict.action])
    told.append([str(replace(study.best, checkpoint=None)), str(study.outcome), [list(t.values) for t in study.trials]])
    return told


def three_trials(strategy, folder, store="three.db"):
    study = stopping_study(None if store is None else folder / store)
    return search(study, strategy, folder, "three")


def three_in_memory(strategy, folder):
    return three_trials(strategy, folder, None)


def straight(strategy, folder):
    return search(pausing_study(folder / "straight.db", at=()), strategy, folder, "straight", val_check_interval=1)


def paused(strategy, folder):
    return search(pausing_study(folder / "paused.db", at=(1.5, 3)), strategy, folder, "paused", val_check_interval=1)


def steps(strategy, folder, scene, at):
    """Judged by the loss of training, of which rank 0's counts, and ranked by validations."""
    goal = Minimize("train_loss", rank_by="val_loss")
    study = pausing_study(folder / f"{scene}.db", at=at, epochs=8, unit="step", metric=goal)
    return search(study, strategy, folder, scene, log_every_n_steps=1, max_steps=8)


def straight_steps(strategy, folder):
    return steps(strategy, folder, "straight_steps", ())


def paused_steps(strategy, folder):
    return steps(strategy, folder, "paused_steps", (1, 4, 5))


def on_rank_0(strategy, folder):
    study = pausing_study(folder / "on_rank_0.db", at=(2,), metric=Minimize("val_loss", of="best"), keep=1)
    return search(study, strategy, folder, "on_rank_0", kind=OnRank0)


def steps_on_rank_0(strategy, folder):
    study = pausing_study(folder / "steps_on_rank_0.db", at=(3,), epochs=6, unit="step", metric="train_loss")
    return search(study, strategy, folder, "steps_on_rank_0", kind=OnRank0, log_every_n_steps=1, max_steps=6)


def noting(strategy, folder):
    study = pausing_study(folder / "noting.db", at=(1.5,))
    return search(study, strategy, folder, "noting", data=Noting, val_check_interval=1)


def remembering(strategy, folder):
    for scene, at in (("remembering_straight", ()), ("remembering", (2,))):
        study = pausing_study(folder / f"{scene}.db", at=at)
        others = {"others": lambda: [Remembers()], "reload_dataloaders_every_n_epochs": 1}
        told = search(study, strategy, folder, scene, kind=Traced, **others)
    return told


def averaging(strategy, folder):
    study = pausing_study(folder / "averaging.db", at=(2,))
    return search(study, strategy, folder, "averaging", others=lambda: [Averages()])


def refused(strategy, folder, scene, store, monitor=None, kind=Told):
    """Return the error of the fit, and the end of the trial."""
    trial = stopping_study(store).ask()
    try:
        with trial:
            train(strategy, folder, scene, trial, monitor, kind)
    except HaltuneError as error:
        return type(error).__name__, str(error), trial.ended
    except Exception as error:  # torch wraps what a process that it started raised
        return "wrapped", str(error), trial.ended
    return "nothing raised"


def misspelt(strategy, folder):
    return refused(strategy, folder, "misspelt", folder / "misspelt.db", "val_los")


def only_there(strategy, folder):
    return refused(strategy, folder, "there", folder / "there.db", kind=OnlyThere)


def failing(strategy, folder):
    study = pausing_study(folder / "failing.db", at=(1,))
    with study.ask() as trial:
        train(strategy, folder, "failing", trial, plugins=[Broken()])
    return trial.ended, trial.epoch


def memory(strategy, folder):
    return refused(strategy, folder, "memory", None)


def main(strategy, folder, *scenes):
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK", "0")
    told = {scene: globals()[scene](strategy, Path(folder)) for scene in scenes}
    Path(folder, f"told-{rank}.json").write_text(json.dumps(told))


def left():
    """Write to the folder the state of a spawned process's group at the end of Python."""
    folder = Path(os.environ["DISTRIBUTED_FOLDER"])
    (folder / f"left-{os.getpid()}").write_text(str(torch.distributed.is_initialized()))


if __name__ == "__mp_main__":
    atexit.register(left)  # before all others, so the last to be called

if __name__ == "__main__":
    main(*sys.argv[1:])
