"""A program configured by Hydra: structured configuration, overrides from a trial, an optimizer by instantiate."""

from dataclasses import dataclass, field

import torch
from hydra import compose, initialize
from hydra.core.config_store import ConfigStore
from hydra.utils import instantiate

from haltune import Float, Minimize
from haltune.callbacks.loop import TrainingLoop

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)


@dataclass
class Config:
    optim: dict = field(default_factory=lambda: {"_target_": "torch.optim.Adam", "lr": 0.01, "_partial_": True})
    width: int = 8
    seed: int = 3


ConfigStore.instance().store("config", Config)


def build(cfg):
    net = torch.nn.Sequential(torch.nn.Linear(4, cfg.width), torch.nn.Tanh(), torch.nn.Linear(cfg.width, 1))
    return net, instantiate(cfg.optim)(net.parameters())


def run(cfg, trial):
    torch.manual_seed(cfg.seed)
    net, optim = parts = build(cfg)
    if trial.checkpoint:
        for part, state in zip(parts, torch.load(trial.checkpoint)):
            part.load_state_dict(state)
    for epoch in (loop := TrainingLoop(trial, save=lambda path: torch.save([p.state_dict() for p in parts], path))):
        for rows in torch.randperm(64).split(16):
            optim.zero_grad()
            torch.nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
            optim.step()
        loop.report(validate(net))


def validate(net):
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net(x[64:]), y[64:]).item()


def configured(config):
    with initialize(version_base=None, config_path=None):
        return compose("config", [f"{name}={value}" for name, value in config.items()])


def search(study):
    study.optimize(lambda trial: run(configured(trial.config), trial))


def evaluate(path, config):
    net, _ = build(configured(config))
    net.load_state_dict(torch.load(path)[0])
    return validate(net)


zoo = dict(
    needs=["torch", "hydra"],
    slow=True,
    space={"optim.lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"optim.lr": 0.05}, {"optim.lr": 0.2}],
    pauses=[1, 3],
    updates=4,
)
