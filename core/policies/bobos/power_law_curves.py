"""A Bayesian power law with relatives: robust paths of the rest of a learning curve.

The model of the error after epoch n of N, in the field's words:

    error(n) = a + b g(n) + walk(log n) + noise
    g          a shape falling from 1 at epoch 1 to 0 at epoch N: power laws, exponentials, late drops
    a          the error of the full training, normal
    b          the fall from epoch 1 to N, normal at one of several scales: many real runs hardly move
    walk       Brownian in log n, pinned at the last observed epoch: what the shape does not explain
    noise      white, larger in the first epochs; part of what is observed, not of the paths

Given the shape, the scale of b, the noise and the walk, (a, b) is a conjugate normal. So the posterior is
an exact finite mixture over a grid of those four (a node is one choice), found by a few array operations;
no iteration can fail to converge. Epochs enter as fractions of the horizon, so one prior serves all.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from haltune._utils.arrays import Array, Array32

from .decay_curves import Paths, check_sizes, checked_errors

# The prior, coarse and broad. On recorded runs of six tasks other grids, weights and scales trade wrong
# stops against saved epochs equally well, within the standard error; a wider walk stops later at equal K1.
_POWERS = (0.05, 0.5, 1.0, 2.0)  # exponents c of n^-c; 0.05 is nearly logarithmic
_RATES = (1.5, 5.0, 15.0)  # of exp(-rate n / N)
_DROPS = (0.24, 0.4, 0.7)  # of N: where a flat curve may still fall, over about a factor 2 of epochs
_WEIGHTS = (0.65, 0.3, 0.05)  # prior mass of the three families
_SCALES = ((0.01, 0.0), (0.05, 0.02), (0.2, 0.1), (0.6, 0.3))  # (sd, mean) of b
_NOISES = np.geomspace(3e-4, 0.1, 7)  # sd of the white noise
_WALKS = (15.0, 150.0, 1500.0)  # variance of the walk per unit of log n, in units of the noise variance
_LEVEL = (0.5, 0.5)  # mean and sd of a
_EARLY_NOISE = 0.2  # noise variance is 1 + (_EARLY_NOISE N / n)^2 times larger: first epochs follow no law
_WAKING = 0.1  # a curve at the worst error is still there at epoch n with probability (n0 / n)^_WAKING
_DEPTHS = (0.01, 0.01, 0.05, 0.2)  # scales, equally likely, of how far it falls when it wakes
_RANK = 8  # terms of the walk's Karhunen-Loeve series; running means do not see finer wiggles


@dataclass(frozen=True)
class _PowerLawDesign:
    """What depends on the epochs only: shapes, whitened for each walk."""

    shapes: Array  # (shapes, horizon)
    log_prior: Array  # (shapes,)
    whiten: Array  # (walks, n0, n0) inverse Cholesky factor of noise + walk, in units of the noise
    log_det: Array  # (walks,) log determinant of that factor's inverse
    basis: Array  # (walks, shapes, n0) whitened shapes
    ones: Array  # (walks, n0) whitened constant
    ahead: Array32  # (shapes, horizon - n0, _RANK + 2) maps (walk normals, b, a) to a path


@dataclass(frozen=True)
class PowerLawPosterior:
    """The mixture: every array has the axes (shape, walk, noise, scale of b)."""

    weight: Array  # sums to 1
    level: Array  # mean of a
    fall: Array  # mean of b
    level_sd: Array
    fall_on_level: Array  # regression of b on a
    fall_sd: Array  # sd of b given a
    walk_sd: Array  # sd of the walk per square root of log n


def fit_power_law(errors: ArrayLike, horizon: int) -> PowerLawPosterior:
    """Posterior of (a, b) at every node, and of the nodes, given errors (n0,); exact."""
    y = checked_errors(errors)
    check_sizes(y.size, horizon, 1)
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

    Nodes get paths in proportion to their weight (systematic resampling, so rare ones are not left to
    luck). Paths are clipped to [0, 1], as scores are: dropping those that leave it would, for a curve
    near the worst score, keep only the ones that improve.
    Raises InvalidInput when the errors leave [0, 1] or the horizon is not beyond them.
    """
    y = checked_errors(errors)
    check_sizes(y.size, horizon, count)
    if y.min() >= 1.0:
        return _waking_paths(y.size, horizon, count, rng)
    posterior, design = fit_power_law(y, horizon), _design(y.size, horizon)
    node, edges = _allocate(posterior.weight, count, rng)
    inputs = _inputs(posterior, node, rng)
    values = np.empty((horizon - y.size, count), dtype=np.float32)
    for ahead, left, right in zip(design.ahead, edges[:-1], edges[1:], strict=True):
        values[:, left:right] = ahead @ inputs[:, left:right]
    return Paths(y.size, np.clip(values, 0.0, 1.0, out=values))


