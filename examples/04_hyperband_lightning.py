"""Hyperband on digits: trials pause at their rung, and the best resume with optimizer and learning-rate schedule."""

import logging
import sys
import warnings

import lightning
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from haltune import Float, Int, Maximize, Problem, Space, Study
from haltune.callbacks.lightning import HaltuneCallback
from haltune.policies import Hyperband
from haltune.report import live, summary, write

EPOCHS = int(sys.argv[1]) if len(sys.argv) > 1 else 9  # or: python examples/04_hyperband_lightning.py 27
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", module="lightning")
torch.set_num_threads(1)  # the network is too small for more threads


class Net(lightning.LightningModule):
    def __init__(self, epochs, lr, dropout, width):
        super().__init__()
        self.save_hyperparameters()
        layers = [nn.Linear(64, width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 10)]
        self.net = nn.Sequential(*layers)

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.log("val_acc", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self):
        adam = torch.optim.Adam(self.parameters(), self.hparams.lr)
        return [adam], [torch.optim.lr_scheduler.CosineAnnealingLR(adam, self.hparams.epochs)]


x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
data = TensorDataset(x.float() / 16, y)
train, val = random_split(data, [1200, 597], torch.Generator().manual_seed(0))
space = Space({"lr": Float(1e-4, 1e-1, log=True), "dropout": Float(0, 0.7), "width": Int(8, 256, log=True)})
policy = Hyperband(EPOCHS, eta=3, sampler="sobol")
print(policy.table().table())  # configurations and epochs of each bracket
study = Study(Problem(space, Maximize("val_acc", (0, 1)), EPOCHS), policy, "digits_hyperband.db", seed=0)
with live(study):
    for trial in study:
        with trial:
            trainer = lightning.Trainer(
                max_epochs=trial.max_epochs, callbacks=[HaltuneCallback(trial)], accelerator="cpu", logger=False,
                enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            )  # fmt: skip
            loaders = DataLoader(train, 64, shuffle=True), DataLoader(val, len(val))
            trainer.fit(Net(trial.max_epochs, **trial.config), *loaders, ckpt_path=trial.checkpoint)
print(summary(study), f"curves: {write(study, 'digits_hyperband.html')}", sep="\n")
print("the best network:", study.best and Net.load_from_checkpoint(study.best.checkpoint).net)
