"""Simulated searches: worlds drawn from the posterior, and AutoBCT in each of them.

Worlds whose searches trained the same controls share their covariances and are decided together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from haltune._utils.arrays import Array, Indices
from haltune.policies.autobct.value import GridBelief, q1, q2, values

_AT_ONCE = 100  # worlds decided together: more would leave the cache


@dataclass(frozen=True, eq=False)
class Futures:
    """w worlds of at most n trainings each; what comes after a search's end repeats its last entry."""

    height: Array  # (n, w) the score expected of the control trained last
    spent: Array  # (n, w) cost so far, times gamma; negative costs count as 0
    count: Indices  # (w,) trainings until the end


@dataclass(frozen=True, eq=False)
class _WorldGroup:
    """Worlds whose searches trained the same controls."""

    x: GridBelief
    ids: Indices  # (b,) worlds
    last: int | None  # control trained last


@dataclass(frozen=True, eq=False)
class _Worlds:
    score: Array  # (g, w) true scores
    cost: Array  # (g, w) true costs, times gamma
    noise: Array  # (n, w) standard normal
    jitter: Array  # (n, w) standard normal


def simulate(
    x: GridBelief, worlds: int, trainings: int, rng: np.random.Generator, depth: int = 2, exact: bool = False
) -> Futures:
    """Return the results of `worlds` searches from one state, each of at most so many trainings.

    depth: how far a search looks ahead; exact: to the last of its trainings instead, at most three of them.
    """
    true = _draw(x, worlds, trainings, rng)
    found = np.zeros((2, trainings, worlds))
    count = np.full(worlds, trainings, dtype=np.intp)
    groups = [_WorldGroup(_repeated(x, worlds), np.arange(worlds), None)]
    for n in range(trainings):
        found[:, n] = found[:, n - 1] if n else 0.0
        ahead = min(trainings - n, 3) if exact else min(trainings - n, depth)
        going: list[_WorldGroup] = []
        for group in groups:
            going += _trained(group, _decided(group, ahead, count, n), true, found, n)
        groups = going
    return Futures(found[0], found[1], count)


def _draw(x: GridBelief, worlds: int, trainings: int, rng: np.random.Generator) -> _Worlds:
    def surface(mean: Array, cov: Array) -> Array:
        values, vectors = np.linalg.eigh(cov)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return np.asarray(mean + root @ rng.normal(size=(len(mean), worlds)))

    return _Worlds(
        surface(x.m, x.c), surface(x.t, x.d), *rng.normal(size=(2, trainings, worlds))
    )  # fmt: skip


def _repeated(x: GridBelief, worlds: int) -> GridBelief:
    return replace(x, m=np.repeat(x.m, worlds, axis=1), t=np.repeat(x.t, worlds, axis=1))


def _decided(group: _WorldGroup, depth: int, count: Indices, n: int) -> Indices:
    """(b,) the control that each world trains next, -1 for the end of its search."""
    chosen = np.empty(len(group.ids), dtype=np.intp)
    if n == 0:  # all worlds are in the same state
        one = replace(group.x, m=group.x.m[:, :1], t=group.x.t[:, :1])
        chosen[:] = int(np.argmax(values(one, depth)))
        return chosen
    for start in range(0, len(chosen), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        x = replace(group.x, m=group.x.m[:, part], t=group.x.t[:, part])
        going, chosen[part] = _best(x, depth)
        chosen[part] = np.where(x.m[group.last] >= going, -1, chosen[part])
    count[group.ids[chosen < 0]] = n
    return chosen


def _best(x: GridBelief, depth: int) -> tuple[Array, Indices]:
    """Return the value of continuing (b,), and the control to train."""
    if depth < 3:
        q = q1(x) if depth == 1 else q2(x)
    else:
        columns = [replace(x, m=x.m[:, [i]], t=x.t[:, [i]]) for i in range(x.m.shape[1])]
        q = np.stack([values(column, depth) for column in columns], axis=1)
    return q.max(axis=0), q.argmax(axis=0)


def _trained(group: _WorldGroup, chosen: Indices, true: _Worlds, found: Array, n: int) -> list[_WorldGroup]:
    """The groups after each world's training; `found` takes its height and cost."""
    groups = []
    for u in np.unique(chosen[chosen >= 0]):
        at = np.nonzero(chosen == u)[0]
        ids = group.ids[at]
        x = replace(group.x, m=group.x.m[:, at], t=group.x.t[:, at])
        score = true.score[u, ids] + np.sqrt(x.noise[u]) * true.noise[n, ids]
        cost = true.cost[u, ids] + np.sqrt(x.jitter[u]) * true.jitter[n, ids]
        z = (score - x.m[u]) / np.sqrt(x.c[u, u] + x.noise[u])
        w = (cost - x.t[u]) / np.sqrt(x.d[u, u] + x.jitter[u])
        after = _WorldGroup(x.after(int(u), z, w), ids, int(u))
        found[0, n, ids] = after.x.m[u]
        found[1, n, ids] += np.maximum(cost, 0.0)
        groups.append(after)
    return groups
