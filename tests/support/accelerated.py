"""A small network trained under Accelerate, in all its processes; as a script it prints the results.

torchrun --nproc_per_node 2 accelerated.py FOLDER
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from paused_studies import pausing_study

from haltune import Minimize
from haltune.callbacks.accelerate import AcceleratedLoop

G = torch.Generator().manual_seed(0)
ROWS = [(x, x.sum(0, keepdim=True)) for x in torch.randn(24, 3, generator=G)]


class Noisy:
    """Rows with noise from the generators of the process, from which dropout draws too, and from one of their own."""

    def __init__(self):
        self.own = np.random.default_rng(5)

    def __len__(self):
        return len(ROWS)

    def __getitem__(self, i):
        x, y = ROWS[i]
        return x + 0.1 * torch.randn(3) + 0.1 * np.random.rand(), y + 0.1 * float(self.own.normal())  # noqa: NPY002


class Counting(torch.nn.Dropout):
    """Dropout that decays with the batches it has seen."""

    def forward(self, x):
        self.p = 0.9 * self.p if self.training else self.p
        return super().forward(x)


def train(
    trial, seed=0, epochs_of=AcceleratedLoop, seedable=False, accelerator=None, during=None, before=None, noisy=False,
    sampler=None, alone=False,
):  # fmt: skip
    """The weights after the last epoch; during: called within each. before: with the accelerator, before the loop.

    alone: the first process alone reports, and the others wait for it. sampler: one, or its class.

    What `before` returns, an average or a schedule that is not prepared, follows the updates.
    """
    set_seed(seed)
    configuration = DataLoaderConfiguration(use_seedable_sampler=seedable)
    accelerator = accelerator or Accelerator(cpu=True, dataloader_config=configuration)
    net = torch.nn.Sequential(
        torch.nn.Linear(3, 4), (Counting if noisy else torch.nn.Dropout)(0.2), torch.nn.Linear(4, 1)
    )
    sgd = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 100)
    sampler = sampler() if isinstance(sampler, type) else sampler
    loader = torch.utils.data.DataLoader(
        Noisy() if noisy else ROWS, batch_size=4, shuffle=sampler is None, sampler=sampler
    )
    net, sgd, loader, schedule = accelerator.prepare(net, sgd, loader, schedule)
    follower = None if before is None else before(accelerator)
    passes = (batch for _ in itertools.count() for batch in loader)
    for epoch in (loop := epochs_of(trial, accelerator)):
        for x, y in [next(passes)] if trial.unit == "step" else loader:
            loss = (net(x) - y).pow(2).mean()
            accelerator.backward(loss)
            sgd.step()
            schedule.step()
            sgd.zero_grad()
            if isinstance(follower, torch.optim.swa_utils.AveragedModel):
                follower.update_parameters(net)
            elif follower is not None:
                follower.step()
        if during is not None:
            during(epoch)
        with torch.no_grad(), loop.validation():
            net.eval()
            x, y = (torch.stack(column) for column in zip(*ROWS, strict=True))
            value = (net(x) - y).pow(2).mean().item()
            if accelerator.is_main_process or not alone:
                loop.report(value)
            if alone:
                accelerator.wait_for_everyone()
            net.train()
    return torch.cat([value.flatten() for value in net.state_dict().values()]).tolist()


class OnMain(torch.optim.swa_utils.AveragedModel):
    """Averages the weights in the first process alone."""

    def update_parameters(self, model):
        if Accelerator().is_main_process:
            super().update_parameters(model)


def searched(store, at=(), length=5, unit="epoch", metric="val_loss", **options):
    """Return the trial's record and weights; each attempt starts from its own seed, as another process would."""
    study = pausing_study(store, at=at, epochs=length, unit=unit, metric=metric, verbose=0, keep=1)
    for trial in study:
        with trial:
            weights = train(trial, seed=trial.attempt - 1, **options)
    return study, weights


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    told = {}
    best = Minimize("val_loss", of="best")
    average = {"metric": best, "before": lambda accelerator: OnMain(accelerator._models[0])}
    for name, at, options in (
        ("average", (2,), average), ("straight", (), {}), ("alone", (2, 3), {"alone": True}), ("paused", (2, 3), {}),
    ):  # fmt: skip
        study, weights = searched(folder / f"{name}.db", at, **options)
        (record,) = study.trials
        told[name] = [record.attempt, record.epochs.tolist(), record.values.tolist(), weights]
    told["checkpoint"] = sorted(path.name for path in Path(study.best.checkpoint).iterdir())
    told["processes"] = Accelerator().num_processes
    (folder / f"{Accelerator().process_index}.json").write_text(json.dumps(told))
