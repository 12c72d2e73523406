"""The Gaussian process of values at the stages of training, and how its covariance is learnt.

The value y_ik of trial i, of configuration x, at stage k is modelled as

    y_ik = m(t_k) + f(x_i, k) + g_i(k) + noise,    t_k = log(1 + n_k) / log(1 + N), n_k the stage's epochs of N

with independent Gaussian processes: m, common to all trials, around a straight line of unit variances; f, of the
configuration; g, of the trial alone.

    cov m = 1 + (t - 1)(t' - 1) + s^2 exp(-(t - t')^2 / 2 l^2)
    cov f = a_k a_l exp(-|u_k - u_l|) rho(x, x')        rho: Matern 5/2, a lengthscale for each coordinate
    cov g = c^2 a_k a_l exp(-r |u_k - u_l|)             within a trial

The time u of a stage is the sum of the steps before it, one step between neighbouring stages. The amplitude a_k of each
stage and the length of each step are learnt. If the first epoch predicts nothing of the last, the first step becomes
long, and values there do not change the prediction of the end.

Trials of prior studies, each on the scale of its own study, are trials like these with an m of their study; cov f
between trials of studies i and j is multiplied by q_i q_j, where the relevance q is 1 / (1 + exp(-theta)) for a prior
study and 1 for this one. A study that does not predict this one gets q near 0, and no influence on what starts. All
share the amplitudes, steps and lengthscales: how well early epochs predict the end is known from the first trial on.
`benchmarks/search/stage_priors.py` prints the hyperparameters of recorded trainings and the priors' medians.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.random import Generator
from numpy.typing import ArrayLike
from scipy.linalg import lapack

from haltune._utils.arrays import Array, Indices, Mask
from haltune.gp.gp import factorise, solve_lower, subset
from haltune.gp.kernels import profile, squared_distances

from .curve_rows import CurveTable
from .scales import OFFSET, OFFSETS, Heights


@dataclass(frozen=True)
class Seen:
    """Values of trials at stages: n of them, each on the scale of its study."""

    points: Array  # (runs, d)
    run: Indices  # (n,) row of `points`
    stage: Indices  # (n,)
    value: Array  # (n,)
    study: Indices | None = None  # (runs,) 0 this one, 1 to J the prior ones; None: all of this one

    def __len__(self) -> int:
        return len(self.value)

    def at(self, kept: Indices) -> Seen:
        runs, run = np.unique(self.run[kept], return_inverse=True)
        study = None if self.study is None else self.study[runs]
        return Seen(self.points[runs], run, self.stage[kept], self.value[kept], study)

    def union(self, other: Seen) -> Seen:
        """Return the values of both; no run is in both."""
        studies = [np.zeros(len(s.points), dtype=np.intp) if s.study is None else s.study for s in (self, other)]
        return Seen(
            np.vstack([self.points, other.points]),
            np.concatenate([self.run, other.run + len(self.points)]),
            np.concatenate([self.stage, other.stage]),
            np.concatenate([self.value, other.value]),
            None if self.study is None and other.study is None else np.concatenate(studies),
        )

    def of_values(self, values: Array) -> Seen:
        """Return the same runs and stages with other values (n,)."""
        found = replace(self, value=values)
        for name in ("of", "together", "same"):  # they do not depend on the values
            vars(found)[name] = getattr(self, name)
        return found

    def of_this(self) -> Seen:
        """Return the same with all runs marked as this study's."""
        return replace(self, study=np.zeros(len(self.points), dtype=np.intp))

    @cached_property
    def of(self) -> Indices | None:
        """(n,) The study of each value; None: all are of this one."""
        return None if self.study is None else self.study[self.run]

    @cached_property
    def together(self) -> Mask | float:
        """(n, n) Whether two values are of one study; 1 if there is only one."""
        return 1.0 if self.of is None else self.of[:, None] == self.of

    @cached_property
    def same(self) -> Mask:
        """(n, n) Whether two values are of one run."""
        return np.asarray(self.run[:, None] == self.run)

    def runs_at(self, points: Array) -> Mask:
        """Return (n, m): whether a value belongs to a run of this study at one of the points (m, d)."""
        there = (self.points[:, None] == points).all(axis=2)
        if self.study is not None:
            there &= (self.study == 0)[:, None]
        return np.asarray(there[self.run])

    @cached_property
    def pairs(self) -> tuple[Array, Array]:
        """Indices that turn a table of stages (K, K) into (n, n)."""
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
_RELEVANCE, _RELEVANCE_SD = 0.7, 1.5  # q of a prior study; deviation of its logit


