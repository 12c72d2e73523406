"""AutoBCT: what to train next, and when to stop looking, by what a search is worth (Cironis et al. 2021).

After each training the beliefs about score and cost are updated (`prior.beliefs`), and the value V of going on is
compared with the score expected of the last configuration trained: the search ends where that is at least V, (2.16).
Else the control of largest value is trained, (2.15). Scores count on [0, 1], costs gamma to a unit of time
(`prior.units`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.random import Generator

from haltune._utils.arrays import Array
from haltune._utils.checks import check_whole, is_number
from haltune._utils.words import plural
from haltune.errors import InvalidInput
from haltune.log.decisions import Finish, Move, Start, Wait
from haltune.log.events import Ended, Event, Expired
from haltune.log.history import History
from haltune.log.policy import Policy
from haltune.log.problem import Problem

from .assessment import Assessment, Assessor, check_direction
from .controls import check_prior, check_space
from .observations import ENDED, TAG
from .prior.beliefs import Prior, prior_from_json
from .prior.published import preset
from .prior.sampled import sampled
from .prior.units import Transform, check_map
from .reasons import ending, used_up
from .value.maps import cautious, check_dim, mapped, shipped
from .value.valuation import effort_for, expected_cost, values

Trials = tuple[int, ...]  # that ended, in log order
_HOPELESS = 10  # trainings beyond the first ones without a finite value, after which the search ends
_DEEPEST = 3  # trainings looked ahead


@dataclass(frozen=True)
class AutoBCT(Policy[Trials]):
    """Weighs the score that more trainings may gain against what they cost, and ends the search when it pays no more.

    It chooses among 33 values of one coordinate, 7 by 7 of two, 96 scattered configurations of more, or all of a
    small space, and trains one again where that tells more. The configuration to keep is the last one trained: the
    value is that of a search that returns it. `study.best` is the best value seen. One training at a time: free
    workers wait, or run its repeats. Costs are what trials report as `cost`, in any unit (`seconds` is in it then),
    or else their seconds.

    Args:
        gamma: what a unit of cost, about two of the first trainings, is worth in score. Default: 0.16.
        depth: trainings looked ahead, 1 to 3. Default: None, 2, but 3 in two coordinates.
        score_per_hour: what an hour is worth to you, in units of the metric, instead of gamma: 0.02 for two points
            of accuracy. Not where trials report costs of their own. Default: None.
        prior: a name of the paper ("D.1" to "D.8"), or a Prior: by hand, from `haltune.policies.autobct.sampled` or
            from `haltune.policies.autobct.from_studies`. Default: None, unimodal scores, any costs.
        worst: raw score that counts 0. Default: None, the prior's, the goal's bound, or estimated from the first
            trainings.
        best: raw score that counts 1; given together with worst. Default: None, likewise.
        score_scale: "linear", or "log" for the logarithms of scores. Default: "linear".
        seconds: (seconds at cost 0, seconds at cost 1). Default: None, the prior's, or estimated.
        initial: first trainings that estimates rest on. Default: 2.
        repeats: runs of each configuration, whose median score counts. Default: 1.
        max_trainings: never more. Default: None, no limit.
        min_trainings: never fewer. Default: 1.
        method: "exact" is optimal for max_trainings of at most 3; "relaxed" looks `depth` ahead always. Default:
            "relaxed".
        epsilon: this share of the value of going on is not trusted. Default: None, 0.02 with a map, else 0.
        value_map: "1d", "2d" or the path of a file: looks one training further than the map instead of `depth`.
            Default: None.

    Raises:
        InvalidInput: for options outside these, for a space of more than 8 coordinates, or another than the
            prior's.

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
    endless = False  # it ends by itself
    several_goals = False  # a training is worth what it adds to one number
    _assessor: Assessor = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_map("AutoBCT", self.worst, self.best, self.score_scale)
        _check(self)
        prior = self.prior
        if isinstance(prior, Mapping):
            object.__setattr__(self, "prior", prior_from_json(prior))
        seconds = None if self.seconds is None else (float(self.seconds[0]), float(self.seconds[1]))
        object.__setattr__(self, "seconds", seconds)
        assessor = Assessor(
            self._prior, self.gamma, self.score_per_hour, self._ends, self.score_scale, seconds, self.initial
        )
        object.__setattr__(self, "_assessor", assessor)

    @property
    def spec(self) -> dict[str, Any]:
        """JSON that rebuilds the policy, a basis that is a function apart: that is named."""
        prior = self.prior.to_json() if isinstance(self.prior, Prior) else self.prior
        return {**super().spec, "prior": prior}

    def start(self, problem: Problem) -> Trials:
        """No trial has ended. Raises InvalidInput for a space of too many coordinates, or another than the prior's."""
        check_space(problem.space)
        prior = self._assessor.prior(problem.space.dim)
        check_prior(prior, problem.space)
        check_direction(self._ends or prior.score_map, problem)
        if self.value_map is not None:
            check_dim(shipped(self.value_map), problem.space.dim)
        self._assessor.desk(problem)
        return ()

    def fold(self, state: Trials, event: Event) -> Trials:
        """The trials that ended, in log order."""
        if isinstance(event, Ended | Expired) and event.status in ENDED:
            return (*state, event.trial)
        return state

    def propose(self, state: Trials, history: History, rng: Generator) -> Move:
        """A repeat, a new training, or the end; free workers wait while a training runs."""
        if (again := self._repeat(history)) is not None:
            return again
        if history.pending:
            return Wait("a training runs: AutoBCT decides when its score and cost are known")
        count = len({history.trial(i).tags.get(TAG, i) for i in state})
        assessment = self.assess(history, state)
        if self.max_trainings is not None and count >= self.max_trainings:
            return Finish(used_up(history, assessment, self.max_trainings))
        return self._first(history, count) if assessment is None else self._decided(history, assessment)

    def assess(self, history: History, ended: Sequence[int]) -> Assessment | None:
        """What is believed after these trials; None while they are too few to know the maps."""
        return self._assessor.assess(history, ended)

    def _decided(self, history: History, assessment: Assessment) -> Move:
        """The control of largest value, or the end when the last one is expected to score that."""
        count = len(assessment.done)
        q = self.worth(history.problem, assessment)
        going, best = float(q.max()), int(np.argmax(q))
        last = assessment.heights[-1] if count else -math.inf
        if count >= self.min_trainings and last >= going:
            return Finish(ending(history, assessment, going, best))
        mean, cost = float(assessment.x.m[best, 0]), float(expected_cost(assessment.x)[best, 0])
        seconds = assessment.ruler.seconds(cost / assessment.gamma)
        ruler, metric = assessment.ruler, history.problem.goal.metric
        reason = (
            f"going on is worth {going:.3f} (of 1, from worst to best): about {assessment.span(seconds)} "
        )
        reason += f"for an expected {metric} of {ruler.raw(mean):.4g}"
        if count:
            reason += f"; the last configuration's is {ruler.raw(last):.4g}"
        evidence: dict[str, Any] = {"value": going, "score": mean, "cost": cost, "gamma": assessment.gamma}
        if count:
            evidence["last"] = last
        if assessment.warning is not None:
            evidence["warning"] = assessment.warning
        return self._start(assessment.controls.configs[best], count, reason, evidence)

    def worth(self, problem: Problem, assessment: Assessment) -> Array:
        """(g,) what training each control next is worth, less what of it is not trusted; -inf where not computed."""
        dim, count = problem.space.dim, len(assessment.done)
        if self.value_map is None or self._left(count) is not None:
            q = values(assessment.x, self._ahead(problem, count), effort_for(dim))
            return cautious(q, self.epsilon or 0.0)
        epsilon = 0.02 if self.epsilon is None else self.epsilon
        return mapped(assessment.x, assessment.controls.points, shipped(self.value_map), epsilon)

    def _left(self, count: int) -> int | None:
        return None if self.max_trainings is None else self.max_trainings - count

    def _first(self, history: History, count: int) -> Move:
        """One of the first trainings, which teach the maps; the end when none of many gave a finite value."""
        if count >= self.initial + _HOPELESS:
            return Finish(f"{plural(count, 'training')}, none with a finite {history.problem.goal.metric}")
        space = history.problem.space
        design = space.sample_up_to(self.initial + _HOPELESS, history.rng("design"), design="sobol")
        config = design[count % len(design)]
        return self._start(
            config, count, f"first of trainings that teach how scores and costs spread, {count + 1}"
        )

    def _repeat(self, history: History) -> Start | None:
        """Another run of the newest training, while it has fewer than `repeats`."""
        if not len(history) or self.repeats == 1:
            return None
        newest = history.trial(len(history) - 1)
        number = newest.tags.get("repeat", self.repeats)
        if number >= self.repeats:
            return None
        tags = {**newest.tags, "repeat": number + 1}
        return Start(
            newest.config, tags=tags, reason=f"run {number + 1} of {self.repeats} of this configuration"
        )

    def _start(
        self, config: Mapping[str, Any], number: int, reason: str, evidence: Mapping[str, Any] | None = None
    ) -> Start:
        return Start(config, tags={TAG: number, "repeat": 1}, reason=reason, evidence=evidence or {})

    def _ahead(self, problem: Problem, count: int) -> int:
        """How many trainings to look ahead."""
        depth = self.depth or (3 if problem.space.dim == 2 else 2)
        if (left := self._left(count)) is None:
            return depth
        return min(left, _DEEPEST if self.method == "exact" else depth)

    @property
    def _ends(self) -> tuple[float, float] | None:
        return None if self.worst is None or self.best is None else (self.worst, self.best)

    def _prior(self, dim: int) -> Prior:
        if self.prior is None:
            return sampled(dim)
        if isinstance(self.prior, str):
            return preset(self.prior)
        assert isinstance(self.prior, Prior)  # a mapping became one
        return self.prior


