"""TruVaR's surrogate: sites, measurement levels, targets, and the Gaussian process over sites.

Sites (a term of spatial statistics) are the finitely many configurations over which the policy has a posterior: all of
a small finite space, or a mesh or list from the user. Otherwise they are representers: Sobol points. Whenever the
kernel is learnt again, half of them are redrawn among the configurations that may still be members.

A level is a precision of measurement with a cost. For deep learning it is an unbiased choice: the number of seeds, of
cross-validation folds, of validation samples. Fewer epochs bias the value and are not a level.

Targets are sign * value in the metric's units, so that a threshold keeps its meaning. The kernel is given, or learnt on
the first m finished trials, m the largest multiple of `refit_every`; later trials condition the posterior one by one.
Caches only save work: without them the same log prefix gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.linalg import blas

from haltune._utils.arrays import Array, Indices, Mask
from haltune._utils.checks import is_number, pythonic, within
from haltune._utils.memo import Memo
from haltune.errors import InvalidInput
from haltune.gp import Kernel, Posterior, Priors, condition_on, fit
from haltune.gp.gp import solve_lower
from haltune.gp.kernels import KernelName
from haltune.log.decisions import Config
from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.policy import FinishedTrials
from haltune.log.problem import Problem
from haltune.space import Space

GridOption = int | Sequence[Mapping[str, Any]] | None
NoiseOption = float | Callable[..., float] | None
Matters = Callable[[Posterior, int, float, Array], Mask]  # posterior, observations, sign of the goal, points
ObservationKeys = tuple[tuple[int, int, float, Any], ...]  # trial, attempt, target, level
MOST_SITES = 20_000  # configurations that may be listed
DENSE = 5000  # up to so many sites the covariance matrix is stored: 200 MB
_NEIGHBOUR_DEVIATION = 0.05  # of the steps around members, in the unit cube
_NOISE_FREEDOM = 2.0  # weight, in repeats, of the estimate of a level's noise from its cost
_REBASE = 50  # observations after which a field under a given kernel is recomputed, because rank-one errors add up
_NUGGET = 1e-6  # of the targets' variance: with a known noise of 0 pivots would be below rounding
_EXACT = 1e-10  # of the prior variance: smallest noise under a given kernel
_CLIPPED_BEYOND = 5.0  # level sets: a value is clipped at this many times the median's distance below the best


# -- sites -------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Sites:
    """Distinct configurations of a space."""

    configs: Sequence[Config]
    keys: Sequence[str]
    points: Array  # (n, dim)
    fixed: bool  # True: all configurations to choose from; False: they represent a larger space

    @classmethod
    def of(cls, space: Space, configs: Sequence[Config], fixed: bool) -> Sites:
        distinct = dict(zip(space.keys(configs), configs, strict=True))
        return cls([*distinct.values()], [*distinct], space.encode_many([*distinct.values()]), fixed)

    def __len__(self) -> int:
        return len(self.configs)

    @cached_property
    def number(self) -> Mapping[str, int]:
        return {key: i for i, key in enumerate(self.keys)}

    def tried(self, keys: frozenset[str] | set[str]) -> Mask:
        return np.array([key in keys for key in self.keys])


def fixed_sites(space: Space, grid: GridOption) -> Sites | None:
    """Return the sites of a list, a mesh or a small finite space; None if representers are needed.

    grid: configurations; or the number of values of a continuous parameter on a mesh; None: the whole space.
    Raises InvalidInput for a configuration outside the space, and for more than 20,000 of them.
    """
    if isinstance(grid, int):
        found = space.mesh(grid, MOST_SITES)
    elif grid is not None:
        found = [dict(config) for config in grid]
        strange = [config for config in found if not space.whole.contains(config)]
        if strange or not found:
            problem = f"contains {strange[0]!r}, not a configuration of the space" if strange else "is empty"
            raise InvalidInput(f"grid {problem}. Give configurations of the space.")
        if not (found := [config for config in space.canonical_many(found) if space.contains(config)]):
            raise InvalidInput("grid has no configuration in the narrower space. Give configurations of that space.")
    elif space.size is not None and space.size <= MOST_SITES:
        found = space.enumerate()
    else:
        return None
    if len(found) > MOST_SITES:
        raise InvalidInput(f"grid has {len(found):,} configurations. Give at most {MOST_SITES:,}.")
    return Sites.of(space, found, True)


def representers(space: Space, count: int, rng: Generator, matters: Callable[[Array], Mask] | None) -> Sites:
    """Return about `count` Sobol configurations. Up to half may be members; if few are, their neighbours are added.

    matters: points (m, dim) -> (m,) True if a point may be a member; None if nothing is known.
    """
    spread = space.sample_up_to(count, rng, "sobol")
    if matters is None:
        return Sites.of(space, spread, False)
    pool = space.sample_up_to(8 * count, rng, "sobol")
    points = space.encode_many(pool)
    close = [pool[i] for i in np.flatnonzero(matters(points))]
    if 0 < len(close) < count // 2:
        centres = space.encode_many(close)[rng.integers(len(close), size=4 * count)]
        moved = centres + _NEIGHBOUR_DEVIATION * rng.standard_normal(centres.shape) * space.continuous
        near = space.decode_many(np.clip(moved, 0.0, 1.0))
        kept = matters(space.encode_many(near))
        close += [config for config, keep in zip(near, kept, strict=True) if keep and space.contains(config)]
    half = close[: count // 2]
    return Sites.of(space, [*half, *spread[: count - len(half)]], False)


def is_grid(grid: Any) -> bool:
    if isinstance(grid, (bool, str)) or not isinstance(grid, (int, Sequence)):
        return False
    return isinstance(grid, int) or all(isinstance(config, Mapping) for config in grid)


def grid_to_json(grid: GridOption) -> Any:
    """Return a number unchanged; for a list its length and a digest of its configurations."""
    if grid is None or isinstance(grid, int):
        return grid
    text = "\n".join(sorted(repr(sorted(config.items())) for config in grid))
    return {"configurations": len(grid), "digest": sha256(text.encode()).hexdigest()[:16]}


# -- levels ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Level:
    """A measurement level: how precise it is, and what it costs.

    Args:
        name: value of `trial.level` in the training, such as "3 seeds".
        noise: variance of one value around the true value, squared units of the metric. Default: None, estimated from
            repeats.
        cost: factor of the configuration's own cost, relative to the other levels. Default: 1.

    Raises:
        InvalidInput: for a name that is not text, a negative noise, or a cost that is not above 0.

    Example:
        >>> from haltune.policies import Level
        >>> from haltune.policies import TruVaR
        >>> policy = TruVaR(threshold=0.9, levels=[Level("1 seed", cost=1), Level("5 seeds", cost=5)])
        >>> [level["name"] for level in policy.spec["levels"]]
        ['1 seed', '5 seeds']
    """

    name: str
    noise: float | None = None
    cost: float = 1.0

    def __post_init__(self) -> None:
        pythonic(self)
        if not isinstance(self.name, str) or not self.name:
            raise InvalidInput(f"Level({self.name!r}) has no name. Give one, such as '3 seeds'.")
        if self.noise is not None and not (is_number(self.noise) and self.noise >= 0.0):
            raise InvalidInput(
                f"Level({self.name!r}, noise={self.noise!r}) is not a variance. Give 0 or more, or None to estimate it."
            )
        if not within(self.cost, 0.0):
            raise InvalidInput(f"Level({self.name!r}, cost={self.cost!r}) is not allowed. Give a positive number.")


ONLY = Level("only")


def levels_from(given: Iterable[Level | Mapping[str, Any]]) -> tuple[Level, ...]:
    """Return levels as given or from their JSON. Raises InvalidInput if two have the same name."""
    try:
        found = tuple(level if isinstance(level, Level) else Level(**level) for level in given)
    except TypeError as error:
        raise InvalidInput(
            f"levels={given!r} is not a list of levels. Give a list of Level('3 seeds', noise=..., cost=3)."
        ) from error
    if len({level.name for level in found}) < len(found):
        raise InvalidInput(
            f"Two levels share a name: {', '.join(level.name for level in found)}. Give each its own name."
        )
    return found


def noises(levels: Sequence[Level], repeats: Mapping[str, Sequence[Array]], overall: float) -> Array:
    """Return the noise variances (k,) of the levels: the given ones, and estimates of the others.

    repeats: level name -> values of each configuration measured there more than once. overall: the noise of all values
    together, from a fit. The estimate starts from a model (the mean of c trainings costs c and has 1 / c of the
    variance, overall at the mean cost), which has the weight of two repeats.
    """
    typical = float(np.mean([level.cost for level in levels]))

    def noise(level: Level) -> float:
        if level.noise is not None:
            return level.noise
        groups = repeats.get(level.name, ())
        squares = sum(float(np.sum((group - group.mean()) ** 2)) for group in groups)
        freedom = sum(len(group) - 1 for group in groups)
        return (_NOISE_FREEDOM * (overall * typical / level.cost) + squares) / (_NOISE_FREEDOM + freedom)

    return np.array([noise(level) for level in levels])


# -- fields: a Gaussian process on finitely many points ----------------------------------------


class DenseField:
    """Means, variances and covariances at n points, with a stored covariance matrix and rank-one updates."""

    def __init__(self, mean: Array, covariance: Array, prior: float) -> None:
        self.mean, self.covariance = mean, covariance  # (n,), (n, n) symmetric in C order
        self.prior = prior  # the variance of f before any observation
        self.variance = np.maximum(covariance.diagonal(), 0.0)  # (n,), without noise

    def rows(self, block: Indices) -> Array:
        """Return covariances (b, n) of the points of a block with all points."""
        first, last = int(block[0]), int(block[-1])
        return self.covariance[first : last + 1] if last - first + 1 == len(block) else self.covariance[block]

    def observe(self, index: int, target: float, noise: float) -> None:
        """Condition on a target at a point, in place: C -= c c' / (noise + c_index). float64, because errors add up."""
        column: Array = self.covariance[index].copy()
        total = noise + column[index]
        if total > 0.0:
            # C is symmetric, so its transpose, which Fortran reads, is C itself, and dger updates it without a copy.
            blas.dger(-1.0 / total, column, column, a=self.covariance.T, overwrite_a=1)
            self.mean = self.mean + column * ((target - self.mean[index]) / total)
        self.variance = np.maximum(self.covariance.diagonal(), 0.0)

    def copy(self) -> DenseField:
        return DenseField(self.mean, self.covariance.copy(), self.prior)


