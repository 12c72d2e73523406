"""Lightning with a DistributedSampler whose seed is drawn at random: it shuffles by that seed and the epoch alone."""

import logging
import random

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)


class Net(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.hparams.lr)


def search(study):
    for trial in study:
        with trial:
            rows = TensorDataset(x[:64], y[:64])
            sampler = DistributedSampler(rows, 1, 0, seed=random.randrange(1000))
            trainer = Trainer(max_epochs=trial.max_epochs, accelerator="cpu", devices=1, logger=False,
                              enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                              callbacks=[HaltuneCallback(trial)])
            trainer.fit(Net(**trial.config), DataLoader(rows, 16, sampler=sampler),
                        DataLoader(TensorDataset(x[64:], y[64:]), 16), ckpt_path=trial.checkpoint)


def evaluate(path, config):
    net = Net.load_from_checkpoint(path)
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net.net(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "lightning"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.2}],
    pauses=[1, 3],
    updates=4,
)
