"""Paths of a run that learn from the runs beside it: where one of those stood as this one stands, it goes on alike.

A path goes from knot to knot, epochs about a third apart. Its state at epoch a is (v, s), the warped error
v = log(error + 0.1) and its slope over log-epochs since a / 2. To the next knot b it moves

    as a run beside did      v_b of that run + rho (v - v_a of that run) + what its slope was other + noise,
                             with probability W / (W + alpha), drawn by the weights
                             exp(-(distance in v)^2 / 2 h_v^2 - (distance in s)^2 / 2 h_s^2);
                             W sums the same over runs known at b with h three times as wide,
                             rho = exp(-kappa log(b / a)): what runs differ by becomes less
    or as its own curve says the power law's path, or (before that is to be trusted) its slope and a random walk

Runs that were stopped take part as far as they were trained. That is no bias: whether a run is stopped depends on
what it has shown alone, so of those that stand alike at a, the ones known at b are a fair sample (missing at random,
Rubin 1976). Steps that are drawn from one run stay with it for a while, so that a late fall or crossing, which many
steps make, is met whole. With no other runs the paths are the power law's.

Of paths made so, too many win: who leads is partly lucky. `believed` corrects the share of winners by a logistic
regression over recorded tasks; benchmarks/search/lived.py shows both halves of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array, Array32, Indices

from .decay_curves import Paths, check_sizes, checked_errors
from .power_law_curves import power_law_paths

RowIndices = Indices
_WARP = 0.1  # errors far below it differ little
_NEAR_V, _NEAR_S = 0.1, 0.2  # h_v and h_s
_WIDE = 3.0  # times as far a run may be and still be followed
_ALPHA = 0.6  # runs beside that the own curve counts for
_NEARS = 0.3  # kappa
_GROWTH = 1.3  # of knots
_PERSISTS = 0.25  # share of a slope that goes on
_WALK = 0.1  # scale of the walk per root of log-epochs; its steps are Student's with 3 degrees of freedom
_STRAYS = 0.4  # of that scale, around a power law
_FEW_RUNS_NOISE = 0.5  # of that scale, over sqrt(1 + W): how little a few runs say
_JITTER = 0.015  # deviation of a drawn step per root of log-epochs
_STAYS = 0.7  # probability that the next step is drawn from the same run
_FLATTENS, _LOWERS = 0.8, 0.5  # log odds that are believed: 0.8 of those of the paths, less 0.5
_MOST_RUNS = 64  # runs beside that are looked at


@dataclass(frozen=True)
class Beside:
    """Curves of other runs: errors (runs, horizon), NaN after the last epoch of each."""

    errors: Array

    @staticmethod
    def of(curves: Sequence[Array], horizon: int) -> Beside:
        """Each curve (n,), n <= horizon, filled up."""
        errors = np.full((len(curves), horizon), np.nan)
        for row, curve in zip(errors, curves, strict=True):
            row[: len(curve)] = curve[:horizon]
        return Beside(errors)

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.errors)

    def near(self, errors: Array) -> Beside:
        """Those that the paths of a run with errors (n0,) are drawn by: known beyond n0, and no more than 64."""
        return Beside(_nearest(self.errors, errors))

    def beyond(self, epoch: int) -> int:
        """How many were trained further than `epoch`."""
        return int(np.isfinite(self.errors[:, epoch]).sum()) if epoch < self.errors.shape[1] else 0


def matched_paths(
    errors: ArrayLike, horizon: int, beside: Beside, count: int, rng: np.random.Generator, own: bool = True
) -> Paths:
    """Draw `count` curves of epochs n0+1..horizon given errors (n0,) and the curves of other runs.

    own: the power law's paths are what a path follows where no run beside is near; else a random walk.
    Raises InvalidInput when the errors leave [0, 1] or the horizon is not beyond them.
    """
    y = checked_errors(errors)
    check_sizes(y.size, horizon, count)
    n0 = y.size
    alone = power_law_paths(y, horizon, count, rng) if own else None
    if not beside.beyond(n0):
        return alone or power_law_paths(y, horizon, count, rng)
    others = np.log(beside.near(y).errors + _WARP)
    ahead = None if alone is None else np.log(alone.values[:, rng.permutation(count)] + np.float32(_WARP))
    knots = _knots(n0, horizon)
    at_knots = _walked(np.log(y + _WARP), others, knots, ahead, count, rng)
    values = _between(at_knots, knots)
    return Paths(n0, np.clip(np.exp(values) - np.float32(_WARP), 0.0, 1.0, dtype=np.float32))


def believed(share: float) -> float:
    """The probability of winning when `share` of the paths win."""
    if not 0.0 < share < 1.0:
        return share
    return 1.0 / (1.0 + math.exp(_LOWERS - _FLATTENS * math.log(share / (1.0 - share))))


def _nearest(errors: Array, y: Array) -> Array:
    """The runs known beyond y that stand nearest to it, half of them from those known longest."""
    n0 = y.size
    known = errors[np.isfinite(errors[:, n0])]
    if len(known) <= _MOST_RUNS:
        return known
    far = np.abs(known[:, n0 - 1] - y[-1])
    length = np.isfinite(known).sum(axis=1)
    by_length = np.lexsort((far, -length))[: _MOST_RUNS // 2]
    rest = np.setdiff1d(np.argsort(far, kind="stable"), by_length, assume_unique=True)
    by_distance = rest[np.argsort(far[rest], kind="stable")][: _MOST_RUNS // 2]
    chosen: Array = known[np.sort(np.concatenate([by_length, by_distance]))]
    return chosen


def _knots(n0: int, horizon: int) -> list[int]:
    knots = [n0]
    while knots[-1] < horizon:
        knots.append(min(horizon, max(knots[-1] + 1, round(knots[-1] * _GROWTH))))
    return knots


def _slope(warped: Array, epoch: int) -> Array:
    """Per unit of log-epoch, over the last half of what was trained; of curves (..., epochs)."""
    half = (epoch + 1) // 2
    if half == epoch:
        return np.zeros(warped.shape[:-1])
    rise: Array = (warped[..., epoch - 1] - warped[..., half - 1]) / math.log(epoch / half)
    return rise


def _walked(
    y: Array, others: Array, knots: list[int], ahead: Array32 | None, count: int, rng: np.random.Generator
) -> Array32:
    """(knots, count) warped errors of the paths."""
    n0 = knots[0]
    v = np.full(count, y[-1], dtype=np.float32)
    s = np.full(count, _slope(y, n0), dtype=np.float32)
    followed = np.full(count, -1)
    lowest, highest = np.float32(math.log(_WARP)), np.float32(math.log1p(_WARP))
    walked = [v]
    for a, b in pairwise(knots):
        dt = math.log(b / a)
        new = v + (_WALK if ahead is None else _STRAYS * _WALK) * math.sqrt(dt) * _heavy(count, rng)
        if ahead is None:
            new += _PERSISTS * dt * s
        else:
            new += ahead[b - n0 - 1] - (np.float32(y[-1]) if a == n0 else ahead[a - n0 - 1])
        known = np.flatnonzero(np.isfinite(others[:, b - 1]))
        if known.size:
            new, followed = _beside(v, s, new, followed, others, known, a, b, rng)
        new = np.clip(new, lowest, highest, dtype=np.float32)
        share = min(1.0, dt / math.log(2.0))
        s = np.float32(1.0 - share) * s + np.float32(share / dt) * (new - v)
        v = new
        walked.append(v)
    return np.array(walked)


def _beside(
    v: Array32, s: Array32, alone: Array32, followed: RowIndices, others: Array, known: RowIndices, a: int, b: int,
    rng: np.random.Generator,
) -> tuple[Array32, RowIndices]:  # fmt: skip
    """The state at b of each path, and the run that it followed, -1 for none."""
    dt, count = math.log(b / a), len(v)
    va, sa = others[known, a - 1].astype(np.float32), _slope(others[known], a).astype(np.float32)
    ends = others[known, b - 1].astype(np.float32)
    apart = ((v[:, None] - va) / np.float32(_NEAR_V)) ** 2 + ((s[:, None] - sa) / np.float32(_NEAR_S)) ** 2
    reach = np.exp(np.float32(-0.5 / _WIDE**2) * apart).sum(axis=1)
    apart -= apart.min(axis=1, keepdims=True)
    cumulative = np.cumsum(np.exp(np.float32(-0.5) * apart), axis=1)
    uniform = rng.random((3, count), dtype=np.float32)
    drawn = np.minimum((cumulative < (uniform[0] * cumulative[:, -1])[:, None]).sum(axis=1), known.size - 1)
    row = np.full(len(others) + 1, -1)
    row[known] = np.arange(known.size)
    same = row[followed]
    stays = (same >= 0) & (uniform[1] < _STAYS)
    drawn = np.where(stays, same, drawn)
    noise = np.float32(_JITTER * math.sqrt(dt)) * rng.standard_normal(count, dtype=np.float32)
    noise += np.float32(_FEW_RUNS_NOISE * _WALK * math.sqrt(dt)) * _heavy(count, rng) / np.sqrt(1.0 + reach)
    as_others = ends[drawn] + np.float32(math.exp(-_NEARS * dt)) * (v - va[drawn]) + noise
    as_others += np.float32(0.5 * _PERSISTS * dt) * (s - sa[drawn])
    follows = stays | (uniform[2] < reach / (reach + np.float32(_ALPHA)))
    return np.where(follows, as_others, alone), np.where(follows, known[drawn], -1)


def _heavy(count: int, rng: np.random.Generator) -> Array32:
    """Student's t with 3 degrees of freedom: a normal over the root of a third of a chi-squared."""
    normal = rng.standard_normal((4, count), dtype=np.float32)
    heavy: Array32 = normal[0] / np.sqrt((normal[1:] ** 2).mean(axis=0))
    return heavy


def _between(at_knots: Array32, knots: list[int]) -> Array32:
    """(horizon - n0, count): straight lines over log-epochs."""
    n0, horizon = knots[0], knots[-1]
    values = np.empty((horizon - n0, at_knots.shape[1]), dtype=np.float32)
    for k, (a, b) in enumerate(pairwise(knots)):
        for epoch in range(a + 1, b + 1):
            share = np.float32(math.log(epoch / a) / math.log(b / a))
            values[epoch - n0 - 1] = at_knots[k] + share * (at_knots[k + 1] - at_knots[k])
    return values
