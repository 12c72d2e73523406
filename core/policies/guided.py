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
from haltune._utils.checks import MOST_POINTS, check_whole
from haltune._utils.memo import Memo
from haltune.display import plural
from haltune.errors import InvalidInput
from haltune.gp import Posterior, fit
from haltune.log.decisions import AUDIT, Move, Start
from haltune.log.events import Event
from haltune.log.history import History
from haltune.log.policy import Policy, Wrapper, check_policy
from haltune.log.problem import Problem
from haltune.policies.bayesopt import chosen_to, epoch_coordinate, hallucinate
from haltune.policies.hyperband.policy import Ladder
from haltune.policies.multifidelity.stage_process import (
    CurveRows,
    CurveTable,
    TargetScale,
    candidates,
    first_untried,
    fitted,
)

State = tuple[Any, CurveRows]  # the inner policy's, and what the model learns from
_LEARN_FROM = 120  # rows that hyperparameters are learnt from
_KEEP = 500  # rows that a fit keeps: a decision costs as much in a long search


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
        object.__setattr__(self, "policy", check_policy("Guided wraps a policy such as Ladder()", self.policy))
        check_whole("Guided", 2, MOST_POINTS, initial=self.initial)
        check_whole("Guided", 3, MOST_POINTS, candidates=self.candidates)
        if not 0 <= self.deviations < np.inf:
            raise InvalidInput(f"Guided(deviations={self.deviations!r}): a number that is not negative")
        if not 0 <= self.share <= 1:
            raise InvalidInput(f"Guided(share={self.share!r}): from 0 to 1")

    @property
    def spec(self) -> dict[str, Any]:
        options = {name: getattr(self, name) for name in ("initial", "deviations", "share", "candidates")}
        return {"policy": "Guided", "inner": self.policy.spec, **options}

    def inside(self, state: State) -> Any:
        return state[0]

    def start(self, problem: Problem) -> State:
        if problem.max_epochs is None:
            raise InvalidInput("Guided needs a horizon: give the Problem max_epochs")
        return self.policy.start(problem), CurveRows(problem.goal)

    def fold(self, state: State, event: Event) -> State:
        state[1].take(event)
        return self.policy.fold(state[0], event), state[1]

    def propose(self, state: State, history: History, rng: Generator) -> Move:
        """The policy's move; a new configuration is the model's choice."""
        move = self.policy.propose(state[0], history, rng)
        if not isinstance(move, Start) or move.repeats:  # a winner that trains anew stays as it is
            return move
        if len(history) < self.initial or rng.random() < self.share:
            return move
        rows = state[1].table
        m = fitted(len(rows), self.initial)
        known = rows.upto(m)
        first = known.value[known.trial < self.initial]
        scale = TargetScale.of(known.value, first, history.problem.goal.sign)
        if scale is None:
            return move
        points = candidates(history, rows, self.candidates, rng)
        mean, variance = self._posterior(history, rows, m, scale).predict(_at_end(points))
        value = mean + self.deviations * np.sqrt(variance)
        if (found := first_untried(history, points, value)) is None:
            return move
        best, config = found
        expected, sd = scale.value(float(mean[best])), scale.width * float(variance[best]) ** 0.5
        evidence = {"mean": expected, "sd": sd, "ucb": scale.value(float(value[best])), "rows": len(rows)}
        if AUDIT in move.evidence:
            evidence[AUDIT] = move.evidence[AUDIT]  # what the policy inside declared
        reason = chosen_to(history, expected, sd, plural(len(rows), "value"))
        return replace(move, config=config, reason=reason, evidence=evidence)

    def _posterior(self, history: History, rows: CurveTable, m: int, scale: TargetScale) -> Posterior:
        """Hyperparameters fitted to the first m rows, the rest conditioned on, pending trials hallucinated.

        The inputs are [x, epoch_coordinate(n)] of each row; what diverged is known at the horizon: it stays so.
        """
        horizon = float(history.problem.max_epochs or 1)
        epochs = np.where(np.isfinite(rows.value), rows.epoch, horizon)
        x = np.column_stack([history.points[rows.trial], epoch_coordinate(epochs, horizon)])
        y = scale.targets(rows.value)

        def fitted_to_m() -> Posterior:
            rng = history.rng("fit", m)
            return fit(x[:m], y[:m], rng=rng, starts=1, learn_from=_LEARN_FROM, limit=_KEEP)

        posterior = self._fits((history.seed, x[:m].tobytes(), y[:m].tobytes()), fitted_to_m)
        if len(y) > m:
            posterior = posterior.condition(x[m:], y[m:])
        return hallucinate(posterior, _at_end(history.points[[t.id for t in history.pending]]))


def _at_end(points: Array) -> Array:
    return np.hstack([points, np.ones((len(points), 1))])
