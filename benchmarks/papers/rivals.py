"""TPE and SMAC over a list of configurations, every training in full. Needs scikit-learn and optuna.

A point that Optuna's TPE proposes becomes the nearest configuration that was not tried yet. SMAC is its rule (Hutter et
al. 2011): a forest of ten trees, the largest expected improvement by the mean and the deviation of the trees, every
second configuration at random.
"""

from collections.abc import Callable

import numpy as np
import optuna
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.ensemble import RandomForestRegressor

Array = NDArray[np.float64]
Train = Callable[[int], float]  # number of a configuration -> its loss
optuna.logging.set_verbosity(optuna.logging.ERROR)


def tpe(points: Array, train: Train, count: int, seed: int) -> list[float]:
    """Return the losses of `count` configurations, in the order of their trainings."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    free, seen = np.ones(len(points), dtype=bool), []
    for _ in range(count):
        trial = study.ask()
        point = np.array([trial.suggest_float(f"u{i}", 0.0, 1.0) for i in range(points.shape[1])])
        row = int(np.where(free, np.square(points - point).sum(axis=1), np.inf).argmin())
        free[row] = False
        seen.append(train(row))
        study.tell(trial, seen[-1])
    return seen


def smac(points: Array, train: Train, count: int, seed: int) -> list[float]:
    """Return the losses of `count` configurations, in the order of their trainings."""
    rng = np.random.default_rng(seed)
    free, tried, seen = np.ones(len(points), dtype=bool), list[int](), list[float]()
    for step in range(count):
        rows = np.flatnonzero(free)
        row = int(rng.choice(rows))
        if step >= 2 and step % 2 == 0:
            forest = RandomForestRegressor(10, min_samples_split=3, max_features=5 / 6, random_state=step)
            forest.fit(points[tried], seen)
            each = np.array([tree.predict(points[rows]) for tree in forest.estimators_])
            mean, deviation = each.mean(axis=0), np.maximum(each.std(axis=0), 1e-9)
            z = (min(seen) - mean) / deviation
            row = int(rows[(deviation * (z * norm.cdf(z) + norm.pdf(z))).argmax()])
        free[row] = False
        tried.append(row)
        seen.append(train(row))
    return seen


RIVALS = {"TPE": tpe, "SMAC": smac}
