"""Cost of the callback per epoch: the same Lightning fit without it, with it, and with Optuna's.

    python benchmarks/speed/callback.py [--epochs 50] [--earlier 20] [--fits 5]

haltune decides by BO-BOS, Optuna by its median pruner; both keep their log in a SQLite file, with the same number of
earlier trials and epochs. The fits log the same rising curve, which neither stops: every epoch is reported and judged.
Median, 95 % and largest: the time in all hooks of one epoch; processor: the median without waiting for the disk or for
other programs. Mean: all hooks of a fit, those around its epochs too, by its epochs. Whole fit: by its epochs, to
compare with no callback. The three take turns; the first turn, in which modules are imported, is not counted. Below the
table, the same study in a plain loop: a report and its decision, apart for epochs at which the stopping problem was
solved and for those that a table made before decides.
"""

from __future__ import annotations

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import importlib.util
import inspect
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import lightning.pytorch as pl
import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.callbacks.lightning import HaltuneCallback
from haltune.policies import BOBOS
from haltune.policies.bobos.optimal_stopping import OptimalStopping

EPOCH = 3.0  # seconds, the epoch that the cost is compared with
LIMITS = 2.0, 1e-3  # ms of the median epoch; share of such an epoch
PLAIN = 1.0  # ms of a report and its decision in a plain loop, without the solves


def curve(end: float, epoch: int) -> float:
    """An accuracy that rises from 0.1 towards `end`."""
    return end - (end - 0.1) / epoch


@dataclass
class Cost:
    """Seconds inside hooks: of each epoch, the same on the processor, and of the fit around them."""

    epochs: list[float] = field(default_factory=list)
    busy: list[float] = field(default_factory=list)
    around: float = 0.0

    def book(self, name: str, epoch: int, took: float, busy: float) -> None:
        """Add a hook's time to its epoch, or to the time around epochs."""
        if "epoch" not in name and "validation" not in name:
            self.around += took
            return
        for column, seconds in ((self.epochs, took), (self.busy, busy)):
            column.extend([0.0] * (epoch + 1 - len(column)))
            column[epoch] += seconds


class Net(pl.LightningModule):
    """A small network that logs the curve of a good run."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))

    def training_step(self, batch: Any, index: int) -> Any:
        """Squared outputs."""
        return self.layers(batch[0]).pow(2).mean()

    def validation_step(self, batch: Any, index: int) -> None:
        """Log the curve."""
        self.layers(batch[0])
        self.log("val_acc", curve(0.96, self.current_epoch + 1))

    def configure_optimizers(self) -> Any:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


@contextmanager
def timed(callback: Any) -> Iterator[Cost]:
    """Time every method of `callback` that is called with the Trainer: its hooks, however they are called."""
    cost = Cost()

    def wrap(hook: Callable[..., Any], name: str) -> Callable[..., Any]:
        def wrapped(trainer: Any, *args: Any, **options: Any) -> Any:
            began, busy = time.perf_counter(), time.thread_time()
            try:
                return hook(trainer, *args, **options)
            finally:
                took, busy = time.perf_counter() - began, time.thread_time() - busy
                cost.book(name, trainer.current_epoch, took, busy)

        return wrapped

    for name, method in inspect.getmembers(type(callback), inspect.isfunction):
        takes_trainer = "trainer" in inspect.signature(method).parameters and not name.startswith("_")
        if takes_trainer and method is not getattr(pl.Callback, name, None):
            setattr(callback, name, wrap(getattr(callback, name), name))
    yield cost


def fit(epochs: int, *callbacks: Any) -> float:
    """Seconds of one fit."""
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(64, 20)), batch_size=16)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    quiet |= {"enable_model_summary": False, "accelerator": "cpu", "num_sanity_val_steps": 0}
    trainer = pl.Trainer(max_epochs=epochs, callbacks=list(callbacks), **quiet)
    net = Net()
    began = time.perf_counter()
    trainer.fit(net, data, data)
    took = time.perf_counter() - began
    assert trainer.current_epoch == epochs, "a run was stopped: there is less to measure"
    return took


def ends(earlier: int) -> list[float]:
    """The accuracies that the earlier trials would end at."""
    return [float(e) for e in np.random.default_rng(0).uniform(0.6, 0.95, earlier)]


class Haltune:
    """A study on SQLite, BO-BOS, with earlier trials reported without training."""

    name = "haltune, BO-BOS, SQLite"

    def __init__(self, folder: str, epochs: int, earlier: int) -> None:
        space = Space({"rate": Float(1e-5, 1.0, log=True), "decay": Float(1e-6, 1e-2, log=True)})
        problem = Problem(space, Maximize("val_acc", (0, 1)), epochs)
        store = f"sqlite:///{folder}/haltune.db"
        self.study = Study(problem, BOBOS(), store=store, seed=0, budget=Budget(trials=10**6), verbose=0)
        for end in ends(earlier):
            with self.study.ask() as trial:
                for epoch in trial.epochs():
                    trial.report(curve(end, epoch), seconds=1.0)

    def fit(self, epochs: int) -> tuple[float, Cost]:
        """One fit, its seconds and those in hooks."""
        with self.study.ask() as trial:
            callback = HaltuneCallback(trial)
            with timed(callback) as cost:
                return fit(epochs, callback), cost

    def plain(self, epochs: int, fits: int) -> tuple[list[float], list[float]]:
        """Milliseconds of the reports of a plain loop's epochs: without a solve, and with one."""
        took: tuple[list[float], list[float]] = [], []
        with patch.object(OptimalStopping, "solve_at", autospec=True, side_effect=OptimalStopping.solve_at) as solves:
            for _ in range(fits):
                with self.study.ask() as trial:
                    for epoch in trial.epochs():
                        before, began = solves.call_count, time.perf_counter()
                        trial.report(curve(0.96, epoch), seconds=1.0)
                        took[solves.call_count > before].append(1e3 * (time.perf_counter() - began))
        return took

    def __str__(self) -> str:
        stopped = sum(t.status == "stopped" for t in self.study.trials)
        deciding = [1e3 * e.deciding for e in self.study.events() if e.kind == "reported"]
        taken = f"deciding alone {np.median(deciding):.3f} ms, mean {np.mean(deciding):.3f}"
        return f"{stopped} of the earlier trials stopped; {taken}"


