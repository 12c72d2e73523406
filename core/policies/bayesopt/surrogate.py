"""The Gaussian process over finished trials that UCB policies share.

Its data are the trials that ended, in log order, with their scores under the scale in force.
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
from haltune.log.decisions import Verdict, go_on
from haltune.log.events import Ended, Event, Status
from haltune.log.history import History, TrialRecord
from haltune.log.scores import measured

Rows = tuple[Array, Array]  # inputs (k, d), targets (k,)
Keys = tuple[tuple[int, int, int, float | None], ...]  # trial, attempt, reports, last value
Finished = tuple[int, ...]  # ids of the trials that ended with something learnt, in log order
_MARKS = (0.02, 0.2, 0.4, 0.6, 0.8)  # epochs 1, 10, 20, 30, 40 of 50: BO-BOS, appendix D


def fold_finished(finished: Finished, event: Event) -> Finished:
    """Append the trial of an `Ended` event that completed or was stopped."""
    if isinstance(event, Ended) and event.status in (Status.COMPLETED, Status.STOPPED):
        return (*finished, event.trial)
    return finished


@dataclass(eq=False)
class Surrogate:
    """Posteriors by their data."""

    rows: Callable[[History, TrialRecord], Rows]  # what one trial contributes
    refit_every: int  # trials; until the first so many, every trial is a fit
    minimum: int  # trials before the first fit
    _fits: Memo[Posterior | None] = field(init=False)

    def __post_init__(self) -> None:
        self._fits = Memo(2 * self.refit_every + 1)

    def posterior(self, history: History, finished: Finished) -> Posterior | None:
        """The belief after `finished`; None while fewer than `minimum` trials taught anything."""
        if len(finished) < self.minimum:
            return None
        data = _data_keys(history, finished)
        every = self.refit_every if len(finished) >= self.refit_every else 1
        fitted = max(self.minimum, every * (len(finished) // every))
        key = (history.seed, _scale_key(history), data[:fitted])
        posterior = self._fits(key, partial(self._fitted, history, finished[:fitted]))
        for n in range(fitted, len(finished)):
            key = (history.seed, _scale_key(history), data[: n + 1])
            posterior = posterior and self._fits(
                key, partial(self._extended, history, finished[n], posterior)
            )
        return posterior

    def _fitted(self, history: History, finished: Finished) -> Posterior | None:
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


def _data_keys(history: History, finished: Finished) -> Keys:
    """What tells the data of trials apart: a schedule shows the same trials up to another rung, or trained again."""
    trials = (history.trial(i) for i in finished)
    return tuple((t.id, t.attempt, len(t.values), _known(t.values[-1:])) for t in trials)


def _known(last: Array) -> float | None:
    return float(last[0]) if len(last) and np.isfinite(last[0]) else None  # NaN is unlike itself, and no key


def _stack(rows: Sequence[Rows]) -> Rows:
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


def marked_rows(history: History, trial: TrialRecord) -> Rows:
    """Rows [x, epoch_coordinate(n)] with scores, at the marked epochs before the last and at the last."""
    return _rows_at(history, trial, _MARKS)


def late_rows(history: History, trial: TrialRecord) -> Rows:
    """The same without the first epoch: so unlike the others that it shortens the lengthscale for all."""
    return _rows_at(history, trial, _MARKS[1:])


def _rows_at(history: History, trial: TrialRecord, shares: Sequence[float]) -> Rows:
    horizon = float(history.problem.max_epochs or 1)
    marks = {max(1.0, float(round(share * horizon))) for share in shares}
    chosen = [i for i, n in enumerate(trial.epochs) if n in marks or i == len(trial.epochs) - 1]
    y = targets(history, trial.counting(history.problem.goal)[chosen])
    known = np.isfinite(y)
    x = np.tile(history.point(trial.id), (len(chosen), 1))
    return np.column_stack([x, epoch_coordinate(trial.epochs[chosen], horizon)])[known], y[known]


def certain_enough(
    before: Posterior | None, history: History, trial: TrialRecord, kappa: float, verdict: Verdict
) -> Verdict:
    """C2 of BO-BOS: a stop at epoch n stands only if sigma([x, N]) <= kappa sigma([x, n]).

    before: the belief over [x, epoch_coordinate(n)] of the trials that ended before this one; without it a stop stands.
    """
    if before is None:
        return verdict
    x = history.point(trial.id)
    place = epoch_coordinate(trial.epoch, float(history.problem.max_epochs or 1))
    end, now = np.sqrt(before.variance(np.vstack([np.append(x, 1.0), np.append(x, place)])))
    evidence = {**verdict.evidence, "sd_end": float(end), "sd_now": float(now), "kappa": kappa}
    if end <= kappa * now:
        return Verdict(verdict.action, verdict.reason, evidence)
    reason = (
        f"would stop, but the surrogate knows too little: sd {end:.3g} at the end > {kappa:g} x {now:.3g} now"
    )
    return go_on(reason, **evidence)