class BlockedField:
    """The same for more points: the factor half = L^-1 k(X, points) (t, n), and covariances on demand."""

    def __init__(self, posterior: Posterior, points: Array, half: Array | None = None) -> None:
        self.posterior, self.points, self.prior = posterior, points, posterior.kernel.variance
        cross = posterior.kernel(posterior.X, points)
        self.half = solve_lower(posterior.factor, cross) if half is None else half
        self._settle()

    def _settle(self) -> None:
        self.mean = self.posterior.constant + self.posterior.whitened @ self.half
        self.variance = np.maximum(self.prior - np.einsum("ij,ij->j", self.half, self.half), 0.0)

    def rows(self, block: Indices) -> Array:
        covariance = self.posterior.kernel(self.points[block], self.points)
        covariance -= self.half[:, block].T @ self.half
        return covariance

    def observe(self, index: int, target: float, noise: float) -> None:
        extra = max(noise - self.posterior.noise, 0.0)
        self.posterior = self.posterior.condition(self.points[index], target, extra)
        pivot = float(self.posterior.factor[-1, -1])
        self.half = np.vstack([self.half, self.rows(np.array([index]))[0] / pivot])
        self._settle()

    def copy(self) -> BlockedField:
        return BlockedField(self.posterior, self.points, self.half)


