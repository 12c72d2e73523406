"""Families on images of digits: convolutional networks and autoencoders."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor
from torch.nn import functional

from .draws import Draws
from .instances import ACTIVATIONS, Columns, Config, Instance, Knob, Pick, activated, active, averaged
from .tables import Classified, mnist, table


def pictures(name: str, folder: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Square images (n, size, size) in [0, 1] and labels (n,): 8 or 14 pixels wide."""
    if name == "digits":
        x, y = table("digits", folder)
        return x.reshape(-1, 8, 8) / 16.0, y
    x, y = mnist(folder)
    return x.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)), y


def windows(size: int) -> tuple[np.ndarray, int]:
    """Of a convolution of 3 x 3 with stride 2: (positions, 9) places in the image, size * size where it is outside."""
    out = (size + 1) // 2
    rows = 2 * np.arange(out)[:, None] + np.arange(3) - 1  # (out, 3)
    inside = (rows >= 0) & (rows < size)
    places = rows[:, None, :, None] * size + rows[None, :, None, :]
    places = np.where(inside[:, None, :, None] & inside[None, :, None, :], places, size * size)
    return places.reshape(out * out, 9), out


class CNN(Classified):
    """Two convolutions with stride 2 and a linear layer; images may be shifted by a pixel while it trains."""

    family = "cnn"
    batches = (4, 24)
    length = (120, 500)

    def prepare(self, rng: Generator) -> None:
        x, y = pictures(str(rng.choice(["digits", "mnist"])), self.data)
        self.accuracy = bool(rng.random() < 0.5)
        names = rng.permutation(10)[: int(rng.integers(3, 11))]
        rows = rng.permutation(np.flatnonzero(np.isin(y, names)))
        train = min(int(math.exp(rng.uniform(math.log(80), math.log(1200)))), 2 * len(rows) // 3)
        rows = rows[: train + 300]
        x, y = (
            x[rows] + rng.choice([0.0, 0.2, 0.4]) * rng.standard_normal(x[rows].shape),
            np.searchsorted(np.sort(names), y[rows]),
        )
        self.classes = len(names)
        wrong = (rng.random(train) < rng.choice([0.0, 0.1, 0.3])).nonzero()[0]
        y[wrong] = rng.integers(0, self.classes, len(wrong))
        x = (x - x[:train].mean()) / x[:train].std()
        size = x.shape[1]
        places, middle = windows(size)
        inner, out = windows(middle)
        self.inner = torch.as_tensor(inner.ravel(), device=self.device)
        self.spots = (middle * middle, out * out)
        shifts = [(0, 0), *((i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0))]
        shifted = [np.roll(x[:train], shift, axis=(1, 2)) for shift in shifts]
        self.x = torch.stack([self.cut(images, places) for images in shifted], 1)  # (n, shifts, positions, 9)
        self.x_held = self.cut(x[train:], places)
        self.y, self.y_held = (torch.as_tensor(part, device=self.device) for part in (y[:train], y[train:]))
        self.channels = int(rng.choice([6, 8, 12]))
        self.worst = 1.0 if self.accuracy else 5.0 * math.log(self.classes)

    def cut(self, images: np.ndarray, places: np.ndarray) -> Tensor:
        flat = np.pad(images.reshape(len(images), -1), ((0, 0), (0, 1)))
        return self.tensor(flat[:, places])

    def knobs(self) -> Sequence[Knob | Pick]:
        most = self.channels
        return (
            Knob("channels", max(2, most // 5), most, "logint", usual=(most / 2, most), chance=0.5),
            Knob("dropout", 0.0, 0.7, usual=(0.0, 0.3), chance=0.4),
            Knob("shift", 0.0, 1.0, usual=(0.0, 0.5), chance=0.35),
            Knob("blur", 0.0, 1.5, usual=(0.0, 0.0), chance=0.3),
            Knob("smoothing", 0.0, 0.4, usual=(0.0, 0.0), chance=0.3),
            Pick("activation", tuple(ACTIVATIONS)[:3], chance=0.3),
        )

    def weights(self, config: Config, rng: Generator) -> dict[str, np.ndarray]:
        most, c, scale = self.channels, float(config["channels"]), float(config["scale"])
        flat = self.spots[1] * 2
        return {
            "w1": scale * math.sqrt(2.0 / 9.0) * rng.standard_normal((9, most)),
            "b1": np.zeros(most),
            "w2": scale * math.sqrt(2.0 / (9.0 * c)) * rng.standard_normal((9 * most, 2 * most)),
            "b2": np.zeros(2 * most),
            "w": scale * math.sqrt(0.5 / (flat * c)) * rng.standard_normal((flat * most, self.classes)),
            "b": np.zeros(self.classes),
        }

    def logits(self, p: dict[str, Tensor], h: Columns, x: Tensor, draws: Draws | None) -> Tensor:
        """x: (slots, batch, positions, 9)."""
        slots, batch, most, offered = len(p["w"]), x.shape[1], self.channels, self.offered("activation")
        mask = active(h["channels"], most)[:, None]
        y = torch.baddbmm(p["b1"][:, None], x.reshape(slots, -1, 9), p["w1"])
        y = (activated(y, h["activation"], offered) * mask).reshape(slots, batch, -1, most)
        y = functional.pad(y, (0, 0, 0, 1)).index_select(2, self.inner).reshape(slots, -1, 9 * most)
        y = torch.baddbmm(p["b2"][:, None], y, p["w2"])
        wide = active(2.0 * h["channels"], 2 * most)[:, None]
        y = (activated(y, h["activation"], offered) * wide).reshape(slots, batch, -1)
        if draws is not None and ("dropout" in self.domains or self.fixed["dropout"] > 0):
            y = y * draws.kept(h["dropout"], *y.shape[1:])
        return torch.baddbmm(p["b"][:, None], y, p["w"])

    def loss(self, p: dict[str, Tensor], h: Columns, draws: Draws) -> Tensor:
        rows = draws.rows(len(self.x), self.batches[1])
        moved = draws.uniform(self.batches[1]) < h["shift"][:, None]
        x = self.x[rows, torch.where(moved, 1 + draws.rows(8, self.batches[1]), 0)]
        if "blur" in self.domains:
            x = x + h["blur"][:, None, None, None] * draws.normal(*x.shape[1:])
        return self.cross_entropy(self.logits(p, h, x, draws), self.y[rows], h)

    def items(self, p: dict[str, Tensor], h: Columns) -> Tensor:
        return self.judged(self.logits(p, h, self.x_held.expand(len(p["w"]), -1, -1, -1), None))

    def operations(self, config: Config) -> float:
        c, (first, second) = float(config["channels"]), self.spots
        return 9 * c * first + 18 * c**2 * second + 2 * c * second * self.classes


class Autoencoder(Instance):
    """Images through a narrow code, from noisy inputs; the loss is the squared error over the variance."""

    family = "autoencoder"
    most_dim = 12
    rates = {"sgd": (1e-2, 30.0), "nesterov": (1e-2, 30.0), "adam": (1e-4, 0.1), "rmsprop": (1e-4, 0.1)}  # noqa: RUF012

    def prepare(self, rng: Generator) -> None:
        x, y = pictures(str(rng.choice(["digits", "mnist"])), self.data)
        if rng.random() < 0.5:
            x = x[np.isin(y, rng.permutation(10)[: int(rng.integers(1, 6))])]
        if x.shape[1] == 14:
            x = x.reshape(-1, 7, 2, 7, 2).mean(axis=(2, 4)) if rng.random() < 0.5 else x
        rows = rng.permutation(len(x))
        train = min(int(math.exp(rng.uniform(math.log(60), math.log(1200)))), 2 * len(x) // 3)
        x = x.reshape(len(x), -1)[rows][: train + 200]
        x = (x - x[:train].mean(0)) / x[:train].std()
        self.x, self.x_held = (
            torch.as_tensor(part, dtype=torch.float32, device=self.device) for part in (x[:train], x[train:])
        )
        self.spread = float(self.x_held.var())
        self.width, self.code = int(rng.choice([24, 40, 64])), int(rng.choice([4, 8, 16]))
        self.worst = 4.0

    def knobs(self) -> Sequence[Knob | Pick]:
        width, code = self.width, self.code
        return (
            Knob("width", max(4, width // 8), width, "logint", usual=(width / 3, width), chance=0.6),
            Knob("code", max(1, code // 4), code, "logint", usual=(code, code), chance=0.3),
            Knob("blur", 0.0, 2.0, usual=(0.0, 0.0), chance=0.4),
            Knob("dropout", 0.0, 0.5, usual=(0.0, 0.0), chance=0.3),
            Knob("sparsity", 1e-5, 0.3, "log", usual=(1e-5, 1e-5), chance=0.3),  # of the code
            Pick("activation", tuple(ACTIVATIONS), chance=0.3),
        )

    def weights(self, config: Config, rng: Generator) -> dict[str, np.ndarray]:
        inputs, scale, width, code = self.x.shape[1], config["scale"], config["width"], config["code"]
        shapes = {
            "1": (inputs, self.width, inputs),
            "2": (self.width, self.code, width),
            "3": (self.code, self.width, code),
        }
        shapes["4"] = (self.width, inputs, width)
        found = {}
        for name, (rows, columns, real) in shapes.items():
            found["w" + name] = scale / math.sqrt(real) * rng.standard_normal((rows, columns))
            found["b" + name] = np.zeros(columns)
        return found

    def codes(self, p: dict[str, Tensor], h: Columns, x: Tensor, draws: Draws | None) -> tuple[Tensor, Tensor]:
        """The codes and the images that come back."""
        offered, wide = self.offered("activation"), active(h["width"], self.width)[:, None]
        y = activated(torch.baddbmm(p["b1"][:, None], x, p["w1"]), h["activation"], offered) * wide
        if draws is not None and "dropout" in self.domains:
            y = y * draws.kept(h["dropout"], *y.shape[1:])
        z = torch.baddbmm(p["b2"][:, None], y, p["w2"]) * active(h["code"], self.code)[:, None]
        y = activated(torch.baddbmm(p["b3"][:, None], z, p["w3"]), h["activation"], offered) * wide
        return z, torch.baddbmm(p["b4"][:, None], y, p["w4"])

    def loss(self, p: dict[str, Tensor], h: Columns, draws: Draws) -> Tensor:
        clean = self.x[draws.rows(len(self.x), self.batches[1])]
        noisy = clean + h["blur"][:, None, None] * draws.normal(*clean.shape[1:]) if "blur" in self.domains else clean
        z, back = self.codes(p, h, noisy, draws)
        errors = ((back - clean) ** 2).mean(-1) / self.spread + h["sparsity"][:, None] * z.abs().mean(-1)
        return averaged(errors, h["batch"])

    def items(self, p: dict[str, Tensor], h: Columns) -> Tensor:
        x = self.x_held.expand(len(p["w1"]), -1, -1)
        return ((self.codes(p, h, x, None)[1] - x) ** 2).mean(-1) / self.spread

    def operations(self, config: Config) -> float:
        width = float(config["width"])
        return 2.0 * width * (self.x.shape[1] + float(config["code"]))
