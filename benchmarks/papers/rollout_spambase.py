"""Figure 5 of Lee et al. (2021), smaller: k-NN, decision trees and random forests on Spambase, within seconds.

    python benchmarks/papers/rollout_spambase.py [--seeds 12] [--sensitivity] [--models] [--cache FILE --data FOLDER]
        [--svg]

Searches minimise the validation error within a budget of 50 median trainings, in seconds. Every configuration of a grid
was really trained once; its error and seconds are in spambase_grids.npz. Searches read them in virtual time: the
study's clock advances by these seconds, decisions are free, and the output is the same again. Policies learn errors
and seconds from their trials alone. --cache FILE trains the grids again, which takes some minutes, and keeps them.

--sensitivity searches section 6.4's spaces instead: trees of depth [1, d], [1, 2d] and [1, 10d], d the least depth
whose best error is within a standard error of the least of all; and, as the time of a tree stops growing with its depth
soon after, forests of [1, n], [1, 2n] and [1, 10n] trees, with n chosen in the same way. The output has the cost of the
best one of each.

--models runs no search: it fits a Gaussian process to the errors, and one to the logarithms of the seconds, of 30
random configurations of each grid, and prints the rank correlation of its predictions with the rest of the grid. Where
section 6.4's spaces have the same configurations, which were trained again, it prints that of the two run times.

The output has the range of each grid's run times, as in figure 1, and means over seeds and standard errors of the least
error after a third, two thirds and all of the budget. Needs scikit-learn. FOLDER, or the variable HALTUNE_DATA, holds
spambase.csv (UCI, with a header), which the trained grids need.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
from command_line import data_file
from paired import cell
from scipy.stats import spearmanr
from spambase_learners import LEARNERS, SENSITIVITY, Learner, Mails
from within_budget import POLICIES, Array, Axes, Found, Task, compare, draw, parser, progress

from haltune import Budget, Minimize, Problem, Study, Trial
from haltune.gp import fit
from haltune.ranks import alone
from haltune.store.memory import MemoryStore
from haltune.study.session import clocked

SOME = 30  # configurations that a model learns from
TRAININGS = 50  # median ones, that the budget pays for
GRIDS = Path(__file__).with_name("spambase_grids.npz")
ALL = LEARNERS | SENSITIVITY
AGAIN = {"tree": "depth in [1, 10d]", "forest": "trees in [1, 10n]"}  # spaces that share configurations


@dataclass(frozen=True, eq=False)
class Table:
    """Every configuration of a grid, trained."""

    learner: Learner
    errors: Array
    seconds: Array

    @property
    def budget(self) -> float:
        """The budget in seconds."""
        return TRAININGS * float(np.median(self.seconds))

    def told(self) -> str:
        """Return the description of the best configuration and its cost."""
        best = int(np.argmin(self.errors))
        low, high = self.errors.min(), self.errors.max()
        shortest, longest = 1e3 * self.seconds.min(), 1e3 * self.seconds.max()
        median, own = float(np.median(self.seconds)), float(self.seconds[best])
        few, most = np.quantile(self.seconds, (0.05, 0.95))
        return (
            f"{len(self.errors)} configurations, errors {low:.4f} to {high:.4f}, median {np.median(self.errors):.4f}, "
            f"{shortest:.3g} to {longest:.3g} ms, a factor of {longest / shortest:.0f}, of the middle 90% "
            f"{most / few:.1f}, median {1e3 * median:.3g}, {1e3 * median / longest:.2f} of the longest; "
            f"the best costs {own / median:.2f} median trainings, more than {(self.seconds < own).mean():.0%} of all: "
            f"{[*self.learner.configs()][best]}"
        )


@dataclass
class Clock:
    """A clock that trainings advance."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


def measured(learner: Learner, data: Path) -> tuple[Array, Array]:
    """Errors and seconds of all configurations, in the order of the grid."""
    found = {learner.key(config): (error, spent) for config, error, spent in learner.trained(learner, Mails.read(data))}
    pairs = np.array([found[learner.key(config)] for config in learner.configs()])
    return pairs[:, 0], pairs[:, 1]


def measure(names: Sequence[str], data: Path | None, file: Path) -> None:
    """Train the configurations of these grids that the cache lacks."""
    kept = _read(file)
    for name in names:
        if f"{name}: errors" not in kept:
            print(f"{name}: training the grid", file=sys.stderr, flush=True)
            errors, seconds = measured(ALL[name], data_file(data, "spambase.csv").parent)
            kept |= {f"{name}: errors": errors, f"{name}: seconds": seconds}
            np.savez(file, allow_pickle=False, **kept)


