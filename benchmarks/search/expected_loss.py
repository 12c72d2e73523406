"""Losses of solved stopping rules on fresh paths of the posterior that they were solved for.

    python benchmarks/search/expected_loss.py --data DIR [--curves 28] [--seed 0]

Data: learning_curves.npz and training_curves.npz. A problem is the first 8 epochs of a recorded run and the best end of
ten others; problems without doubt about the winner are left out. Rules are solved on 20,000 paths and followed on
20,000 others. In `means`, the loss of continuing in a cell is the mean loss of the cells entered next, as in BO-BOS; in
the others it is the mean loss of the cell's own paths (haltune.policies.bobos.optimal_stopping).
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from lived import tasks

from haltune.models.curves import Paths, conditional_paths, power_law_paths
from haltune.policies.bobos.optimal_stopping import DecisionTable, Losses, grids_of, recent_mean, solve

START, COUNT = 8, 20_000
MODES = {"robust": (power_law_paths, Losses(500.0), 100), "faithful": (conditional_paths, Losses(100.0), 30)}
Solver = Callable[[Paths, np.ndarray, float, Losses, int], DecisionTable]


def realised(cells: int, slopes: int) -> Solver:
    return lambda paths, y, threshold, losses, visits: solve(
        paths, y, threshold, losses, cells, visits, slopes, saturated_loses=False
    )


def means(cells: int) -> Solver:
    """Algorithm 2 of BO-BOS on the same cells of the running mean."""

    def solved(paths: Paths, y: np.ndarray, threshold: float, losses: Losses, visits: int) -> DecisionTable:
        table = realised(cells, 1)(paths, y, threshold, losses, visits)
        columns, ahead = grids_of(paths, y, cells, 1)[1], np.full(table.p_win.shape, np.inf)
        value = np.zeros(cells)
        for row in reversed(range(len(columns))):
            if row < len(columns) - 1:
                entered = np.bincount(columns[row], value[columns[row + 1]], minlength=cells)
                ahead[row] = entered / np.maximum(np.bincount(columns[row], minlength=cells), 1)
            stop, win, further = losses.expected(table.p_win[row], ahead[row])
            decides = (table.visits[row] > visits) | np.isinf(further)
            value = np.where(decides, np.minimum(np.minimum(stop, win), further), further)
        return replace(table, next_value=ahead)

    return solved


RULES = {"means, 100 cells": means(100), "100 cells": realised(100, 1), "25 cells": realised(25, 1),
         "16 cells x 8 slopes": realised(16, 8), "25 cells x 8 slopes": realised(25, 8)}  # fmt: skip


def columns_of(table: DecisionTable, y: np.ndarray, paths: Paths) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Return the column of every path at each epoch, as Grids.column for one curve, and whether it left the grid."""
    grids, slopes = table.grids, table.slopes
    cells = table.visits.shape[1] // slopes
    total, recent = np.full(paths.count, y.sum()), np.full(paths.count, recent_mean(y))
    for row in range(len(paths.values) + 1):
        n = paths.start + row
        if row:
            total = total + paths.values[row - 1]
            recent = recent + (paths.values[row - 1] - recent) * 10.0 / (n + 9.0)
        mean = total / n
        rest = recent - grids.tilt[row] * mean
        of_mean = np.clip((mean - grids.low[row]) * grids.scale[row], 0, cells - 1).astype(int)
        of_rest = np.clip((rest - grids.low_recent[row]) * grids.scale_recent[row], 0, slopes - 1).astype(int)
        yield of_mean * slopes + of_rest, (mean < grids.least[row]) | (mean > grids.most[row])


def followed(table: DecisionTable, y: np.ndarray, paths: Paths) -> tuple[float, float]:
    """Mean loss and mean epoch of the end when `table` decides on these paths."""
    losses, last = table.losses, len(paths.values)
    wins, going = paths.values[-1] < table.threshold, np.ones(paths.count, dtype=bool)
    lost, ended = np.zeros(paths.count), np.full(paths.count, float(paths.horizon))
    for row, (column, left) in enumerate(columns_of(table, y, paths)):
        lost[going] += losses.c if row else 0.0
        stop, win, further = losses.expected(table.p_win[row][column], table.next_value[row][column])
        known = (table.visits[row][column] > table.min_visits) & ~left
        ends = going & ((known & (np.minimum(stop, win) <= further)) | (row == last))
        lost[ends] += np.where(stop <= win, losses.K1 * wins, losses.K2 * ~wins)[ends]
        ended[ends] = paths.start + row
        going &= ~ends
    return float(lost.mean()), float(ended.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=os.environ.get("HALTUNE_DATA"), help="folder of the curves")
    parser.add_argument("--curves", type=int, default=28)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    data = Path(args.data or ".")
    if not (data / "training_curves.npz").is_file():
        sys.exit(f"{data}/training_curves.npz is missing: name its folder by --data DIR or HALTUNE_DATA.")
    curves = [errors for errors, _ in tasks(data).values() if errors.shape[1] >= 45]
    rng, found = np.random.default_rng(args.seed), {}
    for nth in range(args.curves):
        errors = curves[nth % len(curves)]
        y, horizon = errors[rng.integers(len(errors)), :START], errors.shape[1]
        threshold = float(errors[rng.permutation(len(errors))[:10], -1].min())
        for mode, (draw, losses, visits) in MODES.items():
            known, fresh = (draw(y, horizon, COUNT, np.random.default_rng([nth, k])).kept() for k in (1, 2))
            if min(known.count, fresh.count) < 2000 or not 0.002 < np.mean(known.values[-1] < threshold) < 0.98:
                continue
            for name, solver in RULES.items():
                table = solver(known, y, threshold, losses, visits)
                found.setdefault((mode, name), []).append(followed(table, y, fresh))
    for (mode, name), rows in found.items():
        loss, epoch = np.mean(rows, axis=0)
        print(f"{mode:9s} {name:22s} {len(rows):3d} problems  mean loss {loss:6.2f}  ends at epoch {epoch:.1f}")


if __name__ == "__main__":
    main()
