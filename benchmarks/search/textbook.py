"""Why a published row of textbook Hyperband ends at .134: its readings, each over hundreds of seeds, and its chance.

    python benchmarks/search/textbook.py --data DIR [--seeds 400] [--replayed 5]

The row (BENCHMARK of `curves.py --policy hyperband_textbook`): regret .481, .317, .272, .185, .134 after 2, 5, 10, 20
and 40 full trainings, 20 seeds. Here Hyperband is a dozen lines of NumPy, so that a search takes a millisecond, and
what the row's words leave open is varied: how r_i is rounded, which sizes, the order of brackets, how configurations
are drawn, when incumbents count. For every reading: the mean with its standard error, the standard error of a mean of
20 seeds at 40 trainings, how often such a mean is at least .134, and by chi squared how well the five published
numbers fit together. First `--replayed` seeds of haltune's own searches are replayed on the rows that they drew: the
regrets must agree to the digit.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from methods import BUDGETS, METHODS, TextbookHyperband
from numpy.typing import NDArray
from recorded import Array, Meter, Task, load, search
from scipy.stats import chi2

from haltune.policies.hyperband.brackets import Sizes, hyperband

R, SEEDS = 50, 20  # epochs; seeds of the published row
PUBLISHED = np.array(METHODS["hyperband_textbook"].published, dtype=np.float64)
Rows = NDArray[np.intp]
Rungs = list[tuple[int, int]]  # how many train until which epoch


@dataclass(frozen=True)
class Reading:
    """A reading of the words of the published row."""

    name: str
    rounding: Literal["nearest", "down"] = "nearest"  # of r_i
    sizes: Sizes = "line2"
    drawn: Literal["points", "rows", "again"] = "points"  # nearest untried row of a uniform point, or uniform rows
    order: Literal[1, -1] = 1  # -1: the least exploratory bracket first
    resume: bool = True
    rungs_only: bool = False  # incumbents are scores at the ends of rungs, not at any epoch
    rounds: int = 99  # through all brackets, then it ends

    def brackets(self) -> list[Rungs]:
        """Return the brackets of one round, in their order."""
        whole = round if self.rounding == "nearest" else int
        made = hyperband(R, 3, sizes=self.sizes, whole=False).brackets[:: self.order]
        return [[(rung.n, max(1, whole(rung.resource))) for rung in bracket.rungs] for bracket in made]


READINGS = (
    Reading("as it says"),
    Reading("r_i rounded down", rounding="down"),
    Reading("sizes of table 1", sizes="table1"),
    Reading("random search's bracket first", order=-1),
    Reading("winners start again", resume=False),
    Reading("incumbents at rungs alone", rungs_only=True),
    Reading("ends after two rounds", rounds=2),
    Reading("rows drawn uniformly", drawn="rows"),
    Reading("rows drawn, some again", drawn="again"),
    Reading("uniform rows, sizes of table 1", drawn="rows", sizes="table1"),
    Reading("uniform rows, r_i rounded down", drawn="rows", rounding="down"),
)


def drawn(task: Task, kind: str, seed: int) -> Rows:
    """The rows that trials get, in order; as many as any reading takes."""
    rng = np.random.default_rng([seed, task.number])
    n, count = task.points.shape[0], 200
    if kind != "points":
        return rng.permutation(n)[:count] if kind == "rows" else rng.integers(n, size=count)
    free, rows = np.ones(n, dtype=bool), np.empty(count, dtype=np.intp)
    points = rng.uniform(size=(count, task.points.shape[1]))
    away = (task.points**2).sum(axis=1) - 2.0 * points @ task.points.T
    for i, row in enumerate(away.argmin(axis=1)):
        rows[i] = row if free[row] else np.where(free, away[i], np.inf).argmin()
        free[rows[i]] = False
    return rows


def regrets(task: Task, rows: Rows, reading: Reading) -> Array:
    """(budgets,) of one search."""
    scores, paid, taken, seen = task.scores, 0, 0, [np.zeros(1)]
    for bracket in reading.brackets() * reading.rounds:
        alive, before = rows[taken : taken + bracket[0][0]], 0
        taken += len(alive)
        for n, epoch in bracket:
            if before:
                alive = alive[np.argsort(-scores[alive, before - 1], kind="stable")[:n]]
            epochs = scores[alive, before if reading.resume else 0 : epoch].copy()
            if reading.rungs_only:
                epochs[:, :-1] = 0.0
            seen.append(epochs.ravel())
            paid, before = paid + epochs.size, epoch
        if paid >= max(BUDGETS) * R:
            break
    incumbents = np.maximum.accumulate(np.concatenate(seen))
    return task.regret(incumbents[np.minimum(np.array(BUDGETS) * R, len(incumbents) - 1)])


def replayed(tasks: Sequence[Task], seeds: int) -> float:
    """The largest difference between haltune's regrets and those of its rows replayed here."""
    worst = 0.0
    for task in tasks:
        for seed in range(seeds):
            meter, rows = Meter(task, max(BUDGETS) * R), []
            take = meter.take
            meter.take = lambda point, take=take, rows=rows: rows.append(take(point)) or rows[-1]  # type: ignore[method-assign]
            search(TextbookHyperband(rounds=None), meter, 100 * seed + task.number)
            ours = meter.after([b * R for b in BUDGETS])
            again = regrets(task, np.array([*rows, *np.flatnonzero(meter.free)]), Reading("as it says"))
            worst = max(worst, float(np.abs(ours - again).max()))
    return worst


def told(reading: Reading, values: Array) -> str:
    """A line of the table, from regrets (tasks, seeds, budgets)."""
    tasks, seeds = values.shape[:2]
    mean = values.mean(axis=(0, 1))
    spread = sum(np.cov(of, rowvar=False) for of in values) / tasks**2  # of the mean of one seed
    away = PUBLISHED - mean
    fits = chi2.sf(away @ np.linalg.solve(spread * (1 / SEEDS + 1 / seeds), away), len(away))
    rng = np.random.default_rng(0)
    means = np.mean([of[rng.integers(seeds, size=(10_000, SEEDS)), -1].mean(axis=1) for of in values], axis=0)
    cells = " ".join(f"{m:.3f}±{e:.3f}" for m, e in zip(mean, np.sqrt(np.diag(spread) / seeds), strict=True))
    chance = float((means >= PUBLISHED[-1]).mean())
    return f"{reading.name:32s} {cells}   ±{np.sqrt(spread[-1, -1] / SEEDS):.3f} {chance:11.3f} {fits:9.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of learning_curves.npz")
    parser.add_argument("--seeds", type=int, default=400)
    parser.add_argument("--replayed", type=int, default=5, help="seeds of haltune's own; 0: none")
    options = parser.parse_args()
    tasks = load(options.data)
    if options.replayed:
        worst = replayed(tasks, options.replayed)
        print(f"haltune's searches, replayed: {len(tasks) * options.replayed}, regrets differ by {worst:.1g} at most")
    print(
        f"{'regret after trainings':32s} " + " ".join(f"{b:<11d}" for b in BUDGETS) + "   of 20   .134 or more   fits"
    )
    print(f"{'published':32s} " + " ".join(f"{value:<11.3f}" for value in PUBLISHED))
    rows = {
        kind: [[drawn(t, kind, s) for s in range(options.seeds)] for t in tasks] for kind in ("points", "rows", "again")
    }
    for reading in READINGS:
        of = rows[reading.drawn]
        found = [[regrets(t, r, reading) for r in of[k]] for k, t in enumerate(tasks)]
        print(told(reading, np.array(found)), flush=True)


if __name__ == "__main__":
    main()
