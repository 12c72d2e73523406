"""Level sets by rules that look at one configuration at a time: what TruVaR is compared with.

GCHK (Gotovos, Casati, Hitz, Krause, IJCAI 2013) observes the most ambiguous member, max min(u - h, h - l) with
sqrt(beta) = 3; straddle (Bryan and Schneider, ICML 2008) maximises 1.96 sigma - |mu - h|; "variance" maximises sigma.
None of them knows of costs, or chooses how precisely to measure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array, Mask
from haltune._utils.checks import is_number, within
from haltune._utils.words import plural
from haltune.errors import InvalidInput
from haltune.gp import Kernel
from haltune.gp.kernels import KernelName
from haltune.log.decisions import Move, Start
from haltune.log.events import Event
from haltune.log.history import History
from haltune.log.policy import T
from haltune.log.problem import Problem

from .belief.belief import NoiseOption, SiteBelief, SiteSurrogate
from .belief.options import (
    SitePolicy,
    check_shared,
    check_threshold,
    kernel_from,
    kernel_to_json,
    surrogate_of,
)
from .belief.prices import prices_of
from .belief.sites import GridOption, grid_to_json
from .decision import Situation, situation, with_pending
from .members import Aims, Look, MemberSet, TruVaRState, fold_state
from .stages import Confidence

Criterion = Literal["gchk", "straddle", "variance"]
_PER_DEVIATION = 1.96  # of the straddle


@dataclass(frozen=True)
class LevelSetSearch(SitePolicy):
    """Which configurations reach a threshold, by a rule of one's choice; each trains in full.

    A training that failed counts as far below the threshold.

    Args:
        threshold: a value of the metric, its own units. Default: None, which is refused: it must be given.
        rule: "gchk" observes the most ambiguous, "straddle" maximises 1.96 sd - |mean - threshold|, "variance" the
            sd. Default: "gchk".
        root_beta: GCHK's sqrt(beta); it settles members for all rules. Default: 3.
        noise: variance of an observation, squared units of the metric: a number, or a function (config); 0 for
            exact values. Default: None, learnt.
        kernel: "matern52", "matern32" or "se", learnt anew every `refit_every` finished trials; or a
            haltune.gp.Kernel over the unit cube: then noises must be given, too. Default: "matern52".
        mean: prior mean that goes with a given kernel, units of the metric. Default: 0.
        refit_every: finished trials between fits of the kernel. Default: 3.
        initial: Sobol configurations before the first decision. Default: None, 1 with a given kernel, else 3.
        grid: a list of configurations, or how many values a continuous parameter takes. Default: None, all
            configurations of a finite space of up to 20,000, else representers.
        representers: points that stand for a space without a grid. Default: 400.

    Raises:
        InvalidInput: for options outside these, and for a threshold outside the goal's bounds.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import LevelSetSearch
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, LevelSetSearch(0.8, representers=32), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> study.level_set().threshold
        0.8
    """

    threshold: float
    rule: Criterion = "gchk"
    root_beta: float = 3.0
    noise: NoiseOption = None
    kernel: Kernel | KernelName | Mapping[str, Any] = "matern52"
    mean: float = 0.0
    refit_every: int = 3
    initial: int | None = None
    grid: GridOption = None
    representers: int = 400
    several_goals = False  # what it has classified stays so
    _member_set: MemberSet = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernel", kernel_from("LevelSetSearch", self.kernel))
        check_shared("LevelSetSearch", self)
        if not is_number(self.threshold) or self.rule not in ("gchk", "straddle", "variance"):
            raise InvalidInput(
                f"LevelSetSearch(threshold={self.threshold!r}, rule={self.rule!r}): a finite value, and 'gchk', "
                "'straddle' or 'variance'"
            )
        if not within(self.root_beta, 0.0):
            raise InvalidInput(f"LevelSetSearch(root_beta={self.root_beta!r}): a positive number")
        surrogate = surrogate_of(self)
        prices = prices_of("LevelSetSearch", self, surrogate.levels)
        confidence = Confidence(self.root_beta**2, "constant", eta=0.0)
        monotone = isinstance(self.kernel, Kernel)
        member_set = MemberSet(confidence, Aims(self.threshold), surrogate, prices, monotone)
        object.__setattr__(self, "_member_set", member_set)

    @property
    def spec(self) -> dict[str, Any]:
        """JSON that rebuilds the policy, functions apart."""
        return {**super().spec, "kernel": kernel_to_json(self.kernel), "grid": grid_to_json(self.grid)}

    @property
    def endless(self) -> bool:
        """False: it ends when every configuration is classified."""
        return False

    def start(self, problem: Problem) -> TruVaRState:
        """Nothing seen. Raises InvalidInput for a grid or a threshold that does not fit."""
        check_threshold("LevelSetSearch", self.threshold, problem)
        self._surrogate.sites_of(problem)
        return TruVaRState()

    def fold(self, state: TruVaRState, event: Event) -> TruVaRState:
        """The trials that ended, and the decisions that were made, in log order."""
        return fold_state(state, event)

    def propose(self, state: TruVaRState, history: History, rng: Generator) -> Move:
        """The initial design, then the configuration of highest score; the end when none is open."""
        known = situation(self, self._member_set, state, history, rng)
        if not isinstance(known, Situation):
            return known
        belief, members = known.belief, known.members
        look = Look(belief.seen, known.spent, state.stage)
        self._member_set.remember(history, state, look, members)
        return self._start(history, with_pending(history, belief, self._surrogate), members, look)

    def part(self, kind: type[T]) -> T | None:
        """See Policy; what is known of the level set, a MemberSet, is one."""
        return self._member_set if isinstance(self._member_set, kind) else super().part(kind)

    @property
    def _surrogate(self) -> SiteSurrogate:
        return self._member_set.surrogate

    def _start(self, history: History, belief: SiteBelief, members: Mask, look: Look) -> Start:
        scores = self._scores(history, belief, members)
        site = int(np.argmax(scores))
        mean, sd = float(belief.field.mean[site]), float(np.sqrt(belief.field.variance[site]))
        goal, sign = history.problem.goal, history.problem.goal.sign
        least = "its value is" if self.rule == "variance" else f"whether it reaches {self.threshold:.4g} is"
        reason = (
            f"{least} the least sure: {goal.metric} {sign * mean:.4g} \N{PLUS-MINUS SIGN} {sd:.2g} expected; "
            f"{int(members.sum())} of {plural(len(belief.sites), 'configuration')} are open"
        )
        return Start(belief.sites.configs[site], reason=reason, evidence={
            "seen": look.seen, "spent": look.spent, "stage": look.stage.number, "since": look.stage.since,
            "members": int(members.sum()), "score": float(scores[site]), "mean": sign * mean, "sd": sd,
        })  # fmt: skip

    def _scores(self, history: History, belief: SiteBelief, members: Mask) -> Array:
        mean, sd = belief.field.mean, np.sqrt(belief.field.variance)
        if self.rule == "variance":
            return sd
        away = np.abs(mean - history.problem.goal.sign * self.threshold)
        if self.rule == "straddle":
            return np.asarray(_PER_DEVIATION * sd - away)
        # min(u - h, h - l) = sqrt(beta) sigma - |mu - h|
        return np.where(members, self.root_beta * sd - away, -np.inf)
