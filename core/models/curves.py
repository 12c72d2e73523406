"""Learning curves: simulate the rest of a curve from the errors of its first epochs.

Notation (BO-BOS, section 3.2 and appendix B)

    errors   (n0,)              validation errors 1 - score of epochs 1..n0, in [0, 1], lower is better
    horizon  N                  the last epoch of a full training
    paths    (N - n0, count)    simulated errors of epochs n0+1..N, a column per path, without observation noise

Three models draw paths: the paper's exponential decay (`conditional_paths`), a Bayesian power law (`power_law_paths`),
and the power law combined with curves of other trials (`matched_paths`). They raise InvalidInput for errors outside
[0, 1], and for `horizon` errors or more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_factor, cho_solve

from haltune._utils.arrays import Array, Array32, Indices, Mask
from haltune.errors import InvalidInput
from haltune.log.events import Status
from haltune.log.records import TrialRecord
from haltune.log.scores import Scale

from .win_model import WinModel


@dataclass(frozen=True)
class Paths:
    """Simulated curves of epochs start+1..horizon, one column each."""

    start: int  # n0, the epochs already observed
    values: Array32  # (horizon - start, count) errors without noise

    @property
    def horizon(self) -> int:
        return self.start + len(self.values)

    @property
    def count(self) -> int:
        return int(self.values.shape[1])

    @cached_property
    def inside(self) -> Mask:
        """(count,) True for a path that stays in [0, 1] at every epoch."""
        return np.asarray((self.values.min(axis=0) >= 0.0) & (self.values.max(axis=0) <= 1.0))

    def kept(self) -> Paths:
        if self.inside.all():
            return self
        # not values[:, inside]: that makes epochs the columns, and reading an epoch takes five times longer
        return Paths(self.start, np.compress(self.inside, self.values, axis=1))


def checked_errors(errors: ArrayLike) -> Array:
    """Return errors as a float64 vector; InvalidInput unless they are (n0,), n0 >= 1, finite and in [0, 1]."""
    values = np.asarray(errors, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise InvalidInput(f"errors has shape {values.shape}. Give one error per epoch: shape (n0,) with n0 >= 1.")
    bad = ~((values >= 0.0) & (values <= 1.0))
    if bad.any():
        epoch = int(np.argmax(bad)) + 1
        raise InvalidInput(
            f"The error of epoch {epoch} is {values[epoch - 1]}, but errors must be finite and in [0, 1]. "
            "Map scores to [0, 1] first, and replace what is not finite by the worst error, 1."
        )
    return values


def _checked(errors: ArrayLike, horizon: int, count: int = 1) -> Array:
    y = checked_errors(errors)
    if horizon <= y.size:
        raise InvalidInput(
            f"{y.size} errors leave no epoch to simulate up to horizon {horizon}. Give fewer than {horizon} errors."
        )
    if count < 1:
        raise InvalidInput(f"count={count} is not a number of paths. Give 1 or more; decisions need thousands.")
    return y


_FINEST = 120  # most steps of a simulation: its cost grows with the third power


def coarse(horizon: int) -> tuple[int, slice]:
    """Return the epochs per step of a full training, one or more, and the slice of epochs 1, 2, ... that steps are.

    The last epoch is a step. A horizon of S epochs a step has horizon // S steps.
    """
    stride = math.ceil(horizon / _FINEST)
    return stride, slice(horizon % stride + stride - 1, None, stride)


def errors_of(trial: TrialRecord, peaks: bool, scale: Scale | None = None) -> Array:
    """Return the errors 1 - score of epochs 1..n; if a trial counts with its best epoch (peaks), of the running best.

    Gaps are interpolated linearly. scale: None for the trial's own.
    """
    epochs = trial.epochs[trial.whole]
    scores = (trial.scores if scale is None else scale.score(trial.values))[trial.whole]
    errors = np.interp(np.arange(1.0, epochs[-1] + 1.0), epochs, 1.0 - scores)
    return np.minimum.accumulate(errors) if peaks else errors


# Exponential decay: a zero-mean GP with the kernel of equation (5), from freeze-thaw (Swersky et al. 2014), fitted by
# maximum likelihood. The paper's "Gamma conjugate" fit of alpha and beta predicts error -> 0 for every curve; maximum
# likelihood does not. The likelihood has a ridge, alpha / beta = const, so compare fits by likelihood, not parameters.

MIN_NOISE = 1e-4  # variance; at 1e-3 every plateau still looks like decay, and a flat bad trial is never stopped
_LOG_BOUNDS = np.log([[1e-3, 1e2], [1e-2, 1e4], [MIN_NOISE, 1.0]])  # alpha, beta, noise
_STARTS = 3  # best points of the grid, which L-BFGS-B improves
_NEGLIGIBLE = 1e-10  # total posterior variance that the low-rank sampler may drop: 1e-5 in sd


class DecayFit(NamedTuple):
    """Maximum-likelihood parameters of the exponential-decay GP for one curve."""

    alpha: float  # shape of the Gamma prior over decay rates
    beta: float  # its rate, in epochs
    noise: float  # variance of the observation noise, at least MIN_NOISE


def decay_kernel(n: ArrayLike, m: ArrayLike, alpha: float, beta: float) -> Array:
    """Return k(n, m) = beta^alpha / (n + m + beta)^alpha, equation (5), (len(n), len(m)). Epochs count from 1."""
    total = np.add.outer(np.asarray(n, dtype=np.float64), np.asarray(m, dtype=np.float64))
    # exp(-alpha log1p(.)), because beta^alpha alone overflows on the ridge where both are large
    return np.asarray(np.exp(-alpha * np.log1p(total / beta)))


def fit_decay(errors: ArrayLike) -> DecayFit:
    """Fit (alpha, beta, noise) to errors (n0,) by bounded multi-start maximum likelihood.

    A coarse grid covers the box, with one eigh for all noise levels; L-BFGS-B starts from its best points.
    """
    from scipy.optimize import minimize  # slow to import, and many processes never fit

    y = checked_errors(errors)
    alphas, betas, noises = (np.linspace(low, high, 10) for low, high in _LOG_BOUNDS)
    epochs = np.arange(1, len(y) + 1)
    decay = np.log1p(np.add.outer(epochs, epochs) / np.exp(betas)[:, None, None])
    values, vectors = np.linalg.eigh(np.exp(-np.exp(alphas)[:, None, None, None] * decay))
    variance = np.maximum(values, 0.0)[..., None, :] + np.exp(noises)[:, None]
    projected = np.einsum("i,abij->abj", y, vectors)[..., None, :]
    score = np.sum(projected**2 / variance + np.log(variance), axis=-1)
    order = np.argsort(score, axis=None, kind="stable")[:_STARTS]
    a, b, s = np.unravel_index(order, score.shape)
    starts = np.stack([alphas[a], betas[b], noises[s]], axis=1)
    options: dict[str, Any] = {"method": "L-BFGS-B", "jac": True, "bounds": _LOG_BOUNDS}
    polished = [minimize(_loss, start, (y,), **options) for start in starts]
    best = min(polished, key=lambda result: float(result.fun))
    alpha, beta, noise = np.exp(np.clip(best.x, _LOG_BOUNDS[:, 0], _LOG_BOUNDS[:, 1]))
    return DecayFit(float(alpha), float(beta), max(float(noise), MIN_NOISE))


def _loss(log_parameters: Array, y: Array) -> tuple[float, Array]:
    """Return the negative log marginal likelihood of y and its gradient in (log alpha, log beta, log noise)."""
    alpha, beta, noise = np.exp(log_parameters)
    epochs = np.arange(1.0, len(y) + 1.0)
    total = np.add.outer(epochs, epochs)
    kernel = decay_kernel(epochs, epochs, alpha, beta)
    identity = np.eye(len(y))
    factor = cho_factor(kernel + noise * identity, lower=True)
    weights = cho_solve(factor, y)
    inner = cho_solve(factor, identity) - np.outer(weights, weights)
    by_alpha = -alpha * np.log1p(total / beta) * kernel
    by_beta = alpha * total / (total + beta) * kernel
    gradient = 0.5 * np.array([(inner * by_alpha).sum(), (inner * by_beta).sum(), noise * np.trace(inner)])
    value = 0.5 * float(y @ weights) + float(np.log(np.diag(factor[0])).sum())
    return value + 0.5 * len(y) * float(np.log(2.0 * np.pi)), gradient


def decay_posterior(errors: ArrayLike, horizon: int, fit: DecayFit) -> tuple[Array, Array]:
    """Return mean (m,) and covariance (m, m) of the noise-free curve at epochs n0+1..horizon, m = horizon - n0."""
    y = checked_errors(errors)
    seen = np.arange(1, len(y) + 1)
    ahead = np.arange(len(y) + 1, horizon + 1)
    gram = decay_kernel(seen, seen, fit.alpha, fit.beta) + fit.noise * np.eye(len(y))
    cross = decay_kernel(seen, ahead, fit.alpha, fit.beta)
    solved = cho_solve(cho_factor(gram, lower=True), np.column_stack([y, cross]))
    covariance = decay_kernel(ahead, ahead, fit.alpha, fit.beta) - cross.T @ solved[:, 1:]
    return cross.T @ solved[:, 0], 0.5 * (covariance + covariance.T)


def conditional_paths(errors: ArrayLike, horizon: int, count: int, rng: np.random.Generator) -> Paths:
    """Draw `count` noise-free curves of epochs n0+1..horizon from the decay GP's posterior given errors (n0,).

    The posterior covariance has numerical rank 3 to 6, so the draw is one thin product in float32.
    """
    y = _checked(errors, horizon, count)
    mean, covariance = decay_posterior(y, horizon, fit_decay(y))
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, 0.0)  # rounding makes the many zero eigenvalues slightly negative
    keep = np.cumsum(values) > _NEGLIGIBLE
    root = (vectors[:, keep] * np.sqrt(values[keep])).astype(np.float32)
    drawn = root @ rng.standard_normal((root.shape[1], count), dtype=np.float32)
    drawn += mean.astype(np.float32)[:, None]
    return Paths(len(y), drawn)


# The Bayesian power law: error(n) = a + b g(n) + walk(log n) + noise
#
#     g          shape, falls from 1 at epoch 1 to 0 at epoch N: power laws, exponentials, late drops
#     a          the error of the full training, normal
#     b          the fall from epoch 1 to N, normal at one of several scales: many real trials hardly move
#     walk       Brownian in log n, 0 at the last observed epoch: what the shape does not explain
#     noise      white, larger in the first epochs; part of the observations, not of the paths
#
# Given the shape, the scale of b, the noise and the walk, (a, b) is a conjugate normal. So the posterior is an exact
# finite mixture over a grid of those four (a node is one combination), without iterations. Epochs are fractions of the
# horizon, so one prior fits all. The prior is coarse and broad: on recorded trainings of six tasks, other grids,
# weights and scales trade wrong stops for saved epochs equally well, within the standard error. A wider walk stops
# later at equal K1.

_POWERS = (0.05, 0.5, 1.0, 2.0)  # exponents c of n^-c; 0.05 is nearly logarithmic
_RATES = (1.5, 5.0, 15.0)  # of exp(-rate n / N)
_DROPS = (0.24, 0.4, 0.7)  # of N: where a flat curve may still fall, spread over about a factor 2 of epochs
_WEIGHTS = (0.65, 0.3, 0.05)  # prior mass of the three families
_SCALES = ((0.01, 0.0), (0.05, 0.02), (0.2, 0.1), (0.6, 0.3))  # (sd, mean) of b
_NOISES = np.geomspace(3e-4, 0.1, 7)  # sd of the white noise
_WALKS = (15.0, 150.0, 1500.0)  # variance of the walk per unit of log n, in units of the noise variance
_LEVEL = (0.5, 0.5)  # mean and sd of a
_EARLY_NOISE = 0.2  # noise variance is 1 + (_EARLY_NOISE N / n)^2 times larger: first epochs are irregular
_WAKING = 0.1  # a curve at the worst error is still there at epoch n with probability (n0 / n)^_WAKING
_DEPTHS = (0.01, 0.01, 0.05, 0.2)  # scales, equally likely, of its fall after that
_RANK = 8  # terms of the walk's Karhunen-Loeve series; running means average out finer wiggles


class _Design(NamedTuple):
    """Quantities that depend on the epochs only: shapes, whitened for each walk."""

    log_prior: Array  # (shapes,)
    whiten: Array  # (walks, n0, n0) inverse Cholesky factor of noise + walk, in units of the noise
    log_det: Array  # (walks,) log determinant of that factor's inverse
    basis: Array  # (walks, shapes, n0) whitened shapes
    ones: Array  # (walks, n0) whitened constant
    ahead: Array32  # (shapes, horizon - n0, _RANK + 2) maps (walk normals, b, a) to a path


class PowerLawPosterior(NamedTuple):
    """Posterior mixture: every array has the axes (shape, walk, noise, scale of b)."""

    weight: Array  # sums to 1
    level: Array  # mean of a
    fall: Array  # mean of b
    level_sd: Array
    fall_on_level: Array  # regression of b on a
    fall_sd: Array  # sd of b given a
    walk_sd: Array  # sd of the walk per square root of log n


@lru_cache(maxsize=64)
def _design(n0: int, horizon: int) -> _Design:
    shapes, prior = _shapes(horizon)
    log_epoch = np.log(np.arange(1, horizon + 1))
    back = log_epoch[n0 - 1] - log_epoch[:n0]
    early = np.diag(1.0 + (_EARLY_NOISE * horizon / np.arange(1, n0 + 1)) ** 2)
    covariance = early + np.array(_WALKS)[:, None, None] * np.minimum.outer(back, back)
    factor = np.linalg.cholesky(covariance)
    whiten = np.linalg.inv(factor)
    log_det = np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
    basis = np.einsum("wij,sj->wsi", whiten, shapes[:, :n0])
    # (m, _RANK) Karhunen-Loeve terms of a Brownian motion at the times ahead, rescaled to the exact variances
    times = log_epoch[n0:] - log_epoch[n0 - 1]
    values, vectors = np.linalg.eigh(np.minimum.outer(times, times))
    root = vectors[:, -_RANK:] * np.sqrt(np.maximum(values[-_RANK:], 0.0))
    root *= np.sqrt(times / np.maximum((root**2).sum(axis=1), 1e-300))[:, None]
    walk = np.pad(root, ((0, 0), (_RANK - root.shape[1], 0)))
    ahead = [np.column_stack([walk, shape[n0:], np.ones(horizon - n0)]) for shape in shapes]
    ones = whiten.sum(axis=2)
    return _Design(np.log(prior), whiten, log_det, basis, ones, np.array(ahead, dtype=np.float32))


def _shapes(horizon: int) -> tuple[Array, Array]:
    """Return curves (shapes, horizon) from 1 at the first epoch to 0 at the last, and their prior mass."""
    epoch = np.arange(1, horizon + 1)
    families: list[list[NDArray[Any]]] = [
        [epoch**-c for c in _POWERS],
        [np.exp(-rate * epoch / horizon) for rate in _RATES],
        [1.0 / (1.0 + (epoch / (drop * horizon)) ** 2.5) for drop in _DROPS],
    ]
    raw = np.array([shape for family in families for shape in family])
    mass = [w / len(family) for w, family in zip(_WEIGHTS, families, strict=True) for _ in family]
    return (raw - raw[:, -1:]) / (raw[:, :1] - raw[:, -1:]), np.array(mass)


def fit_power_law(errors: ArrayLike, horizon: int) -> PowerLawPosterior:
    """Return the exact posterior of (a, b) at every node, and of the nodes, given errors (n0,)."""
    y = _checked(errors, horizon)
    design = _design(y.size, horizon)
    seen = np.einsum("wij,j->wi", design.whiten, y)
    axes = (slice(None), slice(None), None, None)  # sums over epochs, as (shape, walk, 1, 1)
    by_shape = np.einsum("wsi,wi->sw", design.basis, seen)[axes]
    cross = np.einsum("wsi,wi->sw", design.basis, design.ones)[axes]
    square = np.einsum("wsi,wsi->sw", design.basis, design.basis)[axes]
    by_one = np.einsum("wi,wi->w", design.ones, seen)[None, :, None, None]
    ones = np.einsum("wi,wi->w", design.ones, design.ones)[None, :, None, None]
    total = np.einsum("wi,wi->w", seen, seen)[None, :, None, None]
    precision = 1.0 / _NOISES[:, None] ** 2
    fall_precision, fall_mean = 1.0 / np.array(_SCALES)[:, 0] ** 2, np.array(_SCALES)[:, 1]
    level_mean, level_precision = _LEVEL[0], 1.0 / _LEVEL[1] ** 2
    aa = ones * precision + level_precision  # the 2 x 2 posterior precision of (a, b), entry by entry
    ab = cross * precision
    bb = square * precision + fall_precision
    to_a = by_one * precision + level_precision * level_mean
    to_b = by_shape * precision + fall_precision * fall_mean
    determinant = aa * bb - ab**2
    level = (bb * to_a - ab * to_b) / determinant
    fall = (aa * to_b - ab * to_a) / determinant
    misfit = total * precision + fall_precision * fall_mean**2 - level * to_a - fall * to_b
    evidence = (
        -0.5 * (misfit + np.log(determinant) - np.log(fall_precision) - y.size * np.log(precision))
        - design.log_det[None, :, None, None]
        + design.log_prior[:, None, None, None]
    )
    weight = np.exp(evidence - evidence.max())
    full = np.broadcast_to
    return PowerLawPosterior(
        weight / weight.sum(),
        level,
        fall,
        np.sqrt(bb / determinant),
        full(-ab / bb, weight.shape),
        full(np.sqrt(1.0 / bb), weight.shape),
        full(_NOISES[:, None] * np.sqrt(_WALKS)[:, None, None], weight.shape),
    )


def power_law_paths(errors: ArrayLike, horizon: int, count: int, rng: np.random.Generator) -> Paths:
    """Draw `count` curves of epochs n0+1..horizon from the posterior given errors (n0,), without noise.

    Nodes get paths in proportion to their weight, by systematic resampling, so that rare ones are represented. Paths
    are clipped to [0, 1]: if paths that leave it were dropped, a curve near the worst score would keep only the paths
    that improve.
    """
    y = _checked(errors, horizon, count)
    if y.min() >= 1.0:
        return _waking_paths(y.size, horizon, count, rng)
    posterior, design = fit_power_law(y, horizon), _design(y.size, horizon)
    cumulative = np.cumsum(posterior.weight)
    ends = np.ceil(cumulative / cumulative[-1] * count - rng.random()).astype(np.int64)
    ends[-1] = count
    ends = np.clip(ends, 0, count)
    node = np.repeat(np.arange(ends.size), np.diff(ends, prepend=0))  # of each path, ascending
    per_shape = ends.size // len(posterior.weight)
    edges = np.concatenate([[0], ends[per_shape - 1 :: per_shape]])  # where each shape's paths start and end

    def of(field: Array) -> Array32:
        each: Array32 = field.astype(np.float32).ravel()[node]
        return each

    inputs = rng.standard_normal((_RANK + 2, count), dtype=np.float32)  # of each path: walk normals, b and a
    offset = of(posterior.level_sd) * inputs[-1]
    fall = of(posterior.fall) + of(posterior.fall_on_level) * offset
    inputs[-2] = fall + of(posterior.fall_sd) * inputs[-2]
    inputs[-1] = of(posterior.level) + offset
    inputs[:-2] *= of(posterior.walk_sd)
    values = np.empty((horizon - y.size, count), dtype=np.float32)
    for ahead, left, right in zip(design.ahead, edges[:-1], edges[1:], strict=True):
        values[:, left:right] = ahead @ inputs[:, left:right]
    return Paths(y.size, np.clip(values, 0.0, 1.0, out=values))


def _waking_paths(n0: int, horizon: int, count: int, rng: np.random.Generator) -> Paths:
    """Draw paths of a curve that never left the worst error, so that its scores contain no shape.

    It may leave at epoch T with Pr(T > n) = (n0 / n)^_WAKING, and then falls by depth (1 - T / n).
    """
    wait = rng.standard_exponential(count, dtype=np.float32) / np.float32(_WAKING)
    wake = np.float32(n0) * np.exp(np.minimum(wait, 50.0))  # 50 is beyond any horizon; exp of more overflows
    scale = np.array(_DEPTHS, dtype=np.float32)[np.arange(count) % len(_DEPTHS)]
    depth = np.minimum(np.abs(rng.standard_normal(count, dtype=np.float32)) * scale, 1.0)
    values = np.ones((horizon - n0, count), dtype=np.float32)
    awake = np.flatnonzero(wake < horizon)
    epochs = np.arange(n0 + 1, horizon + 1, dtype=np.float32)[:, None]
    values[:, awake] -= depth[awake] * np.maximum(0.0, 1.0 - wake[awake] / epochs)
    return Paths(n0, values)


# Paths matched to reference curves, those of other trials. A path moves from knot to knot, epochs about a third apart.
# Its state at epoch a is (v, s), the warped error v = log(error + 0.1) and its slope over log-epochs since a / 2. The
# step to the next knot b is one of two:
#
#     of a reference curve   v_b of that curve + rho (v - v_a of that curve) + the difference in slopes + noise,
#                            with probability W / (W + alpha). The curve is drawn by the weights
#                            exp(-(distance in v)^2 / 2 h_v^2 - (distance in s)^2 / 2 h_s^2);
#                            W sums the same over curves known at b with h three times as wide,
#                            rho = exp(-kappa log(b / a)): differences between trials become smaller
#     of its own curve       the power law's path or, if there are too few epochs for one, its slope and a random walk
#
# Stopped trials take part up to their last epoch without bias: whether a trial is stopped depends only on its reports,
# so among trials that look alike at a, those known at b are a fair sample (missing at random, Rubin 1976). The next
# step often follows the same curve, so that a late fall or crossing, which takes many steps, is reproduced whole.

_WARP = 0.1  # errors far below it differ little
_NEAR_V, _NEAR_S = 0.1, 0.2  # h_v and h_s
_WIDE = 3.0  # factor on h_v and h_s in W
_ALPHA = 0.6  # weight of the own curve, in reference curves
_NEARS = 0.3  # kappa
_GROWTH = 1.3  # of knots
_PERSISTS = 0.25  # share of a slope that continues
_WALK = 0.1  # scale of the walk per root of log-epochs; its steps are Student's t with 3 degrees of freedom
_STRAYS = 0.4  # of that scale, around a power law
_FEW_NOISE = 0.5  # of that scale, over sqrt(1 + W): the uncertainty from few reference curves
_JITTER = 0.015  # deviation of a drawn step per root of log-epochs
_STAYS = 0.7  # probability that the next step is drawn from the same curve
_NOISE_OF_OTHERS = 4  # the noise of other trials counts as so many differences of its own curve
_MOST_CURVES = 64  # reference curves that are compared
_AT_REST = (Status.COMPLETED, Status.STOPPED, Status.PAUSED)  # curves of running trials change with each report


@dataclass(frozen=True)
class ReferenceCurves:
    """Reference curves: errors (trials, horizon) of other trials, NaN after the last epoch of each."""

    errors: Array
    points: Array | None = None  # (trials, d) their configurations in the unit cube, where they are known

    @staticmethod
    def of(curves: Sequence[Array], horizon: int, points: Array | None = None) -> ReferenceCurves:
        """Pad curves (n,) with NaN, or cut them, to the horizon."""
        errors = np.full((len(curves), horizon), np.nan)
        for row, curve in zip(errors, curves, strict=True):
            row[: len(curve)] = curve[:horizon]
        return ReferenceCurves(errors, points)

    @property
    def count(self) -> int:
        return len(self.errors)

    @cached_property
    def _win_model(self) -> WinModel | None:
        return None if self.points is None else WinModel.of(self.points, self.errors)

    def log_odds(self, point: Array | None, errors: Array, threshold: float) -> float | None:
        """Return WinModel.log_odds; None without configurations, and where too few trials are trained in full."""
        return None if point is None or self._win_model is None else self._win_model.log_odds(point, errors, threshold)

    @cached_property
    def _noise(self) -> float:
        """The median noise variance of the curves; 0 if none has three epochs."""
        found = [_noise_variance(row[np.isfinite(row)]) for row in self.errors]
        return float(np.median([of for of in found if of is not None] or [0.0]))

    def noise(self, errors: Array) -> float:
        """Return the deviation of the noise of a trial's error at an epoch, from its errors (n,) and these curves."""
        own, weight = _noise_variance(errors), max(len(errors) - 2, 0)
        return math.sqrt((weight * (own or 0.0) + _NOISE_OF_OTHERS * self._noise) / (weight + _NOISE_OF_OTHERS))

    def beyond(self, epoch: int) -> int:
        """Return the number of curves known beyond `epoch`."""
        return int(np.isfinite(self.errors[:, epoch]).sum()) if epoch < self.errors.shape[1] else 0

    def near(self, errors: Array) -> ReferenceCurves:
        """Return at most 64 curves known beyond errors (n0,): the nearest ones, half of them from the longest."""
        n0 = errors.size
        known = self.errors[np.isfinite(self.errors[:, n0])]
        if len(known) <= _MOST_CURVES:
            return ReferenceCurves(known)
        far = np.abs(known[:, n0 - 1] - errors[-1])
        length = np.isfinite(known).sum(axis=1)
        by_length = np.lexsort((far, -length))[: _MOST_CURVES // 2]
        rest = np.setdiff1d(np.argsort(far, kind="stable"), by_length, assume_unique=True)
        by_distance = rest[np.argsort(far[rest], kind="stable")][: _MOST_CURVES // 2]
        return ReferenceCurves(known[np.sort(np.concatenate([by_length, by_distance]))])


def _noise_variance(errors: Array) -> float | None:
    """Return the variance of white noise on a smooth curve (n,), from its second differences; None if n < 3.

    One of variance 6 sigma^2 has the mean distance sqrt(12 / pi) sigma from 0. The last half of them counts, because
    curves bend early. Errors that never rise, such as a running best, have no noise.
    """
    steps = np.diff(errors)
    if len(steps) < 2:
        return None
    if steps.max() <= 0.0:
        return 0.0
    bends = np.diff(steps)
    return math.pi / 12.0 * float(np.abs(bends[len(bends) // 2 :]).mean()) ** 2


def reference_trials(trials: Iterable[TrialRecord], trial: TrialRecord) -> list[TrialRecord]:
    """Return the trials at rest that train on as many samples as this one."""
    alike = (trial.partial, trial.resource)
    return [
        t
        for t in trials
        if t.status in _AT_REST and t.id != trial.id and len(t.epochs) and (t.partial, t.resource) == alike
    ]


def reference_curves(
    trials: Sequence[TrialRecord], peaks: bool, scale: Scale, horizon: int, steps: slice, points: Array | None = None
) -> ReferenceCurves:
    """Return the errors of trials on the scale of the judged trial, at the epochs that `steps` selects.

    A training that ended by itself keeps its last error: its value is that of a full training. points: (trials, d)
    Their configurations in the unit cube; None where they are not known.
    """
    known = [number for number, t in enumerate(trials) if t.whole.any()]
    curves = []
    for number in known:
        curve = errors_of(trials[number], peaks, scale)[steps]
        if trials[number].status is Status.COMPLETED and len(curve):
            curve = np.append(curve, np.full(max(0, horizon - len(curve)), curve[-1]))
        curves.append(curve)
    return ReferenceCurves.of(curves, horizon, None if points is None else points[known])


def matched_paths(
    errors: ArrayLike, horizon: int, reference: ReferenceCurves, count: int, rng: np.random.Generator, own: bool = True
) -> Paths:  # fmt: skip
    """Draw `count` curves of epochs n0+1..horizon given errors (n0,) and the curves of other trials.

    own: True: where no reference curve is near, a path follows the power law. False: a random walk. If no reference
    curve is known beyond n0, all paths are the power law's.
    """
    errors = _checked(errors, horizon, count)
    n0 = errors.size
    alone = power_law_paths(errors, horizon, count, rng) if own else None
    if not reference.beyond(n0):
        return alone or power_law_paths(errors, horizon, count, rng)
    others, y = np.log(reference.near(errors).errors + _WARP), np.log(errors + _WARP)
    ahead = None if alone is None else np.log(alone.values[:, rng.permutation(count)] + np.float32(_WARP))
    lowest, highest = np.float32(math.log(_WARP)), np.float32(math.log1p(_WARP))
    v = np.full(count, y[-1], dtype=np.float32)
    s = np.full(count, _slope(y, n0), dtype=np.float32)
    followed = np.full(count, -1)
    values = np.empty((horizon - n0, count), dtype=np.float32)
    knots = [n0]
    while knots[-1] < horizon:
        knots.append(min(horizon, max(knots[-1] + 1, round(knots[-1] * _GROWTH))))
    for a, b in pairwise(knots):
        dt = math.log(b / a)
        new = v + (_WALK if ahead is None else _STRAYS * _WALK) * math.sqrt(dt) * _heavy(count, rng)
        if ahead is None:
            new += _PERSISTS * dt * s
        else:
            new += ahead[b - n0 - 1] - (np.float32(y[-1]) if a == n0 else ahead[a - n0 - 1])
        if np.isfinite(others[:, b - 1]).any():
            new, followed = _follow(v, s, new, followed, others, a, b, rng)
        new = np.clip(new, lowest, highest, dtype=np.float32)
        for epoch in range(a + 1, b + 1):  # linear in log-epochs
            values[epoch - n0 - 1] = v + np.float32(math.log(epoch / a) / math.log(b / a)) * (new - v)
        share = min(1.0, dt / math.log(2.0))
        s = np.float32(1.0 - share) * s + np.float32(share / dt) * (new - v)
        v = new
    return Paths(n0, np.clip(np.exp(values) - np.float32(_WARP), 0.0, 1.0, dtype=np.float32))


def _slope(warped: Array, epoch: int) -> Array:
    """Return the slope of curves (..., epochs) per unit of log-epoch, over the last half of the epochs."""
    half = (epoch + 1) // 2
    if half == epoch:
        return np.zeros(warped.shape[:-1])
    rise: Array = (warped[..., epoch - 1] - warped[..., half - 1]) / math.log(epoch / half)
    return rise


def _follow(
    v: Array32, s: Array32, alone: Array32, followed: Indices, others: Array, a: int, b: int, rng: np.random.Generator
) -> tuple[Array32, Indices]:  # fmt: skip
    """Return the state at b of each path, and the index of the reference curve that it followed, -1 for none."""
    dt, count = math.log(b / a), len(v)
    known = np.flatnonzero(np.isfinite(others[:, b - 1]))
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
    noise += np.float32(_FEW_NOISE * _WALK * math.sqrt(dt)) * _heavy(count, rng) / np.sqrt(1.0 + reach)
    as_others = ends[drawn] + np.float32(math.exp(-_NEARS * dt)) * (v - va[drawn]) + noise
    as_others += np.float32(0.5 * _PERSISTS * dt) * (s - sa[drawn])
    follows = stays | (uniform[2] < reach / (reach + np.float32(_ALPHA)))
    return np.where(follows, as_others, alone), np.where(follows, known[drawn], -1)


def _heavy(count: int, rng: np.random.Generator) -> Array32:
    """Draw from Student's t with 3 degrees of freedom: a normal over the root of a third of a chi-squared."""
    normal = rng.standard_normal((4, count), dtype=np.float32)
    heavy: Array32 = normal[0] / np.sqrt((normal[1:] ** 2).mean(axis=0))
    return heavy
