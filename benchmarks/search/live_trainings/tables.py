"""Families on tables: a linear or random-feature softmax, and MLPs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.random import Generator
from recorded import found
from torch import Tensor
from torch.nn import functional

from .draws import Draws
from .instances import ACTIVATIONS, Columns, Config, Instance, Knob, Pick, activated, active, averaged

CLASSES = ("spambase", "digits", "breast_cancer", "wine", "mnist")


@lru_cache(maxsize=8)
def table(name: str, folder: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Features (n, d) and labels (n,) of a table."""
    if name == "spambase":
        rows = np.genfromtxt(found(folder, "spambase.csv"), delimiter=",", skip_header=1)
        return rows[:, :-1], rows[:, -1].astype(np.int64)
    if name == "mnist":
        images, labels = mnist(folder)
        return images.reshape(-1, 7, 4, 7, 4).mean(axis=(2, 4)).reshape(len(images), -1), labels
    import sklearn.datasets

    features, labels = getattr(sklearn.datasets, f"load_{name}")(return_X_y=True)
    return features.astype(np.float64), labels


@lru_cache(maxsize=1)
def mnist(folder: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 28, 28) in [0, 1] and labels (n,)."""
    with np.load(found(folder, "mnist_10k.npz"), allow_pickle=False) as file:
        return file["images"] / 255.0, file["labels"].astype(np.int64)


class Classified(Instance):
    """A table with classes: a part of its rows and columns, with wrong labels among the training rows."""

    def prepare(self, rng: Generator) -> None:
        x, y = table(str(rng.choice(CLASSES)), self.data)
        self.accuracy = bool(rng.random() < 0.5)
        rows = rng.permutation(len(x))
        columns = rng.permutation(x.shape[1])[: max(4, round(x.shape[1] * rng.uniform(0.3, 1.0)))]
        train = min(int(math.exp(rng.uniform(math.log(60), math.log(2000)))), 2 * len(x) // 3)
        x, y = x[rows][:, columns], y[rows]
        if rng.random() < 0.3:  # one class against the others
            y = (y == rng.choice(np.unique(y))).astype(np.int64)
        self.classes = int(y.max()) + 1
        if rng.random() < 0.8:
            x = (x - x[:train].mean(0)) / (x[:train].std(0) + 1e-3 * x[:train].std() + 1e-9)
        else:  # columns keep their scales: the problem is badly conditioned
            x = x / (x[:train].std() + 1e-9)
        x = np.clip(x, -8.0, 8.0)
        wrong = (rng.random(train) < rng.choice([0.0, 0.05, 0.2])).nonzero()[0]
        y[wrong] = rng.integers(0, self.classes, len(wrong))
        held = slice(train, train + 400)
        self.x, self.y = self.tensor(x[:train]), torch.as_tensor(y[:train], device=self.device)
        self.x_held, self.y_held = self.tensor(x[held]), torch.as_tensor(y[held], device=self.device)
        self.worst = 1.0 if self.accuracy else 5.0 * math.log(self.classes)

    def tensor(self, x: np.ndarray) -> Tensor:
        return torch.as_tensor(x, dtype=torch.float32, device=self.device)

    def batch(self, h: Columns, draws: Draws) -> tuple[Tensor, Tensor]:
        """Inputs (slots, batch, d), with the slots' own noise, and labels (slots, batch)."""
        rows = draws.rows(len(self.x), self.batches[1])
        x = self.x[rows]
        if "blur" in self.domains or self.fixed["blur"] > 0:
            x = x + h["blur"][:, None, None] * draws.normal(*x.shape[1:])
        return x, self.y[rows]

    def cross_entropy(self, logits: Tensor, labels: Tensor, h: Columns) -> Tensor:
        """(slots,) with the slots' own smoothing of labels."""
        logs = functional.log_softmax(logits, dim=-1)
        right = logs.gather(-1, labels[..., None])[..., 0]
        smooth = h["smoothing"][:, None]
        return averaged(-(1.0 - smooth) * right - smooth * logs.mean(-1), h["batch"])

    def judged(self, logits: Tensor) -> Tensor:
        """(slots, n) hits or losses."""
        labels = self.y_held.expand(len(logits), -1)
        if not self.accuracy:
            return -functional.log_softmax(logits, dim=-1).gather(-1, labels[..., None])[..., 0]
        hits = (logits.argmax(-1) == labels).float()
        return torch.where(logits.isfinite().all(-1), hits, torch.nan)


_NOISE = (
    Knob("blur", 0.0, 1.5, usual=(0.0, 0.0), chance=0.35),  # noise of the inputs
    Knob("smoothing", 0.0, 0.4, usual=(0.0, 0.0), chance=0.3),
)


