"""A training loader that is made for each epoch, with data that grow harder (reload_dataloaders_every_n_epochs)."""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)


class Harder(TensorDataset):
    def __init__(self, epoch, *tensors):
        super().__init__(*tensors)
        self.noise = 0.05 * epoch

    def __getitem__(self, i):
        inputs, target = super().__getitem__(i)
        return (1 + self.noise) * inputs, target


class Net(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(4, 1)

    def forward(self, inputs):
        return self.net(inputs)

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self(batch[0]), batch[1]))

    def train_dataloader(self):
        near = x[:64].abs().sum(1).argsort()[: 48 + 16 * (self.current_epoch > 0)]
        return DataLoader(Harder(self.current_epoch, x[near], y[near]), 16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(TensorDataset(x[64:], y[64:]), 16)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.lr)


def search(study):
    for trial in study:
        with trial:
            trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)],
                              reload_dataloaders_every_n_epochs=1, logger=False, enable_progress_bar=False,
                              enable_model_summary=False, enable_checkpointing=False)
            trainer.fit(Net(**trial.config), ckpt_path=trial.checkpoint)


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
    updates=lambda epoch: 3 * min(epoch, 1) + 4 * max(0, epoch - 1),
)
