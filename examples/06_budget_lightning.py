"""Ten minutes for digits: the search plans with the remaining time, starts with cheap networks, and ends in time."""

import logging
import sys
import warnings

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from haltune import Budget, Float, Int, Maximize, Problem, Space, Study
from haltune.callbacks.lightning import HaltuneCallback
from haltune.policies import Rollout
from haltune.report import live, summary, write

TIME, EPOCHS = sys.argv[1] if len(sys.argv) > 1 else "10min", int(sys.argv[2]) if len(sys.argv) > 2 else 20
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
torch.set_num_threads(1)  # the network is too small for more threads


class Net(lightning.LightningModule):
    def __init__(self, lr, dropout, channels, width, batch):
        super().__init__()
        self.save_hyperparameters()
        image = nn.Sequential(nn.Conv2d(1, channels, 3, padding="same"), nn.ReLU(), nn.MaxPool2d(2))
        hidden = nn.Sequential(nn.Linear(16 * channels, width), nn.ReLU(), nn.Dropout(dropout))
        self.net = nn.Sequential(image, nn.Flatten(), hidden, nn.Linear(width, 10))

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.log("val_acc", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), self.hparams.lr)


x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
x = x.float().reshape(-1, 1, 8, 8) / 16
train, val = random_split(TensorDataset(x, y), [1200, 597], torch.Generator().manual_seed(0))
rates = {"lr": Float(1e-4, 1e-1, log=True), "dropout": Float(0, 0.7)}
sizes = {"channels": Int(2, 64, log=True), "width": Int(8, 512, log=True), "batch": Int(8, 512, log=True)}
problem = Problem(Space(rates | sizes), Maximize("val_acc", bounds=(0, 1)), max_epochs=EPOCHS)
study = Study(problem, Rollout(affordable=0.9), "digits_budget.db", seed=0, budget=Budget(time=TIME))
with live(study):
    for trial in study:
        with trial:
            trainer = lightning.Trainer(
                max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)], accelerator="cpu", logger=False,
                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            )  # fmt: skip
            loaders = DataLoader(train, trial.config["batch"], shuffle=True), DataLoader(val, len(val))
            trainer.fit(Net(**trial.config), *loaders)
print(summary(study), f"curves: {write(study, 'digits_budget.html')}", sep="\n")
