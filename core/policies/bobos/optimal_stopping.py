"""Bayesian optimal stopping of one trial: settings, and a table of decisions solved from simulated paths.

Notation (BO-BOS, equations 2 to 4 and appendices A, B)

    stop      d1: stop; the full training would not beat the incumbent
    win       d2: the full training would beat it. A winner is not stopped, so this means: continue
    continue  d0: pay c, see one more epoch, decide then
    p_win     Pr(final error < threshold | statistic)
    losses    K1 p_win + cost of a missing final value for stop, K2 (1 - p_win) for win,
              c + E[value of the next epoch] for continue

BO-BOS's statistic is the running mean of the errors of epochs 1..n. A mean of recent errors also shows the direction of
the curve: the part of it that the running mean does not predict (by a regression over the paths) divides each cell.
Both are observed up to the epoch of solving and simulated after it. Each epoch has its own grid over the range of its
paths; on one grid over [0, 1] all paths of a late epoch would share a few cells.

The mode `faithful` is the paper's: paths from the exponential-decay GP, solved once after the first 8 of 51 epochs, and
again only for a curve that leaves the range of its paths, where the paper's table has no decision.
`robust`, the default, draws paths from a Bayesian power law and from reference curves, joins their probabilities with
that of a model of configurations (`models.win_model`), and solves again as the curve grows; between two solutions the
last table decides. Nothing here depends on trials or logs: equal errors and rng states give equal decisions, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, ndtr

from haltune._utils.arrays import Array, Array32, Indices, Mask
from haltune._utils.checks import check_kinds, check_whole, is_number, pythonic
from haltune.errors import InvalidInput
from haltune.hints import KnowsAttributes
from haltune.models.curves import (
    Paths,
    ReferenceCurves,
    checked_errors,
    conditional_paths,
    matched_paths,
    power_law_paths,
)
from haltune.models.win_model import calibrated

MIN_PATHS = 1000  # paths inside [0, 1] that a decision needs
_RECENT = 10.0  # weights k^9 of the k-th error in a recent mean: two thirds are on the last tenth of the epochs
_TRIM = 0.01  # share of paths beyond each end of a grid, counted in its outer cells: paths have long tails
_TOLERANCE = 1e-6  # paths are float32: a statistic this far beyond the outermost path still counts as reached


@dataclass(frozen=True)
class Losses:
    """The 0-K losses: K1 for a wrong stop, K2 for a wrong win, c for each further epoch, and missing for each stop."""

    K1: float = 100.0  # may be infinite: then nothing is ever stopped
    K2: float = 99.0
    c: float = 1.0
    missing: float = 0.0  # cost of a missing final value; 0 at the last epoch

    def __post_init__(self) -> None:
        if not (np.isfinite(self.missing) and self.missing >= 0.0):
            raise InvalidInput(f"missing={self.missing!r} is not a loss. Give a finite number of at least 0.")
        for name, value in (("K1", self.K1), ("K2", self.K2), ("c", self.c)):
            finite = np.isfinite(value) or (name == "K1" and value == np.inf)
            if not (finite and (value > 0.0 or (name == "c" and value == 0.0))):
                raise InvalidInput(
                    f"{name}={value!r} is not a loss. K1 and K2 must be above 0, c at least 0; only K1 may be infinite."
                )

    def expected(self, p_win: ArrayLike, next_value: ArrayLike) -> tuple[Array, Array, Array]:
        """Return the expected losses of stop, win and continue, equation (2). next_value: inf at the last epoch."""
        p, ahead = np.asarray(p_win), np.asarray(next_value)
        wrong = self.K1 * p if np.isfinite(self.K1) else np.full(p.shape, np.inf)  # inf * 0 is NaN
        return wrong + np.where(np.isinf(ahead), 0.0, self.missing), self.K2 * (1.0 - p), self.c + ahead

    @property
    def bound(self) -> float:
        """Lemma 8: a trial with p_win above (K2 + c) / K1 is never stopped."""
        return min(1.0, (self.K2 + self.c) / self.K1)


@dataclass(frozen=True)
class StopDecision:
    """A decision after an epoch, with its numbers (NaN if they were not estimated)."""

    d: Literal["stop", "win", "continue"]
    p_win: float  # simulated Pr(final error < threshold)
    loss_stop: float  # K1 p_win, and the cost of a missing final value
    loss_win: float  # K2 (1 - p_win)
    loss_continue: float  # c + expected loss from the next epoch on
    bound: float  # lemma 8's (K2 + c) / K1
    basis: str  # "solved", "rare", "left" (the range of the paths), "saturated", "few paths" or "waiting"
    paths: int = 0  # number of simulated curves behind p_win
    p_model: float = float("nan")  # by the configuration and the first errors alone, where p_win uses it


def _undecided(basis: str, losses: Losses) -> StopDecision:
    nan = float("nan")
    return StopDecision("continue", nan, nan, nan, nan, losses.bound, basis)


@dataclass(frozen=True)
class Grids:
    """Even grids, one per epoch n0..horizon; the outer cells also hold everything beyond the grid."""

    low: Array  # (rows,) lower edge of the first cell of the running mean
    scale: Array  # (rows,) cells per unit of error; 0 if all paths agree
    least: Array  # (rows,) smallest and largest running mean of a path
    most: Array
    tilt: Array  # (rows,) slope of the recent mean over the running mean, by least squares
    low_recent: Array  # (rows,) the same edges for the rest of the recent mean
    scale_recent: Array

    def column(self, row: int, errors: Array, cells: int, slopes: int) -> int | None:
        """Return the column of errors (n,), or None if no path's running mean is that far out."""
        mean = float(errors.mean())
        if not self.least[row] - _TOLERANCE <= mean <= self.most[row] + _TOLERANCE:
            return None
        rest = recent_mean(errors) - self.tilt[row] * mean
        of_mean = int((mean - self.low[row]) * self.scale[row])
        of_rest = int((rest - self.low_recent[row]) * self.scale_recent[row])
        return min(max(of_mean, 0), cells - 1) * slopes + min(max(of_rest, 0), slopes - 1)


