"""The slots: a network each, trained in lock-step by batched products, saved and loaded on their own.

A slot's whole state is its row of the weights and of the optimizer's two averages, its configuration, its seed and its
number of evaluations: schedule and random numbers are functions of these.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .draws import Draws
from .instances import OPTIMIZERS, SCHEDULES, Config, Instance

EVALUATING = -1  # the step whose random numbers draw what an evaluation shows


@dataclass(frozen=True)
class State:
    """A training that is set aside."""

    config: Config
    seed: int
    evaluations: int
    memory: Tensor  # (3, weights): weights, first and second average


class Slots:
    """Trainings of one instance, one a slot."""

    def __init__(self, instance: Instance, count: int) -> None:
        self.instance, self.device = instance, instance.device
        rng = np.random.default_rng(0)
        example = instance.weights(instance.settings(instance.space.sample(1, rng)[0]), rng)
        self._shapes = {name: w.shape for name, w in example.items()}
        self._sizes = [math.prod(shape) for shape in self._shapes.values()]
        self._memory = torch.zeros(3, count, sum(self._sizes), device=self.device)
        self._configs: list[Config] = [{}] * count
        self._seeds = np.zeros(count, dtype=np.int64)
        self.evaluations = np.zeros(count, dtype=np.int64)
        self._rows: list[dict[str, float]] = [{}] * count

    def __len__(self) -> int:
        return len(self._configs)

    def start(self, slot: int, config: Config, seed: int) -> None:
        """Put a new training into a slot."""
        weights = self.instance.weights(self.instance.settings(config), np.random.default_rng(seed))
        flat = np.concatenate([w.ravel() for w in weights.values()]).astype(np.float32)
        memory = torch.zeros(3, len(flat))
        memory[0] = torch.from_numpy(flat)
        self.load(slot, State(config, seed, 0, memory))

    def save(self, slot: int) -> State:
        """The state of a slot; what the slot does next does not change it."""
        memory = self._memory[:, slot].clone()
        return State(self._configs[slot], int(self._seeds[slot]), int(self.evaluations[slot]), memory)

    def load(self, slot: int, state: State) -> None:
        """Put a training back."""
        self._configs[slot], self._seeds[slot] = state.config, state.seed
        self.evaluations[slot] = state.evaluations
        self._memory[:, slot] = state.memory.to(self.device)
        self._rows[slot] = self.instance.columns(state.config)

    def keep(self, slots: Sequence[int]) -> None:
        """Go on with these slots alone, in this order."""
        self._memory = self._memory[:, list(slots)].clone()
        self._configs, self._rows = [self._configs[s] for s in slots], [self._rows[s] for s in slots]
        self._seeds, self.evaluations = self._seeds[list(slots)], self.evaluations[list(slots)]

    def train(self) -> tuple[np.ndarray, np.ndarray]:
        """Train every slot to its next evaluation. Returns (slots,) what it shows, and the values of all examples."""
        h = {name: self._tensor([row[name] for row in self._rows]) for name in self._rows[0]}
        seeds = torch.tensor(self._seeds & 0x7FFFFFFF, dtype=torch.int32, device=self.device)
        rates = self._tensor(np.stack([self._schedule(slot) for slot in range(len(self))], axis=1))
        first = torch.tensor(self.evaluations * self.instance.steps, dtype=torch.int32, device=self.device)
        step = Step(h, bool(np.any([OPTIMIZERS[int(row["optimizer"])] in ("adam", "rmsprop") for row in self._rows])))
        for k in range(self.instance.steps):
            weights = self._memory[0].requires_grad_()
            loss = self.instance.loss(self._named(weights), h, Draws(seeds, first + k))
            (gradient,) = torch.autograd.grad(loss.sum(), weights)
            with torch.no_grad():
                step(self._memory.detach(), gradient, rates[k], first + k + 1)
            self._memory = self._memory.detach()
        with torch.no_grad():
            items = self.instance.items(self._named(self._memory[0]), h).float()
            self.evaluations += 1
            every = items.mean(1).double().cpu().numpy()
            if self.instance.share == 1.0:
                return every, every
            last = torch.tensor(self.evaluations, dtype=torch.int32, device=self.device)
            draw = Draws(seeds ^ 0x5BD1E995, last).uniform(items.shape[1])
            shown = draw <= torch.quantile(draw, self.instance.share, dim=1, keepdim=True)
            noisy = torch.where(shown, items, 0.0).sum(1) / shown.sum(1)
            return noisy.double().cpu().numpy(), every

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(np.asarray(values, dtype=np.float32), device=self.device)

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        parts = torch.split(flat, self._sizes, dim=1)
        return {n: p.reshape(len(flat), *s) for p, (n, s) in zip(parts, self._shapes.items(), strict=True)}

    def _schedule(self, slot: int) -> np.ndarray:
        """(steps,) the learning rates until the next evaluation."""
        row, steps = self._rows[slot], self.instance.steps
        done = (self.evaluations[slot] * steps + np.arange(1, steps + 1)) / (self.instance.horizon * steps)
        kind, final = SCHEDULES[int(row["schedule"])], row["final"]
        if kind == "cosine":
            share = final + (1.0 - final) * (0.5 + 0.5 * np.cos(np.pi * done))
        elif kind == "linear":
            share = final + (1.0 - final) * (1.0 - done)
        elif kind == "steps":
            share = np.maximum(final, 0.2 ** np.floor(done * 3.2))
        elif kind == "root":
            share = 1.0 / np.sqrt(1.0 + done * (1.0 / final**2 - 1.0)) if final < 1.0 else np.ones(steps)
        else:
            share = np.ones(steps)
        warm = np.minimum(1.0, done / row["warmup"]) if row["warmup"] > 0 else 1.0
        return np.asarray(row["lr"] * share * warm)


class Step:
    """One update of every slot by its own optimizer, in one formula: SGD is Adam with a denominator of 1."""

    def __init__(self, h: dict[str, Tensor], any_adaptive: bool) -> None:
        def column(x: Tensor) -> Tensor:
            return x[:, None]

        def is_(*names: str) -> Tensor:
            return column(sum(h["optimizer"] == OPTIMIZERS.index(name) for name in names) > 0)

        self.any_adaptive = any_adaptive
        self.adaptive, self.nesterov = is_("adam", "rmsprop"), is_("nesterov")
        self.beta1 = torch.where(is_("rmsprop"), 0.0, column(h["momentum"]))
        self.beta2 = 1.0 - column(h["second"])
        self.mix = torch.where(is_("adam"), 1.0 - self.beta1, 1.0)
        self.eps, self.clip, self.decay = column(h["eps"]), column(h["clip"]), column(h["decay"])
        self.bound = bool((self.clip < 30.0).any())
        self.coupled = torch.where(self.adaptive, 0.0, self.decay)
        self.decoupled = torch.where(self.adaptive, self.decay, 0.0)

    def __call__(self, memory: Tensor, gradient: Tensor, rate: Tensor, count: Tensor) -> None:
        """Change the memory (3, slots, weights) in place. rate, count: (slots,), the steps with this one."""
        weights, first, second = memory
        rate, count = rate[:, None], count[:, None]
        if self.bound:
            norm = gradient.norm(dim=1, keepdim=True)
            gradient = gradient * torch.where(self.clip < 30.0, (self.clip / (norm + 1e-12)).clamp(max=1.0), 1.0)
        gradient = gradient + self.coupled * weights
        first.mul_(self.beta1).add_(self.mix * gradient)
        direction = torch.where(self.nesterov, self.beta1 * first + gradient, first)
        if self.any_adaptive:
            second.mul_(self.beta2).add_((1.0 - self.beta2) * gradient**2)
            root = (second / (1.0 - self.beta2**count)).sqrt_().add_(self.eps)
            began = torch.where(self.mix < 1.0, 1.0 - self.beta1**count, 1.0)
            direction = torch.where(self.adaptive, direction / (root * began), direction)
        weights.mul_(1.0 - rate * self.decoupled).sub_(rate * direction)
