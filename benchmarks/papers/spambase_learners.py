"""k-nearest neighbours, decision trees and random forests on Spambase: a table of real trainings of each.

The hyperparameters of section 6.2 of Lee et al. (2021), on a full grid: real numbers on a logarithmic scale, depths and
trees evenly spaced, neighbours evenly in their logarithm. 3,200 mails train, 1,401 validate, standardised by the
training mails. Seconds are of one CPU, for training and validation together. A forest of n trees is the first n of the
largest, which grows, and votes, in stages. What is the same training under two names (l2 and euclidean, two shares with
the same number of dimensions, depths that no tree reaches) is trained once.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from kernel_least_squares import Array, load, preprocessor
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import KNeighborsClassifier
from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection
from sklearn.tree import DecisionTreeClassifier

from haltune import Choice, Space

Config = dict[str, Any]
Measured = Iterator[tuple[Config, float, float]]  # configuration, error, seconds
DISTANCES = ["minkowski", "cityblock", "cosine", "euclidean", "l1", "l2", "manhattan"]
SAME = {"minkowski": "euclidean", "l2": "euclidean", "cityblock": "manhattan", "l1": "manhattan"}
DEPTH, TREES = 9, 11  # the fewest whose best error is within a standard error of the least of all


@dataclass(frozen=True, eq=False)
class Mails:
    """A split of spambase.csv, standardised."""

    train: Array  # (3200, 57)
    labels: Array
    held_out: Array  # (1401, 57)
    held_out_labels: Array

    @classmethod
    def read(cls, folder: Path) -> "Mails":
        """The split of the other benchmarks, test mails among those that validate."""
        mails = load(folder)
        scale = preprocessor("standardize", mails.train)
        held_out = np.vstack([mails.validation, mails.test])
        labels = np.concatenate([mails.validation_labels, mails.test_labels])
        return cls(scale(mails.train), mails.labels, scale(held_out), labels)

    def error(self, votes: Array) -> float:
        """The share of wrong labels."""
        return float((votes != self.held_out_labels).mean())


@dataclass(frozen=True, eq=False)
class Learner:
    """A grid, and how all of it is trained. Levels are ordered, but for those in `kinds`."""

    levels: Mapping[str, list[Any]]
    trained: Callable[["Learner", Mails], Measured]
    kinds: tuple[str, ...] = ()

    @property
    def space(self) -> Space:
        """Return the search space, with ordered levels at equal distances."""
        return Space({n: Choice(v, ordered=n not in self.kinds) for n, v in self.levels.items()})

    def configs(self) -> Iterator[Config]:
        """The grid, the last parameter fastest."""
        return (dict(zip(self.levels, values, strict=True)) for values in product(*self.levels.values()))

    def key(self, config: Mapping[str, Any]) -> tuple[Any, ...]:
        """A configuration as what it holds, in the order of the grid."""
        return tuple(config[name] for name in self.levels)


def neighbours(learner: Learner, mails: Mails) -> Measured:
    """Random projections, which the share of 57 dimensions and the seed 0 settle, then k-NN."""
    measured: dict[tuple[Any, ...], tuple[float, float]] = {}
    for config in learner.configs():
        dimensions, metric = max(1, math.ceil(57 * config["share"] - 1e-9)), config["distance"]
        one = (dimensions, *list(learner.key(config))[1:-1], SAME.get(metric, metric))
        if one not in measured:
            begin = time.process_time()
            kind = GaussianRandomProjection if config["projection"] == "gaussian" else SparseRandomProjection
            projection = kind(dimensions, random_state=0).fit(mails.train)
            model = KNeighborsClassifier(config["neighbours"], weights=config["weights"], metric=metric)
            model.fit(projection.transform(mails.train), mails.labels)
            error = mails.error(model.predict(projection.transform(mails.held_out)))
            measured[one] = error, time.process_time() - begin
        yield config, *measured[one]


def trees(learner: Learner, mails: Mails) -> Measured:
    """The median time of three trainings, which take a few milliseconds."""
    for split, features in product(learner.levels["split"], learner.levels["features"]):
        shallow, error, seconds = True, 1.0, [0.0]
        for depth in learner.levels["depth"]:
            if shallow:
                seconds = []
                for _ in range(3):
                    begin = time.process_time()
                    model = DecisionTreeClassifier(
                        max_depth=depth, min_samples_split=split, max_features=features, random_state=0
                    )
                    error = mails.error(model.fit(mails.train, mails.labels).predict(mails.held_out))
                    seconds.append(time.process_time() - begin)
                shallow = model.get_depth() == depth  # a deeper one may differ
            yield {"depth": depth, "split": split, "features": features}, error, sorted(seconds)[1]


def forests(learner: Learner, mails: Mails) -> Measured:
    """All sizes of a depth and a split in one training."""
    for split in learner.levels["split"]:
        shallow, sizes = True, list[tuple[int, float, float]]()
        for depth in learner.levels["depth"]:
            if shallow:
                forest = RandomForestClassifier(
                    warm_start=True, max_depth=depth, min_samples_split=split, random_state=0
                )
                sizes = list(_growing(forest, learner.levels["trees"], mails))
                shallow = max(tree.get_depth() for tree in forest.estimators_) == depth  # deeper ones may differ
            for count, error, seconds in sizes:
                yield {"trees": count, "depth": depth, "split": split}, error, seconds


def _growing(forest: RandomForestClassifier, sizes: list[int], mails: Mails) -> Iterator[tuple[int, float, float]]:
    """Yield trees, error and seconds so far."""
    seconds, votes, voted = 0.0, np.zeros(len(mails.held_out)), 0
    for count in sizes:
        begin = time.process_time()
        forest.set_params(n_estimators=count).fit(mails.train, mails.labels)
        for tree in forest.estimators_[voted:]:
            votes += tree.predict_proba(mails.held_out)[:, 1]
        voted, error = count, mails.error(np.where(votes > 0.5 * count, 1.0, -1.0))
        seconds += time.process_time() - begin
        yield count, error, seconds


def counts(most: int, levels: int) -> list[int]:
    """From 1 on, evenly spaced."""
    return sorted({round(n) for n in np.linspace(1, most, levels)})


def scale(low: float, high: float, levels: int) -> list[float]:
    """Evenly spaced in the logarithm."""
    return [float(f"{v:.4g}") for v in np.geomspace(low, high, levels)]


def tree_of(deepest: int) -> Learner:
    """Decision trees down to a depth."""
    levels: dict[str, list[Any]] = {
        "depth": counts(deepest, 22),
        "split": scale(0.1, 1.0, 10),
        "features": scale(1e-3, 0.5, 12),
    }
    return Learner(levels, trees)


def forest_of(largest: int) -> Learner:
    """Random forests up to a number of trees."""
    levels: dict[str, list[Any]] = {"trees": counts(largest, 22), "depth": counts(64, 10), "split": scale(0.1, 1.0, 10)}
    return Learner(levels, forests)


NEIGHBOURS = Learner(
    {
        "share": scale(1e-6, 1.0, 13),
        "projection": ["gaussian", "sparse"],
        "neighbours": sorted({round(n) for n in np.geomspace(1, 256, 12)}),
        "weights": ["uniform", "distance"],
        "distance": DISTANCES,
    },
    neighbours,
    ("projection", "weights", "distance"),
)
LEARNERS = {"k-NN": NEIGHBOURS, "tree": tree_of(64), "forest": forest_of(256)}
SENSITIVITY = {f"depth in [1, {m}d]".replace("1d]", "d]"): tree_of(m * DEPTH) for m in (1, 2, 10)} | {
    f"trees in [1, {m}n]".replace("1n]", "n]"): forest_of(m * TREES) for m in (1, 2, 10)
}
