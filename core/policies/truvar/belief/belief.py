"""The belief that level-set and variance-reduction policies share: a Gaussian process over sites, from the log.

Targets are sign * value, in the metric's own units, so that a threshold means what it says. The kernel is given, or
learnt on the first m finished trials, m the largest multiple of `refit_every`; later ones condition it one by one.
What is held in memory only saves work: the same log prefix gives the same bits without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from haltune._utils.arrays import Array, Mask
from haltune._utils.memo import Memo
from haltune.errors import InvalidInput
from haltune.gp import Kernel, Posterior, Priors, condition_on, fit
from haltune.gp.kernels import KernelName
from haltune.log.fold import FinishedTrials
from haltune.log.history import History
from haltune.log.problem import Problem

from .field import Field, field_of
from .levels import Level, noises
from .observations import ObservationKeys, data_keys, repeats, target
from .sites import GridOption, Sites, fixed_sites, representers

NoiseOption = float | Callable[..., float] | None
Matters = Callable[[Posterior, Array, int, float], Mask]  # posterior, points, observations, sign of the goal
_REBASE = (
    50  # observations after which a field under a given kernel is made anew: errors of rank-one steps add up
)
_NUGGET = 1e-6  # of the targets' variance: a known noise of 0 would leave no pivot above rounding
_EXACT = (
    1e-10  # of the prior variance: what stands for a noise of 0 under a given kernel, and for less than this
)
_CLIPPED_BEYOND = (
    5.0  # for level sets: a value so many times as far below the best as the median counts as no worse
)


@dataclass(frozen=True, eq=False)
class SiteBelief:
    """What is believed after `seen` observations."""

    seen: int
    sites: Sites
    field: Field  # over the sites; not to be changed, ask for a copy
    posterior: Posterior  # the same belief anywhere; with fixed sites after the first observations alone
    noise: Array  # (k, n) variance of an observation of each site at each level
    exact: float  # the variance that stands for 0: what is known as well as this cannot be known better

    @property
    def scale(self) -> float:
        """The prior's deviation of f, in units of the target."""
        return float(np.sqrt(self.field.prior))


@dataclass(frozen=True)
class _Base:
    """What the first m trials taught."""

    posterior: Posterior
    floor: float  # targets below it, or not finite, count as this
    noises: Array  # (k,) of the levels
    exact: float  # the variance that stands for 0


