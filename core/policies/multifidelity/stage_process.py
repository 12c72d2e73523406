"""The covariance of what runs have reached at the stages of training, and how it is learnt.

What run i of configuration x reached at stage k, y_ik, is taken for

    y_ik = m(t_k) + f(x_i, k) + g_i(k) + noise,    t_k = log(1 + n_k) / log(1 + N), n_k the stage's epochs of N

with independent Gaussian processes: m, what all runs have in common, on a straight line of unit variances; f, what
the configuration decides; g, what is the run's own.

    cov m = 1 + (t - 1)(t' - 1) + s^2 exp(-(t - t')^2 / 2 l^2)
    cov f = a_k a_l exp(-|u_k - u_l|) rho(x, x')        rho: Matern 5/2, a lengthscale for each coordinate
    cov g = c^2 a_k a_l exp(-r |u_k - u_l|)             within a run

The time u of a stage is the sum of the steps before it, one for each pair of neighbouring stages. Every stage has an
amplitude a_k and every step its length of its own, which the runs teach: where the first epoch says nothing of the
last, the first step is long, and nothing that was seen there moves what is believed of the end.

Runs of earlier studies, each on the scale of its own study, are runs like these with an m of their study's own; and
cov f between runs of studies i and j is multiplied by q_i q_j, q = 1 / (1 + exp(-theta)) of an earlier one, 1 of this
one. So a study that foretells nothing of this one is left with q near 0, and no say in what begins. The amplitudes,
steps and lengthscales are common to all: how much early epochs tell of the end is known from the first trial on.
`benchmarks/search/stage_priors.py` shows the hyperparameters of recorded trainings beside the priors' medians.

What it learns from (`CurveRows`) is folded from the log. A row is what a trial counts for by an epoch, NaN where it
diverged. Of each trial these are the first at or after the epochs 1, 3, 9, 27, ... and the last before it paused or
ended: a curve says little more in between. Rows keep the order of the log. A trial that begins again, from a checkpoint
or anew, loses the rows after that, as the history forgets them; reports that come late or belong to an attempt that was
superseded are none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.random import Generator
from scipy.linalg import lapack

from haltune._utils.arrays import Array, Indices, Mask
from haltune.gp.gp import factorise, solve_lower, subset
from haltune.gp.kernels import profile, squared_distances
from haltune.log import events as ev
from haltune.log.events import Event, Status
from haltune.log.history import History
from haltune.log.problem import Goal
from haltune.log.scores import measured
from haltune.space import Space
from haltune.space.domains import Float, bounding

# -- rows of curves ------------------------------------------------------------------------------

CurveRow = tuple[int, float, float]  # trial, epochs, raw value
_EPOCH_RATIO = 3  # ratio of the epochs at which a curve is looked at


@dataclass(frozen=True, slots=True)
class CurveTable:
    """Rows as arrays (n,), with values as models take them (see log.scores)."""

    trial: Indices
    epoch: Array
    value: Array

    def __len__(self) -> int:
        return len(self.trial)

    def upto(self, count: int) -> CurveTable:
        return CurveTable(self.trial[:count], self.epoch[:count], self.value[:count])


@dataclass(slots=True)
class TrialRows:
    attempt: int = 1
    held: bool = True  # by a worker: what is reported after that is not in its curve
    at: float = 0.0  # epochs of its last report
    value: float | None = None  # that it counts for by its last report in this attempt
    saved: float = 0.0  # epochs of its last checkpoint
    top: float = math.nan  # its best finite value
    kept: float = math.nan  # `top` at its last checkpoint
    rows: list[tuple[float, int]] = field(default_factory=list)  # epochs and number of each of its rows


class CurveRows:
    def __init__(self, goal: Goal) -> None:
        self.goal = goal
        self.rows: dict[int, CurveRow] = {}  # by their numbers
        self.count = 0  # rows that ever were: the next one's number
        self.trials: dict[int, TrialRows] = {}
        self._table: CurveTable | None = None  # of these rows, once it was asked for

    def __repr__(self) -> str:
        return f"CurveRows({self.rows}, {self.trials})"

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def table(self) -> CurveTable:
        if self._table is None:
            trial, epoch, value = np.array(list(self.rows.values()), dtype=np.float64).reshape(len(self), 3).T
            self._table = CurveTable(trial.astype(np.intp), epoch, measured(value))
        return self._table

    def take(self, event: Event) -> None:
        if isinstance(event, ev.Started):
            self.trials[event.trial] = TrialRows()
        if not isinstance(event, ev.TrialEvent) or (t := self.trials.get(event.trial)) is None:
            return
        if isinstance(event, ev.Resumed):
            self._resumed(t, event)
        elif not isinstance(event, ev.AttemptEvent) or event.attempt != t.attempt or not t.held:
            return  # superseded, or late
        elif isinstance(event, ev.Reported):
            self._reported(t, event)
        elif isinstance(event, ev.Checkpointed):
            t.saved, t.kept = event.epoch, t.top
        elif isinstance(event, ev.Ended | ev.Expired):
            t.held = False
            self._ended(t, event.trial, event.status)

    def _resumed(self, t: TrialRows, e: ev.Resumed) -> None:
        """What came after the checkpoint is trained again."""
        saved, top = (0.0, math.nan) if e.anew else (t.saved, t.kept)
        kept = [row for row in t.rows if row[0] <= saved]
        for row in t.rows:
            if row[0] > saved:
                del self.rows[row[1]]
                self._table = None
        self.trials[e.trial] = TrialRows(e.attempt, True, saved, None, saved, top, top, kept)

    def _reported(self, t: TrialRows, e: ev.Reported) -> None:
        if e.epoch <= t.at:
            return  # seen before
        marked = _marked(t.at, e.epoch)
        t.at, t.top = e.epoch, e.value if self.goal.better(e.value, t.top) else t.top
        t.value = t.top if self.goal.of == "best" and math.isfinite(e.value) else e.value
        if marked:
            self._add(t, e.trial, t.value)

    def _ended(self, t: TrialRows, trial: int, status: Status) -> None:
        """Its last value counts, unless that epoch is trained again. One that failed has diverged, whatever it reached:
        what runs out of memory does so again, where the search would otherwise come back to."""
        if status is Status.FAILED:
            t.at = max(1.0, t.at)
            self._add(t, trial, math.nan)
        known = bool(t.rows) and t.rows[-1][0] >= t.at
        if not (known or status in (Status.FAILED, Status.INTERRUPTED) or t.value is None):
            self._add(t, trial, t.value)

    def _add(self, t: TrialRows, trial: int, value: float) -> None:
        t.rows.append((t.at, self.count))
        self.rows[self.count] = (trial, t.at, value)
        self.count += 1
        self._table = None


def _marked(before: float, epoch: float) -> bool:
    """Whether 1, 3, 9, 27, ... lies after one epoch and not after the other."""
    mark = 1
    while mark <= before:
        mark *= _EPOCH_RATIO
    return mark <= epoch


_BEST_TRIALS = 5  # best trials that have neighbours among the candidates
_NEIGHBOUR_DEVIATION = 0.15  # deviation of a neighbour in the unit cube


def candidates(history: History, rows: CurveTable, count: int, rng: Generator, others: Array | None = None) -> Array:
    """(n, d) random configurations, and neighbours of the best trials in about half of their coordinates.

    A third of `count` are neighbours, of `others` (k, d) as well, which are candidates themselves. All configurations,
    in a space with no more.
    """
    space, near = history.problem.space, count // 3
    if space.size is not None and space.size <= count:
        return space.encode_many(space.enumerate())
    tops = history.points[_best_trials(rows, history.problem.goal.sign)]
    others = np.empty((0, space.dim)) if others is None else others
    tops = np.vstack([tops, others])
    anywhere = rng.random((count - near, space.dim))
    base = tops[rng.integers(len(tops), size=near)]
    moved = base + (rng.random(base.shape) < 0.5) * rng.normal(0.0, _NEIGHBOUR_DEVIATION, base.shape)
    points = np.vstack([anywhere, np.clip(moved, 0.0, 1.0), others])
    return points if _free(space) else space.encode_many(space.decode_many(points))


def _best_trials(rows: CurveTable, sign: float) -> Indices:
    """The trials of the best values, best first, of equals the lower number; what is not finite last."""
    score = np.where(np.isfinite(rows.value), -sign * rows.value, np.inf)
    ranked = rows.trial[np.lexsort((rows.trial, score))]
    _, first = np.unique(ranked, return_index=True)
    return ranked[np.sort(first)[:_BEST_TRIALS]]


def first_untried(history: History, points: Array, value: Array) -> tuple[int, dict[str, Any]] | None:
    """The point (n, d) of largest value (n,) whose configuration breaks no constraint and was not tried, and that one.

    None when there is none. They are asked one by one, for it is slow.
    """
    space = history.problem.space
    for i in np.argsort(-value, kind="stable"):
        config = space.decode(points[i])
        if space.contains(config) and space.key_of_canonical(config) not in history.tried:
            return int(i), config
    return None


def _free(space: Space) -> bool:
    """True when a point and its configuration are one: all coordinates are numbers that depend on no other."""
    return all(isinstance(d, Float) and not d.when and not bounding(d) for d in space.parameters.values())


_ROWS_BETWEEN_FITS = (8, 100)  # rows between fits: a fifth of those there are, within these


def median_and_best(values: Array, first: Array, sign: float) -> tuple[float, float] | None:
    """sign * value: the median of the first trials' measured values, and the best of all (n,).

    The median is of all where none of the first trials' is finite. None when none of all is.
    """
    v = sign * values[np.isfinite(values)]
    if not len(v):
        return None
    early = sign * first[np.isfinite(first)]
    return float(np.median(early if len(early) else v)), float(v.max())


def fitted(count: int, first: int) -> int:
    """The last number of rows at which hyperparameters were fitted."""
    m, (least, most) = first, _ROWS_BETWEEN_FITS
    while (following := m + min(most, max(least, m // 5))) <= count:
        m = following
    return min(m, count)


# -- what runs have reached at the stages --------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """What runs have reached: n values, each on the scale of the study that it was seen in."""

    points: Array  # (runs, d)
    run: Indices  # (n,) row of `points`
    stage: Indices  # (n,)
    value: Array  # (n,)
    study: Indices | None = None  # (runs,) 0 this one, 1 to J the earlier ones; None: all of this one

    def __len__(self) -> int:
        return len(self.value)

    def at(self, kept: Indices) -> Seen:
        runs, run = np.unique(self.run[kept], return_inverse=True)
        study = None if self.study is None else self.study[runs]
        return Seen(self.points[runs], run, self.stage[kept], self.value[kept], study)

    def beside(self, other: Seen) -> Seen:
        """The values of both, whose runs are others."""
        studies = [np.zeros(len(s.points), dtype=np.intp) if s.study is None else s.study for s in (self, other)]
        return Seen(
            np.vstack([self.points, other.points]),
            np.concatenate([self.run, other.run + len(self.points)]),
            np.concatenate([self.stage, other.stage]),
            np.concatenate([self.value, other.value]),
            None if self.study is None and other.study is None else np.concatenate(studies),
        )

    def of_this(self) -> Seen:
        """The same, of which each run is said to be of this study."""
        return replace(self, study=np.zeros(len(self.points), dtype=np.intp))

    @property
    def key(self) -> tuple[bytes, ...]:
        study = b"" if self.study is None else self.study.tobytes()
        return (self.points.tobytes(), self.run.tobytes(), self.stage.tobytes(), self.value.tobytes(), study)

    @cached_property
    def of(self) -> Indices | None:
        """(n,) the study that each value was seen in; None: this one."""
        return None if self.study is None else self.study[self.run]

    @cached_property
    def together(self) -> Mask | float:
        """(n, n) whether two values are of one study; 1 where there is but one."""
        return 1.0 if self.of is None else self.of[:, None] == self.of

    @cached_property
    def same(self) -> Mask:
        """(n, n) whether two values are of one run."""
        return np.asarray(self.run[:, None] == self.run)

    def runs_at(self, points: Array) -> Mask:
        """(n, m) whether a value is of a run of this study at a point of (m, d)."""
        there = (self.points[:, None] == points).all(axis=2)
        if self.study is not None:
            there &= (self.study == 0)[:, None]
        return np.asarray(there[self.run])

    @cached_property
    def pairs(self) -> tuple[Array, Array]:
        """Indices that make (n, n) of a table of stages."""
        return np.ix_(self.stage, self.stage)  # type: ignore[return-value]


# Medians of the prior, and deviations of the logarithm.
_COMMON, _COMMON_SD = 0.2, 0.4  # s
_LENGTH, _LENGTH_SD = 1.0, 0.4  # l
_NOISE, _NOISE_SD = 0.005, 0.7
_OWN, _OWN_SD = 0.5, 0.8  # c
_RATE, _RATE_SD = 1.5, 0.5  # r
_AMPLITUDE, _AMPLITUDE_SD = 0.35, 0.3  # a at the last stage, common to all
_GROWTH, _GROWTH_SD = 0.3, 0.3  # of log a per unit of t
_EACH_SD = 0.12  # of a single amplitude
_FIRST, _FIRST_SD = 0.25, 1.0  # the first step; its deviation is on top of those of all
_PACE, _STEPS_SD, _STEP_SD = 3.3, 0.8, 1.0  # t per unit of u; of all steps together, of a single one
_SCALE, _SCALE_SD = 1.0, 0.7  # lengthscales in the unit cube
_TOLD, _TOLD_SD = 0.7, 1.5  # q of an earlier study; deviation of its logit


class Stages:
    """The stages of training and the prior of the hyperparameters theta, all logarithms but for the last.

    theta: s, l, noise, c, r; the amplitudes (K,); the steps (K - 1,); the lengthscales (d,); the logits of q (J,).
    epochs: (K,) of each stage, ascending, the last a full training; dim: d; earlier: J studies.
    """

    def __init__(self, epochs: tuple[int, ...], dim: int, earlier: int = 0) -> None:
        self.epochs, self.dim, self.earlier = epochs, dim, earlier
        n, k = np.array(epochs, dtype=np.float64), len(epochs)
        self.times = np.asarray(np.log1p(n) / np.log1p(n[-1]))  # (K,) t
        scales = 5 + 2 * k - 1
        told = scales + dim
        # where the amplitudes, the steps, the lengthscales and the logits of q stand in theta
        self.parts = slice(5, 5 + k), slice(5 + k, scales), slice(scales, told), slice(told, told + earlier)
        gaps, back = np.diff(self.times) / _PACE, self.times - 1.0
        gaps[:1] = _FIRST
        self.mean = np.concatenate([
            np.log([_COMMON, _LENGTH, _NOISE, _OWN, _RATE]), np.log(_AMPLITUDE) + _GROWTH * back, np.log(gaps),
            np.full(dim, np.log(_SCALE)), np.full(earlier, np.log(_TOLD / (1 - _TOLD))),
        ])  # fmt: skip
        # amplitudes, and steps, vary together and each by itself
        covariance = np.zeros((len(self.mean), len(self.mean)))
        covariance[range(5), range(5)] = np.square([_COMMON_SD, _LENGTH_SD, _NOISE_SD, _OWN_SD, _RATE_SD])
        amplitudes, steps, lengths, logits = self.parts
        covariance[amplitudes, amplitudes] = (
            _AMPLITUDE_SD**2 + _GROWTH_SD**2 * np.outer(back, back) + _EACH_SD**2 * np.eye(k)
        )
        covariance[steps, steps] = _STEPS_SD**2 + _STEP_SD**2 * np.eye(k - 1)
        if k > 1:
            covariance[steps.start, steps.start] += _FIRST_SD**2
        covariance[lengths, lengths] = _SCALE_SD**2 * np.eye(dim)
        covariance[logits, logits] = _TOLD_SD**2 * np.eye(earlier)
        self.precision = np.asarray(np.linalg.inv(covariance))
        sd = np.sqrt(np.linalg.inv(self.precision).diagonal())
        self.bounds = [(float(m - 4 * s), float(m + 4 * s)) for m, s in zip(self.mean, sd, strict=True)]
        stage, step = np.arange(k), np.arange(k - 1)[:, None, None]
        low, high = np.minimum.outer(stage, stage), np.maximum.outer(stage, stage)
        # (K - 1, K, K) 1 where a step lies between two stages
        self.between = np.asarray((low <= step) & (step < high), dtype=np.float64)


class StageKernel:
    """The covariances under one theta; tables of stages (K, K)."""

    def __init__(self, stages: Stages, theta: Array) -> None:
        self.stages, self.theta = stages, theta
        amplitudes, steps, lengths, logits = stages.parts
        self.noise = float(np.exp(2 * theta[2])) + 1e-8  # variance
        self.scales = np.asarray(np.exp(theta[lengths]))  # (d,) lengthscales
        self.apart = np.asarray(np.tensordot(np.exp(theta[steps]), stages.between, 1))  # |u_k - u_l|
        gap, back = np.subtract.outer(stages.times, stages.times), stages.times - 1.0
        self.wave = np.asarray(np.exp(2 * theta[0]) * np.exp(-((gap / np.exp(theta[1])) ** 2) / 2))
        self.common = np.asarray(1.0 + np.outer(back, back) + self.wave)  # cov m, of which wave is what bends
        a = np.exp(theta[amplitudes])
        both = np.outer(a, a)
        self.shared = np.asarray(both * np.exp(-self.apart))  # cov f at equal configurations
        self.own = np.asarray(np.exp(2 * theta[3] - np.exp(theta[4]) * self.apart) * both)  # cov g
        # (J + 1,) q of each study, 1 of this one before those of the earlier ones
        self.told = np.concatenate([[1.0], 1.0 / (1.0 + np.exp(-theta[logits]))])
        self.linked = np.outer(self.told, self.told)  # (J + 1, J + 1) the factor of cov f between two studies
        np.fill_diagonal(self.linked, 1.0)

    def without(self, studies: Iterable[int]) -> StageKernel:
        """The same with a q of 0 for some of the earlier studies, which are numbered from 1 on."""
        theta = self.theta.copy()
        theta[[self.stages.parts[3].start + j - 1 for j in studies]] = -np.inf
        return StageKernel(self.stages, theta)

    @property
    def foretells(self) -> Array:
        """(K,) the correlation of what tells runs apart at each stage with that at the last."""
        told = self.shared + self.own
        return np.asarray(told[:, -1] / np.sqrt(told.diagonal() * told[-1, -1]))

    def near(self, left: Array, right: Array) -> tuple[Array, Array]:
        """rho (n, m) of points (n, d) and (m, d), and its slope (see gp.kernels.profile)."""
        return profile("matern52", squared_distances(left / self.scales, right / self.scales))

    def near_seen(self, seen: Seen) -> tuple[Array, Array]:
        """(n, n) the same of what was seen, times the factor of its studies."""
        found = (of_runs[np.ix_(seen.run, seen.run)] for of_runs in self.near(seen.points, seen.points))
        rho, slope = found
        if seen.of is None:
            return rho, slope
        linked = self.linked[np.ix_(seen.of, seen.of)]
        return linked * rho, linked * slope

    def across(self, seen: Seen, points: Array) -> Array:
        """(n, m) covariance of what was seen with the ends of new runs of this study at points (m, d)."""
        rho, _ = self.near(seen.points, points)
        common, shared = self.common[seen.stage, -1, None], self.shared[seen.stage, -1, None]
        if seen.of is None:
            return np.asarray(common + rho[seen.run] * shared)
        here, linked = seen.of[:, None] == 0, self.linked[seen.of, 0, None]
        return np.asarray(here * common + linked * rho[seen.run] * shared)

    def covariance(self, seen: Seen, rho: Array) -> Array:
        """K (n, n) of what was seen, noise included; rho (n, n) as `near_seen` has it."""
        pairs = seen.pairs
        common = self.common[pairs] * seen.together
        covariance = common + rho * self.shared[pairs] + seen.same * self.own[pairs]
        covariance.flat[:: len(seen) + 1] += self.noise
        return np.asarray(covariance)


def descent(stages: Stages, seen: Seen, theta: Array) -> tuple[float, Array]:
    """Minus the log posterior density of theta up to a constant, and its gradient; infinite where K has no factor."""
    kernel = StageKernel(stages, theta)
    rho, slope = kernel.near_seen(seen)
    factor, info = lapack.dpotrf(kernel.covariance(seen, rho), lower=1, clean=1)
    if info:
        return np.inf, np.zeros_like(theta)
    lower, _ = lapack.dpotri(factor, lower=1)
    inverse = lower + np.tril(lower, -1).T
    weights = inverse @ seen.value
    off = theta - stages.mean
    value = 0.5 * seen.value @ weights + np.log(factor.diagonal()).sum() + 0.5 * off @ stages.precision @ off
    pull = 0.5 * (inverse - np.outer(weights, weights))
    gradient = stages.precision @ off + np.concatenate(list(_gradient(kernel, seen, pull, rho, slope)))
    return float(value), gradient


def _gradient(kernel: StageKernel, seen: Seen, pull: Array, rho: Array, slope: Array) -> Iterator[Array]:
    """By theta, part by part: sums of `pull` against the derivatives of K, gathered in tables of stages."""
    which = np.zeros((len(seen), len(kernel.stages.epochs)))
    which[np.arange(len(seen)), seen.stage] = 1.0
    wave = (which.T @ (pull * seen.together) @ which) * kernel.wave
    shared = (which.T @ (pull * rho) @ which) * kernel.shared
    own = (which.T @ (pull * seen.same) @ which) * kernel.own
    gap, rate = np.subtract.outer(kernel.stages.times, kernel.stages.times), float(np.exp(kernel.theta[4]))
    noise = 2 * np.exp(2 * kernel.theta[2]) * np.trace(pull)
    bend = (wave * (gap / np.exp(kernel.theta[1])) ** 2).sum()
    yield np.array([2 * wave.sum(), bend, noise, 2 * own.sum(), -rate * (own * kernel.apart).sum()])
    yield 2 * (shared + own).sum(axis=1)
    steps = np.exp(kernel.theta[kernel.stages.parts[1]])
    yield -steps * np.tensordot(kernel.stages.between, shared + rate * own, 2)
    force = pull * kernel.shared[seen.pairs] * slope
    scaled = seen.points[seen.run] / kernel.scales
    yield 2 * (force.sum(axis=1) @ scaled**2 - ((force @ scaled) * scaled).sum(axis=0))
    if seen.of is not None:
        yield _gradient_told(kernel, seen.of, pull * rho * kernel.shared[seen.pairs])


def _gradient_told(kernel: StageKernel, study: Indices, pulled: Array) -> Array:
    """(J,) by the logits of q; pulled: (n, n) what pulls at cov f, times that."""
    which = np.eye(len(kernel.told))[study]
    between = which.T @ pulled @ which
    np.fill_diagonal(between, 0.0)
    return np.asarray(2 * (1 - kernel.told) * between.sum(axis=1))[1:]


_EVALUATIONS = 40  # of the density, in the search for its mode


def learn_kernel(stages: Stages, seen: Seen) -> StageKernel:
    """The kernel of the largest posterior density given what was seen, from the prior's mode on."""
    from scipy.optimize import minimize  # slow to import, and many a process fits nothing

    found = minimize(
        lambda theta: descent(stages, seen, theta),
        stages.mean,
        jac=True,
        method="L-BFGS-B",
        bounds=stages.bounds,
        options={"maxfun": _EVALUATIONS},
    )
    return StageKernel(stages, found.x if np.isfinite(found.fun) else stages.mean)


