"""BO-BOS tunes a small convolutional network on digits. If you stop it and start it again, the search continues."""

import logging
import sys
import warnings

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from haltune import Budget, Choice, Float, Int, Maximize, Problem, Space, Study
from haltune.callbacks.lightning import HaltuneCallback
from haltune.policies import BOBOS
from haltune.report import live, summary, write

TRIALS, EPOCHS = (int(n) for n in sys.argv[1:] or (20, 30))  # or: python examples/01_lightning.py 5 10
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
torch.set_num_threads(1)  # the network is too small for more threads


class Net(lightning.LightningModule):
    def __init__(self, lr, decay, dropout, channels, kernel, batch):
        super().__init__()
        self.save_hyperparameters()
        image = nn.Sequential(nn.Conv2d(1, channels, kernel, padding="same"), nn.ReLU(), nn.MaxPool2d(2))
        self.net = nn.Sequential(image, nn.Flatten(), nn.Dropout(dropout), nn.Linear(16 * channels, 10))

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.log("val_acc", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), self.hparams.lr, weight_decay=self.hparams.decay)


x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
x = x.float().reshape(-1, 1, 8, 8) / 16
train, val = random_split(TensorDataset(x, y), [1200, 597], torch.Generator().manual_seed(0))
rates = {"lr": Float(1e-4, 1e-1, log=True), "decay": Float(1e-6, 1e-1, log=True), "dropout": Float(0, 0.7)}
sizes = {"channels": Int(2, 24, log=True), "kernel": Choice([1, 3, 5]), "batch": Int(32, 512, log=True)}
problem = Problem(Space(rates | sizes), Maximize("val_acc", bounds=(0, 1)), max_epochs=EPOCHS)
study = Study(problem, BOBOS(), "sqlite:///digits.db", seed=0, budget=Budget(trials=TRIALS))
with live(study):
    for trial in study:
        with trial:
            lightning.seed_everything(trial.id, verbose=False)
            trainer = lightning.Trainer(
                max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)], accelerator="cpu", logger=False,
                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            )  # fmt: skip
            loaders = DataLoader(train, trial.config["batch"], shuffle=True), DataLoader(val, len(val))
            trainer.fit(Net(**trial.config), *loaders)
print(summary(study), f"curves: {write(study, 'digits.html')}", sep="\n")
print("the best network:", study.best and Net.load_from_checkpoint(study.best.checkpoint).net)
