"""GP-UCB: train in full where mean plus scaled deviation is highest (Srinivas et al. 2010).

x_t = argmax mu_{t-1}(x) + sqrt(beta_t) sigma_{t-1}(x). Theorem 1 there: beta_t =
2 log(|D| t^2 pi^2 / (6 delta)) on a finite domain D. It is far too wide in practice; the
scaled form divides it by 5 (their section 6), and is 0.2 d log(2 t) on a continuous
domain of d coordinates (Kandasamy et al. 2015).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.random import Generator

from haltune._utils.checks import MOST_POINTS, check_whole, is_number
from haltune._utils.words import short
from haltune.errors import InvalidInput
from haltune.gp import Posterior
from haltune.log.decisions import Move, Start
from haltune.log.events import Event, Status
from haltune.log.fold import FinishedTrials, fold_over
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord
from haltune.policies.random import fresh
from haltune.space import Space

from .acquisition import Surface, chosen_to, ucb
from .maximiser import maximise
from .surrogate import Surrogate, TrainingRows, hallucinate, targets

Beta = Literal["scaled", "theorem"] | float


def beta_t(beta: Beta, space: Space, t: int, delta: float) -> float:
    """The weight of the variance at the t-th proposal, t from 1."""
    if not isinstance(beta, str):
        return float(beta)
    if space.size is None:
        return 0.2 * space.dim * math.log(2 * t)
    theorem = 2.0 * math.log(space.size * t**2 * math.pi**2 / (6.0 * delta))
    return theorem if beta == "theorem" else theorem / 5.0


def check_ucb(name: str, problem: Problem, beta: Beta) -> None:
    """Raise InvalidInput when theorem 1's beta is asked for on an infinite space."""
    if beta == "theorem" and problem.space.size is None:
        raise InvalidInput(
            f"{name}(beta='theorem') needs a space with finitely many configurations; use 'scaled'"
        )


def check_options(name: str, initial: int, beta: Beta, delta: float, refit_every: int) -> None:
    """Raise InvalidInput for options outside what is allowed."""
    check_whole(name, 1, MOST_POINTS, initial=initial)
    check_whole(name, 1, refit_every=refit_every)
    good = beta in ("scaled", "theorem") if isinstance(beta, str) else is_number(beta) and beta >= 0
    if not good:
        raise InvalidInput(f"{name}(beta={beta!r}): 'scaled', 'theorem', or a number that is not negative")
    if not 0 < delta < 1:
        raise InvalidInput(f"{name}(delta={delta!r}): a probability between 0 and 1")


def initial_design(history: History, initial: int, rng: Generator) -> Start:
    """The next of `initial` scrambled Sobol configurations; a random one when that was tried already."""
    space = history.problem.space
    design = space.sample_up_to(initial, history.rng("design"), design="sobol")
    config = design[min(len(history), len(design) - 1)]
    if space.key(config) in history.tried:
        config = fresh(history, rng)
    return Start(config, reason=f"first design: {initial} spread over the space")


def propose_ucb(
    history: History, posterior: Posterior, at: tuple[float, ...], beta: float, rng: Generator
) -> Start:
    """The configuration of highest UCB, pending trials hallucinated; `at` ends every GP input."""
    space = history.problem.space
    points = [history.points[t.id] for t in history.pending]
    pending = np.array(points).reshape(len(points), space.dim)
    believed = hallucinate(posterior, np.hstack([pending, np.tile(np.array(at), (len(pending), 1))]))
    surface = Surface(believed, lambda mean, variance: ucb(mean, variance, beta), at)
    top = history.best()
    around = [top.config] if top else []
    choice = maximise(surface, space, rng, tried=history.tried, around=around)
    point = np.append(space.encode(choice.config), at)[None]
    mean, variance = (float(v[0]) for v in believed.predict(point))
    again = (
        "; every configuration found has been tried, this one is trained again" if choice.exhausted else ""
    )
    scale, sign = history.scale, history.problem.goal.sign
    width, zero = (1.0, 0.0) if scale is None else (scale.high - scale.low, scale.low)
    value, bound = (sign * (zero + score * width) for score in (mean, choice.value))
    reason = (
        f"{chosen_to(history, value, width * math.sqrt(variance))}; "
        f"{'highest' if sign > 0 else 'lowest'} of all {math.sqrt(beta):.2f} deviations away: {short(bound)}"
    )
    evidence = {"mean": mean, "sd": math.sqrt(variance), "beta": beta, "ucb": choice.value}
    return Start(choice.config, reason=reason + again, evidence=evidence)


@dataclass(frozen=True)
class GPUCB(Policy[FinishedTrials]):
    """GP-UCB: a Gaussian process over final scores chooses the next configuration, which trains in full.

    It takes the one where mean plus scaled deviation is highest; trials that run count as seen at their mean (GP-
    BUCB).

    Args:
        initial: Sobol configurations before the first fit. Default: 6.
        beta: weight of the variance in the upper confidence bound: "scaled", a fifth of theorem 1's of Srinivas et
            al. (2010), on a continuous space 0.2 d log(2 t); "theorem", for finite spaces; or a number. Default:
            "scaled".
        delta: probability with which theorem 1 may fail. Default: 0.1.
        refit_every: finished trials between fits of the kernel; while there are fewer, each is a fit. Default: 10.

    Raises:
        InvalidInput: for options outside these, and for theorem 1's beta on an infinite space.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import GPUCB
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, GPUCB(initial=2), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        3
    """

    initial: int = 6
    beta: Beta = "scaled"
    delta: float = 0.1
    refit_every: int = 10
    _surrogate: Surrogate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options("GPUCB", self.initial, self.beta, self.delta, self.refit_every)
        object.__setattr__(self, "_surrogate", Surrogate(_final, self.refit_every, self.initial))

    def start(self, problem: Problem) -> FinishedTrials:
        """No trial has finished. Raises InvalidInput for theorem 1's beta on an infinite space."""
        check_ucb("GPUCB", problem, self.beta)
        return ()

    def fold(self, state: FinishedTrials, event: Event) -> FinishedTrials:
        """The trials that ended, in log order."""
        return fold_over(state, event)

    def propose(self, state: FinishedTrials, history: History, rng: Generator) -> Move:
        """The initial design, then the highest UCB."""
        posterior = self._surrogate.posterior(history, state)
        if len(history) < self.initial or posterior is None:
            return initial_design(history, self.initial, rng)
        beta = beta_t(self.beta, history.problem.space, len(history) + 1, self.delta)
        return propose_ucb(history, posterior, (), beta, rng)


def _final(history: History, trial: TrialRecord) -> TrainingRows:
    """One row: the configuration and the score that the trial counts for, the worst where it failed."""
    failed = trial.status is Status.FAILED
    y = targets(history, np.array([np.nan]) if failed else trial.counting(history.problem.goal)[-1:])
    known = np.isfinite(y)
    x = np.tile(history.points[trial.id], (len(y), 1))
    return x[known], y[known]