def density(stages: Stages, seen: Seen, kernel: StageKernel) -> float:
    """The logarithm of the posterior density up to a constant, which `learn_kernel` has made as large as it found."""
    return -descent(stages, seen, kernel.theta)[0]


def largest_density(stages: Stages, seen: Seen) -> float:
    return density(stages, seen, learn_kernel(stages, seen))


@dataclass(frozen=True)
class StageProcess:
    """A posterior: n values seen, and what they say of the last stage."""

    kernel: StageKernel
    seen: Seen
    factor: Array  # (n, n) Cholesky, lower
    weights: Array  # (n,) K^-1 y

    @classmethod
    def of(cls, kernel: StageKernel, seen: Seen) -> StageProcess:
        rho, _ = kernel.near_seen(seen)
        covariance = kernel.covariance(seen, rho)
        factor, _ = factorise(covariance, float(covariance.diagonal().max(initial=1.0)))
        weights = solve_lower(factor, solve_lower(factor, seen.value), transposed=True)
        return cls(kernel, seen, factor, weights)

    @property
    def best_end(self) -> float | None:
        """The largest value at the last stage, of this study; None: none was seen there."""
        last = self.seen.stage == len(self.kernel.stages.epochs) - 1
        here = last if self.seen.of is None else last & (self.seen.of == 0)
        return float(self.seen.value[here].max()) if here.any() else None

    def ends(self, points: Array, seen: bool = False) -> tuple[Array, Array]:
        """Mean and deviation (m,) of where runs of configurations (m, d) in the unit cube will end.

        seen: the runs of this study that were seen there, if one was; else new ones.
        """
        kernel = self.kernel
        cross = kernel.across(self.seen, points)
        if seen:
            cross = cross + self.seen.runs_at(points) * kernel.own[self.seen.stage, -1, None]
        explained = (solve_lower(self.factor, cross) ** 2).sum(axis=0)
        prior = kernel.common[-1, -1] + kernel.shared[-1, -1] + kernel.own[-1, -1]
        return cross.T @ self.weights, np.sqrt(np.maximum(prior - explained, 1e-12))

    def with_ends(self, points: Array) -> StageProcess:
        """Pending configurations (m, d) taken for ended at their means, so that parallel workers spread."""
        if not len(points):
            return self
        last, mean = len(self.kernel.stages.epochs) - 1, self.ends(points)[0]
        ended = Seen(points, np.arange(len(points)), np.full(len(points), last), mean)
        return StageProcess.of(self.kernel, self.seen.beside(ended))


