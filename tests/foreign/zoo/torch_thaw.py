"""A plain loop that thaws a layer once, at epoch 2, and saves net and optimizer alone: resumed later, it is frozen."""

import torch
from torch import nn

from haltune import Float, Minimize

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


def build(lr):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    net[0].requires_grad_(False)
    return net, torch.optim.SGD(net.parameters(), lr, momentum=0.9)


def validate(net):
    with torch.no_grad():
        return nn.functional.mse_loss(net(x[64:]), y[64:]).item()


def search(study):
    for trial in study:
        with trial:
            net, sgd = build(**trial.config)
            if trial.checkpoint:
                state = torch.load(trial.checkpoint)
                net.load_state_dict(state["net"])
                sgd.load_state_dict(state["sgd"])
            for epoch in trial.epochs():
                if epoch == 2:
                    net[0].requires_grad_(True)
                for rows in torch.randperm(64).split(16):
                    sgd.zero_grad()
                    nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
                    sgd.step()
                trial.report(validate(net), epoch)
                state = {"net": net.state_dict(), "sgd": sgd.state_dict()}
                trial.save(lambda path: torch.save(state, path))


def evaluate(path, config):
    net, _ = build(**config)
    net.load_state_dict(torch.load(path)["net"])
    return validate(net)


zoo = dict(
    needs=["torch"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[2],
    updates=4,
    inexact="frozen",
)
