"""Families on Python's own standard library: character models, and the counts of words in its modules as a matrix."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor
from torch.nn import functional

from .draws import Draws
from .instances import ACTIVATIONS, Columns, Config, Instance, Knob, Pick, activated, active, averaged
from .tables import table


@lru_cache(maxsize=1)
def modules() -> list[str]:
    """The sources of the standard library's modules, by name."""
    paths = sorted(Path(os.__file__).parent.glob("*.py"))
    texts = [path.read_text("utf-8", errors="ignore") for path in paths if not path.name.startswith("_")]
    return [text for text in texts if len(text) > 5000]


class Characters(Instance):
    """The next character from those before it, in windows of some modules' text; the loss is in nats."""

    batches = (3, 12)
    window = 24
    held = 40  # windows that are evaluated

    def prepare(self, rng: Generator) -> None:
        sources = modules()
        count = int(math.exp(rng.uniform(0.0, math.log(40))))
        text = "".join(sources[n] for n in rng.permutation(len(sources))[:count])
        if rng.random() < 0.4:
            text = re.sub(r"[^a-z ]+", " ", text.lower())  # words alone
        text = re.sub(r" {3,}", "  ", text)
        letters = [c for c, _ in Counter(text).most_common(int(rng.integers(24, 49)))]
        place = {c: n for n, c in enumerate(letters, 1)}
        numbers = np.array([place.get(c, 0) for c in text[:120_000]])
        self.letters = len(letters) + 1
        cut = min(int(math.exp(rng.uniform(math.log(3000), math.log(80_000)))), 4 * len(numbers) // 5)
        self.train = torch.as_tensor(numbers[:cut], device=self.device)
        held = numbers[cut : cut + 40_000]
        starts = rng.integers(0, len(held) - self.window - 1, self.held)
        self.span = torch.arange(self.window + 1, device=self.device)
        self.windows = torch.as_tensor(held[starts[:, None] + np.arange(self.window + 1)], device=self.device)
        self.worst = 4.0 * math.log(self.letters)
        self.shape(rng)

    def shape(self, rng: Generator) -> None:
        """Draw the architecture."""

    def logits(self, p: dict[str, Tensor], h: Columns, x: Tensor, draws: Draws | None) -> Tensor:
        """(slots, batch, window, letters) from characters (slots, batch, window)."""
        raise NotImplementedError

    def embedded(self, table: Tensor, x: Tensor) -> Tensor:
        """(slots, batch, window, d) the rows of each slot's table (slots, letters, d): by a product."""
        ones = functional.one_hot(x, self.letters).float().reshape(len(x), -1, self.letters)
        return torch.bmm(ones.expand(len(table), -1, -1), table).reshape(len(table), *x.shape[1:], -1)

    def losses(self, p: dict[str, Tensor], h: Columns, x: Tensor, draws: Draws | None) -> Tensor:
        """(slots, batch) of each window."""
        logs = functional.log_softmax(self.logits(p, h, x[..., :-1], draws), dim=-1)
        right = logs.gather(-1, x[..., 1:, None].expand(len(logs), -1, -1, -1))[..., 0]
        if draws is None:
            return -right.mean(-1)
        smooth = h["smoothing"][:, None]
        return -(1.0 - smooth) * right.mean(-1) - smooth * logs.mean((-1, -2))

    def loss(self, p: dict[str, Tensor], h: Columns, draws: Draws) -> Tensor:
        starts = draws.rows(len(self.train) - self.window - 1, self.batches[1])
        return averaged(self.losses(p, h, self.train[starts[..., None] + self.span], draws), h["batch"])

    def items(self, p: dict[str, Tensor], h: Columns) -> Tensor:
        return self.losses(p, h, self.windows[None], None)


class Transformer(Characters):
    """One or two layers with two heads, normalised before each part."""

    family = "transformer"
    length = (80, 300)
    batches = (3, 8)
    window = 16
    rates = {"sgd": (1e-2, 30.0), "nesterov": (1e-2, 30.0), "adam": (1e-4, 0.1), "rmsprop": (1e-4, 0.1)}  # noqa: RUF012

    def shape(self, rng: Generator) -> None:
        self.width, self.layers, self.inner = int(rng.choice([16, 24, 32])), int(rng.integers(1, 3)), 40
        self.causal = torch.full((self.window, self.window), -math.inf, device=self.device).triu(1)

    def knobs(self) -> Sequence[Knob | Pick]:
        w = self.width
        return (
            Knob("width", 6, w, "logint", usual=(w * 0.6, w), chance=0.5),
            Knob("inner", 6, self.inner, "logint", usual=(20, 40), chance=0.4),
            Knob("dropout", 0.0, 0.6, usual=(0.0, 0.1), chance=0.5),
            Knob("smoothing", 0.0, 0.3, usual=(0.0, 0.0), chance=0.25),
            Knob("temper", 0.1, 10.0, "log", usual=(1.0, 1.0), chance=0.3),  # multiplies the logits
            Knob("residual", 0.05, 3.0, "log", usual=(1.0, 1.0), chance=0.3),  # multiplies what a layer adds
            Pick("activation", tuple(ACTIVATIONS)[:3], chance=0.25),
        )

    def weights(self, config: Config, rng: Generator) -> dict[str, np.ndarray]:
        w, real, inner, scale = self.width, config["width"], config["inner"], config["scale"]

        def normal(*shape: int, fan: float) -> np.ndarray:
            return scale / math.sqrt(fan) * rng.standard_normal(shape)

        found = {"e": 0.7 * normal(self.letters, w, fan=1.0), "at": 0.3 * normal(self.window, w, fan=1.0)}
        for n in range(self.layers):
            found[f"qkv{n}"] = normal(w, 3 * w, fan=real)
            found[f"o{n}"] = normal(w, w, fan=2 * real)
            found[f"in{n}"] = normal(w, self.inner, fan=real)
            found[f"out{n}"] = normal(self.inner, w, fan=2 * inner)
        return {**found, "w": 0.3 * normal(w, self.letters, fan=real), "b": np.zeros(self.letters)}

    def logits(self, p: dict[str, Tensor], h: Columns, x: Tensor, draws: Draws | None) -> Tensor:
        slots, w = len(p["w"]), self.width
        wide = active(h["width"], w)[:, None, None]
        count, residual = h["width"][:, None, None, None], h["residual"][:, None, None, None]
        deep = active(h["inner"], self.inner)[:, None]
        drops = draws is not None and ("dropout" in self.domains or self.fixed["dropout"] > 0)

        def normed(y: Tensor) -> Tensor:
            return (y * torch.rsqrt((y * y).sum(-1, keepdim=True) / count + 1e-5)).reshape(slots, -1, w)

        y = (self.embedded(p["e"], x) + p["at"][:, None]) * wide
        batch, length = y.shape[1], y.shape[2]
        for n in range(self.layers):
            parts = torch.bmm(normed(y), p[f"qkv{n}"]).reshape(slots, batch, length, 3, w)
            heads = (parts * wide[..., None, :]).reshape(slots * batch, length, 3, 2, w // 2)
            q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
            scores = q @ k.transpose(-1, -2) / math.sqrt(w / 2) + self.causal
            mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(slots, -1, w)
            added = torch.bmm(mixed, p[f"o{n}"]).reshape(slots, batch, length, w)
            y = y + residual * wide * (added * draws.kept(h["dropout"], *added.shape[1:]) if drops else added)  # type: ignore[union-attr]
            inner = activated(torch.bmm(normed(y), p[f"in{n}"]), h["activation"], self.offered("activation")) * deep
            added = torch.bmm(inner, p[f"out{n}"]).reshape(slots, batch, length, w)
            y = y + residual * wide * (added * draws.kept(h["dropout"], *added.shape[1:]) if drops else added)  # type: ignore[union-attr]
        out = torch.baddbmm(p["b"][:, None], normed(y), p["w"]).reshape(slots, batch, length, -1)
        return h["temper"][:, None, None, None] * out

    def operations(self, config: Config) -> float:
        w, inner = float(config["width"]), float(config["inner"])
        return self.layers * (4 * w**2 + 2 * w * inner + 2 * self.window * w) + w * self.letters


class Recurrent(Characters):
    """A plain recurrent network or a GRU (Cho et al. 2014)."""

    family = "rnn"
    length = (80, 350)
    window = 14
    held = 60

    def shape(self, rng: Generator) -> None:
        self.width, self.gated = int(rng.choice([24, 40, 56])), bool(rng.random() < 0.6)

    def knobs(self) -> Sequence[Knob | Pick]:
        w, gate = self.width, [Knob("remember", -3.0, 4.0, usual=(0.0, 1.0), chance=0.4)] if self.gated else ()
        return (
            Knob("width", max(4, w // 8), w, "logint", usual=(w / 2, w), chance=0.5),
            Knob("dropout", 0.0, 0.6, usual=(0.0, 0.1), chance=0.4),  # of the outputs
            Knob("inputs", 0.0, 0.5, usual=(0.0, 0.0), chance=0.3),  # dropout of the inputs
            Knob("smoothing", 0.0, 0.3, usual=(0.0, 0.0), chance=0.25),
            Knob("spectral", 0.05, 3.0, "log", usual=(0.7, 1.0), chance=0.5),  # of the recurrent weights
            *gate,
        )

    def weights(self, config: Config, rng: Generator) -> dict[str, np.ndarray]:
        w, real, scale, gates = self.width, config["width"], config["scale"], 3 if self.gated else 1
        inputs = 0.5 * scale * rng.standard_normal((self.letters, gates * w))
        bias = np.zeros(gates * w)
        bias[: w if self.gated else 0] = config.get("remember", 0.0)  # of the gate that keeps the state
        return {
            "e": inputs,
            "r": config["spectral"] / math.sqrt(real) * rng.standard_normal((w, gates * w)),
            "c": bias,
            "w": 0.7 * scale / math.sqrt(real) * rng.standard_normal((w, self.letters)),
            "b": np.zeros(self.letters),
        }

    def logits(self, p: dict[str, Tensor], h: Columns, x: Tensor, draws: Draws | None) -> Tensor:
        slots, w = len(p["w"]), self.width
        inputs = self.embedded(p["e"], x)
        if draws is not None and "inputs" in self.domains:
            inputs = inputs * draws.kept(h["inputs"], *inputs.shape[1:])
        mask = active(h["width"], w)[:, None]
        state = torch.zeros(slots, inputs.shape[1], w, device=inputs.device)
        states = []
        for given in (inputs + p["c"][:, None, None]).unbind(2):
            if self.gated:
                past = torch.bmm(state, p["r"])
                keep, reset = torch.sigmoid(given[..., : 2 * w] + past[..., : 2 * w]).chunk(2, -1)
                new = torch.tanh(given[..., 2 * w :] + reset * past[..., 2 * w :])
                state = torch.lerp(new, state, keep) * mask
            else:
                state = torch.tanh(torch.baddbmm(given, state, p["r"])) * mask
            states.append(state)
        y = torch.stack(states, 2)
        if draws is not None and ("dropout" in self.domains or self.fixed["dropout"] > 0):
            y = y * draws.kept(h["dropout"], *y.shape[1:])
        y = torch.baddbmm(p["b"][:, None], y.reshape(slots, -1, w), p["w"])
        return y.reshape(slots, -1, len(states), self.letters)

    def operations(self, config: Config) -> float:
        w = float(config["width"])
        return (3 if self.gated else 1) * w * (w + 8.0) + w * self.letters


@lru_cache(maxsize=1)
def word_counts() -> np.ndarray:
    """(modules, words) log(1 + count) of the most frequent words of the standard library's modules."""
    counts = [Counter(re.findall(r"[A-Za-z_]{3,}", text)) for text in modules()]
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    words = [word for word, _ in total.most_common(400)]
    return np.log1p(np.array([[count[word] for word in words] for count in counts], dtype=np.float64))


class Factors(Instance):
    """A matrix with missing entries as a product of factors, with biases; the loss is over the variance."""

    family = "factors"
    batches = (4, 32)  # rows
    most_dim = 10
    rates = {"sgd": (0.1, 300.0), "nesterov": (0.1, 300.0), "adam": (1e-3, 1.0), "rmsprop": (1e-3, 1.0)}  # noqa: RUF012

    def prepare(self, rng: Generator) -> None:
        source = str(rng.choice(["words", "digits", "spambase"]))
        full = word_counts() if source == "words" else table(source, self.data)[0]
        if source == "spambase":
            full = np.log1p(10.0 * full)
        most = int(rng.integers(60, 240)), int(rng.integers(30, 200))
        full = full[rng.permutation(len(full))[: most[0]]][:, rng.permutation(full.shape[1])[: most[1]]]
        full = (full - full.mean()) / (full.std() + 1e-9)
        if rng.random() < 0.4:
            full = full + rng.choice([0.3, 1.0]) * rng.standard_normal(full.shape)
        known = rng.random(full.shape) < rng.uniform(0.15, 0.8)
        held = np.argwhere(~known)
        held = held[rng.permutation(len(held))[:1500]]

        def tensor(x: np.ndarray) -> Tensor:
            return torch.as_tensor(x, device=self.device)

        self.full, self.known = tensor(full).float(), tensor(known).float()
        self.held = tensor(held[:, 0] * full.shape[1] + held[:, 1])
        self.spread = float(full[~known].var())
        self.rank, self.worst = int(rng.choice([8, 12, 20])), 5.0

    def knobs(self) -> Sequence[Knob | Pick]:
        return (
            Knob("rank", 1, self.rank, "logint", usual=(3, self.rank), chance=0.7),
            Knob("ridge", 1e-4, 10.0, "log", usual=(1e-3, 0.1), chance=0.7),  # on the factors
            Knob("bias", 0.0, 1.0, usual=(1.0, 1.0), chance=0.3),  # share of the biases
            Knob("dropout", 0.0, 0.7, usual=(0.0, 0.0), chance=0.35),  # of the entries' factors
            Knob("delta", 0.1, 10.0, "log", usual=(10.0, 10.0), chance=0.3),  # beyond it errors count linearly
        )

    def weights(self, config: Config, rng: Generator) -> dict[str, np.ndarray]:
        rows, columns = self.full.shape
        scale = 0.4 * config["scale"] / math.sqrt(config["rank"])
        return {
            "u": scale * rng.standard_normal((rows, self.rank)), "v": scale * rng.standard_normal((columns, self.rank)),
            "a": np.zeros(rows), "c": np.zeros(columns), "m": np.zeros(1),
        }  # fmt: skip

    def entries(self, p: dict[str, Tensor], h: Columns, u: Tensor, a: Tensor, v: Tensor) -> Tensor:
        """(slots, rows, columns) of some rows' factors and biases."""
        shift = h["bias"][:, None, None] * (a[..., None] + p["c"][:, None])
        return torch.bmm(u, v.transpose(1, 2)) + shift + p["m"][:, None]

    def loss(self, p: dict[str, Tensor], h: Columns, draws: Draws) -> Tensor:
        rows = draws.rows(len(self.full), self.batches[1])
        ones = functional.one_hot(rows, len(self.full)).float()
        u = torch.bmm(ones, p["u"]) * active(h["rank"], self.rank)[:, None]
        a = torch.bmm(ones, p["a"][..., None])[..., 0]
        kept = u * draws.kept(h["dropout"], *u.shape[1:]) if "dropout" in self.domains else u
        known = self.known[rows]
        error = self.entries(p, h, kept, a, p["v"]) - self.full[rows]
        delta = h["delta"][:, None, None]
        huber = torch.where(error.abs() < delta, error**2, 2.0 * delta * error.abs() - delta**2)
        ridge = h["ridge"][:, None] * ((u**2).mean(-1) + (p["v"] ** 2).mean((-1, -2))[:, None])
        return averaged((huber * known).sum(-1) / (known.sum(-1) + 1.0) + ridge, h["batch"])

    def items(self, p: dict[str, Tensor], h: Columns) -> Tensor:
        u = p["u"] * active(h["rank"], self.rank)[:, None]
        errors = (self.entries(p, h, u, p["a"], p["v"]) - self.full) ** 2
        return errors.flatten(1)[:, self.held] / self.spread

    def operations(self, config: Config) -> float:
        return self.full.shape[1] * (float(config["rank"]) + 1.0)
