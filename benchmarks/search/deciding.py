"""Milliseconds of decisions in a search of recorded curves: per suggestion, report and full training.

    python benchmarks/search/deciding.py --data DIR [--policy multifidelity ...] [--trainings 10]

The log has the time of each decision, without the rest of a study's work (the store, the leases). A full training is 50
epochs. Below are published numbers of other programs (CPU, one thread).
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import warnings

import numpy as np
from methods import METHODS
from recorded import Meter, Task, load

from haltune import Study
from haltune.log.events import Reported, Resumed, Started

POLICIES = ("ladder", "multifidelity", "hyperband", "halving27", "bobos")
PUBLISHED = {
    "Syne Tune ASHA": ("0.1-0.3", ""),
    "Optuna TPE with Hyperband": ("2", ""),
    "SMAC3": ("30", ""),
    "DyHPO": ("40", "1400"),
    "MOBSTER": ("67-170", ""),
    "Optuna GP": ("256", ""),
    "BoTorch LogEI": ("103", ""),
}


def deciding(name: str, task: Task, trainings: int, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Milliseconds of each suggestion and each report, and of all of them for a full training."""
    meter = Meter(task, trainings * task.scores.shape[1])
    study = METHODS[name].run(meter, 100 * seed + task.number, True)
    assert isinstance(study, Study)
    log = list(study.events())
    asked = np.array([1e3 * e.deciding for e in log if isinstance(e, (Started, Resumed))])
    judged = np.array([1e3 * e.deciding for e in log if isinstance(e, Reported)])
    return asked, judged, float(asked.sum() + judged.sum()) / trainings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of learning_curves.npz")
    parser.add_argument("--policy", nargs="+", choices=[*METHODS], default=[*POLICIES])
    parser.add_argument("--trainings", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    task = load(args.data)[0]
    print(
        f"{'ms, ' + str(args.trainings) + ' trainings':28s} suggestion: mean  median  slowest   report  a full training"
    )
    for name in args.policy:
        deciding(name, task, 1, args.seed)  # imports, caches
        asked, judged, training = deciding(name, task, args.trainings, args.seed)
        print(
            f"{name:28s}       {asked.mean():10.2f} {np.median(asked):7.2f} {asked.max():8.1f}"
            f" {judged.mean():8.3f} {training:16.1f}",
            flush=True,
        )
    for name, (suggestion, whole) in PUBLISHED.items():
        print(f"  {name:26s}       {suggestion:>10s} {'':25s} {whole:>16s}")


if __name__ == "__main__":
    main()
