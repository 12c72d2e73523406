"""Accelerate with a sampler that keeps its order in a list and shuffles it in each pass, and two optimizers."""

import random

import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import nn

from haltune import Float, Minimize
from haltune.callbacks.accelerate import AcceleratedLoop

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


class Order(torch.utils.data.Sampler):
    def __init__(self):
        self.rows = random.sample(range(64), 64)

    def __len__(self):
        return 64

    def __iter__(self):
        random.shuffle(self.rows)
        return iter(self.rows)


def build():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))


def search(study):
    for trial in study:
        with trial:
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
            net = build()
            first = torch.optim.AdamW(net[0].parameters(), trial.config["lr"])
            second = torch.optim.SGD(net[2].parameters(), 0.01, momentum=0.9)
            rows = torch.utils.data.TensorDataset(x[:64], y[:64])
            loader = torch.utils.data.DataLoader(rows, 8, sampler=Order())
            net, first, second, loader = accelerator.prepare(net, first, second, loader)
            for _ in (loop := AcceleratedLoop(trial, accelerator)):
                net.train()
                for inputs, targets in loader:
                    with accelerator.accumulate(net):
                        accelerator.backward(nn.functional.mse_loss(net(inputs), targets))
                        for optimizer in (first, second):
                            optimizer.step()
                            optimizer.zero_grad()
                net.eval()
                with torch.no_grad():
                    loop.report(nn.functional.mse_loss(net(x[64:]), y[64:]).item())


def evaluate(path, config):
    net = build()
    net.load_state_dict(load_file(f"{path}/model.safetensors"))
    with torch.no_grad():
        return nn.functional.mse_loss(net.eval()(x[64:]), y[64:]).item()


zoo = dict(
    needs=["torch", "accelerate"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.2}],
    pauses=[1, 3],
    updates=8,
)
