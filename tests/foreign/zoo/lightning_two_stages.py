"""Two Trainers in a trial: an encoder is trained to reconstruct, then the net that uses it."""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)


class Encoder(LightningModule):
    def __init__(self):
        super().__init__()
        self.down, self.up = torch.nn.Linear(4, 2), torch.nn.Linear(2, 4)

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.up(self.down(batch[0])), batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)


class Net(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.down, self.net = torch.nn.Linear(4, 2), torch.nn.Linear(2, 1)

    def forward(self, inputs):
        return self.net(self.down(inputs))

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
            net, encoder = Net(**trial.config), Encoder()
            if trial.checkpoint is None:
                first = Trainer(max_epochs=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
                                enable_checkpointing=False)
                first.fit(encoder, train)
                net.down.load_state_dict(encoder.down.state_dict())
            trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)],
                              logger=False, enable_progress_bar=False, enable_model_summary=False,
                              enable_checkpointing=False)
            trainer.fit(net, train, val, ckpt_path=trial.checkpoint)


def evaluate(path, config):
    net = Net.load_from_checkpoint(path)
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "lightning"],
    slow=True,
    aside=4,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
)
