"""One instance of a family: what is trained, the space, the goal and the length, all drawn from its number.

A knob is a hyperparameter that a family has. An instance searches some of them, within drawn ends, and holds the others
at drawn values.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import Generator
from torch import Tensor

from haltune import Choice, Float, Int, Maximize, Minimize, Space

from .draws import Draws

Config = Mapping[str, Any]
Columns = dict[str, Tensor]  # (slots,) each: the settings of every slot
REFERENCE = 256  # random configurations whose mean operations are the unit of cost


@dataclass(frozen=True)
class Knob:
    """A hyperparameter: the widest range, and where a value that is not searched is drawn."""

    name: str
    low: float
    high: float
    kind: str = "float"  # float, log, int, logint
    usual: tuple[float, float] | None = None  # None: the whole range
    chance: float = 0.5  # that an instance searches it
    when: Mapping[str, Any] | None = None

    def domain(self, rng: Generator) -> Any:
        """The range that an instance searches: up to a quarter is cut off at each end."""
        low, high = self.low, self.high
        if self.kind in ("log", "logint"):
            low, high = math.log(low), math.log(high)
        cut = rng.uniform(0.0, 0.25, 2) * (rng.random(2) < 0.7) * (high - low)
        low, high = low + cut[0], high - cut[1]
        if self.kind in ("log", "logint"):
            low, high = math.exp(low), math.exp(high)
        if self.kind in ("int", "logint"):
            return Int(round(low), max(round(low) + 1, round(high)), log=self.kind == "logint", when=self.when)
        return Float(rounded(low), rounded(high), log=self.kind == "log", when=self.when)

    def value(self, rng: Generator) -> float:
        """A value to hold it at."""
        low, high = self.usual or (self.low, self.high)
        if self.kind in ("log", "logint"):
            found = math.exp(rng.uniform(math.log(low), math.log(high))) if low < high else low
        else:
            found = rng.uniform(low, high)
        return float(round(found)) if self.kind in ("int", "logint") else rounded(found)


@dataclass(frozen=True)
class Pick:
    """A choice among options; an instance that searches it offers at least two of them."""

    name: str
    options: tuple[str, ...]
    chance: float = 0.3
    when: Mapping[str, Any] | None = None

    def domain(self, rng: Generator) -> Any:
        count = int(rng.integers(2, len(self.options) + 1))
        return Choice([str(o) for o in rng.permutation(self.options)[:count]], when=self.when)

    def value(self, rng: Generator) -> str:
        return str(rng.choice(self.options))


def rounded(x: float) -> float:
    """Three digits."""
    return float(f"{x:.3g}")


OPTIMIZERS = ("sgd", "nesterov", "adam", "rmsprop")
SCHEDULES = ("cosine", "constant", "steps", "linear", "root")
_ADAPTIVE = ("adam", "rmsprop")


def common(rates: Mapping[str, tuple[float, float]], batch: tuple[int, int]) -> list[Knob | Pick]:
    """The knobs of every family but for the learning rate, whose ranges follow the optimizer (`rates`)."""
    return [
        Pick("optimizer", OPTIMIZERS, chance=0.25),
        Pick("schedule", SCHEDULES, chance=0.2),
        Knob("momentum", 0.0, 0.99, usual=(0.8, 0.95), chance=0.6),
        Knob("second", 1e-4, 0.5, "log", usual=(1e-3, 0.05), chance=0.35),  # 1 - beta2
        Knob("eps", 1e-10, 1e-2, "log", usual=(1e-8, 1e-8), chance=0.15),
        Knob("decay", 1e-6, 0.3, "log", usual=(1e-6, 1e-3), chance=0.6),
        Knob("batch", batch[0], batch[1], "logint", usual=(batch[1] / 2, batch[1]), chance=0.4),
        Knob("warmup", 0.0, 0.4, usual=(0.0, 0.1), chance=0.4),
        Knob("final", 1e-3, 1.0, "log", usual=(1e-3, 0.1), chance=0.2),  # share of the learning rate at the end
        Knob("clip", 0.03, 30.0, "log", usual=(30.0, 30.0), chance=0.3),
        Knob("scale", 0.1, 5.0, "log", usual=(1.0, 1.0), chance=0.3),  # of the initial weights
    ]


@dataclass
class Instance:
    """What is drawn of a family: a subclass trains it. Tensors have a slot in front."""

    number: int
    data: str | None = None  # folder
    device: str = "cpu"
    rng: Generator = field(init=False, repr=False)

    family = ""
    accuracy = False  # the goal is a share to maximise; otherwise a loss
    rates: ClassVar[Mapping[str, tuple[float, float]]] = {
        "sgd": (3e-3, 10.0), "nesterov": (3e-3, 10.0), "adam": (1e-4, 0.3), "rmsprop": (1e-4, 0.3),
    }  # fmt: skip
    batches = (4, 32)
    length = (150, 800)  # optimizer steps of a full training, from which is drawn
    most_dim = 14

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng([zlib.crc32(self.family.encode()), self.number])
        rng = self.rng
        self.horizon = round(math.exp(rng.uniform(math.log(8), math.log(100))))
        steps = math.exp(rng.uniform(*map(math.log, self.length)))
        self.steps = max(1, round(steps / self.horizon))  # between two evaluations
        self.of = str(rng.choice(["last", "best"]))
        self.share = float(rng.choice([1.0, 0.5, 0.2]))  # of what is evaluated that an evaluation shows
        self.prepare(rng)
        self._choose(rng)

    # -- what a family says ----------------------------------------------------------------------

    worst = 1e3  # what peers are told where training diverged

    def prepare(self, rng: Generator) -> None:
        """Draw data and architecture."""

    def knobs(self) -> Sequence[Knob | Pick]:
        """The family's own hyperparameters."""
        return ()

    def weights(self, config: Config, rng: Generator) -> dict[str, np.ndarray]:
        """The initial weights of one training, by name, the same names and shapes for every configuration."""
        raise NotImplementedError

    def loss(self, p: dict[str, Tensor], h: Columns, draws: Draws) -> Tensor:
        """(slots,) the loss of a batch."""
        raise NotImplementedError

    def items(self, p: dict[str, Tensor], h: Columns) -> Tensor:
        """(slots, n) what an evaluation averages: errors, losses or hits, one for each example."""
        raise NotImplementedError

    def operations(self, config: Config) -> float:
        """Multiplications of one example's forward pass."""
        raise NotImplementedError

    # -- the space -------------------------------------------------------------------------------

    def _choose(self, rng: Generator) -> None:
        """Draw which knobs are searched, and the values of the others."""
        knobs = [*common(self.rates, self.batches), *self.knobs()]
        wanted = int(rng.integers(2, self.most_dim + 1))
        order = sorted(knobs, key=lambda k: rng.random() ** (1.0 / k.chance), reverse=True)
        chosen = {k.name for k in order[: wanted - 1]}
        self.fixed: dict[str, Any] = {k.name: k.value(rng) for k in knobs}
        domains = {k.name: k.domain(rng) for k in knobs if k.name in chosen}
        optimizers = domains["optimizer"].options if "optimizer" in domains else (self.fixed["optimizer"],)
        adaptive = [o for o in optimizers if o in _ADAPTIVE]
        for name in ("second", "eps"):  # have a meaning for some optimizers only
            if name in domains and not adaptive:
                del domains[name]
            elif name in domains and len(adaptive) < len(optimizers):
                knob = next(k for k in knobs if k.name == name)
                domains[name] = Knob(name, knob.low, knob.high, "log", when={"optimizer": adaptive}).domain(rng)
        low = min(self.rates[o][0] for o in optimizers)
        high = max(self.rates[o][1] for o in optimizers)
        domains = {"lr": Knob("lr", low, high, "log").domain(rng), **domains}
        self.space = Space(domains)
        self.domains = domains

    @property
    def goal(self) -> Maximize | Minimize:
        """The goal of the searches."""
        if self.accuracy:
            return Maximize("accuracy", bounds=(0, 1), of=self.of)  # type: ignore[arg-type]
        return Minimize("loss", of=self.of)  # type: ignore[arg-type]

    def settings(self, config: Config) -> dict[str, Any]:
        """All knobs of a configuration."""
        return {**self.fixed, **config}

    def columns(self, config: Config) -> dict[str, float]:
        """The settings as numbers; a choice becomes its place among all options."""
        settings = self.settings(config)
        return {n: float(self._places[n].index(v) if n in self._places else v) for n, v in settings.items()}

    @cached_property
    def _places(self) -> dict[str, tuple[str, ...]]:
        return {k.name: k.options for k in [*common(self.rates, self.batches), *self.knobs()] if isinstance(k, Pick)}

    def offered(self, name: str) -> tuple[str, ...]:
        """The options of a choice that may occur in this instance."""
        return tuple(self.domains[name].options) if name in self.domains else (self.fixed[name],)

    # -- cost ------------------------------------------------------------------------------------

    def cost(self, config: Config) -> float:
        """Of an evaluation with the steps before it; 1 is the mean of random configurations."""
        return self._counted(config) / self._unit

    def _counted(self, config: Config) -> float:
        settings = self.settings(config)
        return float(settings["batch"]) * self.operations(settings)

    @cached_property
    def _unit(self) -> float:
        configs = self.space.sample(REFERENCE, np.random.default_rng([7, self.number]))
        return float(np.mean([self._counted(c) for c in configs]))


Activation = Callable[[Tensor], Tensor]
ACTIVATIONS: dict[str, Activation] = {
    "relu": torch.relu, "tanh": torch.tanh, "gelu": torch.nn.functional.gelu, "sine": torch.sin,
}  # fmt: skip


def activated(x: Tensor, kinds: Tensor, offered: Sequence[str]) -> Tensor:
    """Each slot's own activation of x (slots, ...); `kinds` are places in ACTIVATIONS."""
    names = list(ACTIVATIONS)
    found = ACTIVATIONS[offered[0]](x)
    for name in offered[1:]:
        chosen = (kinds == names.index(name)).reshape(-1, *[1] * (x.dim() - 1))
        found = torch.where(chosen, ACTIVATIONS[name](x), found)
    return found


def active(counts: Tensor, most: int) -> Tensor:
    """(slots, most) 1 for the first so many, otherwise 0."""
    return (torch.arange(most, device=counts.device) < counts[:, None]).float()


def averaged(x: Tensor, counts: Tensor) -> Tensor:
    """(slots,) the mean of the first so many columns of x (slots, batch)."""
    return (x * active(counts, x.shape[1])).sum(1) / counts
