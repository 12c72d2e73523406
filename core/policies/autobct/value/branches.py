"""The states that a training may lead to, many at once, and V_2 of each by excluding what cannot be best.

After a training at u the covariances are certain, the score's mean moves along a line with its innovation, the cost's
with its own: s controls, z and w values of the innovations are s z w states, and what depends on s and w alone is
computed once for all z. V_2 of a state is a maximum over controls, most of which an upper bound excludes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from haltune._utils.arrays import Array, Indices

from .envelope import beyond, excess, expected_max

_CHUNK = 200_000  # numbers a pass: more would leave the cache
_SLOW = 1e-3  # lines that cross beyond a thousand deviations do not


@dataclass(frozen=True, eq=False)
class Branches:
    """What is believed on g controls after s trainings, each with z score and w cost innovations. Costs x gamma.

    Means of which one row or column serves all have 1 for z or w.
    """

    m: Array  # (g, s, z, w) mean of the score
    c: Array  # (s, g, g) its covariance
    noise: Array  # (g,) variance of an observation of the score
    t: Array  # (g, s, z, w) mean of the cost
    d: Array  # (s, g, g) its covariance
    jitter: Array  # (g,) variance of an observation of the cost

    def at(self, controls: Indices) -> Branches:
        """The same on some of the controls."""
        rows, columns = controls[:, None], controls
        return Branches(
            self.m[controls], self.c[:, rows, columns], self.noise[controls],
            self.t[controls], self.d[:, rows, columns], self.jitter[controls],
        )  # fmt: skip

    def of(self, part: slice) -> Branches:
        """The states after some of the trainings."""
        return replace(
            self, m=self.m[:, part], c=self.c[part], t=self.t[:, part], d=self.d[part]
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, int, int]:
        """(s, z, w)."""
        s, z, w = np.broadcast_shapes(self.m.shape[1:], self.t.shape[1:])
        return s, z, w

    @property
    def cost(self) -> Array:
        """(g, s, z, w) Upsilon: what a training is expected to cost; costs below 0 count as 0. As wide as t."""
        return excess(self.t, np.sqrt(variances_of(self.d) + self.jitter).T[:, :, None, None])

    def one(self) -> Array:
        """(s, z, w) V_1: the best of one more training."""
        return np.asarray((self.m - self.cost).max(axis=0))

    def two(self, w: Array, weight: Array) -> Array:
        """(s, z, w) V_2, the next cost's innovation summed over nodes w (n,) with their weights."""
        return self.best_of_two(w, weight)[0]

    def best_of_two(self, w: Array, weight: Array) -> tuple[Array, Indices]:
        """V_2 as `two` has it, and the control to train for it (s, z, w)."""
        g, (s, z, v) = len(self.m), self.shape
        step = max(1, _CHUNK // ((g + 1) * g * z * v * len(w)))
        parts = [_two(self.of(slice(i, i + step)), w, weight) for i in range(0, s, step)]
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])


def steps(c: Array, noise: Array) -> Array:
    """(..., g, g) K: the step of every mean (row) for a deviation of an observation at a control (column)."""
    return np.asarray(c / np.sqrt(variances_of(c) + noise)[..., None, :])


def variances_of(c: Array) -> Array:
    """(..., g) the diagonals of covariances (..., g, g), of which rounding made some less than 0."""
    return np.maximum(np.diagonal(c, axis1=-2, axis2=-1), 0.0)


def _two(x: Branches, w: Array, weight: Array) -> tuple[Array, Indices]:
    cost = x.cost
    a, k, own = _lines(x, w)
    price = np.moveaxis(cost, 0, -1)  # (s, 1 or z, w, u)
    bound = np.einsum("n,nszwu->szwu", weight, _bound(a, k, own, x.m, cost)) - price
    price = np.broadcast_to(price, bound.shape)

    def exact(where: tuple[Indices, ...]) -> Array:
        after, z, v, u = where
        value = expected_max(a[:, :, after, z, v, u], k[:, after, u])
        return np.asarray(weight @ value - price[where])

    states, control = np.indices(bound.shape[:3]).reshape(3, -1), bound.argmax(axis=-1)
    likely = (*states, control.ravel())
    best = exact(likely).reshape(control.shape)
    bound[likely] = -np.inf
    rest = np.nonzero(bound > best[..., None])
    if len(rest[0]):
        value, state = exact(rest), rest[:3]
        np.maximum.at(best, state, value)
        better = value == best[state]
        control[tuple(i[better] for i in state)] = rest[3][better]
    return best, control


def _lines(x: Branches, w: Array) -> tuple[Array, Array, Array]:
    """After one more training at u: values of the controls to train last, then of stopping, as lines in its score.

    Their intercepts (g + 1, n, s, z, w, u), slopes (g + 1, s, u), and the slope of stopping's (s, u).
    """
    k, move = steps(x.c, x.noise), steps(x.d, x.jitter)  # (s, g, u)
    left = np.sqrt(np.maximum(variances_of(x.d)[:, :, None] - move * move, 0.0) + x.jitter[:, None])
    move, left = (np.moveaxis(y, 1, 0)[:, None, :, None, None, :] for y in (move, left))  # (g, 1, s, 1, 1, u)
    cost = excess(x.t[:, None, ..., None] + move * w[:, None, None, None, None], left)
    a = np.empty((len(x.m) + 1, len(w), *x.shape, len(x.m)))
    np.subtract(x.m[:, None, ..., None], cost, out=a[:-1])
    a[-1] = np.moveaxis(x.m, 0, -1)
    own = np.diagonal(k, axis1=1, axis2=2)
    return a, np.concatenate([np.moveaxis(k, 1, 0), own[None]]), own


def _bound(a: Array, k: Array, own: Array, m: Array, cost: Array) -> Array:
    """(n, s, z, w, u) at least E max_j (a_j + k_j Z), in a few passes over the lines.

    Slopes are counted from that of a line r that is the highest about Z = 0, which changes no expectation; where Z > 0
    no line rises above max a before the first c at which one of them crosses it, nor faster than the steepest.
    """
    one = m - cost  # (g, s, z, w)
    r, stop = one.argmax(axis=0), np.moveaxis(m, 0, -1)  # (s, z, w), (s, z, w, u)
    slope = k[r, np.arange(k.shape[1])[:, None, None]]  # (s, z, w, u)
    slope = np.where(stop >= one.max(axis=0)[..., None], own[:, None, None, :], slope)
    top = a.max(axis=0)
    tiny = 1e-13 * float(np.ptp(k)) + 1e-300  # of gaps of 0: the bound errs by as much
    gap = top - a
    gap += tiny
    pace = np.divide((k[:, :, None, None, :] - slope)[:, None], gap, out=gap)
    right, left = np.maximum(pace.max(axis=0), _SLOW), np.maximum(-pace.min(axis=0), _SLOW)
    steepest, flattest = k.max(axis=0)[:, None, None, :], k.min(axis=0)[:, None, None, :]
    return np.asarray(
        top + (steepest - slope) * beyond(1.0 / right) + (slope - flattest) * beyond(1.0 / left)
    )
