"""A data set that shuffles its rows, of which there are too many for a state."""

import logging

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, Dataset, TensorDataset

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)


class Ordered(Dataset):
    def __init__(self):
        self.order = np.arange(3_000_000)

    def __len__(self):
        return 64

    def __getitem__(self, index):
        row = int(self.order[index]) % 64
        return x[row], y[row]


class Net(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def on_train_epoch_end(self):
        np.random.shuffle(self.trainer.train_dataloader.dataset.order)  # noqa: NPY002

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.lr)


def search(study):
    val = DataLoader(TensorDataset(x[64:], y[64:]), 16)
    for trial in study:
        with trial:
            trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)], logger=False,
                              enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
            trainer.fit(Net(**trial.config), DataLoader(Ordered(), 16), val, ckpt_path=trial.checkpoint)


def evaluate(path, config):
    net = Net.load_from_checkpoint(path).eval()
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
    updates=4,
    declines=r"because dataset\.order changes in training, or at its start, and is too large to be saved",
)
