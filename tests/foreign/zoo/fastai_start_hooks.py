"""Callbacks of fastai that read the weights and draw masks when a second fit starts: L2-SP, pruning."""

import fastai.callback.schedule
import torch
from fastai.callback.core import Callback
from fastai.data.core import DataLoaders
from fastai.learner import Learner

from haltune import Float, Minimize
from haltune.callbacks.fastai import HaltuneCallback

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


class Pull(Callback):
    """Pulls the weights to those at the start."""

    def before_fit(self):
        self.start = [p.detach().clone() for p in self.learn.model.parameters()]

    def after_step(self):
        with torch.no_grad():
            for weight, start in zip(self.learn.model.parameters(), self.start, strict=True):
                weight.lerp_(start, 0.1)


class Lottery(Callback):
    """Keeps weights at 0 that it draws at the start."""

    def before_fit(self):
        self.masks = [torch.rand(p.shape) > 0.3 for p in self.learn.model.parameters()]
        self.prune()

    def after_step(self):
        self.prune()

    def prune(self):
        with torch.no_grad():
            for weight, mask in zip(self.learn.model.parameters(), self.masks, strict=True):
                weight.mul_(mask)


def learner():
    rows = torch.utils.data.TensorDataset(x, y)
    train = torch.utils.data.DataLoader(torch.utils.data.Subset(rows, range(64)), 16, shuffle=True)
    valid = torch.utils.data.DataLoader(torch.utils.data.Subset(rows, range(64, 96)), 32)
    return Learner(DataLoaders(train, valid), torch.nn.Linear(4, 1), torch.nn.functional.mse_loss)


def search(study):
    for trial in study:
        with trial:
            learn = learner()
            with learn.no_bar(), learn.no_logging():
                learn.fit(1, trial.config["lr"], cbs=HaltuneCallback(trial))
                learn.fit(trial.max_epochs - 1, trial.config["lr"], cbs=[Pull(), HaltuneCallback(trial), Lottery()])


def evaluate(path, config):
    learn = learner().load(f"{path}/model")
    with torch.no_grad():
        return torch.nn.functional.mse_loss(learn.model(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "fastai"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("valid_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.2}],
    pauses=[2, 3],
    updates=4,
    counts="fastai.optimizer:Optimizer.step",
)
