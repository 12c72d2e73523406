"""A loop over range with early stopping, an average and a rate by hand, which saves all of it and its generator."""

import math

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from haltune import Float, Minimize

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


def build():
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return net, AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))


def validate(net):
    with torch.no_grad():
        return nn.functional.mse_loss(net(x[64:]), y[64:]).item()


def train(trial):
    net, average = build()
    sgd = torch.optim.SGD(net.parameters(), trial.config["lr"], momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(x[:64], y[:64]), 16, shuffle=True, generator=generator)
    start, best, bad, losses = 0, math.inf, 0, []
    if trial.checkpoint:
        state = torch.load(trial.checkpoint)
        for part, name in ((net, "net"), (average, "average"), (sgd, "sgd")):
            part.load_state_dict(state[name])
        generator.set_state(state["generator"])
        start, best, bad = state["epoch"], state["best"], state["bad"]
    for epoch in range(start + 1, trial.max_epochs + 1):
        for inputs, targets in loader:
            sgd.zero_grad()
            nn.functional.mse_loss(net(inputs), targets).backward()
            sgd.step()
            average.update_parameters(net)
        loss = validate(average)
        losses.append(loss)
        best, bad = (loss, 0) if loss < best else (best, bad + 1)
        if bad:
            sgd.param_groups[0]["lr"] *= 0.5
        verdict = trial.report(loss, epoch, metrics={"mean": sum(losses) / len(losses)})
        state = {"net": net.state_dict(), "average": average.state_dict(), "sgd": sgd.state_dict(), "epoch": epoch}
        state |= {"generator": generator.get_state(), "best": best, "bad": bad}
        trial.save(lambda path: torch.save(state, path))
        if verdict.stops or bad >= 3:
            break


def search(study):
    study.optimize(train)


def evaluate(path, config):
    _, average = build()
    average.load_state_dict(torch.load(path)["average"])
    return validate(average)


zoo = dict(
    needs=["torch"],
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1, 2],
    updates=4,
)
