"""Ladder: asynchronous successive halving on one ladder of rungs that all trials share.

A trial goes on when it is in the top share of all that ever arrived at its rung: what lost in one bracket may still
go on when later ones turn out worse. Nothing goes on before `patience` trials were compared at the first rung, so that
the first promotions are as well founded as in a bracket of that size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any

from numpy.random import Generator

from haltune.decisions import Move, Verdict
from haltune.errors import InvalidInput
from haltune.events import Event
from haltune.history import History, TrialRecord
from haltune.policies.asynchronous import Climb, Climber, Place
from haltune.policies.sampling import Sampler
from haltune.problem import Problem
from haltune.schedules import Bracket, Rung

ENDLESS = 10**9  # configurations of the one bracket
_NOBODY = Fraction(10**9)  # one of so many goes on


@dataclass(frozen=True)
class Patient(Climber):
    """A climber with a share for each rung, which promotes nobody before `patience` trials arrived at the first."""

    patience: int = 1
    cuts: tuple[Fraction, ...] = ()  # of each rung but the last, one of so many goes on

    def propose(self, state: Climb, history: History) -> Move:
        """The promotion at the highest rung, or a new configuration."""
        for bracket, steps in state.ladders.items():
            for rung in range(len(steps) - 2, -1, -1):
                cutting = replace(self, eta=self._cut(state, bracket, rung))
                if (id := cutting._promotable(steps[rung], history)) is not None:
                    return cutting._promotion(state, bracket, rung + 1, id, history)
        return self._new(state, history)

    def _ranked(self, state: Climb, history: History, place: Place, trial: int, score: float) -> Verdict:
        cutting = replace(self, eta=self._cut(state, place.bracket, place.rung))
        return Climber._ranked(cutting, state, history, place, trial, score)

    def _cut(self, state: Climb, bracket: Bracket, rung: int) -> Fraction:
        return self.cuts[rung] if state.ladders[bracket][0].count >= self.patience else _NOBODY


@dataclass(frozen=True)
class Ladder:
    """Endless; rungs at 1, step, step^2, ... epochs and the horizon.

    patience: trials at the first rung before any goes on. first: of the first rung one in so many goes on; eta: of
    the others. sampler: as Hyperband's. Raises InvalidInput for options outside these.
    """

    patience: int = 40
    first: float = 6
    eta: float = 3
    step: int = 3
    sampler: Any = "random"

    endless = True
    best_anywhere = True

    def __post_init__(self) -> None:
        if not (self.patience >= 1 and self.first > 1 and self.eta > 1 and self.step >= 2):
            raise InvalidInput(
                f"Ladder(patience={self.patience}, first={self.first}, eta={self.eta}, step={self.step}): patience "
                "from 1, step from 2, first and eta above 1"
            )
        Sampler(self.sampler)

    @property
    def spec(self) -> dict[str, Any]:
        """JSON that rebuilds the policy."""
        options = {f.name: getattr(self, f.name) for f in fields(self)}
        return {"policy": "Ladder", **options, "sampler": Sampler(self.sampler).spec}

    def start(self, problem: Problem) -> tuple[Patient, Climb]:
        """Nobody on the ladder. Raises InvalidInput without a horizon."""
        if problem.max_epochs is None:
            raise InvalidInput("Ladder needs a horizon: give the Problem max_epochs")
        rungs = [Rung(ENDLESS, epochs) for epochs in self._rungs(problem.max_epochs)]
        bracket = Bracket(tuple(rungs), len(rungs) - 1)
        first, eta = Fraction(str(self.first)), Fraction(str(self.eta))
        cuts = (first, *[eta] * len(rungs))
        plan, sampler = {0: bracket}.get, Sampler(self.sampler)
        climber = Patient(plan, sampler, "epochs", eta, False, self.patience, cuts)
        return climber, Climb(problem.goal.sign)

    def _rungs(self, horizon: int) -> Iterator[float]:
        epochs = 1
        while epochs < horizon:
            yield float(epochs)
            epochs *= self.step
        yield float(horizon)

    def fold(self, state: tuple[Patient, Climb], event: Event) -> tuple[Patient, Climb]:
        """The ladder after `event`."""
        climber, climb = state
        return climber, climber.fold(climb, event)

    def propose(self, state: tuple[Patient, Climb], history: History, rng: Generator) -> Move:
        """Who goes on, or a new configuration."""
        return state[0].propose(state[1], history)

    def judge(
        self, state: tuple[Patient, Climb], history: History, trial: TrialRecord, rng: Generator
    ) -> Verdict:
        """On to the rung; there PAUSE, or on at once."""
        return state[0].judge(state[1], history, trial)
