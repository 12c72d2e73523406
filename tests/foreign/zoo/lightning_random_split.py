"""A data module that splits its rows at random, without a seed, and features of a net that is not trained."""

import logging

import torch
from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset, random_split

from haltune import Float, Minimize
from haltune.callbacks.lightning import HaltuneCallback

logging.getLogger("lightning.pytorch").setLevel("ERROR")
x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


class Data(LightningDataModule):
    def setup(self, stage):
        features = torch.cos(x @ torch.randn(4, 8))
        self.train, self.val = random_split(TensorDataset(features, y), [64, 32])

    def train_dataloader(self):
        return DataLoader(self.train, 16, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, 32)


class Net(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(8, 1)

    def training_step(self, batch, index):
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1])

    def validation_step(self, batch, index):
        self.log("val_loss", torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), self.hparams.lr)


held_out = {}


def search(study):
    for trial in study:
        with trial:
            trainer = Trainer(max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)], logger=False,
                              enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False)
            data = Data()
            trainer.fit(Net(**trial.config), datamodule=data, ckpt_path=trial.checkpoint)
            held_out[trial.config["lr"]] = data.val[:]


def evaluate(path, config):
    features, targets = held_out[config["lr"]]
    return torch.nn.functional.mse_loss(Net.load_from_checkpoint(path).net(features), targets).item()


zoo = dict(
    needs=["torch", "lightning"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.2}],
    pauses=[1, 3],
    updates=4,
)
