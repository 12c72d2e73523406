"""Worth another hour? What a search is expected to gain with more time, whoever has searched so far.

Of a search by AutoBCT the trials that were trained in full teach its beliefs about score and cost; the search is then
simulated on from there in worlds drawn from these beliefs, without an end, so that the gain of any time can be read
off. Of any other it is told as `haltune.policies.prospect` does: over searches of five recorded tasks the simulation
promised from a fifth of what came to nineteen times that, by the policy (benchmarks/search/promises.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.checks import check_counts, check_whole, python_number
from haltune._utils.threads import one_thread
from haltune._utils.words import plural
from haltune.errors import InvalidInput
from haltune.log.history import History
from haltune.log.policy import Policy, Wrapper, check_policy
from haltune.log.problem import seconds_of
from haltune.policies.prospect import FARTHEST, FEWEST_RUNS, best_possible, prospect, spent

from .assessment import Assessment
from .observations import ENDED, Searched, whole_cost
from .policy import AutoBCT
from .value.simulation import Futures, simulate
from .value.valuation import effort_for, expected_cost, grid_belief

_TIMES = 13  # from now to the end
_MOST_TRAININGS = 8  # trainings simulated


@dataclass(frozen=True, eq=False)
class Outlook:
    """Expected gain against time. Raw scores, within the goal's bounds; a gain is at least 0, whatever the goal."""

    metric: str
    now: float  # the score expected of the best configuration trained so far; by records, of the best run
    seconds: Array  # (n,) from now; costs where trials report these in units of their own
    gain: Array  # (n,) expected
    low: Array  # (n,) in one case of ten it is no more than this,
    high: Array  # (n,) in one no less
    training: float  # seconds that the next training is expected to take, no less than any has taken
    most: int | None = None  # trainings simulated, where there would be time for more; None: as many as fit
    own: bool = False  # costs in units of the user's
    chance: float | None = (
        None  # that a run is better than the best by then; None where the search was simulated
    )
    farthest: float | None = (
        None  # how far records tell, where more was asked: beyond it, what they tell of it
    )

    def __str__(self) -> str:
        span = _cost if self.own else _span
        if self.chance is not None:
            return self._by_records(span)
        least = "" if self.most is None else "at least "
        more = (
            "" if self.most is None else f", by the next {self.most} trainings alone: there is time for more"
        )
        return (
            f"{self.metric} {self.now:.4g} is expected of the best configuration so far. Another "
            f"{span(self.seconds[-1])} would gain {least}{self.gain[-1]:.3g} on average, {self.low[-1]:.3g} to "
            f"{self.high[-1]:.3g} in eight cases of ten{more}; the next training takes about {span(self.training)}"
        )

    def _by_records(self, span: Callable[[float], str]) -> str:
        training = f"a full training takes about {span(self.training)}"
        if not self.chance:
            return (
                f"{self.metric} {self.now:.4g} is the best so far, and all runs came to it: nothing tells what another "
                f"{span(self.seconds[-1])} would bring; {training}"
            )
        told, beyond = span(self.seconds[-1]), ""
        if self.farthest is not None:
            beyond = f"; what comes after that, in {told}, so short a search does not tell"
            told = f"{span(self.farthest)}, {FARTHEST:.0f} times what was spent,"
        return (
            f"{self.metric} {self.now:.4g} is the best so far. Another {told} beats it with a chance of "
            f"{self.chance:.0%}, by {self.gain[-1]:.3g} on average, by {self.high[-1]:.3g} or more in one case of ten"
            f"{beyond}; {training}"
        )


def outlook(
    study: History | Searched,
    time: float | str = "1h",
    policy: Policy[Any] | None = None,
    worlds: int = 200,
    seed: int = 0,
) -> Outlook:
    """What another `time` would gain, its price not taken off.

    Args:
        study: a study, or the history of one.
        time: seconds or a text such as "1h"; where trials report costs, a number in the same units. At most eight
            more trainings are simulated: of far more time than these take, the gain is a lower bound, and the sentence
            says so. Records tell of four times what was spent at most: of more, what they tell of that. Default: "1h".
        policy: whose AutoBCT would go on: its search is simulated. Default: the study's own; where that is no AutoBCT
            nothing is simulated, and the gain is told by how records fall among runs.
        worlds: how many searches are simulated. Default: 200.
        seed: of their randomness. Default: 0.

    Raises:
        InvalidInput: while too few trials have ended, for a space that AutoBCT does not search, and for a time or
            another argument that is none.

    Example:
        >>> from haltune import Float, Maximize, Problem, Space, Study
        >>> from haltune.policies import RandomSearch
        >>> from haltune.policies.autobct import outlook
        >>> problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), max_epochs=2)
        >>> study = Study(problem, RandomSearch(trials=3), seed=0)
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             verdict = trial.report(0.9 / (1 + trial.config["lr"]), seconds=60.0)
        >>> outlook(study, "10min", worlds=20).metric
        'acc'
    """
    history, whose = (study, None) if isinstance(study, History) else (study.history, study.policy)
    worlds, seed = python_number(worlds), python_number(seed)
    check_whole("outlook", 1, worlds=worlds)
    check_counts(seed=seed)
    if policy is not None:
        policy = check_policy("outlook(policy=) is a policy such as AutoBCT()", policy)
    last, own = seconds_of(time), autobct_of(policy or whose)
    if own is None:
        return _by_records(history, time, last)
    own.start(history.problem)
    ended = [t.id for t in history.trials if t.status in ENDED]
    with one_thread():
        assessment = own.foresee(history, ended) if ended else None
        if assessment is None or not assessment.done:
            raise _too_few(len(ended), own.initial)
        _need_units(time, assessment.own)
        return _simulated(history, assessment, last, worlds, np.random.default_rng(seed))


