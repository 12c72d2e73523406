"""A real search by the clock: a small CNN in Lightning, six hyperparameters, by haltune and by Optuna's TPE and pruner.

    python benchmarks/search/live_cnn.py --data DIR [--minutes 15] [--seeds 3] [--into FOLDER] [--processes 2] [--svg]

2,000 digits train and 2,000 validate; 27 epochs at most, SGD with a cosine schedule over all of them. Channels and the
batch change the time of an epoch; learning rate, momentum, weight decay and dropout do not. Both searches are as a user
would write them: a `Study` without a policy and its callback, and Optuna's TPE with MedianPruner and the callback of
optuna-integration. Each has its own process and core and the same minutes of wall clock, which include
decisions, checkpoints and the start of each fit. The figure shows the least validation error at any epoch of any trial
so far. Finished searches are kept in FOLDER (build/live_cnn), a file for each, and not repeated.

Data: mnist_10k.npz, `images` uint8 (10000, 28, 28) and `labels` (10000,). Needs the extras lightning and optuna, and
optuna-integration.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import json
import logging
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from recorded import found

EPOCHS = 27
TOLD = {"haltune": "haltune, default search", "optuna": "Optuna, TPE and MedianPruner", "random": "random, in full"}
Train = Callable[[dict[str, Any], int, list[Any], Any], None]  # config, number, callbacks, checkpoint


@dataclass
class Clock:
    """The validation errors with their times."""

    minutes: float
    began: float = field(default_factory=time.monotonic)
    seen: list[tuple[float, float, int, int]] = field(default_factory=list)  # seconds, error, trial, epoch

    @property
    def seconds(self) -> float:
        """The seconds since the search started."""
        return time.monotonic() - self.began

    @property
    def over(self) -> bool:
        """True if the minutes are over."""
        return self.seconds >= 60 * self.minutes

    def watch(self, number: int) -> Any:
        """A callback that writes down what a fit shows, and ends it with the minutes."""
        from lightning import Callback

        clock = self

        class Watch(Callback):
            def on_validation_end(self, trainer: Any, module: Any) -> None:
                error = float(trainer.callback_metrics["val_error"])
                clock.seen.append((clock.seconds, error, number, trainer.current_epoch + 1))
                trainer.should_stop = trainer.should_stop or clock.over

        return Watch()


def training(folder: str | None) -> Train:
    """The user's own training: the same for every search."""
    import lightning
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    with np.load(found(folder, "mnist_10k.npz"), allow_pickle=False) as file:
        order = np.random.default_rng(0).permutation(len(file["labels"]))[:4000]
        images = torch.as_tensor(file["images"][order] / np.float32(255)).float()[:, None]
        labels = torch.as_tensor(file["labels"][order].astype(np.int64))
    train, val = TensorDataset(images[:2000], labels[:2000]), TensorDataset(images[2000:], labels[2000:])

    class Net(lightning.LightningModule):
        def __init__(self, config: dict[str, Any]) -> None:
            super().__init__()
            self.config, c = config, config["channels"]
            self.net = nn.Sequential(
                nn.Conv2d(1, c, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(c, 2 * c, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Flatten(), nn.Dropout(config["dropout"]), nn.Linear(98 * c, 10),
            )  # fmt: skip

        def training_step(self, batch: Any, _: int) -> Any:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("val_error", (self.net(batch[0]).argmax(1) != batch[1]).float().mean())

        def configure_optimizers(self) -> Any:
            sgd = torch.optim.SGD(
                self.parameters(), self.config["lr"], self.config["momentum"], weight_decay=self.config["decay"]
            )
            return [sgd], [torch.optim.lr_scheduler.CosineAnnealingLR(sgd, EPOCHS)]

    def fit(config: dict[str, Any], number: int, callbacks: list[Any], checkpoint: Any) -> None:
        lightning.seed_everything(number, verbose=False)
        trainer = lightning.Trainer(
            max_epochs=EPOCHS, callbacks=callbacks, accelerator="cpu", logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        )  # fmt: skip
        loaders = DataLoader(train, config["batch"], shuffle=True), DataLoader(val, 500)
        trainer.fit(Net(config), *loaders, ckpt_path=checkpoint)

    return fit


def by_haltune(fit: Train, clock: Clock, seed: int, folder: Path, policy: Any = None) -> None:
    """Search as in haltune's README."""
    from haltune import Float, Int, Minimize, Study
    from haltune.callbacks.lightning import HaltuneCallback

    space = {
        "lr": Float(1e-4, 1.0, log=True), "momentum": Float(0.0, 0.99), "decay": Float(1e-6, 1e-1, log=True),
        "dropout": Float(0.0, 0.7), "channels": Int(4, 48, log=True), "batch": Int(16, 512, log=True),
    }  # fmt: skip
    goal, database = Minimize("val_error", bounds=(0, 1), of="best"), folder / f"{time.time_ns()}.db"
    budget = f"{clock.minutes}min"
    study = Study(space, goal, database, max_epochs=EPOCHS, budget=budget, seed=seed, policy=policy, verbose=0)
    for trial in study:
        with trial:
            fit(trial.config, trial.id, [clock.watch(trial.id), HaltuneCallback(trial)], trial.checkpoint)


def by_optuna(fit: Train, clock: Clock, seed: int) -> None:
    """Search as in Optuna's documentation."""
    import optuna
    from optuna_integration import PyTorchLightningPruningCallback

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial: optuna.Trial) -> float:
        config = {
            "lr": trial.suggest_float("lr", 1e-4, 1.0, log=True),
            "momentum": trial.suggest_float("momentum", 0.0, 0.99),
            "decay": trial.suggest_float("decay", 1e-6, 1e-1, log=True),
            "dropout": trial.suggest_float("dropout", 0.0, 0.7),
            "channels": trial.suggest_int("channels", 4, 48, log=True),
            "batch": trial.suggest_int("batch", 16, 512, log=True),
        }
        watch, began = clock.watch(trial.number), len(clock.seen)
        fit(config, trial.number, [watch, PyTorchLightningPruningCallback(trial, "val_error")], None)
        return min(error for _, error, *_ in clock.seen[began:])

    sampler = optuna.samplers.TPESampler(seed=seed)
    study = optuna.create_study(direction="minimize", sampler=sampler, pruner=optuna.pruners.MedianPruner())
    study.optimize(objective, timeout=60 * clock.minutes)


def one(method: str, seed: int, minutes: float, data: str | None, path: Path) -> None:
    """One search, written to a file when it is over."""
    import lightning  # noqa: F401  imported before the clock begins, for either

    warnings.simplefilter("ignore")
    for name in ("lightning.pytorch", "lightning.fabric", "haltune"):
        logging.getLogger(name).setLevel(logging.ERROR)
    fit = training(data)
    clock = Clock(minutes)
    if method == "optuna":
        by_optuna(fit, clock, seed)
    else:
        from haltune.policies import RandomSearch

        by_haltune(fit, clock, seed, path.parent, RandomSearch() if method == "random" else None)
    path.write_text(json.dumps({"took": clock.seconds, "seen": clock.seen}), encoding="utf-8")


def incumbents(path: Path, at: np.ndarray) -> np.ndarray:
    """The least error so far (points,) at these seconds; 0.9, a guess, before the first."""
    seen = np.array(json.loads(path.read_text(encoding="utf-8"))["seen"])
    best = np.concatenate([[0.9], np.minimum.accumulate(seen[:, 1])])
    return np.asarray(best[np.searchsorted(seen[:, 0], at, side="right")])


def show(runs: dict[str, np.ndarray], at: np.ndarray, paths: dict[str, list[Path]]) -> None:
    """Errors in percent, and when each reaches what the other ends with."""
    shares = (0.1, 0.25, 0.5, 1.0)
    seeds = max(map(len, runs.values()))
    print(
        f"validation error in %, {seeds} seeds, after minutes   "
        + "  ".join(f"{at[-1] * s / 60:<11.4g}" for s in shares)
    )
    for method, values in runs.items():
        where = [int(np.searchsorted(at, at[-1] * share)) for share in shares]
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.full(len(at), np.nan)
        cells = "  ".join(f"{100 * values[:, i].mean():5.2f}±{100 * error[i]:<5.2f}" for i in where)
        files = [json.loads(path.read_text(encoding="utf-8"))["seen"] for path in paths[method]]
        trials, epochs = (np.mean([of(seen) for seen in files]) for of in (lambda s: len({r[2] for r in s}), len))
        print(f"{TOLD[method]:42s}  {cells}   {trials:.0f} configurations, {epochs:.0f} epochs")
    for level in (0.03, 0.027):
        for method, values in runs.items():
            mean, *each = (_when(curve, level, at) for curve in (values.mean(axis=0), *values))
            by_seed = ", ".join(f"{minutes:.1f}" for minutes in each)
            print(f"{method} is at {100 * level:g}% after {mean:.1f} minutes in the mean, seed by seed {by_seed}")
    for method, of in paths.items():
        seen = [json.loads(path.read_text(encoding="utf-8"))["seen"] for path in of]
        counts = [len({row[2] for row in rows if row[3] == EPOCHS}) for rows in seen]
        print(f"{method} trained {', '.join(map(str, counts))} in full")
    for method, values in runs.items():
        for other in runs.keys() - {method}:
            reached = np.flatnonzero(values.mean(axis=0) <= runs[other][:, -1].mean())
            when = f"after {at[reached[0]] / 60:.1f} minutes" if len(reached) else "never"
            print(f"{method} reaches in the mean what {other} ends with {when}")


def _when(curve: np.ndarray, level: float, at: np.ndarray) -> float:
    """Minutes until a curve is at a level; NaN where it never is."""
    there = np.flatnonzero(curve <= level + 1e-9)
    return float(at[there[0]]) / 60 if len(there) else float("nan")


def draw(runs: dict[str, np.ndarray], at: np.ndarray) -> None:
    """The figure of the page."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "papers"))
    from drawn import Sheet, legend, means, panel, write

    sheet = Sheet("live_cnn", "The least validation error so far by the clock, of each search, in the mean over seeds.")
    where = panel(sheet, 56, 690, (0, at[-1] / 60), (1.5, 12), log_y=True)
    where.axes(
        f"A small CNN, by the clock, {len(next(iter(runs.values())))} seeds",
        "minutes",
        "validation error of the best so far, %",
        np.linspace(0, at[-1] / 60, 4).tolist(),
        (2, 3, 4, 6, 10),
    )
    named = {TOLD[method]: 100 * values for method, values in runs.items()}
    means(where, at / 60, named)
    legend(sheet, named)
    write(sheet)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of mnist_10k.npz")
    parser.add_argument("--method", nargs="+", choices=[*TOLD], default=["haltune", "optuna"])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--into", type=Path, default=Path("build/live_cnn"))
    parser.add_argument("--processes", type=int, default=2, help="searches at a time: as many as there are quiet cores")
    parser.add_argument("--svg", action="store_true")
    parser.add_argument("--one", nargs=3, metavar=("METHOD", "SEED", "FILE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        one(args.one[0], int(args.one[1]), args.minutes, args.data, Path(args.one[2]))
        return
    found(args.data, "mnist_10k.npz")
    args.into.mkdir(parents=True, exist_ok=True)
    paths = {m: [args.into / f"{m}-{seed}-{args.minutes:g}min.json" for seed in range(args.seeds)] for m in args.method}

    def run(job: tuple[str, int]) -> None:
        path = paths[job[0]][job[1]]
        if not path.exists():
            given = [f"--data={args.data}"] if args.data else []
            asked = ["--one", job[0], str(job[1]), str(path), f"--minutes={args.minutes}", *given]
            subprocess.run([sys.executable, __file__, *asked], check=True)

    with ThreadPoolExecutor(args.processes) as pool:
        list(pool.map(run, [(method, seed) for seed in range(args.seeds) for method in args.method]))
    at = np.linspace(0, 60 * args.minutes, 301)
    runs = {method: np.array([incumbents(path, at) for path in of]) for method, of in paths.items()}
    show(runs, at, paths)
    if args.svg:
        draw(runs, at)


if __name__ == "__main__":
    main()
