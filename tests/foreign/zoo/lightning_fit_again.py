"""A fit for each epoch, each of which configures its optimizer again, with an evaluation between two."""

import logging

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


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
        return torch.optim.AdamW(self.parameters(), self.hparams.lr)


def search(study):
    train, val = DataLoader(TensorDataset(x[:64], y[:64]), 16, shuffle=True), DataLoader(TensorDataset(x[64:], y[64:]), 32)
    for trial in study:
        with trial:
            net, path = Net(**trial.config), trial.checkpoint
            trainer = Trainer(max_epochs=1, callbacks=[HaltuneCallback(trial)], logger=False, enable_checkpointing=False,
                              enable_progress_bar=False, enable_model_summary=False)
            for epoch in range(trial.epoch, trial.max_epochs):
                trainer.fit_loop.max_epochs = epoch + 1
                trainer.fit(net, train, val, ckpt_path=path)
                if trial.verdict.stops:
                    break
                trainer.validate(net, val, verbose=False)
                path = None


def evaluate(path, config):
    return torch.nn.functional.mse_loss(Net.load_from_checkpoint(path).net(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "lightning"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.2}],
    pauses=[1, 2],
    updates=4,
    declines="its fit ends where it would pause, before the trial's last epoch",
)
