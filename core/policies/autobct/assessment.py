"""What AutoBCT believes of a search: its trainings on the ruler, the beliefs after them.

Observations are bounded before they enter the filter: a loss that explodes says that a control is bad, not how the
whole surface lies. A training without a score counts as no better than the worst seen; its cost counts as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.memo import Memo
from haltune._utils.threads import one_thread
from haltune.errors import InvalidInput
from haltune.log.history import History
from haltune.log.problem import Problem
from haltune.log.scores import plausible

from .controls import Controls, controls_of
from .observations import Training, in_own_units, trainings
from .prior.beliefs import Prior
from .prior.units import Ruler, Transform, cost_ends, score_ends
from .value.valuation import GridBelief, grid_belief

_LOWEST, _HIGHEST, _DEAREST = -1.0, 4.0, 10.0  # h and t beyond count as these


@dataclass(frozen=True, eq=False)
class Assessment:
    """A search as AutoBCT sees it."""

    done: Sequence[Training]
    heights: Sequence[float]  # the score expected of each training's control, each after that training
    controls: Controls
    ruler: Ruler
    beliefs: Prior
    gamma: float  # score a unit of cost
    x: GridBelief
    priced: bool  # by the user: score_per_hour

    @property
    def paid(self) -> float:
        """Seconds that all trainings cost."""
        return sum(t.paid for t in self.done)

    @property
    def own(self) -> bool:
        """Whether trainings report costs, in units of the user's."""
        return in_own_units(self.done)

    def span(self, seconds: float) -> str:
        """Seconds in words, or a cost where trainings report it in units of their own."""
        return f"{seconds:.3g} of cost" if self.own else f"{seconds:.3g} s"

    @property
    def warning(self) -> str | None:
        """That the last training lies far outside the maps, or None."""
        return self.ruler.outside(self.done[-1].value, self.done[-1].seconds) if self.done else None

    def score_of(self, seconds: float) -> float:
        """What seconds are worth in score."""
        return self.gamma * seconds / self.ruler.unit


@dataclass(frozen=True, eq=False)
class Assessor:
    """How trainings are measured. Ends and prices that are None are estimated."""

    prior: Callable[[int], Prior]  # of so many coordinates
    gamma: float
    score_per_hour: float | None
    ends: tuple[float, float] | None  # raw scores at 0 and 1
    kind: Transform
    seconds: tuple[float, float] | None  # at cost 0 and 1
    initial: int  # trainings that estimates rest on
    _desks: Memo[tuple[Controls, Prior, Array]] = field(default_factory=lambda: Memo(4), repr=False)

    def desk(self, problem: Problem) -> tuple[Controls, Prior, Array]:
        """The controls, the prior, and its basis functions at the controls (g, J)."""

        def laid() -> tuple[Controls, Prior, Array]:
            with one_thread():  # a prior that is fitted must have the same bits in every process
                controls = controls_of(problem.space)
                prior = self.prior(problem.space.dim)
            return controls, prior, prior.on(controls.points)

        # constraints are functions: the JSON of two spaces may be equal
        return laid() if problem.space.constraints else self._desks(repr(problem.space.to_json()), laid)

    def assess(self, history: History, ended: Sequence[int]) -> Assessment | None:
        """The search after these trials; None while first trainings are needed to know the maps."""
        done = _plausible(trainings(history, ended), history.problem.goal.sign)
        limited = history.recorded is not None and history.recorded.cost is not None  # known before any comes
        if self.score_per_hour is not None and (limited or in_own_units(done)):
            raise InvalidInput(
                "AutoBCT(score_per_hour=...) prices hours, and trials report costs in units of their own: give gamma=, "
                "what a unit of cost is worth, and seconds=, the costs that count 0 and 1, instead"
            )
        controls, prior, phi = self.desk(history.problem)
        ruler = self._ruler(history, done, prior)
        if ruler is None:
            return None
        beliefs, heights = _learnt(history, done, prior, ruler)
        gamma = self._weight(ruler)
        priced = self.score_per_hour is not None
        return Assessment(
            done, heights, controls, ruler, beliefs, gamma, grid_belief(beliefs, phi, gamma), priced
        )

    def _weight(self, ruler: Ruler) -> float:
        if self.score_per_hour is None:
            return self.gamma
        return self.score_per_hour * ruler.unit / 3600.0 / abs(ruler.best - ruler.worst)

    def _ruler(self, history: History, done: Sequence[Training], prior: Prior) -> Ruler | None:
        goal, bounds = history.problem.goal, history.problem.goal.bounds
        known = bounds if bounds is None or goal.sign > 0 else (bounds[1], bounds[0])
        ends = self.ends or prior.score_map
        if ends is None and self.kind == "linear":
            ends = known
        costs = self.seconds or prior.cost_map
        if ends is not None and costs is not None:
            return Ruler(*ends, self.kind, costs[0], costs[1] - costs[0])
        first = [t for t in _first(done, self.initial) if math.isfinite(t.value)]
        if not first:
            return None
        phi = prior.on(np.array([history.points[t.trials[0]] for t in first]))
        if ends is None:
            middle = float(np.mean(phi @ prior.score.mean))
            given = [[t.value for t in group] for group in (first, done)]
            ends = next((e for v in given if (e := score_ends(goal, v, middle, self.kind))), None)
        if costs is None:
            costs = cost_ends([t.seconds for t in first], list(phi @ prior.cost.mean))
        if ends is None:
            return None
        return Ruler(*ends, self.kind, costs[0], costs[1] - costs[0])


def _plausible(done: Sequence[Training], sign: float) -> Sequence[Training]:
    """Trainings whose score is absurdly bad count as those without a score."""
    values = sign * plausible([sign * t.value for t in done])
    return [replace(t, value=float(value)) for t, value in zip(done, values, strict=True)]


def _first(done: Sequence[Training], count: int) -> Sequence[Training]:
    """The trainings that estimates rest on: so many, or more until one has a finite value; none while there are fewer.

    What failed at once says nothing of what a training costs.
    """
    finite = next((i for i, t in enumerate(done) if math.isfinite(t.value)), None)
    return [] if finite is None or len(done) < count else done[: max(count, finite + 1)]


def check_direction(ends: tuple[float, float] | None, problem: Problem) -> None:
    """Raises InvalidInput when `best` is on the wrong side of `worst` for the goal."""
    if ends is not None and not problem.goal.better(ends[1], ends[0]):
        verb = "Maximize" if problem.goal.sign > 0 else "Minimize"
        raise InvalidInput(
            f"AutoBCT(worst={ends[0]:g}, best={ends[1]:g}) under {verb}({problem.goal.metric!r}): best must be better"
        )


def _learnt(
    history: History, done: Sequence[Training], prior: Prior, ruler: Ruler
) -> tuple[Prior, list[float]]:
    """The beliefs after the trainings, and what each made of its own control."""
    heights: list[float] = []
    floor = 0.0
    for training in done:
        phi = prior.on(history.points[training.trials[0]][None])[0]
        h = ruler.h(training.value)
        observed = min(max(h, _LOWEST), _HIGHEST) if math.isfinite(h) else floor
        floor = min(floor, observed)
        extra = (training.spread * ruler.slope(training.value)) ** 2 if training.spread else 0.0
        prior = prior.observe(phi, observed, min(ruler.t(training.seconds), _DEAREST), extra)
        heights.append(float(phi @ prior.score.mean))
    return prior, heights
