"""Families whose network gives a number: rankings and regressions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor
from torch.nn import functional

from .draws import Draws
from .images import pictures
from .instances import ACTIVATIONS, Columns, Config, Instance, Knob, Pick, activated, active, averaged
from .tables import CLASSES, table


class Scores(Instance):
    """One or two hidden layers to a number, behind `waves` random Fourier features if there are any."""

    waves = 0

    def network(self, rng: Generator, inputs: int) -> None:
        """Draw the architecture."""
        self.width, self.depth = int(rng.choice([16, 32, 48])), int(rng.integers(1, 3))
        self.inputs = 2 * self.waves if self.waves else inputs
        if self.waves:
            self.frequencies = self.tensor(rng.standard_normal((inputs, self.waves)))

    def tensor(self, x: np.ndarray) -> Tensor:
        return torch.as_tensor(np.ascontiguousarray(x), dtype=torch.float32, device=self.device)

    def knobs(self) -> Sequence[Knob | Pick]:
        width = self.width
        waves = [Knob("frequency", 0.1, 20.0, "log", usual=(1.0, 4.0), chance=0.9)] if self.waves else []
        return (
            *waves,
            Knob("width", max(3, width // 10), width, "logint", usual=(width / 2, width), chance=0.5),
            Knob("dropout", 0.0, 0.6, usual=(0.0, 0.0), chance=0.35),
            Knob("blur", 0.0, 1.0, usual=(0.0, 0.0), chance=0.3),
            Pick("activation", tuple(ACTIVATIONS), chance=0.35),
        )

    def weights(self, config: Config, rng: Generator) -> dict[str, np.ndarray]:
        scale, found, inputs, real = config["scale"], {}, self.inputs, float(self.inputs)
        for n in range(self.depth):
            found[f"w{n}"] = scale * math.sqrt(2.0 / real) * rng.standard_normal((inputs, self.width))
            found[f"b{n}"] = 0.1 * rng.standard_normal(self.width)
            inputs, real = self.width, config["width"]
        found["w"] = 0.7 * scale / math.sqrt(real) * rng.standard_normal((self.width, 1))
        return {**found, "b": np.zeros(1)}

    def numbers(self, p: dict[str, Tensor], h: Columns, x: Tensor, draws: Draws | None) -> Tensor:
        """(slots, n) of inputs (slots, n, d)."""
        if draws is not None and "blur" in self.domains:
            x = x + h["blur"][:, None, None] * draws.normal(*x.shape[1:])
        x = x.expand(len(p["w"]), -1, -1)
        if self.waves:
            angles = h["frequency"][:, None, None] * (x @ self.frequencies)
            x = torch.cat([torch.cos(angles), torch.sin(angles)], -1)
        mask = active(h["width"], self.width)[:, None]
        for n in range(self.depth):
            x = torch.baddbmm(p[f"b{n}"][:, None], x, p[f"w{n}"])
            x = activated(x, h["activation"], self.offered("activation")) * mask
            if draws is not None and "dropout" in self.domains:
                x = x * draws.kept(h["dropout"], *x.shape[1:])
        return torch.baddbmm(p["b"][:, None], x, p["w"])[..., 0]

    def operations(self, config: Config) -> float:
        width = float(config["width"])
        return self.inputs * width + (self.depth - 1) * width**2 + width


LOSSES = ("logistic", "hinge", "softmax", "squares")


class Ranking(Scores):
    """Rows of a class before the others, learnt from pairs; the share of held pairs in the right order counts."""

    family = "ranking"
    accuracy = True

    def prepare(self, rng: Generator) -> None:
        x, y = table(str(rng.choice(CLASSES)), self.data)
        rows = rng.permutation(len(x))
        x, y = x[rows], y[rows]
        kinds = np.unique(y)
        chosen = rng.permutation(kinds)[: max(1, int(rng.integers(1, max(2, len(kinds) // 2 + 1))))]
        y = np.isin(y, chosen)
        columns = rng.permutation(x.shape[1])[: max(4, round(x.shape[1] * rng.uniform(0.15, 0.9)))]
        train = min(int(math.exp(rng.uniform(math.log(50), math.log(1500)))), 2 * len(x) // 3)
        x = x[:, columns]
        x = np.clip((x - x[:train].mean(0)) / (x[:train].std(0) + 1e-6), -6.0, 6.0)
        self.noise = float(rng.choice([0.0, 0.1, 0.25]))
        for flip in (rng.random(train) < self.noise).nonzero()[0]:
            y[flip] = rng.random() < 0.5
        for forced, place in enumerate(rng.permutation(train)[:2]):
            y[place] = bool(forced)  # both kinds occur
        self.high, self.low = self.tensor(x[:train][y[:train]]), self.tensor(x[:train][~y[:train]])
        held, sides = x[train : train + 500], y[train : train + 500]
        self.x_held = self.tensor(held)
        pairs = rng.choice(np.flatnonzero(sides), 1000), rng.choice(np.flatnonzero(~sides), 1000)
        self.above, self.below = (torch.as_tensor(side, device=self.device) for side in pairs)
        self.worst = 1.0
        self.network(rng, len(columns))

    def knobs(self) -> Sequence[Knob | Pick]:
        return (
            *super().knobs(),
            Pick("objective", LOSSES, chance=0.4),
            Knob("margin", 0.05, 5.0, "log", usual=(1.0, 1.0), chance=0.3),
            Knob("temper", 0.05, 10.0, "log", usual=(1.0, 1.0), chance=0.3),  # multiplies the numbers
        )

    def loss(self, p: dict[str, Tensor], h: Columns, draws: Draws) -> Tensor:
        count = self.batches[1]
        x = torch.cat([side[draws.rows(len(side), count)] for side in (self.high, self.low)], 1)
        high, low = (h["temper"][:, None] * self.numbers(p, h, x, draws)).chunk(2, 1)
        apart, margin = high - low, h["margin"][:, None]
        inside = torch.where(active(h["batch"], count) > 0, 0.0, -math.inf)
        crowd = torch.logsumexp(low + inside, 1, keepdim=True) - torch.log(h["batch"])[:, None]
        kinds = {
            "logistic": lambda: functional.softplus(margin - apart),
            "hinge": lambda: torch.relu(margin - apart),
            "softmax": lambda: functional.softplus(margin + crowd - high),
            "squares": lambda: (apart - margin) ** 2,
        }
        offered = self.offered("objective")
        found = kinds[offered[0]]()
        for name in offered[1:]:
            found = torch.where((h["objective"] == LOSSES.index(name))[:, None], kinds[name](), found)
        return averaged(found, h["batch"])

    def items(self, p: dict[str, Tensor], h: Columns) -> Tensor:
        numbers = self.numbers(p, h, self.x_held[None], None)
        apart = numbers[:, self.above] - numbers[:, self.below]
        return torch.where(apart.isfinite(), (apart > 0).float() + 0.5 * (apart == 0).float(), torch.nan)

    def operations(self, config: Config) -> float:
        return 2.0 * super().operations(config)


class Regression(Scores):
    """A number from a row: a table's, a known function's, or the brightness of an image at a place."""

    family = "regression"
    length = (150, 700)

    def prepare(self, rng: Generator) -> None:
        import sklearn.datasets

        source = str(rng.choice(["diabetes", "friedman1", "friedman2", "friedman3", "spambase", "image", "image"]))
        seed, noise = int(rng.integers(1 << 30)), float(rng.choice([0.0, 0.3]))
        if source == "diabetes":
            x, y = sklearn.datasets.load_diabetes(return_X_y=True)
        elif source == "spambase":
            x = np.log1p(table("spambase", self.data)[0])
            target = int(rng.choice([55, 56, 54, 20, 18, 4]))
            x, y = np.delete(x, target, axis=1), x[:, target]
        elif source == "image":  # some digits side by side
            images = pictures("mnist", self.data)[0]
            tile = np.block([[images[n] for n in row] for row in rng.integers(0, len(images), (2, 2))])
            places = np.argwhere(np.ones_like(tile)) / (len(tile) - 1) * 2.0 - 1.0
            x, y = places, tile.ravel() + noise * rng.standard_normal(tile.size) * tile.std()
            self.waves = int(rng.choice([0, 12, 24]))
        else:
            x, y = getattr(sklearn.datasets, f"make_{source}")(2000, noise=0.0, random_state=seed)
            y = y + noise * y.std() * rng.standard_normal(len(y))
        rows = rng.permutation(len(x))
        x, y = x[rows], y[rows]
        train = min(int(math.exp(rng.uniform(math.log(60), math.log(1500)))), 2 * len(x) // 3)
        x = np.clip((x - x[:train].mean(0)) / (x[:train].std(0) + 1e-6), -6.0, 6.0)
        y = (y - y[:train].mean()) / (y[:train].std() + 1e-9)
        self.x, self.y = self.tensor(x[:train]), self.tensor(y[:train])
        self.x_held, self.y_held = self.tensor(x[train : train + 400]), self.tensor(y[train : train + 400])
        self.spread, self.worst = float(self.y_held.var()), 5.0
        self.network(rng, x.shape[1])

    def knobs(self) -> Sequence[Knob | Pick]:
        return (*super().knobs(), Knob("delta", 0.03, 10.0, "log", usual=(10.0, 10.0), chance=0.3))  # then linear

    def loss(self, p: dict[str, Tensor], h: Columns, draws: Draws) -> Tensor:
        rows = draws.rows(len(self.x), self.batches[1])
        error, delta = self.numbers(p, h, self.x[rows], draws) - self.y[rows], h["delta"][:, None]
        return averaged(torch.where(error.abs() < delta, error**2, 2.0 * delta * error.abs() - delta**2), h["batch"])

    def items(self, p: dict[str, Tensor], h: Columns) -> Tensor:
        return (self.numbers(p, h, self.x_held[None], None) - self.y_held) ** 2 / self.spread
