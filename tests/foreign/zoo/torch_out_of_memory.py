"""A plain loop that starts again with a smaller model after an error of the memory, as many scripts do."""

import torch
from torch import nn

from haltune import Float, Minimize

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


def build(width):
    return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))


def train(trial, width):
    net, steps = build(width), 0
    sgd = torch.optim.SGD(net.parameters(), trial.config["lr"])
    for epoch in trial.epochs():
        if width > 8 and epoch == 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        for rows in torch.randperm(64).split(16):
            sgd.zero_grad()
            nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
            sgd.step()
            steps += 1
        trial.report(validate(net), epoch)
        trial.save(lambda path: torch.save({"net": net.state_dict(), "steps": steps}, path))


def validate(net):
    with torch.no_grad():
        return nn.functional.mse_loss(net(x[64:]), y[64:]).item()


def search(study):
    for trial in study:
        with trial:
            try:
                train(trial, 64)
            except RuntimeError as error:
                if "out of memory" not in str(error):
                    raise
                train(trial, 8)


def evaluate(path, config):
    net = build(8)
    net.load_state_dict(torch.load(path)["net"])
    return validate(net)


def trained(path):
    return torch.load(path)["steps"]


zoo = dict(
    needs=["torch"],
    slow=True,
    says=[r"had reported epoch 1, and now trains again from its start"],
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.2}],
    pauses=[],
    updates=4,
)