Field = DenseField | BlockedField


def field_of(posterior: Posterior, points: Array) -> Field:
    if len(points) > DENSE:
        return BlockedField(posterior, points)
    covariance = np.ascontiguousarray(posterior.covariance(points))
    return DenseField(posterior.mean(points), covariance, posterior.kernel.variance)


# -- the surrogate -----------------------------------------------------------------------------


def data_keys(history: History, finished: FinishedTrials) -> ObservationKeys:
    trials = (history.trial(i) for i in finished)
    return tuple((t.id, t.attempt, _target(history, t.id, -np.inf), t.tags.get("level")) for t in trials)


def _target(history: History, id: int, floor: float) -> float:
    """Return sign * the value that the trial counts for, at least `floor`; `floor` if it failed or has no value."""
    trial = history.trial(id)
    value = trial.target(history.problem.goal)
    return max(value, floor) if np.isfinite(value) and trial.status is not Status.FAILED else floor


@dataclass(frozen=True, eq=False)
class SiteBelief:
    """The posterior over the sites after `seen` observations."""

    seen: int
    sites: Sites
    field: Field  # over the sites; do not change it, make a copy
    posterior: Posterior  # the same over the whole space; with fixed sites only after the first observations
    noise: Array  # (k, n) variance of an observation of each site at each level
    exact: float  # a variance that counts as 0: a smaller one cannot be reduced

    @property
    def scale(self) -> float:
        """The prior's deviation of f, in units of the target."""
        return float(np.sqrt(self.field.prior))


