"""AutoBCT's value functions: V_N of at most N more trainings, and Q_N of each control to train next.

    Q_1(u) = m(u) - Upsilon(t(u), r(u)^2)                       m, t: means of score and of gamma x cost,
    Q_n(u) = -Upsilon(t(u), r(u)^2) + E max(m'(u), V_{n-1}(x')) r: deviation of an observation of gamma x cost,
    V_n    = max over u of Q_n(u)                               primes: after the training at u

((2.12), (2.13) of AutoBCT), on a grid of controls. A training at u moves the means by K(., u) Z, Z standard normal, and
reduces the covariance by K K^T for any result. So V_1 is a maximum of lines in the score's Z, and Q_2 is the
expectation of their upper envelope in closed form, for each of a few evenly spaced values of the cost's Z. (The
integrand has kinks, for which Gauss-Hermite nodes are worse.)
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import ndtr

from haltune._utils.arrays import Array, Array32, Indices
from haltune.display import one_line
from haltune.errors import InvalidInput

from .prior import Prior, variances

_APART = 1e-10  # of the steepest slope: least difference of slopes, so that parallel lines cross far away, not at 0 / 0
_ENVELOPE_CHUNK, _BRANCHES_CHUNK = 400_000, 200_000  # numbers per pass, so that they stay in the cache
_ROOT_TAU = math.sqrt(2.0 * math.pi)
_SLOW = 1e-3  # crossings beyond a thousand deviations are ignored
_LEAST_VARIANCE = 1e-12  # of a belief's variance: with less noise the rest of the variance is rounding


def excess(mean: Array, deviation: Array) -> Array:
    """Return Upsilon of (2.12): E Y^+ for Y ~ N(mean, deviation^2), elementwise; deviation 0 gives max(mean, 0)."""
    s = np.maximum(deviation, 1e-150)
    x = np.clip(mean / s, -40.0, 40.0)  # farther out the tails are below 1e-300, and x^2 could overflow
    tails: Array = s * np.exp(-0.5 * x * x) / _ROOT_TAU + np.where(x < 40.0, mean * ndtr(x), mean)
    return np.where(x > -40.0, tails, 0.0)


def _beyond(c: Array) -> Array:
    """Return E (Z - c)^+, Z standard normal, elementwise."""
    x = np.clip(c, -40.0, 40.0)  # x^2 could overflow
    return np.asarray(np.exp(-0.5 * x * x) / _ROOT_TAU - c * ndtr(-c))


def expected_max(intercepts: Array, slopes: Array) -> Array:
    """Return E max_i (a_i + k_i Z), (b, u): intercepts a (n, b, u), slopes k (n, u) shared by the b problems of a u.

    Sorted by slope, line j is the highest on (lo_j, hi_j): above its last crossing with a flatter line and below its
    first with a steeper one. The maximum is then a_0 + k_0 Z + sum of (k_j - k_i) (Z - c)^+ over the breaks c between
    consecutive lines i, j of the envelope, and E (Z - c)^+ = phi(c) - c Phi(-c).
    """
    n, b, u = intercepts.shape
    order = np.argsort(slopes, axis=0, kind="stable")
    k = np.take_along_axis(slopes, order, axis=0)
    apart = _APART * float(np.abs(k).max(initial=0.0)) + 1e-200
    k = np.maximum.accumulate(k + apart * np.arange(n)[:, None], axis=0)  # increases strictly
    result = np.empty((b, u))
    step = max(1, _ENVELOPE_CHUNK // max(1, n * b))
    for i in range(0, u, step):
        part = slice(i, i + step)
        a = np.take_along_axis(intercepts[:, :, part], order[:, None, part], axis=0)
        result[:, part] = _sorted_expected_max(a, k[:, part])
    return result


def _sorted_expected_max(a: Array, k: Array) -> Array:
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
    gain[~first] = rise[~first] * _beyond(breaks[~first])
    total = np.bincount(problem, weights=gain, minlength=a.shape[1] * a.shape[2])
    return np.asarray(total, dtype=np.float64).reshape(a.shape[1:])


def variances_of(c: Array) -> Array:
    """Return the diagonals (..., g) of covariances (..., g, g), at least 0 after rounding."""
    return np.maximum(np.diagonal(c, axis1=-2, axis2=-1), 0.0)


def _steps(c: Array, noise: Array) -> Array:
    """Return K (..., g, g): the step of every mean (row) per deviation of an observation at a control (column)."""
    return np.asarray(c / np.sqrt(variances_of(c) + noise)[..., None, :])


@dataclass(frozen=True, eq=False)
class GridBelief:
    """Beliefs on a grid of g controls, for b states that share covariances. Costs are multiplied by gamma."""

    m: Array  # (g, b) mean of the score
    c: Array  # (g, g) its covariance
    noise: Array  # (g,) variance of an observation of the score
    t: Array  # (g, b) mean of the cost
    d: Array  # (g, g) its covariance
    jitter: Array  # (g,) variance of an observation of the cost

    def after(self, u: int, z: Array, w: Array) -> GridBelief:
        """Return states after a training at u with score and cost z and w (n,) deviations above their means; b = 1."""
        k, s = _steps(self.c, self.noise)[:, u], _steps(self.d, self.jitter)[:, u]
        return replace(
            self, m=self.m + k[:, None] * z, c=self.c - np.outer(k, k),
            t=self.t + s[:, None] * w, d=self.d - np.outer(s, s),
        )  # fmt: skip


def grid_belief(prior: Prior, phi: Array, gamma: float) -> GridBelief:
    """Return the belief on controls with basis functions phi (g, J), costs multiplied by gamma."""
    m, c = prior.score.at(phi)
    t, d = prior.cost.at(phi)
    noise = np.maximum(variances(prior.score_noise, phi), _LEAST_VARIANCE * np.diag(c).max(initial=0.0))
    jitter = np.maximum(variances(prior.cost_noise, phi), _LEAST_VARIANCE * np.diag(d).max(initial=0.0))
    return GridBelief(m[:, None], c, noise, gamma * t[:, None], gamma**2 * d, gamma**2 * jitter)


@dataclass(frozen=True, eq=False)
class Branches:
    """Beliefs on g controls after s trainings, each with z score and w cost innovations. Costs are multiplied by gamma.

    After a training at u the covariances are known, and the means of score and cost move with their own innovations.
    So terms that depend on s and w alone are computed once for all z. V_2 of a state is a maximum over controls; an
    upper bound excludes most of them. Means that do not depend on z or w have 1 there.
    """

    m: Array  # (g, s, z, w) mean of the score
    c: Array  # (s, g, g) its covariance
    noise: Array  # (g,) variance of an observation of the score
    t: Array  # (g, s, z, w) mean of the cost
    d: Array  # (s, g, g) its covariance
    jitter: Array  # (g,) variance of an observation of the cost

    def at(self, controls: Indices) -> Branches:
        rows, columns = controls[:, None], controls
        return Branches(
            self.m[controls], self.c[:, rows, columns], self.noise[controls],
            self.t[controls], self.d[:, rows, columns], self.jitter[controls],
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, int, int]:
        s, z, w = np.broadcast_shapes(self.m.shape[1:], self.t.shape[1:])
        return s, z, w

    @property
    def cost(self) -> Array:
        """Upsilon (g, s, z, w), the expected cost of a training; negative costs count as 0. As wide as t."""
        return excess(self.t, np.sqrt(variances_of(self.d) + self.jitter).T[:, :, None, None])

    def one(self) -> Array:
        """Return V_1 (s, z, w): the best of one more training."""
        return np.asarray((self.m - self.cost).max(axis=0))

    def two(self, w: Array, weight: Array) -> Array:
        """Return V_2 (s, z, w), with the next cost's innovation summed over nodes w (n,) with their weights."""
        g, (s, z, v) = len(self.m), self.shape
        step = max(1, _BRANCHES_CHUNK // ((g + 1) * g * z * v * len(w)))
        found = []
        for i in range(0, s, step):
            part = slice(i, i + step)
            x = replace(self, m=self.m[:, part], c=self.c[part], t=self.t[:, part], d=self.d[part])
            found.append(_two(x, w, weight))
        return np.concatenate(found)


def _two(x: Branches, w: Array, weight: Array) -> Array:
    cost = x.cost
    a, k, own = _lines(x, w)
    price = np.moveaxis(cost, 0, -1)  # (s, 1 or z, w, u)
    bound = np.einsum("n,nszwu->szwu", weight, _bound(a, k, own, x.m, cost)) - price
    price = np.broadcast_to(price, bound.shape)

    def exact(where: tuple[Indices, ...]) -> Array:
        after, z, v, u = where
        value = expected_max(a[:, :, after, z, v, u], k[:, after, u])
        return np.asarray(weight @ value - price[where])

    control = bound.argmax(axis=-1)
    likely = (*np.indices(control.shape).reshape(3, -1), control.ravel())
    best = exact(likely).reshape(control.shape)
    bound[likely] = -np.inf
    rest = np.nonzero(bound > best[..., None])
    if len(rest[0]):
        np.maximum.at(best, rest[:3], exact(rest))
    return best


def _lines(x: Branches, w: Array) -> tuple[Array, Array, Array]:
    """Return the values after one more training at u, as lines in its score: of each last control, and of stopping.

    Intercepts (g + 1, n, s, z, w, u), slopes (g + 1, s, u), and the slope of stopping (s, u).
    """
    k, move = _steps(x.c, x.noise), _steps(x.d, x.jitter)  # (s, g, u)
    left = np.sqrt(np.maximum(variances_of(x.d)[:, :, None] - move * move, 0.0) + x.jitter[:, None])
    move, left = (np.moveaxis(y, 1, 0)[:, None, :, None, None, :] for y in (move, left))  # (g, 1, s, 1, 1, u)
    cost = excess(x.t[:, None, ..., None] + move * w[:, None, None, None, None], left)
    a = np.empty((len(x.m) + 1, len(w), *x.shape, len(x.m)))
    np.subtract(x.m[:, None, ..., None], cost, out=a[:-1])
    a[-1] = np.moveaxis(x.m, 0, -1)
    own = np.diagonal(k, axis1=1, axis2=2)
    return a, np.concatenate([np.moveaxis(k, 1, 0), own[None]]), own


def _bound(a: Array, k: Array, own: Array, m: Array, cost: Array) -> Array:
    """Return an upper bound (n, s, z, w, u) of E max_j (a_j + k_j Z), in a few passes over the lines.

    Slopes are relative to a line r that is the highest near Z = 0, which changes no expectation. For Z > 0 no line is
    above max a before the first c at which a line crosses it, nor rises faster than the steepest line.
    """
    one = m - cost  # (g, s, z, w)
    r, stop = one.argmax(axis=0), np.moveaxis(m, 0, -1)  # (s, z, w), (s, z, w, u)
    slope = k[r, np.arange(k.shape[1])[:, None, None]]  # (s, z, w, u)
    slope = np.where(stop >= one.max(axis=0)[..., None], own[:, None, None, :], slope)
    top = a.max(axis=0)
    tiny = 1e-13 * float(np.ptp(k)) + 1e-300  # replaces gaps of 0; the bound's error is as small
    gap = top - a
    gap += tiny
    pace = np.divide((k[:, :, None, None, :] - slope)[:, None], gap, out=gap)
    right, left = np.maximum(pace.max(axis=0), _SLOW), np.maximum(-pace.min(axis=0), _SLOW)
    steepest, flattest = k.max(axis=0)[:, None, None, :], k.min(axis=0)[:, None, None, :]
    return np.asarray(top + (steepest - slope) * _beyond(1.0 / right) + (slope - flattest) * _beyond(1.0 / left))


@dataclass(frozen=True)
class Effort:
    """Numerical effort. Controls are nested: the first few are also spread over the cube."""

    cost_nodes: int = 9  # of the cost's innovation
    score_nodes: int = 13  # of the score's innovation, used in depth 3
    inner: int = 17  # controls of the inner levels of depth 3
    inner_nodes: int = 3  # of the cost's innovation there
    outer: int = 5  # first controls whose depth-3 value is computed
    best: int = 6  # controls, best by depth 2, whose depth-3 value is computed too


ONE = Effort()
TWO = Effort(cost_nodes=7, score_nodes=9, inner=49)  # for a cube of two coordinates or more


def nested(points: Array) -> Indices:
    """Order points (g, p) so that the first few are spread over the cube: each is the farthest from those before.

    The first is in the middle. On a grid of 2^k + 1 per side the coarser grids come first.
    """
    away = -np.linalg.norm(points - 0.5, axis=1)  # the first point is the nearest to the middle
    order = np.empty(len(points), dtype=np.intp)
    for i in range(len(points)):
        order[i] = int(np.argmax(away.round(12)))  # round: equal distances must tie, on every machine
        gap = np.linalg.norm(points - points[order[i]], axis=1)
        away = gap if i == 0 else np.minimum(away, gap)
    return order


def values(x: GridBelief, depth: int, effort: Effort = ONE) -> Array:
    """Return Q (g,) of each control for at most `depth` trainings, one state; -inf where depth 3 was not computed."""
    if depth <= 1:
        return np.asarray(q1(x)[:, 0])
    shallow = np.asarray(q2(x, effort)[:, 0])
    if depth == 2:
        return shallow
    found, controls = np.full(len(shallow), -np.inf), chosen(shallow, effort)
    inner, after_that = np.arange(min(len(shallow), effort.inner)), nodes(effort.inner_nodes)
    deep = ahead(x, controls, lambda after: after.at(inner).two(*after_that), effort)
    found[controls] = np.maximum(deep, shallow[controls])  # more trainings never reduce the value
    return found


def chosen(shallow: Array, effort: Effort) -> Indices:
    """Return the controls to compute deeper: some spread over the cube, and the best by a shallow value (g,)."""
    best = np.argsort(-shallow, kind="stable")[: effort.best]
    return np.asarray(np.union1d(np.arange(min(len(shallow), effort.outer)), best))


def expected_cost(x: GridBelief) -> Array:
    """Return Upsilon (g, b), the expected cost of a training times gamma; negative costs count as 0."""
    return excess(x.t, np.sqrt(variances_of(x.d) + x.jitter)[:, None])


def q1(x: GridBelief) -> Array:
    """Return the value (g, b) of training at each control and then stopping."""
    return x.m - expected_cost(x)


def q2(x: GridBelief, effort: Effort = ONE) -> Array:
    """Return the value (g, b) of training at each control, and once more if it pays."""
    w, weight = nodes(effort.cost_nodes)
    k, s = _steps(x.c, x.noise), _steps(x.d, x.jitter)  # (g, g)
    left = np.sqrt(np.maximum(variances_of(x.d)[:, None] - s * s, 0.0) + x.jitter[:, None])
    slopes = np.concatenate([k, np.diagonal(k)[None]])
    g, b = x.m.shape
    cost = x.t[:, None, :, None] + (s[:, None, :] * w[:, None])[:, :, None, :]  # (g, n, b, g)
    lines = np.empty((g + 1, len(w), b, g))
    lines[:-1] = x.m[:, None, :, None] - excess(cost, left[:, None, None, :])
    lines[-1] = x.m.T  # stopping
    best = expected_max(lines.reshape(g + 1, -1, g), slopes).reshape(len(w), b, g)
    return np.asarray(np.einsum("w,wbu->ub", weight, best) - expected_cost(x))


def ahead(x: GridBelief, controls: Indices, value: Callable[[Branches], Array], effort: Effort) -> Array:
    """Return one exact step on top of a value function, (len(controls),): -Upsilon + E max(m'(u), value(x')).

    value: returns (s, z, w) of states after s trainings.
    """
    (z, p), (w, q) = nodes(effort.score_nodes), nodes(effort.cost_nodes)
    after = branches(x, controls, z, w)
    stop = after.m[controls, np.arange(len(controls))]  # (s, z, 1)
    best = np.einsum("szw,z,w->s", np.maximum(stop, value(after)), p, q)
    return np.asarray(best - expected_cost(x)[controls, 0])


def branches(x: GridBelief, controls: Indices, z: Array, w: Array) -> Branches:
    """Return the states after a training at each control, its score and cost z and w deviations above their means."""
    k, s = _steps(x.c, x.noise)[:, controls], _steps(x.d, x.jitter)[:, controls]  # (g, s)
    return Branches(
        x.m[:, :1, None, None] + k[:, :, None, None] * z[:, None], x.c - k.T[:, :, None] * k.T[:, None, :], x.noise,
        x.t[:, :1, None, None] + s[:, :, None, None] * w, x.d - s.T[:, :, None] * s.T[:, None, :], x.jitter,
    )  # fmt: skip


def one_branch(x: GridBelief) -> Branches:
    """Return the b states of a belief as branches (1, b, 1)."""
    return Branches(x.m[:, None, :, None], x.c[None], x.noise, x.t[:, None, :, None], x.d[None], x.jitter)


def nodes(n: int) -> tuple[Array, Array]:
    """Return n evenly spaced nodes and their weights under a standard normal; the mean alone for n = 1."""
    if n == 1:
        return np.zeros(1), np.ones(1)
    reach = 1.13 * math.sqrt(n)  # the errors of cut tails and of the spacing are about equal
    z = np.linspace(-reach, reach, n)
    density = np.exp(-0.5 * z * z)
    density /= density.sum()
    z *= 1.0 / math.sqrt(float(density @ (z * z)))  # unit variance in spite of the cut tails
    return z, density


# Value maps: V_N for larger N than can be computed during a search, learnt once for all problems of a dimension.
#
#     V_N(x) = V_2(x) + lambda(x) f(features(x)),   f a small multilayer perceptron, at least 0
#
# V_2 is in closed form; f adds the value of later trainings. V shifts with the score and scales with score and cost
# together, so features are differences from V_1 in units of lambda, the score's deviation: one map fits any gamma.
# Maps are float32 arrays in .npz files, read without pickle, with a header. `build_map` builds them.

Layers = tuple[tuple[Array32, Array32], ...]  # weights (in, out) and biases (out,)
_FORMAT = 1
_HEADER = ("format", "dim", "depth", "basis", "ratios", "states", "error", "worst")
_SIDE = {1: 9, 2: 5}  # controls per side for features
_BOUND = 8.0  # limit of features: a certain state has no scale of its own
WITHIN = Effort(cost_nodes=3)  # below a map
_MAP_EFFORT = Effort(score_nodes=9, cost_nodes=5)  # on top of a map


def grid(dim: int) -> Array:
    """Return the controls (g, dim) of a map of this dimension. Raises InvalidInput if there is no such map."""
    if dim not in _SIDE:
        raise InvalidInput(f"Value maps are for one or two coordinates, not {dim}. Leave value_map out.")
    axis = np.linspace(0.0, 1.0, _SIDE[dim])
    points = np.stack(np.meshgrid(*[axis] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    return np.asarray(points[nested(points)])


def scale(x: Branches) -> Array:
    """Return lambda (s,): the largest deviation of an observation of the score."""
    return np.asarray(np.sqrt((variances_of(x.c) + x.noise).max(axis=1)))


def features(x: Branches) -> tuple[Array, Array]:
    """Return shift- and scale-invariant features (s, z, w, k) of states on the map's controls, and V_2 (s, z, w)."""
    unit, one, two = scale(x), x.one(), x.two(*nodes(WITHIN.cost_nodes))
    s, z, w = one.shape
    wide = [np.sqrt(variances_of(c)) for c in (x.c, x.d)]
    noise = np.broadcast_to(np.sqrt([x.noise[0], x.jitter[0]]), (s, 2))
    rows = [x.c[:, 0] / unit[:, None], x.d[:, 0] / unit[:, None]]
    shared = np.concatenate([*wide, noise, *rows], axis=1)  # (s, .)
    found = np.empty((s, z, w, 2 * len(x.m) + 1 + shared.shape[1]))
    parts = np.split(found, [len(x.m), 2 * len(x.m), 2 * len(x.m) + 1], axis=-1)
    parts[0][:] = np.moveaxis(x.m, 0, -1) - one[..., None]
    parts[1][:] = np.moveaxis(x.t, 0, -1)
    parts[2][:] = (two - one)[..., None]
    parts[3][:] = shared[:, None, None]
    found /= unit[:, None, None, None]
    return np.clip(found, -_BOUND, _BOUND, out=found), two


@dataclass(frozen=True, eq=False)
class ValueMap:
    """A value map: its header and the layers of its perceptron."""

    header: Mapping[str, Any]
    layers: Layers

    @property
    def depth(self) -> int:
        return int(self.header["depth"])

    def value(self, x: Branches) -> Array:
        """Return V_N (s, z, w) of states on `grid(dim)`."""
        inputs, two = features(x)
        more = perceptron(inputs.reshape(two.size, -1), self.layers).reshape(two.shape)
        return np.asarray(two + scale(x)[:, None, None] * np.maximum(more, 0.0))

    def save(self, path: str | os.PathLike[str]) -> None:
        arrays = {f"{kind}{i}": layer[j] for i, layer in enumerate(self.layers) for j, kind in enumerate("wb")}
        np.savez(path, header=np.array(json.dumps(dict(self.header))), **arrays)  # type: ignore[arg-type]


def perceptron(inputs: Array, layers: Layers) -> Array:
    """Return the output (b,) for inputs (b, k), with tanh between layers."""
    hidden = inputs.astype(np.float32)
    for weights, biases in layers[:-1]:
        hidden = np.tanh(hidden @ weights + biases)
    weights, biases = layers[-1]
    return np.asarray((hidden @ weights + biases)[:, 0], dtype=np.float64)


def load_map(path: str | os.PathLike[str]) -> ValueMap:
    """Read a map. Raises InvalidInput if the file is not a map, or has another format."""
    name = os.fspath(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            held = {name: file[name] for name in file.files}
        header = json.loads(str(held.pop("header")))
        layers = tuple((held[f"w{i}"], held[f"b{i}"]) for i in range(len(held) // 2))
    except Exception as error:  # NumPy, the archive and its compression raise many kinds
        raise InvalidInput(
            f"{name} is not a value map: {one_line(error)}. Build one with `haltune maps build`."
        ) from error
    if not isinstance(header, dict) or not set(_HEADER) <= set(header) or header["format"] != _FORMAT:
        raise InvalidInput(
            f"{name} is not a value map of format {_FORMAT}, whose header has {', '.join(_HEADER)}. Build it again "
            "with this version."
        )
    dim, depth = header["dim"], header["depth"]
    fine = bool(layers) and type(dim) is type(depth) is int and dim in _SIDE and depth > 2
    size = 6 * len(grid(dim)) + 3 if fine else 0
    for weights, biases in layers:
        fine = fine and weights.dtype == biases.dtype == np.float32 and np.isfinite(weights).all()
        fine = fine and weights.ndim == 2 and weights.shape == (size, len(biases))
        size = len(biases)
    if not fine or size != 1:
        raise InvalidInput(f"The layers of {name} do not fit its header. Build it again.")
    return ValueMap(header, layers)


@lru_cache(maxsize=8)
def shipped(name: str) -> ValueMap:
    """Return a map of the package, "1d" or "2d", or one at a path. Raises InvalidInput as `load_map`."""
    own = Path(__file__).parent / "maps" / f"{name}.npz"
    return load_map(own if own.exists() else name)


def mapped(x: GridBelief, points: Array, known: ValueMap, epsilon: float) -> Array:
    """Return Q (g,) of each control at `points` (g, dim): one exact step on top of a map, less epsilon.

    It is computed at the map's controls and at the best by V_2, and -inf elsewhere.
    """
    away = np.linalg.norm(grid(int(known.header["dim"]))[:, None, :] - points, axis=2)
    nearest = np.asarray(away.argmin(axis=1))  # of `points`, for each control of the map
    shallow = np.asarray(q2(x, WITHIN)[:, 0])
    controls = np.union1d(nearest, np.argsort(-shallow, kind="stable")[:4])
    found = np.full(len(shallow), -np.inf)
    found[controls] = ahead(x, controls, lambda after: cautious(known.value(after.at(nearest)), epsilon), _MAP_EFFORT)
    return found


def cautious(values: Array, epsilon: float) -> Array:
    """Return V - epsilon |V|, an allowance for a map's errors. ((1 - epsilon) V would be more where V < 0.)"""
    known = np.isfinite(values)  # -inf (not computed) stays, because -inf - 0 * inf would be NaN
    return np.where(known, values - epsilon * np.abs(np.where(known, values, 0.0)), values)