def _check(policy: AutoBCT) -> None:
    """Raises InvalidInput for options outside what is allowed."""
    counts = {"initial": policy.initial, "repeats": policy.repeats, "min_trainings": policy.min_trainings}
    if policy.max_trainings is not None:
        counts["max_trainings"] = policy.max_trainings
    check_whole("AutoBCT", 1, **counts)
    if policy.max_trainings is not None and policy.min_trainings > policy.max_trainings:
        raise InvalidInput(
            f"AutoBCT(min_trainings={policy.min_trainings}, max_trainings={policy.max_trainings}): no fewer than the "
            "one, no more than the other"
        )
    if policy.depth is not None and (
        isinstance(policy.depth, bool) or policy.depth not in range(1, _DEEPEST + 1)
    ):
        raise InvalidInput(f"AutoBCT(depth={policy.depth!r}): 1, 2 or 3 trainings ahead, or None")
    if policy.method not in ("relaxed", "exact"):
        raise InvalidInput(f"AutoBCT(method={policy.method!r}): 'relaxed' or 'exact'")
    if policy.method == "exact" and not 1 <= (policy.max_trainings or 0) <= _DEEPEST:
        raise InvalidInput(
            f"AutoBCT(method='exact') plans all trainings there are: give max_trainings from 1 to {_DEEPEST}, or use "
            "'relaxed'"
        )
    _check_numbers(policy)


