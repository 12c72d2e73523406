"""E max_i (a_i + k_i Z), Z standard normal, in closed form: the upper envelope of lines.

Sorted by slope, line j is the highest on (lo_j, hi_j): above its last crossing with a flatter line and below its
first with a steeper one. The maximum is then a_0 + k_0 Z + sum of (k_j - k_i) (Z - c)^+ over the breaks c between
consecutive lines i, j of the envelope, and E (Z - c)^+ = phi(c) - c Phi(-c).
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

from haltune._utils.arrays import Array

_APART = (
    1e-10  # of the steepest: slopes are at least so far apart; parallel lines cross far away, not at 0 / 0
)
_CHUNK = 400_000  # numbers a pass: more would leave the cache
_ROOT_TAU = math.sqrt(2.0 * math.pi)


def excess(mean: Array, deviation: Array) -> Array:
    """Upsilon of (2.12): E Y^+ for Y ~ N(mean, deviation^2), elementwise; max(mean, 0) where the deviation is 0."""
    s = np.maximum(deviation, 1e-150)
    x = np.clip(mean / s, -40.0, 40.0)  # beyond, the tails are below 1e-300 and x^2 could overflow
    tails: Array = s * np.exp(-0.5 * x * x) / _ROOT_TAU + np.where(x < 40.0, mean * ndtr(x), mean)
    return np.where(x > -40.0, tails, 0.0)


def beyond(c: Array) -> Array:
    """E (Z - c)^+, Z standard normal, elementwise."""
    x = np.clip(c, -40.0, 40.0)  # x^2 could overflow
    return np.asarray(np.exp(-0.5 * x * x) / _ROOT_TAU - c * ndtr(-c))


def expected_max(intercepts: Array, slopes: Array) -> Array:
    """(b, u) E max over n lines, intercepts (n, b, u), slopes (n, u) shared by the b problems of a column."""
    n, b, u = intercepts.shape
    order = np.argsort(slopes, axis=0, kind="stable")
    k = np.take_along_axis(slopes, order, axis=0)
    apart = _APART * float(np.abs(k).max(initial=0.0)) + 1e-200
    k = np.maximum.accumulate(k + apart * np.arange(n)[:, None], axis=0)
    result = np.empty((b, u))
    step = max(1, _CHUNK // max(1, n * b))
    for i in range(0, u, step):
        part = slice(i, i + step)
        a = np.take_along_axis(intercepts[:, :, part], order[:, None, part], axis=0)
        result[:, part] = _sorted_expected_max(a, k[:, part])
    return result


def _sorted_expected_max(a: Array, k: Array) -> Array:
    """The same for slopes (n, u) that increase strictly."""
    n, b, _ = a.shape
    lo, hi = np.full(a.shape, -np.inf), np.full(a.shape, np.inf)
    for j in range(1, n):
        crossing = (a[:j] - a[j]) * (1.0 / (k[j] - k[:j]))[:, None, :]
        lo[j] = crossing.max(axis=0)
        np.minimum(hi[:j], crossing, out=hi[:j])
    on = np.moveaxis(lo < hi, 0, -1)  # (b, u, n): the envelope of each problem, flattest first
    where = np.nonzero(on.ravel())[0]
    problem = where // n
    heights = np.moveaxis(a, 0, -1).ravel()[where]
    steepness = np.tile(k.T, (b, 1)).ravel()[where]
    breaks = np.moveaxis(lo, 0, -1).ravel()[where]
    first = np.r_[True, problem[1:] != problem[:-1]]
    rise = np.where(first, 0.0, np.diff(steepness, prepend=0.0))
    gain = np.where(first, heights, 0.0)
    later = ~first
    gain[later] = rise[later] * beyond(breaks[later])
    total = np.bincount(problem, weights=gain, minlength=a.shape[1] * a.shape[2])
    return np.asarray(total, dtype=np.float64).reshape(a.shape[1:])
