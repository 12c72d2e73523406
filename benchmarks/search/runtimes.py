"""Searching recorded trainings that cost different times: mean regret after 10, 20 and 40 median runtimes.

    python benchmarks/search/runtimes.py --data DIR [--policy random gpucb] [--seeds 20]

Data: svm_on_grid.csv and logreg_on_grid.csv, a validation error and the seconds of every configuration of a grid; each
column is an ordered choice of its levels. Regret (error - min) / (median - min), at most 1. A training that would end
after the budget does not count. Policies learn errors and costs from the trials alone. A policy that plans by its
budget searches once for each of the three; with --anytime it searches with the largest, and is read at the others.
Random stream 100 * seed + table. Below a row is the published one, if there is one. --mirror reverses log seconds, so
that cheap configurations become expensive: a third and a fourth table, on which nothing was tuned.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import csv
import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from recorded import Array, found
from table import Row, header

from haltune import Budget, Choice, Minimize, Problem, Space, Study
from haltune.policies import EI, GPUCB, RandomSearch, Rollout
from haltune.ranks import alone
from haltune.store.memory import MemoryStore
from haltune.study.session import clocked

BUDGETS = (10, 20, 40)  # median runtimes of the table
FILES = {"svm": ("svm_on_grid.csv", "error"), "logreg": ("logreg_on_grid.csv", "valid_error")}
MEASURES = ("error", "valid_error", "test_error", "seconds")  # the other columns are the configuration


@dataclass(frozen=True)
class Method:
    """One policy, and what was published for it."""

    policy: Callable[[], Any]
    published: dict[str, tuple[float, ...]] | None = None


METHODS = {
    "random": Method(RandomSearch, {"svm": (0.391, 0.289, 0.153), "logreg": (0.568, 0.355, 0.135)}),
    "gpucb": Method(GPUCB),
    "ei": Method(EI, {"svm": (0.308, 0.094, 0.051), "logreg": (0.659, 0.362, 0.136)}),
    "ei-per-cost": Method(lambda: EI(cost="per"), {"svm": (0.311, 0.084, 0.033), "logreg": (0.482, 0.152, 0.013)}),
    "ei-cooled": Method(lambda: EI(cost="cooled"), {"svm": (0.369, 0.079, 0.012), "logreg": (0.588, 0.184, 0.070)}),
    "rollout": Method(Rollout),
    "rollout-4": Method(lambda: Rollout(4)),
    "rollout-paper": Method(lambda: Rollout(cooled=False)),
}
PUBLISHED = {
    "EI (GP)": ((0.308, 0.094, 0.051), (0.659, 0.362, 0.136)),
    "EI per cost": ((0.361, 0.035, 0.011), (0.571, 0.172, 0.024)),
    "EI per cost, 2 initial points": ((0.311, 0.084, 0.033), (0.482, 0.152, 0.013)),
    "EI, cost cooling": ((0.369, 0.079, 0.012), (0.588, 0.184, 0.070)),
    "Optuna GP (10 seeds)": ((0.568, 0.272, 0.037), (0.583, 0.330, 0.030)),
    "Optuna TPE (10 seeds)": ((0.568, 0.228, 0.076), (0.620, 0.465, 0.170)),
    "EI per true cost (an oracle)": ((0.333, 0.108, 0.027), (0.550, 0.077, 0.021)),
}


@dataclass(frozen=True)
class Grid:
    """A full grid of configurations, each with its error and its seconds."""

    name: str
    number: int
    space: Space
    rows: dict[str, int]  # key of a configuration -> row
    errors: Array
    seconds: Array

    @classmethod
    def read(cls, name: str, number: int, folder: str | None) -> "Grid":
        """From its file. Exits with what is missing."""
        file, measure = FILES[name]
        with found(folder, file).open() as lines:
            table = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(lines)]
        names = [column for column in table[0] if column not in MEASURES]
        levels = {n: Choice(sorted({row[n] for row in table}), ordered=True) for n in names}
        space = Space(levels)
        keys = space.keys([{n: row[n] for n in names} for row in table])
        errors, seconds = (np.array([row[column] for row in table]) for column in (measure, "seconds"))
        return cls(name, number, space, {key: row for row, key in enumerate(keys)}, errors, seconds)

    def mirrored(self) -> "Grid":
        """Return the same errors with reversed costs: the most expensive is the cheapest."""
        logs = np.log(self.seconds)
        return replace(self, seconds=np.exp(logs.min() + logs.max() - logs))

    def regrets(self, policy: Any, seed: int, anytime: bool = False) -> list[float]:
        """After each budget: the least regret of the trainings that had ended by then."""
        limits = [b * float(np.median(self.seconds)) for b in BUDGETS]
        if policy.plans and not anytime:
            return [self._regret(self.ended(policy, seed, limit), limit) for limit in limits]
        ended = self.ended(policy, seed, max(limits))
        return [self._regret(ended, limit) for limit in limits]

    def ended(self, policy: Any, seed: int, limit: float) -> list[tuple[float, float]]:
        """(when, the best error by then) for each training of one search that ended within `limit` seconds."""
        clock = Clock()
        problem = Problem(self.space, Minimize("error"), max_epochs=1)
        best, ended = np.inf, []
        budget = Budget(time=limit, trials=len(self.errors))
        with alone(), clocked(clock):
            study = Study(problem, policy, MemoryStore(clock), seed=100 * seed + self.number, budget=budget, verbose=0)
        for trial in study:
            row = self.rows[self.space.key(trial.config)]
            clock.now += float(self.seconds[row])
            trial.report(float(self.errors[row]), seconds=float(self.seconds[row]))
            if clock.now > limit:
                break
            best = min(best, float(self.errors[row]))
            ended.append((clock.now, best))
        return ended

    def _regret(self, ended: list[tuple[float, float]], until: float) -> float:
        best = min((error for when, error in ended if when <= until), default=np.inf)
        low = float(self.errors.min())
        return min(1.0, (best - low) / (float(np.median(self.errors)) - low))


@dataclass
class Clock:
    """A clock that trainings advance."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of the tables")
    parser.add_argument("--policy", nargs="+", choices=[*METHODS], default=[*METHODS])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--table", nargs="+", choices=[*FILES], default=[*FILES])
    parser.add_argument("--anytime", action="store_true", help="tell planners the largest budget alone")
    parser.add_argument("--mirror", action="store_true", help="what is cheap becomes expensive")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # the last training of each search is cut short
    for number, name in enumerate(FILES):
        if name not in args.table:
            continue
        grid = Grid.read(name, number, args.data)
        grid = grid.mirrored() if args.mirror else grid
        print(header(f"{name}, regret after median runtimes", BUDGETS, ""))
        for policy in args.policy:
            show(policy, grid, args.seeds, args.anytime, published=not args.mirror)
        for peer, rows in PUBLISHED.items() if not args.mirror else ():
            print(f"  {peer:32s}        " + "  ".join(f"{v:.3f}      " for v in rows[number]))


def show(name: str, grid: Grid, seeds: int, anytime: bool, published: bool = True) -> None:
    """The row of a policy, the published one beneath it."""
    method, begin = METHODS[name], time.perf_counter()
    row = Row.of(np.array([[grid.regrets(method.policy(), seed, anytime) for seed in range(seeds)]]))
    spent = 1e3 * (time.perf_counter() - begin) / seeds
    print(f"{name:34s} {seeds:5d}  {row.text()}  {spent:6.0f} ms a search", flush=True)
    if published and method.published:
        print(f"{'  published':34s} {20:5d}  {row.against(method.published[grid.name], 20)}")


if __name__ == "__main__":
    main()
