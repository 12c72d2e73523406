"""A plain PyTorch loop with warm restarts of a cosine, momentum and dropout."""

import torch
from torch import nn

from haltune import Float, Minimize
from haltune.callbacks.loop import TrainingLoop

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)
train = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:64], y[:64]), 16, shuffle=True)


def build(lr):
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    sgd = torch.optim.SGD(net.parameters(), lr, momentum=0.9)
    return net, sgd, torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(sgd, T_0=2)


def validate(net):
    net.eval()
    with torch.no_grad():
        return nn.functional.mse_loss(net(x[64:]), y[64:]).item()


def search(study):
    for trial in study:
        with trial:
            net, sgd, schedule = parts = build(**trial.config)
            if trial.checkpoint:
                for part, state in zip(parts, torch.load(trial.checkpoint)):
                    part.load_state_dict(state)
            loop = TrainingLoop(trial, save=lambda path: torch.save([part.state_dict() for part in parts], path))
            for epoch in loop:
                net.train()
                for inputs, targets in train:
                    sgd.zero_grad()
                    nn.functional.mse_loss(net(inputs), targets).backward()
                    sgd.step()
                schedule.step()
                loop.report(validate(net))


def evaluate(path, config):
    net, *_ = build(**config)
    net.load_state_dict(torch.load(path)[0])
    return validate(net)


zoo = dict(
    needs=["torch"],
    space={"lr": Float(0.01, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.2}],
    pauses=[1, 3],
    updates=4,
)
