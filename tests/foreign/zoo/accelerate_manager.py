"""A trainer class of one's own over Accelerate, with an average that it does not prepare."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from haltune import Float, Minimize
from haltune.callbacks.accelerate import AcceleratedLoop

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


class Manager:
    def __init__(self, lr):
        self.accelerator = Accelerator(cpu=True)
        set_seed(1)
        net = torch.nn.Linear(4, 1)
        adam = torch.optim.AdamW(net.parameters(), lr)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:64], y[:64]), 16, shuffle=True)
        self.net, self.adam, self.loader = self.accelerator.prepare(net, adam, loader)
        self.ema = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))

    def train(self, trial):
        for epoch in (loop := AcceleratedLoop(trial, self.accelerator)):
            for inputs, targets in self.loader:
                self.accelerator.backward(torch.nn.functional.mse_loss(self.net(inputs), targets))
                self.adam.step()
                self.adam.zero_grad()
                self.ema.update_parameters(self.net)
            with torch.no_grad():
                loop.report(torch.nn.functional.mse_loss(self.ema(x[64:]), y[64:]).item())


def search(study):
    for trial in study:
        with trial:
            Manager(trial.config["lr"]).train(trial)


def evaluate(path, config):
    raise FileNotFoundError("no model is kept")


zoo = dict(
    needs=["torch", "accelerate"],
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.2}],
    pauses=[1, 3],
    updates=4,
    declines="cannot be paused, because self.ema changes in training, and accelerator.save_state leaves it out",
    late=["is not kept: self.ema changes"],
    keeps=False,
)