@cache
def table(name: str, file: Path) -> Table:
    """A grid of the cache."""
    kept = _read(file)
    return Table(ALL[name], kept[f"{name}: errors"], kept[f"{name}: seconds"])


def predicted(grid: Table, seed: int) -> tuple[float, float]:
    """Return the rank correlations of predicted errors and run times, from `SOME` random configurations."""
    points = grid.learner.space.encode_many([*grid.learner.configs()])
    order = np.random.default_rng(seed).permutation(len(points))
    some, rest = order[:SOME], order[SOME:]
    errors, times = (
        spearmanr(fit(points[some], values[some]).mean(points[rest]), values[rest]).statistic
        for values in (grid.errors, np.log(grid.seconds))
    )
    return float(errors), float(times)


def measured_again(first: Table, second: Table) -> tuple[float, int]:
    """Return the rank correlation of run times that were measured twice, and their number."""
    again = {second.learner.key(c): s for c, s in zip(second.learner.configs(), second.seconds, strict=True)}
    keys = [*map(first.learner.key, first.learner.configs())]
    pairs = [(s, again[key]) for key, s in zip(keys, first.seconds, strict=True) if key in again]
    return float(spearmanr(*zip(*pairs, strict=True)).statistic), len(pairs)


def search(task: Task, file: Path) -> Found:
    """The least validation error after each share of the budget, and the costs."""
    name, policy, seed = task
    grid, clock = table(name, file), Clock()
    rows = {grid.learner.key(config): row for row, config in enumerate(grid.learner.configs())}
    problem = Problem(grid.learner.space, Minimize("error", bounds=(0, 1)), max_epochs=1)

    def train(trial: Trial) -> tuple[float, float]:
        row = rows[grid.learner.key(trial.config)]
        error, seconds = float(grid.errors[row]), float(grid.seconds[row])
        clock.now += seconds
        trial.report(error, seconds=seconds)
        return error, seconds

    budget = Budget(time=grid.budget, trials=len(grid.errors))  # none is trained twice
    with alone(), clocked(clock):
        study = Study(problem, POLICIES[policy](), MemoryStore(clock), seed=seed, budget=budget, verbose=0)
        return progress(study, train, grid.budget)


def main(arguments: Sequence[str] | None = None) -> None:
    found = parser(__doc__, 12, ALL)
    found.add_argument("--data", type=Path, help="folder of spambase.csv; default: HALTUNE_DATA")
    found.add_argument("--cache", type=Path, help="grids to train and keep, .npz; default: spambase_grids.npz")
    found.add_argument("--models", action="store_true", help="how well errors and run times are predicted")
    found.add_argument("--sensitivity", action="store_true", help="section 6.4's spaces instead")
    found.set_defaults(problem=None)
    args = found.parse_args(arguments)
    args.problem = args.problem or [*(SENSITIVITY if args.sensitivity else LEARNERS)]
    file = args.cache or GRIDS
    if args.cache:
        again = [AGAIN[name] for name in args.problem if args.models and name in AGAIN]
        measure([*args.problem, *again], args.data, file)
    for name in args.problem:
        print(f"{name}: {table(name, file).told()}", flush=True)
    if args.models:
        for name in args.problem:
            ranks = np.array([predicted(table(name, file), seed) for seed in range(args.seeds)])
            errors, times, less = (cell(c) for c in (*ranks.T, ranks[:, 0] - ranks[:, 1]))
            print(f"{name}: rank correlation of predictions: errors {errors}, run times {times}, difference {less}")
            if name in AGAIN:
                rank, count = measured_again(table(name, file), table(AGAIN[name], file))
                print(f"{name}: rank correlation of {count} run times that were measured twice: {rank:.3f}")
        return
    panels = compare(partial(search, file=file), args)
    grids = {name: table(name, file) for name in panels}
    if args.svg:
        name = "rollout_sensitivity" if args.sensitivity else "rollout_spambase"
        axes = {p: Axes(f"5: {p}", t.budget, "seconds", "least validation error") for p, t in grids.items()}
        draw(name, panels, axes)


def _read(file: Path) -> dict[str, Array]:
    if not file.is_file():
        return {}
    with np.load(file, allow_pickle=False) as kept:
        return dict(kept)


if __name__ == "__main__":
    main()
