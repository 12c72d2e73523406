"""Kernel regularised least squares on Spambase: the trainings of sections 3.2.2 and 3.3 of Hyperband.

f = argmin over the kernel's space of C / n sum_i (f(x_i) - y_i)^2 + |f|^2, y = -1 or 1: so f(x) = k(x, X) a with
(K + n / C I) a = y. C is divided by n, as in appendix A.4, so that its effect does not depend on n. Time grows
with n^2 at first, for the kernel matrix, then with n^3, for its factor.

By random features instead (section 3.3): f(x) = w.z(x) with D cosines z of the rbf kernel, w = argmin of sum_i (f(x_i)
- y_i)^2 + lambda |w|^2 on all mails. z.z is about k for every D, so the effect of lambda does not depend on D. Time
grows with D^2.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, LinAlgWarning, solve

from haltune import Choice, Float, Int, Space

Array = NDArray[np.float64]

TRAINING, VALIDATION = 3_200, 700  # the other 701 are for the test
_SPLIT = 0  # seed

SPACE = Space(  # table 4
    {
        "preprocessor": Choice(["min/max", "standardize", "normalize"]),
        "kernel": Choice(["rbf", "polynomial", "sigmoid"]),
        "C": Float(1e-3, 1e5, log=True),
        "gamma": Float(1e-5, 10.0, log=True),
        "degree": Int(2, 5, when={"kernel": "polynomial"}),
        "coef0": Float(-1.0, 1.0, when={"kernel": ["polynomial", "sigmoid"]}),
    }
)

FEATURES = 512
FEATURES_SPACE = Space(  # table 5
    {
        "preprocessor": Choice(["none", "min/max", "standardize", "normalize"]),
        "lambda": Float(1e-3, 1e5, log=True),
        "gamma": Float(1e-5, 10.0, log=True),
    }
)


@dataclass(frozen=True, eq=False)
class Mails:
    """A split of spambase.csv; labels are -1 and 1. The first n that train are a random subset of size n."""

    train: Array  # (3200, 57)
    labels: Array  # (3200,)
    validation: Array  # (700, 57)
    validation_labels: Array
    test: Array  # (701, 57)
    test_labels: Array
    seed: int = 0  # of the order, and of random features
    scaled: dict[str, tuple[Array, Array]] = field(default_factory=dict)  # training and held out, by preprocessor

    def in_order(self, seed: int) -> "Mails":
        """The same split, the training mails in an order of this seed."""
        order = np.random.default_rng(seed).permutation(TRAINING)
        return Mails(
            self.train[order], self.labels[order], self.validation, self.validation_labels, self.test,
            self.test_labels, seed,
        )  # fmt: skip


def load(folder: Path) -> Mails:
    """One split for all searches, as in the paper."""
    table = np.loadtxt(folder / "spambase.csv", delimiter=",", skiprows=1)
    table = table[np.random.default_rng(_SPLIT).permutation(len(table))]
    x, y = table[:, :-1], 2.0 * table[:, -1] - 1.0
    first, last = slice(TRAINING, TRAINING + VALIDATION), slice(TRAINING + VALIDATION, None)
    return Mails(x[:TRAINING], y[:TRAINING], x[first], y[first], x[last], y[last])


def errors(mails: Mails, config: Mapping[str, Any], n: int) -> tuple[float, float]:
    """Shares of wrong labels in validation and test, trained on n mails; NaN where no numbers came of it."""
    scale = preprocessor(config["preprocessor"], mails.train[:n])
    x = scale(mails.train[:n])
    held_out = scale(np.vstack([mails.validation, mails.test]))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", LinAlgWarning)  # where C and the kernel are vast: a bad configuration
        matrix = kernel(config, x, x)
        matrix.flat[:: n + 1] += n / config["C"]
        try:  # not by Cholesky: the sigmoid kernel is not positive definite
            weights = solve(matrix.T, mails.labels[:n], assume_a="sym", overwrite_a=True)
        except (LinAlgError, ValueError):  # singular, or not finite
            return float("nan"), float("nan")
        scores = kernel(config, held_out, x) @ weights
    return _wrong(mails, scores)


def errors_by_features(mails: Mails, config: Mapping[str, Any], count: int) -> tuple[float, float]:
    """The same of a ridge regression on the first `count` random features, trained on all mails."""
    rng = np.random.default_rng(mails.seed)
    along, shift = rng.normal(size=(FEATURES, mails.train.shape[1])), rng.uniform(0, 2 * np.pi, FEATURES)
    along = np.sqrt(2.0 * config["gamma"]) * along[:count]
    name = config["preprocessor"]
    if name not in mails.scaled:  # once: all mails train, whatever the features
        scale = preprocessor(name, mails.train)
        mails.scaled[name] = scale(mails.train), scale(np.vstack([mails.validation, mails.test]))
    train, held_out = mails.scaled[name]

    def features(x: Array) -> Array:
        angles = x @ along.T + shift[:count]
        return np.asarray(np.sqrt(2.0 / count) * np.cos(angles, out=angles))

    z = features(train)
    matrix = z.T @ z
    matrix.flat[:: count + 1] += config["lambda"]
    weights = solve(matrix, z.T @ mails.labels, assume_a="pos", overwrite_a=True)
    return _wrong(mails, features(held_out) @ weights)


def _wrong(mails: Mails, scores: Array) -> tuple[float, float]:
    """Shares of wrong labels in validation and test, by scores of both; NaN unless all are numbers."""
    if not np.isfinite(scores).all():
        return float("nan"), float("nan")
    right = np.concatenate([mails.validation_labels, mails.test_labels])
    wrong = np.where(scores >= 0.0, 1.0, -1.0) != right
    return float(wrong[:VALIDATION].mean()), float(wrong[VALIDATION:].mean())


def preprocessor(name: str, x: Array) -> Any:
    """Return the preprocessing of a configuration, fitted to the training mails; constant columns become 0."""
    if name == "none":
        return lambda z: z
    if name == "normalize":
        return lambda z: z / np.maximum(np.linalg.norm(z, axis=1, keepdims=True), 1e-300)
    if name == "min/max":
        low, width = x.min(axis=0), np.ptp(x, axis=0)
    else:
        low, width = x.mean(axis=0), x.std(axis=0)
    inverse = np.divide(1.0, width, out=np.zeros_like(width), where=width > 0)
    return lambda z: (z - low) * inverse


def kernel(config: Mapping[str, Any], x: Array, z: Array) -> Array:
    """k(x, z): exp(-gamma |x - z|^2), (gamma x.z + coef0)^degree, or tanh(gamma x.z + coef0)."""
    gamma, inner = config["gamma"], x @ z.T  # all in place: these matrices are what time goes to
    inner *= gamma
    if config["kernel"] == "rbf":
        inner *= 2.0
        inner -= gamma * (x**2).sum(axis=1)[:, None]
        inner -= gamma * (z**2).sum(axis=1)
        return np.exp(np.minimum(inner, 0.0, out=inner), out=inner)
    inner += config["coef0"]
    if config["kernel"] == "sigmoid":
        return np.tanh(inner, out=inner)
    power = inner.copy()
    for _ in range(config["degree"] - 1):  # many times faster than inner**degree
        power *= inner
    return power
