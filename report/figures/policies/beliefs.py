"""What AutoBCT believed when it decided last, and what it weighed before: its own model, in the metric's units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.threads import one_thread
from haltune.log import events as ev
from haltune.log.history import History
from haltune.policies.autobct.policy import TAG, Assessment, AutoBCT
from haltune.study.results import Results


@dataclass(frozen=True)
class Weighing:
    """Between two trainings. Scores."""

    going: float  # what going on is worth
    last: float | None  # what is expected of the last configuration; None before there is one

    @property
    def stops(self) -> bool:
        """Whether going on does not pay."""
        return self.last is not None and self.last >= self.going


@dataclass(frozen=True, eq=False)
class Beliefs:
    """A search as AutoBCT sees it after the trainings that have ended."""

    history: History
    assessment: Assessment
    worth: Array  # (g,) score: of training each control next; -inf where none was computed
    weighed: Mapping[int, Weighing]  # by the trainings that had ended, in their order

    @property
    def now(self) -> Weighing:
        """What is weighed now."""
        return self.weighed[len(self.assessment.done)]

    @property
    def last(self) -> Array:
        """(dim,) the point of the configuration trained last; the middle before there is one."""
        done = self.assessment.done
        if not done:
            return np.full(self.history.problem.space.dim, 0.5)
        return np.asarray(self.history.points[done[-1].trials[0]])

    def score(self, points: Array) -> tuple[Array, Array, Array]:
        """(n,) the metric expected at points of the cube, and with a deviation less and more of score."""
        beliefs = self.assessment.beliefs
        mean, cov = beliefs.score.at(beliefs.on(points))
        sd = np.sqrt(np.maximum(np.diag(cov), 0.0))
        return self.raw(mean), self.raw(mean - sd), self.raw(mean + sd)

    def cost(self, points: Array) -> tuple[Array, Array]:
        """(n,) the seconds, or cost, expected of a training there, and their deviation."""
        beliefs, ruler = self.assessment.beliefs, self.assessment.ruler
        mean, cov = beliefs.cost.at(beliefs.on(points))
        return ruler.zero + ruler.unit * mean, ruler.unit * np.sqrt(np.maximum(np.diag(cov), 0.0))

    def raw(self, scores: Any) -> Array:
        """Scores in the metric's units."""
        return np.array([self.assessment.ruler.raw(float(h)) for h in np.atleast_1d(scores)])


def beliefs_of(study: Results) -> Beliefs | None:
    """Of a study that AutoBCT searches; None for another, and while it knows too little to weigh anything."""
    policy = study.policy.part(AutoBCT)
    if policy is None:
        return None
    history, weighed = study.history, dict[int, Weighing]()
    state = policy.start(history.problem)
    for event in study.events():
        state = policy.fold(state, event)
        if isinstance(event, ev.Started) and "value" in event.evidence and TAG in event.tags:
            weighed[event.tags[TAG]] = Weighing(event.evidence["value"], event.evidence.get("last"))
    with one_thread():  # the same bits as in the search
        assessment = policy.assess(history, state)
        if assessment is None:
            return None
        worth = policy.worth(history.problem, assessment)
    heights = assessment.heights
    weighed[len(heights)] = Weighing(float(worth.max()), heights[-1] if heights else None)
    return Beliefs(history, assessment, worth, weighed)