_WORST = 20.0  # widths below the best: what diverged, and all that is as bad


@dataclass(frozen=True, slots=True)
class LogRegret:
    """Targets -log(1 + (best - value) / width): 0 for the best so far, -log 2 for the median of the first trials.

    Near the best a difference counts for what it is, far below it for its ratio; so runs that diverge do not make all
    others look equal, and yet a bad run tells worse ones apart. The median is that of trials which were not chosen for
    their promise.
    """

    sign: float  # of the goal
    best: float  # sign * value
    width: float

    @classmethod
    def of(cls, values: Array, first: Array, sign: float) -> LogRegret | None:
        """From measured values (n,), and those that the first trials have come to; None when none is finite."""
        if (found := median_and_best(values, first, sign)) is None:
            return None
        median, best = found
        width = min(best - median, float(np.finfo(np.float64).max))
        return cls(sign, best, width if width > 0 else max(abs(best), 1.0))

    def targets(self, values: Array) -> Array:
        """Of measured values (n,); what is not finite is at the bottom."""
        v = np.where(np.isfinite(values), self.sign * values, -np.inf)
        with np.errstate(over="ignore"):
            return -np.log1p(np.clip((self.best - v) / self.width, 0.0, _WORST))

    def value(self, target: float) -> float:
        """The metric that a target stands for; above 0 on a straight line, for nothing was seen there."""
        above = target if target > 0 else -float(np.expm1(-target))
        return self.sign * (self.best + self.width * above)

    def deviation(self, target: float, deviation: float) -> float:
        """A small deviation of the target, in the metric's unit."""
        return self.width * deviation * float(np.exp(-min(target, 0.0)))