FIRST_SHARE = 0.02  # of a full training: the first stage
_TOO_CLOSE = 1.25  # to the horizon: a stage there would add little to the last one


def stage_epochs(horizon: int, first: int | None = None, ratio: int = 3) -> tuple[int, ...]:
    """Return the epochs first, first * ratio, first * ratio^2, ..., and the horizon; none just before it.

    first: None for a fiftieth of the horizon.
    """
    first = max(1, round(FIRST_SHARE * horizon)) if first is None else first
    epochs = [first]
    while epochs[-1] * ratio * _TOO_CLOSE < horizon:
        epochs.append(epochs[-1] * ratio)
    return (*epochs, horizon) if first * _TOO_CLOSE < horizon else (horizon,)


class Stages:
    """The stages of training and the prior of the hyperparameters theta.

    theta: the logarithms of s, l, noise, c, r, of the amplitudes (K,), of the steps (K - 1,) and of the lengthscales
    (d,); then the logits of q (J,).

    Args:
        epochs: (K,) Of each stage, ascending; the last is a full training.
        dim: d.
        earlier: J, the number of prior studies.
    """

    def __init__(self, epochs: tuple[int, ...], dim: int, earlier: int = 0) -> None:
        self.epochs, self.dim, self.earlier = epochs, dim, earlier
        n, k = np.array(epochs, dtype=np.float64), len(epochs)
        self.times = np.asarray(np.log1p(n) / np.log1p(n[-1]))  # (K,) t
        scales = 5 + 2 * k - 1
        end = scales + dim
        # slices of theta: the amplitudes, the steps, the lengthscales and the logits of q
        self.parts = slice(5, 5 + k), slice(5 + k, scales), slice(scales, end), slice(end, end + earlier)
        gaps, back = np.diff(self.times) / _PACE, self.times - 1.0
        gaps[:1] = _FIRST
        self.mean = np.concatenate([
            np.log([_COMMON, _LENGTH, _NOISE, _OWN, _RATE]), np.log(_AMPLITUDE) + _GROWTH * back, np.log(gaps),
            np.full(dim, np.log(_SCALE)), np.full(earlier, np.log(_RELEVANCE / (1 - _RELEVANCE))),
        ])  # fmt: skip
        # amplitudes vary together and each by itself, and so do steps
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
        covariance[logits, logits] = _RELEVANCE_SD**2 * np.eye(earlier)
        self.precision = np.asarray(np.linalg.inv(covariance))
        sd = np.sqrt(np.linalg.inv(self.precision).diagonal())
        self.bounds = [(float(m - 4 * s), float(m + 4 * s)) for m, s in zip(self.mean, sd, strict=True)]
        stage, step = np.arange(k), np.arange(k - 1)[:, None, None]
        low, high = np.minimum.outer(stage, stage), np.maximum.outer(stage, stage)
        # (K - 1, K, K) 1 where a step lies between two stages
        self.between = np.asarray((low <= step) & (step < high), dtype=np.float64)

    def nearest(self, epochs: ArrayLike, horizon: float) -> Indices:
        """Return the nearest stage (n,) of epochs (n,) in a full training of `horizon` epochs."""
        t = np.log1p(epochs) / np.log1p(horizon)
        return np.asarray(np.abs(self.times[:, None] - t).argmin(axis=0))


