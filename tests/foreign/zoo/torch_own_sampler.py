"""A plain loop with a sampler that shuffles its batches in place, a stream that counts its passes, and a data set with a lazy file."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler

from haltune import Float, Minimize

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


class Rows(Dataset):
    """Opens its rows at the first reading, and counts what is read."""

    def __init__(self):
        self.opened = self.rows = None
        self.read = 0

    def __len__(self):
        return 32

    def __getitem__(self, index):
        if self.opened is None:
            self.opened, self.rows = True, [*zip(x[:32], y[:32], strict=True)]
        self.read += 1
        return self.rows[index]


class Batches(Sampler):
    def __init__(self):
        self.batches = [list(range(i, i + 8)) for i in range(0, 32, 8)]

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        random.shuffle(self.batches)
        return iter(self.batches)


class Stream(IterableDataset):
    def __init__(self):
        self.passes, self.order = 0, None

    def __iter__(self):
        self.passes += 1
        if self.order is None or self.passes % 2:
            self.order = 32 + torch.randperm(32, generator=torch.Generator().manual_seed(self.passes))
        yield from zip(x[self.order], y[self.order], strict=True)


class Task:
    def __init__(self, lr):
        self.net = nn.Linear(4, 1)
        self.sgd = torch.optim.SGD(self.net.parameters(), lr, momentum=0.9)
        self.loaders = [DataLoader(Rows(), batch_sampler=Batches()), DataLoader(Stream(), 8)]

    def train(self):
        for loader in self.loaders:
            for inputs, targets in loader:
                self.sgd.zero_grad()
                nn.functional.mse_loss(self.net(inputs), targets).backward()
                self.sgd.step()


def validate(net):
    with torch.no_grad():
        return nn.functional.mse_loss(net(x[64:]), y[64:]).item()


def search(study):
    for trial in study:
        with trial:
            task = Task(**trial.config)
            if trial.checkpoint:
                state = torch.load(trial.checkpoint)
                task.net.load_state_dict(state["net"])
                task.sgd.load_state_dict(state["sgd"])
            for epoch in trial.epochs():
                task.train()
                trial.report(validate(task.net), epoch)
                trial.save(lambda path: torch.save({"net": task.net.state_dict(), "sgd": task.sgd.state_dict()}, path))


def evaluate(path, config):
    task = Task(**config)
    task.net.load_state_dict(torch.load(path)["net"])
    return validate(task.net)


zoo = dict(
    needs=["torch"],
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 3],
    updates=8,
)
