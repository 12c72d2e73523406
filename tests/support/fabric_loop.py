"""A network that Lightning Fabric trains on two ranks, saved together; each rank writes what it came to.

torchrun --nproc_per_node 2 fabric_loop.py FOLDER
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch
from lightning.fabric import Fabric
from paused_studies import pausing_study

from haltune.callbacks.loop import TrainingLoop
from haltune.errors import HaltuneWarning


def train(trial, fabric):
    torch.manual_seed(trial.attempt)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
    if trial.attempt == 1:
        torch.manual_seed(0)
    net, sgd = fabric.setup(net, torch.optim.SGD(net.parameters(), 0.05, momentum=0.9))
    state = {"net": net, "sgd": sgd}
    if trial.checkpoint:
        fabric.load(Path(trial.checkpoint, "state.ckpt"), state)
    for _ in (loop := TrainingLoop(trial, together=True, save=lambda path: fabric.save(path / "state.ckpt", state))):
        loss = net(torch.randn(8, 3)).pow(2).mean()
        fabric.backward(loss)
        sgd.step()
        sgd.zero_grad()
        loop.report(fabric.all_reduce(loss.detach()).item())
    return torch.cat([value.flatten() for value in net.state_dict().values()]).tolist()


def full(*given, **named):
    """The disk is full. With DDP, Fabric writes on rank 0 alone, and the other ranks wait for it."""
    raise OSError(28, "No space left on device")


if __name__ == "__main__":
    fabric, told = Fabric(accelerator="cpu", devices=2, strategy="ddp"), {}
    fabric.launch()
    for name, at in (("straight", ()), ("paused", (2,))):
        study = pausing_study(Path(sys.argv[1], f"{name}.db"), at=at, verbose=0, keep=1)
        for trial in study:
            with trial:
                weights = train(trial, fabric)
        told[name] = [study.trials[0].values.tolist(), weights]
        told[f"{name} attempts"] = study.trials[0].attempt
    told["kept"] = sorted(path.name for path in Path(study.best.checkpoint).iterdir())
    torch.save = full
    study = pausing_study(Path(sys.argv[1], "full.db"), at=(2,), verbose=0)
    with study.ask() as trial, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", HaltuneWarning)
        train(trial, fabric)
    said = [str(w.message) for w in caught if issubclass(w.category, HaltuneWarning)]
    told["full"] = [study.trials[0].epochs.tolist(), said]
    Path(sys.argv[1], f"{fabric.global_rank}.json").write_text(json.dumps(told))
