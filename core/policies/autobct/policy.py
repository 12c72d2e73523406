"""AutoBCT: which training is next, and when the search ends, by the value of continuing (Cironis et al. 2021).

After each training the posteriors of score and cost are updated (`prior`). The search ends if the score expected of the
last configuration is at least V, the value of continuing, (2.16). Otherwise the control with the largest value trains
next, (2.15). Scores are on [0, 1]; gamma converts costs to scores (`prior.Ruler`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array
from haltune._utils.checks import check_whole, is_number
from haltune._utils.memo import Memo
from haltune._utils.signals import undisturbed
from haltune._utils.threads import one_thread
from haltune.display import plural
from haltune.errors import InvalidInput
from haltune.log.decisions import Finish, Move, Start, Wait
from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.policy import FinishedTrials, OverTrials
from haltune.log.problem import Problem
from haltune.log.records import TrialRecord
from haltune.log.scores import plausible
from haltune.models.curves import coarse, decay_posterior, errors_of, fit_decay
from haltune.space import Space

from .prior import (
    HIGHEST,
    LARGEST_COST,
    LOWEST,
    Prior,
    Ruler,
    Transform,
    check_map,
    cost_ends,
    preset,
    prior_from_json,
    sampled,
    score_ends,
)
from .value import ONE, TWO, GridBelief, cautious, expected_cost, grid_belief, mapped, nested, shipped, values

TAG = "training"  # key in a trial's tags: the number of its training, from 0
_MOST_COORDINATES = 8  # with more, the search ends before enough is learnt about any of them
_LEVELS = {1: 33, 2: 7}  # of a grid of controls
_SCATTERED = 96  # controls in more than two coordinates
_HOPELESS = 10  # trainings without a finite value, beyond `initial`, after which the search ends
_DEEPEST = 3  # largest depth
_NEGLIGIBLE = 5e-4  # of score


@dataclass(frozen=True, eq=False)
class Controls:
    """The g configurations to choose from. They are spread evenly over the space, and so are any first few of them."""

    configs: Sequence[dict[str, Any]]
    points: Array  # (g, p)


def controls_of(space: Space) -> Controls:
    """Return a grid in one or two coordinates, scattered points in more, all configurations of a small space."""
    configs: list[dict[str, Any]] = []
    if space.size is not None and space.size <= 49:
        configs = space.enumerate()
    elif space.dim in _LEVELS:
        low, high = space.box
        axes = np.meshgrid(*list(np.linspace(low, high, _LEVELS[space.dim], axis=1)), indexing="ij")
        found = space.decode_many(np.stack([axis.ravel() for axis in axes], axis=1))
        passing = {space.key_of_canonical(c): c for c in found if space.contains(c)}
        configs = list(passing.values()) if len(passing) >= 9 else []
    if not configs:
        scattered = space.sample_up_to(_SCATTERED, np.random.default_rng(0), design="sobol")
        configs = list({space.key_of_canonical(c): c for c in scattered}.values())
    points = space.encode_many(configs)
    order = nested(points) if points.shape[1] else np.arange(len(points))
    return Controls([configs[i] for i in order], points[order])


@dataclass(frozen=True)
class Training:
    """A training of one control, with one or several repeats: its score and cost.

    The score is the median of the repeats and the cost is their sum. A score that is not finite, or of a repeat that
    failed, is missing. If a wrapper stopped a trial early, its predicted final score counts, with its uncertainty.
    Such a trial is observed once, because partial trainings of one configuration are not independent (section 4.3).
    """

    trials: tuple[int, ...]
    value: float  # raw: the median over repeats; NaN if half of them or more have none
    spread: float  # raw deviation of `value` in addition to the noise, if trials were stopped early
    seconds: float  # of all repeats, start-up and validation included, scaled up to full trainings
    paid: float  # seconds that were spent
    own: bool = False  # True: trials reported costs in their own unit, and seconds are in it


def trainings(history: History, ended: Sequence[int]) -> list[Training]:
    """Return the trainings whose trials have ended, in the order of their first trials."""
    groups: dict[object, list[TrialRecord]] = {}
    for i in ended:
        trial = history.trial(i)
        groups.setdefault(trial.tags.get(TAG, ("trial", i)), []).append(trial)
    horizon, found = history.problem.max_epochs, []
    for group in groups.values():
        ends = [_final_value(history, trial) for trial in group]
        finite = [value for value, _ in ends if math.isfinite(value)]
        costs = [history.cost(trial.id) for trial in group]
        paid = [  # the reported cost; else the longer of the trial's seconds and its worker's seconds
            max(float(trial.seconds.sum()), history.worker_seconds(trial.id)) if cost is None else cost
            for trial, cost in zip(group, costs, strict=True)
        ]
        full = [  # a stopped trial is scaled up to a full training
            p * (max(1.0, float(horizon) / t.epoch) if t.status is Status.STOPPED and horizon and t.epoch > 0 else 1.0)
            for p, t in zip(paid, group, strict=True)
        ]
        found.append(
            Training(
                tuple(trial.id for trial in group),
                float(np.median(finite)) if 2 * len(finite) > len(ends) else math.nan,
                float(np.mean([spread for _, spread in ends])),
                sum(full),
                sum(paid),
                any(cost is not None for cost in costs),
            )
        )
    return found


def _final_value(history: History, trial: TrialRecord) -> tuple[float, float]:
    """Return the raw value of a full training, and its deviation; a stopped trial is extrapolated by decay curves."""
    goal = history.problem.goal
    last = goal.sign * trial.target(goal)
    horizon, scale = history.problem.max_epochs, history.scale_of(trial.id)
    if trial.status is Status.FAILED or not math.isfinite(last):
        return math.nan, 0.0
    if trial.status is not Status.STOPPED or horizon is None or scale is None or trial.epoch >= horizon:
        return last, 0.0
    stride, steps = coarse(horizon)
    errors = errors_of(trial, goal.of == "best", scale)[steps] if trial.whole.any() else np.zeros(0)
    if not len(errors):
        return last, scale.high - scale.low
    mean, cov = decay_posterior(errors, horizon // stride, fit_decay(errors))
    value = float(scale.raw(1.0 - float(mean[-1])))
    return value, float(np.sqrt(max(cov[-1, -1], 0.0))) * (scale.high - scale.low)


@dataclass(frozen=True, eq=False)
class Assessment:
    """The posteriors of score and cost after the trainings so far, from which AutoBCT decides."""

    done: Sequence[Training]
    heights: Sequence[float]  # expected score of each training's control, right after that training
    controls: Controls
    ruler: Ruler
    beliefs: Prior
    gamma: float  # score per unit of cost
    x: GridBelief
    priced: bool  # True: the user gave score_per_hour

    @property
    def own(self) -> bool:
        return any(t.own for t in self.done)

    @property
    def paid(self) -> float:
        return sum(t.paid for t in self.done)

    @property
    def warning(self) -> str | None:
        return self.ruler.outside(self.done[-1].value, self.done[-1].seconds) if self.done else None

    def span(self, seconds: float) -> str:
        """Format seconds, or a cost in the trials' own unit."""
        return f"{seconds:.3g} of cost" if self.own else f"{seconds:.3g} s"

    def seconds_of(self, cost: float) -> str:
        return self.span(self.ruler.seconds(cost / self.gamma))


