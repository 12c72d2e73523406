"""Lightning's BatchSizeFinder doubles the batch until it is as large as it may be; the search is over the rate."""

import logging

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.callbacks import BatchSizeFinder
from torch.utils.data import DataLoader, TensorDataset

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)


class Data(LightningDataModule):
    def __init__(self, batch_size=4):
        super().__init__()
        self.batch_size = batch_size

    def train_dataloader(self):
        return DataLoader(TensorDataset(x[:64], y[:64]), self.batch_size, shuffle=True)

    def val_dataloader(self):
        return DataLoader(TensorDataset(x[64:], y[64:]), 16)


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
            finder = BatchSizeFinder(init_val=4, max_trials=2, steps_per_trial=2)
            trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[finder, HaltuneCallback(trial)],
                              logger=False, enable_progress_bar=False, enable_model_summary=False)
            trainer.fit(Net(**trial.config), datamodule=Data(), ckpt_path=trial.checkpoint)


def evaluate(path, config):
    net = Net.load_from_checkpoint(path)
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net.net(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "lightning"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=3,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 2],
    updates=8,
    aside=4,
)
