"""Figures 1 and 2 of BO-BOS (Dai et al. 2019) on recorded trainings: errors by epochs, against other searches.

    python benchmarks/papers/bobos_recorded.py --data FOLDER [--table NAME ...] [--seeds 10] [--trainings 20]
        [--method NAME ...] [--keep FILE]

A proposed configuration becomes the nearest row of a table that was not tried yet, and its recorded curve is read: a
search costs only its decisions. The tables are AlexNet on a tenth of ImageNet (974 x 50 epochs), convolutional
architectures on CIFAR-10 (MetaQNN, 995 x 20), an LSTM (280 x 59) and six text RNNs (1,000 x 50). A search has the
epochs of so many full trainings. The value is the best of any epoch so far, as a regret: 0 at the best of the table, 1
at the median final value.

BO-BOS as the paper sets it has K1 = 100 at first, divided by 0.89 (a), 0.95 (b), 0.99 (c) or 1 (d) with each trial, K2
= 99, c = 1, kappa = 2, and 10,000 simulated curves in place of 100,000. Its curves decay to error 0, so the goal ends
at the best value of the table. "curve prediction" and "BOCA" are those of bobos_peers.py, "BOHB" is Syne Tune's.
Differences are paired: the same table and seed.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import logging
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from bobos_peers import BOCA, CurvePrediction
from command_line import command_line
from kept import Kept
from numpy.typing import NDArray
from paired import differences
from scipy.stats import spearmanr

sys.path.append(str(Path(__file__).parents[1] / "search"))
from recorded import Meter, Task, load_kinds, search

from haltune import Maximize, Problem, Study
from haltune.policies import BOBOS, GPUCB, Hyperband, OptimalStopping, RandomSearch

Array = NDArray[np.float64]
MARKS = (2, 5, 10, 15, 20, 30)  # full trainings
TABLES = ("alexnet_imagenet10pct", "metaqnn_cifar10", "lstm_ptb", "text")
PATHS = 10_000


@dataclass(frozen=True)
class Bounded(Task):
    """A table whose goal ends at its best value."""

    @cached_property
    def problem(self) -> Problem:
        low = float(np.quantile(self.scores[:, -1], 0.1))
        top = float(self.scores.max())
        return Problem(self.space, Maximize("score", bounds=(low, top), of=self.of), self.scores.shape[1])


def faithful(growth: float) -> Callable[[], BOBOS]:
    """The paper's settings."""
    return lambda: BOBOS(growth=growth, stopping=OptimalStopping("faithful", paths=PATHS))


def of(policy: Callable[[], Any]) -> Callable[[Meter, int], object]:
    """A policy of haltune."""
    return lambda meter, seed: search(policy(), meter, seed)


def bohb(meter: Meter, seed: int) -> None:
    """Syne Tune's."""
    import peer_syne_tune

    peer_syne_tune.run("bohb", meter, seed)


PAPER = "BO-BOS (b) K1 / 0.95"
METHODS: dict[str, Callable[[Meter, int], object]] = {
    "random search": of(RandomSearch),
    "Hyperband": of(lambda: Hyperband(eta=3, rounds=None)),
    "BOHB": bohb,
    "GP-UCB": of(GPUCB),
    "curve prediction": of(CurvePrediction),
    "BOCA": of(BOCA),
    "BO-BOS (a) K1 / 0.89": of(faithful(1 / 0.89)),
    PAPER: of(faithful(1 / 0.95)),
    "BO-BOS (c) K1 / 0.99": of(faithful(1 / 0.99)),
    "BO-BOS (d) K1 fixed": of(faithful(1.0)),
    "BO-BOS, robust": of(BOBOS),
}


def tasks(folder: Path | None, names: list[str]) -> dict[str, list[Task]]:
    """The tables by name; a suite names all of its own."""
    kinds = load_kinds(str(folder) if folder else None)
    every = [(suite, Bounded(**vars(task))) for suite, own in kinds.items() for task in own]
    return {name: [task for suite, task in every if name in (suite, task.name.split("/")[-1])] for name in names}


def regrets(name: str, task: Task, seed: int, marks: list[int]) -> dict[str, Any]:
    """Of one search, after each mark; the seconds of CPU that it took, and the epochs of haltune's trials."""
    length = task.scores.shape[1]
    meter, began = Meter(replace(task, seconds=None), max(marks) * length), time.process_time()
    study = METHODS[name](meter, 100 * seed + task.number)
    values = np.minimum(meter.after([mark * length for mark in marks]), 1.0)
    trained = [int(trial.epoch) for trial in study.trials] if isinstance(study, Study) else []
    return {"regret": values.tolist(), "seconds": time.process_time() - began, "trained": trained}


def main() -> None:
    parser = command_line(__doc__, 10, "learning_curves.npz and training_curves.npz")
    parser.add_argument("--trainings", type=int, default=20, help="full trainings' worth of epochs for each search")
    parser.add_argument("--table", nargs="+", default=[*TABLES])
    parser.add_argument("--method", nargs="+", choices=[*METHODS], default=[*METHODS])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    marks, kept = sorted({m for m in MARKS if m < args.trainings} | {args.trainings}), Kept(args.keep)
    suites = tasks(args.data, args.table)
    for table, every in suites.items():
        for task in every:
            last, length = task.scores[:, -1], task.scores.shape[1]
            early = (f"{spearmanr(task.scores[:, n - 1], last)[0]:.2f} after {n}" for n in (1, 3, 9))
            print(f"{task.name}: rank correlation with the final value {', '.join(early)} of {length} epochs")
        print(
            f"\n{table}: regret after full trainings, {args.seeds} seeds{'':8s}" + "".join(f"{m:>16d}" for m in marks)
        )
        found: dict[str, Array] = {}
        for name in args.method:
            try:
                runs = [
                    kept([name, task.name, seed, marks], partial(regrets, name, task, seed, marks))
                    for task in every
                    for seed in range(args.seeds)
                ]
            except ImportError as missing:
                print(f"{name:44s}left out, for its package is not installed: {missing}")
                continue
            found[name] = np.array([run["regret"] for run in runs])
            error = found[name].std(axis=0, ddof=1) / np.sqrt(len(runs))
            cells = [f"{m:.4f}±{e:.4f}" for m, e in zip(found[name].mean(axis=0), error, strict=True)]
            seconds = np.mean([run["seconds"] for run in runs])
            trained = [epochs for run in runs for epochs in run["trained"]]
            told = f", {len(trained)} trials of {np.median(trained):.0f} epochs (median)" if trained else ""
            print(f"{name:44s}" + "".join(f"{cell:>16s}" for cell in cells) + f"   {seconds:.1f} s{told}", flush=True)
        differences(found, PAPER, [f"{m}" for m in marks])


if __name__ == "__main__":
    main()
