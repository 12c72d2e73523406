"""A TrainingLoop whose workers persist and draw noise, with a second loader with such workers that it never reads."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from haltune import Float, Minimize
from haltune.callbacks.loop import TrainingLoop

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


class Noisy(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return x[index] + 0.1 * torch.randn(4), y[index]


def validate(net):
    with torch.no_grad():
        return nn.functional.mse_loss(net(x[64:]), y[64:]).item()


def search(study):
    for trial in study:
        with trial:
            net = nn.Linear(4, 1)
            sgd = torch.optim.SGD(net.parameters(), trial.config["lr"], momentum=0.9)
            loader, test = (DataLoader(Noisy(), 16, num_workers=1, persistent_workers=True) for _ in range(2))
            loop = TrainingLoop(trial, save=lambda path: torch.save({"net": net.state_dict()}, path))
            for _ in loop:
                for inputs, targets in loader:
                    sgd.zero_grad()
                    nn.functional.mse_loss(net(inputs), targets).backward()
                    sgd.step()
                loop.report(validate(net))
            assert test.num_workers == 1


def evaluate(path, config):
    net = nn.Linear(4, 1)
    net.load_state_dict(torch.load(path)["net"])
    return validate(net)


zoo = dict(
    needs=["torch"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=3,
    trials=[{"lr": 0.05}, {"lr": 0.02}],
    pauses=[1],
    updates=4,
    declines="the workers of loader persist",
)
