"""Guided: a policy's new configurations chosen by a Gaussian process over all that was seen, at whatever epoch.

The process lives on [x, epoch_coordinate(n)]: what lost after one epoch teaches as much about where not to look as a
full training does about where to. The policy inside decides what goes on; only its `Start`s are replaced, by the
configuration of highest mean plus deviations at the full horizon (UCB, see bayesopt.gpucb).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array
from haltune._utils.checks import check_whole
from haltune._utils.memo import Memo
from haltune._utils.words import plural
from haltune.errors import InvalidInput
from haltune.gp import Posterior, fit
from haltune.log.decisions import AUDIT, Move, Start
from haltune.log.events import Event
from haltune.log.history import History
from haltune.log.policy import Policy, Wrapper, check_policy
from haltune.log.problem import Problem
from haltune.log.scores import measured
from haltune.policies.bayesopt.surrogate import epoch_coordinate, hallucinate
from haltune.policies.hyperband.ladder import Ladder
from haltune.space import Space
from haltune.space.domains import Float

from .curve_rows import CurveRows, Row

State = tuple[Any, CurveRows]  # the inner policy's, and what the model learns from
_LEARN_FROM = 120  # rows that hyperparameters are learnt from
_KEEP = 500  # rows that a fit keeps: a decision costs as much in a long search
_STEP = (8, 100)  # rows between fits: a fifth of those there are, within these
_TOP = 5  # best trials that have neighbours among the candidates
_NEAR = 0.15  # deviation of a neighbour in the unit cube


@dataclass(frozen=True, slots=True)
class TargetScale:
    """Targets of the model: 0 at the median of the first trials, 1 at the best so far, and nothing below -1.

    So runs that diverge are as bad as any, by however much they do; were they the scale, all others would look equal.
    The median is that of trials which were not chosen for their promise: among those that are, -1 would be close by.
    """

    sign: float  # of the goal
    centre: float  # sign * value
    width: float

    @classmethod
    def of(cls, values: Array, first: Array, sign: float) -> TargetScale | None:
        """From measured values (n,), and those of them that the first trials had; None when none is finite."""
        v = sign * values[np.isfinite(values)]
        if not len(v):
            return None
        early = sign * first[np.isfinite(first)]
        centre = float(np.median(early if len(early) else v))
        width = float(v.max()) - centre
        return cls(sign, centre, width if width > 0 else max(abs(centre), 1.0))

    def targets(self, values: Array) -> Array:
        """Of measured values (n,); what is not finite is at the bottom."""
        v = np.where(np.isfinite(values), self.sign * values, -np.inf)
        with np.errstate(over="ignore"):  # divided by a small width
            return np.clip((v - self.centre) / self.width, -1.0, _ABOVE)

    def value(self, target: float) -> float:
        """The metric that a target stands for."""
        return self.sign * (self.centre + self.width * target)


_ABOVE = 10.0  # a first median and best that are nearly equal must not make the next value enormous


@dataclass(frozen=True)
class Guided(Wrapper):
    """Any policy that stops or pauses trials, with a model that chooses its new configurations.

    A Gaussian process over all that was seen, at whatever epoch, takes the place of the policy's own draws; what
    goes on, and until when, is the policy's.

    Args:
        policy: the one inside. Default: Ladder().
        initial: trials that the policy inside draws before the first fit. Default: 20.
        deviations: of the model that are added to its mean. Default: 1.
        share: of new configurations that the policy inside still draws itself, from 0 to 1. Default: 0.
        candidates: points that are compared; a third of them lie near the five best trials. Default: 300.

    Raises:
        InvalidInput: for options outside these, and for a problem without a horizon.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import Guided, Ladder
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, Guided(Ladder(), initial=2, candidates=20), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        3
    """

    policy: Policy[Any] = field(default_factory=Ladder)
    initial: int = 20
    deviations: float = 1.0
    share: float = 0.0
    candidates: int = 300
    _fits: Memo[Posterior] = field(default_factory=lambda: Memo(1), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "policy", check_policy("Guided wraps a policy such as Ladder()", self.policy)
        )
        check_whole("Guided", 2, initial=self.initial)
        check_whole("Guided", 3, candidates=self.candidates)
        if not 0 <= self.deviations < np.inf:
            raise InvalidInput(f"Guided(deviations={self.deviations!r}): a number that is not negative")
        if not 0 <= self.share <= 1:
            raise InvalidInput(f"Guided(share={self.share!r}): from 0 to 1")

    @property
    def spec(self) -> dict[str, Any]:
        """JSON that rebuilds the policy."""
        options = {name: getattr(self, name) for name in ("initial", "deviations", "share", "candidates")}
        return {"policy": "Guided", "inner": self.policy.spec, **options}

    def inside(self, state: State) -> Any:
        """The state of the policy inside."""
        return state[0]

    def start(self, problem: Problem) -> State:
        """Nothing seen. Raises InvalidInput without a horizon."""
        if problem.max_epochs is None:
            raise InvalidInput("Guided needs a horizon: give the Problem max_epochs")
        return self.policy.start(problem), CurveRows(problem.goal)

    def fold(self, state: State, event: Event) -> State:
        """The policy's fold, and what the model learns from."""
        return self.policy.fold(state[0], event), state[1].fold(event)

    def propose(self, state: State, history: History, rng: Generator) -> Move:
        """The policy's move; a new configuration is the model's choice."""
        move = self.policy.propose(state[0], history, rng)
        if not isinstance(move, Start) or move.repeats:  # a winner that trains anew stays as it is
            return move
        if len(history) < self.initial or rng.random() < self.share:
            return move
        rows = [(trial, epoch, float(measured(value))) for trial, epoch, value in state[1].listed]
        m = _fitted(len(rows), self.initial)
        values, first = _values(rows[:m]), _values([row for row in rows[:m] if row[0] < self.initial])
        scale = TargetScale.of(values, first, history.problem.goal.sign)
        return move if scale is None else self._chosen(move, history, rows, m, scale, rng)

    def _posterior(self, history: History, rows: list[Row], m: int, scale: TargetScale) -> Posterior:
        """Hyperparameters fitted to the first m rows, the rest conditioned on, pending trials hallucinated."""
        x, y = _points(history, rows), scale.targets(_values(rows))

        def fitted() -> Posterior:
            rng = history.rng("fit", m)
            return fit(x[:m], y[:m], rng=rng, starts=1, learn_from=_LEARN_FROM, limit=_KEEP)

        posterior = self._fits((history.seed, x[:m].tobytes(), y[:m].tobytes()), fitted)
        if len(y) > m:
            posterior = posterior.condition(x[m:], y[m:])
        pending = [history.point(t.id) for t in history.pending]
        return hallucinate(posterior, _at_end(np.array(pending).reshape(len(pending), x.shape[1] - 1)))

    def _chosen(
        self, move: Start, history: History, rows: list[Row], m: int, scale: TargetScale, rng: Generator
    ) -> Start:
        """The candidate of highest UCB that was not tried."""
        points = self._candidates(history, rows, rng)
        mean, variance = self._posterior(history, rows, m, scale).predict(_at_end(points))
        value = mean + self.deviations * np.sqrt(variance)
        order = (int(i) for i in np.argsort(-value, kind="stable"))
        untried = ((i, config) for i in order if (config := _open(history, points[i])) is not None)
        best, config = next(untried, (0, None))
        if config is None:
            return move
        expected, sd = scale.value(float(mean[best])), scale.width * float(variance[best]) ** 0.5
        evidence = {"mean": expected, "sd": sd, "ucb": scale.value(float(value[best])), "rows": len(rows)}
        evidence |= (
            {AUDIT: move.evidence[AUDIT]} if AUDIT in move.evidence else {}
        )  # what the policy inside declared
        name = history.problem.goal.metric
        seen = plural(len(rows), "value")
        reason = f"best in view: {name} = {expected:.4g} ± {sd:.2g} at the full horizon, from {seen}"
        return replace(move, config=config, reason=reason, evidence=evidence)

    def _candidates(self, history: History, rows: list[Row], rng: Generator) -> Array:
        """(n, d) random configurations, and neighbours of the best trials in about half of their coordinates.

        All configurations, in a space with no more.
        """
        space, near = history.problem.space, self.candidates // 3
        if space.size is not None and space.size <= self.candidates:
            return space.encode_many(space.enumerate())
        sign = history.problem.goal.sign
        ranked = sorted((-sign * value if np.isfinite(value) else np.inf, i) for i, _, value in rows)
        top = list(dict.fromkeys(i for _, i in ranked))[:_TOP]
        anywhere = rng.random((self.candidates - near, space.dim))
        base = np.array([history.point(i) for i in rng.choice(top, near)])
        moved = base + (rng.random(base.shape) < 0.5) * rng.normal(0.0, _NEAR, base.shape)
        points = np.vstack([anywhere, np.clip(moved, 0.0, 1.0)])
        return points if _free(space) else space.encode_many(space.decode_many(points))


