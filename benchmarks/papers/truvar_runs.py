"""What the level-set benchmarks of TruVaR share: functions on a mesh, and searches of them paid for step by step."""

import argparse
import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from haltune import Budget, Maximize, Problem, Space, Study
from haltune.gp import Kernel
from haltune.policies.truvar.members import MemberSet
from haltune.ranks.agreement import alone


@dataclass(frozen=True)
class World:
    """One function to be searched."""

    space: Space
    values: dict[str, float]  # by the key of a configuration
    kernel: Kernel
    mean: float
    threshold: float
    start: dict[str, Any] | None = None


@dataclass(frozen=True)
class Run:
    """After each observation: what was spent, and F1; the costs by level, and the way taken."""

    spent: np.ndarray
    f1: np.ndarray
    levels: list[str]
    costs: np.ndarray
    way: np.ndarray

    def at(self, cost: float) -> float:
        """F1 when this much is spent, 0 before the first observation."""
        return (
            float(self.f1[np.searchsorted(self.spent, cost, side="right") - 1])
            if self.spent[0] <= cost
            else 0.0
        )

    def reaches(self, f1: float) -> float:
        """The cost after which F1 stays at this or above; infinite when it does not."""
        below = np.flatnonzero(self.f1 < f1)
        last = below[-1] + 1 if len(below) else 0
        return float(self.spent[last]) if last < len(self.spent) else np.inf


def search(policy: Any, world: World, seed: int, budget: float, cost: Callable[[Any, Any, Any], float],
           noise: dict[Any, float]) -> Run:  # fmt: skip
    """A study until the budget of cost is spent, or everything is classified."""
    truth = np.array([*world.values.values()]) >= world.threshold
    rng, problem = np.random.default_rng([seed, 1]), Problem(world.space, Maximize("value"), 1)
    with alone():
        study = Study(problem, policy, seed=seed, budget=Budget(trials=2000), verbose=0)
    rows: list[tuple[float, float, str, float, list[float]]] = []
    spent, previous = 0.0, None
    for trial in study:
        config, level = trial.config, trial.level
        paid = cost(config, previous, level)
        if spent + paid > budget:
            break
        noisy = np.sqrt(noise[level]) * rng.standard_normal()
        trial.report(world.values[world.space.key(config)] + noisy, seconds=1.0)
        trial.finish()
        spent, previous = spent + paid, config
        belief = policy.part(MemberSet).surrogate.belief(study.history, tuple(range(len(study.history))))
        rows.append((spent, f1(belief.field.mean >= world.threshold, truth), level, paid, [*config.values()]))
    costs, scores, levels, paid_each, way = zip(*rows, strict=True)
    return Run(np.array(costs), np.array(scores), [*levels], np.array(paid_each), np.array(way))


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
    print(f"\n{what + ': F1 at cost':34s}" + "".join(f"{m:>8d}" for m in marks))


def row(name: str, scores: Sequence[float]) -> None:
    """One line of a table."""
    print(f"{name:34s}" + "".join(f"{score:8.3f}" for score in scores), flush=True)


def show(found: dict[str, list[Run]], marks: Sequence[int]) -> None:
    """Mean F1 at costs."""
    head(f"mean of {len(next(iter(found.values())))}", marks)
    for name, runs in found.items():
        row(name, [float(np.mean([r.at(m) for r in runs])) for m in marks])


def parser(description: str | None, runs: int, figure: str) -> argparse.ArgumentParser:
    """The command line that these benchmarks share."""
    found = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    found.add_argument("--runs", type=int, default=runs)
    found.add_argument("--first", type=int, default=0, help="seed of the first run")
    found.add_argument("--figure", type=Path, default=Path(figure))
    return found


def quiet() -> None:
    """Searches say nothing but what is printed here."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