def _too_few(ended: int, least: int) -> InvalidInput:
    done = plural(ended, "trial has", "trials have")
    return InvalidInput(f"{done} ended, too few to expect anything of more: train {least} or more")


def _need_units(time: float | str, own: bool) -> None:
    if isinstance(time, str) and own:
        raise InvalidInput(f"outlook(time={time!r}): trials report costs: give a number, in the same units")


def _by_records(history: History, time: float | str, last: float) -> Outlook:
    """Of a search whose policy has no beliefs about what it gains."""
    seconds, far = np.linspace(0.0, last, _TIMES), FARTHEST * spent(history)
    found = prospect(history, np.minimum(seconds, far))
    best, own = history.best(), bool(history.spent.cost)
    if found is None or best is None:
        ended = [t for t in history.trials if t.status in ENDED]
        raise _too_few(len(ended), FEWEST_RUNS)
    _need_units(time, own)
    training = np.median([whole_cost(history, t) for t in history.trials if len(t.epochs)])
    return Outlook(
        history.problem.goal.metric, best.value, seconds, found.gain, np.zeros_like(seconds), found.high,
        float(training), own=own, chance=float(found.chance[-1]), farthest=far if far < last else None,
    )  # fmt: skip


def autobct_of(policy: object) -> AutoBCT | None:
    """A policy, or the one inside its wrappers, where that is AutoBCT; else None."""
    while isinstance(policy, Wrapper):
        policy = policy.policy
    return policy if isinstance(policy, AutoBCT) else None


def _simulated(
    history: History, assessment: Assessment, last: float, worlds: int, rng: np.random.Generator
) -> Outlook:
    goal, ruler = history.problem.goal, assessment.ruler
    least = min(t.seconds for t in assessment.done)  # beliefs that are linear know no floor
    trained = np.array([history.points[t.trials[0]] for t in assessment.done])
    points = np.vstack([assessment.controls.points, trained])
    beliefs = assessment.beliefs
    x = grid_belief(beliefs, beliefs.on(points), assessment.gamma)
    here = tuple(range(len(assessment.controls.points), len(points)))
    now = float(x.m[list(here)].max())
    first = expected_cost(x)[:, 0]
    fit = last / max(ruler.seconds(float(first.min()) / assessment.gamma), least, 1e-9)  # may be infinite
    many = _MOST_TRAININGS if fit > _MOST_TRAININGS else max(1, math.ceil(fit))
    effort = replace(effort_for(points.shape[1]), cost_nodes=3)
    futures = simulate(x, worlds, many, rng, ends=False, effort=effort, trained=here)
    seconds = np.linspace(0.0, last, _TIMES)
    tops = _tops(futures, now, seconds, assessment, least)
    worst = -goal.sign * math.inf if goal.bounds is None else goal.bounds[goal.sign < 0]
    values = goal.sign * np.array([t.target(goal) for t in history.trials])
    low_end, high_end = sorted((worst, best_possible(goal, values)))
    raw, so_far = (np.clip(np.vectorize(ruler.raw)(h), low_end, high_end) for h in (tops, now))
    gains = np.maximum(goal.sign * (raw - so_far), 0.0)
    low, high = np.quantile(gains, [0.1, 0.9], axis=1)
    training = ruler.seconds(float(first[int(np.argmax(x.m[:, 0] - first))]) / assessment.gamma)
    return Outlook(
        goal.metric, float(so_far), seconds, gains.mean(axis=1), low, high, max(training, least),
        most=many if fit > many else None, own=assessment.own,
    )  # fmt: skip


def _tops(futures: Futures, now: float, seconds: Array, assessment: Assessment, least: float) -> Array:
    """(n, w) the highest score expected of a control trained by each time: what has not ended does not count."""
    steps = np.arange(1, len(futures.spent) + 1)[:, None]
    spent = assessment.ruler.unit * futures.spent / assessment.gamma + assessment.ruler.zero * steps
    spent = np.maximum(spent, least * steps)
    reached = (spent[None] <= seconds[:, None, None]).sum(axis=1)  # (n, w) trainings that ended
    tops = np.vstack([np.full((1, futures.top.shape[1]), now), futures.top])
    return np.asarray(np.take_along_axis(tops, reached, axis=0))


def _cost(cost: float) -> str:
    return f"{cost:.3g} of cost"


def _span(seconds: float) -> str:
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
