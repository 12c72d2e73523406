"""What a search has learnt of its parameters: a Gaussian process over configuration and epoch, and what follows of it.

The observations are what the trials came to, each at its last epoch; predictions are for a full training. Targets are 0
at the median run and 1 at the best, and what lies further below than three times that is as bad as any, so that runs
which diverge do not drown what tells good from better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from haltune._utils.arrays import Array, Mask
from haltune.gp import fit
from haltune.gp.posterior import Posterior
from haltune.log.history import History
from haltune.log.scores import plausible
from haltune.space import Space

FEWEST_TRIALS = 5  # trials with a value
_TRIES = 200  # points at which a parameter's conditions may be met
_MOST_LEARNT = 300  # that are learnt from
_LEARNT = 128  # of these, for lengthscales and noise: what takes most of the time
_FLOOR = -3.0
_BASE = 96  # points at which importance is measured
_DRAWS = 64  # functions drawn from the posterior
_RIVALS = 100  # trials that the best is compared with
_WIDE = 512  # configurations among which those with a value for a parameter are looked for
_SETTINGS = 24  # settings of the others, for a slice


@dataclass(frozen=True)
class Importance:
    """Total effects (Sobol', by Jansen's estimator) of the parameters, under functions drawn from the posterior."""

    names: tuple[str, ...]  # the most important first
    mean: Array  # (n,) share of the variance over the space that is left when all others are known
    low: Array  # (n,) one draw in ten is below
    high: Array  # (n,) one in ten is above


@dataclass(frozen=True)
class Slice:
    """The metric expected along one parameter, the others averaged over the space where it has a value."""

    values: tuple[object, ...]
    mean: Array
    low: Array  # one deviation below, of the average
    high: Array


@dataclass(frozen=True)
class MetricModel:
    """The model; None from `of` where there is too little to learn from."""

    space: Space
    posterior: Posterior
    centre: float  # sign * value of the median run
    width: float  # from there to the best
    sign: float  # of the goal
    seed: int
    trials: int  # learnt from
    bounds: tuple[float, float]  # of the goal: nothing beyond them is told
    floor: float | None  # the value that worse ones were taken for; None where no trial's is worse

    @classmethod
    def of(cls, history: History) -> MetricModel | None:
        """Fitted to all trials with a value; None for fewer than FEWEST_TRIALS, or where nothing varies."""
        goal, space = history.problem.goal, history.problem.space
        trials = history.trials
        values = goal.sign * plausible([t.target(goal) for t in trials], reach=1e3)
        known = np.flatnonzero(np.isfinite(values))
        if len(known) < FEWEST_TRIALS or space.dim == 0 or np.ptp(values[known]) == 0:
            return None
        known = known[-_MOST_LEARNT:]
        heights = goal.sign * values[known]
        centre = float(np.median(heights))
        width = float(heights.max()) - centre or float(np.ptp(heights)) or 1.0
        epochs = np.array([max(trials[i].epoch, 1e-9) for i in known.tolist()])
        end = float(history.problem.max_epochs or epochs.max())
        stage = np.log1p(epochs) / np.log1p(end)
        x = np.column_stack([history.points[known], stage])
        targets = (heights - centre) / width
        floor = goal.sign * (centre + _FLOOR * width) if targets.min() < _FLOOR else None
        targets = np.maximum(targets, _FLOOR)
        posterior = fit(x, targets, rng=history.rng("fit", 1), limit=_MOST_LEARNT, learn_from=_LEARNT)
        low, high = goal.bounds or (-np.inf, np.inf)
        return cls(space, posterior, centre, width, goal.sign, history.seed, len(known), (low, high), floor)

    def importance(self) -> Importance:
        """Of each parameter that varies."""
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
        """Along one parameter, at up to so many of its values."""
        rng = np.random.default_rng([self.seed, 2])
        values, coordinates = self._grid(name, levels)
        points = np.repeat(self._with(rng, name)[None], len(coordinates), axis=0)
        points[:, :, self.space.columns[name]] = coordinates[:, None]
        draws = self._drawn(points.reshape(-1, self.space.dim), rng)
        averaged = draws.reshape(_DRAWS, len(coordinates), _SETTINGS).mean(axis=2)
        mean, sd = averaged.mean(axis=0), averaged.std(axis=0)
        return Slice(values, self._raw(mean), self._raw(mean - sd), self._raw(mean + sd))

    def contour(self, across: str, along: str, levels: int = 15) -> tuple[Slice, Slice, Array, Array]:
        """Two parameters' values, and (along, across) the metric expected and its deviation, others averaged.

        NaN where one of the two has no value, the other being what it is.
        """
        rng = np.random.default_rng([self.seed, 3])
        (xs, u), (ys, v) = self._grid(across, levels), self._grid(along, levels)
        points = np.tile(self._with(rng, across, along), (len(v), len(u), 1, 1))
        points[..., self.space.columns[across]] = u[None, :, None]
        points[..., self.space.columns[along]] = v[:, None, None]
        mean, variance = self.posterior.predict(self._at_end(points.reshape(-1, self.space.dim)))
        shape = (len(v), len(u), _SETTINGS)
        met = self._have(points.reshape(-1, self.space.dim), across, along).reshape(shape)
        deviation = np.sqrt(np.maximum(variance.reshape(shape), 0.0))
        share = np.where(met, 1.0, 0.0) / np.where(met.any(axis=2), met.sum(axis=2), np.nan)[..., None]
        expected, deviation = (
            (mean.reshape(shape) * share).sum(axis=2),
            (deviation * share).sum(axis=2) * self.width,
        )
        none = np.empty(0)
        return Slice(xs, none, none, none), Slice(ys, none, none, none), self._raw(expected), deviation

    def behind(self, history: History, best: int) -> float:
        """How sure trial `best` is: in nine cases of ten no other tried is better by more, in units of the metric."""
        ranked = [id for group in history.ranked() for id in group][:_RIVALS]
        tried = history.points[[best, *(id for id in ranked if id != best)]]
        known = self._drawn(tried, np.random.default_rng([self.seed, 4]))
        top = (max(self.sign * b for b in self.bounds) - self.centre) / self.width
        known = np.minimum(known, top)
        return float(np.quantile(self.width * (known.max(axis=1) - known[:, 0]), 0.9))

    def _raw(self, targets: Array) -> Array:
        return np.clip(self.sign * (self.centre + self.width * targets), *self.bounds)

    def _at_end(self, points: Array) -> Array:
        return np.column_stack([points, np.ones(len(points))])

    def _drawn(self, points: Array, rng: np.random.Generator) -> Array:
        return self.posterior.sample(self._at_end(points), _DRAWS, rng)

    def _sampled(self, count: int, rng: np.random.Generator) -> Array:
        """(count, dim) points of configurations from all over the space; repeated where there are fewer."""
        found = self.space.encode_many(self.space.sample_up_to(count, rng, "sobol"))
        return np.resize(found, (count, self.space.dim)) if len(found) < count else found

    def _with(self, rng: np.random.Generator, *names: str) -> Array:
        """(_SETTINGS, dim) points of configurations in which these parameters have values; any where none is found."""
        sampled = self.space.sample_up_to(_WIDE, rng, "sobol")
        having = [c for c in sampled if all(c.get(name) is not None for name in names)]
        return np.resize(self.space.encode_many((having or sampled)[:_SETTINGS]), (_SETTINGS, self.space.dim))

    def _have(self, points: Array, *names: str) -> Mask:
        """(n,) whether these parameters have values at points (n, dim)."""
        if all(self.space.parameters[name].when is None for name in names):
            return np.ones(len(points), dtype=bool)
        configs = self.space.decode_many(points)
        return np.array([all(config.get(name) is not None for name in names) for config in configs])

    def _grid(self, name: str, levels: int) -> tuple[tuple[object, ...], Array]:
        """Values of one parameter, and their coordinates (n, width)."""
        values, cube = line_through(self.space, name, levels, self._where(name))
        return values, cube[:, self.space.columns[name]]

    def _where(self, name: str) -> Array:
        """A point at which a parameter has a value, its conditions being met; the middle where that is one."""
        middle = np.full((1, self.space.dim), 0.5)
        others = np.random.default_rng([self.seed, 5]).random((_TRIES, self.space.dim))
        points = np.vstack([middle, others])
        met = (k for k, config in enumerate(self.space.decode_many(points)) if config.get(name) is not None)
        return np.asarray(points[next(met, 0)])


def line_through(space: Space, name: str, levels: int, point: Array) -> tuple[tuple[object, ...], Array]:
    """Values of one parameter from its lower end to its upper, each once, and `point` with each of them (n, dim)."""
    at = space.columns[name]
    width = at.stop - at.start
    cube = np.tile(point, (width if width > 1 else levels, 1))
    cube[:, at] = np.eye(width) if width > 1 else np.linspace(0.0, 1.0, levels)[:, None]
    configs = space.decode_many(cube)
    values = [config.get(name) for config in configs]
    kept = [i for i, v in enumerate(values) if v is not None and v not in values[:i]]
    return tuple(values[i] for i in kept), space.encode_many([configs[i] for i in kept])
