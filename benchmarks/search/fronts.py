"""Two goals on recorded trainings, a high score and short epochs: the front after 5, 10 and 20 full trainings.

    python benchmarks/search/fronts.py --data DIR [--method default optuna-tpe ...] [--seeds 5] [--half 0 or 1]
                                       [--by-task]

Data: training_curves.npz, the tables with recorded seconds: AlexNet, OpenCLIP, tabular MLPs. A report
has the score and the mean seconds of an epoch so far; a run that was trained in full counts, by its last report.
Proposed points become the nearest row that was not tried; a resumed trial pays only its further epochs. The
methods of haltune stop and pause runs; those of Optuna cannot with several goals, and train each in full (its NSGA-
II, its TPE, which is MOTPE with several goals, and random search).

The number is the hypervolume of the found front as a share of the whole table's. Its reference point is the score that
three rows of four reach, and the seconds that three of four do not exceed. Settings were chosen on half 0, the first,
third, ... task; half 1 shows other tasks.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing import get_context

import numpy as np
from recorded import OnRows, Task, load_kinds

from haltune import Budget, Maximize, Minimize, Problem, Study
from haltune.policies import BOBOS, EI, Halting, MultiFidelity, RandomSearch
from haltune.ranks import alone

BUDGETS = (5, 10, 20)  # full trainings


@dataclass
class Bench:
    """One table that a search trains on: what was paid, and what was trained in full."""

    task: Task
    paid: int = 0  # epochs
    whole: list[tuple[int, float, float]] = field(default_factory=list)  # paid by then, score, -seconds

    def __post_init__(self) -> None:
        self.free = np.ones(len(self.task.points), dtype=bool)

    @property
    def horizon(self) -> int:
        """Epochs of a full training."""
        return int(self.task.scores.shape[1])

    @property
    def limit(self) -> int:
        """Epochs that may be paid."""
        return max(BUDGETS) * self.horizon

    @cached_property
    def seconds(self) -> np.ndarray:
        """(n, epochs) mean seconds of an epoch so far."""
        assert self.task.seconds is not None
        return np.cumsum(self.task.seconds, axis=1) / np.arange(1, self.horizon + 1)

    def take(self, point: np.ndarray) -> int:
        """The row that a proposed point becomes."""
        row = self.task.nearest(point, self.free)
        self.free[row] = False
        return row

    def train(self, row: int, epoch: int) -> tuple[float, float]:
        """Score and seconds of a row after an epoch, from 1; it is paid."""
        score, seconds = float(self.task.scores[row, epoch - 1]), float(self.seconds[row, epoch - 1])
        self.paid += 1
        if epoch == self.horizon:
            self.whole.append((self.paid, score, -seconds))
        return score, seconds

    def shares(self) -> np.ndarray:
        """(budgets,) of the table's hypervolume that was found."""
        every = np.column_stack([self.task.scores[:, -1], -self.seconds[:, -1]])
        reference = np.quantile(every, 0.25, axis=0)
        unit = every.max(axis=0) - reference
        scaled = (every - reference) / unit
        found = [np.array([w[1:] for w in self.whole if w[0] <= b * self.horizon]).reshape(-1, 2) for b in BUDGETS]
        return np.array([dominated((f - reference) / unit) for f in found]) / dominated(scaled)


def dominated(points: np.ndarray) -> float:
    """The area below points (n, 2), larger better, and above 0: column by column, each as high as its best point."""
    above = points[(points > 0.0).all(axis=1)]
    above = above[np.argsort(above[:, 0])]
    widths = np.diff(above[:, 0], prepend=0.0)
    return float((widths * np.maximum.accumulate(above[::-1, 1])[::-1]).sum())


