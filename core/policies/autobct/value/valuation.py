"""What a search is worth: the value V_N of at most N more trainings, and of each control to train next.

    Q_1(u) = m(u) - Upsilon(t(u), r(u)^2)                       m, t: means of score and of gamma x cost,
    Q_n(u) = -Upsilon(t(u), r(u)^2) + E max(m'(u), V_{n-1}(x')) r: deviation of an observation of gamma x cost,
    V_n    = max over u of Q_n(u)                               primes: after the training at u

((2.12), (2.13) of AutoBCT). All of it on a grid of controls, where a training at u moves the means by K(., u) Z, Z
standard normal, and shrinks the covariance by K K^T, whatever was seen. So V_1 is a maximum of lines in the score's
Z, and Q_2 is their upper envelope in closed form, once for each of a few evenly spaced values of the cost's Z. The
integrand has kinks: Gauss-Hermite nodes, made for polynomials, are worse than evenly spaced ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from haltune._utils.arrays import Array, Indices

from ..prior.beliefs import Prior, variances
from .branches import Branches, steps, variances_of
from .envelope import excess, expected_max

_LEAST_VARIANCE = (
    1e-12  # of a belief's variance: noise below would leave rounding to speak of what is left of it
)


@dataclass(frozen=True, eq=False)
class GridBelief:
    """What is believed on a grid of g controls, of b states that share their covariances. Costs are times gamma."""

    m: Array  # (g, b) mean of the score
    c: Array  # (g, g) its covariance
    noise: Array  # (g,) variance of an observation of the score
    t: Array  # (g, b) mean of the cost
    d: Array  # (g, g) its covariance
    jitter: Array  # (g,) variance of an observation of the cost

    def at(self, controls: Indices) -> GridBelief:
        """The same on some of the controls."""
        block = np.ix_(controls, controls)
        return GridBelief(
            self.m[controls], self.c[block], self.noise[controls],
            self.t[controls], self.d[block], self.jitter[controls],
        )  # fmt: skip

    def after(self, u: int, z: Array, w: Array) -> GridBelief:
        """After a training at u whose score and cost are z and w (n,) deviations above their means; b = 1 before."""
        k, s = steps(self.c, self.noise)[:, u], steps(self.d, self.jitter)[:, u]
        return replace(
            self, m=self.m + k[:, None] * z, c=self.c - np.outer(k, k),
            t=self.t + s[:, None] * w, d=self.d - np.outer(s, s),
        )  # fmt: skip


@dataclass(frozen=True)
class Effort:
    """How finely the values are computed. Controls are nested: the first few are spread over the cube, too."""

    cost_nodes: int = 9  # of the cost's innovation
    score_nodes: int = 13  # of the score's innovation, in depth 3 alone
    inner: int = 17  # controls of the levels within depth 3
    inner_nodes: int = 3  # of the cost's innovation there
    outer: int = 5  # controls whose depth-3 value is computed,
    best: int = 6  # and as many of the best by depth 2


ONE = Effort()
TWO = Effort(cost_nodes=7, score_nodes=9, inner=49)


def effort_for(dim: int) -> Effort:
    """What suits a cube of so many coordinates."""
    return ONE if dim <= 1 else TWO


def nested(points: Array) -> Indices:
    """(g,) an order of points (g, p) in which the first few are spread over the cube: each farthest from those before.

    It begins in the middle; of a grid of 2^k + 1 a side it gives the coarser grids first.
    """
    away = -np.linalg.norm(points - 0.5, axis=1)  # the first is the one nearest to the middle
    order = np.empty(len(points), dtype=np.intp)
    for i in range(len(points)):
        order[i] = int(np.argmax(away.round(12)))  # round: equal distances must tie, on every machine
        gap = np.linalg.norm(points - points[order[i]], axis=1)
        away = gap if i == 0 else np.minimum(away, gap)
    return order


def values(x: GridBelief, depth: int, effort: Effort = ONE) -> Array:
    """(g,) Q of each control for at most `depth` trainings, one state; -inf where depth 3 was not computed."""
    if depth <= 1:
        return np.asarray(q1(x)[:, 0])
    shallow = np.asarray(q2(x, effort=effort)[:, 0])
    if depth == 2:
        return shallow
    found, controls = np.full(len(shallow), -np.inf), chosen(shallow, effort)
    deep = q3(x, controls, effort)
    found[controls] = np.maximum(deep, shallow[controls])  # more trainings are never worth less
    return found


def chosen(shallow: Array, effort: Effort) -> Indices:
    """The controls whose deeper value is computed: some spread over the cube, and the best by a shallow value (g,)."""
    best = np.argsort(-shallow, kind="stable")[: effort.best]
    return np.asarray(np.union1d(spread(len(shallow), effort.outer), best))


def grid_belief(prior: Prior, phi: Array, gamma: float) -> GridBelief:
    """A belief on controls with basis functions phi (g, J), costs weighed by gamma."""
    m, c = prior.score.at(phi)
    t, d = prior.cost.at(phi)
    noise = np.maximum(variances(prior.score_noise, phi), _LEAST_VARIANCE * np.diag(c).max(initial=0.0))
    jitter = np.maximum(variances(prior.cost_noise, phi), _LEAST_VARIANCE * np.diag(d).max(initial=0.0))
    return GridBelief(m[:, None], c, noise, gamma * t[:, None], gamma**2 * d, gamma**2 * jitter)


def expected_cost(x: GridBelief) -> Array:
    """(g, b) Upsilon: what a training is expected to cost, times gamma; costs below 0 count as 0."""
    return excess(x.t, np.sqrt(variances_of(x.d) + x.jitter)[:, None])


def q1(x: GridBelief) -> Array:
    """(g, b) the value of training at each control and stopping then."""
    return x.m - expected_cost(x)


def q2(x: GridBelief, controls: Indices | None = None, effort: Effort = ONE) -> Array:
    """(len(controls), b) the value of training at each control, with one more training after it if it pays."""
    u = np.arange(len(x.m)) if controls is None else controls
    w, weight = nodes(effort.cost_nodes)
    k, s = steps(x.c, x.noise)[:, u], steps(x.d, x.jitter)[:, u]  # (g, u)
    left = np.sqrt(np.maximum(variances_of(x.d)[:, None] - s * s, 0.0) + x.jitter[:, None])  # (g, u)
    slopes = np.concatenate([k, k[u, np.arange(len(u))][None]])
    b = x.m.shape[1]
    cost = x.t[:, None, :, None] + (s[:, None, :] * w[:, None])[:, :, None, :]  # (g, n, b, u)
    lines = np.empty((len(x.m) + 1, len(w), b, len(u)))
    lines[:-1] = x.m[:, None, :, None] - excess(cost, left[:, None, None, :])
    lines[-1] = x.m[u].T  # stopping at u
    best = expected_max(lines.reshape(len(lines), -1, len(u)), slopes).reshape(len(w), b, len(u))
    return np.asarray(np.einsum("w,wbu->ub", weight, best) - expected_cost(x)[u])


def q3(x: GridBelief, controls: Indices, effort: Effort = ONE) -> Array:
    """(len(controls),) the value of training at each control with at most two more after it; one state."""
    inner = spread(len(x.m), effort.inner)
    return ahead(x, controls, lambda after: after.at(inner).two(*nodes(effort.inner_nodes)), effort)


def ahead(x: GridBelief, controls: Indices, value: Callable[[Branches], Array], effort: Effort) -> Array:
    """(len(controls),) one exact step on top of any value function: -Upsilon + E max(m'(u), value(x')).

    value: (s, z, w) of states after s trainings.
    """
    (z, p), (w, q) = nodes(effort.score_nodes), nodes(effort.cost_nodes)
    after = branches(x, controls, z, w)
    stop = after.m[controls, np.arange(len(controls))]  # (s, z, 1)
    best = np.einsum("szw,z,w->s", np.maximum(stop, value(after)), p, q)
    return np.asarray(best - expected_cost(x)[controls, 0])


def branches(x: GridBelief, controls: Indices, z: Array, w: Array) -> Branches:
    """The states after a training at each control, its score and cost z and w deviations above their means."""
    k, s = steps(x.c, x.noise)[:, controls], steps(x.d, x.jitter)[:, controls]  # (g, s)
    return Branches(
        x.m[:, :1, None, None] + k[:, :, None, None] * z[:, None], x.c - k.T[:, :, None] * k.T[:, None, :], x.noise,
        x.t[:, :1, None, None] + s[:, :, None, None] * w, x.d - s.T[:, :, None] * s.T[:, None, :], x.jitter,
    )  # fmt: skip


def one_branch(x: GridBelief) -> Branches:
    """The b states of a belief as branches (1, b, 1)."""
    return Branches(x.m[:, None, :, None], x.c[None], x.noise, x.t[:, None, :, None], x.d[None], x.jitter)


def spread(size: int, about: int) -> Indices:
    """The first of `size` nested controls."""
    return np.arange(min(size, about))


def nodes(n: int) -> tuple[Array, Array]:
    """n evenly spaced nodes and their shares of a standard normal; the mean alone for n = 1."""
    if n == 1:
        return np.zeros(1), np.ones(1)
    reach = 1.13 * math.sqrt(n)  # the tails that are cut off and the gaps between nodes weigh about the same
    z = np.linspace(-reach, reach, n)
    density = np.exp(-0.5 * z * z)
    density /= density.sum()
    z *= 1.0 / math.sqrt(float(density @ (z * z)))  # unit variance, whatever the tails that were cut off
    return z, density
