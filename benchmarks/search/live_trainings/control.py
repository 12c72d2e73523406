"""Policy gradients: episodes of small control problems, all slots at once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor
from torch.nn import functional

from .draws import Draws
from .instances import Columns, Config, Instance, Knob, Pick, active, averaged

TASKS = ("point", "pendulum", "cart")
OBSERVED = 4
ACTIONS = 3


class Control(Instance):
    """REINFORCE with a learnt baseline (Williams 1992); the mean reward of a step counts, between 0 and 1.

    Three problems with three actions each: a mass that is pushed to a place, a pendulum that is held up, a pole on a
    cart. Strength, friction, noise and the start are drawn.
    """

    family = "control"
    batches = (3, 16)  # episodes
    length = (40, 160)
    accuracy = True  # a reward to maximise
    worst = 1.0
    rates = {"sgd": (1e-2, 30.0), "nesterov": (1e-2, 30.0), "adam": (3e-4, 0.3), "rmsprop": (3e-4, 0.3)}  # noqa: RUF012

    def prepare(self, rng: Generator) -> None:
        self.task, self.moves = str(rng.choice(TASKS)), int(rng.integers(16, 33))
        self.force, self.friction = float(rng.uniform(0.6, 1.6)), float(rng.uniform(0.0, 0.3))
        self.noise, self.away = float(rng.choice([0.0, 0.1, 0.3])), float(rng.uniform(0.5, 1.2))
        self.width = int(rng.choice([8, 16, 24]))

    def knobs(self) -> Sequence[Knob | Pick]:
        w = self.width
        return (
            Knob("width", max(2, w // 6), w, "logint", usual=(w / 2, w), chance=0.4),
            Knob("forget", 0.003, 0.9, "log", usual=(0.03, 0.2), chance=0.7),  # 1 - discount
            Knob("entropy", 1e-4, 1.0, "log", usual=(1e-3, 1e-2), chance=0.6),
            Knob("critic", 0.01, 10.0, "log", usual=(0.5, 1.0), chance=0.5),
            Knob("baseline", 0.0, 1.0, usual=(1.0, 1.0), chance=0.3),  # share of the baseline that is subtracted
            Pick("advantage", ("plain", "normed"), chance=0.4),
        )

    def weights(self, config: Config, rng: Generator) -> dict[str, np.ndarray]:
        w, scale, real = self.width, config["scale"], config["width"]
        return {
            "w1": scale * 0.7 * rng.standard_normal((OBSERVED, w)), "b1": 0.1 * rng.standard_normal(w),
            "w": scale * 0.3 / math.sqrt(real) * rng.standard_normal((w, ACTIONS + 1)), "b": np.zeros(ACTIONS + 1),
        }  # fmt: skip

    def heads(self, p: dict[str, Tensor], h: Columns, seen: Tensor) -> Tensor:
        """(slots, n, actions + 1) logits and the predicted return of what is seen (slots, n, 4)."""
        inner = torch.tanh(torch.baddbmm(p["b1"][:, None], seen, p["w1"])) * active(h["width"], self.width)[:, None]
        return torch.baddbmm(p["b"][:, None], inner, p["w"])

    def starts(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Positions and speeds at the start of episodes, from uniform numbers (slots, episodes, 4)."""
        a, b, c, d = (2.0 * u - 1.0).unbind(-1)
        near = 0.3 if self.task == "cart" else self.away
        return near * a, 0.3 * b, near * c if self.task == "point" else 0.3 * c, 0.3 * d

    def moved(self, x: Tensor, v: Tensor, y: Tensor, w: Tensor, push: Tensor) -> tuple[Tensor, ...]:
        """The state after a push, its reward included. point: place x, y; pendulum: angle x; cart: pole x, cart y."""
        force, slow, dt = self.force, 1.0 - self.friction * 0.3, 0.3
        if self.task == "point":  # pushed along x; y swings by itself and is coupled to it
            v = slow * v + dt * force * push
            w = slow * w + dt * (0.8 * x - 0.6 * y)
            x, y = x + dt * v, y + dt * w
            reward = torch.exp(-2.0 * (x**2 + 0.5 * y**2))
        elif self.task == "pendulum":
            v = slow * v + dt * (1.5 * torch.sin(x) + 1.2 * force * push)
            x = x + dt * v
            reward = 0.5 + 0.5 * torch.cos(x)
        else:
            dt = 0.15
            v = v + dt * (4.0 * torch.sin(x) - 2.0 * force * push * torch.cos(x))
            w = slow * w + dt * 2.0 * force * push
            x, y = x + dt * v, y + dt * w
            reward = ((x.abs() < 0.8) & (y.abs() < 2.0)).float()
            fell = reward == 0
            x, v = torch.where(fell, torch.full_like(x, 3.0), x), torch.where(fell, 0.0, v)  # and stays there
        limit = 5.0
        return x.clamp(-limit, limit), v.clamp(-limit, limit), y.clamp(-limit, limit), w.clamp(-limit, limit), reward

    def played(self, p: dict[str, Tensor], h: Columns, draws: Draws, episodes: int) -> tuple[Tensor, Tensor, Tensor]:
        """What was seen (slots, episodes, moves, 4), the actions and the rewards (slots, episodes, moves)."""
        state = self.starts(draws.uniform(episodes, 4))
        luck = draws.uniform(self.moves, episodes)
        shaken = self.noise * draws.normal(self.moves, episodes) if self.noise else torch.zeros_like(luck)
        seen, chosen, paid = [], [], []
        for n in range(self.moves):
            x, v, y, w = state
            look = torch.stack([torch.sin(x), torch.cos(x), v, y] if self.task == "pendulum" else [x, v, y, w], -1)
            logits = self.heads(p, h, look)[..., :ACTIONS]
            action = (luck[:, n, :, None] > logits.softmax(-1).cumsum(-1)[..., :-1]).sum(-1)
            *state, reward = self.moved(x, v, y, w, action - 1.0 + shaken[:, n])
            seen.append(look), chosen.append(action), paid.append(reward)
        return torch.stack(seen, 2), torch.stack(chosen, 2), torch.stack(paid, 2)

    def loss(self, p: dict[str, Tensor], h: Columns, draws: Draws) -> Tensor:
        with torch.no_grad():
            seen, chosen, paid = self.played(p, h, draws, self.batches[1])
            discount = 1.0 - h["forget"][:, None]
            returns, ahead = torch.empty_like(paid), torch.zeros_like(paid[..., 0])
            for n in reversed(range(self.moves)):
                ahead = paid[..., n] + discount * ahead
                returns[..., n] = ahead
            returns = returns * h["forget"][:, None, None]  # between 0 and 1
        heads = self.heads(p, h, seen.flatten(1, 2)).reshape(*chosen.shape, -1)
        logs, guess = functional.log_softmax(heads[..., :ACTIONS], -1), heads[..., ACTIONS]
        gain = returns - h["baseline"][:, None, None] * guess.detach()
        mask = active(h["batch"], chosen.shape[1])[..., None]
        count = (h["batch"] * self.moves)[:, None, None]
        middle = (gain * mask).sum((1, 2), keepdim=True) / count
        spread = torch.sqrt((((gain - middle) * mask) ** 2).sum((1, 2), keepdim=True) / count) + 1e-3
        gain = torch.where((h["advantage"] == 1)[:, None, None], (gain - middle) / spread, gain)
        right = logs.gather(-1, chosen[..., None])[..., 0]
        entropy = -(logs.exp() * logs).sum(-1)
        critic, bonus = h["critic"][:, None, None], h["entropy"][:, None, None]
        each = -gain * right - bonus * entropy + critic * (guess - returns) ** 2
        return averaged(each.mean(-1), h["batch"])

    def items(self, p: dict[str, Tensor], h: Columns) -> Tensor:
        slots = len(p["w"])
        same = Draws(torch.full((slots,), 7, dtype=torch.int32, device=p["w"].device), torch.zeros_like(h["lr"]).int())
        seen, _, paid = self.played(p, h, same, 48)
        sane = self.heads(p, h, seen[:, :, 0]).isfinite().all(-1)
        return torch.where(sane, paid.mean(-1), torch.nan)

    def operations(self, config: Config) -> float:
        return self.moves * float(config["width"]) * (OBSERVED + ACTIONS + 1.0)
