"""TruVaR: truncated variance reduction, for the best configuration or for all that are good enough.

Bogunovic, Scarlett, Krause, Cevher, NIPS 2016. Each observation is the one that takes most off the uncertainty of
the members M, per unit of cost: potential maximisers, or configurations not yet known to lie above or below a
threshold. See haltune.policies.truvar.variance for (3), stages for algorithm 2. When stages began is read from the log:
every start records the stage that it was decided in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from numpy.random import Generator

from haltune._utils.arrays import Mask
from haltune._utils.words import plural
from haltune.errors import InvalidInput
from haltune.gp import Kernel
from haltune.gp.kernels import KernelName
from haltune.log.decisions import Finish, Move, Start, Wait
from haltune.log.events import Event
from haltune.log.history import History
from haltune.log.policy import T
from haltune.log.problem import Problem

from .belief.belief import NoiseOption, SiteBelief, SiteSurrogate
from .belief.levels import Level, levels_from, levels_to_json
from .belief.options import (
    SitePolicy,
    check_narrowing,
    check_shared,
    check_threshold,
    kernel_from,
    kernel_to_json,
    surrogate_of,
    tags_of,
)
from .belief.prices import Prices, prices_of
from .belief.sites import GridOption, grid_to_json
from .choice import Observation, Question, choose_anywhere, choose_site
from .decision import Situation, seen_enough, situation, with_pending
from .members import Aims, Look, MemberSet, TruVaRState, fold_state, may_matter
from .stages import Confidence, Stage


@dataclass(frozen=True)
class TruVaR(SitePolicy):
    """Truncated variance reduction: the best configuration or, with a threshold, all that are good enough.

    Each observation is the one that takes most off the uncertainty of those that may still be it, per unit of cost
    (Bogunovic et al. 2016). A training that failed counts as far from good: its place is kept away from.

    Args:
        threshold: the metric's value that divides good from bad. Default: None, it looks for the best
            configuration.
        implicit: the same as a share of the best there is, such as 0.98, which is not known beforehand (the metric
            must be positive; of a loss, best / 0.98). Default: None.
        levels: ways of measuring, a list of haltune.Level with noises and costs; `trial.level` tells the training
            which was chosen. Default: none, one way.
        cost: a function (config) or (config, previous config, None before the first trial) to a positive number.
            Default: None.
        cost_model: "gp" learns costs. Default: None, every observation costs 1 where no `cost` is given.
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
        candidates: what may be observed: "all", "members", those that may still be it, or a number, so many of the
            highest upper bounds. Default: "all".
        monotone: members never come back (algorithm 2). Without it the maximiser cannot be lost for good. Default:
            None, True for level sets with a given kernel.
        anticipate: count the members that an observation would settle: better where moving from one site to the
            next is dear, slower. Default: False.
        accuracy: the search for the best ends when epsilon is at most this, units of the metric. Default: None,
            never.
        a: factor of beta. Default: None, 0.5, for level sets 1.
        beta: "practical", a log(|D| t^2), or "theorem", (14) of the paper. Default: "practical".
        delta: probability that "theorem" may fail. Default: 0.1.
        eta: of the first stage, prior deviations; 0: all variance counts, always. Default: 1.
        r: factor of eta from stage to stage. Default: 0.1.
        slack: a stage ends at (1 + slack) eta, the paper's delta-bar. Default: 0.
        floor: prior deviations: eta goes no lower. Default: 1e-6.

    Raises:
        InvalidInput: for options outside these, and for a grid, a threshold or members that do not fit the problem.

    Example:
        >>> from haltune import Budget, Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import TruVaR
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, TruVaR(threshold=0.8, representers=32), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> study.level_set().threshold
        0.8
    """

    threshold: float | None = None
    implicit: float | None = None
    levels: Sequence[Level | Mapping[str, Any]] = ()
    cost: Callable[..., float] | None = None
    cost_model: Literal["gp"] | None = None
    noise: NoiseOption = None
    kernel: Kernel | KernelName | Mapping[str, Any] = "matern52"
    mean: float = 0.0
    refit_every: int = 3
    initial: int | None = None
    grid: GridOption = None
    representers: int = 400
    candidates: Literal["all", "members"] | int = "all"
    monotone: bool | None = None
    anticipate: bool = False
    accuracy: float | None = None
    a: float | None = None
    beta: Literal["practical", "theorem"] = "practical"
    delta: float = 0.1
    eta: float = 1.0
    r: float = 0.1
    slack: float = 0.0
    floor: float = 1e-6
    _surrogate: SiteSurrogate = field(init=False, repr=False, compare=False)
    _prices: Prices = field(init=False, repr=False, compare=False)
    several_goals = False  # what it has classified stays so
    _member_set: MemberSet = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernel", kernel_from("TruVaR", self.kernel))
        object.__setattr__(self, "levels", levels_from(self.levels))
        check_shared("TruVaR", self)
        if self.threshold is not None and self.implicit is not None:
            raise InvalidInput("TruVaR: a threshold, or an implicit one, not both")
        check_narrowing("TruVaR", self)
        a = self.a if self.a is not None else 1.0 if self._sets_wanted else 0.5
        confidence = Confidence(a, self.beta, self.delta, self.eta, self.r, self.slack, self.floor)
        aims = Aims(self.threshold, self.implicit)
        surrogate = surrogate_of(self, partial(may_matter, confidence, aims, self.representers))
        prices = prices_of("TruVaR", self, surrogate.levels)
        object.__setattr__(self, "_surrogate", surrogate)
        object.__setattr__(self, "_prices", prices)
        member_set = MemberSet(confidence, aims, surrogate, prices, self._monotone)
        object.__setattr__(self, "_member_set", member_set)

    @property
    def spec(self) -> dict[str, Any]:
        """JSON that rebuilds the policy, functions apart."""
        levels = levels_to_json(levels_from(self.levels))
        return {
            **super().spec, "levels": levels, "kernel": kernel_to_json(self.kernel), "grid": grid_to_json(self.grid)
        }  # fmt: skip

    @property
    def endless(self) -> bool:
        """True unless it knows when it is done: a level set is complete, or an accuracy reached."""
        return not self._sets_wanted and self.accuracy is None

    def start(self, problem: Problem) -> TruVaRState:
        """Nothing seen. Raises InvalidInput for a grid, a threshold or members that do not fit."""
        check_threshold("TruVaR", self.threshold, problem)
        if self._surrogate.sites_of(problem) is None and self.monotone:
            raise InvalidInput(
                "TruVaR(monotone=True) keeps a set of configurations, and this space is represented by points that "
                "change: give grid=, or leave monotone out"
            )
        return TruVaRState()

    def fold(self, state: TruVaRState, event: Event) -> TruVaRState:
        """The trials that ended, and the decisions that were made, in log order."""
        return fold_state(state, event)

    def propose(self, state: TruVaRState, history: History, rng: Generator) -> Move:
        """The initial design, then the observation of largest reduction per cost; the end when nothing is open."""
        known = situation(self, self._member_set, state, history, rng)
        if not isinstance(known, Situation):
            return known
        belief, spent, members = known.belief, known.spent, known.members
        stage = self._member_set.advance(state.stage, belief, members, spent)
        if (reached := self._reached(stage, belief)) is not None:
            return Finish(reached)
        question = self._question(history, state, belief, members, stage, spent)
        if self._sets_wanted and not question.over.any() and seen_enough(self, belief):
            if history.pending:
                return Wait("trainings that run will tell all that is open")
            lie = plural(int(members.sum()), "configuration lies", "configurations lie")
            return Finish(f"{lie} within {question.eta:.2g} of the threshold")
        self._member_set.remember(history, state, Look(belief.seen, spent, stage), members)
        return self._start(question, self._choose(question, history, state, rng), stage, spent)

    def part(self, kind: type[T]) -> T | None:
        """See Policy; what is known so far, a MemberSet, is one."""
        return self._member_set if isinstance(self._member_set, kind) else super().part(kind)

    # -- the decision ------------------------------------------------------------------------

    def _reached(self, stage: Stage, belief: SiteBelief) -> str | None:
        if self.accuracy is None or self._sets_wanted:
            return None
        epsilon = self._member_set.confidence.accuracy(stage) * belief.scale
        return (
            f"every configuration left is within {epsilon:.3g} of the best"
            if epsilon <= self.accuracy
            else None
        )

    def _question(
        self,
        history: History,
        state: TruVaRState,
        belief: SiteBelief,
        members: Mask,
        stage: Stage,
        spent: float,
    ) -> Question:
        root = self._member_set.root(stage, belief, spent)
        pending = with_pending(history, belief, self._surrogate)
        return Question(
            pending, members, self._eta(stage, pending, members, root), root, self._member_set.aim_of(history),
            self._prices.of(history, state.finished, belief.sites.points), self.candidates, self.anticipate,
            not isinstance(self.kernel, Kernel),
        )  # fmt: skip

    def _eta(self, stage: Stage, belief: SiteBelief, members: Mask, root: float) -> float:
        """eta, units of the target: that of a later stage where pending trials will end this one; exact values stay."""
        confidence = self._member_set.confidence
        eta, least = confidence.eta_of(stage) * belief.scale, root * math.sqrt(belief.exact)
        widest = root * math.sqrt(float(belief.field.variance[members].max()))
        while widest <= eta > max(least, confidence.floor * belief.scale):
            eta *= confidence.r
        return max(eta, least)

    def _choose(
        self, question: Question, history: History, state: TruVaRState, rng: Generator
    ) -> Observation:
        sites = question.belief.sites
        if sites.fixed:
            return choose_site(question, sites.tried(history.tried))
        cost = self._prices.model(history, state.finished)
        after = self._prices.remaining.standing(history)
        return choose_anywhere(question, history, self._surrogate.levels, cost, after, rng)

    def _start(self, question: Question, choice: Observation, stage: Stage, spent: float) -> Start:
        belief, count = question.belief, int(question.members.sum())
        level = self._surrogate.levels[choice.level]
        kind = "may lie on either side" if self._sets_wanted else "may be the best"
        excess = float(question.over.sum())
        at = f" at {level.name!r}" if tags_of(level) else ""
        settled = choice.reduction / excess if excess > 0.0 else 0.0
        reason = (
            f"{count} of {plural(len(belief.sites), 'configuration')} {kind}: of what is not sure of them, this run "
            f"settles {100.0 * settled:.3g}%{f', for a cost of {choice.cost:.3g}' * (choice.cost != 1.0)}{at}"
        )
        if choice.nothing:
            reason = (
                f"nothing is uncertain among the {count} that {kind}: the highest upper bound of the others"
            )
        kernel = belief.posterior.kernel
        evidence = {
            "seen": belief.seen, "stage": stage.number, "since": stage.since, "spent": spent,
            "beta": question.root**2, "eta": question.eta / belief.scale,
            "members": count, "excess": excess,
            "reduction": choice.reduction, "cost": choice.cost, "level": level.name,
            "variance": kernel.variance, "lengthscales": kernel.lengthscales.tolist(),
            "mean": belief.posterior.constant, "noise": belief.noise.min(axis=1).tolist(),
        }  # fmt: skip
        return Start(choice.config, tags=tags_of(level), reason=reason, evidence=evidence)

    # -- options ---------------------------------------------------------------------------

    @property
    def _sets_wanted(self) -> bool:
        return self.threshold is not None or self.implicit is not None

    @property
    def _monotone(self) -> bool:
        given = isinstance(self.kernel, Kernel) and self._sets_wanted
        return given if self.monotone is None else self.monotone
