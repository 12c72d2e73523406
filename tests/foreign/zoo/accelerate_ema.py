"""Accelerate by steps: accumulated gradients, clipped, noisy inputs, dropout, and an average that is evaluated."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from haltune import Float, Minimize
from haltune.callbacks.accelerate import AcceleratedLoop

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        return x[i] + 0.05 * torch.randn(4), y[i]


def network():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def batches(loader):
    while True:
        yield from loader


def search(study):
    for trial in study:
        with trial:
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
            set_seed(1)
            net = network()
            adam = torch.optim.AdamW(net.parameters(), trial.config["lr"])
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, 2 * trial.max_steps)
            loader = torch.utils.data.DataLoader(Noisy(), 8, shuffle=True)
            net, ema, adam, schedule, loader = accelerator.prepare(
                net, AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9)), adam, schedule, loader)
            data = batches(loader)
            for step in (loop := AcceleratedLoop(trial, accelerator)):
                net.train()
                for _ in range(2):
                    inputs, targets = next(data)
                    with accelerator.accumulate(net):
                        accelerator.backward(torch.nn.functional.mse_loss(net(inputs), targets))
                        if accelerator.sync_gradients:
                            accelerator.clip_grad_norm_(net.parameters(), 1.0)
                        adam.step()
                        schedule.step()
                        adam.zero_grad()
                ema.update_parameters(net)
                if step % 3 == 0:
                    loop.report(validate(ema))


def validate(net):
    net.eval()
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net(x[64:]), y[64:]).item()


def evaluate(path, config):
    from safetensors.torch import load_file

    net = AveragedModel(network())
    net.load_state_dict(load_file(f"{path}/model_1.safetensors"))
    return validate(net)


zoo = dict(
    needs=["torch", "accelerate"],
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=12,
    unit="step",
    trials=[{"lr": 0.05}, {"lr": 0.1}],
    pauses=[3, 6],
)
