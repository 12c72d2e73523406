"""Fits whose model Lightning spreads over two processes; run as a script by test_sharded_fits.py.

python sharded_fits.py STRATEGY FOLDER [ACCELERATOR]

Every process writes what it saw to FOLDER/RANK.json.
"""

import json
import logging
import sys
import warnings
from functools import partial
from pathlib import Path

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import DDPStrategy, DeepSpeedStrategy, FSDPStrategy, ModelParallelStrategy
from parts_of_ranks import held
from paused_studies import pausing_study
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from haltune import Minimize
from haltune.callbacks.lightning import HaltuneCallback
from haltune.errors import HaltuneWarning

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.simplefilter("ignore")
X = torch.linspace(-1, 1, 96).reshape(32, 3)
ACCELERATOR = sys.argv[3] if len(sys.argv) > 3 else "cpu"


class ZeroOnCpu(DeepSpeedStrategy):
    """DeepSpeed on the CPU. Lightning lets it run on CUDA devices only, whose numbers are the ranks."""

    def setup_environment(self):
        self.parallel_devices = [torch.device("cpu", rank) for rank in range(2)]
        DDPStrategy.setup_environment(self)


def zero(stage):
    return (ZeroOnCpu if ACCELERATOR == "cpu" else DeepSpeedStrategy)(stage=stage)


STRATEGIES = {
    "fsdp2": lambda: ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1),
    "tensors": lambda: ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=2),
    "whole": lambda: ModelParallelStrategy(2, 1, save_distributed_checkpoint=False),
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


def search(folder, name, at, **options):
    study = pausing_study(folder / f"{name}.db", at=at, epochs=4, verbose=0, keep=1, **options)
    said = []
    for trial in study:
        with trial, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", HaltuneWarning)
            data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X), 8, shuffle=True)
            checks = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X), 8)
            trainer = pl.Trainer(
                accelerator=ACCELERATOR, devices=2, strategy=STRATEGIES[sys.argv[1]](),
                max_epochs=trial.max_epochs, callbacks=[Seeds(10 * trial.attempt), HaltuneCallback(trial)],
                logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
            )  # fmt: skip
            net = Net(trial.config["lr"])
            trainer.fit(net, data, checks, ckpt_path=trial.checkpoint)
            parts = [*net.parameters(), *net.buffers()] if "zero" in sys.argv[1] else net.state_dict().values()
            weights = [value for part in parts for value in held(part)]
        said += [str(w.message) for w in caught if issubclass(w.category, HaltuneWarning)]
    (record,) = study.trials
    return {
        "rank": trainer.global_rank, "attempts": record.attempt, "values": record.values.tolist(), "weights": weights,
        "best": [study.best.checkpoint, study.best.value, study.best.epoch],
        "said": said,
    }  # fmt: skip


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    told = {"straight": search(folder, "straight", ()), "paused": search(folder, "paused", (1, 3))}
    told["best"] = search(folder, "best", (2,), metric=Minimize("val_loss", of="best"))
    (folder / f"{told['best']['rank']}.json").write_text(json.dumps(told))