class Softmax(Classified):
    """Linear in its inputs, or in random Fourier features of them (Rahimi and Recht 2007)."""

    family = "softmax"
    most_dim = 10

    def prepare(self, rng: Generator) -> None:
        super().prepare(rng)
        self.width = 0 if rng.random() < 0.4 else int(rng.choice([48, 96, 160]))
        inputs = self.x.shape[1]
        if self.width:
            scale = 0.5 / math.sqrt(inputs)
            self.waves = self.tensor(rng.standard_normal((inputs, self.width)) * scale)
            self.phases = self.tensor(rng.uniform(0.0, 2.0 * math.pi, self.width))

    def knobs(self) -> Sequence[Knob | Pick]:
        if not self.width:
            return _NOISE
        return (
            *_NOISE,
            Knob(
                "width", max(8, self.width // 12), self.width, "logint", usual=(self.width / 2, self.width), chance=0.6
            ),
            Knob("gamma", 0.1, 10.0, "log", usual=(0.5, 2.0), chance=0.8),
            Knob("dropout", 0.0, 0.7, usual=(0.0, 0.0), chance=0.3),
        )

    def weights(self, config: Config, rng: Generator) -> dict[str, np.ndarray]:
        shape = (self.width or self.x.shape[1], self.classes)
        scale = 0.3 * float(config.get("scale", 1.0)) / math.sqrt(shape[0])
        return {"w": scale * rng.standard_normal(shape), "b": np.zeros(self.classes)}

    def logits(self, p: dict[str, Tensor], h: Columns, x: Tensor, draws: Draws | None) -> Tensor:
        if self.width:
            x = torch.cos(h["gamma"][:, None, None] * (x @ self.waves) + self.phases)
            x = x * (active(h["width"], self.width) * torch.sqrt(2.0 / h["width"])[:, None])[:, None]
            if draws is not None and ("dropout" in self.domains):
                x = x * draws.kept(h["dropout"], *x.shape[1:])
        return torch.baddbmm(p["b"][:, None], x.expand(len(p["w"]), -1, -1), p["w"])

    def loss(self, p: dict[str, Tensor], h: Columns, draws: Draws) -> Tensor:
        x, y = self.batch(h, draws)
        return self.cross_entropy(self.logits(p, h, x, draws), y, h)

    def items(self, p: dict[str, Tensor], h: Columns) -> Tensor:
        return self.judged(self.logits(p, h, self.x_held, None))

    def operations(self, config: Config) -> float:
        inputs, width = self.x.shape[1], float(config.get("width", 0))
        return width * (inputs + self.classes) if width else inputs * self.classes


class MLP(Classified):
    """One to three hidden layers."""

    family = "mlp"

    def prepare(self, rng: Generator) -> None:
        super().prepare(rng)
        self.width, self.depth = int(rng.choice([24, 48, 64])), int(rng.integers(1, 4))

    def knobs(self) -> Sequence[Knob | Pick]:
        depth = [Knob("depth", 1, self.depth, "int", usual=(self.depth, self.depth), chance=0.3)]
        return (
            *_NOISE,
            *(depth if self.depth > 1 else ()),
            Knob(
                "width", max(4, self.width // 10), self.width, "logint", usual=(self.width / 3, self.width), chance=0.5
            ),
            Knob("dropout", 0.0, 0.7, usual=(0.0, 0.2), chance=0.5),
            Pick("activation", tuple(ACTIVATIONS), chance=0.3),
        )

    def weights(self, config: Config, rng: Generator) -> dict[str, np.ndarray]:
        scale, width = float(config.get("scale", 1.0)), int(config.get("width", self.width))
        found, inputs, real = {}, self.x.shape[1], self.x.shape[1]
        for n in range(self.depth):
            found[f"w{n}"] = scale * math.sqrt(2.0 / real) * rng.standard_normal((inputs, self.width))
            found[f"b{n}"] = np.zeros(self.width)
            inputs, real = self.width, width
        found["w"] = scale * math.sqrt(0.5 / real) * rng.standard_normal((self.width, self.classes))
        return {**found, "b": np.zeros(self.classes)}

    def logits(self, p: dict[str, Tensor], h: Columns, x: Tensor, draws: Draws | None) -> Tensor:
        slots, mask = len(p["w"]), active(h["width"], self.width)[:, None]
        x = x.expand(slots, -1, -1)
        for n in range(self.depth):
            y = torch.baddbmm(p[f"b{n}"][:, None], x, p[f"w{n}"])
            y = activated(y, h["activation"], self.offered("activation")) * mask
            if draws is not None and ("dropout" in self.domains or self.fixed["dropout"] > 0):
                y = y * draws.kept(h["dropout"], *y.shape[1:])
            x = y if n == 0 else torch.where((h["depth"] > n)[:, None, None], y, x)
        return torch.baddbmm(p["b"][:, None], x, p["w"])

    def loss(self, p: dict[str, Tensor], h: Columns, draws: Draws) -> Tensor:
        x, y = self.batch(h, draws)
        return self.cross_entropy(self.logits(p, h, x, draws), y, h)

    def items(self, p: dict[str, Tensor], h: Columns) -> Tensor:
        return self.judged(self.logits(p, h, self.x_held, None))

    def operations(self, config: Config) -> float:
        width, depth = float(config["width"]), float(config.get("depth", 1))
        return self.x.shape[1] * width + (depth - 1) * width**2 + width * self.classes
