"""A replay buffer, which the module fills and the data set reads, as in deep Q-learning."""

import logging
from collections import deque
from dataclasses import dataclass

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)


@dataclass
class Step:
    state: torch.Tensor
    value: torch.Tensor


class Replay(IterableDataset):
    def __init__(self, buffer):
        self.buffer = buffer

    def __iter__(self):
        for i in torch.randint(len(self.buffer), (64,)):
            yield self.buffer[i].state, self.buffer[i].value


class Net(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(4, 1)
        self.buffer = deque((Step(x[i], y[i]) for i in range(20)), maxlen=40)

    def forward(self, inputs):
        return self.net(inputs)

    def training_step(self, batch, index):
        i = int(torch.randint(64, ()))
        self.buffer.append(Step(x[i], y[i]))
        return torch.nn.functional.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.lr)


def search(study):
    val = DataLoader(TensorDataset(x[64:], y[64:]), 16)
    for trial in study:
        with trial:
            net = Net(**trial.config)
            trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)],
                              logger=False, enable_progress_bar=False, enable_model_summary=False,
                              enable_checkpointing=False)
            trainer.fit(net, DataLoader(Replay(net.buffer), 16), val, ckpt_path=trial.checkpoint)


def evaluate(path, config):
    net = Net.load_from_checkpoint(path)
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "lightning"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
)
