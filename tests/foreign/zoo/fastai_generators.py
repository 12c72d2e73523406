"""fastai with generators in transforms of items and of batches, a callback, the model and its loss."""

import random

import fastai.callback.schedule
import numpy as np
import torch
from fastai.callback.core import Callback
from fastai.data.core import DataLoaders, Datasets
from fastai.data.load import DataLoader
from fastai.data.transforms import Transform
from fastai.learner import Learner

from haltune import Float, Minimize
from haltune.callbacks.fastai import HaltuneCallback

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)
rng = np.random.default_rng(0)


class Noise:
    def __init__(self):
        self.rng = np.random.default_rng(1)

    def __call__(self, batch):
        inputs, targets = batch
        return inputs + 0.3 * torch.tensor(self.rng.normal(size=inputs.shape), dtype=torch.float32), targets


class Jitter(Transform):
    def __init__(self):
        self.numbers = random.Random(2)

    def encodes(self, row: int):
        return x[row] * (1 + 0.1 * self.numbers.random() + 0.1 * rng.random())


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.numbers = torch.nn.Linear(4, 1), torch.Generator().manual_seed(3)

    def forward(self, inputs):
        out = self.layer(inputs)
        return out * (1 + 0.1 * torch.randn((), generator=self.numbers)) if self.training else out


class Loss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers = random.Random(4)

    def forward(self, out, targets):
        weight = self.numbers.uniform(0.9, 1.1) if out.requires_grad else 1.0
        return torch.nn.functional.mse_loss(out, targets) * weight


class Shake(Callback):
    def __init__(self):
        self.held = [random.Random(5)]

    def after_step(self):
        with torch.no_grad():
            self.learn.model.layer.weight.mul_(self.held[0].uniform(0.95, 1.05))


def plain(row: int):
    return x[row]


def target(row: int):
    return y[row]


def search(study):
    global rng
    for trial in study:
        with trial:
            rng = np.random.default_rng(0)
            train = Datasets(list(range(64)), [[Jitter()], [target]])
            valid = Datasets(list(range(64, 96)), [[plain], [target]])
            loaders = DataLoaders(DataLoader(train, bs=16, shuffle=True, after_batch=Noise()), DataLoader(valid, bs=32))
            learn = Learner(loaders, Net(), Loss())
            with learn.no_bar(), learn.no_logging():
                learn.fit(trial.max_epochs, trial.config["lr"], cbs=[Shake(), HaltuneCallback(trial)])


def evaluate(path, config):
    net = Net()
    net.load_state_dict(torch.load(f"{path}/model.pth")["model"])
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net.eval()(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "fastai"],
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("valid_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.2}],
    pauses=[1, 3],
    updates=4,
    counts="fastai.optimizer:Optimizer.step",
)
