"""Wrappers: a policy around a policy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from numpy.random import Generator

from haltune.errors import InvalidInput
from haltune.log.decisions import AUDIT, Action, Move, Verdict
from haltune.log.events import Event
from haltune.log.fold import FinishedTrials, fold_finished
from haltune.log.history import History
from haltune.log.policy import Policy, T, Wrapper, check_policy
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord
from haltune.policies.bayesopt import Surrogate

from .audit import Audited, audit_spec, check_share, declare, fold_audited, trained_on, trains_on
from .certainty import certain_enough, marked_rows
from .optimal_stopping import OptimalStopping
from .stopper import Stopper

State = tuple[
    Any, FinishedTrials, Audited
]  # the inner policy's, the trials that ended in log order, the audited ones


@dataclass(frozen=True)
class Halting(Wrapper):
    """Any policy, with optimal stopping inside its runs; proposals are the inner policy's.

    A STOP of either wins over a PAUSE; a stopped trial is never promoted by the inner policy, which sees it as
    stopped.

    Args:
        policy: what chooses configurations, such as GPUCB() or Hyperband().
        stopping: how the stopping problem is set and solved. Default: OptimalStopping().
        growth: factor by which K1 grows from trial to trial. Default: 1, K1 is constant.
        certain_from: from this trial on, counted from 1, K1 is infinite and nothing is stopped, as theorem 2's
            guarantee asks. Default: None, never.
        epoch_cost: "epochs": each costs c; "seconds": c is weighed by the measured time of the trial's epochs
            against the others'. Default: "epochs".
        noise: deviation of the noise of a value, in units of the score; 0 leaves it out, as the paper's experiments
            do. Default: 0.
        kappa: a run is stopped only where a Gaussian process over the finished trials is at most so many times as
            unsure of its end as of now. Default: None, without one.
        audit: share of the runs, drawn by the study's seed and declared when they start, that train on where they
            would be stopped: `study.audit()` then tells how often a stop is wrong. Default: 0.

    Notes:
        kappa is BO-BOS's condition C2.

    Raises:
        InvalidInput: for options outside these, when K1 < K2 + c, and for a problem without a horizon.

    Example:
        >>> from haltune import Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import Halting, RandomSearch
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, Halting(RandomSearch(trials=3)), seed=0)
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        3
    """

    policy: Policy[Any]
    stopping: OptimalStopping = field(default_factory=OptimalStopping)
    growth: float = 1.0
    certain_from: int | None = None
    epoch_cost: Literal["epochs", "seconds"] = "epochs"
    noise: float = 0.0
    kappa: float | None = None
    audit: float = 0.0
    _stopper: Stopper = field(init=False, repr=False, compare=False)
    _surrogate: Surrogate = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "policy", check_policy("Halting wraps a policy such as RandomSearch()", self.policy)
        )
        stopper = Stopper(self.stopping, self.growth, self.certain_from, self.epoch_cost, self.noise)
        if self.kappa is not None and not self.kappa >= 1.0:
            raise InvalidInput(
                f"Halting(kappa={self.kappa!r}): at least 1, or None to stop whatever the finished trials say"
            )
        check_share("Halting", self.audit)
        object.__setattr__(self, "_stopper", stopper)
        object.__setattr__(self, "_surrogate", Surrogate(marked_rows, refit_every=10, minimum=6))

    @property
    def spec(self) -> dict[str, Any]:
        """JSON that rebuilds the policy."""
        return {
            "policy": "Halting",
            "inner": self.policy.spec,
            "kappa": self.kappa,
            "stopping": self._stopper.spec,
            **audit_spec(self.audit),
        }

    def start(self, problem: Problem) -> State:
        """The inner policy's state, and no trial finished or audited. Raises InvalidInput without a horizon."""
        if problem.max_epochs is None:
            raise InvalidInput(
                "Halting needs a horizon: give the Problem max_epochs, the epochs of a full training"
            )
        return self.policy.start(problem), (), {}

    def fold(self, state: State, event: Event) -> State:
        """The inner policy's fold, the trials that ended, in log order, and the audited ones."""
        inner, finished, audited = state
        return (
            self.policy.fold(inner, event),
            fold_finished(finished, event),
            fold_audited(audited, event, self.audit),
        )

    def inside(self, state: State) -> Any:
        """The inner policy's state."""
        return state[0]

    def propose(self, state: State, history: History, rng: Generator) -> Move:
        """The inner policy's move; a new run may be declared audited."""
        return declare(self.policy.propose(state[0], history, rng), self.audit, history)

    def judge(self, state: State, history: History, trial: TrialRecord, rng: Generator) -> Verdict:
        """STOP when either says so; else the inner policy's PAUSE; else the stopping rule's CONTINUE.

        An audited run is stopped by the inner policy alone.
        """
        inner = self.policy.judge(state[0], history, trial, rng)
        if inner.action is Action.STOP or AUDIT in inner.evidence:
            return inner
        halting = self._ruled(state, history, trial)
        if halting.action is Action.STOP or inner.action is Action.CONTINUE:
            return Verdict(halting.action, halting.reason, halting.evidence, inner.until)
        if AUDIT in halting.evidence:  # told though the run pauses
            reason, evidence = f"{inner.reason}; {halting.reason}", {**inner.evidence, **halting.evidence}
            return Verdict(inner.action, reason, evidence, inner.until)
        return inner

    def part(self, kind: type[T]) -> T | None:
        """See Policy; its rule of stopping is one."""
        return self._stopper if isinstance(self._stopper, kind) else super().part(kind)

    def _ruled(self, state: State, history: History, trial: TrialRecord) -> Verdict:
        """The stopping rule's verdict: C1 and, with kappa, C2; an audited run trains on."""
        _, finished, audited = state
        if (stopped := audited.get(trial.id)) is not None:
            return trained_on(stopped)
        verdict = self._stopper.verdict(history, trial)
        if verdict.stops and self.kappa is not None:
            before = self._surrogate.posterior(history, finished)
            verdict = certain_enough(before, history, trial, self.kappa, verdict)
        return trains_on(verdict, trial.epoch) if trial.id in audited else verdict