class Optuna:
    """A study of Optuna's on SQLite, its median pruner, with the same earlier trials."""

    name = "Optuna, median pruner, SQLite"

    def __init__(self, folder: str, epochs: int, earlier: int) -> None:
        import optuna
        from optuna_integration import PyTorchLightningPruningCallback

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.optuna, self.callback = optuna, PyTorchLightningPruningCallback
        self.study = optuna.create_study(
            storage=f"sqlite:///{folder}/optuna.db",
            direction="maximize",
            sampler=optuna.samplers.RandomSampler(seed=0),
            pruner=optuna.pruners.MedianPruner(),
        )
        for end in ends(earlier):
            trial = self._ask()
            for epoch in range(epochs):
                trial.report(value := curve(end, epoch + 1), step=epoch)
                if pruned := trial.should_prune():
                    break
            state = optuna.trial.TrialState.PRUNED if pruned else optuna.trial.TrialState.COMPLETE
            self.study.tell(trial, None if pruned else value, state)

    def _ask(self) -> Any:
        trial = self.study.ask()
        trial.suggest_float("rate", 1e-5, 1.0, log=True)
        trial.suggest_float("decay", 1e-6, 1e-2, log=True)
        return trial

    def fit(self, epochs: int) -> tuple[float, Cost]:
        """One fit, its seconds and those in hooks."""
        trial = self._ask()
        callback = self.callback(trial, "val_acc")
        with timed(callback) as cost:
            took = fit(epochs, callback)
        self.study.tell(trial, 0.96)
        return took, cost

    def __str__(self) -> str:
        pruned = sum(t.state == self.optuna.trial.TrialState.PRUNED for t in self.study.trials)
        return f"{pruned} of the earlier trials pruned"


class Nothing:
    """No callback."""

    name = "no callback"

    def __init__(self, *_: Any) -> None:
        pass

    def fit(self, epochs: int) -> tuple[float, Cost]:
        """One fit, its seconds and those in hooks, none."""
        return fit(epochs), Cost([0.0] * epochs, [0.0] * epochs)

    def __str__(self) -> str:
        return "the same fit"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--earlier", type=int, default=20)
    parser.add_argument("--fits", type=int, default=5)
    options = parser.parse_args()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    arms: list[Any] = [Nothing, Haltune]
    if importlib.util.find_spec("optuna_integration") is not None:
        arms.append(Optuna)
    print(f"{options.fits} fits of {options.epochs} epochs after {options.earlier} earlier trials; ms an epoch")
    with tempfile.TemporaryDirectory() as folder:
        made = [arm(folder, options.epochs, options.earlier) for arm in arms]
        runs = [[arm.fit(options.epochs) for arm in made] for _ in range(1 + options.fits)][1:]
        print(
            f"{'':30}{'median':>9}{'processor':>11}{'95 %':>9}{'largest':>9}{'mean':>9}{'whole fit':>11}{'of 3 s':>10}"
        )
        for k, arm in enumerate(made):
            print_row(arm.name, [run[k] for run in runs], options.epochs)
        print(f"{'limits of haltune':30}{LIMITS[0]:9.3f}{'':49}{LIMITS[1]:10.3%}")
        for arm in made:
            print(f"{arm.name}: {arm}")
        without, solving = made[1].plain(options.epochs, options.fits)
        print(
            f"haltune in a plain loop: a report and its decision {np.median(without):.3f} ms, 95 % "
            f"{np.quantile(without, 0.95):.3f} (limit {PLAIN:.3f}); with a solve, {len(solving)} of "
            f"{len(without) + len(solving)} epochs, {np.median(solving):.3f} ms"
        )
    if Optuna not in arms:
        print("Optuna is not installed: pip install optuna optuna-integration")


def print_row(name: str, runs: list[tuple[float, Cost]], epochs: int) -> None:
    """Print the times of one arm's fits."""
    hooks = 1e3 * np.array([s for _, cost in runs for s in cost.epochs])
    busy = 1e3 * np.median([s for _, cost in runs for s in cost.busy])
    mean = 1e3 * np.mean([sum(cost.epochs) + cost.around for _, cost in runs]) / epochs
    whole = 1e3 * np.median([took for took, _ in runs]) / epochs
    print(
        f"{name:30}{np.median(hooks):9.3f}{busy:11.3f}{np.quantile(hooks, 0.95):9.3f}{hooks.max():9.3f}{mean:9.3f}"
        f"{whole:11.3f}{mean / 1e3 / EPOCH:10.3%}"
    )


if __name__ == "__main__":
    main()
