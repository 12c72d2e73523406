"""The methods that the paper of BO-BOS compares with and the package does not have: curve prediction and BOCA.

The first six trials of both train in full, as those of GP-UCB and BO-BOS.

`CurvePrediction` is GP-UCB whose trials end as in Domhan et al. (2015): every second epoch an ensemble predicts the
final value. Theirs has eleven families of curves and samples their parameters; this one has 24 power laws, fitted by
least squares and weighted by likelihood. If it beats the best with a probability below 5%, the trial ends, and
the surrogate gets the predicted value.

`BOCA` is that of Kandasamy et al. (2017): a process with a squared exponential kernel over configuration and epochs.
The next configuration x has the highest UCB at all N epochs, with beta = 0.5 d log(2 l t + 1), l the sum of the inverse
lengthscales. It trains for the fewest epochs n with

    sigma([x, n]) > sqrt(kappa_0) xi(n) (n / N)^q   and   xi(n) > max xi / sqrt(beta),

or for all N; xi(n) = sqrt(1 - phi(n, N)^2) with phi the correlation over epochs, and q = 1 / (d + 3). The coordinate of
epochs is log(1 + n), as that of BO-BOS. A configuration that it chooses again continues.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.stats import norm

from haltune._utils.memo import Memo
from haltune.gp import Posterior, fit
from haltune.log.decisions import Action, Move, Resume, Start, Verdict, continue_, stop
from haltune.log.events import OVER, Ended, Event, Expired, Reported, Status
from haltune.log.history import History
from haltune.log.policy import FinishedTrials, Policy
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord
from haltune.policies import GPUCB
from haltune.policies.acquisition import Surface, maximise, ucb
from haltune.policies.bayesopt import Surrogate, TrainingRows, epoch_coordinate, initial_design, targets

Array = NDArray[np.float64]
POWERS = np.geomspace(0.05, 3.0, 24)
SURE, EVERY, LEAST = 0.05, 2, 4  # a trial ends below this probability; epochs between predictions; before the first
Queries = tuple[tuple[int, float], ...]  # trials, and the epochs at which each paused; infinity: it ended


def prediction(seen: Array, horizon: int) -> tuple[float, float]:
    """Mean and deviation of the final value, by power laws a + b n^-c of the epochs seen, weighted by likelihood."""
    n = np.arange(1, len(seen) + 1, dtype=float)
    fits, ends, spread = [], [], []
    for power in POWERS:
        basis = np.stack([np.ones_like(n), n**-power], axis=1)
        inverse = np.linalg.inv(basis.T @ basis + 1e-9 * np.eye(2))
        weights = inverse @ basis.T @ seen
        last = np.array([1.0, horizon**-power])
        fits.append(float(np.square(seen - basis @ weights).sum()))
        ends.append(float(last @ weights))
        spread.append(float(1.0 + last @ inverse @ last))
    errors = np.array(fits) + 1e-8
    share = (errors / errors.min()) ** (-0.5 * len(seen))
    share /= share.sum()
    mean = float(share @ ends)
    noise = errors / max(len(seen) - 2, 1)
    variance = float(share @ (noise * np.array(spread) + np.square(np.array(ends) - mean)))
    return mean, variance**0.5


@dataclass(frozen=True)
class CurvePrediction(GPUCB):
    """GP-UCB with curve prediction."""

    def __post_init__(self) -> None:
        surrogate = Surrogate(predicted, self.refit_every, self.initial, self.beta, self.delta)
        object.__setattr__(self, "_surrogate", surrogate)

    def judge(self, state: FinishedTrials, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        epoch, best = int(trial.epoch), history.incumbent(exclude=trial.id)
        if trial.id < self.initial or epoch < LEAST or epoch % EVERY or math.isnan(best):
            return continue_("no prediction is due")
        sign = history.problem.goal.sign
        mean, deviation = prediction(sign * trial.values, int(history.problem.max_epochs or 1))
        wins = float(norm.sf((sign * best - mean) / deviation))
        told = f"P(beats {best:.4g}) = {wins:.2g}, predicted {sign * mean:.4g}"
        return stop(told, p_win=wins) if wins < SURE else continue_(told, p_win=wins)


def predicted(history: History, trial: TrialRecord) -> TrainingRows:
    """Return one row, the configuration and its final score, predicted if the trial was stopped."""
    ends = trial.counting(history.problem.goal)[-1:]
    if trial.status is Status.STOPPED and len(ends) and trial.epoch < (horizon := history.problem.max_epochs or 1):
        sign = history.problem.goal.sign
        ends = np.array([sign * prediction(sign * trial.values, int(horizon))[0]])
    y = np.clip(targets(history, ends), 0.0, 1.0)
    return np.tile(history.points[trial.id], (len(y), 1)), y


@dataclass(frozen=True)
class BOCA(Policy[Queries]):
    """Bayesian optimisation with continuous approximations, over epochs."""

    initial: int = 6
    refit_every: int = 10
    _fits: Memo[Posterior] = field(default_factory=lambda: Memo(4), init=False, repr=False, compare=False)

    def start(self, problem: Problem) -> Queries:
        return ()

    def fold(self, state: Queries, event: Event) -> Queries:
        if isinstance(event, Reported) and event.verdict.action is Action.PAUSE:
            return (*state, (event.trial, event.epoch))
        over = isinstance(event, Ended | Expired) and event.status in OVER
        return (*state, (event.trial, math.inf)) if over else state  # type: ignore[attr-defined]

    def judge(self, state: Queries, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        if trial.pause_at is not None and trial.epoch >= trial.pause_at:
            return Verdict(Action.PAUSE, f"{trial.epoch:g} epochs were chosen")
        return continue_("the chosen epochs are not over")

    def propose(self, state: Queries, history: History, rng: Generator) -> Move:
        if len(state) < self.initial:
            return initial_design(history, self.initial, rng)
        space, horizon = history.problem.space, int(history.problem.max_epochs or 1)
        posterior = self._posterior(state, history, horizon)
        scales, t = posterior.kernel.lengthscales, len(state) + 1 - self.initial
        beta = 0.5 * space.dim * math.log(2.0 * float((1.0 / scales[:-1]).sum()) * t + 1.0)
        paused = {space.key(trial.config): trial for trial in history.trials if trial.status is Status.PAUSED}
        surface = Surface(posterior, lambda mean, variance: ucb(mean, variance, beta), (1.0,))
        known = [trial.config for trial in paused.values()]
        top = history.best()
        around = [top.config] if top else []
        tried = history.tried - paused.keys()
        config = maximise(surface, space, rng, tried=tried, around=[*around, *known[-20:]]).config
        again = paused.get(space.key(config))
        epochs = cheapest(posterior, space.encode(config), horizon, beta, int(again.epoch) if again else 0)
        pause_at = float(epochs) if epochs < horizon else None
        if again is not None:
            return Resume(again.id, pause_at)
        return Start(config, pause_at, reason=f"highest UCB in full training; {epochs} epochs inform enough")

    def _posterior(self, state: Queries, history: History, horizon: int) -> Posterior:
        """The process after all queries, with the hyperparameters of the last fit, which is due every ten queries."""
        rows = [queried(history, trial, epochs, horizon) for trial, epochs in state]
        x, y = np.vstack([x for x, _ in rows]), np.concatenate([y for _, y in rows])
        due = max(self.initial, self.refit_every * (len(state) // self.refit_every))
        n = sum(len(y) for _, y in rows[:due])

        def make() -> Posterior:
            return fit(x[:n], y[:n], kernel="se", rng=history.rng("fit", due), learn_from=400)

        posterior = self._fits((history.seed, x[:n].tobytes(), y[:n].tobytes()), make)
        return posterior.condition(x[n:], y[n:]) if n < len(y) else posterior


def queried(history: History, trial: int, epochs: float, horizon: int) -> TrainingRows:
    """Return one row, the configuration with its epochs and the score there; none if it is not known."""
    record = history.trial(trial)
    last = int(np.searchsorted(record.epochs, epochs, side="right"))
    y = targets(history, record.counting(history.problem.goal)[max(last - 1, 0) : last])
    at = epoch_coordinate(record.epochs[max(last - 1, 0) : last], horizon)
    x = np.column_stack([np.tile(history.points[trial], (len(y), 1)), at])
    return x[np.isfinite(y)], y[np.isfinite(y)]


def cheapest(posterior: Posterior, point: Array, horizon: int, beta: float, known: int) -> int:
    """Return the fewest epochs, more than `known`, that inform about the end of this training; else all."""
    epochs = np.arange(known + 1, horizon + 1)
    every = epoch_coordinate(np.arange(1, horizon + 1), horizon)
    gaps = np.sqrt(1.0 - np.exp(-np.square((1.0 - every) / posterior.kernel.lengthscales[-1])))
    gap, at = gaps[known:], np.column_stack([np.tile(point, (len(epochs), 1)), every[known:]])
    unsure = np.sqrt(posterior.variance(at) / posterior.kernel.variance)
    good = (unsure > gap * (epochs / horizon) ** (1.0 / (len(point) + 3))) & (gap > gaps.max() / math.sqrt(beta))
    good[-1] = True
    return int(epochs[np.argmax(good)])
