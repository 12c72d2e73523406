"""The Gaussian process over finished trials that UCB policies share.

Its data are the trials that ended, in log order, with their scores under the scale in force.
One that failed came to what is not measured, whatever it had reached: its place is as bad as any.
Hyperparameters are fitted on the first m of them: m is all while these are fewer than `refit_every`,
for a fit to six trials is a guess that ten more would suffer from, then its largest multiple. Later
trials condition the fit one by one. So the posterior is a function of the log alone, and a rebuilt
process finds the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from haltune._utils.arrays import Array
from haltune._utils.memo import Memo
from haltune.gp import Posterior, fit
from haltune.log.events import Status
from haltune.log.fold import FinishedTrials
from haltune.log.history import History
from haltune.log.records import TrialRecord
from haltune.log.scores import measured

TrainingRows = tuple[Array, Array]  # inputs (k, d), targets (k,)
DataKeys = tuple[tuple[int, int, int, float | None], ...]  # trial, attempt, reports, last value


@dataclass(eq=False)
class Surrogate:
    """Posteriors by their data."""

    rows: Callable[[History, TrialRecord], TrainingRows]  # what one trial contributes
    refit_every: int  # trials; until the first so many, every trial is a fit
    minimum: int  # trials before the first fit
    _fits: Memo[Posterior | None] = field(init=False)

    def __post_init__(self) -> None:
        self._fits = Memo(2 * self.refit_every + 1)

    def posterior(self, history: History, finished: FinishedTrials) -> Posterior | None:
        """The belief after `finished`; None while fewer than `minimum` trials taught anything."""
        if len(finished) < self.minimum:
            return None
        data = _data_keys(history, finished)
        every = self.refit_every if len(finished) >= self.refit_every else 1
        fitted = max(self.minimum, every * (len(finished) // every))
        known = (history.seed, history.problem.space, _scale_key(history))
        key = (known, data[:fitted])
        posterior = self._fits(key, partial(self._fitted, history, finished[:fitted]))
        for n in range(fitted, len(finished)):
            key = (known, data[: n + 1])
            posterior = posterior and self._fits(
                key, partial(self._extended, history, finished[n], posterior)
            )
        return posterior

    def _fitted(self, history: History, finished: FinishedTrials) -> Posterior | None:
        x, y = _stack([self.rows(history, history.trial(i)) for i in finished])
        return fit(x, y, rng=history.rng("fit", len(finished)), learn_from=400) if len(y) else None

    def _extended(self, history: History, trial: int, before: Posterior) -> Posterior:
        x, y = self.rows(history, history.trial(trial))
        return before.condition(x, y) if len(y) else before


def hallucinate(posterior: Posterior, points: Array) -> Posterior:
    """GP-BUCB (Desautels et al. 2014): pending points counted as observed at their posterior mean.

    The mean stays, the deviation near them shrinks, so that parallel workers spread.
    """
    return posterior.condition(points, posterior.mean(points)) if len(points) else posterior


def _scale_key(history: History) -> tuple[float, float]:
    scale = history.scale
    return (scale.low, scale.high) if scale else (0.0, 0.0)


def _data_keys(history: History, finished: FinishedTrials) -> DataKeys:
    """What tells the data of trials apart: a schedule shows the same trials up to another rung, or trained again."""
    trials = (history.trial(i) for i in finished)
    return tuple((t.id, t.attempt, len(t.values), last_value(t)) for t in trials)


def last_value(trial: TrialRecord) -> float | None:
    """What a trial that is over came to; None where that is nothing."""
    return None if trial.status is Status.FAILED else last_known(trial.values[-1:])


def last_known(last: Array) -> float | None:
    return float(last[0]) if len(last) and np.isfinite(last[0]) else None  # NaN is unlike itself, and no key


def _stack(rows: Sequence[TrainingRows]) -> TrainingRows:
    return np.vstack([x for x, _ in rows]), np.concatenate([y for _, y in rows])


def targets(history: History, values: Array) -> Array:
    """Scores of raw values under the scale in force now; what is not measured scores 0, the worst."""
    scale, known = history.scale, measured(values)
    return history.problem.goal.sign * known if scale is None else scale.score(known)


def epoch_coordinate(epochs: ArrayLike, horizon: float) -> Array:
    """log(1 + n) / log(1 + N) on [0, 1]: the coordinate of epochs n of a horizon N, of any shape.

    Curves change by the doubling, so that on n / N a run stopped at an eighth says next to nothing
    about the end: the search then proposes what it has already seen lose, again and again.
    """
    return np.asarray(np.log1p(np.asarray(epochs, dtype=np.float64)) / np.log1p(horizon))
