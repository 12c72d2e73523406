"""BO-BOS: GP-UCB chooses the configuration, optimal stopping halts runs that will not win (Dai et al. 2019).

Algorithm 1 there. The Gaussian process lives on [x, n], the configuration and the epochs trained, these
on a log scale; the next configuration maximises its UCB at n = N. A run stops at epoch n when
C1, the stopping rule says so, and C2, sigma_{t-1}([x, N]) <= kappa sigma_{t-1}([x, n]): the surrogate
is not much less certain about the end than about now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

from numpy.random import Generator

from haltune.errors import InvalidInput
from haltune.log.decisions import AUDIT, Move, Verdict
from haltune.log.events import Event
from haltune.log.history import History
from haltune.log.policy import FinishedTrials, Policy, T, fold_over
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord
from haltune.policies.bayesopt import (
    Beta,
    Surrogate,
    beta_t,
    check_options,
    check_ucb,
    initial_design,
    propose_ucb,
)

from .halting import Audited, Marked, Stopper, check_share, declare, fold_audited, ruled
from .optimal_stopping import OptimalStopping

State = tuple[FinishedTrials, Audited]  # the trials that ended in log order, and the audited ones


@dataclass(frozen=True)
class BOBOS(Policy[State]):
    """BO-BOS: Bayesian optimisation that stops runs which will not win (Dai et al. 2019).

    GP-UCB over configurations and epochs chooses, Bayesian optimal stopping halts. "robust", to be recommended,
    solves the stopping problem again along the run, over power-law curves; "faithful" solves it once, as the paper
    does, and its surrogate keeps every first epoch, too. Its curves decay towards error 0 of the score scale: give
    the goal bounds that the best runs come close to, or none. Within (0, 1), curves that settle at an error of 0.1
    are hardly ever stopped.

    Args:
        mode: "robust" or "faithful". Default: "robust".
        K1: loss of a wrong stop at the first trial. Default: None, 500 (robust) or 100 (faithful).
        K2: loss of going on wrongly to the end. Default: 99.
        c: loss of each further epoch. Default: 1.
        growth: factor by which K1 grows from trial to trial. Default: 1/0.95, the paper's (b); 1/0.99 for feature
            selection.
        certain_from: from this trial on, counted from 1, K1 is infinite and nothing is stopped, as theorem 2's
            guarantee asks. Default: None, never.
        wrong_stop: sets K1 = (K2 + c) / wrong_stop instead: no run is stopped whose simulated chance to win is
            above it. Default: None.
        kappa: a run is stopped only where the surrogate's deviation at the end is at most so many
            times that of now; infinite turns it off. Default: 2.
        epoch_cost: "epochs": each costs c; "seconds": c is weighed by the measured time of the trial's epochs
            against the others'. Default: "epochs".
        noise: deviation of the noise of a value, in units of the score; 0 leaves it out, as the paper's experiments
            do. Default: 0.
        initial: Sobol configurations before the first fit. Default: 6.
        beta: weight of the variance in the upper confidence bound: "scaled", a fifth of theorem 1's of Srinivas et
            al. (2010), on a continuous space 0.2 d log(2 t); "theorem", for finite spaces; or a number. Default:
            "scaled".
        delta: probability with which theorem 1 may fail. Default: 0.1.
        refit_every: finished trials between fits of the kernel; while there are fewer, each is a fit. Default: 10.
        stopping: an OptimalStopping with further settings of the solver, instead of mode, K1, K2 and c. Default:
            None.
        audit: share of the runs, drawn by the study's seed and declared when they start, that train on where they
            would be stopped: `study.audit()` then tells how often a stop is wrong. Default: 0.

    Notes:
        wrong_stop is the paper's lemma 8, kappa its condition C2.

    Raises:
        InvalidInput: for options outside these, when K1 < K2 + c, and for a problem without a horizon.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import BOBOS
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, BOBOS(initial=2), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        3
    """

    mode: Literal["robust", "faithful"] = "robust"
    K1: float | None = None
    K2: float = 99.0
    c: float = 1.0
    growth: float = 1.0 / 0.95
    certain_from: int | None = None
    wrong_stop: float | None = None
    kappa: float = 2.0
    epoch_cost: Literal["epochs", "seconds"] = "epochs"
    noise: float = 0.0
    initial: int = 6
    beta: Beta = "scaled"
    delta: float = 0.1
    refit_every: int = 10
    stopping: OptimalStopping | None = None
    audit: float = 0.0
    _stopper: Stopper = field(init=False, repr=False, compare=False)
    _surrogate: Surrogate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options("BOBOS", self.initial, self.beta, self.delta, self.refit_every)
        if not self.kappa >= 1.0:
            raise InvalidInput(
                f"BOBOS(kappa={self.kappa!r}): at least 1, or infinity to stop whatever the surrogate believes"
            )
        check_share("BOBOS", self.audit)
        settings = self.stopping
        if settings is None:
            k1 = self.K1  # None: the mode's own
            if self.wrong_stop is not None:
                if k1 is not None:
                    raise InvalidInput(
                        "BOBOS: give K1 or wrong_stop, not both; wrong_stop sets K1 = (K2 + c) / wrong_stop"
                    )
                if not 0.0 < self.wrong_stop <= 1.0:
                    raise InvalidInput(
                        f"wrong_stop is {self.wrong_stop}; it is a probability in (0, 1], for example 0.02."
                    )
                k1 = (self.K2 + self.c) / self.wrong_stop
            settings = OptimalStopping(mode=self.mode, K1=k1, K2=self.K2, c=self.c)
        stopper = Stopper(settings, self.growth, self.certain_from, self.epoch_cost, self.noise, self.delta)
        object.__setattr__(self, "_stopper", stopper)
        # a robust one without the first epoch: so unlike the others that it shortens the lengthscale for all
        rows = Marked() if settings.mode == "faithful" else Marked(Marked.shares[1:])
        object.__setattr__(self, "_surrogate", Surrogate(rows, self.refit_every, self.initial))

    @property
    def spec(self) -> dict[str, Any]:
        """JSON that rebuilds the policy."""
        names = ("kappa", "initial", "beta", "delta", "refit_every")
        return {
            "policy": "BOBOS",
            **{name: getattr(self, name) for name in names},
            "stopping": self._stopper.spec,
            **({AUDIT: self.audit} if self.audit else {}),
        }

    def start(self, problem: Problem) -> State:
        """No trial has finished or is audited. Raises InvalidInput without a horizon."""
        if problem.max_epochs is None:
            raise InvalidInput(
                "BOBOS needs a horizon: give the Problem max_epochs, the epochs of a full training"
            )
        check_ucb("BOBOS", problem, self.beta)
        return (), {}

    def fold(self, state: State, event: Event) -> State:
        """The trials that ended, in log order, and the audited ones."""
        finished, audited = state
        return fold_over(finished, event), fold_audited(audited, event, self.audit)

    def propose(self, state: State, history: History, rng: Generator) -> Move:
        """The initial design, then the highest UCB at the full horizon (line 2); it may be declared audited."""
        posterior = self._surrogate.posterior(history, state[0])
        if len(history) < self.initial or posterior is None:
            return declare(initial_design(history, self.initial, rng), self.audit, history)
        beta = beta_t(self.beta, history.problem.space, len(history) + 1, self.delta)
        return declare(propose_ucb(history, posterior, (1.0,), beta, rng), self.audit, history)

    def judge(self, state: State, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """C1 and C2 (line 9); an audited trial trains on."""
        kappa = None if math.isinf(self.kappa) else self.kappa
        return ruled(self._stopper, self._surrogate, kappa, *state, history, trial)

    def part(self, kind: type[T]) -> T | None:
        """See Policy; its rule of stopping is one."""
        return self._stopper if isinstance(self._stopper, kind) else super().part(kind)
