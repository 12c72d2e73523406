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
from haltune.log.decisions import Move, Verdict
from haltune.log.events import Event
from haltune.log.folds import Finished, fold_finished
from haltune.log.history import History, TrialRecord
from haltune.log.policy import Policy
from haltune.log.problem import Problem
from haltune.policies.bayesopt.gpucb import (
    Beta,
    beta_t,
    check_options,
    check_ucb,
    initial_design,
    propose_ucb,
)
from haltune.policies.bayesopt.surrogate import Surrogate

from .certainty import certain_enough, late_rows, marked_rows
from .induction import losses_for
from .optimal_stopping import OptimalStopping
from .stopper import Stopper


@dataclass(frozen=True)
class BOBOS(Policy[Finished]):
    """Bayesian optimisation with Bayesian optimal stopping.

    mode: "robust", to be recommended, re-solves the stopping problem along the run over power-law
    curves; "faithful" solves it once, as the paper does, and its surrogate keeps every first epoch,
    too. Its curves decay towards error 0 of the score scale: give the goal bounds that the best runs
    come close to, or none. Within (0, 1), curves that settle at an error of 0.1 are hardly ever
    stopped. K1, K2, c: losses of a wrong stop, a wrong win, an epoch more;
    K1 is 500 (robust) or 100 (faithful) at the first trial and grows by `growth` a trial, 1/0.95
    (the paper's (b); 1/0.99 for feature selection). certain_from: from this trial on K1 is infinite,
    which theorem 2's guarantee asks for. wrong_stop: sets K1 = (K2 + c) / wrong_stop instead: no run
    is stopped whose simulated chance to win is above it (lemma 8). kappa: of C2; infinite turns it
    off. epoch_cost: "seconds" charges c by measured time. noise: sigma in xi_t, score units; 0 leaves
    it out. stopping: further settings of the solver, instead of mode, K1, K2 and c.
    initial, beta, delta, refit_every: see GPUCB.

    Raises InvalidInput for options outside these, and when K1 < K2 + c.
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
    _stopper: Stopper = field(init=False, repr=False, compare=False)
    _surrogate: Surrogate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_options("BOBOS", self.initial, self.beta, self.delta, self.refit_every)
        if not self.kappa >= 1.0:
            raise InvalidInput(
                f"BOBOS(kappa={self.kappa!r}): at least 1, or infinity to leave condition C2 out"
            )
        settings = self.stopping or self._settings()
        stopper = Stopper(settings, self.growth, self.certain_from, self.epoch_cost, self.noise, self.delta)
        object.__setattr__(self, "_stopper", stopper)
        rows = marked_rows if settings.mode == "faithful" else late_rows
        object.__setattr__(self, "_surrogate", Surrogate(rows, self.refit_every, self.initial))

    def _settings(self) -> OptimalStopping:
        if self.wrong_stop is not None and self.K1 is not None:
            raise InvalidInput(
                "BOBOS: give K1 or wrong_stop, not both; wrong_stop sets K1 = (K2 + c) / wrong_stop"
            )
        if self.wrong_stop is not None:
            k1: float | None = losses_for(self.wrong_stop, self.K2, self.c).K1
        else:
            k1 = self.K1  # None: the mode's own
        return OptimalStopping(mode=self.mode, K1=k1, K2=self.K2, c=self.c)

    @property
    def spec(self) -> dict[str, Any]:
        """JSON that rebuilds the policy."""
        names = ("kappa", "initial", "beta", "delta", "refit_every")
        return {
            "policy": "BOBOS",
            **{name: getattr(self, name) for name in names},
            "stopping": self._stopper.spec,
        }

    def start(self, problem: Problem) -> Finished:
        """No trial has finished. Raises InvalidInput without a horizon."""
        if problem.max_epochs is None:
            raise InvalidInput(
                "BOBOS needs a horizon: give the Problem max_epochs, the epochs of a full training"
            )
        check_ucb("BOBOS", problem, self.beta)
        return ()

    def fold(self, state: Finished, event: Event) -> Finished:
        """The trials that ended, in log order."""
        return fold_finished(state, event)

    def propose(self, state: Finished, history: History, rng: Generator) -> Move:
        """The initial design, then the highest UCB at the full horizon (line 2)."""
        posterior = self._surrogate.posterior(history, state)
        if len(history) < self.initial or posterior is None:
            return initial_design(history, self.initial, rng)
        beta = beta_t(self.beta, history.problem.space, len(history) + 1, self.delta)
        return propose_ucb(history, posterior, (1.0,), beta, rng)

    def judge(self, state: Finished, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """C1 and C2 (line 9)."""
        verdict = self._stopper.verdict(history, trial)
        if not verdict.stops or math.isinf(self.kappa):
            return verdict
        return certain_enough(self._surrogate.posterior(history, state), history, trial, self.kappa, verdict)
