"""Logistic regression on MNIST-10k by minibatch gradient descent: the training behind figure 1 of BO-BOS.

Softmax regression from zero weights, loss = mean cross-entropy + l2 / 2 |W|^2, 8,000 digits to train and 2,000
to validate. A configuration's curve is deterministic, so the epochs already trained are remembered in a folder.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

TRAINING = 8_000
_ORDER = 0  # seed of every shuffle

Array = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Digits:
    """Pixels on [0, 1], those that are never lit in training left out: their weights stay zero anyway."""

    images: Array  # (8000, pixels)
    targets: Array  # (8000, 10), one-hot
    held_out: Array  # (2000, pixels)
    labels: NDArray[np.uint8]  # (2000,)


def load(folder: Path) -> Digits:
    """Return the split of mnist_10k.npz in `folder`, shuffled once, because the file is ordered by writer."""
    with np.load(folder / "mnist_10k.npz") as file:
        order = np.random.default_rng(_ORDER).permutation(len(file["labels"]))
        images = file["images"].reshape(len(order), -1)[order].astype(np.float32) / np.float32(255)
        labels = file["labels"][order]
    train, rest = images[:TRAINING], images[TRAINING:]
    lit = train.max(axis=0) > 0
    targets = np.eye(10, dtype=np.float32)[labels[:TRAINING]]
    return Digits(train[:, lit].copy(), targets, rest[:, lit].copy(), labels[TRAINING:])


def train(digits: Digits, batch_size: int, l2: float, learning_rate: float) -> Iterator[float]:
    """Validation errors after epochs 1, 2, ...; batches are fixed slices, in a new order every epoch."""
    weights = np.zeros((digits.images.shape[1], 10), dtype=np.float32)
    bias = np.zeros(10, dtype=np.float32)
    rate, decay = np.float32(learning_rate), np.float32(1.0 - learning_rate * l2)
    starts = np.arange(0, len(digits.images), batch_size)
    epoch = 0
    while True:
        for start in np.random.default_rng([_ORDER, epoch]).permutation(starts):
            images = digits.images[start : start + batch_size]
            slope = _softmax(images @ weights + bias) - digits.targets[start : start + batch_size]
            slope *= rate / np.float32(len(images))
            weights *= decay
            weights -= images.T @ slope
            bias -= slope.sum(axis=0)
        epoch += 1
        yield float(np.mean((digits.held_out @ weights + bias).argmax(axis=1) != digits.labels))


def remembered(digits: Digits, config: Mapping[str, Any], folder: Path) -> Iterator[float]:
    """The errors of `train`, from `folder` as far as they were trained before. Close it to save the others."""
    name = hashlib.sha256(json.dumps(dict(config), sort_keys=True).encode()).hexdigest()[:24]
    path = folder / f"{name}.npy"
    known = np.load(path).tolist() if path.exists() else []
    yield from known
    errors = list(known)
    try:
        for error in islice(train(digits, **config), len(known), None):
            errors.append(error)
            yield error
    finally:
        if len(errors) > len(known):
            _save(path, errors)


def _softmax(logits: Array) -> Array:
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    return logits


def _save(path: Path, errors: list[float]) -> None:
    """All at once: another process may read or write the same curve."""
    handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".npy")
    with os.fdopen(handle, "wb") as file:
        np.save(file, np.array(errors))
    os.replace(draft, path)
