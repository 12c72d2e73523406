"""Figure 4 of BO-BOS (Dai et al. 2019): XGBoost's hyperparameters and its features together, an epoch a feature.

    python benchmarks/papers/bobos_features.py --data FOLDER [--seeds 3] [--trainings 12] [--methods NAME ...]
        [--ends] [--keep FILE] [--svg]

Spambase: 3,065 mails train, 1,536 validate; four hyperparameters in the paper's ranges; forward selection adds a
feature an epoch, up to N = 50 of 57. It is smaller than the paper's: a model is 10 trees over features in 32 bins. The
first feature is the best of all 57; later epochs try the 3 that lowered the error most when they were last tried, not
all that are left (accelerated greedy selection, Minoux 1978). The trees are those of XGBoost's histogram method.

Methods: random search, Hyperband (N = 80 there, which 57 features do not allow: 54 = 2 x 27 here), GP-UCB, BO-BOS as
the paper sets it here (K1 = 100 / 0.99^(t-1)) and BO-BOS with its defaults. The folder, or the variable HALTUNE_DATA,
holds spambase.csv (UCI, with a header). A seed takes about three minutes. XGBoost is needed: pip install xgboost-cpu.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bobos_searches import ENDS, PAPERS, Experiment, Method, Training, parser, search

from haltune import Float, Int, Minimize, Problem, Space
from haltune.policies import BOBOS, GPUCB, Hyperband, RandomSearch

HORIZON, BAND = 50, 54  # N, and of Hyperband
TRAIN = 3_065
TREES, BINS = 10, 32
TRIED = 3  # features an epoch
# The paper's curves decay towards error 0 of the scale: it ends near what all features reach, as in bobos_mnist.py.
BOUNDS = (0.04, 0.5)
SPACE = Space(
    {
        "learning_rate": Float(1e-3, 0.5, log=True),
        "max_depth": Int(2, 15),
        "subsampling": Float(0.3, 1.0),
        "l1": Float(0.0, 5.0),
    }
)


def problem(horizon: int) -> Problem:
    """Its error, with so many features."""
    return Problem(SPACE, Minimize("validation error", bounds=BOUNDS), horizon)


METHODS: dict[str, Method] = {
    "random search": partial(search, problem(HORIZON), RandomSearch()),
    "Hyperband": partial(search, problem(BAND), Hyperband(BAND, eta=3)),
    "GP-UCB": partial(search, problem(HORIZON), GPUCB()),
    PAPERS: partial(search, problem(HORIZON), BOBOS(mode="faithful", growth=1 / 0.99)),
    "BO-BOS, robust": partial(search, problem(HORIZON), BOBOS(growth=1 / 0.99)),
}


def training(seed: int, file: Path) -> Training:
    """Validation errors of forward selection on a seed's split."""
    import xgboost

    table = np.loadtxt(file, delimiter=",", skiprows=1)
    table = table[np.random.default_rng(seed).permutation(len(table))]
    x, spam = table[:, :-1].astype(np.float32), table[:, -1]

    def error(config: dict[str, Any], features: list[int]) -> float:
        # a QuantileDMatrix has the same bins, but takes longer to make than the trees
        train = xgboost.DMatrix(x[:TRAIN, features], spam[:TRAIN], nthread=1)
        asked = {
            "objective": "binary:logistic", "tree_method": "hist", "max_bin": BINS, "nthread": 1, "seed": seed,
            "learning_rate": config["learning_rate"], "max_depth": config["max_depth"],
            "colsample_bytree": config["subsampling"], "alpha": config["l1"], "verbosity": 0,
        }  # fmt: skip
        trees = xgboost.train(asked, train, TREES)
        return float(((trees.inplace_predict(x[TRAIN:, features]) > 0.5) != spam[TRAIN:]).mean())

    without = float(min(spam[TRAIN:].mean(), 1 - spam[TRAIN:].mean()))
    return lambda config: selection(partial(error, config), x.shape[1], without)


def selection(error: Callable[[list[int]], float], features: int, before: float) -> Iterator[float]:
    """Yield the error with the best first feature, then with one more each time, among the best when last tried.

    before: the error without features.
    """
    chosen: list[int] = []
    with_it = np.zeros(features)  # the error when it was last tried, less what it was without
    while len(chosen) < features:
        left = [f for f in range(features) if f not in chosen]
        tried = left if not chosen else sorted(left, key=lambda f: with_it[f])[:TRIED]
        errors = {f: error([*chosen, f]) for f in tried}
        for f, now in errors.items():
            with_it[f] = now - before
        best = min(errors, key=errors.__getitem__)
        chosen.append(best)
        before = errors[best]
        yield before


EXPERIMENT = Experiment(
    "bobos_features", "Best-found validation error of XGBoost on Spambase by run time, for each method.",
    "XGBoost with forward selection on Spambase", (4, 12), "spambase.csv", ("xgboost", "xgboost-cpu"), METHODS, HORIZON,
    training,
)  # fmt: skip

if __name__ == "__main__":
    made = parser(__doc__, 3, 12, METHODS, "spambase.csv")
    made.add_argument("--ends", action="store_true", help=ENDS)
    EXPERIMENT.run(made.parse_args())
