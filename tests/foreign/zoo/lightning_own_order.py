"""A data set in an order of its own, which the module shuffles after each epoch, and noise of its batches."""

import logging
import random

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
        self.order, numbers = random.sample(range(64), 64), random.Random(2)
        self.jitter = lambda row: row * (1 + 0.1 * numbers.random())

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return self.jitter(x[self.order[index]]), y[self.order[index]]


class Noise:
    """Makes batches with noise, which is smaller with each batch."""

    def __init__(self):
        self.numbers, self.scale = random.Random(1), 0.5

    def batch(self, rows):
        self.scale *= 0.9
        inputs, targets = torch.utils.data.default_collate(rows)
        return inputs * (1 + self.scale * self.numbers.random()), targets


class Net(LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.save_hyperparameters()
        self.net = torch.nn.Linear(4, 1)
        self.hard = [random.random() for _ in range(4)]

    def training_step(self, batch, index):
        self.hard[index % 4] *= 0.95
        return torch.nn.functional.mse_loss(self.net(batch[0]), batch[1]) * (1 + sum(self.hard))

    def on_train_epoch_end(self):
        random.shuffle(self.trainer.train_dataloader.dataset.order)

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
            trainer.fit(Net(**trial.config), DataLoader(Ordered(), 16, collate_fn=Noise().batch), val, ckpt_path=trial.checkpoint)


def evaluate(path, config):
    net = Net.load_from_checkpoint(path).eval()
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net.net(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "lightning"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=4,
)
