"""TPE and SMAC over a list of configurations, every training in full. Needs scikit-learn and optuna.

A point that Optuna's TPE proposes becomes the nearest configuration that was not tried yet; it learns from the point,
as the peers of ../search do. SMAC is its rule (Hutter et al. 2011): a forest of ten trees, the largest expected
improvement by the mean and the deviation of the trees, every second configuration at random.
"""

from collections.abc import Callable, Generator

import numpy as np
import optuna
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.ensemble import RandomForestRegressor

Array = NDArray[np.float64]
Rival = Generator[int, float, None]  # yields the number of a configuration, is sent its loss
optuna.logging.set_verbosity(optuna.logging.ERROR)


def tpe(points: Array, seed: int) -> Rival:
    """Optuna's TPE."""
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    free = np.ones(len(points), dtype=bool)
    while free.any():
        trial = study.ask()
        point = np.array([trial.suggest_float(f"u{i}", 0.0, 1.0) for i in range(points.shape[1])])
        row = int(np.where(free, np.square(points - point).sum(axis=1), np.inf).argmin())
        free[row] = False
        study.tell(trial, (yield row))


def smac(points: Array, seed: int) -> Rival:
    """SMAC's rule."""
    rng = np.random.default_rng(seed)
    free, tried, seen = np.ones(len(points), dtype=bool), list[int](), list[float]()
    while free.any():
        rows, step = np.flatnonzero(free), len(seen)
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
        seen.append((yield row))


def losses(rival: Rival, train: Callable[[int], float], count: int) -> list[float]:
    """Return the losses of `count` configurations, in the order of their trainings."""
    seen = [train(next(rival))]
    while len(seen) < count:
        seen.append(train(rival.send(seen[-1])))
    return seen


RIVALS = {"TPE": tpe, "SMAC": smac}
