"""A callback of the user's holds an average of the weights in a copy of the net, and has no state_dict."""

import copy
import logging

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch.utils.data import DataLoader, TensorDataset

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)


class Average(Callback):
    def on_fit_start(self, trainer, module):
        self.net = copy.deepcopy(module.net)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        with torch.no_grad():
            for mine, theirs in zip(self.net.parameters(), module.net.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)

    def on_train_epoch_end(self, trainer, module):
        module.pull = self.net(x[:1]).item()


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

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.lr)


def search(study):
    train = DataLoader(TensorDataset(x[:64], y[:64]), 16, shuffle=True)
    val = DataLoader(TensorDataset(x[64:], y[64:]), 16)
    for trial in study:
        with trial:
            trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[Average(), HaltuneCallback(trial)],
                              logger=False, enable_progress_bar=False, enable_model_summary=False,
                              enable_checkpointing=False)
            trainer.fit(Net(**trial.config), train, val, ckpt_path=trial.checkpoint)


def evaluate(path, config):
    net = Net.load_from_checkpoint(path)
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "lightning"],
    slow=True,
    declines=r"Average\.net is a copy of the weights, and a resumed fit copies later ones",
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
)