class StageKernel:
    """The covariances for one theta, as tables of stages (K, K)."""

    def __init__(self, stages: Stages, theta: Array, offset: float = OFFSET) -> None:
        """offset: of the scale of this study's heights; see `scales.LogRegrets`."""
        self.stages, self.theta, self.offset = stages, theta, offset
        amplitudes, steps, lengths, logits = stages.parts
        self.noise = float(np.exp(2 * theta[2])) + 1e-8  # variance
        self.scales = np.asarray(np.exp(theta[lengths]))  # (d,) lengthscales
        self.apart = np.asarray(np.tensordot(np.exp(theta[steps]), stages.between, 1))  # |u_k - u_l|
        gap, back = np.subtract.outer(stages.times, stages.times), stages.times - 1.0
        self.wave = np.asarray(np.exp(2 * theta[0]) * np.exp(-((gap / np.exp(theta[1])) ** 2) / 2))
        self.common = np.asarray(1.0 + np.outer(back, back) + self.wave)  # cov m; wave is the part that bends
        a = np.exp(theta[amplitudes])
        both = np.outer(a, a)
        self.shared = np.asarray(both * np.exp(-self.apart))  # cov f at equal configurations
        self.own = np.asarray(np.exp(2 * theta[3] - np.exp(theta[4]) * self.apart) * both)  # cov g
        # (J + 1,) q: 1 of this study, then those of the prior ones
        self.relevance = np.concatenate([[1.0], 1.0 / (1.0 + np.exp(-theta[logits]))])
        self.linked = np.outer(self.relevance, self.relevance)  # (J + 1, J + 1) factor of cov f between two studies
        np.fill_diagonal(self.linked, 1.0)

    def without(self, studies: Iterable[int]) -> StageKernel:
        """Return the same with q = 0 for some of the prior studies, which are numbered from 1 on."""
        theta = self.theta.copy()
        theta[[self.stages.parts[3].start + j - 1 for j in studies]] = -np.inf
        return StageKernel(self.stages, theta, self.offset)

    def on(self, offset: float) -> StageKernel:
        """Return the same for values on another scale."""
        return StageKernel(self.stages, self.theta, offset)

    @cached_property
    def correlations(self) -> Array:
        """(K,) The correlation of f + g, in which trials differ, at each stage with that at the last."""
        differing = self.shared + self.own
        return np.asarray(differing[:, -1] / np.sqrt(differing.diagonal() * differing[-1, -1]))

    def near(self, left: Array, right: Array) -> tuple[Array, Array]:
        """Return rho (n, m) of points (n, d) and (m, d), and its slope (see gp.kernels.profile)."""
        return profile("matern52", squared_distances(left / self.scales, right / self.scales))

    def near_seen(self, seen: Seen) -> tuple[Array, Array]:
        """Return the same (n, n) of the values seen, times the factor of their studies."""
        of_runs, slope_of_runs = self.near(seen.points, seen.points)
        pairs = np.ix_(seen.run, seen.run)
        rho, slope = of_runs[pairs], slope_of_runs[pairs]
        if seen.of is None:
            return rho, slope
        linked = self.linked[np.ix_(seen.of, seen.of)]
        return linked * rho, linked * slope

    def across(self, seen: Seen, points: Array) -> Array:
        """Return the covariance (n, m) of the values seen with final values of new runs of this study at (m, d)."""
        rho, _ = self.near(seen.points, points)
        common, shared = self.common[seen.stage, -1, None], self.shared[seen.stage, -1, None]
        if seen.of is None:
            return np.asarray(common + rho[seen.run] * shared)
        here, linked = seen.of[:, None] == 0, self.linked[seen.of, 0, None]
        return np.asarray(here * common + linked * rho[seen.run] * shared)

    def covariance(self, seen: Seen, rho: Array) -> Array:
        """Return K (n, n) of the values seen, noise included; rho (n, n): see `near_seen`."""
        pairs = seen.pairs
        common = self.common[pairs] * seen.together
        covariance = common + rho * self.shared[pairs] + seen.same * self.own[pairs]
        covariance.flat[:: len(seen) + 1] += self.noise
        return np.asarray(covariance)


def descent(stages: Stages, seen: Seen, theta: Array) -> tuple[float, Array]:
    """Return minus the log posterior density of theta, up to a constant, and its gradient; inf if K has no factor."""
    value, gradient, _ = _descent(stages, seen, theta)
    return value, gradient