def recent_mean(errors: Array) -> float:
    """Return the mean of errors (n,) with weights k^9; `grids_of` computes it for paths, epoch by epoch."""
    recent = float(errors[0])
    for n, error in enumerate(errors[1:].tolist(), 2):
        recent += (error - recent) * (_RECENT / (n + _RECENT - 1.0))
    return recent


def grids_of(paths: Paths, errors: Array, cells: int, slopes: int) -> tuple[Grids, Indices]:
    """Return the grids, and the column (rows, paths) of each path at each epoch. Epochs are the fast axis in cache."""
    rows = len(paths.values) + 1
    edges = np.zeros((7, rows))
    found = np.empty((rows, paths.count), dtype=np.intp)
    total = np.full(paths.count, errors.sum(), dtype=np.float32)
    recent = np.full(paths.count, recent_mean(errors), dtype=np.float32)

    def grid(values: Array32, cells: int) -> tuple[float, float, Indices]:
        """Return lower edge and cells per unit of one epoch's statistic, and the cell of each path, without sorting."""
        low, high = np.quantile(values[:: max(1, values.size // 2000)], (_TRIM, 1.0 - _TRIM))
        scale = float(cells / (high - low)) if high - low > _TOLERANCE else 0.0
        cell = np.clip((values - np.float32(low)) * np.float32(scale), 0, cells - 1).astype(np.intp)
        return float(low), scale, cell

    for row in range(rows):
        n = paths.start + row
        if row:
            total += paths.values[row - 1]
            recent += (paths.values[row - 1] - recent) * np.float32(_RECENT / (n + _RECENT - 1.0))
        mean = total * np.float32(1.0 / n)
        centred = mean - mean.mean()
        variance = float(centred @ centred)
        tilt = float(centred @ recent) / variance if variance > _TOLERANCE**2 * len(mean) else 0.0
        low, scale, of_mean = grid(mean, cells)
        low_recent, scale_recent, of_rest = grid(recent - np.float32(tilt) * mean, slopes)
        edges[:, row] = low, scale, mean.min(), mean.max(), tilt, low_recent, scale_recent
        found[row] = slopes * of_mean + of_rest
    return Grids(*edges), found


@dataclass(frozen=True)
class DecisionTable:
    """Decisions for epochs start..horizon (rows) by cells of the running mean, each divided by recent means (columns).

    A column with too few paths gets the decision of its whole cell.
    """

    start: int  # n0, the epoch at which it was solved; row 0, one cell
    horizon: int
    threshold: float  # the incumbent's error, less xi
    losses: Losses
    basis: str  # "solved", "saturated" or "few paths"
    min_visits: int
    slopes: int  # columns per cell
    grids: Grids
    visits: NDArray[np.int64]  # (rows, cells x slopes) number of paths behind a decision
    p_win: Array  # (rows, cells x slopes)
    next_value: Array  # (rows, cells x slopes) mean loss of the paths from the next epoch on; inf in the last
    p_model: float = float("nan")  # see StopDecision
    end_known: bool = False  # see `solve`

    def losses_at(self, row: ArrayLike, p_win: ArrayLike, next_value: ArrayLike) -> tuple[Array, Array, Array]:
        """Return the expected losses of stop, win and continue at epochs start + row."""
        stop, win, further = self.losses.expected(p_win, next_value)
        if self.end_known:
            left = self.losses.c * (self.horizon - self.start - np.asarray(row))
            further = np.where(np.isinf(further), further, np.minimum(further, left))
        return stop, win, further

    def decide(self, errors: ArrayLike) -> StopDecision:
        """Return the decision after epoch n given errors (n,); InvalidInput unless start <= n <= horizon."""
        y, losses = np.asarray(errors, dtype=np.float64), self.losses
        row = y.size - self.start
        if y.ndim != 1 or not 0 <= row <= self.horizon - self.start:
            raise InvalidInput(
                f"errors has shape {y.shape}. This table decides epochs {self.start} to {self.horizon}: give as many "
                "errors."
            )
        if self.basis == "saturated" and y.min() >= 1.0 and np.isfinite(losses.K1):
            return StopDecision("stop", 0.0, 0.0, losses.K2, losses.c, losses.bound, self.basis)
        if self.basis != "solved":
            return _undecided(self.basis, losses)
        cell = self.grids.column(row, y, int(self.visits.shape[1]) // self.slopes, self.slopes)
        if cell is None:
            return _undecided("left", losses)
        if self.visits[row, cell] <= self.min_visits:
            return _undecided("rare", losses)
        p_win, visits = float(self.p_win[row, cell]), int(self.visits[row, cell])
        stop, win, further = (float(loss) for loss in self.losses_at(row, p_win, self.next_value[row, cell]))
        d: Literal["stop", "win", "continue"] = "continue"
        if min(stop, win) <= further:
            d = "stop" if stop <= win else "win"
        return StopDecision(d, p_win, stop, win, further, losses.bound, "solved", visits, self.p_model)

    @property
    def decided(self) -> Array:
        """(rows, cells x slopes): -1 for stop, 1 for win, 0 for continue."""
        stop, win, further = self.losses_at(np.arange(len(self.p_win))[:, None], self.p_win, self.next_value)
        ends = (np.minimum(stop, win) <= further) & (self.visits > self.min_visits)
        return np.where(ends, np.where(stop <= win, -1.0, 1.0), 0.0)


def solve(
    paths: Paths,
    errors_so_far: ArrayLike,
    threshold: float,
    losses: Losses,
    cells: int = 16,
    min_visits: int = 30,
    slopes: int = 8,
    *,
    saturated_loses: bool = True,
    end_known: bool = False,
    calibrate: Callable[[float], float] | None = None,
    noise: float = 0.0,
) -> DecisionTable:
    """Solve by approximate backward induction (algorithm 2) over the running and recent means of epochs 1..n.

    threshold: the final error must be below it to beat the incumbent. Paths that leave [0, 1] are dropped; with fewer
    than MIN_PATHS left every decision is to continue.
    cells, slopes: number of cells of the running mean, and of columns per cell. A column with at most `min_visits`
    paths gets the decision of its cell; a cell with so few continues, and the losses of its paths still count.
    saturated_loses: if errors are all 1, the worst, they lose to any better incumbent. False if the paths model that.
    end_known: True: to continue loses at most the epochs that are left, because the final error is known at the end.
    calibrate: maps the share of winning paths to the probability of winning, by weights of the paths that win.
    noise: deviation of the noise of the final error, which paths do not have.
    Raises InvalidInput for errors outside [0, 1], of another length than paths.start, or a NaN threshold.
    """
    y = checked_errors(errors_so_far)
    if y.size != paths.start:
        raise InvalidInput(f"There are {y.size} errors, but the paths start after {paths.start}. Give as many errors.")
    if np.isnan(threshold):
        raise InvalidInput("threshold is NaN. Give the incumbent's error, or 1.0 if there is none yet.")
    if min(cells, slopes) < 1:
        raise InvalidInput(f"cells={cells} and slopes={slopes} must be 1 or more. Common values are 16 and 8.")
    saturated = saturated_loses and bool(y.min() >= 1.0 > threshold)
    kept = paths if saturated else paths.kept()
    if saturated or kept.count < MIN_PATHS:
        none, empty, visits = np.zeros(0), np.zeros((0, 0)), np.zeros((0, 0), dtype=np.int64)
        basis = "saturated" if saturated else "few paths"
        grids = Grids(*[none] * 7)
        return DecisionTable(y.size, paths.horizon, threshold, losses, basis, 0, 1, grids, visits, empty, empty)
    wins, weights = _chances(kept.values[-1], threshold, noise), np.ones(kept.count)
    if calibrate is not None:
        share = (wins.sum() + 0.5) / (kept.count + 1.0)  # no path of few thousands wins: p is small, but not 0
        p = calibrate(share)
        if wins.min() < wins.max():
            weights = wins * (p * (1.0 - share) / ((1.0 - p) * share)) + 1.0 - wins
            wins = 1.0 - (1.0 - wins) / weights
        else:
            wins[:] = p  # of each path: none shows how it may end otherwise
    grids, columns = grids_of(kept, y, cells, slopes)
    solved = _induct(columns, wins, losses, (cells, slopes), min_visits, weights)
    return DecisionTable(
        y.size, kept.horizon, threshold, losses, "solved", min_visits, slopes, grids, *solved, end_known=end_known
    )


def _chances(ends: Array32, threshold: float, noise: float) -> Array:
    """Return the probability of each path (count,) to end with an error below the threshold, with noise."""
    if noise > 0.0:
        found: Array = ndtr((threshold - ends.astype(np.float64)) / noise)
        return found
    return (ends < np.float32(threshold)).astype(np.float64)


def _induct(
    columns: Indices, wins: Array, losses: Losses, shape: tuple[int, int], min_visits: int, weights: Array
) -> tuple[NDArray[np.int64], Array, Array]:
    """Return visits, p_win and mean next value (rows, columns), from the last epoch backwards, equation (2).

    The next value of a cell is the mean loss of its own paths from the next epoch on, under the decisions made there
    (Longstaff and Schwartz 2001). The mean over the cells entered next would forget the history of a path.
    """
    rows, count = columns.shape
    size = shape[0] * shape[1]
    visits = np.empty((rows, size), dtype=np.int64)
    p_win, next_value = np.empty((rows, size)), np.full((rows, size), np.inf)
    stopped = losses.K1 * wins if np.isfinite(losses.K1) else np.full(count, np.inf)
    won, lost = losses.K2 * (1.0 - wins), np.zeros(count)
    for row in reversed(range(rows)):
        column, last = columns[row], row == rows - 1
        passed = np.bincount(column, minlength=size)
        few = passed <= min_visits

        def merged(of: NDArray[Any], few: Mask = few) -> NDArray[Any]:
            """Return sums by column, or of the whole cell where visits are few."""
            return np.where(few, np.repeat(of.reshape(shape).sum(axis=1), shape[1]), of)

        mass, winning, losing = (
            merged(np.bincount(column, x, minlength=size)) for x in (weights, weights * wins, weights * lost)
        )
        mass = np.maximum(mass, 1e-300)
        visits[row], p_win[row] = merged(passed), winning / mass
        if not last:
            next_value[row] = losing / mass
        stop, win, further = losses.expected(p_win[row], next_value[row])
        # the last epoch has no continuation, so even a rare cell ends there
        ends = (np.minimum(stop, win) <= further) & ((visits[row] > min_visits) | last)
        stops, wins_now = (ends & (stop <= win))[column], (ends & (stop > win))[column]
        lost = np.where(stops, stopped if last else stopped + losses.missing, np.where(wins_now, won, losses.c + lost))
    return visits, p_win, next_value


_REFERENCE_HORIZON = 51  # the epochs of `first` and `resolve_at` are out of 51 and scale with the horizon
_FIRST = 8
_LEAST_WORTH = 1.5  # epochs: a tenth of a very short training is less than one epoch
_MIN_VISITS = 30
_FEWEST = 3  # errors that any judgement needs
_DEFAULTS: dict[str, dict[str, Any]] = {
    "robust": {
        "resolve_at": (12, 16, 24, 32, 40), "K1": 1000.0, "paths": 20_000, "cells": 16, "slopes": 8, "missing": 0.1,
        "reference_curves": True,
    },
    "faithful": {
        "resolve_at": (), "K1": 100.0, "paths": 100_000, "cells": 100, "slopes": 1, "missing": 0.0,
        "reference_curves": False,
    },
}  # fmt: skip
# with reference curves, in addition to every epoch from the first that is judged to `first`
_FURTHER_WITH_OTHERS = (10, 14, 18, 20, 28, 36, 44, 48)
_FIRST_WITH_OTHERS = 2  # the first epoch that is judged with reference curves; with configurations, out of 51
_FEWEST_OTHERS = 3  # trials trained beyond an epoch that a judgement before `first` needs
_PATHS_PER_DRAWN = 5  # with reference curves at least one fifth of `paths` is drawn, because drawing is slower


@dataclass(frozen=True)
class StoppingPlan:
    """The epochs at which trials of one horizon are solved, ascending; empty if there is no decision to make."""

    horizon: int
    solve_at: tuple[int, ...]
    first_decision: int  # the first epoch that is judged; equal to the horizon if none is

    def solved_at(self, epoch: int) -> int | None:
        """Return the epoch whose table decides `epoch`; None before the first decision and at the end."""
        if not self.first_decision <= epoch < self.horizon:
            return None
        return max(e for e in self.solve_at if e <= epoch)


@dataclass(frozen=True)
class OptimalStopping(KnowsAttributes):
    """Settings of Bayesian optimal stopping: when to stop a trial. Frozen; converts to and from JSON.

    Pass it to Halting or BOBOS, or call `judge` yourself.

    Args:
        mode: "robust" solves again during the trial, over curves of other trials and power laws. "faithful" solves
            once, as BO-BOS does, over curves of an exponential-decay process, and again where the curve leaves them.
            Default: "robust".
        first: epochs, out of 51, before the first decision (N0 in BO-BOS); scaled to the horizon. Default: 8; with
            curves of other trials the second epoch, and with their configurations 2 of 51.
        resolve_at: further epochs, out of 51, at which to solve. Default: None, which is (12, 16, 24, 32, 40), more
            with curves of other trials, none in the mode "faithful".
        K1: loss of a wrong stop; may be infinite. Default: None, 1000 or (faithful) 100.
        K2: loss of continuing to the end without winning. Default: 99.
        c: loss of each further epoch; with more than 51 epochs, of each further 51st of a full training, unless the
            mode is "faithful". Default: 1.
        paths: simulated curves per solution. Default: None, 20,000 or (faithful) 100,000.
        cells: cells of the running mean at each epoch. Default: None, 16 or (faithful) 100.
        slopes: columns per cell, by how recent epochs differ from the prediction by the running mean. Default: None, 8
            or (faithful) 1, the running mean alone.
        min_visits: a cell with at most this many paths continues. Default: None, 30, or (robust) paths / 200 if that
            is more.
        missing: cost of a missing final value, as a share of a full training; if above 0, at least 1.5 epochs. A trial
            is not stopped near its end to save less. Default: None, 0.1 or (faithful) 0.
        reference_curves: True to use the curves of the other trials of the study and, from the fourth full training on,
            their configurations. Default: None, True or (faithful) False; "faithful" does not allow True.

    Raises:
        InvalidInput: for other values.

    Example:
        >>> from haltune.policies import OptimalStopping
        >>> losing = [0.9, 0.9, 0.89, 0.89, 0.89, 0.88, 0.88, 0.88]  # errors of epochs 1 to 8 of 51
        >>> OptimalStopping(paths=5000).judge(losing, horizon=51, incumbent_error=0.1).d
        'stop'
    """

    mode: Literal["robust", "faithful"] = "robust"
    first: int = _FIRST
    resolve_at: tuple[int, ...] | None = None  # None here and below: the default of the mode
    K1: float | None = None
    K2: float = 99.0
    c: float = 1.0
    paths: int | None = None
    cells: int | None = None
    min_visits: int | None = None
    slopes: int | None = None
    missing: float | None = None
    reference_curves: bool | None = None

    def __post_init__(self) -> None:
        pythonic(self)
        check_kinds(self)
        if self.mode not in tuple(_DEFAULTS):  # a tuple, so that an unhashable value gets this message, too
            raise InvalidInput(f"mode={self.mode!r} is not a mode. Give 'robust' or 'faithful'.")
        for name, default in _DEFAULTS[self.mode].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default)
        if not isinstance(self.resolve_at, list | tuple) or not all(map(is_number, self.resolve_at)):
            raise InvalidInput(f"resolve_at={self.resolve_at!r} is not a list of epochs. Give one, such as (10, 20).")
        object.__setattr__(self, "resolve_at", tuple(self.resolve_at))
        names = ("first", "paths", "cells", "slopes")
        check_whole("OptimalStopping", 1, **{name: getattr(self, name) for name in names})
        if self.missing is None or not (is_number(self.missing) and 0.0 <= self.missing <= 1.0):
            raise InvalidInput(
                f"missing={self.missing!r} is not a share of a full training. Give a number from 0 to 1, such as 0.1."
            )
        if self.min_visits is None:
            # 31 paths without a winner show only that p_win < 0.1, which at K1 = 1000 may cost 100 epochs
            share = (self.paths or 0) // 200 if self.mode == "robust" else 0
            object.__setattr__(self, "min_visits", max(_MIN_VISITS, share))
        if (self.min_visits or 0) < 0 or any(e <= self.first for e in self.resolve_at):
            raise InvalidInput(
                f"min_visits={self.min_visits} or resolve_at={self.resolve_at} is not allowed with first={self.first}. "
                "min_visits must be at least 0, and all epochs of resolve_at must be above first."
            )
        if self.mode == "faithful" and self.reference_curves:
            raise InvalidInput(
                "The mode 'faithful' uses one curve alone, as the paper does. Leave reference_curves= out."
            )
        self.losses()

    def losses(self, K1: float | None = None, c: float | None = None) -> Losses:
        """Return the losses, with K1 (which grows in BO-BOS) or c (of a weighted epoch) replaced."""
        own = _DEFAULTS[self.mode]["K1"] if self.K1 is None else self.K1
        return Losses(own if K1 is None else K1, self.K2, self.c if c is None else c)

    def plan(self, horizon: int, reference: ReferenceCurves | None = None) -> StoppingPlan:
        """Return the epochs at which trials of `horizon` epochs are solved, scaled from 51.

        A faithful trial is first judged one epoch after solving, as in algorithm 1. A robust one is judged at once, and
        with reference curves earlier and more often.
        """
        if horizon < 1:
            raise InvalidInput(f"horizon={horizon} is not a number of epochs. Give 1 or more.")
        epochs = (self.first, *(self.resolve_at or ()))
        learns = self.reference_curves and reference is not None and reference.beyond(_FIRST_WITH_OTHERS) > 0
        if learns and self.resolve_at == _DEFAULTS[self.mode]["resolve_at"]:
            epochs += _FURTHER_WITH_OTHERS
        scaled = [max(_FEWEST, round(e * horizon / _REFERENCE_HORIZON)) for e in epochs]
        if learns and reference is not None and self.first == _FIRST:
            begins = _FIRST_WITH_OTHERS
            if reference.points is not None:
                begins = max(1, round(_FIRST_WITH_OTHERS * horizon / _REFERENCE_HORIZON))
            scaled += [e for e in range(begins, scaled[0]) if reference.beyond(e) >= _FEWEST_OTHERS]
        solve_at = tuple(sorted({e for e in scaled if e < horizon}))
        if not solve_at:
            return StoppingPlan(horizon, (), horizon)
        return StoppingPlan(horizon, solve_at, solve_at[0] + (self.mode == "faithful"))

    def solve_at(
        self,
        errors: ArrayLike,
        horizon: int,
        incumbent_error: float,
        losses: Losses,
        rng: np.random.Generator,
        reference: ReferenceCurves | None = None,
        point: Array | None = None,
    ) -> DecisionTable:
        """Return the table solved from all of `errors` (n0,), n0 < horizon; each (trial, n0) has its own rng.

        point: (d,) the trial's configuration in the unit cube. It counts if `reference` knows those of its trials.
        """
        y = checked_errors(errors)
        count, fewest = self.paths or 1, self.min_visits or 0
        others = self._used(y, reference)
        if others is not None:
            share = max(1, min(_PATHS_PER_DRAWN, count // (2 * MIN_PATHS)))
            count, fewest = count // share, fewest // share
        paths = self.paths_of(y, horizon, count, rng, others)
        odds = None if others is None else others.log_odds(point, y, incumbent_error)
        # a full training loses at most 51 c; if it lost more, a missing value would cost more than K2 at long horizons
        each = losses.c * (min(1.0, _REFERENCE_HORIZON / horizon) if self.mode == "robust" else 1.0)
        missing = max(self.missing * horizon, _LEAST_WORTH) if self.missing else 0.0  # in epochs
        losses = replace(losses, c=each, missing=missing * each)
        table = solve(
            paths, y, incumbent_error, losses, self.cells or 1, fewest, self.slopes or 1,
            saturated_loses=self.mode == "faithful",
            end_known=self.mode == "robust",
            calibrate=None if others is None else partial(calibrated, log_odds=odds),
            noise=0.0 if others is None else others.noise(y),
        )  # fmt: skip
        return table if odds is None else replace(table, p_model=float(expit(odds)))

    def paths_of(
        self,
        errors: Array,
        horizon: int,
        count: int,
        rng: np.random.Generator,
        reference: ReferenceCurves | None = None,
    ) -> Paths:
        """Simulate `count` curves of the epochs after errors (n0,) by the model of the mode."""
        if (others := self._used(errors, reference)) is not None:
            first = self.plan(horizon).solve_at[:1]
            own = bool(first) and errors.size >= first[0]
            return matched_paths(errors, horizon, others, count, rng, own=own)
        draw = conditional_paths if self.mode == "faithful" else power_law_paths
        return draw(errors, horizon, count, rng)

    def _used(self, errors: Array, reference: ReferenceCurves | None) -> ReferenceCurves | None:
        """Return the reference curves if they are used and some go beyond the errors, else None."""
        known = self.reference_curves and reference is not None and reference.beyond(errors.size) > 0
        return reference if known else None

    def decide(
        self,
        errors: Array,
        horizon: int,
        table: Callable[[int], DecisionTable],
        reference: ReferenceCurves | None = None,
    ) -> tuple[StopDecision | None, int]:
        """Return the decision after epoch n given errors (n,), and the epoch of its table; None before the first.

        table: returns `solve_at` of the first errors, up to an epoch. The last table of the plan decides, unless the
        curve has left the range of its paths. In the mode "robust" a table of all n errors decides where few of those
        paths are like the curve; a stop also needs its agreement.
        """
        n = len(errors)
        at = self.plan(horizon, reference).solved_at(n)
        if at is None:
            return None, 0
        decision = table(at).decide(errors)
        doubts = decision.basis == "rare" or decision.d == "stop"
        if at < n and (decision.basis == "left" or (doubts and self.mode == "robust")):
            return table(n).decide(errors), n
        return decision, at

    def judge(
        self,
        errors: ArrayLike,
        horizon: int,
        incumbent_error: float,
        K1: float | None = None,
        c: float | None = None,
        rng: np.random.Generator | int = 0,
        reference: ReferenceCurves | None = None,
        point: Array | None = None,
    ) -> StopDecision:
        """Return the decision after epoch n given errors (n,), as `decide` does, and solve all tables with one rng."""
        y = checked_errors(errors)
        losses, seed = self.losses(K1, c), np.random.default_rng(rng).bit_generator.state

        def table(at: int) -> DecisionTable:
            own = np.random.default_rng(0)
            own.bit_generator.state = seed
            return self.solve_at(y[:at], horizon, incumbent_error, losses, own, reference, point)

        return self.decide(y, horizon, table, reference)[0] or _undecided("waiting", losses)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "resolve_at": list(self.resolve_at or ())}

    @classmethod
    def from_json(cls, spec: Mapping[str, Any]) -> OptimalStopping:
        """Build the settings from `to_json`'s object. Raises InvalidInput for an unknown option."""
        if unknown := set(spec) - set(cls.__dataclass_fields__):
            raise InvalidInput(
                f"OptimalStopping has no option {', '.join(sorted(unknown))}. "
                f"Its options are {', '.join(cls.__dataclass_fields__)}."
            )
        return cls(**spec)
