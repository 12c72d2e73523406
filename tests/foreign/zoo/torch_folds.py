"""Five folds in a trial, each a loop of its own over the same epochs."""

import torch
from torch import nn

from haltune import Float, Minimize

x = torch.rand(80, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


def search(study):
    for trial in study:
        with trial:
            for fold in trial.folds(5):
                held_out = torch.arange(fold.index, 80, 5)
                rest = torch.tensor([row for row in range(80) if row % 5 != fold.index])
                net = nn.Linear(4, 1)
                sgd = torch.optim.SGD(net.parameters(), trial.config["lr"])
                if fold.checkpoint:
                    net.load_state_dict(torch.load(fold.checkpoint))
                for epoch in fold.epochs():
                    for rows in rest[torch.randperm(64)].split(16):
                        sgd.zero_grad()
                        nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
                        sgd.step()
                    with torch.no_grad():
                        loss = nn.functional.mse_loss(net(x[held_out]), y[held_out]).item()
                    fold.report(loss, epoch)
                    fold.save(lambda path, net=net: torch.save(net.state_dict(), path))
                if trial.verdict and trial.verdict.stops:
                    break


def evaluate(path, config):
    raise FileNotFoundError("there is a model for each fold")


zoo = dict(
    needs=["torch"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=3,
    trials=[{"lr": 0.05}, {"lr": 0.2}],
    pauses=[1, 2],
    updates=20,
    keeps=False,
    best_epoch=False,
)
