"""5-fold cross-validation on digits: epochs saved and the best mean, with stopping within folds and without.

    python benchmarks/search/cross_validation.py [--seeds 3] [--trials 20] [--method full haltune bobos] [--processes 2]

A network of one hidden layer trains on four fifths of scikit-learn's digits for 12 epochs, in each of five folds. The
space has learning rate, width, batch size and weight decay. `full` trains random configurations over all folds in full;
`haltune` is a Study without a policy and `bobos` is BOBOS(), with the same number of trials. The output has the mean
accuracy over the folds of the best trial, its standard error over seeds, and the share of the epochs of full trials
that were saved. Settings were not tuned on it.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import logging
import math
import pickle
import warnings
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

FOLDS, EPOCHS = 5, 12


def search(seed: int, trials: int, policy: Any = None) -> tuple[float, float]:
    """Return the best mean over folds of a trial in full, and the epochs trained, in trainings of all folds."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import StratifiedKFold
    from sklearn.neural_network import MLPClassifier

    from haltune import Float, Int, Maximize, Study

    x, y = load_digits(return_X_y=True)
    x, split = x / 16.0, list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(x, y))
    space = {
        "lr": Float(1e-4, 1e-1, log=True), "width": Int(4, 64, log=True), "batch": Int(8, 128, log=True),
        "decay": Float(1e-6, 1e-1, log=True),
    }  # fmt: skip
    goal = Maximize("accuracy", (0, 1))
    study = Study(space, goal, max_epochs=EPOCHS, budget=f"{trials} trials", seed=seed, policy=policy, verbose=0)
    for trial in study:
        with trial:
            for fold in trial.folds(FOLDS):
                train, held_out = split[fold.index]
                c = fold.config
                net = MLPClassifier(
                    (c["width"],), learning_rate_init=c["lr"], batch_size=c["batch"], alpha=c["decay"],
                    random_state=100 * seed + trial.id,
                )  # fmt: skip
                if fold.checkpoint:
                    net = pickle.loads(Path(fold.checkpoint).read_bytes())  # of this process
                for _ in fold.epochs():
                    net.partial_fit(x[train], y[train], classes=range(10))
                    if fold.report(net.score(x[held_out], y[held_out])).stops:
                        fold.save(lambda path, net=net: path.write_bytes(pickle.dumps(net)))
    ends = [float(t.values[-1]) for t in study.trials if t.epoch >= EPOCHS]
    return max(ends), study.history.spent.epochs


def full(seed: int, trials: int) -> tuple[float, float]:
    from haltune.policies import RandomSearch

    return search(seed, trials, RandomSearch())


def bobos(seed: int, trials: int) -> tuple[float, float]:
    from haltune.policies import BOBOS

    return search(seed, trials, BOBOS())


METHODS: dict[str, Callable[[int, int], tuple[float, float]]] = {"full": full, "haltune": search, "bobos": bobos}


def one(method: str, seed: int, trials: int) -> tuple[float, float]:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    return METHODS[method](seed, trials)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--method", nargs="+", choices=list(METHODS), default=["full", "haltune"])
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    args = parser.parse_args()
    jobs = [(method, seed, args.trials) for method in args.method for seed in range(args.seeds)]
    with get_context("spawn").Pool(args.processes) as pool:
        found = np.array(pool.starmap(one, jobs, chunksize=1)).reshape(len(args.method), args.seeds, 2)
    print(f"{args.trials} trials of {FOLDS} folds of {EPOCHS} epochs, {args.seeds} seeds")
    for method, rows in zip(args.method, found, strict=True):
        means, saved = rows[:, 0], 1.0 - rows[:, 1] / (args.trials * EPOCHS)
        error = means.std(ddof=1) / math.sqrt(len(means)) if len(means) > 1 else math.nan
        print(f"{method:8s} best mean {means.mean():.4f} ± {error:.4f}, {saved.mean():.0%} of the epochs saved")


if __name__ == "__main__":
    main()
