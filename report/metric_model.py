"""Model of the metric: importance of parameters, slices, maps, and the certainty of the best, by posterior samples.

The model is `haltune.models.final_values`, fitted to every report at its epoch. Predictions are for a
full training. Intervals are stated at 90%; benchmarks/search/slices.py measures their coverage. Studies in
`learn_from=` are not used.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from haltune._utils.arrays import Array, Mask
from haltune._utils.signals import undisturbed
from haltune._utils.threads import one_thread
from haltune.log.history import History
from haltune.models.final_values import FinalValues
from haltune.space import Space
from haltune.space.domains import token

_TRIES = 200  # random points tried to meet a parameter's conditions
_BASE = 96  # points at which importance is measured
_DRAWS = 128  # posterior samples of final values
_MAP_DRAWS = 48  # the same for a map, which has ten times as many points
_RIVALS = 100  # trials that are compared with the best
_WIDE = 512  # configurations searched for those with a value for a parameter
_OTHERS = 24  # settings of the other parameters over which a slice is averaged
_MAP_POINTS = 20_000  # the most points of a map, of two parameters with a hundred options each: then fewer settings
_RANGE = (0.05, 0.95)


@dataclass(frozen=True)
class Importance:
    """Total effects of the parameters (Sobol', Jansen's estimator), for functions sampled from the posterior."""

    names: tuple[str, ...]  # the most important first
    mean: Array  # (n,) share of the variance over the space that remains if all other parameters are known
    low: Array  # (n,) 10% quantile of the samples
    high: Array  # (n,) 90% quantile


@dataclass(frozen=True)
class Slice:
    """Expected metric along one parameter, averaged over the others where the parameter has a value."""

    values: tuple[object, ...]
    mean: Array
    low: Array  # 5% quantile of the average
    high: Array  # 95% quantile


@dataclass(frozen=True)
class Map:
    """Expected metric over two parameters; arrays (along, across), NaN where one of the two has no value."""

    across: tuple[object, ...]
    along: tuple[object, ...]
    mean: Array
    low: Array  # as in Slice
    high: Array

    @property
    def known(self) -> Mask:
        """(along, across) False where the interval covers the whole range of the map, so the cell shows nothing."""
        least, most = np.nanmin(self.mean), np.nanmax(self.mean)
        return np.asarray((self.low > least) | (self.high < most))


@dataclass(frozen=True)
class MetricModel:
    """Gaussian process of final values, and the numbers that figures compute from it."""

    space: Space
    metric: str
    final: FinalValues
    seed: int
    trials: int  # that it is fitted to

    @classmethod
    def of(cls, history: History | None) -> MetricModel | None:
        """Fit the model to all trials with a value. None if they are too few, or if nothing varies.

        history is in points, see haltune.log.points; None if it is not known.
        """
        if history is None:
            return None
        with undisturbed, one_thread, undisturbed.heard:
            final = FinalValues.of(history)
        problem = history.problem
        return None if final is None else cls(problem.space, problem.goal.metric, final, history.seed, len(final.runs))

    @property
    def floor(self) -> float | None:
        """Worse values count as this value; None if no trial has a worse value."""
        return self.final.floor

    def importance(self) -> Importance:
        rng, columns = np.random.default_rng([self.seed, 1]), self.space.columns
        left, right = self._sampled(_BASE, rng), rng.permutation(self._sampled(_BASE, rng))
        swapped = [left]
        for at in columns.values():
            other = left.copy()
            other[:, at] = right[:, at]
            swapped.append(other)
        draws = self._drawn(np.vstack(swapped), rng).reshape(_DRAWS, len(swapped), _BASE)
        apart = 0.5 * ((draws[:, 1:] - draws[:, :1]) ** 2).mean(axis=2)
        share = apart / np.maximum(draws[:, 0].var(axis=1), 1e-12)[:, None]
        share = np.clip(share, 0.0, 1.0)
        order = np.argsort(-share.mean(axis=0), kind="stable")
        names = list(columns)
        low, high = np.quantile(share[:, order], [0.1, 0.9], axis=0)
        return Importance(tuple(names[i] for i in order), share.mean(axis=0)[order], low, high)

    def slice(self, name: str, levels: int = 25) -> Slice:
        rng = np.random.default_rng([self.seed, 2])
        values, coordinates = self._grid(name, levels)
        points = np.repeat(self._with(rng, name)[None], len(coordinates), axis=0)
        points[:, :, self.space.columns[name]] = coordinates[:, None]
        averaged = self._drawn(points, rng).mean(axis=2)
        low, high = np.quantile(averaged, _RANGE, axis=0)
        return Slice(values, averaged.mean(axis=0), low, high)

    def contour(self, across: str, along: str, levels: int = 15) -> Map:
        rng = np.random.default_rng([self.seed, 3])
        (xs, u), (ys, v) = self._grid(across, levels), self._grid(along, levels)
        others = self._with(rng, across, along)[: max(1, _MAP_POINTS // (len(u) * len(v)))]
        points = np.tile(others, (len(v), len(u), 1, 1))
        points[..., self.space.columns[across]] = u[None, :, None]
        points[..., self.space.columns[along]] = v[:, None, None]
        met = self._have(points.reshape(-1, self.space.dim), across, along).reshape(points.shape[:-1])
        share = np.where(met, 1.0, 0.0) / np.where(met.any(axis=2), met.sum(axis=2), np.nan)[..., None]
        averaged = (self._drawn(points, rng, _MAP_DRAWS) * share).sum(axis=3)  # keeps NaN
        low, high = np.quantile(averaged, _RANGE, axis=0)
        return Map(xs, ys, averaged.mean(axis=0), low, high)

    def behind(self, history: History, best: int) -> float:
        """Return the amount by which, with 90% probability, no other trial is better than `best`. In metric units."""
        ranked = [id for group in history.ranked() for id in group][:_RIVALS]
        tried = [best, *(id for id in ranked if id != best)]
        rng = np.random.default_rng([self.seed, 4])
        with undisturbed, one_thread, undisturbed.heard:
            known = history.problem.goal.sign * self.final.of_trials(tried, history.points[tried], _DRAWS, rng)
        return float(np.quantile(known.max(axis=1) - known[:, 0], 0.9))

    def _drawn(self, points: Array, rng: np.random.Generator, draws: int = _DRAWS) -> Array:
        """Sample the final metric of configurations (..., dim): (draws, ...)."""
        with undisturbed, one_thread, undisturbed.heard:
            found = self.final.of_configurations(points.reshape(-1, self.space.dim), draws, rng)
        return found.reshape(draws, *points.shape[:-1])

    def _sampled(self, count: int, rng: np.random.Generator) -> Array:
        """Sample configurations from the whole space: points (count, dim), repeated if there are fewer."""
        found = self.space.encode_many(self.space.sample_up_to(count, rng, "sobol"))
        return np.resize(found, (count, self.space.dim)) if len(found) < count else found

    def _with(self, rng: np.random.Generator, *names: str) -> Array:
        """Sample configurations in which these parameters have values: points (_OTHERS, dim); any if none is found."""
        sampled = self.space.sample_up_to(_WIDE, rng, "sobol")
        having = [c for c in sampled if c.keys() >= {*names}]
        return np.resize(self.space.encode_many((having or sampled)[:_OTHERS]), (_OTHERS, self.space.dim))

    def _have(self, points: Array, *names: str) -> Mask:
        """Return whether these parameters have values at points (n, dim): (n,)."""
        if all(self.space.parameters[name].when is None for name in names):
            return np.ones(len(points), dtype=bool)
        configs = self.space.decode_many(points)
        return np.array([config.keys() >= {*names} for config in configs])

    def _grid(self, name: str, levels: int) -> tuple[tuple[object, ...], Array]:
        """Return values of one parameter and their coordinates (n, width)."""
        values, cube = line_through(self.space, name, levels, self._where(name))
        return values, cube[:, self.space.columns[name]]

    def _where(self, name: str) -> Array:
        """Return a point at which the parameter's conditions are met: the middle of the space if they are met there."""
        low, high = self.space.box
        others = low + np.random.default_rng([self.seed, 5]).random((_TRIES, self.space.dim)) * (high - low)
        points = np.vstack([(low + high) / 2, others])
        met = (k for k, config in enumerate(self.space.decode_many(points)) if name in config)
        return np.asarray(points[next(met, 0)])


def line_through(space: Space, name: str, levels: int, point: Array) -> tuple[tuple[object, ...], Array]:
    """Return distinct values of one parameter, numbers in ascending order, and `point` with each of them (n, dim)."""
    at = space.columns[name]
    width = at.stop - at.start
    cube = np.tile(point, (width if width > 1 else levels, 1))
    low, high = space.box[:, at]
    cube[:, at] = np.eye(width) if width > 1 else np.linspace(low, high, levels)
    configs = space.decode_many(cube)
    found = {token(config[name]): config for config in configs if name in config}
    kept = list(found.values())
    if all(type(config[name]) in (int, float) for config in kept):
        kept.sort(key=lambda config: config[name])
    return tuple(config[name] for config in kept), space.encode_many(kept)
