"""A loop over range that decides by its last losses, over a loader with a generator, and saves its net alone."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from haltune import Float, Minimize

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


def validate(net):
    with torch.no_grad():
        return nn.functional.mse_loss(net(x[64:]), y[64:]).item()


def train(trial):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    sgd = torch.optim.SGD(net.parameters(), trial.config["lr"])
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(x[:64], y[:64]), 16, shuffle=True, generator=generator)
    losses = []
    if trial.checkpoint:
        net.load_state_dict(torch.load(trial.checkpoint))
    for epoch in range(int(trial.epoch) + 1, trial.max_epochs + 1):
        for inputs, targets in loader:
            sgd.zero_grad()
            nn.functional.mse_loss(net(inputs), targets).backward()
            sgd.step()
        losses.append(validate(net))
        for group in sgd.param_groups:
            group["lr"] *= 0.5
        verdict = trial.report(losses[-1], epoch)
        trial.save(lambda path: torch.save(net.state_dict(), path))
        if verdict.stops or (len(losses) > 2 and min(losses[-2:]) > min(losses[:-2])):
            break


def search(study):
    study.optimize(train)


def evaluate(path, config):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    net.load_state_dict(torch.load(path))
    return validate(net)


zoo = dict(
    needs=["torch"],
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[2],
    updates=4,
    inexact="SGD started with the learning rate",
    says=["losses = no elements", "has not restored its random state"],
)