@dataclass(frozen=True)
class _Base:
    """Posterior and scales learnt from the first m trials."""

    posterior: Posterior
    floor: float  # lower or non-finite targets are replaced by it
    noises: Array  # (k,) of the levels
    exact: float  # a variance that counts as 0


@dataclass(eq=False)
class SiteSurrogate:
    """Builds posteriors from a log. matters: which points may be members, for representers."""

    kernel: Kernel | KernelName
    mean: float  # of the prior, units of the metric; used with a given kernel
    noise: NoiseOption
    levels: tuple[Level, ...]
    refit_every: int
    minimum: int  # trials before the kernel is learnt
    grid: GridOption
    count: int  # representers
    sets: bool  # True: the goal is a level set
    threshold: float | None  # units of the metric; None: the best, or a share of it
    matters: Matters | None = None
    _problem: Problem | None = field(init=False, default=None)
    _fixed: Memo[Sites | None] = field(init=False, default_factory=lambda: Memo(1))
    _sites: Memo[Sites] = field(init=False, default_factory=lambda: Memo(1))
    _bases: Memo[_Base] = field(init=False, default_factory=lambda: Memo(8))
    _field: tuple[Any, ObservationKeys, Field] | None = field(init=False, default=None)  # base, data beyond, result

    def belief(self, history: History, finished: FinishedTrials) -> SiteBelief | None:
        """Return the posterior after these trials; None if there are too few to learn a kernel."""
        given = isinstance(self.kernel, Kernel)
        if not given and len(finished) < self.minimum:
            return None
        self._use(history.problem)
        data, seen = data_keys(history, finished), len(finished)
        count = seen - seen % _REBASE if given else max(self.minimum, seen - seen % self.refit_every)
        key = (history.seed, data[:count])
        make = self._with_given if given else self._learnt
        base = self._bases(key, partial(make, history, finished[:count]))
        sites = self.sites_of(history.problem)
        if sites is not None:
            posterior = base.posterior
            grown = self._grown(history, finished[count:], data[count:], key, base, sites)
        else:

            def drawn() -> Sites:
                sign = history.problem.goal.sign
                known = partial(self.matters, base.posterior, count, sign) if count and self.matters else None
                return representers(history.problem.space, self.count, history.rng("design", count, 1), known)

            sites = self._sites(key, drawn)
            posterior = self._conditioned(history, finished[count:], base)
            grown = field_of(posterior, sites.points)
        own = np.array([self._noise_at(config) for config in sites.configs])
        noise = np.maximum(base.noises[:, None] + own, base.exact)
        return SiteBelief(seen, sites, grown, posterior, np.asarray(noise), base.exact)

    def sites_of(self, problem: Problem) -> Sites | None:
        """Return the sites if they do not depend on observations, else None."""
        self._use(problem)
        return self._fixed((), partial(fixed_sites, problem.space, self.grid))

    def level_of(self, history: History, id: int) -> int:
        """Return the number of the level at which a trial was measured; 0 if it has none."""
        name = history.trial(id).tags.get("level")
        return next((k for k, level in enumerate(self.levels) if level.name == name), 0)

    def _use(self, problem: Problem) -> None:
        """Clear the caches for another problem. Raises InvalidInput for a kernel of another dimension."""
        if self._problem is not problem:
            if isinstance(self.kernel, Kernel) and len(self.kernel.lengthscales) != problem.space.dim:
                raise InvalidInput(
                    f"The kernel has {len(self.kernel.lengthscales)} lengthscales, but the space has "
                    f"{problem.space.dim} coordinates (space.dim). Give one lengthscale for each."
                )
            self._field = None
            self._fixed.clear()
            self._sites.clear()
            self._bases.clear()
            self._problem = problem  # last, because Ctrl-C may come before

    def _with_given(self, history: History, finished: FinishedTrials) -> _Base:
        assert isinstance(self.kernel, Kernel)
        constant = history.problem.goal.sign * self.mean
        empty = np.zeros((0, history.problem.space.dim))
        prior = condition_on(self.kernel, empty, [], noise=0.0, constant=constant)
        spread = float(np.sqrt(self.kernel.variance))
        floor = min(constant - _CLIPPED_BEYOND * spread, self._threshold(history) - spread)
        own = np.array([level.noise or 0.0 for level in self.levels])
        base = _Base(prior, floor, own, _EXACT * self.kernel.variance)
        return replace(base, posterior=self._conditioned(history, finished, base))

    def _learnt(self, history: History, finished: FinishedTrials) -> _Base:
        assert not isinstance(self.kernel, Kernel)
        x = history.points[list(finished)]
        floor = self._floor(history, finished)
        y = np.array([_target(history, id, floor) for id in finished])
        known = [
            (self.levels[self.level_of(history, id)].noise or 0.0) + self._noise_at(history.trial(id).config)
            for id in finished
        ]
        all_known = self.noise is not None or all(level.noise is not None for level in self.levels)
        priors = Priors.default(history.problem.space.dim)
        if all_known:
            priors = replace(priors, noise=_NUGGET)
        learnt = fit(
            x, y, kernel=self.kernel, point_noise=np.array(known), priors=priors,
            rng=history.rng("fit", len(finished)), learn_from=400,
        )  # fmt: skip
        nugget = learnt.noise if all_known else 0.0
        variances = noises(self.levels, self._repeats(history, finished, floor), learnt.noise) + nugget
        base = _Base(learnt, floor, variances, max(nugget, _EXACT * learnt.kernel.variance))
        own = np.array([self._variance(history, id, base) for id in finished])
        posterior = condition_on(learnt.kernel, x, y, noise=0.0, constant=learnt.constant, point_noise=own)
        return replace(base, posterior=posterior)

    def _floor(self, history: History, finished: FinishedTrials) -> float:
        """Return the lowest target, so that very bad values do not set the scale of good ones.

        For optimisation it is the median: a learnt scale has its 0 there, and a lower value only shows that it is
        worse. For level sets it is far below the best, and as far below the threshold as the best is above.
        """
        values = np.array([_target(history, id, -np.inf) for id in finished])
        finite, threshold = values[np.isfinite(values)], self._threshold(history)
        if not len(finite):
            return threshold - 1.0 if np.isfinite(threshold) else 0.0
        best, median = float(finite.max()), float(np.median(finite))
        gap = (best - median) or best - float(finite.min()) or 1e-3 * abs(best) or 1.0
        if not self.sets:
            return best - gap
        return min(best - _CLIPPED_BEYOND * gap, 2.0 * threshold - best)

    def _threshold(self, history: History) -> float:
        return np.inf if self.threshold is None else history.problem.goal.sign * self.threshold

    def _repeats(self, history: History, finished: FinishedTrials, floor: float) -> dict[str, list[Array]]:
        """Return repeated values by level. Failed trials are left out: they contain no information about noise."""
        groups: dict[tuple[str, str], list[float]] = {}
        for id in finished:
            if (trial := history.trial(id)).status is not Status.FAILED:
                name = str(trial.tags.get("level", self.levels[0].name))
                key = (name, history.problem.space.key(trial.config))
                groups.setdefault(key, []).append(_target(history, id, floor))
        found: dict[str, list[Array]] = {}
        for (name, _), values in groups.items():
            if len(values) > 1:
                found.setdefault(name, []).append(np.array(values))
        return found

    def _variance(self, history: History, id: int, base: _Base) -> float:
        own = float(base.noises[self.level_of(history, id)]) + self._noise_at(history.trial(id).config)
        return max(own, base.exact)

    def _noise_at(self, config: Config) -> float:
        """Return the part of the noise that depends on the configuration."""
        if not callable(self.noise):
            return float(self.noise or 0.0)
        returned = self.noise(dict(config))
        try:
            variance = float(returned)
        except (TypeError, ValueError):
            variance = -1.0
        if not 0.0 <= variance < np.inf:
            raise InvalidInput(
                f"The noise function returned {returned!r} for {dict(config)!r}. Return a variance, 0 or more."
            )
        return variance

    def _grown(
        self, history: History, later: FinishedTrials, data: ObservationKeys, key: Any, base: _Base, sites: Sites
    ) -> Field:
        """Return the field after later trials, from the cached one if it is a prefix, else from the base."""
        memory = self._field
        if memory is None or memory[0] != key or memory[1] != data[: len(memory[1])]:
            memory = (key, (), field_of(base.posterior, sites.points))
        self._field = None  # Ctrl-C may leave it half changed
        grown = memory[2]
        for id in later[len(memory[1]) :]:
            site = sites.number.get(history.problem.space.key(history.trial(id).config))
            if site is not None:  # a trial of another grid has no site; the next base includes it
                grown.observe(site, _target(history, id, base.floor), self._variance(history, id, base))
        self._field = (key, data, grown)
        return grown

    def _conditioned(self, history: History, finished: FinishedTrials, base: _Base) -> Posterior:
        if not finished:
            return base.posterior
        y = [_target(history, id, base.floor) for id in finished]
        noise = [self._variance(history, id, base) for id in finished]
        return base.posterior.condition(history.points[list(finished)], y, noise)
