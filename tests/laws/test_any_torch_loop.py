"""The truths about trainings, for plain loops of PyTorch that are drawn at random; see support/zoo.py for the truths.

A program saves all that changes a later step, as good authors do, in one of the ways that haltune offers.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zoo

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch import nn  # noqa: E402
from torch.optim import lr_scheduler as schedules  # noqa: E402
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from haltune import Float, Minimize  # noqa: E402
from haltune.callbacks.loop import TrainingLoop  # noqa: E402

x = torch.randn(46, 3, generator=torch.Generator().manual_seed(0))
y = x.sum(1, keepdim=True)
EPOCHS, BATCHES = 4, 4  # the last batch is smaller


class Noisy(TensorDataset):
    def __getitem__(self, index: Any) -> Any:
        return x[index] + 0.1 * torch.randn(3) * random.random() * float(np.random.rand()), y[index]  # noqa: NPY002


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9),
    "adam": lambda p, lr: torch.optim.AdamW(p, lr, amsgrad=True),
    "groups": lambda p, lr: torch.optim.NAdam([{"params": p[:2], "lr": lr / 9}, {"params": p[2:]}], lr),
    "lbfgs": lambda p, lr: torch.optim.LBFGS(p, lr, max_iter=3),
    "rprop": lambda p, lr: torch.optim.Rprop(p, lr),
}
SCHEDULES: dict[str, Any] = {
    "cosine": lambda o: schedules.CosineAnnealingLR(o, EPOCHS),
    "plateau": lambda o: schedules.ReduceLROnPlateau(o, patience=0),
    "restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 2),
    "in turn": lambda o: schedules.SequentialLR(
        o, [schedules.LinearLR(o, 0.5, 1, 2), schedules.ExponentialLR(o, 0.8)], [2]
    ),
    "one cycle": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=EPOCHS * BATCHES + 1),
}


def program(seed: int) -> zoo.Program:
    drawn = random.Random(seed)
    loop = drawn.choice(["TrainingLoop", "in the background", "epochs", "own file", "range"])
    name, planned = drawn.choice([*OPTIMIZERS]), drawn.choice([None, *SCHEDULES])
    name = "sgd" if planned == "one cycle" else name
    data, averages = drawn.choice(["shuffled", "noisy", "permuted", "own order"]), drawn.random() < 0.3
    norm, dropout, patience = drawn.random() < 0.3, drawn.choice([0.0, 0.3]), drawn.choice([None, None, 1])
    accumulates = 1 if name == "lbfgs" else drawn.choice([1, 1, 2, 3])
    carries, late, every = drawn.random() < 0.4, drawn.random() < 0.5, drawn.choice([1, 1, 2])
    pauses, of_best = sorted(drawn.sample(range(1, EPOCHS), 2)), drawn.random() < 0.5

    def build(lr: float) -> dict[str, Any]:
        middle = nn.BatchNorm1d(4) if norm else nn.Tanh()
        net = nn.Sequential(nn.Linear(3, 4), middle, nn.Dropout(dropout), nn.Linear(4, 1))
        parts: dict[str, Any] = {"net": net, "optimizer": OPTIMIZERS[name]([*net.parameters()], lr)}
        if planned:
            parts["schedule"] = SCHEDULES[planned](parts["optimizer"])
        if averages:
            parts["average"] = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
        return parts | {"order": torch.Generator().manual_seed(4)}

    def load(parts: dict[str, Any], path: str, random_too: bool) -> dict[str, Any]:
        state = torch.load(path, weights_only=False)
        for one, part in parts.items():
            part.set_state(state[one]) if one == "order" else part.load_state_dict(state[one])
        for p, gradient in zip(parts["net"].parameters(), state["gradients"], strict=True):
            p.grad = gradient
        if random_too:
            torch.set_rng_state(state["torch"])
            random.setstate(state["python"])
            np.random.set_state(state["numpy"])  # noqa: NPY002
        return dict(state["counts"])

    def loss(parts: dict[str, Any]) -> float:
        net = parts.get("average", parts["net"]).eval()
        with torch.no_grad():
            return float(nn.functional.mse_loss(net(x[30:]), y[30:]))

    def batches(parts: dict[str, Any]) -> Any:
        if data in ("permuted", "own order"):
            order = torch.randperm(30, generator=parts["order"] if data == "own order" else None)
            return [(x[rows], y[rows]) for rows in order.split(8)]
        return DataLoader((Noisy if data == "noisy" else TensorDataset)(x[:30], y[:30]), 8, shuffle=True)

    def one_epoch(parts: dict[str, Any], counts: dict[str, Any]) -> float:
        net, optimizer = parts["net"].train(), parts["optimizer"]
        for i, (inputs, targets) in enumerate(batches(parts)):

            def backward(inputs: Any = inputs, targets: Any = targets) -> Any:
                if name == "lbfgs":
                    optimizer.zero_grad()
                found = nn.functional.mse_loss(net(inputs), targets)
                found.backward()
                return found

            counts["batches"] += 1
            if name == "lbfgs":
                optimizer.step(backward)
            else:
                backward()
                if counts["batches"] % accumulates and not (i == BATCHES - 1 and not carries):
                    continue
                optimizer.step()
                optimizer.zero_grad()
            if averages:
                parts["average"].update_parameters(net)
            if planned == "one cycle":
                parts["schedule"].step()
        if not carries:
            counts["batches"] = 0
        return loss(parts)

    def train(trial: Any) -> None:
        by_hand = loop in ("own file", "range")  # no random state is saved for these
        parts = build(**trial.config)
        counts = {"batches": 0, "best": math.inf, "bad": 0}
        if trial.checkpoint:
            counts = load(parts, trial.checkpoint, by_hand)
            if patience is not None and counts["bad"] > patience:
                return  # it paused where it ended by itself

        def state() -> dict[str, Any]:
            found = {one: part.get_state() if one == "order" else part.state_dict() for one, part in parts.items()}
            found |= {"gradients": [p.grad for p in parts["net"].parameters()], "counts": counts}
            numbers = {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()}  # noqa: NPY002
            return found | (numbers if by_hand else {})

        def write(path: Path) -> None:
            torch.save(state(), path)

        def write_later(path: Path) -> Any:
            torch.save(state(), copied := path.with_name(f"{path.name}.copy"))
            return lambda: copied.replace(path)

        background = loop == "in the background"
        of_haltune = TrainingLoop(trial, save=write_later if background else write, background=background)
        epochs = range(int(trial.epoch) + 1, EPOCHS + 1) if loop == "range" else trial.epochs()
        for epoch in of_haltune if loop in ("TrainingLoop", "in the background") else epochs:
            value = one_epoch(parts, counts)
            if planned and planned != "one cycle" and not late:
                parts["schedule"].step(*[value] * (planned == "plateau"))
            counts["bad"] = 0 if value < counts["best"] else counts["bad"] + 1
            counts["best"] = min(value, counts["best"])
            over = patience is not None and counts["bad"] > patience
            reports = over or epoch % every == 0
            if reports and loop in ("TrainingLoop", "in the background"):
                of_haltune.report(value)
            elif reports:
                trial.report(value, epoch)
            if planned and planned != "one cycle" and late:
                parts["schedule"].step(*[value] * (planned == "plateau"))
            if reports and loop in ("epochs", "range"):
                trial.save(write)
            elif reports and loop == "own file":
                write(path := Path(f"{trial.id}-{epoch}.pt"))
                trial.checkpointed(str(path))
            if over or (loop == "range" and trial.verdict is not None and trial.verdict.stops):
                break

    def search(study: Any) -> None:
        for trial in study:
            with trial:
                train(trial)

    def evaluate(path: str, config: Any) -> float:
        load(parts := build(**config), path, False)
        return loss(parts)

    def updates(position: float) -> int:
        return int(position) * BATCHES // accumulates if carries else int(position) * math.ceil(BATCHES / accumulates)

    declared = zoo.Declaration(
        [], space={"lr": Float(1e-3, 1.0, log=True)}, goal=Minimize("loss"), max_epochs=EPOCHS, updates=updates,
        trials=[{"lr": 0.05}, {"lr": 0.1}], pauses=pauses, best_epoch=of_best,
    )  # fmt: skip
    return zoo.Program(f"torch loop {seed}", search, evaluate, declared)


QUICK = range(4)


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in range(60)])
def test_a_loop_that_saves_its_state_resumes_digit_for_digit(seed: int) -> None:
    runs = zoo.train_all(program(seed))
    straight, paused = runs.straight.sound(), runs.paused.sound()
    zoo.own(runs)
    zoo.counted(runs)
    zoo.kept(runs)
    assert repr(paused.curves) == repr(straight.curves)  # with NaN
    assert paused.weights == straight.weights
    reached = {
        t.id: {at for at in paused.declared.pauses if any(at <= e < t.epoch for e in t.epochs)} for t in straight.trials
    }
    for trial in paused.trials:
        assert trial.attempt > 1 or not reached[trial.id], paused.lines
