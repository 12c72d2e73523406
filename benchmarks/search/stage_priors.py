"""Hyperparameters of MultiFidelity's process fitted to recorded trainings, and the prior's medians.

    python benchmarks/search/stage_priors.py --data DIR [--runs 60] [--draws 3]

The fit uses so many random trials of each task of half 0 (see kinds.py) at all rungs. It is the mode under a prior of
three times the deviations; a row is the geometric mean over draws. `correlations` are those of each rung with the end.
A line for each task of both halves follows, straight from its table: rank correlations of each rung with the end, over
all trials and over the best quarter, and the share of the best fiftieth that is in the best sixth at each rung.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse

import numpy as np
from recorded import Task, load_kinds
from scipy.stats import spearmanr

from haltune.models.scales import NormalScores
from haltune.models.stage_process import Seen, StageKernel, Stages, learn_kernel
from haltune.policies import MultiFidelity


def wide(epochs: tuple[int, ...], dim: int) -> Stages:
    """Stages under a prior of three times the deviations."""
    stages = Stages(epochs, dim)
    stages.precision = stages.precision / 9.0
    stages.bounds = [(2 * low - high, 2 * high - low) for low, high in stages.bounds]
    return stages


def fitted(task: Task, runs: int, seed: int) -> np.ndarray:
    """theta of so many random runs."""
    rng = np.random.default_rng(seed)
    epochs = MultiFidelity().rungs(task.scores.shape[1])
    rows = rng.choice(len(task.points), min(runs, len(task.points)), replace=False)
    best = np.maximum.accumulate(task.scores[rows], axis=1)[:, np.array(epochs) - 1]
    scale = NormalScores.of(best.ravel())
    run, stage = np.repeat(np.arange(len(rows)), len(epochs)), np.tile(np.arange(len(epochs)), len(rows))
    stages = wide(epochs, task.points.shape[1])
    return learn_kernel(stages, Seen(task.points[rows], run, stage, scale.targets(best.ravel()))).theta


def row(name: str, theta: np.ndarray, stages: Stages) -> str:
    """One line of the table."""
    amplitudes, steps, scales, _ = (np.exp(theta[part]) for part in stages.parts)
    numbers = " ".join(f"{v:6.3f}" for v in np.exp(theta[:5]))
    numbers = " ".join(f"{v:.2f}" for v in StageKernel(stages, theta).correlations)
    return (
        f"{name:28s} {numbers}  a {amplitudes[0]:.2f} to {amplitudes[-1]:.2f}  steps {np.round(steps, 2)}  "
        f"lengths {np.round(np.sort(scales), 1)}  correlations {numbers}"
    )


def ranks(task: Task) -> str:
    """How well the table's early values find its best trials."""
    epochs = np.array(MultiFidelity().rungs(task.scores.shape[1])[:-1])
    best = np.maximum.accumulate(task.scores, axis=1)
    order = np.argsort(-best[:, -1])
    quarter, top = order[: len(order) // 4], order[: max(3, len(order) // 50)]

    def correlations(rows: np.ndarray) -> list[str]:
        return [f"{spearmanr(best[rows, n - 1], best[rows, -1])[0]:.2f}" for n in epochs]

    places = np.argsort(np.argsort(-best[:, epochs - 1], axis=0), axis=0)
    kept = (places[top] < len(order) / 6).mean(axis=0)
    return (
        f"{task.name[:28]:28s} epochs {epochs.tolist()}  all {' '.join(correlations(order))}  "
        f"best quarter {' '.join(correlations(quarter))}  best fiftieth {' '.join(f'{share:.2f}' for share in kept)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of learning_curves.npz and training_curves.npz")
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--draws", type=int, default=3)
    args = parser.parse_args()
    print(f"{'':28s}      s      l  noise      c      r")
    for tasks in load_kinds(args.data).values():
        for task in tasks[::2]:
            stages = Stages(MultiFidelity().rungs(task.scores.shape[1]), task.points.shape[1])
            theta = np.mean([fitted(task, args.runs, seed) for seed in range(args.draws)], axis=0)
            print(row(task.name[:28], theta, stages), flush=True)
    stages = Stages((1, 3, 9, 27, 50), 2)
    print(row("prior, of 50 epochs", stages.mean, stages))
    for task in (task for tasks in load_kinds(args.data).values() for task in tasks):
        print(ranks(task))


if __name__ == "__main__":
    main()