def _free(space: Space) -> bool:
    """True when a point and its configuration are one: all coordinates are numbers that depend on no other."""
    return all(
        isinstance(d, Float) and not d.when and not isinstance(d.low, str) and not isinstance(d.high, str)
        for d in space.parameters.values()
    )


def _values(rows: list[Row]) -> Array:
    return np.array([value for _, _, value in rows])


def _points(history: History, rows: list[Row]) -> Array:
    """(n, d + 1) [x, epoch_coordinate(n)] of each row; what diverged is known at the horizon: it stays so."""
    horizon, dim = float(history.problem.max_epochs or 1), history.problem.space.dim
    x = np.array([history.point(trial) for trial, _, _ in rows]).reshape(len(rows), dim)
    epochs = np.array([epoch if np.isfinite(value) else horizon for _, epoch, value in rows])
    return np.column_stack([x, epoch_coordinate(epochs, horizon)])


def _open(history: History, point: Array) -> dict[str, Any] | None:
    """The configuration at a point, unless it breaks a constraint or was tried: asked one by one, for it is slow."""
    space = history.problem.space
    config = space.decode(point)
    return config if space.contains(config) and space.key_of_canonical(config) not in history.tried else None


def _at_end(points: Array) -> Array:
    return np.hstack([points, np.ones((len(points), 1))])


def _fitted(count: int, first: int) -> int:
    """The last number of rows at which hyperparameters were fitted."""
    m, (least, most) = first, _STEP
    while (following := m + min(most, max(least, m // 5))) <= count:
        m = following
    return min(m, count)
