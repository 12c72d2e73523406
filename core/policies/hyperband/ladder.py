"""Ladder: asynchronous successive halving on one ladder of rungs that all trials share.

A trial goes on when it is in the top share of all that ever arrived at its rung: what lost early may still go on when
those that come later turn out worse. No trial continues before `min_trials_per_rung` trials were compared at the first
rung, so that the first promotions are as well founded as in a bracket of that size; after that nobody waits for anybody
(Li et al. 2020, ASHA, from which min_trials_per_rung and the sharper first cut differ).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from typing import Any

from numpy.random import Generator

from haltune._utils.checks import check_whole
from haltune._utils.memo import Memo
from haltune.errors import InvalidInput
from haltune.errors.old_names import takes_old_names
from haltune.log.decisions import Move, Verdict
from haltune.log.events import Event
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord

from .asynchronous import Climber
from .brackets import Bracket, Rung, exact
from .climb import Climb
from .plan import Plan
from .sampler import Design, Sampler

FEWEST_COMPARED, MOST_COMPARED = 8, 40  # limits of the usual min_trials_per_rung


@takes_old_names
@dataclass(frozen=True)
class Ladder(Policy[Climb]):
    """Asynchronous successive halving on one ladder of rungs: the best of each go on from where they paused.

    Endless. Whoever paused may still go on, so their checkpoints stay; `Study(disk_quota=)` bounds them.

    Args:
        eta: one in so many of a rung goes on. Default: 3.
        first_cut: the same of the first rung, where values say least about the end but comparisons are cheapest.
            Default: 6.
        step: ratio of the epochs of rungs: min_resource, min_resource step, min_resource step^2, ... and the horizon.
            Default: 3.
        min_trials_per_rung: trials at the first rung before any goes on. Default: None, as many as cost four fifths of
            a full training, from 8 to 40.
        min_resource: epochs of the first rung, at least the study's min_epochs. Default: 1.
        sampler: "random", "sobol", "lhs", or a policy such as GPUCB(), as Hyperband's; `Guided(Ladder())` chooses
            configurations by all that was seen. Default: "random".

    Raises:
        InvalidInput: for options outside these, and for a problem without a horizon.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import Ladder
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, Ladder(min_trials_per_rung=2), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        3
    """

    eta: float = 3
    first_cut: float = 6
    step: int = 3
    min_trials_per_rung: int | None = field(default=None, kw_only=True)
    min_resource: int = field(default=1, kw_only=True)
    sampler: Design | Policy[Any] = field(default="random", kw_only=True)

    plans = True  # by the budget: what may begin
    _climbers: Memo[Climber] = field(default_factory=lambda: Memo(4), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_cuts("Ladder", eta=self.eta, first_cut=self.first_cut)
        check_whole("Ladder", 2, step=self.step)
        if self.min_trials_per_rung is not None:
            check_whole("Ladder", 1, min_trials_per_rung=self.min_trials_per_rung)
        check_whole("Ladder", 1, min_resource=self.min_resource)
        object.__setattr__(self, "sampler", Sampler(self.sampler).source)

    def rungs(self, horizon: int, min_epochs: int = 0) -> list[int]:
        """Return the epochs at which trials are compared: 1, 3, 9, 27, and the horizon 50.

        None is below min_epochs.
        """
        return [*self._below(horizon, self._first(min_epochs)), horizon]

    def start(self, problem: Problem) -> Climb:
        """Nobody on the ladder. Raises InvalidInput without a horizon, or when the first rung is beyond it."""
        horizon = problem.max_epochs
        if horizon is None:
            raise InvalidInput("Ladder needs a horizon: give the Problem max_epochs")
        if self.min_resource > horizon:
            raise InvalidInput(f"Ladder(min_resource={self.min_resource}): at most max_epochs={horizon}")
        Sampler(self.sampler).check(problem)
        return Climb(problem.goal.sign, problem.goal.of == "best", horizon, problem.min_epochs)

    def fold(self, state: Climb, event: Event) -> Climb:
        """The ladder after `event`."""
        return self._climber(state).fold(state, event)

    def propose(self, state: Climb, history: History, rng: Generator) -> Move:
        """Who goes on at the highest rung, or a new configuration."""
        return self._climber(state).propose(state, history)

    def judge(self, state: Climb, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """On to the rung; there PAUSE, or on at once."""
        return self._climber(state).judge(state, history, trial)

    def _climber(self, state: Climb) -> Climber:
        assert state.horizon is not None  # `start` saw to it
        key = (state.horizon, state.min_epochs)
        return self._climbers(key, partial(self._climbing, *key))

    def _climbing(self, horizon: int, min_epochs: int) -> Climber:
        n = self.min_trials_per_rung or usual_min_trials(horizon, self._first(min_epochs))
        # Designs are drawn for so many configurations at a time; equal brackets share their rungs.
        bracket = Bracket(tuple(Rung(n, float(epochs)) for epochs in self.rungs(horizon, min_epochs)), 0)
        return Climber(
            Plan(repeat(bracket)), Sampler(self.sampler), "epochs", exact(self.eta), first=exact(self.first_cut),
            min_trials_per_rung=n,
        )  # fmt: skip

    def _first(self, min_epochs: int) -> int:
        """Return the epochs of the first rung."""
        return max(self.min_resource, min_epochs)

    def _below(self, horizon: int, epochs: int) -> Iterator[int]:
        while epochs < horizon:
            yield epochs
            epochs *= self.step


def check_cuts(where: str, **cuts: float) -> None:
    """Raises InvalidInput for one in so many that is not above one."""
    for name, value in cuts.items():
        if not exact(value, f"{where}: {name}") > 1:
            raise InvalidInput(f"{where}({name}={value!r}): above 1; 3 or 6 are usual")


def usual_min_trials(horizon: int, epochs: int) -> int:
    """How many trials of so many epochs cost four fifths of a full training, from 8 to 40."""
    return min(MOST_COMPARED, max(FEWEST_COMPARED, 4 * horizon // (5 * epochs)))
