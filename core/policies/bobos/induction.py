"""Bayesian optimal stopping of one run: simulated paths in, a table of decisions out.

Notation (BO-BOS, equations 2 to 4 and appendices A, B)

    stop      d1: stop, concluding that the full training would not beat the incumbent
    win       d2: conclude that it would; nobody stops a winner, so it means: go on training
    continue  d0: pay c, see one more epoch, decide then
    p_win     Pr(final error < threshold | statistic)
    losses    K1 p_win for stop, K2 (1 - p_win) for win, c + E[value of the next epoch] for continue

The statistic is the running mean of the errors of epochs 1..n: observed up to the epoch of solving,
simulated after it, and observed again at decision time. Each epoch has a grid of its own over what the
paths reach there; on one grid over [0, 1] all paths of a late epoch share a few cells.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from haltune._utils.arrays import Array, Array32, Mask
from haltune.errors import InvalidInput

from .decay_curves import Paths, checked_errors

Decision = Literal["stop", "win", "continue"]
Counts = NDArray[np.int64]  # (rows - 1, 2, cells, cells): lost or won, from cell, to cell

MIN_PATHS = 1000  # survivors in [0, 1] below which nothing is decided
_TRIM = 0.01  # share of paths beyond each end of a grid, counted in its outer cells: paths have long tails
_EDGE = 1e-6  # paths are float32: how far beyond the outermost path a statistic still counts as reached


@dataclass(frozen=True)
class Losses:
    """The 0-K losses: K1 for a wrong stop, K2 for a wrong win, c for each further epoch."""

    K1: float = 100.0  # may be infinite: then nothing is ever stopped
    K2: float = 99.0
    c: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("K1", self.K1), ("K2", self.K2), ("c", self.c)):
            finite = np.isfinite(value) or (name == "K1" and value == np.inf)
            if not (finite and (value > 0.0 or (name == "c" and value == 0.0))):
                raise InvalidInput(
                    f"{name} is {value}; K1 and K2 are positive, c is at least 0, only K1 may be infinite."
                )

    @property
    def bound(self) -> float:
        """Lemma 8: no stop is made where p_win exceeds (K2 + c) / K1."""
        return wrong_stop_bound(self)


def wrong_stop_bound(losses: Losses) -> float:
    """Lemma 8: the largest simulated probability of winning, (K2 + c) / K1, at which a stop can be made."""
    return min(1.0, (losses.K2 + losses.c) / losses.K1)


def losses_for(wrong_stop: float, K2: float = 99.0, c: float = 1.0) -> Losses:
    """The losses whose lemma 8 bound is `wrong_stop`, in (0, 1]: K1 = (K2 + c) / wrong_stop."""
    if not 0.0 < wrong_stop <= 1.0:
        raise InvalidInput(f"wrong_stop is {wrong_stop}; it is a probability in (0, 1], for example 0.02.")
    return Losses((K2 + c) / wrong_stop, K2, c)


@dataclass(frozen=True)
class StopDecision:
    """What to do after an epoch, with its numbers (NaN where nothing was estimated)."""

    d: Decision
    p_win: float  # simulated Pr(final error < threshold)
    loss_stop: float  # K1 p_win
    loss_win: float  # K2 (1 - p_win)
    loss_continue: float  # c + expected loss from the next epoch on
    bound: float  # lemma 8's (K2 + c) / K1
    basis: str  # "solved", "rare", "saturated", "few paths" or "waiting": what the decision rests on


@dataclass(frozen=True)
class Grids:
    """One even grid per epoch n0..horizon; the outer cells also hold what lies beyond the grid."""

    low: Array  # (rows,) lower edge of the first cell
    scale: Array  # (rows,) cells per unit of error; 0 where all paths agree
    least: Array  # (rows,) smallest and largest statistic that a path reaches
    most: Array


@dataclass(frozen=True)
class DecisionTable:
    """Decisions for epochs start..horizon (rows) by cell of the running mean (columns)."""

    start: int  # n0, the epoch it was solved at; row 0, one cell
    horizon: int
    threshold: float  # the incumbent's error, xi already taken off
    losses: Losses
    basis: str  # "solved", "saturated" or "few paths"
    min_visits: int
    grids: Grids
    visits: NDArray[np.int64]  # (rows, cells) paths through each cell
    p_win: Array  # (rows, cells)
    next_value: Array  # (rows, cells) mean value of the cells reached one epoch later; inf in the last row

    def decide(self, errors: ArrayLike) -> StopDecision:
        """The decision after epoch n given errors (n,), start <= n <= horizon, else InvalidInput."""
        y = np.asarray(errors, dtype=np.float64)
        row = y.size - self.start
        if y.ndim != 1 or not 0 <= row <= self.horizon - self.start:
            raise InvalidInput(
                f"errors has shape {y.shape}; this table decides epochs {self.start} to {self.horizon}."
            )
        if self.basis != "solved":
            return self._without_paths(y)
        statistic = float(y.mean())
        cell = self._cell(row, statistic)
        if cell is None or self.visits[row, cell] <= self.min_visits:
            return undecided("rare", self.losses)
        return _least_loss(float(self.p_win[row, cell]), float(self.next_value[row, cell]), self.losses)

    def _cell(self, row: int, statistic: float) -> int | None:
        """The column a statistic falls into, or None where no path went."""
        grids = self.grids
        if not grids.least[row] - _EDGE <= statistic <= grids.most[row] + _EDGE:
            return None
        cell = int((statistic - grids.low[row]) * grids.scale[row])
        return min(max(cell, 0), int(self.visits.shape[1]) - 1)

    def _without_paths(self, y: Array) -> StopDecision:
        """Saturated at the worst error counts as losing for as long as it stays there; else go on."""
        if self.basis == "saturated" and y.min() >= 1.0 and np.isfinite(self.losses.K1):
            return StopDecision(
                "stop", 0.0, 0.0, self.losses.K2, self.losses.c, self.losses.bound, self.basis
            )
        return undecided(self.basis, self.losses)


def undecided(basis: str, losses: Losses) -> StopDecision:
    nan = float("nan")
    return StopDecision("continue", nan, nan, nan, nan, losses.bound, basis)


def _least_loss(p_win: float, next_value: float, losses: Losses) -> StopDecision:
    stop = losses.K1 * p_win if np.isfinite(losses.K1) else np.inf  # inf * 0 is NaN
    win = losses.K2 * (1.0 - p_win)
    go_on = losses.c + next_value
    d: Decision = "continue"
    if min(stop, win) <= go_on:
        d = "stop" if stop <= win else "win"
    return StopDecision(d, p_win, stop, win, go_on, losses.bound, "solved")


def solve(
    paths: Paths,
    errors_so_far: ArrayLike,
    threshold: float,
    losses: Losses,
    cells: int = 100,
    min_visits: int = 30,
    *,
    min_paths: int = MIN_PATHS,
    saturated_loses: bool = True,
) -> DecisionTable:
    """Approximate backward induction (algorithm 2) over the running mean of epochs 1..n.

    `threshold` is the error that the run's last epoch must get below to beat the incumbent. Paths that leave
    [0, 1] are dropped; with fewer than `min_paths` left every decision is to continue. Errors that are all
    the worst possible, 1, count as losing to any better incumbent, unless `saturated_loses` is False because
    the paths model that.
    A cell visited by `min_visits` paths or fewer decides to continue, while its value c + mean of the next
    values still enters the recursion.
    Raises InvalidInput for errors outside [0, 1], of another length than paths.start, or a NaN threshold.
    """
    y = checked_errors(errors_so_far)
    _check_problem(paths, y, threshold, cells)
    if saturated_loses and y.min() >= 1.0 > threshold:
        return _without_table(paths, threshold, losses, "saturated")
    kept = paths.kept()
    if kept.count < min_paths:
        return _without_table(paths, threshold, losses, "few paths")
    wins = kept.values[-1] < np.float32(threshold)
    grids, counts = _count(kept, y, wins, cells)
    visits, p_win, next_value = _induct(counts, losses, min_visits)
    return DecisionTable(
        y.size, kept.horizon, threshold, losses, "solved", min_visits, grids, visits, p_win, next_value
    )


def _check_problem(paths: Paths, y: Array, threshold: float, cells: int) -> None:
    if y.size != paths.start:
        raise InvalidInput(
            f"{y.size} errors, but the paths start after epoch {paths.start}; give as many errors."
        )
    if np.isnan(threshold):
        raise InvalidInput("threshold is NaN; give the incumbent's error, or 1.0 when there is none yet.")
    if cells < 1:
        raise InvalidInput(f"cells is {cells}; the statistic needs at least one cell, usually 100.")


def _without_table(paths: Paths, threshold: float, losses: Losses, basis: str) -> DecisionTable:
    none, empty, visits = np.zeros(0), np.zeros((0, 0)), np.zeros((0, 0), dtype=np.int64)
    grids = Grids(none, none, none, none)
    return DecisionTable(paths.start, paths.horizon, threshold, losses, basis, 0, grids, visits, empty, empty)


def _count(paths: Paths, errors: Array, wins: Mask, cells: int) -> tuple[Grids, Counts]:
    """The grids, and how many paths go from each cell to each cell of the next epoch, by losing and winning.

    Epoch by epoch on vectors that stay in cache: the means of all epochs at once are slower to write
    than to compute. Integer counts are exact, and so the same bits in any order of the paths.
    """
    rows = len(paths.values) + 1
    edges = np.zeros((4, rows))
    counts = np.zeros((rows - 1, 2, cells, cells), dtype=np.int64)
    total = np.full(paths.count, errors.sum(), dtype=np.float32)
    outcome = wins.astype(np.int64) * cells * cells
    key = outcome
    for row in range(rows):
        if row:
            total += paths.values[row - 1]
        mean = total * np.float32(1.0 / (paths.start + row))
        edges[:, row] = low, scale, _, _ = _grid(mean, cells)
        cell = _bin(mean, low, scale, cells)
        if row:
            key += cell
            counts[row - 1] = np.bincount(key, minlength=2 * cells * cells).reshape(2, cells, cells)
        key = cells * cell
        key += outcome
    return Grids(*edges), counts


def _grid(mean: Array32, cells: int) -> tuple[float, float, float, float]:
    """Lower edge, cells per unit, least and most of one epoch's statistic."""
    least, most = float(mean.min()), float(mean.max())
    low, high = np.quantile(mean[:: max(1, mean.size // 2000)], (_TRIM, 1.0 - _TRIM))
    scale = cells / (high - low) if high - low > _EDGE else 0.0
    return float(low), float(scale), least, most


def _bin(mean: Array32, low: float, scale: float, cells: int) -> NDArray[np.int64]:
    """Cell of each path: arithmetic on an even grid, no sorting."""
    mean -= np.float32(low)
    mean *= np.float32(scale)
    return np.clip(mean, 0, cells - 1, out=mean).astype(np.int64)


def _induct(counts: Counts, losses: Losses, min_visits: int) -> tuple[NDArray[np.int64], Array, Array]:
    """Visits, p_win and mean next value (rows, cells) from the last epoch backwards, equation (2)."""
    to_next = counts.sum(axis=1)
    visits = np.concatenate([to_next.sum(axis=2), to_next[-1:].sum(axis=1)])
    safe = np.maximum(visits, 1)
    p_win = np.concatenate([counts[:, 1].sum(axis=2), counts[-1:, 1].sum(axis=1)]) / safe
    next_value = np.full(p_win.shape, np.inf)
    weights = to_next.astype(np.float64)
    value = _values(p_win[-1], next_value[-1], visits[-1] > min_visits, losses)
    for row in reversed(range(len(counts))):
        next_value[row] = weights[row] @ value / safe[row]
        value = _values(p_win[row], next_value[row], visits[row] > min_visits, losses)
    return visits, p_win, next_value


def _values(p_win: Array, next_value: Array, frequent: Mask, losses: Losses) -> Array:
    """Least expected loss of each cell, equation (2)."""
    stop = losses.K1 * p_win if np.isfinite(losses.K1) else np.full_like(p_win, np.inf)
    terminal = np.minimum(stop, losses.K2 * (1.0 - p_win))
    go_on = losses.c + next_value
    # in the last epoch nothing is left to continue to, however rare the cell
    return np.where(frequent | np.isinf(go_on), np.minimum(terminal, go_on), go_on)
