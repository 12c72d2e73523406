"""TruVaR: truncated variance reduction, for the best configuration or for all that are good enough.

Bogunovic, Scarlett, Krause, Cevher, NIPS 2016; (3) and algorithm 2 are in `choice`. Every start records its stage, so
that the log shows when stages started.

Three simpler rules for level sets score each configuration alone, for comparison: GCHK (Gotovos, Casati, Hitz,
Krause, IJCAI 2013) observes the most ambiguous member, max min(u - h, h - l) with sqrt(beta) = 3; straddle (Bryan and
Schneider, ICML 2008) maximises 1.96 sigma - |mu - h|; "variance" maximises sigma.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array, Mask
from haltune._utils.checks import MOST_POINTS, check_whole, is_number, within
from haltune.display import plural
from haltune.errors import InvalidInput, NotSupported
from haltune.gp import Kernel
from haltune.gp.kernels import KernelName
from haltune.log.decisions import Finish, Move, Start, Wait
from haltune.log.events import Event
from haltune.log.history import History
from haltune.log.policy import Policy, T
from haltune.log.problem import Problem
from haltune.policies.costs import CostOptions
from haltune.policies.random import fresh

from .belief import (
    MOST_SITES,
    ONLY,
    GridOption,
    Level,
    NoiseOption,
    SiteBelief,
    SiteSurrogate,
    field_of,
    grid_to_json,
    is_grid,
    levels_from,
)
from .choice import Confidence, Look, MemberSet, ObservationChoice, Prices, Stage, TruVaRState, may_matter

_PER_DEVIATION = 1.96  # of the straddle
_RULE_FACTOR = 9.0  # beta of the simpler rules: GCHK's sqrt(beta) is 3
# options that the simpler rules do not use: they have no costs, levels or stages
_TRUVAR_ALONE = (
    "implicit", "levels", "cost", "cost_model", "candidates", "anticipate", "accuracy", "beta", "delta", "eta", "r",
    "slack", "floor",
)  # fmt: skip
_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "threshold": (lambda v: v is None or is_number(v), "a finite value of the metric"),
    "implicit": (lambda v: v is None or within(v, 0.0, 1.0), "a share of the best, between 0 and 1"),
    "rule": (
        lambda v: v in ("truvar", "gchk", "straddle", "variance"), "'truvar', 'gchk', 'straddle' or 'variance'"
    ),
    "cost_model": (lambda v: v in (None, "gp"), "'gp' to learn costs, or None"),
    "noise": (
        lambda v: v is None or callable(v) or v == 0 or within(v, 0.0), "a variance, 0 or more, or None to learn it"
    ),
    "mean": (is_number, "a finite value of the metric"),
    "grid": (
        lambda v: v is None or is_grid(v), "a number of values per continuous parameter, or a list of configurations"
    ),
    "representers": (lambda v: v <= MOST_SITES, f"at most {MOST_SITES:,}"),
    "candidates": (
        lambda v: v in ("all", "members") or (isinstance(v, int) and v >= 1),
        "'all', 'members', or a number of the highest upper bounds",
    ),
    "a": (lambda v: v is None or within(v, 0.0), "a positive number"),
    "beta": (lambda v: v in ("practical", "theorem"), "'practical' or 'theorem'"),
    "delta": (lambda v: within(v, 0.0, 1.0), "a probability between 0 and 1"),
    "eta": (
        lambda v: v == 0.0 or within(v, 0.0), "prior deviations, 0 or more; 0 is pure variance reduction"
    ),
    "r": (lambda v: within(v, 0.0, 1.0), "a number between 0 and 1"),
    "slack": (lambda v: v == 0.0 or within(v, 0.0), "0 or more"),
    "floor": (lambda v: within(v, 0.0), "prior deviations, more than 0"),
    "accuracy": (lambda v: v is None or within(v, 0.0), "a positive number, or None"),
}  # fmt: skip


@dataclass(frozen=True)
class TruVaR(Policy[TruVaRState]):
    """TruVaR: truncated variance reduction for the best configuration or, with a threshold, all that are good enough.

    Each observation has the largest reduction, per cost, of the uncertainty about the configurations that may still be
    the best or good enough (Bogunovic et al. 2016). Bad values are bounded: with a threshold far below it, in a search
    for the best under a learnt kernel by the median. A failed training counts as this bound, so the search avoids its
    neighbourhood.

    Args:
        threshold: value of the metric that separates good from bad. Default: None, search for the best configuration.
        implicit: a threshold as a share of the unknown best value, such as 0.98 (the metric must be positive; of a
            loss, best / 0.98). Default: None.
        levels: measurement levels, a list of Level with noises and costs. The training reads the chosen one
            from `trial.level`. Default: none, a single level.
        cost: a function (config) or (config, previous config) to a positive number. The previous config is None at
            the first trial. Default: None.
        cost_model: "gp" learns costs. Default: None, without a `cost` every observation costs 1.
        noise: variance of an observation, squared units of the metric: a number, or a function (config); 0 for
            exact values. Default: None, learnt.
        kernel: "matern52", "matern32" or "se", learnt again every `refit_every` finished trials; or a
            haltune.gp.Kernel over the unit cube, which also needs given noises. Default: "matern52".
        mean: prior mean for a given kernel, units of the metric. Default: 0.
        refit_every: finished trials between fits of the kernel. Default: 3.
        initial: number of Sobol configurations before the first decision. Default: None, 1 with a given kernel, else 3.
        grid: a list of configurations, or a number of values of each continuous parameter. Default: None, all
            configurations of a finite space of up to 20,000, else representers.
        representers: number of points that represent a space without a grid. Default: 400.
        candidates: configurations to observe: "all"; "members", those that may still be the best or good enough; or a
            number, those with the highest upper bounds. Default: "all".
        monotone: True: members never come back (algorithm 2). False: a configuration that was ruled out can come back.
            Default: None, True with a given kernel over fixed configurations (a finite space or `grid`).
        anticipate: count the members that an observation would settle: slower, and better if moving from one site to
            the next is expensive. Default: False.
        accuracy: the search ends when epsilon (definition 3.1) is at most this, units of the metric: everything left
            is within epsilon of the best, or within epsilon / 2 of the threshold. Default: None, never.
        a: factor of beta; of a simpler rule beta itself. Default: None, 0.5, for level sets 1, for a simpler rule 9.
        beta: "practical", a log(|D| t^2), or "theorem", (14) of the paper with the cost so far. Default: "practical".
        delta: probability that the bound of "theorem" fails. Default: 0.1.
        eta: eta of the first stage, prior deviations; 0: all variance always counts. Default: 1.
        r: factor of eta from stage to stage. Default: 0.1.
        slack: a stage ends at (1 + slack) eta, the paper's delta-bar; its bound of the cost needs more than 0.
            Default: 0, as in its experiments.
        floor: lower limit of eta, prior deviations. Default: 1e-6.
        rule: "truvar", or for a threshold a simpler rule for comparison: "gchk" observes the most ambiguous, "straddle"
            maximises 1.96 sd - |mean - threshold|, "variance" the sd. Default: "truvar".

    Raises:
        InvalidInput: for other values, and for a grid, a threshold or members that do not fit the problem.

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
    rule: Literal["truvar", "gchk", "straddle", "variance"] = "truvar"
    several_goals = False  # its classifications are final, but weights of goals change
    _member_set: MemberSet = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kernel", _kernel_from(self.kernel))
        object.__setattr__(self, "levels", levels_from(self.levels))
        self._check()
        simple, given = self.rule != "truvar", isinstance(self.kernel, Kernel)
        sets = self.threshold is not None or self.implicit is not None
        if simple:
            confidence = Confidence(_RULE_FACTOR if self.a is None else self.a, "constant", eta=0.0)
        else:
            a = self.a if self.a is not None else 1.0 if sets else 0.5
            confidence = Confidence(a, self.beta, self.delta, self.eta, self.r, self.slack, self.floor)
        matters = partial(may_matter, confidence, self.threshold, self.implicit, self.representers)
        surrogate = SiteSurrogate(
            self.kernel, self.mean, self.noise,  # type: ignore[arg-type]
            self._levels or (ONLY if self.noise is None else replace(ONLY, noise=0.0),), self.refit_every,
            max(1, self._first), self.grid, self.representers, sets, self.threshold, None if simple else matters,
        )  # fmt: skip
        prices = Prices(CostOptions("TruVaR", self.cost), self.cost_model == "gp", surrogate.levels)
        monotone = given if self.monotone is None else self.monotone
        member_set = MemberSet(confidence, self.threshold, self.implicit, surrogate, prices, monotone)
        object.__setattr__(self, "_member_set", member_set)

    def _check(self) -> None:
        check_whole("TruVaR", 1, refit_every=self.refit_every)
        check_whole("TruVaR", 8, MOST_POINTS, representers=self.representers)
        if self.initial is not None:
            check_whole("TruVaR", 0, MOST_POINTS, initial=self.initial)
        if isinstance(self.noise, Mapping) or isinstance(self.grid, Mapping):
            raise NotSupported(
                "TruVaR uses a noise function or a list of configurations, and a log records only its name or digest. "
                "Build the policy with it in your program."
            )
        for option, (fits, allowed) in _ALLOWED.items():
            if not fits(value := getattr(self, option)):
                raise InvalidInput(f"TruVaR({option}={value!r}) is not allowed. Give {allowed}.")
        unknown = any(v.noise is None for v in self._levels) if self.levels else self.noise is None
        if isinstance(self.kernel, Kernel) and unknown:
            raise InvalidInput("TruVaR got a kernel without known noise. Give noise=, or the noise of all levels.")
        for one, other in (("threshold", "implicit"), ("cost", "cost_model")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise InvalidInput(f"TruVaR got both {one}= and {other}=. Give one of them.")
        if self.mean != 0.0 and not isinstance(self.kernel, Kernel):
            raise InvalidInput("TruVaR got mean= without a given kernel, with which the mean is learnt. Leave it out.")
        if self.rule == "truvar":
            return
        if self.threshold is None:
            raise InvalidInput(f"TruVaR(rule={self.rule!r}) searches for a level set. Give threshold=.")
        default = {f.name: f.default for f in fields(self) if f.default is not MISSING}
        for option in _TRUVAR_ALONE:
            if getattr(self, option) != default[option]:
                raise InvalidInput(f"TruVaR(rule={self.rule!r}) does not use {option}=. Leave it out.")

    @property
    def _levels(self) -> tuple[Level, ...]:
        return levels_from(self.levels)

    @property
    def _surrogate(self) -> SiteSurrogate:
        return self._member_set.surrogate

    @property
    def _estimated(self) -> list[Level]:
        """Levels whose noise is estimated from repeats; the noise of a single level is learnt with the kernel."""
        return [level for level in self._levels if level.noise is None] if len(self.levels) > 1 else []

    @property
    def _initial(self) -> int:
        """Configurations before the first decision."""
        given = 1 if isinstance(self.kernel, Kernel) else 3
        return given if self.initial is None else int(self.initial)

    @property
    def _first(self) -> int:
        """Trials before the first decision: initial configurations, and repeats of the first."""
        repeats = 2 * len(self._estimated)
        return max(self._initial + max(repeats - 1, 0), repeats)

    @property
    def spec(self) -> dict[str, Any]:
        kernel: Any = self.kernel
        if isinstance(kernel, Kernel):
            scales = kernel.lengthscales.tolist()
            kernel = {"kind": kernel.kind, "variance": kernel.variance, "lengthscales": scales}
        levels = [asdict(level) for level in self._levels]
        return {**super().spec, "levels": levels, "kernel": kernel, "grid": grid_to_json(self.grid)}

    @property
    def endless(self) -> bool:
        return not self._member_set.sets and self.accuracy is None

    def start(self, problem: Problem) -> TruVaRState:
        check_threshold("TruVaR", self.threshold, problem)
        if self._surrogate.sites_of(problem) is None and self.monotone:
            raise InvalidInput(
                "TruVaR(monotone=True) keeps a set of configurations, but the points that represent this space change. "
                "Give grid=, or leave monotone out."
            )
        return TruVaRState()

    def fold(self, state: TruVaRState, event: Event) -> TruVaRState:
        state.take(event)
        return state

    def part(self, kind: type[T]) -> T | None:
        return self._member_set if isinstance(self._member_set, kind) else super().part(kind)

    def propose(self, state: TruVaRState, history: History, rng: Generator) -> Move:
        """Return the initial design, then the observation of largest reduction per cost; Finish if nothing is open."""
        member_set = self._member_set
        belief = self._surrogate.belief(history, state.finished)
        if belief is None or len(history) < self._first:
            return self._design(history, rng)
        spent = member_set.spent(history, state, belief)
        members = member_set.members(history, state, belief, spent)
        # With less data the learnt kernel may be too certain, and then nothing open does not end the search.
        enough = min(5 * (belief.sites.points.shape[1] + 1), len(belief.sites))
        learnt = not isinstance(self.kernel, Kernel)
        seen_enough = not learnt or belief.seen >= enough
        if seen_enough and not members.any():
            every = plural(len(belief.sites), "configuration is", "configurations are")
            classified = f"all {every} classified"
            return Finish(member_set.why_no_share(history, belief) or classified)
        if seen_enough and member_set.sets and belief.field.variance[members].max() <= belief.exact:
            return _near(members, member_set.root(state.stage, belief, spent) * belief.exact**0.5)
        if not members.any():
            members = ~members
        stage = member_set.advance(state.stage, belief, members, spent)
        look, pending = Look(belief.seen, spent, stage), self._with_pending(history, belief)
        if self.rule != "truvar":
            member_set.cache_members(history, state, look, members)
            return self._by_rule(history, pending, members, look)
        epsilon = member_set.accuracy(history, stage, belief)
        if self.accuracy is not None and seen_enough and epsilon <= self.accuracy:
            if not member_set.sets:
                return Finish(f"every remaining configuration is within {epsilon:.3g} of the best")
            return _near(members, 0.5 * epsilon)
        root = member_set.root(stage, belief, spent)
        choice = ObservationChoice(
            pending, members, self._eta(stage, pending, members, root), root, member_set.aim_of(history),
            member_set.prices.of(history, state.finished, belief.sites.points), self.candidates, self.anticipate,
            learnt,
        )  # fmt: skip
        if member_set.sets and not choice.over.any() and seen_enough:
            if history.pending:
                return Wait("the running trials are enough to settle all open configurations")
            return _near(members, choice.eta)
        member_set.cache_members(history, state, look, members)
        if belief.sites.fixed:
            found = choice.of_sites(belief.sites.tried(history.tried))
        else:
            cost = member_set.prices.model(history, state.finished)
            after = member_set.prices.options.standing(history)
            found = choice.anywhere(history, self._surrogate.levels, cost, after, rng)
        count, excess, level = int(members.sum()), float(choice.over.sum()), self._surrogate.levels[found.level]
        kind = "may be on either side of the threshold" if member_set.sets else "may be the best"
        if found.nothing:
            reason = f"nothing is uncertain about the {count} that {kind}; the highest upper bound of the others"
        else:
            # a member that an observation would settle counts whole, not only with its excess
            whole, part = (excess + count * choice.floor, "truncated") if self.anticipate else (excess, "excess")
            settled = found.reduction / whole if whole > 0.0 else 0.0
            price = f", for a cost of {found.cost:.3g}" if found.cost != 1.0 else ""
            at = f" at {level.name!r}" if _tags(level) else ""
            reason = (
                f"{count} of {plural(len(belief.sites), 'configuration')} {kind}; this trial reduces their {part} "
                f"variance by {100.0 * settled:.3g}%{price}{at}"
            )
        kernel = pending.posterior.kernel
        evidence = {
            "seen": look.seen, "stage": look.stage.number, "since": look.stage.since, "spent": look.spent,
            "beta": choice.root**2, "eta": choice.eta / pending.scale,
            "members": count, "excess": excess,
            "reduction": found.reduction, "cost": found.cost, "level": level.name,
            "variance": kernel.variance, "lengthscales": kernel.lengthscales.tolist(),
            "mean": pending.posterior.constant, "noise": pending.noise.min(axis=1).tolist(),
        }  # fmt: skip
        return Start(found.config, tags=_tags(level), reason=reason, evidence=evidence)

    def _design(self, history: History, rng: Generator) -> Start:
        """Return the next of the first trials: a scrambled Sobol configuration, moved to the nearest untried site.

        If the noise of levels is estimated, the first configuration is measured twice at each of them.
        """
        repeats = [(0, level) for level in self._estimated for _ in range(2)]  # (configuration, level)
        cheap = min(self._surrogate.levels, key=lambda level: level.cost)
        plan = repeats + [(k, cheap) for k in range(bool(repeats), self._initial)]
        number, space = len(history), history.problem.space
        again = number < len(repeats)
        k, level = plan[number] if number < len(plan) else (number, cheap)
        design = space.sample_up_to(max(self._initial, 1), history.rng("design"), design="sobol")
        random = k >= len(design)
        config: Mapping[str, Any] = fresh(history, rng) if random else design[k]
        sites = self._surrogate.sites_of(history.problem)
        if sites is not None:
            apart = np.linalg.norm(sites.points - space.encode(config), axis=1)
            tried = sites.tried(history.tried)
            config = sites.configs[int(np.argmin(apart + np.where(tried & (not again), 1e3, 0.0)))]
        elif not again and space.key(config) in history.tried:
            random, config = True, fresh(history, rng)
        source = "drawn at random" if random else f"one of {len(plan)} Sobol configurations"
        return Start(config, tags=_tags(level), reason=f"initial design: {source}")

    def _with_pending(self, history: History, belief: SiteBelief) -> SiteBelief:
        """Return the posterior as if pending trials were observed at their mean."""
        pending = history.pending
        if not pending:
            return belief
        levels = [self._surrogate.level_of(history, trial.id) for trial in pending]
        if not belief.sites.fixed:
            points = np.array([history.points[trial.id] for trial in pending])
            noise = belief.noise[levels].mean(axis=1)
            posterior = belief.posterior.condition(points, belief.posterior.mean(points), noise)
            return replace(belief, posterior=posterior, field=field_of(posterior, belief.sites.points))
        believed = belief.field.copy()
        for trial, level in zip(pending, levels, strict=True):
            site = belief.sites.number.get(history.problem.space.key(trial.config))
            if site is not None:
                believed.observe(site, float(believed.mean[site]), float(belief.noise[level, site]))
        return replace(belief, field=believed)

    def _eta(self, stage: Stage, belief: SiteBelief, members: Mask, root: float) -> float:
        """Return eta, units of the target; that of a later stage if pending trials will end this one."""
        confidence = self._member_set.confidence
        eta, least = confidence.eta_of(stage) * belief.scale, root * math.sqrt(belief.exact)
        widest = root * math.sqrt(float(belief.field.variance[members].max()))
        while widest <= eta > max(least, confidence.floor * belief.scale):
            eta *= confidence.r
        return max(eta, least)

    def _by_rule(self, history: History, belief: SiteBelief, members: Mask, look: Look) -> Start:
        assert self.threshold is not None
        goal, sign = history.problem.goal, history.problem.goal.sign
        mean, sd = belief.field.mean, np.sqrt(belief.field.variance)
        away = np.abs(mean - sign * self.threshold)
        scores: Array = sd
        if self.rule == "straddle":
            scores = np.asarray(_PER_DEVIATION * sd - away)
        elif self.rule == "gchk":  # min(u - h, h - l) = sqrt(beta) sigma - |mu - h|
            scores = np.where(members, math.sqrt(self._member_set.confidence.a) * sd - away, -np.inf)
        site = int(np.argmax(scores))
        uncertain = "its value is" if self.rule == "variance" else f"whether it reaches {self.threshold:.4g} is"
        reason = (
            f"{uncertain} the most uncertain: predicts {goal.metric} {sign * float(mean[site]):.4g} "
            f"\N{PLUS-MINUS SIGN} {float(sd[site]):.2g}; {int(members.sum())} of "
            f"{plural(len(belief.sites), 'configuration')} are open"
        )
        evidence = {
            "seen": look.seen, "spent": look.spent, "stage": look.stage.number, "since": look.stage.since,
            "members": int(members.sum()), "score": float(scores[site]), "mean": sign * float(mean[site]),
            "sd": float(sd[site]),
        }  # fmt: skip
        return Start(belief.sites.configs[site], reason=reason, evidence=evidence)


def check_threshold(name: str, threshold: float | None, problem: Problem) -> None:
    goal = problem.goal
    if threshold is not None and goal.bounds is not None:
        low, high = goal.bounds
        if not low <= threshold <= high:
            raise InvalidInput(
                f"{name}(threshold={threshold:g}) is outside the bounds of {goal.metric}, {low:g} to {high:g}. Give a "
                "value within them."
            )


def _near(members: Mask, width: float) -> Finish:
    lie = plural(int(members.sum()), "configuration lies", "configurations lie")
    return Finish(f"{lie} within {width:.2g} of the threshold")


def _tags(level: Level) -> dict[str, Any]:
    return {} if level.name == ONLY.name else {"level": level.name}


def _kernel_from(kernel: Any) -> Any:
    """Return a kernel or its name, given so or as JSON. Raises InvalidInput for anything else."""
    if isinstance(kernel, Mapping) and kernel.keys() >= {"kind", "variance", "lengthscales"}:
        return Kernel(kernel["kind"], float(kernel["variance"]), np.array(kernel["lengthscales"]))
    if isinstance(kernel, Kernel) or (isinstance(kernel, str) and kernel in ("se", "matern32", "matern52")):
        return kernel
    raise InvalidInput(
        f"TruVaR(kernel={kernel!r}) is not a kernel. Give 'se', 'matern32' or 'matern52' to learn one, or a "
        "haltune.gp.Kernel."
    )
