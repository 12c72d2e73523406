"""Accelerate on a stream (IterableDataset) that shuffles by set_epoch, by steps, with pauses within its passes."""

import torch
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import nn

from haltune import Float, Minimize
from haltune.callbacks.accelerate import AcceleratedLoop

held_out = torch.rand(32, 4, generator=torch.Generator().manual_seed(0))


class Stream(torch.utils.data.IterableDataset):
    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        numbers = torch.Generator().manual_seed(self.epoch)
        for _ in range(40):
            row = torch.rand(4, generator=numbers)
            yield row, row.prod(0, keepdim=True)


def build():
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1))


def forever(loader):
    while True:
        yield from loader


def search(study):
    for trial in study:
        with trial:
            accelerator, net = Accelerator(cpu=True), build()
            adam = torch.optim.AdamW(net.parameters(), trial.config["lr"])
            net, adam, loader = accelerator.prepare(net, adam, torch.utils.data.DataLoader(Stream(), 8))
            batches = forever(loader)
            for step in (loop := AcceleratedLoop(trial, accelerator)):
                net.train()
                inputs, targets = next(batches)
                accelerator.backward(nn.functional.mse_loss(net(inputs), targets))
                adam.step()
                adam.zero_grad()
                if step % 4 == 0:
                    net.eval()
                    with torch.no_grad():
                        loop.report(nn.functional.mse_loss(net(held_out), held_out.prod(1, keepdim=True)).item())


def evaluate(path, config):
    net = build()
    net.load_state_dict(load_file(f"{path}/model.safetensors"))
    with torch.no_grad():
        return nn.functional.mse_loss(net.eval()(held_out), held_out.prod(1, keepdim=True)).item()


zoo = dict(
    needs=["torch", "accelerate"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=24,
    unit="step",
    trials=[{"lr": 0.05}, {"lr": 0.2}],
    pauses=[8, 16],
    updates=1,
)