def _descent(stages: Stages, seen: Seen, theta: Array) -> tuple[float, Array, Array]:
    """Return `descent` and its slope (n,) by the values seen: K^-1 y."""
    kernel = StageKernel(stages, theta)
    rho, slope = kernel.near_seen(seen)
    factor, info = lapack.dpotrf(kernel.covariance(seen, rho), lower=1, clean=1)
    if info:
        return np.inf, np.zeros_like(theta), np.zeros(len(seen))
    lower, _ = lapack.dpotri(factor, lower=1)
    inverse = lower + np.tril(lower, -1).T
    weights = inverse @ seen.value
    off = theta - stages.mean
    value = 0.5 * seen.value @ weights + np.log(factor.diagonal()).sum() + 0.5 * off @ stages.precision @ off
    pull = 0.5 * (inverse - np.outer(weights, weights))
    gradient = stages.precision @ off + np.concatenate(list(_gradient(kernel, seen, pull, rho, slope)))
    return float(value), gradient, weights


def _gradient(kernel: StageKernel, seen: Seen, pull: Array, rho: Array, slope: Array) -> Iterator[Array]:
    """Yield the gradient by the parts of theta: sums of `pull` times derivatives of K, gathered by stages."""
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
        of_study = np.eye(len(kernel.relevance))[seen.of]
        between = of_study.T @ (pull * rho * kernel.shared[seen.pairs]) @ of_study
        np.fill_diagonal(between, 0.0)
        yield (2 * (1 - kernel.relevance) * between.sum(axis=1))[1:]


_EVALUATIONS = 40  # of the density, in the search for its mode


def learn_kernel(stages: Stages, seen: Seen) -> StageKernel:
    """Return the kernel with the largest posterior density, searched from the prior's mode."""
    return StageKernel(stages, _lowest(lambda theta: descent(stages, seen, theta), stages.mean, stages.bounds))


def learn_kernel_and_scale(stages: Stages, seen: Seen, heights: Heights) -> StageKernel:
    """Return the same together with the offset of the scale; the values seen are heights of this study."""

    def cost(both: Array) -> tuple[float, Array]:
        targets, slope, added, d_added = heights.likelihood(seen.value, both[-1])
        value, gradient, weights = _descent(stages, seen.of_values(targets), both[:-1])
        return value - added, np.append(gradient, weights @ slope - d_added)

    limits = (math.log(OFFSETS[0]), math.log(OFFSETS[1]))
    found = _lowest(cost, np.append(stages.mean, math.log(OFFSET)), [*stages.bounds, limits])
    return StageKernel(stages, found[:-1], math.exp(found[-1]))


