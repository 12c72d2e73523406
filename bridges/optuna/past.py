"""The trials of an Optuna study that are over, as optimal stopping asks of a history.

What it says follows from these trials, the one that is judged and the seed alone: whatever thread or process sees the
same trials decides alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from haltune.log.events import Status
from haltune.log.history import PURPOSES
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord
from haltune.log.scores import Scale, given, learn, measured

from .curves import ENDS, FrozenTrial, curve_of


def record_of(trial: FrozenTrial, problem: Problem, scale: Scale | None = None) -> TrialRecord:
    """A trial as it is judged: the epochs of its curve within the horizon. Its configuration says nothing here."""
    curve = curve_of(trial)
    horizon = problem.max_epochs or math.inf
    epochs = np.array([float(n) for n in curve if n <= horizon])
    values = np.array([curve[int(n)] for n in epochs])
    scores = np.full(len(values), np.nan) if scale is None else scale.score(values)
    status = ENDS.get(trial.state, Status.RUNNING)
    return TrialRecord(
        id=trial.number, config={}, until=problem.max_epochs, epochs=epochs, values=values, scores=scores,
        seconds=np.ones(len(epochs)), metrics={}, status=status, attempt=1, tags={},
    )  # fmt: skip


@dataclass(frozen=True)
class Past:
    """A study's trials as the runs beside the one that is judged: `haltune.policies.bobos.halting.Runs`."""

    problem: Problem
    seed: int
    trials: Sequence[TrialRecord]  # that are over and have a curve

    def with_status(self, *status: Status) -> list[TrialRecord]:
        """Those in one of these states."""
        return [t for t in self.trials if t.status in status]

    def incumbent(self, exclude: int | None = None) -> float:
        """The best that another came to, raw; NaN when there is none."""
        results = [t.result(self.problem.goal) for t in self.trials if t.id != exclude]
        sign = self.problem.goal.sign
        return sign * max((sign * r for r in results if not math.isnan(r)), default=math.nan)

    def scale_of(self, trial: int) -> Scale | None:
        """One for all: of the goal's bounds, or learnt from the trials that are over."""
        return self._scale

    @cached_property
    def _scale(self) -> Scale | None:
        goal = self.problem.goal
        if goal.bounds is not None:
            return given(goal)
        heights = [goal.sign * measured(t.values) for t in self.trials]
        known = [h[np.isfinite(h)] for h in heights]
        firsts = [float(h[0]) for h in known if len(h)]
        return learn(firsts, max((float(h.max()) for h in known if len(h)), default=-math.inf), goal.sign)

    def rng(self, purpose: str, *keys: int) -> np.random.Generator:
        """As a history's, by the number of the trial."""
        return np.random.default_rng([self.seed, PURPOSES[purpose], *keys])
