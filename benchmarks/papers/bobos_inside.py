"""Figures 5 to 8 of BO-BOS (Dai et al. 2019): simulated curves, decisions, stops, and whether they were right.

    python benchmarks/papers/bobos_inside.py --data FOLDER [--seeds 3] [--trainings 30] [--keep FILE] [--svg]

The search of bobos_mnist.py with the paper's second sequence of K1 (K1 = 100 / 0.95^(t-1)); afterwards each stopped
trial is trained to its end. The table has the number of wrong stops: stopped trials that end below the smallest error
that was known when they were stopped. Figures 5 to 8 show seed 0, figures 5 and 6 its first stopped trial. FOLDER, or
the variable HALTUNE_DATA, holds mnist_10k.npz. The cache is that of bobos_mnist.py.
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from bobos_mnist import BOUNDS, HORIZON, PROBLEM, faithful
from command_line import command_line, data_file
from kept import kept
from mnist_logistic import load, remembered

from haltune import Budget, Study
from haltune.models.curves import conditional_paths
from haltune.policies import OptimalStopping

if TYPE_CHECKING:
    from drawn import Sheet

GROWTH = 1 / 0.95
INITIAL = faithful(GROWTH).initial
FIRST = 8  # N0, epochs before anything is decided
LOW, HIGH = BOUNDS  # where errors 0 and 1 of the score scale lie


@dataclass(frozen=True)
class Trained:
    """A run of the search, and how it would have gone on."""

    curve: list[float]  # 50 errors, trained to the end
    epochs: int  # of these the search had trained
    incumbent: float  # the smallest error that an earlier run had ended with; infinite for the first
    tables: list[int]  # of each decision, the epoch at which its table was solved

    @property
    def stopped(self) -> bool:
        """Before its end."""
        return self.epochs < HORIZON

    @property
    def wrong(self) -> bool:
        """It would have won."""
        return self.stopped and self.curve[-1] < self.incumbent


def search(seed: int, data: Path, cache: Path, epochs: int) -> list[Trained]:
    """The runs of one search, but for a last one that the budget cut, each trained to its end."""
    began, digits = time.process_time(), load(data)
    study = Study(PROBLEM, faithful(GROWTH), seed=seed, budget=Budget(epochs=epochs), verbose=0)
    tables: list[list[int]] = []
    for trial in study:
        with trial, closing(remembered(digits, trial.config, cache)) as errors:
            verdicts = [trial.report(next(errors)) for _ in trial.epochs()]
        tables.append([solved for verdict in verdicts if (solved := verdict.evidence.get("solved_at"))])
    runs: list[Trained] = []
    for record, solved in zip(study.trials, tables, strict=True):
        if record is study.trials[-1] and record.epoch < HORIZON:
            break  # the budget may have ended it, not the rule
        with closing(remembered(digits, record.config, cache)) as errors:
            curve = list(islice(errors, HORIZON))
        best = min((run.curve[run.epochs - 1] for run in runs), default=np.inf)
        runs.append(Trained(curve, int(record.epoch), float(best), solved))
    print(f"seed {seed}: {time.process_time() - began:.0f} s of CPU", file=sys.stderr, flush=True)
    return runs


def report(seeds: Sequence[list[Trained]]) -> None:
    """Print the stops, and the final values without them."""
    print(
        f"{'seed':>4s}{'runs':>6s}{'stopped':>9s}{'at epoch':>10s}{'wrongly':>9s}"
        "   best found  best had none been stopped   end of those stopped (median)   of the others"
    )
    rows = []
    for seed, runs in enumerate(seeds):
        stopped = [run for run in runs if run.stopped]
        others = [run.curve[-1] for run in runs if not run.stopped]
        ends = [run.curve[-1] for run in stopped] or [np.nan]
        found = min(run.curve[run.epochs - 1] for run in runs)
        best = min(run.curve[-1] for run in runs)
        at = np.mean([run.epochs for run in stopped]) if stopped else np.nan
        rows.append([len(runs), len(stopped), at, sum(run.wrong for run in runs), 100 * found, 100 * best])
        print(
            f"{seed:4d}{len(runs):6d}{len(stopped):9d}{at:10.1f}{rows[-1][3]:9.0f}{100 * found:12.2f}%"
            f"{100 * best:14.2f}%{100 * np.median(ends):30.2f}%{100 * np.median(others):22.2f}%"
        )
    table = np.array(rows)
    spread = table.std(axis=0, ddof=1) / np.sqrt(len(table)) if len(table) > 1 else 0 * table[0]
    words = ("runs", "stopped", "at epoch", "wrongly", "best found, %", "best had none been stopped, %")
    for word, m, s in zip(words, table.mean(axis=0), spread, strict=True):
        print(f"{word:30s}{m:8.2f} ± {s:.2f}")
    won = [f"{100 * (run.incumbent - run.curve[-1]):.2f}" for runs in seeds for run in runs if run.wrong]
    every, ends = [run for runs in seeds for run in runs], [run for runs in seeds for run in runs if run.stopped]
    above = np.array([100 * (run.curve[-1] - run.incumbent) for run in ends] or [np.nan])
    near = [100 * (run.curve[-1] - min(r.curve[-1] for r in runs)) for runs in seeds for run in runs[INITIAL:]]
    tables = [table for run in every for table in run.tables]
    last = [run.tables[-1] for run in ends]
    print(
        f"stopped trials would end above the incumbent by a median of {np.median(above):.2f} points, a quarter by more "
        f"than {np.quantile(above, 0.75):.2f}, {(above <= 0.15).sum()} by at most 0.15\n"
        f"half of the trials after the initial ones end within {np.median(near):.2f} points of the best\n"
        f"solved later than after epoch {FIRST}: {sum(t > FIRST for t in tables)} of {len(tables)} decisions, "
        f"{sum(t > FIRST for t in last)} of {len(last)} stops"
    )
    print(f"in all {len(won)} of {table[:, 1].sum():.0f} stops were wrong: by {', '.join(won) or '0'} points of error")


def draw_problem(runs: Sequence[Trained]) -> None:
    """Figures 5 and 6: of the first run that was stopped, the curves simulated and what was decided by them."""
    from drawn import Sheet, write

    t, run = next((t, run) for t, run in enumerate(runs, 1) if run.stopped)
    alt = "Left: curves simulated after 8 epochs of a run. Right: where its mean error stops it, continues, or wins."
    sheet = Sheet("bobos_inside_problem", alt)
    draw_paths(sheet, t, run)
    draw_rule(sheet, t, run)
    write(sheet)


def draw_paths(sheet: "Sheet", t: int, run: Trained) -> None:
    """Figure 5."""
    paths = conditional_paths(scaled(run.curve[:FIRST]), HORIZON, 40, np.random.default_rng(1)).values
    top = 5 * np.ceil(20 * run.curve[0] + 0.2)
    panel = sheet.panel(46, 320, (0, HORIZON), (0, top))
    panel.axes(f"Run {t}: simulated curves", "epochs", "validation error, %", range(0, 51, 10), _tens(top))
    ahead = list(range(FIRST, HORIZON + 1))
    for path in paths.T:
        curve = [100 * run.curve[FIRST - 1], *percent(path)]
        panel.line(ahead, np.clip(curve, 0, top).tolist(), "one", 1, opacity=0.4)
    panel.line(range(1, FIRST + 1), [100 * error for error in run.curve[:FIRST]], "ink", 2.5)
    panel.line((0, HORIZON), (100 * run.incumbent,) * 2, "two", 1.5, "5 4")
    panel.note(1, 100 * run.incumbent, "to beat", "two", dy=15)


def draw_rule(sheet: "Sheet", t: int, run: Trained) -> None:
    """Figure 6: averages of epochs 1 to n at which the trial is stopped (d1), counts as a winner (d2), or continues."""
    settings = OptimalStopping("faithful")  # K1 grows after the initial runs
    losses = settings.losses(settings.losses().K1 * GROWTH ** max(t - 1 - INITIAL, 0))
    threshold = float(scaled([run.incumbent])[0])
    table = settings.solve_at(scaled(run.curve[:FIRST]), HORIZON, threshold, losses, np.random.default_rng(0))
    width = 1 / np.where(table.grids.scale > 0, table.grids.scale, np.inf)
    edges = percent(table.grids.low[:, None] + width[:, None] * np.arange(101))  # (epochs, 101)
    means = 100 * np.cumsum(run.curve) / np.arange(1, HORIZON + 1)
    low, high = np.floor(edges[1:].min()), np.ceil(max(edges[1:].max(), means[0]))
    panel = sheet.panel(426, 320, (0, HORIZON), (low, high))
    words = "average validation error of epochs 1 to n, %"
    panel.axes("Decisions", "epochs", words, range(0, 51, 10), _tens(high, low))
    for row in range(1, len(table.decided)):  # at the first all paths agree
        n = FIRST + row
        for sign, name in ((-1, "two"), (1, "three")):
            for first, last in _stretches(table.decided[row] == sign):
                panel.cell((n - 0.5, n + 0.5), (edges[row, first], edges[row, last]), name, 0.45)
    panel.line(range(1, run.epochs + 1), means[: run.epochs].tolist(), "ink", 2)
    panel.cross(run.epochs, float(means[run.epochs - 1]))


def scaled(errors: Sequence[float]) -> np.ndarray:
    """Return the values on the rule's scale: 0 and 1 at the goal's bounds."""
    return np.clip((np.asarray(errors) - LOW) / (HIGH - LOW), 0.0, 1.0)


def percent(errors: np.ndarray) -> np.ndarray:
    """Back, in %."""
    return 100 * (LOW + (HIGH - LOW) * errors)


def draw_run(runs: Sequence[Trained]) -> None:
    """Figures 7 and 8: the learning curves, and where all runs end or would have ended."""
    from drawn import Sheet, write

    alt = "Left: learning curves of a search. Right: final errors of its trials, for stopped ones without the stop."
    sheet = Sheet("bobos_inside_run", alt)
    top = 50.0
    left = sheet.panel(46, 320, (0, HORIZON), (5, top))
    left.axes("Learning curves", "epochs", "validation error, %", range(0, 51, 10), _tens(top, 5))
    for run in runs[:40]:
        name = "two" if run.stopped else "three"
        curve = np.clip(100 * np.array(run.curve[: run.epochs]), 5, top)
        left.line(np.arange(1, run.epochs + 1).tolist(), curve.tolist(), name, 1.2, opacity=0.7)
        if run.stopped:
            left.cross(run.epochs, float(curve[-1]), name)
    right = sheet.panel(426, 320, (0, len(runs) + 1), (5, top))
    step = 10 if len(runs) > 25 else 5
    right.axes(
        "Final errors", "iteration", "validation error after 50 epochs, %", range(0, len(runs) + 1, step), _tens(top, 5)
    )
    for t, run in enumerate(runs, 1):
        end = float(np.clip(100 * run.curve[-1], 5, top))
        right.dots([t], [end], "two" if run.stopped else "three", 3.5)
    best = np.minimum.accumulate([run.curve[run.epochs - 1] for run in runs])
    right.steps(range(1, len(runs) + 1), (100 * best).tolist(), "ink")
    for panel in (left, right):
        panel.note(panel.x[1] * 0.5, 0.94 * top, "stopped", "two")
        panel.note(panel.x[1] * 0.5, 0.88 * top, "trained in full", "three")
    write(sheet)


def _tens(top: float, bottom: float = 0.0) -> list[float]:
    step = 10 if top - bottom > 20 else 5 if top - bottom > 10 else 2
    return np.arange(step * np.ceil(bottom / step), top + 1e-9, step).tolist()


def _stretches(where: np.ndarray) -> Iterator[tuple[int, int]]:
    """From and to (beyond) of what is true side by side."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], where.astype(int), [0]])))
    return zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = command_line(__doc__, 3, "mnist_10k.npz")
    parser.add_argument("--trainings", type=int, default=30, help="full trainings' worth of epochs")
    parser.add_argument("--cache", type=Path, help="folder that keeps trained curves from run to run")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    given = parsed(arguments)
    warnings.simplefilter("ignore")
    data = data_file(given.data, "mnist_10k.npz").parent
    with tempfile.TemporaryDirectory() as temporary:
        cache = given.cache or Path(temporary)
        cache.mkdir(parents=True, exist_ok=True)
        epochs = HORIZON * given.trainings
        found = kept(given, given.seeds, lambda seed: [asdict(run) for run in search(seed, data, cache, epochs)])
    seeds = [[Trained(**run) for run in runs] for runs in found]
    report(seeds)
    if given.svg:
        draw_problem(seeds[0])
        draw_run(seeds[0])


if __name__ == "__main__":
    main()
