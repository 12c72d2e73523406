"""Figure 3c of TruVaR: the error of a structured SVM over evaluations, and over recorded seconds.

    python benchmarks/papers/truvar_svm.py --data DIR [--seeds 30] [--figure FILE.html]

Data: svm_on_grid.csv, 25 x 14 x 4 configurations, each with its validation error and seconds. Every search starts at a
random configuration; kernels (Matern-5/2, a lengthscale for each parameter) are learnt anew every 3 evaluations. Values
are taken as exact. Shown: the best error so far of every seed, and its mean. With seconds as costs TruVaR learns them
from its own trials. At what value bad targets are clipped (`SiteSurrogate._floor`) was decided on the first ten
seeds: the mean of the others is shown beside.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import csv
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from truvar_figures import curves, panels, save
from truvar_runs import quiet

from haltune import Budget, Choice, Minimize, Problem, Space, Study
from haltune.policies import EI, GPUCB, EIPerCost, TruVaR
from haltune.ranks.agreement import alone

MARKS, SECONDS = (20, 30, 40, 60), (2_000, 5_000, 10_000, 20_000)
DECIDED = 10  # seeds that something of TruVaR was decided on
Row = tuple[float, float]  # seconds spent so far, the best error
METHODS: dict[str, Callable[[], Any]] = {
    "TruVaR": lambda: TruVaR(noise=0.0, initial=1),
    "EI": lambda: EI(initial=1, refit_every=3),
    "GP-UCB": lambda: GPUCB(initial=1, refit_every=3),
}
PRICED: dict[str, Callable[[], Any]] = {
    "TruVaR, costs learnt": lambda: TruVaR(noise=0.0, initial=1, cost_model="gp"),
    "TruVaR, costs known": lambda: TruVaR(noise=0.0, initial=1, cost=table.cost),
    "TruVaR": METHODS["TruVaR"],
    "EI per cost": lambda: EIPerCost(initial=1, refit_every=3),
}
PUBLISHED = {  # an independent implementation, 30 random starts
    "TruVaR, another": (0.2451, 0.2419, 0.2414, 0.2412),
    "EI, another": (0.2527, 0.2452, 0.2429, 0.2412),
}


class Table:
    """The recorded grid."""

    def __init__(self, folder: Path) -> None:
        with (folder / "svm_on_grid.csv").open() as lines:
            rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(lines)]
        names = [name for name in rows[0] if name not in ("error", "seconds")]
        self.space = Space({n: Choice(sorted({row[n] for row in rows}), ordered=True) for n in names})
        keys = self.space.keys([{n: row[n] for n in names} for row in rows])
        self.rows = {key: (row["error"], row["seconds"]) for key, row in zip(keys, rows, strict=True)}

    def cost(self, config: dict[str, Any]) -> float:
        """The recorded seconds."""
        return self.rows[self.space.key(config)][1]

    def search(self, policy: Any, seed: int, trials: int, seconds: float) -> list[Row]:
        """Seconds and the best error after each evaluation that ended within the seconds."""
        now, best, found = 0.0, np.inf, []
        with alone():
            problem = Problem(self.space, Minimize("error"), 1)
            study = Study(
                problem, policy, seed=seed, budget=Budget(trials=trials), monotonic=lambda: now, verbose=0
            )
        for trial in study:
            error, spent = self.rows[self.space.key(trial.config)]
            now += spent
            if now > seconds:
                break
            trial.report(error, seconds=spent)
            best = min(best, error)
            found.append((now, best))
        return found


def by_trials(seeds: int, most: int) -> dict[str, np.ndarray]:
    """(seeds, most) best errors of every method, printed as they come."""
    found = {}
    for name, make in METHODS.items():
        head(name, MARKS, "evaluations")
        runs = []
        for seed in range(seeds):
            runs.append([best for _, best in table.search(make(), seed, most, np.inf)])
            row(f"seed {seed}", [runs[-1][m - 1] for m in MARKS])
        found[name] = np.array(runs)
        means(found[name][:, np.array(MARKS) - 1])
    for name, errors in PUBLISHED.items():
        row(name, errors)
    return found


def by_seconds(seeds: int) -> None:
    """The same over recorded seconds."""
    for name, make in PRICED.items():
        head(name, SECONDS, "seconds")
        best = []
        for seed in range(seeds):
            run = table.search(make(), seed, 400, SECONDS[-1])
            best.append([min((e for s, e in run if s <= m), default=0.5) for m in SECONDS])
            row(f"seed {seed}, {len(run)} trials", best[-1])
        means(np.array(best))


def head(name: str, marks: Sequence[int], unit: str) -> None:
    """The first line of a table."""
    print(f"\n{name + ': best error after':34s}  " + "".join(f"{m:>9d}" for m in marks) + f"  {unit}")


def row(name: str, errors: Sequence[float]) -> None:
    """One line of a table."""
    print(f"{name:34s}  " + "".join(f"{e:9.4f}" for e in errors), flush=True)


def means(errors: np.ndarray) -> None:
    """Means of (seeds, marks) errors: of all, and of the seeds on which nothing was decided."""
    row(f"mean of {len(errors)} seeds", errors.mean(axis=0))
    if len(errors) > DECIDED:
        row(f"mean of seeds {DECIDED} to {len(errors) - 1}", errors[DECIDED:].mean(axis=0))


def draw(found: dict[str, np.ndarray], path: Path) -> None:
    """Figure 3c."""
    seeds = len(next(iter(found.values())))
    figure = panels(
        [f"Structured SVM on a grid, {seeds} random starts: mean and its standard error"], width=800
    )
    if figure is not None:
        curves(figure, 1, np.arange(1, max(MARKS) + 1), found, ("evaluations", "best validation error"))
        figure.update_yaxes(range=[0.2405, 0.265])
        save(figure, path)


def main() -> None:
    global table
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=os.environ.get("HALTUNE_DATA"))
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--figure", type=Path, default=Path("truvar_svm.html"))
    args = parser.parse_args()
    if args.data is None or not (Path(args.data) / "svm_on_grid.csv").is_file():
        sys.exit(
            f"svm_on_grid.csv is needed, and not in {args.data}: give --data FOLDER, or set HALTUNE_DATA"
        )
    table = Table(Path(args.data))
    quiet()
    draw(by_trials(args.seeds, max(MARKS)), args.figure)
    by_seconds(args.seeds)


if __name__ == "__main__":
    main()