def _waking_paths(n0: int, horizon: int, count: int, rng: np.random.Generator) -> Paths:
    """Paths of a curve that never left the worst error: clipped scores say nothing of its shape.

    It may still wake, at epoch T with Pr(T > n) = (n0 / n)^_WAKING, and then falls by depth (1 - T / n).
    """
    wait = rng.standard_exponential(count, dtype=np.float32) / np.float32(_WAKING)
    wake = np.float32(n0) * np.exp(np.minimum(wait, 50.0))  # beyond any horizon; exp of more overflows
    scale = np.array(_DEPTHS, dtype=np.float32)[np.arange(count) % len(_DEPTHS)]
    depth = np.minimum(np.abs(rng.standard_normal(count, dtype=np.float32)) * scale, 1.0)
    values = np.ones((horizon - n0, count), dtype=np.float32)
    awake = np.flatnonzero(wake < horizon)
    epochs = np.arange(n0 + 1, horizon + 1, dtype=np.float32)[:, None]
    values[:, awake] -= depth[awake] * np.maximum(0.0, 1.0 - wake[awake] / epochs)
    return Paths(n0, values)


def _allocate(
    weight: Array, count: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Node of each path, ascending, and where each shape's paths begin and end."""
    cumulative = np.cumsum(weight)
    ends = np.ceil(cumulative / cumulative[-1] * count - rng.random()).astype(np.int64)
    ends[-1] = count
    ends = np.clip(ends, 0, count)
    node = np.repeat(np.arange(weight.size), np.diff(ends, prepend=0))
    per_shape = weight.size // len(weight)
    return node, np.concatenate([[0], ends[per_shape - 1 :: per_shape]])


def _inputs(posterior: PowerLawPosterior, node: NDArray[np.int64], rng: np.random.Generator) -> Array32:
    """(_RANK + 2, count): scaled walk normals, b and a of each path."""
    normal = rng.standard_normal((_RANK + 2, node.size), dtype=np.float32)

    def of(field: Array) -> Array32:
        return field.astype(np.float32).ravel()[node]

    offset = of(posterior.level_sd) * normal[-1]
    normal[-2] = (
        of(posterior.fall) + of(posterior.fall_on_level) * offset + of(posterior.fall_sd) * normal[-2]
    )
    normal[-1] = of(posterior.level) + offset
    normal[:-2] *= of(posterior.walk_sd)
    return normal


@lru_cache(maxsize=64)
def _design(n0: int, horizon: int) -> _PowerLawDesign:
    shapes, prior = _shapes(horizon)
    log_epoch = np.log(np.arange(1, horizon + 1))
    back = log_epoch[n0 - 1] - log_epoch[:n0]
    early = np.diag(1.0 + (_EARLY_NOISE * horizon / np.arange(1, n0 + 1)) ** 2)
    covariance = early + np.array(_WALKS)[:, None, None] * np.minimum.outer(back, back)
    factor = np.linalg.cholesky(covariance)
    whiten = np.linalg.inv(factor)
    log_det = np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
    basis = np.einsum("wij,sj->wsi", whiten, shapes[:, :n0])
    walk = _walk_series(log_epoch[n0:] - log_epoch[n0 - 1])
    ahead = [np.column_stack([walk, shape[n0:], np.ones(horizon - n0)]) for shape in shapes]
    return _PowerLawDesign(
        shapes, np.log(prior), whiten, log_det, basis, whiten.sum(axis=2), np.array(ahead, dtype=np.float32)
    )


def _shapes(horizon: int) -> tuple[Array, Array]:
    """(shapes, horizon) curves from 1 at the first epoch to 0 at the last, and their prior mass."""
    epoch = np.arange(1, horizon + 1)
    powers = [epoch**-c for c in _POWERS]
    exponentials = [np.exp(-rate * epoch / horizon) for rate in _RATES]
    drops = [1.0 / (1.0 + (epoch / (drop * horizon)) ** 2.5) for drop in _DROPS]
    families: tuple[list[NDArray[Any]], ...] = (powers, exponentials, drops)
    raw = np.array([shape for family in families for shape in family])
    mass = [w / len(family) for w, family in zip(_WEIGHTS, families, strict=True) for _ in family]
    return (raw - raw[:, -1:]) / (raw[:, :1] - raw[:, -1:]), np.array(mass)


def _walk_series(ahead: Array) -> Array:
    """(m, _RANK) Karhunen-Loeve terms of a Brownian motion at times ahead (m,), variances made exact."""
    values, vectors = np.linalg.eigh(np.minimum.outer(ahead, ahead))
    root = vectors[:, -_RANK:] * np.sqrt(np.maximum(values[-_RANK:], 0.0))
    root *= np.sqrt(ahead / np.maximum((root**2).sum(axis=1), 1e-300))[:, None]
    return np.pad(root, ((0, 0), (_RANK - root.shape[1], 0)))
