"""Searches of drawn responses: what a training shows is a formula, so hundreds of searches take minutes.

    python benchmarks/search/drawn.py [--instances 0-59] [--methods random,default] [--policy "LABEL=EXPRESSION" ...]
        [--by epochs]
    python benchmarks/search/live.py --table --families drawn --into build/drawn [--by epochs] [--against LABEL]

A search is judged on live trainings (live.py), but one search of theirs takes ten seconds, and many are needed to tell
two settings apart. These drawn responses have what live trainings show: a few parameters that matter and many that
hardly do; valleys that slope more on one side, and along sums of two parameters; a cliff beyond which training
diverges; choices; early epochs that tell bad from good, but in most instances hardly good from better; what shows only
late, as overfitting does; noise of a training and of an evaluation; 8 to 100 evaluations and 2 to 14 parameters. With
--by cost an evaluation costs what one to three parameters say, up to tenfold.

With --telling early epochs tell nearly all, as in the recorded text networks (rank correlation of the first evaluation
with the end about 0.96; after a tenth 0.85 within the best quarter), and trainings are longer.

Method foresight is no search but a bound: it sees the end of each training after its first evaluation.

Instances from 100 on are fresh and need --fresh.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import math
import warnings
import zlib
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from haltune import Choice, Float, Maximize, Minimize, Space

Array = NDArray[np.float64]


class Valley:
    """A loss of points in the unit cube: 0 at one point, about 1 at the median."""

    def __init__(self, weights: Array, sizes: list[int], rng: Generator) -> None:
        """weights: (d,) how much each parameter matters; sizes: options of each choice, 0 of a number."""
        d = len(weights)
        self.weights, self.sizes = weights, sizes
        self.center = rng.uniform(0.1, 0.9, d)
        self.power = rng.uniform(1.2, 2.5, d)
        self.steeper = np.exp(rng.normal(0.0, 0.5, (2, d)))  # below and above the center
        self.options = [np.abs(rng.normal(0.0, 0.5, n)) * (np.arange(n) > 0) for n in sizes]
        self.mixes = np.eye(d)  # a valley along a sum of two numbers
        for i in range(d - 1):
            if not sizes[i] and not sizes[i + 1] and rng.random() < 0.4:
                self.mixes[i, i + 1] = rng.normal(0.0, 0.7)
        self.waves = rng.normal(size=(64, d)) * np.sqrt(weights / weights.max()) * rng.uniform(2.0, 8.0)
        self.phases = rng.uniform(0.0, 2.0 * np.pi, 64)
        self.heights = rng.normal(size=64) * rng.uniform(0.0, 0.25) / 8.0

    def moved(self, by: float, rng: Generator) -> "Valley":
        """Another one whose center, weights and choices differ: what early epochs show."""
        other = Valley(self.weights * np.exp(by * rng.normal(0.0, 1.0, len(self.weights))), self.sizes, rng)
        other.center = np.clip(self.center + by * rng.normal(0.0, 0.35, len(self.center)), 0.0, 1.0)
        other.mixes, other.power, other.steeper = self.mixes, self.power, self.steeper
        other.waves, other.phases = self.waves, self.phases
        other.heights = (1 - by) * self.heights + by * other.heights
        other.options = [(1 - by) * a + by * b for a, b in zip(self.options, other.options, strict=True)]
        return other

    def __call__(self, points: Array) -> Array:
        """(n,) of points (n, d); a choice is the number of its option."""
        off = (np.where(np.array(self.sizes) > 0, self.center, points) - self.center) @ self.mixes.T
        sides = np.where(off < 0.0, self.steeper[0], self.steeper[1])
        found = (self.weights * np.abs(off * 2.0 * sides) ** self.power).sum(axis=1)
        for i, options in enumerate(self.options):
            if len(options):
                found = found + self.weights[i] * options[points[:, i].astype(int)]
        return np.asarray(found + np.cos(points @ self.waves.T + self.phases) @ self.heights)


class Drawn:
    """One instance: its space, goal, length and what each configuration shows after each evaluation."""

    worst = 1e3

    def __init__(self, number: int, telling: bool = False) -> None:
        self.number, self.family = number, "telling" if telling else "drawn"
        less = 0.1 if telling else 1.0  # of what early epochs do not show
        rng = np.random.default_rng([zlib.crc32(b"drawn"), number])
        self.horizon = round(math.exp(rng.uniform(math.log(25 if telling else 8), math.log(100))))
        self.of = str(rng.choice(["last", "best"]))
        d = int(rng.integers(2, 15))
        self.sizes = [int(rng.integers(2, 5)) if rng.random() < 0.15 else 0 for _ in range(d)]
        self.domains: dict[str, Any] = {
            f"x{i}": Choice(list(range(n))) if n else Float(0.0, 1.0) for i, n in enumerate(self.sizes)
        }
        self.space = Space(self.domains)
        weights = np.exp(rng.normal(0.0, rng.uniform(0.8, 2.0), d))
        self.late = Valley(weights / weights.sum() * rng.uniform(1.5, 4.0), self.sizes, rng)
        self.early = self.late.moved(by=less * float(rng.beta(1.2, 1.2)), rng=rng)
        others = less * rng.permutation(weights / weights.sum()) * rng.uniform(0.2, 1.5)
        self.late_only = Valley(others, self.sizes, rng)  # what shows only late, as overfitting does
        self.grows = rng.uniform(1.0, 4.0)
        self.mixing, self.fades = rng.uniform(0.6, 1.0), rng.uniform(0.5, 2.5)  # of the early loss
        self.falls, self.decay = rng.uniform(0.3, 3.0), rng.uniform(0.3, 2.0)  # the part common to all curves
        self.slow = rng.uniform(0.0, 0.3)  # how much a bad configuration falls later
        self.skew = str(rng.choice(["loss", "share", "heavy"]))
        self.cliff = float(rng.uniform(0.1, 0.4)) if rng.random() < 0.5 else math.inf  # beyond the center of the first
        self.matters = int(np.argmax(weights * (np.array(self.sizes) == 0))) if 0 in self.sizes else -1
        sample = self.space.sample(2048, np.random.default_rng(number))
        points = np.array([self._point(c) for c in sample])
        finals = self._values(points, np.array([1.0]))[:, 0]
        self.width = float(np.median(finals) - finals.min())
        self.noise = less * math.exp(rng.uniform(math.log(0.01), math.log(0.15))) * self.width  # of a training
        self.jitter = less * math.exp(rng.uniform(math.log(0.003), math.log(0.4))) * self.width  # of an evaluation
        rng = np.random.default_rng([zlib.crc32(b"cost"), number])
        costly = rng.permutation(d)[
            : int(rng.integers(1, 4))
        ]  # the parameters that cost depends on, as width and batch
        self.prices = np.zeros(d)  # log cost over each parameter's range, together a factor of 2 to 10
        self.prices[costly] = rng.dirichlet(np.ones(len(costly))) * rng.uniform(math.log(2.0), math.log(10.0))
        self.unit = float(np.mean(self._counted(points)))

    @property
    def goal(self) -> Maximize | Minimize:
        if self.skew == "share":
            return Maximize("share", of=self.of)  # type: ignore[arg-type]
        return Minimize("loss", of=self.of)  # type: ignore[arg-type]

    def cost(self, config: Any) -> float:
        """Of an evaluation with the training before it; 1 is the mean of random configurations."""
        return float(self._counted(self._point(config)[None])[0]) / self.unit

    def _counted(self, points: Array) -> Array:
        steps = np.maximum(np.array(self.sizes) - 1, 1)  # a choice is the number of its option
        return np.asarray(np.exp((points / steps) @ self.prices))

    def _point(self, config: Any) -> Array:
        return np.array([float(config[name]) for name in self.domains])

    def _values(self, points: Array, t: Array) -> Array:
        """(n, k) losses, without noise, of points (n, d) after shares (k,) of a training."""
        late, early = self.late(points)[:, None], self.early(points)[:, None]
        mixed = self.mixing * (1.0 - t) ** self.fades
        loss = (1.0 - mixed) * late + mixed * early + self.late_only(points)[:, None] * t**self.grows
        begins = self.falls * (1.0 + self.slow * np.minimum(late, 3.0))
        loss = loss + begins * ((0.02 + t) ** -self.decay - 1.02**-self.decay) / (0.04**-self.decay - 1.02**-self.decay)
        if self.skew == "share":
            loss = 1.0 - np.exp(-np.maximum(loss, -0.5))
        elif self.skew == "heavy":
            loss = np.expm1(np.minimum(loss, 8.0))
        if self.matters >= 0:
            over = points[:, self.matters] - self.late.center[self.matters] > self.cliff
            loss = np.where(over[:, None], 5.0 if self.skew != "share" else 1.0, loss)
        return np.asarray(loss)

    def curve(self, config: Any, seed: int) -> tuple[Array, Array]:
        """(horizon,) what a training shows, and its values without the evaluations' noise. A share is 1 less the loss:
        peers receive 0 for what is below it."""
        rng = np.random.default_rng(seed)
        t = np.arange(1, self.horizon + 1) / self.horizon
        true = self._values(self._point(config)[None], t)[0] + self.noise * rng.normal() * np.sqrt(t)
        shown = true + self.jitter * rng.normal(size=len(t))
        return (1.0 - shown, 1.0 - true) if self.skew == "share" else (shown, true)


def foresight(instance: Any, limits: Any) -> Any:
    """A bound: random configurations, each of which ends after one evaluation unless it will become the incumbent."""
    from live_trainings.runs import training_seed
    from live_trainings.searches import Turn

    rng, best = np.random.default_rng(limits.seed), math.nan
    for trial in count():
        [config] = instance.space.sample(1, rng)
        shown, _ = instance.curve(config, training_seed(instance, limits.seed, trial))
        found = max(instance.goal.sign * shown) if instance.of == "best" else instance.goal.sign * shown[-1]
        wins = not found <= best
        best = found if wins else best
        for epoch in range(instance.horizon if wins else 1):
            yield Turn(trial, config, epoch)


def one(number: int, asked: list[tuple[str, int]], args: argparse.Namespace) -> str:
    """Run the searches of an instance and write them down."""
    from live import methods
    from live_trainings.runs import Seat, training_seed, write
    from live_trainings.searches import Limits

    warnings.simplefilter("ignore")
    known = methods(args.policy) | {"foresight": foresight}
    instance: Any = Drawn(number, args.telling)
    seats = []
    for label, seed in asked:
        limits = Limits(args.trainings, args.by == "cost", seed)
        seat = Seat(label, instance, limits, known[label](instance, limits))
        curves: dict[int, tuple[Array, Array]] = {}
        value = None
        while seat.next(value):
            turn = seat.turn
            assert turn is not None
            if turn.trial not in curves:
                curves[turn.trial] = instance.curve(turn.config, training_seed(instance, seed, turn.trial))
            value, true = (float(values[turn.evaluations]) for values in curves[turn.trial])
            if not seat.note(value, true, turn.evaluations + 1):
                break
        seats.append(seat)
    write(args.into / f"{instance.family}.jsonl", seats)
    deciding = sum(seat.deciding for seat in seats)
    return f"{instance.family} {number}: {len(seats)} searches, {deciding:.1f} s of deciding"


def main() -> None:
    from live import FRESH, missing, numbers

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--instances", type=numbers, default=numbers("0-59"))
    parser.add_argument("--methods", default="random,default,optuna_tpe_median")
    parser.add_argument("--policy", action="append", default=[], metavar="LABEL=EXPRESSION")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--trainings", type=int, default=20)
    parser.add_argument("--by", choices=("epochs", "cost"), default="epochs")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--into", type=Path, default=Path("build/drawn"))
    parser.add_argument("--fresh", action="store_true", help=f"instances from {FRESH} on, once")
    parser.add_argument("--telling", action="store_true", help="early epochs tell nearly all")
    parser.set_defaults(label_suffix="")
    args = parser.parse_args()
    args.families = ["telling" if args.telling else "drawn"]
    if max(args.instances) >= FRESH and not args.fresh:
        parser.error(f"instances from {FRESH} on are fresh: nothing may be chosen on them. Pass --fresh")
    args.methods = [*filter(None, args.methods.split(",")), *(text.split("=", 1)[0] for text in args.policy)]
    with get_context("spawn").Pool(args.processes) as pool:
        for job in [pool.apply_async(one, (number, asked, args)) for _, number, asked in missing(args)]:
            print(job.get(), flush=True)


if __name__ == "__main__":
    main()
