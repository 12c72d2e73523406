"""Section 6.3 of Lee et al. (2021): a network of weather sensors; the cost is the distance that they move.

    python benchmarks/papers/rollout_sensors.py [--seeds 20] [--sensors 10] [--keep FILE] [--svg]

Ten sensors in the unit square record temperatures for two days; a fixed Gaussian process interpolates them, and the
root mean squared error on a grid of 20 x 20 places is minimised over the positions of the sensors. The cost of a
placement X' after X is the straight-line distance |X' - X|_F, a known cost function. The first placement is free, and
all may move 20 in total, about eleven random moves. The weather is synthetic, another for each seed: temperature
falls with height, days are warmer than nights and more so away from the coast, and smooth fronts drift across; half of
the land is hilly, where all that varies over shorter distances.

The output has means over seeds and standard errors of the least error after a third, two thirds and all of the budget,
as a share of the median error of 200 random placements, because some weather is harder to interpolate. The paper's text
lacks the weather, the interpolation, and the budget as a distance; these are haltune's.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from within_budget import POLICIES, Array, Axes, Found, Task, compare, draw, parser, progress

from haltune import Budget, Float, Minimize, Problem, Space, Study, Trial

BUDGET, HOURS, SIDE, WAVES = 20.0, 48, 20, 48
NOISE, REACH = 0.2, 0.25  # of a reading, in degrees; of the interpolation, in sides of the square
AXIS = (np.arange(SIDE) + 0.5) / SIDE
PLACES = np.stack(np.meshgrid(AXIS, AXIS, indexing="ij"), axis=-1).reshape(-1, 2)


@dataclass(frozen=True, eq=False)
class Waves:
    """A smooth random field: a sum of cosines, which is a Gaussian process in the limit."""

    frequencies: Array  # (waves, 2)
    phases: Array

    @classmethod
    def drawn(cls, reach: float, rng: np.random.Generator) -> "Waves":
        """Return a random field with a length scale."""
        return cls(rng.standard_normal((WAVES, 2)) / reach, rng.uniform(0.0, 2.0 * np.pi, WAVES))

    def at(self, places: Array) -> Array:
        """(..., ) of variance 1 at places (..., 2)."""
        return np.asarray(np.cos(places @ self.frequencies.T + self.phases).sum(axis=-1) * math.sqrt(2.0 / WAVES))


@dataclass(frozen=True, eq=False)
class Weather:
    """Two days over a coast, whose land rises to the east."""

    height: Waves
    hills: Waves
    fronts: Waves
    showers: Waves
    wind: Array  # (2,) a day
    swing: float  # hours that noon moves across the square

    @classmethod
    def of(cls, seed: int) -> "Weather":
        """The weather of a seed."""
        rng = np.random.default_rng([seed, 7])
        height, hills, fronts, showers = (Waves.drawn(reach, rng) for reach in (0.4, 0.1, 0.4, 0.12))
        return cls(height, hills, fronts, showers, rng.normal(0.0, 0.3, 2), float(rng.uniform(0.5, 2.0)))

    def temperatures(self, places: Array) -> Array:
        """(n, hours) in degrees at places (n, 2)."""
        hours = np.arange(HOURS)
        hilly = 1.0 / (1.0 + np.exp(-(places[:, 0] - 0.5) / 0.08))  # 0 at the sea, 1 inland
        height = 1.5 * self.height.at(places) + 2.0 * hilly * (1.0 + self.hills.at(places))
        noon = 14.0 + self.swing * places[:, 1]
        days = (1.5 + 3.0 * places[:, 0])[:, None] * np.cos(2.0 * np.pi * (hours - noon[:, None]) / 24.0)
        drifted = places[:, None, :] - hours[:, None] / 24.0 * self.wind  # (n, hours, 2)
        fronts = 2.0 * self.fronts.at(drifted) + 0.8 * hilly[:, None] * self.showers.at(drifted)
        return np.asarray(12.0 - height[:, None] + days + fronts)


@dataclass(frozen=True, eq=False)
class Network:
    """The error of a placement, in one weather."""

    weather: Weather
    truth: Array  # (places, hours)
    noise: Array  # (sensors, hours), the same for every placement

    @classmethod
    def of(cls, seed: int, sensors: int) -> "Network":
        """Return the weather of a seed."""
        weather = Weather.of(seed)
        noise = NOISE * np.random.default_rng([seed, 8]).standard_normal((sensors, HOURS))
        return cls(weather, weather.temperatures(PLACES), noise)

    def error(self, stand: Array) -> float:
        """Root mean squared, of the interpolation of what sensors at (n, 2) read."""
        readings = self.weather.temperatures(stand) + self.noise
        level = readings.mean(axis=0)
        ridge = 0.05 * np.eye(len(stand))  # two sensors at one place are one
        weights = cho_solve(cho_factor(_kernel(stand, stand) + ridge), readings - level)
        return float(np.sqrt(((level + _kernel(PLACES, stand) @ weights - self.truth) ** 2).mean()))

    def typical(self, seed: int) -> float:
        """The median error of 200 random placements."""
        stands = np.random.default_rng([seed, 9]).random((200, len(self.noise), 2))
        return float(np.median([self.error(stand) for stand in stands]))


def _kernel(x: Array, z: Array) -> Array:
    apart = ((x[:, None, :] - z[None, :, :]) ** 2).sum(axis=2)
    return np.asarray(np.exp(-0.5 * apart / REACH**2))


def moved(config: Mapping[str, float], previous: Mapping[str, float] | None) -> float:
    """|X' - X|_F; nothing for the first."""
    return 0.0 if previous is None else math.dist([*config.values()], [*previous.values()])


@cache
def problem_of(sensors: int) -> Problem:
    """Two coordinates a sensor."""
    names = [f"{axis}{sensor}" for sensor in range(sensors) for axis in "xy"]
    return Problem(Space({name: Float(0.0, 1.0) for name in names}), Minimize("error"), max_epochs=1)


def search(task: Task, sensors: int) -> Found:
    """The least error after each share of the budget, as a share of a typical one, and the costs."""
    _, policy, seed = task
    network = Network.of(seed, sensors)
    before: dict[str, Any] | None = None

    def train(trial: Trial) -> tuple[float, float]:
        nonlocal before
        stand = np.array([*trial.config.values()]).reshape(-1, 2)
        error, cost = network.error(stand), moved(trial.config, before)
        before = trial.config
        trial.report(error, cost=cost)
        return error, cost

    policies = POLICIES[policy](cost=moved)
    study = Study(problem_of(sensors), policies, seed=seed, budget=Budget(cost=BUDGET), verbose=0)
    curve, costs = progress(study, train, BUDGET)
    return curve / network.typical(seed), costs


def main(arguments: Sequence[str] | None = None) -> None:
    found = parser(__doc__, 20, ["sensors"])
    found.add_argument("--sensors", type=int, default=10)
    args = found.parse_args(arguments)
    panels = compare(partial(search, sensors=args.sensors), args)
    if args.svg:
        axes = Axes(f"5: {args.sensors} sensors", BUDGET, "distance moved", "least error, relative to a typical one")
        draw("rollout_sensors", panels, {"sensors": axes})


if __name__ == "__main__":
    main()