@dataclass(frozen=True)
class AutoBCT(OverTrials):
    """AutoBCT: weighs the expected gain in score against its cost, and ends the search when training does not pay.

    It chooses among 33 values of one coordinate, 7 by 7 of two, 96 scattered configurations of more, or all of a small
    space. It repeats a configuration if that is most informative. Keep the last configuration: the value of continuing
    is that of a search that returns the last one. `study.best` is the best value seen. One training runs at a time:
    free workers wait, or run its repeats. Costs are what trials report as `cost`, in any unit (`seconds` is then in
    it), or else their seconds.

    Args:
        gamma: score that one unit of cost is worth; a unit is about two first trainings, unless `seconds` or the prior
            sets it. Default: 0.16.
        depth: number of trainings to look ahead, 1 to 3. Default: None, 2, but 3 in two coordinates.
        score_per_hour: score that an hour is worth, in units of the metric, instead of gamma: 0.02 for two points
            of accuracy. Not allowed if trials report their own costs. Default: None.
        prior: a name from the paper ("D.1" to "D.8"), or a Prior: built by hand, by `haltune.policies.autobct.sampled`
            or by `haltune.policies.autobct.from_studies`. Default: None, unimodal scores, any costs.
        worst: raw score that counts as 0. Default: None, the prior's, the goal's bound, or estimated from the first
            trainings.
        best: raw score that counts as 1; give it together with worst. Default: None, as for worst.
        score_scale: "linear", or "log" for the logarithms of scores. Default: "linear".
        seconds: (seconds at cost 0, seconds at cost 1). Default: None, the prior's, or estimated.
        initial: number of first trainings, from which estimates are made. Default: 2.
        repeats: trials of each configuration, whose median score counts. Default: 1.
        max_trainings: largest number of trainings. Default: None, no limit.
        min_trainings: smallest number of trainings. Default: 1.
        method: "exact" is optimal for max_trainings of at most 3; "relaxed" always looks `depth` ahead. Default:
            "relaxed".
        epsilon: share of the value of continuing to subtract for errors. Default: None, 0.02 with a map, else 0.
        value_map: "1d", "2d" or the path of a file: look one training further than the map, instead of `depth`,
            while max_trainings allows as many. Default: None.

    Raises:
        InvalidInput: for other values, for a space of more than 8 coordinates, and for a prior of another space.

    Example:
        >>> from haltune import Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import AutoBCT
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=9)
        >>> study = Study(problem, AutoBCT(gamma=1e-3, max_trainings=3), seed=0)
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 * epoch / (epoch + trial.config["lr"]))
        >>> len(study.trials)
        3
    """

    gamma: float = 0.16
    depth: int | None = None
    score_per_hour: float | None = None
    prior: Prior | Mapping[str, Any] | str | None = None
    worst: float | None = None
    best: float | None = None
    score_scale: Transform = "linear"
    seconds: tuple[float, float] | None = None
    initial: int = 2
    repeats: int = 1
    max_trainings: int | None = None
    min_trainings: int = 1
    method: Literal["relaxed", "exact"] = "relaxed"
    epsilon: float | None = None
    value_map: str | None = None
    endless = False  # it always finishes
    several_goals = False  # the value of a training is a gain in one number
    _setups: Memo[tuple[Controls, Prior, Array]] = field(
        default_factory=lambda: Memo(4), init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        check_map(self.worst, self.best, self.score_scale)
        _check(self)
        if isinstance(self.prior, Mapping):
            object.__setattr__(self, "prior", prior_from_json(self.prior))
        if self.seconds is not None:
            object.__setattr__(self, "seconds", (float(self.seconds[0]), float(self.seconds[1])))

    @property
    def spec(self) -> dict[str, Any]:
        prior = self.prior.to_json() if isinstance(self.prior, Prior) else self.prior
        return {**super().spec, "prior": prior}

    def start(self, problem: Problem) -> FinishedTrials:
        space = problem.space
        if space.dim > _MOST_COORDINATES:
            raise InvalidInput(
                f"AutoBCT supports at most {_MOST_COORDINATES} coordinates (a Choice without order counts one for each "
                f"option), but this space has {space.dim}: its search is too short to learn more. Fix some parameters, "
                "or use BOBOS() or GPUCB() with a Budget."
            )
        own = self.prior.space if isinstance(self.prior, Prior) else None
        if own is not None and own != space.to_json():
            raise InvalidInput(
                "AutoBCT(prior=...) was learnt from studies of another space. Learn it from studies of this one or, if "
                "it fits this one too, pass dataclasses.replace(prior, space=None)."
            )
        prior = self._setup(problem)[1]
        ends = self._ends or prior.score_map
        if ends is not None and not problem.goal.better(ends[1], ends[0]):
            verb = "Maximize" if problem.goal.sign > 0 else "Minimize"
            raise InvalidInput(
                f"AutoBCT(worst={ends[0]:g}, best={ends[1]:g}) does not fit {verb}({problem.goal.metric!r}): best must "
                "be better than worst. Exchange them."
            )
        if self.value_map is not None and (known := shipped(self.value_map).header["dim"]) != space.dim:
            raise InvalidInput(
                f"The value map is for {known} coordinates, but this space has {space.dim}. Leave value_map out."
            )
        return ()

    def propose(self, state: FinishedTrials, history: History, rng: Generator) -> Move:
        if len(history) and self.repeats > 1:
            newest = history.trial(len(history) - 1)
            number = newest.tags.get("repeat", self.repeats)
            if number < self.repeats:
                reason = f"trial {number + 1} of {self.repeats} of this configuration"
                return Start(newest.config, tags={**newest.tags, "repeat": number + 1}, reason=reason)
        if history.pending:
            return Wait("a training is running, and AutoBCT decides when its score and cost are known")
        count = len({history.trial(i).tags.get(TAG, ("trial", i)) for i in state})  # see `trainings`
        found = self.assess(history, state)
        if self.max_trainings is not None and count >= self.max_trainings:
            used = f"max_trainings={self.max_trainings} is reached"
            return Finish(used if found is None else _ending(history, found, used))
        if found is None:  # one of the first trainings, which determine the maps
            if count >= self.initial + _HOPELESS:
                return Finish(f"{plural(count, 'training')}, none with a finite {history.problem.goal.metric}")
            space = history.problem.space
            design = space.sample_up_to(self.initial + _HOPELESS, history.rng("design"), design="sobol")
            reason = f"training {count + 1} of the first ones, which show the range of scores and costs"
            return Start(design[count % len(design)], tags={TAG: count, "repeat": 1}, reason=reason)
        # (2.15) and (2.16): the control of largest value, unless the last one's expected score is as large
        ruler, q = found.ruler, self.worth(history.problem, found)
        going, best = float(q.max()), int(np.argmax(q))
        last = found.heights[-1] if count else -math.inf
        mean, cost = float(found.x.m[best, 0]), float(expected_cost(found.x)[best, 0])
        if count >= self.min_trainings and last >= going:
            gain = going + cost - last  # less the costs of trainings after the next
            more = f"is {ruler.amount(gain)}" if gain > _NEGLIGIBLE else "is 0"
            yours = "gamma= with seconds= sets your own" if found.own else "score_per_hour= sets your own"
            # gamma is most often the default
            rate = "" if found.priced else f" (by gamma={found.gamma:g}; {yours})"
            why = (
                f"Continuing does not pay: its expected gain {more}, and another training takes "
                f"{found.seconds_of(cost)}, worth {ruler.amount(cost)}{rate}"
            )
            but = "" if found.warning is None else f". Warning: {found.warning}"
            return Finish(_ending(history, found, why) + but)
        reason = f"continuing has the value {going:.3f} (0 is worst, 1 is best): about {found.seconds_of(cost)} "
        reason += f"for an expected {history.problem.goal.metric} of {ruler.raw(mean):.4g}"
        evidence: dict[str, Any] = {"value": going, "score": mean, "cost": cost, "gamma": found.gamma}
        if count:
            reason += f"; the last configuration's is {ruler.raw(last):.4g}"
            evidence["last"] = last
        if found.warning is not None:
            evidence["warning"] = found.warning
        config, tags = found.controls.configs[best], {TAG: count, "repeat": 1}
        return Start(config, tags=tags, reason=reason, evidence=evidence)

    def worth(self, problem: Problem, assessment: Assessment) -> Array:
        """Return the value of training each control next (g,), less epsilon; -inf where it was not computed."""
        dim = problem.space.dim
        left = None if self.max_trainings is None else self.max_trainings - len(assessment.done)
        known = None if self.value_map is None else shipped(self.value_map)
        if known is not None and (left is None or left > known.header["depth"]):
            epsilon = 0.02 if self.epsilon is None else self.epsilon
            return mapped(assessment.x, assessment.controls.points, known, epsilon)
        depth = self.depth or (3 if dim == 2 else 2)
        if left is not None:
            depth = min(left, _DEEPEST if self.method == "exact" else depth)
        return cautious(values(assessment.x, depth, ONE if dim <= 1 else TWO), self.epsilon or 0.0)

    def assess(self, history: History, ended: Sequence[int]) -> Assessment | None:
        """Return the posteriors after these trials; None if they are too few to determine the maps."""
        sign, done = history.problem.goal.sign, trainings(history, ended)
        priced = self.score_per_hour is not None
        limited = history.recorded is not None and history.recorded.cost is not None  # costs will be reported
        if priced and (limited or any(t.own for t in done)):
            raise InvalidInput(
                "AutoBCT(score_per_hour=...) needs costs in hours, but trials report costs in units of their own. Give "
                "gamma= (score per unit of cost) and seconds= (the costs that count as 0 and 1) instead."
            )
        # an absurdly bad score counts as a missing one
        scored = sign * plausible([sign * t.value for t in done])
        done = [replace(t, value=float(value)) for t, value in zip(done, scored, strict=True)]
        controls, prior, phi = self._setup(history.problem)
        ruler = self._ruler(history, done, prior)
        if ruler is None:
            return None
        # Observations are bounded before the update: a loss that explodes shows that a control is bad, not the shape
        # of the whole surface. A missing score counts as no better than the worst so far.
        heights: list[float] = []
        floor = 0.0
        for training in done:
            at = prior.on(history.points[training.trials[0]][None])[0]
            h = ruler.h(training.value)
            observed = min(max(h, LOWEST), HIGHEST) if math.isfinite(h) else floor
            floor = min(floor, observed)
            extra = (training.spread * ruler.slope(training.value)) ** 2 if training.spread else 0.0
            prior = prior.observe(at, observed, min(ruler.t(training.seconds), LARGEST_COST), extra)
            heights.append(float(at @ prior.score.mean))
        gamma = self.gamma
        if self.score_per_hour is not None:
            gamma = self.score_per_hour * ruler.unit / 3600.0 / abs(ruler.best - ruler.worst)
        return Assessment(done, heights, controls, ruler, prior, gamma, grid_belief(prior, phi, gamma), priced)

    def _ruler(self, history: History, done: Sequence[Training], prior: Prior) -> Ruler | None:
        """Return the map from the options, the prior, the goal's bounds or the first trainings; None before these."""
        goal, bounds = history.problem.goal, history.problem.goal.bounds
        ends = self._ends or prior.score_map
        if ends is None and self.score_scale == "linear":
            ends = bounds if bounds is None or goal.sign > 0 else (bounds[1], bounds[0])
        costs = self.seconds or prior.cost_map
        if ends is None or costs is None:
            # Estimates use the first `initial` trainings, or more until one has a finite value. A training that failed
            # at once shows nothing about costs.
            finite = [i for i, t in enumerate(done) if math.isfinite(t.value)]
            if not finite or len(done) < self.initial:
                return None
            first = [t for t in done[: max(self.initial, finite[0] + 1)] if math.isfinite(t.value)]
            phi = prior.on(np.array([history.points[t.trials[0]] for t in first]))
            if ends is None:
                middle = float(np.mean(phi @ prior.score.mean))
                given = [[t.value for t in group] for group in (first, done)]
                ends = next((e for v in given if (e := score_ends(goal, v, middle, self.score_scale))), None)
            if costs is None:
                costs = cost_ends([t.seconds for t in first], list(phi @ prior.cost.mean))
            if ends is None:
                return None
        return Ruler(*ends, self.score_scale, costs[0], costs[1] - costs[0])

    def _setup(self, problem: Problem) -> tuple[Controls, Prior, Array]:
        """Return the controls, the prior, and its basis functions at the controls (g, J)."""

        def made() -> tuple[Controls, Prior, Array]:
            # a prior that is fitted must have the same bits in every process
            with undisturbed, one_thread, undisturbed.heard:
                controls, prior = controls_of(problem.space), self.prior
                if prior is None:
                    prior = sampled(problem.space.dim)
                elif isinstance(prior, str):
                    prior = preset(prior)
            assert isinstance(prior, Prior)  # __post_init__ converted a mapping
            return controls, prior, prior.on(controls.points)

        # not cached with constraints: they are functions, which the JSON of a space does not distinguish
        space = problem.space
        return made() if space.constraints else self._setups(repr((space.to_json(), space.whole.to_json())), made)

    @property
    def _ends(self) -> tuple[float, float] | None:
        return None if self.worst is None or self.best is None else (self.worst, self.best)


def _ending(history: History, found: Assessment, why: str) -> str:
    """Explain the end in a paragraph: values seen, expected values in brackets, the reason, and what to keep.

    Seen and expected values differ where the basis is smoother than the truth.
    """
    ruler, metric, count = found.ruler, history.problem.goal.metric, len(found.done)
    first, last = (f"{found.done[i].value:.4g}" for i in (0, -1))
    was, now = (f"{ruler.raw(found.heights[i]):.4g}" for i in (0, -1))
    worth = ruler.amount(found.gamma * found.paid / ruler.unit)
    gained = f"{plural(count, 'training')} for {found.span(found.paid)}, worth {worth} of {metric}, "
    if count == 1:
        gained += f"gave {last} (expected of a repeat: {now})"
    else:
        gained += f"led from {first} with the first configuration to {last} with the last "
        gained += f"(expected of repeats: {was}, {now})"
    top = history.best()
    seen = "" if top is None else f"; the best value seen is {history.value_of(top):.4g}, of trial {top.trial}"
    kept = f"Keep the last configuration, of trial {found.done[-1].trials[-1]}{seen}"
    return f"{gained}. {why}. {kept}"


def _check(policy: AutoBCT) -> None:
    counts = {"initial": policy.initial, "repeats": policy.repeats, "min_trainings": policy.min_trainings}
    if policy.max_trainings is not None:
        counts["max_trainings"] = policy.max_trainings
    check_whole("AutoBCT", 1, **counts)
    if policy.max_trainings is not None and policy.min_trainings > policy.max_trainings:
        raise InvalidInput(
            f"AutoBCT(min_trainings={policy.min_trainings}, max_trainings={policy.max_trainings}) allows no number of "
            "trainings. Give min_trainings of at most max_trainings."
        )
    if policy.depth is not None:
        check_whole("AutoBCT", 1, _DEEPEST, depth=policy.depth)
    if policy.method not in ("relaxed", "exact"):
        raise InvalidInput(f"AutoBCT(method={policy.method!r}) is not allowed. Give 'relaxed' or 'exact'.")
    if policy.method == "exact" and not 1 <= (policy.max_trainings or 0) <= _DEEPEST:
        raise InvalidInput(
            f"AutoBCT(method='exact') plans all trainings. Give max_trainings from 1 to {_DEEPEST}, or use 'relaxed'."
        )
    for name, positive in (("gamma", True), ("score_per_hour", True), ("epsilon", False)):
        value = getattr(policy, name)
        if value is None and name != "gamma":
            continue
        if not is_number(value) or value < 0 or (positive and value == 0):
            raise InvalidInput(
                f"AutoBCT({name}={value!r}) is too small. Give {'more than 0' if positive else '0 or more'}."
            )
    if policy.score_per_hour is not None and policy.gamma != AutoBCT.gamma:
        raise InvalidInput(
            f"AutoBCT got both gamma={policy.gamma:g} and score_per_hour={policy.score_per_hour:g}. Give one of them."
        )
    if policy.prior is not None and not isinstance(policy.prior, str | Mapping | Prior):
        raise InvalidInput(f"AutoBCT(prior={policy.prior!r}) is not a prior. Give a name such as 'D.1', or a Prior.")
    if isinstance(policy.prior, str):
        preset(policy.prior)
    if policy.value_map is not None and not isinstance(policy.value_map, str):
        raise InvalidInput(f"AutoBCT(value_map={policy.value_map!r}) is not a map. Give '1d', '2d', or a file's path.")
    if policy.seconds is not None:
        given = policy.seconds
        ends = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
        if len(ends) != 2 or not (all(map(is_number, ends)) and ends[0] < ends[1]):
            raise InvalidInput(
                f"AutoBCT(seconds={given!r}) is not allowed. Give (seconds at cost 0, larger seconds at cost 1)."
            )
