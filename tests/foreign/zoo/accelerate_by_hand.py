"""Accelerate without accumulate(): a step every third batch by hand, over the ends of epochs, and noise of a module."""

import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import nn

from haltune import Float, Minimize
from haltune.callbacks.accelerate import AcceleratedLoop

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


class Noise(nn.Module):
    """Multiplies by a number from a generator of its own, which is nearer to 1 with each batch."""

    def __init__(self):
        super().__init__()
        self.numbers = torch.Generator().manual_seed(1)
        self.register_buffer("batches", torch.ones(()), persistent=False)

    def forward(self, x):
        if not self.training:
            return x
        self.batches += 1
        return x * (1 + torch.randn((), generator=self.numbers) / self.batches)


def build():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), Noise(), nn.Linear(8, 1))


def search(study):
    for trial in study:
        with trial:
            accelerator, net = Accelerator(cpu=True), build()
            adam = torch.optim.AdamW(net.parameters(), trial.config["lr"])
            rows = torch.utils.data.TensorDataset(x[:64], y[:64])
            net, adam, loader = accelerator.prepare(net, adam, torch.utils.data.DataLoader(rows, 8, shuffle=True))
            batches = 8 * int(trial.epoch)
            for _ in (loop := AcceleratedLoop(trial, accelerator)):
                net.train()
                for inputs, targets in loader:
                    accelerator.backward(nn.functional.mse_loss(net(inputs), targets) / 3)
                    batches += 1
                    if batches % 3 == 0:
                        accelerator.clip_grad_norm_(net.parameters(), 1.0)
                        adam.step()
                        adam.zero_grad()
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
    pauses=[1, 2],
    updates=lambda epoch: 8 * epoch // 3,
)
