"""Manual optimization of two optimizers, one of which starts an epoch later, with a mean loss that weighs the steps."""

import logging

import torch
import torchmetrics
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)


class Net(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
        self.seen = torchmetrics.MeanMetric()

    def loss(self, batch):
        return nn.functional.mse_loss(self.head(torch.tanh(self.body(batch[0]))), batch[1])

    def training_step(self, batch, index):
        first, second = self.optimizers()
        loss = self.loss(batch)
        self.seen.update(loss.detach())
        self.manual_backward(loss * (1 + 0.01 * self.seen.compute()))
        first.step()
        first.zero_grad()
        if self.current_epoch >= 1:
            second.step()
            second.zero_grad()

    def validation_step(self, batch, index):
        self.log("val_loss", self.loss(batch))

    def configure_optimizers(self):
        second = torch.optim.SGD(self.head.parameters(), self.hparams.lr, momentum=0.9)
        return torch.optim.Adam(self.body.parameters(), self.hparams.lr), second


def search(study):
    train, val = DataLoader(TensorDataset(x[:64], y[:64]), 16, shuffle=True), DataLoader(TensorDataset(x[64:], y[64:]))
    for trial in study:
        with trial:
            trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)], logger=False,
                              enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
            trainer.fit(Net(**trial.config), train, val, ckpt_path=trial.checkpoint)


def evaluate(path, config):
    with torch.no_grad():
        return Net.load_from_checkpoint(path).eval().loss((x[64:], y[64:])).item()


zoo = dict(
    needs=["torch", "lightning"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=lambda epoch: 8 * epoch - 4 * min(epoch, 1),
)
