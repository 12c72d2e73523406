"""What a path shows at an epoch, in cells: the statistics that optimal stopping decides by, and a grid over them.

The running mean of the errors of epochs 1..n is BO-BOS's statistic. Beside it a mean of the recent ones tells where the
run is going; what it says beyond the running mean (the rest of a regression over the paths) cuts each cell. Both are
observed up to the epoch of solving, simulated after it, and observed again at decision time. Each epoch has a grid of
its own over what the paths reach there; on one grid over [0, 1] all paths of a late epoch share a few cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from haltune._utils.arrays import Array, Array32, Indices

from .decay_curves import Paths

Cells = Indices  # (rows, paths): the column of each path at each epoch
_RECENT = 10.0  # the k-th error weighs in a recent mean as k^9: the last tenth of the epochs for two thirds
_TRIM = 0.01  # share of paths beyond each end of a grid, counted in its outer cells: paths have long tails
_TOLERANCE = 1e-6  # paths are float32: how far beyond the outermost path a statistic still counts as reached


@dataclass(frozen=True)
class Grids:
    """One even grid per epoch n0..horizon; the outer cells also hold what lies beyond the grid."""

    low: Array  # (rows,) lower edge of the first cell of the running mean
    scale: Array  # (rows,) cells per unit of error; 0 where all paths agree
    least: Array  # (rows,) smallest and largest running mean that a path reaches
    most: Array
    tilt: Array  # (rows,) how much the recent mean rises with the running mean, by least squares
    low_recent: Array  # (rows,) the same edges for the rest of the recent mean
    scale_recent: Array

    def column(self, row: int, errors: Array, cells: int, slopes: int) -> int | None:
        """Where errors (n,) fall into, or None where no path's mean went."""
        mean = float(errors.mean())
        if not self.least[row] - _TOLERANCE <= mean <= self.most[row] + _TOLERANCE:
            return None
        rest = recent_mean(errors) - self.tilt[row] * mean
        of_mean = int((mean - self.low[row]) * self.scale[row])
        of_rest = int((rest - self.low_recent[row]) * self.scale_recent[row])
        return min(max(of_mean, 0), cells - 1) * slopes + min(max(of_rest, 0), slopes - 1)


def recent_mean(errors: Array) -> float:
    """Of errors (n,), the k-th weighing as k^9; of paths the same epoch by epoch, see `through`."""
    recent = float(errors[0])
    for n, error in enumerate(errors[1:].tolist(), 2):
        recent += (error - recent) * _newest(n)
    return recent


def _newest(n: int) -> float:
    """The weight of the n-th error in the recent mean of n."""
    return _RECENT / (n + _RECENT - 1.0)


def through(paths: Paths, errors: Array, cells: int, slopes: int) -> tuple[Grids, Cells]:
    """The grids, and the column of each path at each epoch: epoch by epoch on vectors that stay in cache."""
    rows = len(paths.values) + 1
    edges = np.zeros((7, rows))
    found = np.empty((rows, paths.count), dtype=np.intp)
    total = np.full(paths.count, errors.sum(), dtype=np.float32)
    recent = np.full(paths.count, recent_mean(errors), dtype=np.float32)
    for row in range(rows):
        if row:
            total += paths.values[row - 1]
            recent += (paths.values[row - 1] - recent) * np.float32(_newest(paths.start + row))
        mean = total * np.float32(1.0 / (paths.start + row))
        tilt = _tilt(mean, recent)
        rest = recent - np.float32(tilt) * mean
        (low, scale), (low_recent, scale_recent) = _grid(mean, cells), _grid(rest, slopes)
        edges[:, row] = low, scale, mean.min(), mean.max(), tilt, low_recent, scale_recent
        found[row] = slopes * _bin(mean, low, scale, cells) + _bin(rest, low_recent, scale_recent, slopes)
    return Grids(*edges), found


def _tilt(mean: Array32, recent: Array32) -> float:
    """Slope of the recent mean over the running mean, by least squares; 0 where all running means agree."""
    centred = mean - mean.mean()
    variance = float(centred @ centred)
    return float(centred @ recent) / variance if variance > _TOLERANCE**2 * len(mean) else 0.0


def _grid(values: Array32, cells: int) -> tuple[float, float]:
    """Lower edge and cells per unit of one epoch's statistic."""
    low, high = np.quantile(values[:: max(1, values.size // 2000)], (_TRIM, 1.0 - _TRIM))
    return float(low), float(cells / (high - low)) if high - low > _TOLERANCE else 0.0


def _bin(values: Array32, low: float, scale: float, cells: int) -> Cells:
    """Cell of each path: arithmetic on an even grid, no sorting."""
    found: Cells = np.clip((values - np.float32(low)) * np.float32(scale), 0, cells - 1).astype(np.intp)
    return found