@dataclass(eq=False)
class SiteSurrogate:
    """How a policy believes. `matters`: which points may still be what is looked for, for representers."""

    kernel: Kernel | KernelName
    mean: float  # of the prior, units of the metric; of a given kernel alone
    noise: NoiseOption
    levels: tuple[Level, ...]
    refit_every: int
    minimum: int  # trials before the kernel is learnt
    grid: GridOption
    count: int  # representers
    sets: bool  # level sets are looked for
    threshold: float | None  # units of the metric; None: the best, or a share of it
    matters: Matters | None = None
    _problem: Problem | None = None
    _fixed: tuple[Sites | None] | None = None
    _sites: Memo[Sites] = field(default_factory=lambda: Memo(1))
    _bases: Memo[_Base] = field(default_factory=lambda: Memo(8))
    _field: tuple[Any, ObservationKeys, Field] | None = (
        None  # base, data beyond it that was observed, and the result
    )

    def belief(self, history: History, finished: FinishedTrials) -> SiteBelief | None:
        """After these trials; None while there are too few to learn a kernel from."""
        if not self._given and len(finished) < self.minimum:
            return None
        self._attend(history.problem)
        data = data_keys(history, finished)
        count = self._based(len(finished))
        key = (history.seed, data[:count])
        make = self._with_given if self._given else self._learnt
        base = self._bases(key, partial(make, history, finished[:count]))
        sites = self._where(history, base, key)
        if sites.fixed:
            found = self._grown(history, finished, data, count, key, base, sites)
            return SiteBelief(
                len(finished), sites, found, base.posterior, self._noise(sites, base), base.exact
            )
        posterior = self._conditioned(history, finished[count:], base)
        found = field_of(posterior, sites.points)
        return SiteBelief(len(finished), sites, found, posterior, self._noise(sites, base), base.exact)

    def sites_of(self, problem: Problem) -> Sites | None:
        """The sites, where they do not depend on what was seen."""
        self._attend(problem)
        if self._fixed is None:
            self._fixed = (fixed_sites(problem.space, self.grid),)
        return self._fixed[0]

    def towards(self, threshold: float | None, sets: bool, matters: Matters) -> SiteSurrogate:
        """The same for another question."""
        return SiteSurrogate(
            self.kernel, self.mean, self.noise, self.levels, self.refit_every, self.minimum, self.grid, self.count,
            sets, threshold, matters,
        )  # fmt: skip

    def _attend(self, problem: Problem) -> None:
        """Memory is of one problem. Raises InvalidInput for a kernel of another dimension."""
        if self._problem is not problem:
            if isinstance(self.kernel, Kernel) and len(self.kernel.lengthscales) != problem.space.dim:
                raise InvalidInput(
                    f"kernel: {len(self.kernel.lengthscales)} lengthscales, and the space has {problem.space.dim} "
                    "coordinates (space.dim), each of which has one"
                )
            self._problem, self._fixed, self._field = problem, None, None
            self._sites.clear()
            self._bases.clear()

    # -- what the first trials taught ----------------------------------------------------

    @property
    def _given(self) -> bool:
        return isinstance(self.kernel, Kernel)

    def _based(self, seen: int) -> int:
        if self._given:
            return seen - seen % _REBASE
        return max(self.minimum, seen - seen % self.refit_every)

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
        x = self._points(history, finished)
        floor = self._floor(history, finished)
        y = np.array([target(history, id, floor) for id in finished])
        known = np.array([self._known(history, id) for id in finished])
        priors = Priors.default(history.problem.space.dim)
        if self._noises_known:
            priors = replace(priors, noise=_NUGGET)
        learnt = fit(
            x, y, kernel=self.kernel, point_noise=known, priors=priors, rng=history.rng("fit", len(finished)),
            learn_from=400,
        )  # fmt: skip
        again = repeats(history, finished, floor, self.levels)
        nugget = learnt.noise if self._noises_known else 0.0
        variances = noises(self.levels, again, learnt.noise) + nugget
        base = _Base(learnt, floor, variances, max(nugget, _EXACT * learnt.kernel.variance))
        own = np.array([self._variance(history, id, base) for id in finished])
        posterior = condition_on(learnt.kernel, x, y, noise=0.0, constant=learnt.constant, point_noise=own)
        return replace(base, posterior=posterior)

    def _floor(self, history: History, finished: FinishedTrials) -> float:
        """Targets below this count as this: how bad a bad one is must not set the scale that good ones are seen on.

        The median for optimisation, as a learnt scale has its 0 there: what is worse tells only that it is. For
        level sets far below it, and as far below the threshold as the best is above.
        """
        targets = np.array([target(history, id, -np.inf) for id in finished])
        finite, threshold = targets[np.isfinite(targets)], self._threshold(history)
        if not len(finite):
            return threshold - 1.0 if np.isfinite(threshold) else 0.0
        best, median = float(finite.max()), float(np.median(finite))
        gap = (best - median) or best - float(finite.min()) or 1e-3 * abs(best) or 1.0
        if not self.sets:
            return best - gap
        return min(best - _CLIPPED_BEYOND * gap, 2.0 * threshold - best)

    def _threshold(self, history: History) -> float:
        """Of the target; infinite where there is none."""
        return np.inf if self.threshold is None else history.problem.goal.sign * self.threshold

    # -- noise ---------------------------------------------------------------------------

    @property
    def _noises_known(self) -> bool:
        return self.noise is not None or all(level.noise is not None for level in self.levels)

    def _known(self, history: History, id: int) -> float:
        """Variance that is known of a trial's observation."""
        own = self.levels[self.level_of(history, id)].noise
        return (own or 0.0) + self._at(history.trial(id).config)

    def _variance(self, history: History, id: int, base: _Base) -> float:
        """Variance of a trial's observation as the base sees it."""
        own = float(base.noises[self.level_of(history, id)]) + self._at(history.trial(id).config)
        return max(own, base.exact)

    def _at(self, config: Any) -> float:
        """The share of the noise that belongs to the configuration."""
        if not callable(self.noise):
            return float(self.noise or 0.0)
        said = self.noise(dict(config))
        try:
            variance = float(said)
        except (TypeError, ValueError):
            variance = -1.0
        if not 0.0 <= variance < np.inf:
            raise InvalidInput(
                f"the noise function says {said!r} for {dict(config)!r}: a variance, 0 or more"
            )
        return variance

    def level_of(self, history: History, id: int) -> int:
        """The number of the level that a trial was measured at; the first for one that says none."""
        name = history.trial(id).tags.get("level")
        return next((k for k, level in enumerate(self.levels) if level.name == name), 0)

    def _noise(self, sites: Sites, base: _Base) -> Array:
        if callable(self.noise):
            own = np.array([self._at(config) for config in sites.configs])
        else:
            own = np.full(len(sites), float(self.noise or 0.0))
        return np.asarray(np.maximum(base.noises[:, None] + own, base.exact))

    # -- from the base to now --------------------------------------------------------------

    def _where(self, history: History, base: _Base, key: Any) -> Sites:
        found = self.sites_of(history.problem)
        if found is not None:
            return found
        seen = len(key[-1])
        matters = partial(self._matter, history, base, seen) if seen and self.matters else None
        rng = history.rng("design", seen, 1)
        return self._sites(key, partial(representers, history.problem.space, self.count, rng, matters))

    def _matter(self, history: History, base: _Base, seen: int, points: Array) -> Mask:
        assert self.matters is not None
        return self.matters(base.posterior, points, seen, history.problem.goal.sign)

    def _grown(
        self,
        history: History,
        finished: FinishedTrials,
        data: ObservationKeys,
        count: int,
        key: Any,
        base: _Base,
        sites: Sites,
    ) -> Field:
        """The field after all: the one in memory where it is a part of the way, else from the base on."""
        rest = data[count:]
        memory = self._field
        if memory is None or memory[0] != key or memory[1] != rest[: len(memory[1])]:
            memory = (key, (), field_of(base.posterior, sites.points))
        grown = memory[2]
        for id in finished[count + len(memory[1]) :]:
            site = sites.number.get(history.problem.space.key(history.trial(id).config))
            if site is not None:  # a trial of another grid teaches nothing here until the next base
                grown.observe(site, target(history, id, base.floor), self._variance(history, id, base))
        self._field = (key, rest, grown)
        return grown

    def _conditioned(self, history: History, finished: FinishedTrials, base: _Base) -> Posterior:
        if not finished:
            return base.posterior
        y = [target(history, id, base.floor) for id in finished]
        noise = [self._variance(history, id, base) for id in finished]
        return base.posterior.condition(self._points(history, finished), y, noise)

    @staticmethod
    def _points(history: History, finished: FinishedTrials) -> Array:
        points = [history.points[id] for id in finished]
        return np.array(points).reshape(len(points), history.problem.space.dim)
