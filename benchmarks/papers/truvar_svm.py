"""Figure 3c of TruVaR: the error of a structured SVM over evaluations, and over recorded seconds.

    python benchmarks/papers/truvar_svm.py --data DIR [--seeds 30] [--method NAME ...] [--keep FILE] [--svg]

Data: svm_on_grid.csv, 25 x 14 x 4 configurations, each with its validation error and seconds. Every search starts at a
random configuration; kernels (Matern-5/2, a lengthscale for each parameter) are learnt again every 3 evaluations.
Values count as exact. The output has the mean of the best error so far. With seconds as costs (--seconds) TruVaR learns
them from its own trials. The value at which bad targets are clipped (`SiteSurrogate._floor`) was chosen on the first
ten seeds; a second column has the mean of the others.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import drawn
import numpy as np
from command_line import command_line, data_file
from kept import Kept
from paired import differences
from truvar_runs import quiet

from haltune import Budget, Choice, Minimize, Problem, Space, Study
from haltune.policies import EI, GPUCB, TruVaR
from haltune.ranks import alone
from haltune.study.session import clocked

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
    "EI per cost": lambda: EI(cost="per", initial=1, refit_every=3),
}
PUBLISHED = {  # an independent implementation, 30 random starts
    "TruVaR, another": (0.2451, 0.2419, 0.2414, 0.2412),
    "EI, another": (0.2527, 0.2452, 0.2429, 0.2412),
}


class Table:
    """The recorded grid."""

    def __init__(self, file: Path) -> None:
        with file.open() as lines:
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
        with alone(), clocked(lambda: now):
            problem = Problem(self.space, Minimize("error"), 1)
            study = Study(problem, policy, seed=seed, budget=Budget(trials=trials), verbose=0)
        for trial in study:
            error, spent = self.rows[self.space.key(trial.config)]
            now += spent
            if now > seconds:
                break
            trial.report(error, seconds=spent)
            best = min(best, error)
            found.append((now, best))
        return found


def by_trials(methods: Sequence[str], seeds: int, most: int, kept: Kept) -> dict[str, np.ndarray]:
    """(seeds, most) best errors of each method."""
    found = {}
    head("best error after evaluations", MARKS)
    for name in methods:
        make = METHODS[name]
        runs = [
            kept(f"{name} {s} {most}", lambda make=make, s=s: table.search(make(), s, most, np.inf))
            for s in range(seeds)
        ]
        found[name] = np.array([[best for _, best in run] for run in runs])
        means(name, found[name][:, np.array(MARKS) - 1])
    differences({n: e[:, np.array(MARKS) - 1] for n, e in found.items()}, "TruVaR", [f"{m}" for m in MARKS])
    for name, errors in PUBLISHED.items():
        print(f"{name:34s}  " + "".join(f"{e:16.4f}" for e in errors))
    return found


def by_seconds(seeds: int, kept: Kept) -> None:
    """The same over recorded seconds."""
    head("best error after seconds", SECONDS)
    for name, make in PRICED.items():
        runs = [
            kept(f"{name} {s}, seconds", lambda make=make, s=s: table.search(make(), s, 400, SECONDS[-1]))
            for s in range(seeds)
        ]
        best = [[min((e for spent, e in run if spent <= m), default=0.5) for m in SECONDS] for run in runs]
        means(name, np.array(best))


def head(what: str, marks: Sequence[int]) -> None:
    """The first line of a table."""
    print(f"\n{what:34s}  " + "".join(f"{m:>16d}" for m in marks))


def means(name: str, errors: np.ndarray) -> None:
    """Means of (seeds, marks) errors and standard errors: of all, and of the seeds on which nothing was decided."""
    parts = {f"{name}, {len(errors)} seeds": errors}
    if len(errors) > DECIDED + 1:
        parts[f"  of them, {DECIDED} to {len(errors) - 1}"] = errors[DECIDED:]
    for label, part in parts.items():
        spread = part.std(axis=0, ddof=1) / np.sqrt(len(part)) if len(part) > 1 else np.full(part.shape[1], np.nan)
        cells = [f"{mean:.4f}±{error:.4f}" for mean, error in zip(part.mean(axis=0), spread, strict=True)]
        print(f"{label:34s}  " + "".join(f"{cell:>16s}" for cell in cells), flush=True)


def draw(found: dict[str, np.ndarray]) -> None:
    """Figure 3c."""
    sheet = drawn.Sheet("truvar_svm", "The best validation error over evaluations, of three methods", 760, 370)
    panel = drawn.panel(sheet, 70, 670, (0, max(MARKS)), (0.24, 0.265))
    seeds = len(next(iter(found.values())))
    title = f"3c: structured SVM on a grid, {seeds} random starts"
    panel.axes(title, "evaluations", "best validation error", range(0, 61, 10), (0.24, 0.245, 0.25, 0.255, 0.26, 0.265))
    drawn.means(panel, np.arange(1, max(MARKS) + 1), found)
    drawn.legend(sheet, found)
    drawn.write(sheet)


def main() -> None:
    global table
    parser = command_line(__doc__, 30, "svm_on_grid.csv")
    parser.add_argument("--seconds", action="store_true", help="over recorded seconds, too: longer")
    parser.add_argument("--method", nargs="+", choices=[*METHODS], default=[*METHODS])
    args = parser.parse_args()
    table = Table(data_file(args.data, "svm_on_grid.csv"))
    quiet()
    kept = Kept(args.keep)
    found = by_trials(args.method, args.seeds, max(MARKS), kept)
    if args.seconds:
        by_seconds(args.seeds, kept)
    if args.svg:
        draw(found)


if __name__ == "__main__":
    main()