def of(policy: Callable[[], object]) -> Callable[[Bench, int], None]:
    """A search by haltune."""

    def run(bench: Bench, seed: int) -> None:
        task = bench.task
        problem = Problem(task.space, [Maximize("score", (0, 1)), Minimize("seconds")], bench.horizon)
        with alone():
            study = Study(problem, OnRows(policy(), task), seed=seed, budget=Budget(epochs=bench.limit), verbose=0)
        rows: dict[int, int] = {}
        for trial in study:
            if trial.id not in rows:
                rows[trial.id] = bench.take(task.point(trial.config))
            for epoch in trial.epochs():
                score, seconds = bench.train(rows[trial.id], epoch)
                verdict = trial.report({"score": score, "seconds": seconds}, seconds=seconds)
            if verdict.resumable:
                trial.checkpointed(f"row-{rows[trial.id]}")

    return run


def optuna_by(sampler: str, **options: int) -> Callable[[Bench, int], None]:
    """A search by Optuna, which prunes no study of several goals."""

    def run(bench: Bench, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)

        def objective(trial: optuna.Trial) -> tuple[float, float]:
            point = [trial.suggest_float(f"u{i}", 0.0, 1.0) for i in range(bench.task.points.shape[1])]
            row = bench.take(np.array(point))
            return [bench.train(row, epoch) for epoch in range(1, bench.horizon + 1)][-1]

        made = getattr(optuna.samplers, sampler)(seed=seed, **options)
        optuna.create_study(directions=["maximize", "minimize"], sampler=made).optimize(
            objective, n_trials=max(BUDGETS)
        )

    return run


METHODS: dict[str, Callable[[Bench, int], None]] = {
    "default": of(MultiFidelity),
    "bobos": of(BOBOS),
    "halting-random": of(lambda: Halting(RandomSearch())),
    "ei-in-full": of(EI),
    "optuna-nsga2": optuna_by("NSGAIISampler", population_size=10),  # of its own 50 none would be bred
    "optuna-tpe": optuna_by("TPESampler"),
    "random": optuna_by("RandomSampler"),
}


def one(name: str, task: Task, seed: int) -> tuple[np.ndarray, float]:
    """Shares of the hypervolume after each budget, and seconds that the search took."""
    warnings.simplefilter("ignore")
    bench, began = Bench(task), time.perf_counter()
    METHODS[name](bench, seed)
    return bench.shares(), time.perf_counter() - began


def row(name: str, shares: np.ndarray) -> str:
    """Means over tasks and seeds, and their standard errors, of shares (tasks, seeds, budgets)."""
    seeds = max(1, shares.shape[1] - 1)
    error = np.sqrt((shares.var(axis=1) / seeds).sum(axis=0)) / len(shares)
    cells = "  ".join(f"{m:.3f}±{e:.3f}" for m, e in zip(shares.mean(axis=(0, 1)), error, strict=True))
    return f"{name:34s} {cells}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of training_curves.npz and learning_curves.npz")
    parser.add_argument("--method", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--half", type=int, choices=(0, 1), help="of the tasks; default: each by itself")
    parser.add_argument("--by-task", action="store_true")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    timed = [t for tasks in load_kinds(args.data).values() for t in tasks if t.seconds is not None]
    halves = (0, 1) if args.half is None else (args.half,)
    print(f"share of the hypervolume, {args.seeds} seeds, after trainings  " + "  ".join(f"{b:<11d}" for b in BUDGETS))
    with get_context("spawn").Pool(args.processes) as pool:
        for name in args.method:
            for half in halves:
                tasks, seeds = timed[half::2], range(args.first_seed, args.first_seed + args.seeds)
                found = pool.starmap(one, [(name, task, seed) for task in tasks for seed in seeds], chunksize=1)
                shares = np.array([s for s, _ in found]).reshape(len(tasks), args.seeds, -1)
                took = np.mean([t for _, t in found])
                print(f"{row(f'{name}, half {half}', shares)}  {took:.1f} s a search", flush=True)
                for task, of_task in zip(tasks, shares, strict=True):
                    print(row(f"    {task.name[:26]}", of_task[None])) if args.by_task else None


if __name__ == "__main__":
    main()
