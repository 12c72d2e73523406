"""Find all settings that reach 85% on digits: TruVaR trains 1 or 3 seeds per point; then the region is tested."""

import logging
import sys

import lightning
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.callbacks.lightning import HaltuneCallback
from haltune.policies import Level, TruVaR

TRIALS, EPOCHS, CHECKS = (int(n) for n in sys.argv[1:] or (40, 10, 12))
LEVELS, GOOD = [Level("1 seed"), Level("3 seeds", cost=3)], 0.85
QUIET = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Nets(lightning.LightningModule):  # one network per seed; their mean accuracy counts
    def __init__(self, lr, dropout, seeds):
        super().__init__()
        nets = ([nn.Dropout(dropout), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)] for _ in range(seeds))
        self.lr, self.nets = lr, nn.ModuleList(nn.Sequential(*net) for net in nets)

    def training_step(self, batch, _):
        return sum(nn.functional.cross_entropy(net(batch[0]), batch[1]) for net in self.nets)

    def validation_step(self, batch, _):
        right = [(net(batch[0]).argmax(1) == batch[1]).float().mean() for net in self.nets]
        self.log("val_acc", sum(right) / len(right))

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), self.lr)


def fit(config, seeds, callbacks=()):
    trainer = lightning.Trainer(max_epochs=EPOCHS, callbacks=[*callbacks], accelerator="cpu", **QUIET)
    trainer.fit(Nets(**config, seeds=seeds), DataLoader(train, 64, shuffle=True), DataLoader(val, len(val)))
    return float(trainer.callback_metrics["val_acc"])


x, y = (torch.as_tensor(part) for part in load_digits(return_X_y=True))
train, val = random_split(TensorDataset(x.float() / 16, y), [1200, 597], torch.Generator().manual_seed(0))
task = Problem(Space({"lr": Float(1e-4, 1, log=True), "dropout": Float(0, 0.8)}), Maximize("val_acc"), EPOCHS)
study = Study(task, TruVaR(GOOD, levels=LEVELS), "digits_levelset.db", budget=Budget(trials=TRIALS))
for trial in study:
    with trial:
        fit(trial.config, 3 if trial.level == "3 seeds" else 1, [HaltuneCallback(trial)])
print(region := study.level_set())
for side, found in (("inside", region.high), ("outside", region.low)):
    picks = np.random.default_rng(0).permutation(len(found))[:CHECKS].tolist()
    reached = sum(fit(found[i][0], 3) >= GOOD for i in picks)
    print(f"trained {side}: {reached} of {len(picks)} reach {GOOD:.0%}")
