"""A fit that runs out of memory in its third epoch, and is tried again with a smaller net."""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
x = torch.randn(80, 4, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)


class Net(LightningModule):
    def __init__(self, lr, width):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.Linear(width, 1))

    def forward(self, inputs):
        return self.net(inputs)

    def training_step(self, batch, index):
        if self.hparams.width > 8 and self.current_epoch == 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return torch.nn.functional.mse_loss(self(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.lr)


def fit(trial, width):
    train = DataLoader(TensorDataset(x[:64], y[:64]), 16, shuffle=True)
    val = DataLoader(TensorDataset(x[64:], y[64:]), 16)
    trainer = Trainer(
        max_epochs=trial.max_epochs,
        callbacks=[HaltuneCallback(trial)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    trainer.fit(Net(trial.config["lr"], width), train, val, ckpt_path=trial.checkpoint)


def search(study):
    for trial in study:
        with trial:
            try:
                fit(trial, 64)
            except RuntimeError as error:
                if "out of memory" not in str(error):
                    raise
                fit(trial, 8)


def evaluate(path, config):
    net = Net.load_from_checkpoint(path)
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "lightning"],
    slow=True,
    says=[r"The previous fit ended with out of memory"],
    best_epoch=False,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[],
    updates=4,
)
