"""A plain loop with autocast in bfloat16, a GradScaler, gradient clipping and an average of the weights."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from haltune import Float, Minimize
from haltune.callbacks.loop import TrainingLoop

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


def search(study):
    train = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x[:64], y[:64]), 16, shuffle=True)
    for trial in study:
        with trial:
            torch.manual_seed(0)
            net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
            adam = torch.optim.AdamW(net.parameters(), trial.config["lr"])
            scaler = torch.amp.GradScaler("cpu")
            ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.8))
            parts = {"net": net, "adam": adam, "scaler": scaler, "ema": ema}
            if trial.checkpoint:
                state = torch.load(trial.checkpoint, weights_only=True)
                for name, part in parts.items():
                    part.load_state_dict(state[name])
            save = lambda path: torch.save({n: p.state_dict() for n, p in parts.items()}, path)  # noqa: E731
            loop = TrainingLoop(trial, save=save)
            for epoch in loop:
                for inputs, targets in train:
                    adam.zero_grad()
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = nn.functional.mse_loss(net(inputs), targets)
                    scaler.scale(loss).backward()
                    scaler.unscale_(adam)
                    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                    scaler.step(adam)
                    scaler.update()
                    ema.update_parameters(net)
                loop.report(validate(ema))


def validate(net):
    with torch.no_grad():
        return nn.functional.mse_loss(net(x[64:]), y[64:]).item()


def evaluate(path, config):
    ema = AveragedModel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)))
    ema.load_state_dict(torch.load(path, weights_only=True)["ema"])
    return validate(ema)


zoo = dict(
    needs=["torch"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.2}],
    pauses=[1, 3],
    updates=4,
)
