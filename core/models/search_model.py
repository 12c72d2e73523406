"""The stage process of a search: its kernel, fitted in time with the search, and the candidates that it ranks.

The kernel is fitted to the search's own rows and to J prior studies. A misleading prior study would also mislead the
amplitudes, steps and lengthscales. So prior studies are left out (q = 0), the least relevant first, while the rows of
this study are likelier without them: while the largest density of all rows together, over that of the prior ones alone,
is less than that of its own rows by more than `_DOUBT` in the logarithm.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array, Indices, Mask
from haltune._utils.memo import Memo
from haltune.gp.kernels import squared_distances
from haltune.log.history import History
from haltune.space import Space

from .curve_rows import CurveTable
from .scales import Heights, LogRegrets
from .stage_process import (
    LEARNT,
    VALUES_KEPT,
    Seen,
    StageKernel,
    StageProcess,
    Stages,
    density,
    largest_density,
    learn_kernel,
    learn_kernel_and_scale,
    seen_at_stages,
    spread,
)

_FIRST_FIT = 16  # rows: by then eight trials have values at the first two rungs
_ROWS_BETWEEN_FITS = (8, 100)  # a fifth of the rows, within these
_PRIOR_KEPT = 120  # of the `VALUES_KEPT`
_PRIOR_LEARNT = 60  # of the `LEARNT` ones
_DOUBTED = 16  # rows before prior studies may be left out
_DOUBT = 2.0  # with few rows, the difference of two maxima is rough


@dataclass(frozen=True)
class SearchModel:
    """The model of searches on one problem; it keeps its last fits."""

    stages: Stages
    prior: tuple[Seen, ...] = ()  # the values of each prior study
    _kernels: Memo[StageKernel | None] = field(default_factory=lambda: Memo(2), init=False, repr=False, compare=False)
    _prior_densities: Memo[float] = field(default_factory=lambda: Memo(8), init=False, repr=False, compare=False)

    def kernel(self, history: History, rows: CurveTable) -> StageKernel | None:
        """Return the kernel fitted to the first m rows, m growing by a fifth; None while there are too few."""
        least, known = 0 if self.prior else _FIRST_FIT, len(rows)
        if known < least:
            return None
        m, prior = fitted(known, least), self._prior_learnt
        first, points = rows.at(slice(m)), history.points

        def learnt() -> StageKernel | None:
            if (heights := Heights.of(first)) is None:
                return None if prior is None else learn_kernel(self.stages, prior)
            own, rng = seen_at_stages(points, first, self.stages, heights.known), history.rng("fit", m)
            alone = own.at(spread(own, LEARNT, rng))
            if prior is None:
                return learn_kernel_and_scale(self.stages, alone, heights)
            kernel = learn_kernel_and_scale(self.stages, alone.of_this(), heights)
            scale = heights.map(kernel.offset)
            part = own.at(spread(own, LEARNT - len(prior), rng)).of_this()
            part = part.of_values(scale.targets(part.value))
            if len(own) < _DOUBTED:
                return learn_kernel(self.stages, part.union(prior)).on(kernel.offset)
            if (joint := self._fitted_with(part, prior)) is not None:
                return joint.on(kernel.offset)
            return kernel.without(range(1, self.stages.earlier + 1))

        return self._kernels((history.seed, points[first.trial].tobytes(), *first.key), learnt)

    def _fitted_with(self, own: Seen, prior: Seen) -> StageKernel | None:
        """Return the kernel fitted to both without misleading studies; None if all mislead."""
        assert prior.of is not None
        kept = np.unique(prior.of)
        least = largest_density(self.stages, own) - _DOUBT
        while len(kept):
            taken = prior.at(np.flatnonzero(np.isin(prior.of, kept)))
            both = own.union(taken)
            kernel = learn_kernel(self.stages, both)
            before = self._prior_densities(tuple(kept.tolist()), partial(largest_density, self.stages, taken))
            if density(self.stages, both, kernel) - before >= least:
                return kernel.without([j for j in range(1, self.stages.earlier + 1) if j not in kept])
            kept = np.delete(kept, kernel.relevance[kept].argmin())
        return None

    def posterior(
        self, kernel: StageKernel, history: History, rows: CurveTable
    ) -> tuple[StageProcess, LogRegrets | None] | None:
        """Return the process given all values, with pending trials as if they had ended at their means; None without.

        Also the map of this study's heights to targets, None while no two finite ones differ.
        """
        seen, scale, points = self._prior_kept, None, history.points
        if (heights := Heights.of(rows)) is not None:
            scale = heights.map(kernel.offset)
            own = seen_at_stages(points, rows, self.stages, scale.targets(heights.known))
            own = own.at(spread(own, VALUES_KEPT - (0 if seen is None else len(seen)), None))
            seen = own if seen is None else own.union(seen)
        if seen is None:
            return None
        return StageProcess.of(kernel, seen).with_ends(points[[t.id for t in history.pending]]), scale

    @cached_property
    def _prior_learnt(self) -> Seen | None:
        return self._of_prior(_PRIOR_LEARNT)

    @cached_property
    def _prior_kept(self) -> Seen | None:
        return self._of_prior(_PRIOR_KEPT)

    def _of_prior(self, limit: int) -> Seen | None:
        """Return at most `limit` values of the prior studies, as many of each; None if there are none."""
        if not self.prior:
            return None
        each = max(1, limit // len(self.prior))
        return reduce(Seen.union, [seen.at(spread(seen, each, None)) for seen in self.prior])


def fitted(count: int, first: int) -> int:
    """Return the last number of rows at which hyperparameters are fitted."""
    m, (least, most) = first, _ROWS_BETWEEN_FITS
    while (following := m + min(most, max(least, m // 5))) <= count:
        m = following
    return min(m, count)


# -- candidates

_BEST_TRIALS = 5  # best trials that have neighbours among the candidates
_NEIGHBOUR_DEVIATION = 0.15  # deviation of a neighbour in the unit cube


def candidates(history: History, rows: CurveTable, count: int, rng: Generator, others: Array | None = None) -> Array:
    """Return points (n, d): random ones, and neighbours of the best trials, moved in about half of their coordinates.

    A third of `count` are neighbours. others: points (k, d) that have neighbours too, and are candidates themselves. A
    space with no more than `count` configurations gives all of them.
    """
    space, near = history.problem.space, count // 3
    if space.size is not None and space.size <= count:
        return space.encode_many(space.enumerate())
    tops = history.points[_best_trials(rows)]
    others = np.empty((0, space.dim)) if others is None else others
    tops = np.vstack([tops, others])
    least, most = space.box
    anywhere = least + rng.random((count - near, space.dim)) * (most - least)
    base = tops[rng.integers(len(tops), size=near)]
    moved = base + (rng.random(base.shape) < 0.5) * rng.normal(0.0, _NEIGHBOUR_DEVIATION, base.shape)
    points = np.vstack([anywhere, np.clip(moved, least, most), others])
    return points if space.free else space.snap(points)


def _best_trials(rows: CurveTable) -> Indices:
    """Return the trials with the best values, best first; of equals the lower number; not finite ones last."""
    score = np.where(np.isfinite(rows.height), -rows.height, np.inf)
    ranked = rows.trial[np.lexsort((rows.trial, score))]
    _, first = np.unique(ranked, return_index=True)
    return ranked[np.sort(first)[:_BEST_TRIALS]]


def best_allowed(
    space: Space, points: Array, value: Array, besides: Collection[str]
) -> tuple[int, dict[str, Any]] | None:
    """Return the index and configuration of the point (n, d) of largest value (n,) that is allowed.

    besides: keys of configurations to leave out. None if none is left. The points are checked one by one, because
    a check is slow.
    """
    for i in np.argsort(-value, kind="stable"):
        config = space.decode_valid(points[i])
        if config is not None and space.key_of_canonical(config) not in besides:
            return int(i), config
    return None


_NEAR = 0.5  # of the side of a cell, if the cube were divided into as many cells as there are trials
_CROWD = 3  # trials so near to a point that no other one starts there


def uncrowded(points: Array, tried: Array) -> Mask:
    """Return which points (m, d) have fewer than three trials, at (n, d), within n^(-1 / d) / 2; all if none has.

    Without it a search in a continuous space tries its best configuration again and again, because no trial that pauses
    early shows how it ends.
    """
    count, dim = tried.shape
    near = squared_distances(points, tried) < (_NEAR * max(1, count) ** (-1.0 / max(1, dim))) ** 2
    free = near.sum(axis=1) < _CROWD
    return free if free.any() else np.ones(len(points), dtype=bool)
