"""Shared parts of TruVaR's level-set benchmarks: functions on a mesh, and searches with a cost for each step."""

import argparse
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from command_line import command_line
from kept import Kept

from haltune import Budget, Maximize, Problem, Space, Study
from haltune.gp import Kernel
from haltune.log.events import Started
from haltune.policies.truvar.choice import MemberSet
from haltune.ranks import alone


@dataclass(frozen=True)
class World:
    """One function to be searched."""

    space: Space
    values: dict[str, float]  # by the key of a configuration
    kernel: Kernel
    mean: float
    threshold: float

    @property
    def above(self) -> np.ndarray:
        """(points,) what is to be found."""
        return np.array([*self.values.values()]) >= self.threshold


@dataclass(frozen=True)
class Run:
    """After each observation what was spent, and F1; its cost, value, place, level, and the stage of its choice."""

    spent: np.ndarray
    f1: np.ndarray
    unsure: np.ndarray  # mean posterior deviation where the truth is above the threshold; NaN if it is nowhere
    costs: np.ndarray
    truths: np.ndarray  # without noise
    way: np.ndarray  # (observations, 2)
    levels: list[str | None]
    stages: list[int]

    def at(self, cost: float, what: str = "f1", before: float = 0.0) -> float:
        """F1 when this much is spent, 0 before the first observation; or another of its arrays."""
        seen = int(np.searchsorted(self.spent, cost, side="right"))
        return float(getattr(self, what)[seen - 1]) if seen else before

    def reaches(self, f1: float) -> float:
        """The cost after which F1 stays at this or above; infinite when it does not."""
        below = np.flatnonzero(self.f1 < f1)
        last = below[-1] + 1 if len(below) else 0
        return float(self.spent[last]) if last < len(self.spent) else np.inf


class KeptRuns(Kept):
    """Finished runs in a file, which are not run again."""

    def run(self, key: str, make: Callable[[], Run]) -> Run:
        """A Run."""
        row = self(key, lambda: {k: v if isinstance(v, list) else v.tolist() for k, v in vars(make()).items()})
        return Run(**{k: v if k in ("levels", "stages") else np.array(v) for k, v in row.items()})


def search(policy: Any, world: World, seed: int, budget: float, cost: Callable[[Any, Any, Any], float],
           noise: dict[Any, float]) -> Run:  # fmt: skip
    """A study until the budget of cost is spent, or everything is classified."""
    truth = world.above
    rng, problem = np.random.default_rng([seed, 1]), Problem(world.space, Maximize("value"), 1)
    with alone():
        study = Study(problem, policy, seed=seed, budget=Budget(trials=2000), verbose=0)
    rows: list[tuple[Any, ...]] = []
    spent, previous = 0.0, None
    for trial in study:
        config, level = trial.config, trial.level
        paid, value = cost(config, previous, level), world.values[world.space.key(config)]
        if spent + paid > budget:
            break
        trial.report(value + np.sqrt(noise[level]) * rng.standard_normal(), seconds=1.0)
        trial.finish()
        spent, previous = spent + paid, config
        field = policy.part(MemberSet).surrogate.belief(study.history, tuple(range(len(study.history)))).field
        unsure = float(np.sqrt(field.variance[truth]).mean()) if truth.any() else np.nan
        score = f1(field.mean >= world.threshold, truth)
        rows.append((spent, score, unsure, paid, value, [*config.values()], level))
    *arrays, levels = zip(*rows, strict=True)
    begun = [event.evidence for event in study.session.replica.events() if isinstance(event, Started)]
    stages = [int(evidence.get("stage", 1)) for evidence in begun[: len(rows)]]
    return Run(*(np.array(a) for a in arrays), [*levels], stages)


def f1(found: np.ndarray, truth: np.ndarray) -> float:
    """The harmonic mean of precision and recall; 1 when there is nothing to find and nothing was found."""
    both = int((found & truth).sum())
    total = int(found.sum() + truth.sum())
    return 2.0 * both / total if total else 1.0


def scores(found: dict[str, list[Run]], marks: np.ndarray) -> dict[str, np.ndarray]:
    """(runs, marks) F1 of each method."""
    return {name: np.array([[run.at(m) for m in marks] for run in runs]) for name, runs in found.items()}


def head(what: str, marks: Sequence[int]) -> None:
    """The first line of a table."""
    print(f"\n{what:34s}" + "".join(f"{m:>13d}" for m in marks))


def row(name: str, values: Sequence[float]) -> None:
    """One line of a table."""
    print(f"{name:34s}" + "".join(f"{value:13.3f}" for value in values), flush=True)


def means(name: str, values: np.ndarray) -> None:
    """A line of the means of (runs, marks) values and their standard errors."""
    errors = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.full(values.shape[1], np.nan)
    cells = [f"{mean:.3f}±{error:.3f}" for mean, error in zip(values.mean(axis=0), errors, strict=True)]
    print(f"{name:34s}" + "".join(f"{cell:>13s}" for cell in cells), flush=True)


def show(found: dict[str, list[Run]], marks: Sequence[int], unit: str = "cost") -> None:
    """Mean F1 at costs."""
    head(f"mean F1 of {len(next(iter(found.values())))} runs after {unit}", marks)
    for name, values in scores(found, np.array(marks)).items():
        means(name, values)


def parser(description: str | None, runs: int) -> argparse.ArgumentParser:
    """The command line that these benchmarks share."""
    found = command_line(description, runs, word="runs")
    found.add_argument("--first", type=int, default=0, help="seed of the first run")
    return found


def quiet() -> None:
    """Silence the searches; only this script prints."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
