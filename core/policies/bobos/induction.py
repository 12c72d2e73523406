"""Bayesian optimal stopping of one run: simulated paths in, a table of decisions out.

Notation (BO-BOS, equations 2 to 4 and appendices A, B)

    stop      d1: stop, concluding that the full training would not beat the incumbent
    win       d2: conclude that it would; nobody stops a winner, so it means: go on training
    continue  d0: pay c, see one more epoch, decide then
    p_win     Pr(final error < threshold | statistic)
    losses    K1 p_win + what a final value is worth for stop, K2 (1 - p_win) for win,
              c + E[value of the next epoch] for continue
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from haltune._utils.arrays import Array, Mask
from haltune.errors import InvalidInput

from .cells import Cells, Grids, through
from .decay_curves import Paths, checked_errors

CellDecision = Literal["stop", "win", "continue"]

MIN_PATHS = 1000  # survivors in [0, 1] below which nothing is decided


@dataclass(frozen=True)
class Losses:
    """The 0-K losses: K1 for a wrong stop, K2 for a wrong win, c for each further epoch, and missing for each stop."""

    K1: float = 100.0  # may be infinite: then nothing is ever stopped
    K2: float = 99.0
    c: float = 1.0
    missing: float = 0.0  # of a final value that nobody will know; none at the last epoch

    def __post_init__(self) -> None:
        if not (np.isfinite(self.missing) and self.missing >= 0.0):
            raise InvalidInput(f"missing is {self.missing}; what a final value is worth is at least 0.")
        for name, value in (("K1", self.K1), ("K2", self.K2), ("c", self.c)):
            finite = np.isfinite(value) or (name == "K1" and value == np.inf)
            if not (finite and (value > 0.0 or (name == "c" and value == 0.0))):
                raise InvalidInput(
                    f"{name} is {value}; K1 and K2 are positive, c is at least 0, only K1 may be infinite."
                )

    def expected(self, p_win: ArrayLike, next_value: ArrayLike) -> tuple[Array, Array, Array]:
        """Of stop, win and continue, equation (2). next_value: infinite at the last epoch."""
        p, ahead = np.asarray(p_win), np.asarray(next_value)
        wrong = self.K1 * p if np.isfinite(self.K1) else np.full(p.shape, np.inf)  # inf * 0 is NaN
        return wrong + np.where(np.isinf(ahead), 0.0, self.missing), self.K2 * (1.0 - p), self.c + ahead

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

    d: CellDecision
    p_win: float  # simulated Pr(final error < threshold)
    loss_stop: float  # K1 p_win, and what the final value is worth
    loss_win: float  # K2 (1 - p_win)
    loss_continue: float  # c + expected loss from the next epoch on
    bound: float  # lemma 8's (K2 + c) / K1
    basis: (
        str  # what it rests on: "solved", "rare", "left" (the paths), "saturated", "few paths" or "waiting"
    )
    paths: int = 0  # simulated curves that p_win is a share of


@dataclass(frozen=True)
class DecisionTable:
    """Decisions for epochs start..horizon (rows) by cell of the running mean, each cut by recent means (columns).

    What too few paths pass is decided as the whole cell of the running mean is.
    """

    start: int  # n0, the epoch it was solved at; row 0, one cell
    horizon: int
    threshold: float  # the incumbent's error, xi already taken off
    losses: Losses
    basis: str  # "solved", "saturated" or "few paths"
    min_visits: int
    slopes: int  # cuts of a cell
    grids: Grids
    visits: NDArray[np.int64]  # (rows, cells x slopes) paths that a decision rests on
    p_win: Array  # (rows, cells x slopes)
    next_value: (
        Array  # (rows, cells x slopes) mean loss of its paths from one epoch later on; inf in the last row
    )

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
        cell = self.grids.column(row, y, int(self.visits.shape[1]) // self.slopes, self.slopes)
        if cell is None:
            return undecided("left", self.losses)
        if self.visits[row, cell] <= self.min_visits:
            return undecided("rare", self.losses)
        found = _least_loss(float(self.p_win[row, cell]), float(self.next_value[row, cell]), self.losses)
        return replace(found, paths=int(self.visits[row, cell]))

    @property
    def decided(self) -> Array:
        """(rows, cells x slopes) -1 where it stops, 1 where it takes the run for a winner, 0 where it goes on."""
        stop, win, go_on = self.losses.expected(self.p_win, self.next_value)
        ends = (np.minimum(stop, win) <= go_on) & (self.visits > self.min_visits)
        return np.where(ends, np.where(stop <= win, -1.0, 1.0), 0.0)

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
    stop, win, go_on = (float(loss) for loss in losses.expected(p_win, next_value))
    d: CellDecision = "continue"
    if min(stop, win) <= go_on:
        d = "stop" if stop <= win else "win"
    return StopDecision(d, p_win, stop, win, go_on, losses.bound, "solved")


def solve(
    paths: Paths,
    errors_so_far: ArrayLike,
    threshold: float,
    losses: Losses,
    cells: int = 16,
    min_visits: int = 30,
    slopes: int = 8,
    *,
    min_paths: int = MIN_PATHS,
    saturated_loses: bool = True,
    believed: Callable[[float], float] | None = None,
) -> DecisionTable:
    """Approximate backward induction (algorithm 2) over the running and the recent mean of epochs 1..n.

    `threshold` is the error that the run's last epoch must get below to beat the incumbent. Paths that leave
    [0, 1] are dropped; with fewer than `min_paths` left every decision is to continue. Errors that are all
    the worst possible, 1, count as losing to any better incumbent, unless `saturated_loses` is False because
    the paths model that.
    cells: of the running mean, each cut into `slopes` by the recent mean. A cut visited by `min_visits` paths or fewer
    decides as its cell does; such a cell decides to continue, and what its paths lose then still counts.
    believed: the probability of winning when so large a share of the paths win; a path that wins then weighs as much
    more or less in every mean. Default: that share itself.
    Raises InvalidInput for errors outside [0, 1], of another length than paths.start, or a NaN threshold.
    """
    y = checked_errors(errors_so_far)
    _check_problem(paths, y, threshold, min(cells, slopes))
    if saturated_loses and y.min() >= 1.0 > threshold:
        return _without_table(paths, threshold, losses, "saturated")
    kept = paths.kept()
    if kept.count < min_paths:
        return _without_table(paths, threshold, losses, "few paths")
    wins = kept.values[-1] < np.float32(threshold)
    grids, columns = through(kept, y, cells, slopes)
    solved = _induct(columns, wins, losses, (cells, slopes), min_visits, _weights(wins, believed))
    return DecisionTable(
        y.size, kept.horizon, threshold, losses, "solved", min_visits, slopes, grids, *solved
    )


def _check_problem(paths: Paths, y: Array, threshold: float, cells: int) -> None:
    if y.size != paths.start:
        raise InvalidInput(
            f"{y.size} errors, but the paths start after epoch {paths.start}; give as many errors."
        )
    if np.isnan(threshold):
        raise InvalidInput("threshold is NaN; give the incumbent's error, or 1.0 when there is none yet.")
    if cells < 1:
        raise InvalidInput(f"cells or slopes is {cells}; each is at least one, usually 16 and 8.")


def _without_table(paths: Paths, threshold: float, losses: Losses, basis: str) -> DecisionTable:
    none, empty, visits = np.zeros(0), np.zeros((0, 0)), np.zeros((0, 0), dtype=np.int64)
    grids = Grids(*[none] * 7)
    return DecisionTable(
        paths.start, paths.horizon, threshold, losses, basis, 0, 1, grids, visits, empty, empty
    )


def _weights(wins: Mask, believed: Callable[[float], float] | None) -> Array:
    """Of the paths, so that their mean is what is believed."""
    share = float(wins.mean())
    if believed is None or not 0.0 < share < 1.0:
        return np.ones(len(wins))
    p = believed(share)
    return np.where(wins, p * (1.0 - share) / ((1.0 - p) * share), 1.0)


def _induct(
    columns: Cells, wins: Mask, losses: Losses, shape: tuple[int, int], min_visits: int, weights: Array
) -> tuple[NDArray[np.int64], Array, Array]:
    """Visits, p_win and mean next value (rows, columns) from the last epoch backwards, equation (2).

    A cell's next value is what its own paths lose from the next epoch on, by the decisions made there (Longstaff
    and Schwartz 2001): the mean over the cells entered next would take each for a fresh start, and forget what a
    path comes with.
    """
    rows, count = columns.shape
    size = shape[0] * shape[1]
    visits = np.empty((rows, size), dtype=np.int64)
    p_win, next_value = np.empty((rows, size)), np.full((rows, size), np.inf)
    stopped = losses.K1 * wins if np.isfinite(losses.K1) else np.full(count, np.inf)
    won, lost = losses.K2 * ~wins, np.zeros(count)
    for row in reversed(range(rows)):
        column, last = columns[row], row == rows - 1
        sums = [np.bincount(column, x, minlength=size) for x in (weights, weights * wins, weights * lost)]
        visits[row], p_win[row], ahead = _means(np.bincount(column, minlength=size), sums, shape, min_visits)
        if not last:
            next_value[row] = ahead
        stop, win, go_on = losses.expected(p_win[row], next_value[row])
        # in the last epoch nothing is left to continue to, however rare the cell
        ends = (np.minimum(stop, win) <= go_on) & ((visits[row] > min_visits) | last)
        stops, wins_now = (ends & (stop <= win))[column], (ends & (stop > win))[column]
        lost = np.where(
            stops, stopped if last else stopped + losses.missing, np.where(wins_now, won, losses.c + lost)
        )
    return visits, p_win, next_value


def _means(
    visits: NDArray[np.int64], sums: list[NDArray[Any]], shape: tuple[int, int], min_visits: int
) -> list[NDArray[Any]]:
    """Visits by column, and the means of all sums but the first, of weights; where visits are few, the whole cell's."""
    few = visits <= min_visits

    def merged(of: NDArray[Any]) -> NDArray[Any]:
        return np.where(few, np.repeat(of.reshape(shape).sum(axis=1), shape[1]), of)

    mass = np.maximum(merged(sums[0]), 1e-300)
    return [merged(visits), *(merged(total) / mass for total in sums[1:])]