LEARNT = 160  # values that hyperparameters are learnt from
VALUES_KEPT = 400  # values that a process keeps: a decision costs as much in a long search


class TargetMap(Protocol):
    """Turns values into targets, larger is better."""

    def targets(self, values: Array, /) -> Array:
        """Of values of any shape; what is not finite is at the bottom."""


def seen_at_stages(history: History, rows: CurveTable, stages: Stages, scale: TargetMap) -> Seen:
    """The rows at their stages, as targets of the scale.

    What diverged counts for the end: it stays so. A trial's first row at or after a stage's epoch counts for that
    stage, the latest where it passes several; another one for the nearest where the trial has no later row.
    """
    number, count = np.arange(len(rows)), len(stages.epochs)
    marks = np.array(stages.epochs, dtype=np.float64)
    stage = np.maximum(np.searchsorted(marks, rows.epoch, side="right") - 1, 0)
    passes = (rows.epoch >= marks[stage]) & (_before(rows) < marks[stage])
    stage = np.where(passes, stage, _nearest(stages, rows.epoch))
    last = np.full(int(rows.trial.max(initial=-1)) + 1, -1)
    last[rows.trial] = number  # of equals the later stays
    diverged = ~np.isfinite(rows.value)
    stage = np.where(diverged, count - 1, stage)
    taken = np.flatnonzero(diverged | passes | (last[rows.trial] == number))
    trial, stage, value = rows.trial[taken], stage[taken], rows.value[taken]
    _, first, which = np.unique(trial * count + stage, return_index=True, return_inverse=True)
    latest = np.empty(len(first), dtype=np.intp)
    latest[which] = np.arange(len(taken))
    order = np.argsort(first)  # as they were first seen
    first, latest = first[order], latest[order]
    trials, run = _numbered(trial[first])
    return Seen(history.points[trials], run, stage[first], scale.targets(value[latest]))


