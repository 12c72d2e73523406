"""The belief that level-set and variance-reduction policies share: a Gaussian process over places, from the log.

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

from ..field import Field, field_of
from ..gp import Kernel, Posterior, Priors, condition_on, fit
from ..gp.kernels import Array, Kind
from ..history import History
from ..levels import Level, noises
from ..problem import Problem
from ..stages import Mask
from .places import Grid, Places, fixed_places, representers
from .surrogate import Finished

Noise = float | Callable[..., float] | None
Keys = tuple[tuple[int, int, float | None, Any], ...]  # trial, attempt, last value, level
_REBASE = (
    50  # observations after which a field under a given kernel is made anew: errors of rank-one steps add up
)
_NUGGET = 1e-6  # of the targets' variance: a known noise of 0 would leave no pivot above rounding
_FAR = 5.0  # for level sets: a value so many times as far below the best as the median counts as no worse
_MEMORY = 8  # fits


@dataclass(frozen=True, eq=False)
class Belief:
    """What is believed after `seen` observations."""

    seen: int
    places: Places
    field: Field  # over the places; not to be changed, ask for a copy
    posterior: Posterior  # the same belief anywhere; with fixed places after the first observations alone
    noise: Array  # (k, n) variance of an observation of each place at each level

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


@dataclass(eq=False)
class Outlook:
    """How a policy believes. `matters`: which points may still be what is looked for, for representers."""

    kernel: Kernel | Kind
    mean: float  # of the prior, units of the metric; of a given kernel alone
    noise: Noise
    levels: tuple[Level, ...]
    refit_every: int
    minimum: int  # trials before the kernel is learnt
    grid: Grid
    count: int  # representers
    sets: bool  # level sets are looked for
    threshold: float | None  # units of the metric; None: the best, or a share of it
    matters: Callable[[Posterior, Array, int, float], Mask] | None = None
    _problem: Problem | None = None
    _fixed: tuple[Places | None] | None = None
    _places: dict[Any, Places] = field(default_factory=dict)
    _bases: dict[Any, _Base] = field(default_factory=dict)
    _field: tuple[Any, Keys, Field] | None = None  # base, data beyond it that was observed, and the result

    def belief(self, history: History, finished: Finished) -> Belief | None:
        """After these trials; None while there are too few to learn a kernel from."""
        if not self._given and len(finished) < self.minimum:
            return None
        self._attend(history.problem)
        data = data_keys(history, finished)
        count = self._based(len(finished))
        key = (history.seed, data[:count])
        base = self._base(history, finished[:count], key)
        places = self._where(history, base, key)
        if places.fixed:
            found = self._grown(history, finished, data, count, key, base, places)
            return Belief(len(finished), places, found, base.posterior, self._noise(places, base))
        posterior = self._conditioned(history, finished[count:], base)
        found = field_of(posterior, places.points)
        return Belief(len(finished), places, found, posterior, self._noise(places, base))

    def places_of(self, problem: Problem) -> Places | None:
        """The places, where they do not depend on what was seen."""
        self._attend(problem)
        if self._fixed is None:
            self._fixed = (fixed_places(problem.space, self.grid),)
        return self._fixed[0]

    def _attend(self, problem: Problem) -> None:
        """Memory is of one problem."""
        if self._problem is not problem:
            self._problem, self._fixed, self._field = problem, None, None
            self._places.clear()
            self._bases.clear()

    # -- what the first trials taught ----------------------------------------------------

    @property
    def _given(self) -> bool:
        return isinstance(self.kernel, Kernel)

    def _based(self, seen: int) -> int:
        if self._given:
            return seen - seen % _REBASE
        return max(self.minimum, seen - seen % self.refit_every)

    def _base(self, history: History, finished: Finished, key: Any) -> _Base:
        if key not in self._bases:
            made = self._with_given(history, finished) if self._given else self._learnt(history, finished)
            while len(self._bases) >= _MEMORY:
                del self._bases[next(iter(self._bases))]
            self._bases[key] = made
        return self._bases[key]

    def _with_given(self, history: History, finished: Finished) -> _Base:
        assert isinstance(self.kernel, Kernel)
        constant = history.problem.goal.sign * self.mean
        empty = np.zeros((0, history.problem.space.dim))
        prior = condition_on(self.kernel, empty, [], noise=0.0, constant=constant)
        floor = constant - _FAR * float(np.sqrt(self.kernel.variance))
        base = _Base(prior, floor, np.array([level.noise or 0.0 for level in self.levels]))
        return replace(base, posterior=self._conditioned(history, finished, base))

    def _learnt(self, history: History, finished: Finished) -> _Base:
        assert not isinstance(self.kernel, Kernel)
        x = self._points(history, finished)
        floor = self._floor(history, finished)
        y = np.array([_target(history, id, floor) for id in finished])
        known = np.array([self._known(history, id) for id in finished])
        priors = Priors.default(history.problem.space.dim)
        if self._noises_known:
            priors = replace(priors, noise=_NUGGET)
        learnt = fit(
            x, y, kernel=self.kernel, point_noise=known, priors=priors, rng=history.rng("fit", len(finished)),
            learn_from=400,
        )  # fmt: skip
        repeats = _repeats(history, finished, floor, self.levels)
        variances = noises(self.levels, repeats, learnt.noise) + (learnt.noise if self._noises_known else 0.0)
        base = _Base(learnt, floor, variances)
        own = np.array([self._variance(history, id, base) for id in finished])
        again = condition_on(learnt.kernel, x, y, noise=0.0, constant=learnt.constant, point_noise=own)
        return replace(base, posterior=again)

    def _floor(self, history: History, finished: Finished) -> float:
        """Targets below this count as this: how bad a bad one is must not set the scale that good ones are seen on.

        The median for optimisation, as a learnt scale has its 0 there: what is worse tells only that it is. For
        level sets far below it, and as far below the threshold as the best is above.
        """
        targets = np.array([_target(history, id, -np.inf) for id in finished])
        finite = targets[np.isfinite(targets)]
        if not len(finite):
            return 0.0
        best, median = float(finite.max()), float(np.median(finite))
        gap = (best - median) or best - float(finite.min()) or 1e-3 * abs(best) or 1.0
        if not self.sets:
            return best - gap
        threshold = np.inf if self.threshold is None else history.problem.goal.sign * self.threshold
        return min(best - _FAR * gap, 2.0 * threshold - best)

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
        return float(base.noises[self.level_of(history, id)]) + self._at(history.trial(id).config)

    def _at(self, config: Any) -> float:
        """The share of the noise that belongs to the configuration."""
        if self.noise is None:
            return 0.0
        return float(self.noise(dict(config)) if callable(self.noise) else self.noise)

    def level_of(self, history: History, id: int) -> int:
        """The number of the level that a trial was measured at; the first for one that says none."""
        name = history.trial(id).tags.get("level")
        return next((k for k, level in enumerate(self.levels) if level.name == name), 0)

    def _noise(self, places: Places, base: _Base) -> Array:
        if callable(self.noise):
            own = np.array([self._at(config) for config in places.configs])
        else:
            own = np.full(len(places), float(self.noise or 0.0))
        return np.asarray(base.noises[:, None] + own)

    # -- from the base to now --------------------------------------------------------------

    def _where(self, history: History, base: _Base, key: Any) -> Places:
        found = self.places_of(history.problem)
        if found is not None:
            return found
        if key not in self._places:
            seen = len(key[-1])
            matters = partial(self._matter, history, base, seen) if seen and self.matters else None
            rng = history.rng("design", seen, 1)
            self._places = {key: representers(history.problem.space, self.count, rng, matters)}
        return self._places[key]

    def _matter(self, history: History, base: _Base, seen: int, points: Array) -> Mask:
        assert self.matters is not None
        return self.matters(base.posterior, points, seen, history.problem.goal.sign)

    def _grown(
        self,
        history: History,
        finished: Finished,
        data: Keys,
        count: int,
        key: Any,
        base: _Base,
        places: Places,
    ) -> Field:
        """The field after all: the one in memory where it is a part of the way, else from the base on."""
        rest = data[count:]
        memory = self._field
        if memory is None or memory[0] != key or memory[1] != rest[: len(memory[1])]:
            memory = (key, (), field_of(base.posterior, places.points))
        grown = memory[2]
        for id in finished[count + len(memory[1]) :]:
            place = places.number.get(history.problem.space.key(history.trial(id).config))
            if place is not None:  # a trial of another grid teaches nothing here until the next base
                grown.observe(place, _target(history, id, base.floor), self._variance(history, id, base))
        self._field = (key, rest, grown)
        return grown

    def _conditioned(self, history: History, finished: Finished, base: _Base) -> Posterior:
        if not finished:
            return base.posterior
        y = [_target(history, id, base.floor) for id in finished]
        noise = [self._variance(history, id, base) for id in finished]
        return base.posterior.condition(self._points(history, finished), y, noise)

    @staticmethod
    def _points(history: History, finished: Finished) -> Array:
        points = [history.point(id) for id in finished]
        return np.array(points).reshape(len(points), history.problem.space.dim)


def _target(history: History, id: int, floor: float) -> float:
    """sign * the last value; the floor where that is not finite, or lower."""
    values = history.trial(id).values
    last = history.problem.goal.sign * float(values[-1]) if len(values) else -np.inf
    return max(last, floor) if np.isfinite(last) else floor


def _repeats(
    history: History, finished: Finished, floor: float, levels: tuple[Level, ...]
) -> dict[str, list[Array]]:
    """Values of configurations that were measured more than once at a level."""
    groups: dict[tuple[str, str], list[float]] = {}
    for id in finished:
        trial = history.trial(id)
        name = str(trial.tags.get("level", levels[0].name))
        key = (name, history.problem.space.key(trial.config))
        groups.setdefault(key, []).append(_target(history, id, floor))
    found: dict[str, list[Array]] = {}
    for (name, _), values in groups.items():
        if len(values) > 1:
            found.setdefault(name, []).append(np.array(values))
    return found


def data_keys(history: History, finished: Finished) -> Keys:
    """What tells the data of trials apart."""
    trials = (history.trial(i) for i in finished)
    return tuple((t.id, t.attempt, _known(t.values[-1:]), t.tags.get("level")) for t in trials)


def _known(last: Array) -> float | None:
    return float(last[0]) if len(last) and np.isfinite(last[0]) else None  # NaN is unlike itself, and no key
