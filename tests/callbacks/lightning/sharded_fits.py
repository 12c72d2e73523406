"""Fits whose model Lightning spreads over processes; run as a script by test_sharded_fits.py.

python sharded_fits.py STRATEGY FOLDER ACCELERATOR DEVICES PROGRAM

Every process writes what it saw to FOLDER/RANK.json.
"""

import json
import logging
import sys
import warnings
from functools import partial
from itertools import islice
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from parts_of_ranks import dies_while_it_saves, held, whole
from paused_studies import pausing_study
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from haltune import Minimize
from haltune.callbacks.lightning import HaltuneCallback
from haltune.errors import HaltuneWarning

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")
X = torch.linspace(-1, 1, 96).reshape(32, 3)
ACCELERATOR, DEVICES = sys.argv[3], int(sys.argv[4])


class ZeroOnCpu(DeepSpeedStrategy):
    """DeepSpeed on the CPU. Lightning lets it run on CUDA devices only, whose numbers are the ranks."""

    def setup_environment(self):
        self.parallel_devices = [torch.device("cpu", rank) for rank in range(DEVICES)]
        DDPStrategy.setup_environment(self)


def zero(stage):
    return (ZeroOnCpu if ACCELERATOR == "cpu" else DeepSpeedStrategy)(stage=stage)


STRATEGIES = {
    "fsdp2": lambda: ModelParallelStrategy(data_parallel_size=DEVICES, tensor_parallel_size=1),
    "tensors": lambda: ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=DEVICES),
    "whole": lambda: ModelParallelStrategy(DEVICES, 1, save_distributed_checkpoint=False),
    "fsdp1": lambda: FSDPStrategy(state_dict_type="sharded", use_orig_params=True),
} | {f"zero{stage}": partial(zero, stage) for stage in (1, 2, 3)}


class Net(pl.LightningModule):
    """Layers with dropout and batch norm; under FSDP their running means differ between processes."""

    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = None

    def configure_model(self):
        if self.net is not None:
            return
        torch.manual_seed(0)
        self.net = torch.nn.Sequential(
            torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 4),
            torch.nn.Linear(4, 1),
        )  # fmt: skip
        mesh = getattr(self, "device_mesh", None)
        if mesh is not None and mesh["tensor_parallel"].size() > 1:
            parallelize_module(self.net, mesh["tensor_parallel"], {"3": ColwiseParallel(), "4": RowwiseParallel()})
        elif mesh is not None:
            for layer in (self.net[0], self.net[3], self.net[4], self.net):
                fully_shard(layer, mesh=mesh["data_parallel"])

    def loss(self, x):
        return (self.net(x) - x.sum(1, keepdim=True)).pow(2).mean()

    def training_step(self, batch, index):
        return self.loss(batch[0])

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch[0]), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), self.hparams.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]


class Seeds(pl.Callback):
    """Every process of every attempt draws other numbers; processes with tensor parallelism draw the same."""

    def __init__(self, seed):
        self.seed = seed

    def on_fit_start(self, trainer, pl_module):
        torch.manual_seed(self.seed + (0 if sys.argv[1] == "tensors" else trainer.global_rank))


def search(folder, name, at, kind=Net, attempts=None, **options):
    """Train a trial; return what this process saw. attempts: the most of them that are made now."""
    study = pausing_study(folder / f"{name}.db", at=at, epochs=4, verbose=0, keep=1, **options)
    said = []
    for trial in islice(study, attempts):
        with trial, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", HaltuneWarning)
            data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X), 8, shuffle=True)
            checks = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X), 8)
            trainer = pl.Trainer(
                accelerator=ACCELERATOR, devices=DEVICES, strategy=STRATEGIES[sys.argv[1]](),
                max_epochs=trial.max_epochs, callbacks=[Seeds(10 * trial.attempt), HaltuneCallback(trial)],
                logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
            )  # fmt: skip
            net = kind(trial.config["lr"])
            trainer.fit(net, data, checks, ckpt_path=trial.checkpoint)
            parts = [*net.parameters(), *net.buffers()] if "zero" in sys.argv[1] else net.state_dict().values()
            weights = [value for part in parts for value in held(part)]
        said += [str(w.message) for w in caught if issubclass(w.category, HaltuneWarning)]
    (record,) = study.trials
    return {
        "rank": trainer.global_rank, "attempts": record.attempt, "values": record.values.tolist(), "weights": weights,
        "best": [study.best.checkpoint, study.best.value, study.best.epoch], "checkpoint": record.checkpoint,
        "said": said,
    }  # fmt: skip


def fits(folder):
    """A fit without a pause, one with two, and one with a pause where the best epoch counts."""
    best = Minimize("val_loss", of="best")
    return {
        "straight": search(folder, "straight", ()),
        "paused": search(folder, "paused", (1, 3)),
        "best": search(folder, "best", (2,), metric=best),
    }


def killed(folder):
    """A process is killed while it writes its part of the second pause; the search is started again after it."""
    dies_while_it_saves(folder, 2)
    return {"killed": search(folder, "killed", (1, 3)), "straight": search(folder, "straight", ())}


def another(folder):
    """One attempt, which the next one may continue on another number of devices; with its weights at the start."""
    first = {}

    class Watched(Net):
        def on_train_start(self):
            first.update(whole(self))

    return {"another": search(folder, "another", (2,), Watched, attempts=1) | {"first": first}}


PROGRAMS = {"fits": fits, "killed": killed, "another": another}

if __name__ == "__main__":
    folder = Path(sys.argv[2])
    told = PROGRAMS[sys.argv[5]](folder)
    (rank,) = {search["rank"] for search in told.values()}
    (folder / f"{rank}.json").write_text(json.dumps(told))