def _lowest(cost: Callable[[Array], tuple[float, Array]], start: Array, bounds: list[tuple[float, float]]) -> Array:
    """Return where L-BFGS-B goes from a start, by a cost and its gradient; the start if that is not finite."""
    from scipy.optimize import minimize  # slow to import, and many processes fit nothing

    found = minimize(cost, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxfun": _EVALUATIONS})
    return np.asarray(found.x) if np.isfinite(found.fun) else start


def density(stages: Stages, seen: Seen, kernel: StageKernel) -> float:
    """Return the log posterior density of a kernel up to a constant: what `learn_kernel` maximizes."""
    return -descent(stages, seen, kernel.theta)[0]


def largest_density(stages: Stages, seen: Seen) -> float:
    return density(stages, seen, learn_kernel(stages, seen))


@dataclass(frozen=True)
class StageProcess:
    """The posterior of the last stage given n values."""

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
        """The largest value of this study at the last stage; None if there is none."""
        last = self.seen.stage == len(self.kernel.stages.epochs) - 1
        here = last if self.seen.of is None else last & (self.seen.of == 0)
        return float(self.seen.value[here].max()) if here.any() else None

    def ends(self, points: Array, seen: bool = False) -> tuple[Array, Array]:
        """Return the mean and deviation (m,) of the final values of configurations (m, d) in the unit cube.

        seen: of this study's trials with these configurations where there are any; else of new trials.
        """
        kernel = self.kernel
        cross = kernel.across(self.seen, points)
        if seen:
            cross = cross + self.seen.runs_at(points) * kernel.own[self.seen.stage, -1, None]
        explained = (solve_lower(self.factor, cross) ** 2).sum(axis=0)
        prior = kernel.common[-1, -1] + kernel.shared[-1, -1] + kernel.own[-1, -1]
        return cross.T @ self.weights, np.sqrt(np.maximum(prior - explained, 1e-12))

    def with_ends(self, points: Array) -> StageProcess:
        """Return the posterior as if pending configurations (m, d) had ended at their means, so that workers spread."""
        if not len(points):
            return self
        last, mean = len(self.kernel.stages.epochs) - 1, self.ends(points)[0]
        ended = Seen(points, np.arange(len(points)), np.full(len(points), last), mean)
        return StageProcess.of(self.kernel, self.seen.union(ended))


LEARNT = 160  # values that hyperparameters are learnt from
VALUES_KEPT = 400  # values that a process keeps, so that decisions of a long search stay quick


def seen_at_stages(points: Array, rows: CurveTable, stages: Stages, values: Array) -> Seen:
    """Return the rows at their stages, with values (n,) for their heights; points: (trials, d) of all trials.

    A diverged trial counts at the last stage: it stays diverged. A trial's first row at or after a stage's epoch counts
    at that stage, the latest one that it passes. Another row counts at the nearest stage if the trial has no later row.
    """
    number, count = np.arange(len(rows)), len(stages.epochs)
    marks = np.array(stages.epochs, dtype=np.float64)
    stage = np.maximum(np.searchsorted(marks, rows.epoch, side="right") - 1, 0)
    passes = (rows.epoch >= marks[stage]) & (_before(rows) < marks[stage])
    stage = np.where(passes, stage, stages.nearest(rows.epoch, stages.epochs[-1]))
    last = np.full(int(rows.trial.max(initial=-1)) + 1, -1)
    last[rows.trial] = number  # the latest of a trial stays
    diverged = ~np.isfinite(rows.height)
    stage = np.where(diverged, count - 1, stage)
    taken = np.flatnonzero(diverged | passes | (last[rows.trial] == number))
    trial, stage, value = rows.trial[taken], stage[taken], values[taken]
    _, first, which = np.unique(trial * count + stage, return_index=True, return_inverse=True)
    latest = np.empty(len(first), dtype=np.intp)
    latest[which] = np.arange(len(taken))
    order = np.argsort(first)  # in the order of the log
    first, latest = first[order], latest[order]
    trials, run = _numbered(trial[first])
    return Seen(points[trials], run, stage[first], value[latest])


def _numbered(trial: Indices) -> tuple[Indices, Indices]:
    """Return the distinct trials in the order in which they come, and the index (n,) of each in them."""
    found, first, which = np.unique(trial, return_index=True, return_inverse=True)
    order = np.argsort(first)
    place = np.empty(len(found), dtype=np.intp)
    place[order] = np.arange(len(found))
    return found[order], place[which]


def _before(rows: CurveTable) -> Array:
    """Return (n,): the epoch of the same trial's previous row, 0 for its first."""
    order = np.argsort(rows.trial, kind="stable")
    trial, epoch = rows.trial[order], rows.epoch[order]
    found = np.zeros_like(epoch)
    found[order[1:]] = np.where(trial[1:] == trial[:-1], epoch[:-1], 0.0)
    return found


def spread(seen: Seen, limit: int, rng: Generator | None) -> Indices:
    """Return at most `limit` of the values; see `spread_by`."""
    reached = np.zeros(len(seen.points), dtype=np.intp)
    np.maximum.at(reached, seen.run, seen.stage)
    return spread_by(reached[seen.run], seen.points[seen.run], seen.value, limit, rng)


def spread_by(reached: Array | Indices, points: Array, value: Array, limit: int, rng: Generator | None) -> Indices:
    """Return at most `limit` of n indices, ascending: half are those that trained longest, by `reached` (n,).

    rng draws the others; without it, they are the best, the latest and those that fill the space (`gp.subset`).
    """
    every = np.arange(len(value))
    if len(every) <= limit:
        return every
    far = np.argsort(-reached, kind="stable")[: limit // 2]
    rest, count = np.setdiff1d(every, far), limit - len(far)
    others = rest[subset(points[rest], value[rest], count)] if rng is None else rng.choice(rest, count, replace=False)
    return np.sort(np.concatenate([far, others]))
