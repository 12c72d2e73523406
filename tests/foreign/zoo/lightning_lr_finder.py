"""Lightning's LearningRateFinder chooses the rate; the search is over the width."""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateFinder
from torch.utils.data import DataLoader, TensorDataset

from haltune import Int, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)


class Net(LightningModule):
    def __init__(self, width, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Tanh(), torch.nn.Linear(width, 1))

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.hparams.lr)


def search(study):
    train = DataLoader(TensorDataset(x[:64], y[:64]), 16, shuffle=True)
    val = DataLoader(TensorDataset(x[64:], y[64:]), 16)
    for trial in study:
        with trial:
            finder = LearningRateFinder(num_training_steps=20, early_stop_threshold=None)
            trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[finder, HaltuneCallback(trial)],
                              logger=False, enable_progress_bar=False, enable_model_summary=False)
            trainer.fit(Net(**trial.config), train, val, ckpt_path=trial.checkpoint)


def evaluate(path, config):
    net = Net.load_from_checkpoint(path)
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net.net(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "lightning"],
    slow=True,
    space={"width": Int(2, 64)},
    goal=Minimize("val_loss"),
    max_epochs=3,
    trials=[{"width": 4}, {"width": 8}],
    pauses=[1, 2],
    updates=4,
    aside=12,
)
