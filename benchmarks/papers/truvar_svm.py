"""Figure 3c of TruVaR: the error of a structured SVM over evaluations, and over recorded seconds.

    python benchmarks/papers/truvar_svm.py --data DIR [--seeds 30] [--figure FILE.html]

Data: svm_on_grid.csv, 25 x 14 x 4 configurations, each with its validation error and seconds. Every search starts at a
random configuration; kernels (Matern-5/2, a lengthscale for each parameter) are learnt anew every 3 evaluations. Values
are taken as exact. Shown: the mean over the seeds of the best error so far. With seconds as costs TruVaR learns them
from its own trials.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import csv
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from haltune import Budget, Choice, Minimize, Problem, Space, Study
from haltune.accord import alone
from haltune.policies import EI, GPUCB, EIPerCost, TruVaR

MARKS, SECONDS = (20, 30, 40, 60), (2_000, 5_000, 10_000, 20_000)
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
            study = Study(problem, policy, seed=seed, budget=Budget(trials=trials), monotonic=lambda: now)
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
    print(f"mean best error of {seeds} seeds after  " + "".join(f"{m:>9d}" for m in MARKS) + "  evaluations")
    found = {}
    for name, make in METHODS.items():
        runs = [[best for _, best in table.search(make(), seed, most, np.inf)] for seed in range(seeds)]
        found[name] = np.array(runs)
        print(f"{name:34s}  " + "".join(f"{found[name][:, m - 1].mean():9.4f}" for m in MARKS), flush=True)
    for name, errors in PUBLISHED.items():
        print(f"{name:34s}  " + "".join(f"{e:9.4f}" for e in errors))
    return found


def by_seconds(seeds: int) -> None:
    """The same over recorded seconds."""
    print(f"\nmean best error of {seeds} seeds after  " + "".join(f"{m:>9d}" for m in SECONDS) + "  seconds")
    for name, make in PRICED.items():
        runs = [table.search(make(), seed, 400, SECONDS[-1]) for seed in range(seeds)]
        means = [np.mean([min((e for s, e in run if s <= m), default=0.5) for run in runs]) for m in SECONDS]
        trials = np.mean([len(run) for run in runs])
        print(f"{name:34s}  " + "".join(f"{e:9.4f}" for e in means) + f"   {trials:.0f} trials", flush=True)


def draw(found: dict[str, np.ndarray], path: Path) -> None:
    """Means with one standard error. Says so when Plotly is missing."""
    try:
        import plotly.graph_objects as go
    except ImportError:
        print("\nno figure: it needs Plotly, pip install 'haltune[report]'")
        return
    figure = go.Figure()
    for name, errors in found.items():
        spread = errors.std(axis=0) / np.sqrt(len(errors))
        band = {"type": "data", "array": spread.tolist(), "thickness": 1, "width": 0}
        figure.add_scatter(
            x=list(range(1, errors.shape[1] + 1)), y=errors.mean(axis=0).tolist(), name=name, error_y=band
        )
    figure.update_layout(
        template="plotly_white", width=800, height=500, xaxis_title="evaluations", yaxis_title="best validation error",
        yaxis_range=[0.2405, 0.265], title=f"Structured SVM, {len(next(iter(found.values())))} random starts",
    )  # fmt: skip
    figure.write_html(path, include_plotlyjs=True)
    figure.write_json(path.with_suffix(".json"))
    print(f"\nfigure: {path}")


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
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    draw(by_trials(args.seeds, max(MARKS)), args.figure)
    by_seconds(args.seeds)


if __name__ == "__main__":
    main()
