"""Trials over folds: a value that is the mean over k trainings, and its estimate before the last one ends.

Fold j, from 0, has the values v_j(e) at its own epochs e, up to E, and ends with f_j, its last value. At epoch e of
fold i, after the folds j < i, a report carries as its value

    ( sum_j f_j + f ) / (i + 1),        f = mean_j f_j + e/E ( v_i(e) - mean_j v_j(e) )

f predicts the end of fold i: the mean end of the earlier folds, plus its lead over them at the same epoch. Folds share
most of a curve's shape, which the difference cancels, so the trial's curve has no saw teeth and no bias. A lead counts
in proportion to the trained share, because an early one seldom lasts: on recorded curves this ranks trials better than
the whole lead, no lead, or the mean of the last values. At e = E, f is the fold's last value, and after the last fold
the value is the mean of all. The first fold reports its own curve.

A report's position counts the epochs of all folds, divided by k, so that a full trial ends at max_epochs. Its metrics
FOLD, EPOCH and one per measure, `of_fold`, hold the fold's own curve: the log alone restores the folds. A program may
report a metric of its own with the name of FOLD; only both names show a trial over folds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from haltune._utils.arrays import Array
from haltune.display import short

FOLD, EPOCH = "fold", "fold_epoch"  # metrics of a report: the fold, from 0, and its own epoch
SETTLED = 2e-8  # share of a position that a last report of the mean may lie behind the epochs that were trained


def of_fold(metric: str) -> str:
    """Return the name of the metric that holds a fold's own value of `metric`."""
    return f"fold_{metric}"


def over_folds(metrics: Container[str]) -> bool:
    """Return whether a trial with these metrics, or a report of it, is one over folds."""
    return FOLD in metrics and EPOCH in metrics


@dataclass(frozen=True, eq=False)
class FoldCurve:
    """One fold of a trial, as far as it was reported."""

    index: int  # from 0
    epochs: Array  # (n,) its own, increasing
    values: Array  # (n,) of one metric

    @property
    def value(self) -> float:
        """Its last value, with which it counts."""
        return float(self.values[-1])

    def at(self, epoch: float) -> float:
        """Return its value at an epoch, interpolated between finite values; NaN without one."""
        known = np.isfinite(self.values)
        return float(np.interp(epoch, self.epochs[known], self.values[known])) if known.any() else math.nan


def curves(metrics: Mapping[str, Any], metric: str, sparse: bool = False) -> list[FoldCurve]:
    """Return the folds of a trial, in order; none for a trial without folds.

    metrics: its columns. metric: whose values. sparse: leave out reports without the metric, and folds that have none.
    """
    if not over_folds(metrics):
        return []
    folds, epochs = np.asarray(metrics[FOLD]), np.asarray(metrics[EPOCH])
    values = np.asarray(metrics.get(of_fold(metric), np.full(len(folds), math.nan)))
    known = ~np.isnan(folds) & ~(np.isnan(values) & sparse)
    rows = ((index, known & (folds == index)) for index in np.unique(folds[known]))
    return [FoldCurve(int(index), epochs[here], values[here]) for index, here in rows]


def estimate(finished: Sequence[FoldCurve], epoch: float, value: float, horizon: float) -> float:
    """Return the estimate of the mean over all folds, at an epoch of the fold after those that are finished."""
    if not finished:
        return value
    share, ends = min(1.0, epoch / horizon), [curve.value for curve in finished]
    rests = [end - share * curve.at(epoch) for end, curve in zip(ends, finished, strict=True)]
    with np.errstate(all="ignore"):  # infinite values
        return float(np.mean([*ends, share * value + np.mean(rests)]))


def trained(metrics: Mapping[str, Any]) -> float:
    """Return the epochs that all folds of a trial have trained."""
    return sum(float(np.nanmax(c.epochs)) for c in curves(metrics, ""))


def spread(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation over folds; None for fewer than two."""
    if len(values) < 2:
        return None
    with np.errstate(all="ignore"):  # infinite values
        return float(np.std(values, ddof=1))


def plus_minus(values: Sequence[float]) -> str:
    """Return the spread over folds, to follow their mean: " ± 0.016 over 5 folds"; "" for fewer than two."""
    return "" if (deviation := spread(values)) is None else f" ± {short(deviation, 2)} over {len(values)} folds"


def ends(known: Sequence[FoldCurve], horizon: float | None, completed: bool) -> tuple[float, ...]:
    """Return the values of the folds of a trial that have ended: all but the last, if it was cut."""
    cut = known and not completed and (horizon is None or known[-1].epochs[-1] < horizon)
    return tuple(curve.value for curve in (known[:-1] if cut else known))


def places(names: Collection[str]) -> list[str]:
    """Return the names of metrics without those of the fold and its epoch, which are no measurements."""
    return [name for name in names if not over_folds(names) or name not in (FOLD, EPOCH)]