def _check_numbers(policy: AutoBCT) -> None:
    for name, positive in (("gamma", True), ("score_per_hour", True), ("epsilon", False)):
        value = getattr(policy, name)
        if value is None and name != "gamma":
            continue
        if not is_number(value) or value < 0 or (positive and value == 0):
            raise InvalidInput(f"AutoBCT({name}={value!r}): {'more than 0' if positive else 'at least 0'}")
    if policy.score_per_hour is not None and policy.gamma != AutoBCT.gamma:
        raise InvalidInput(
            f"AutoBCT(gamma={policy.gamma:g}, score_per_hour={policy.score_per_hour:g}): one or the other"
        )
    if policy.prior is not None and not isinstance(policy.prior, str | Mapping | Prior):
        raise InvalidInput(f"AutoBCT(prior={policy.prior!r}): a name such as 'D.1', or a Prior")
    if isinstance(policy.prior, str):
        preset(policy.prior)
    if policy.value_map is not None and not isinstance(policy.value_map, str):
        raise InvalidInput(f"AutoBCT(value_map={policy.value_map!r}): '1d', '2d', or the file of a map")
    if policy.seconds is not None:
        given = policy.seconds
        ends = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else ()
        if len(ends) != 2 or not (all(map(is_number, ends)) and ends[0] < ends[1]):
            raise InvalidInput(f"AutoBCT(seconds={given!r}): seconds at cost 0 and, more, at cost 1")
