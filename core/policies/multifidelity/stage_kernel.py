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
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import lapack

from haltune._utils.arrays import Array, Indices
from haltune.gp.kernels import profile, squared_distances

from .seen import Seen

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


@dataclass(frozen=True)
class Stages:
    """The stages of training and the prior of the hyperparameters theta, all logarithms but for the last.

    theta: s, l, noise, c, r; the amplitudes (K,); the steps (K - 1,); the lengthscales (d,); the logits of q (J,).
    """

    epochs: tuple[int, ...]  # (K,) of each stage, ascending, the last a full training
    dim: int  # d
    earlier: int = 0  # J studies

    @cached_property
    def times(self) -> Array:
        """(K,) t of each stage."""
        n = np.array(self.epochs, dtype=np.float64)
        return np.asarray(np.log1p(n) / np.log1p(n[-1]))

    @cached_property
    def parts(self) -> tuple[slice, slice, slice, slice]:
        """Where the amplitudes, the steps, the lengthscales and the logits of q stand in theta."""
        steps = 5 + len(self.epochs)
        scales = 2 * steps - 6
        told = scales + self.dim
        return slice(5, steps), slice(steps, scales), slice(scales, told), slice(told, told + self.earlier)

    @cached_property
    def mean(self) -> Array:
        """The prior's mean of theta."""
        gaps = np.diff(self.times) / _PACE
        gaps[:1] = _FIRST
        amplitudes = np.log(_AMPLITUDE) + _GROWTH * (self.times - 1.0)
        scales = np.full(self.dim, np.log(_SCALE))
        told = np.full(self.earlier, np.log(_TOLD / (1 - _TOLD)))
        return np.concatenate(
            [np.log([_COMMON, _LENGTH, _NOISE, _OWN, _RATE]), amplitudes, np.log(gaps), scales, told]
        )

    @cached_property
    def precision(self) -> Array:
        """The prior's precision of theta, a matrix: amplitudes, and steps, vary together and each by itself."""
        k, back = len(self.epochs), self.times - 1.0
        covariance = np.zeros((len(self.mean), len(self.mean)))
        covariance[range(5), range(5)] = np.square([_COMMON_SD, _LENGTH_SD, _NOISE_SD, _OWN_SD, _RATE_SD])
        amplitudes, steps, scales, told = self.parts
        covariance[amplitudes, amplitudes] = (
            _AMPLITUDE_SD**2 + _GROWTH_SD**2 * np.outer(back, back) + _EACH_SD**2 * np.eye(k)
        )
        covariance[steps, steps] = _STEPS_SD**2 + _STEP_SD**2 * np.eye(k - 1)
        if k > 1:
            covariance[steps.start, steps.start] += _FIRST_SD**2
        covariance[scales, scales] = _SCALE_SD**2 * np.eye(self.dim)
        covariance[told, told] = _TOLD_SD**2 * np.eye(self.earlier)
        return np.asarray(np.linalg.inv(covariance))

    @cached_property
    def bounds(self) -> list[tuple[float, float]]:
        """Four deviations about the prior's mean."""
        sd = np.sqrt(np.linalg.inv(self.precision).diagonal())
        return [(float(m - 4 * s), float(m + 4 * s)) for m, s in zip(self.mean, sd, strict=True)]

    @cached_property
    def between(self) -> Array:
        """(K - 1, K, K) 1 where a step lies between two stages."""
        stage = np.arange(len(self.epochs))
        low, high = np.minimum.outer(stage, stage), np.maximum.outer(stage, stage)
        step = np.arange(len(self.epochs) - 1)[:, None, None]
        return np.asarray((low <= step) & (step < high), dtype=np.float64)


@dataclass(frozen=True)
class StageKernel:
    """The covariances under one theta; tables of stages (K, K)."""

    stages: Stages
    theta: Array

    def without(self, studies: Iterable[int]) -> StageKernel:
        """The same with a q of 0 for some of the earlier studies, which are numbered from 1 on."""
        theta = self.theta.copy()
        theta[[self.stages.parts[3].start + j - 1 for j in studies]] = -np.inf
        return StageKernel(self.stages, theta)

    @property
    def noise(self) -> float:
        """Variance of the noise."""
        return float(np.exp(2 * self.theta[2])) + 1e-8

    @cached_property
    def scales(self) -> Array:
        """(d,) lengthscales."""
        return np.asarray(np.exp(self.theta[self.stages.parts[2]]))

    @cached_property
    def apart(self) -> Array:
        """|u_k - u_l|."""
        return np.asarray(np.tensordot(np.exp(self.theta[self.stages.parts[1]]), self.stages.between, 1))

    @cached_property
    def wave(self) -> Array:
        """The part of cov m that bends."""
        gap = np.subtract.outer(self.stages.times, self.stages.times)
        return np.asarray(np.exp(2 * self.theta[0]) * np.exp(-((gap / np.exp(self.theta[1])) ** 2) / 2))

    @cached_property
    def common(self) -> Array:
        """cov m."""
        back = self.stages.times - 1.0
        return np.asarray(1.0 + np.outer(back, back) + self.wave)

    @cached_property
    def _amplitudes(self) -> Array:
        a = np.exp(self.theta[self.stages.parts[0]])
        return np.outer(a, a)

    @cached_property
    def shared(self) -> Array:
        """cov f at equal configurations."""
        return np.asarray(self._amplitudes * np.exp(-self.apart))

    @cached_property
    def own(self) -> Array:
        """cov g."""
        told = np.exp(2 * self.theta[3] - np.exp(self.theta[4]) * self.apart)
        return np.asarray(told * self._amplitudes)

    @cached_property
    def told(self) -> Array:
        """(J + 1,) q of each study, 1 of this one before those of the earlier ones."""
        return np.concatenate([[1.0], 1.0 / (1.0 + np.exp(-self.theta[self.stages.parts[3]]))])

    @cached_property
    def linked(self) -> Array:
        """(J + 1, J + 1) the factor of cov f between two studies."""
        linked = np.outer(self.told, self.told)
        np.fill_diagonal(linked, 1.0)
        return linked

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