def _numbered(trial: Indices) -> tuple[Indices, Indices]:
    """The different ones as they come, and of each which it is."""
    found, first, which = np.unique(trial, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(found), dtype=np.intp)
    place[order] = np.arange(len(found))
    return found[order], place[which]


def _before(rows: CurveTable) -> Array:
    """(n,) the epoch of the same trial's row before, 0 for its first."""
    order = np.argsort(rows.trial, kind="stable")
    trial, epoch = rows.trial[order], rows.epoch[order]
    found = np.zeros(len(rows))
    found[order[1:]] = np.where(trial[1:] == trial[:-1], epoch[:-1], 0.0)
    return found


def _nearest(stages: Stages, epochs: Array) -> Indices:
    t = np.log1p(epochs) / np.log1p(stages.epochs[-1])
    return np.asarray(np.abs(stages.times[:, None] - t).argmin(axis=0))


def spread(seen: Seen, limit: int, rng: Generator | None) -> Indices:
    """At most `limit` of the values: those of runs that went furthest, and of the others a part.

    That part is drawn by rng; without, it is the best, the latest and what fills the space (`gp.subset`).
    """
    if len(seen) <= limit:
        return np.arange(len(seen))
    reached = np.zeros(len(seen.points), dtype=np.intp)
    np.maximum.at(reached, seen.run, seen.stage)
    far = np.argsort(-reached[seen.run], kind="stable")[: limit // 2]
    rest = np.setdiff1d(np.arange(len(seen)), far)
    if rng is not None:
        return np.sort(np.concatenate([far, rng.choice(rest, limit - len(far), replace=False)]))
    kept = subset(seen.points[seen.run[rest]], seen.value[rest], limit - len(far))
    return np.sort(np.concatenate([far, rest[kept]]))
