"""LeNet on handwritten digits, trained by minibatch SGD in units of so many images: the training of section 2.3.

Two convolutions with k1 <= k2 kernels of 3 x 3, each with tanh and halved by a maximum, then 64 hidden units.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from haltune.callbacks.loop import TrainingLoop
from haltune.study import Trial

_SPLIT = 0  # seed


@dataclass(frozen=True, eq=False)
class Digits:
    """Images (n, 1, side, side) on [0, 1] with labels (n,), split three ways, and what a unit of training is."""

    images: Tensor
    labels: Tensor
    train: int  # the first so many train
    held_out: int  # the next so many validate, the rest tests
    unit: int  # images

    @property
    def side(self) -> int:
        """Pixels."""
        return self.images.shape[-1]

    def wrong(self, net: nn.Module, first: int, last: int | None) -> float:
        """The share of wrong labels from image `first` to `last`."""
        with torch.no_grad():
            guessed = net(self.images[first:last]).argmax(1)
        return float((guessed != self.labels[first:last]).double().mean())


def small() -> Digits:
    """scikit-learn's 1,797 digits of 8 x 8: 1,000 to train, 400 to validate."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    return _shuffled(images.reshape(-1, 8, 8) / 16.0, labels, 1_000, 400, unit=100)


def mnist(folder: Path) -> Digits:
    """mnist_10k.npz of `folder` at 14 x 14: 7,000 to train, 1,500 to validate."""
    with np.load(folder / "mnist_10k.npz", allow_pickle=False) as file:
        images, labels = file["images"] / 255.0, file["labels"].astype(np.int64)
    halved = images.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4))
    return _shuffled(halved, labels, 7_000, 1_500, unit=1_000)


def _shuffled(images: np.ndarray, labels: np.ndarray, train: int, held_out: int, unit: int) -> Digits:
    order = np.random.default_rng(_SPLIT).permutation(len(labels))
    x = torch.as_tensor(images[order], dtype=torch.float32)[:, None]
    return Digits(x, torch.as_tensor(labels[order]), train, held_out, unit)


def lenet(k1: int, k2: int, side: int) -> nn.Module:
    """The network."""
    last = k2 * (side // 4) ** 2
    return nn.Sequential(
        nn.Conv2d(1, k1, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Conv2d(k1, k2, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(last, 64), nn.Tanh(), nn.Linear(64, 10),
    )  # fmt: skip


def train(trial: Trial, digits: Digits, seed: int, every: int = 0) -> Iterator[tuple[int, float, nn.Module]]:
    """Yield units, validation error and network when the trial is judged: after the units of its rung.

    With `every`, also after each so many units. Continues from the trial's checkpoint.
    """
    torch.manual_seed(seed)
    net = lenet(trial.config["k1"], trial.config["k2"], digits.side)
    if trial.checkpoint:
        net.load_state_dict(torch.load(trial.checkpoint, weights_only=True))
    sgd = torch.optim.SGD(net.parameters(), trial.config["learning_rate"])  # has no state to save
    size = trial.config["batch_size"]
    loop = TrainingLoop(trial, save=lambda path: torch.save(net.state_dict(), path))
    for unit in loop:  # which also restores the random state that draws the batches
        for _ in range(unit * digits.unit // size - (unit - 1) * digits.unit // size):
            batch = torch.randint(digits.train, (size,))
            sgd.zero_grad()
            functional.cross_entropy(net(digits.images[batch]), digits.labels[batch]).backward()
            sgd.step()
        if unit < trial.pause_at and not (every and unit % every == 0):
            continue
        with loop.validation():
            error = digits.wrong(net, digits.train, digits.train + digits.held_out)
        yield unit, error, net
        loop.report(error)
