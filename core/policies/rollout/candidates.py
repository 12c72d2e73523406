"""A few hundred configurations to plan with, out of all: those that a next step may be, and some of everywhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array, Indices
from haltune.log.history import History
from haltune.policies.bayesopt.maximiser import maximise
from haltune.policies.costs.budgets import Means
from haltune.policies.costs.remaining import LogCost

Config = dict[str, Any]
_LISTED = 2048  # a space with no more configurations is screened whole, of others so many are drawn
_TOPS, _NEAR = 4, 12  # configurations that are looked around, and neighbours of each
_SCALES = np.array([0.02, 0.08])  # of the neighbours, in the cube


@dataclass(frozen=True, eq=False)
class Pool:
    """Configurations and their points, none twice."""

    configs: list[Config]
    points: Array  # (m, dim)

    @classmethod
    def of(cls, history: History, first: Sequence[Config], rng: Generator) -> Pool:
        """`first`, then the whole space in random order or a Sobol sample; what was tried only if there is no other."""
        space = history.problem.space
        small = space.size is not None and space.size <= _LISTED
        drawn = space.enumerate() if small else space.sample_up_to(_LISTED, rng, "sobol")
        order = rng.permutation(len(drawn)) if small else np.arange(len(drawn))  # the first fill the space
        configs = [dict(config) for config in (*first, *(drawn[i] for i in order))]
        keys = space.keys(configs)
        fresh = [i for i in _firsts(keys) if keys[i] not in history.tried] or _firsts(keys)
        chosen = [configs[i] for i in fresh]
        return cls(chosen, space.encode_many(chosen))

    def only(self, kept: Indices) -> Pool:
        """Some of them."""
        return Pool([self.configs[i] for i in kept], self.points[kept])

    def joined(self, other: Pool) -> Pool:
        """These, then the other's."""
        return Pool([*self.configs, *other.configs], np.vstack([self.points, other.points]))

    def around(self, value: Array, history: History, rng: Generator) -> Pool:
        """New neighbours of those of largest value: normal steps, and any option of what is not a number."""
        space = history.problem.space
        tops = self.points[np.argsort(-value, kind="stable")[:_TOPS]]
        scales = np.repeat(_SCALES, _NEAR // len(_SCALES))[None, :, None]
        moved = tops[:, None, :] + scales * rng.standard_normal((len(tops), _NEAR, space.dim))
        configs = space.decode_many(moved.reshape(-1, space.dim)) if space.dim else []
        known = set(space.keys(self.configs)) | history.tried
        keys = space.keys(configs) if configs else []
        fresh = [configs[i] for i in _firsts(keys) if keys[i] not in known]
        fresh = [config for config in fresh if space.contains(config)]
        return Pool(fresh, space.encode_many(fresh) if fresh else np.zeros((0, space.dim)))


def screened(gain: Array, means: Means, count: int) -> Indices:
    """Positions, ascending, of at most `count` of m points: the affordable ones of largest EI (m,) per cost, a third,
    of largest EI, another, and else the first of all, which fill the space."""
    able = means.affordable()
    price = np.maximum(means.price(means.first), 1e-300)
    kept = np.zeros(len(gain), dtype=np.bool_)
    for score in (gain / price, gain):
        order = np.argsort(np.where(able & ~kept, -score, np.inf), kind="stable")
        kept[order[: count // 3]] = True
    rest = np.flatnonzero(~kept)[: max(0, count - int(kept.sum()))]
    return np.sort(np.concatenate([np.flatnonzero(kept), rest]))


def cheapest(history: History, log_cost: LogCost | None, rng: Generator) -> Config:
    """The configuration of least predicted cost that was not tried, or any where nothing is known of costs."""

    def descent(points: Array, /) -> tuple[Array, Array]:
        if log_cost is None:
            return np.zeros(len(points)), np.zeros_like(points)
        value, slopes = log_cost(points)
        return -value, -slopes

    return maximise(descent, history.problem.space, rng, tried=history.tried).config


def _firsts(keys: Sequence[str]) -> list[int]:
    """The first position of each key."""
    return sorted({key: i for i, key in reversed(list(enumerate(keys)))}.values())
