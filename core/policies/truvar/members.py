"""What TruVaR has narrowed a search down to: its members and its stage, replayed from the log.

The stage and the times that stages began at are what the log's decisions recorded. Members that may come back
are a function of the belief now; those that may not are the intersection over all decisions, made anew from the
first one where it is not in memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from haltune._utils.arrays import Array, Mask
from haltune._utils.memo import Memo
from haltune.gp import Posterior
from haltune.log.events import Event, Started
from haltune.log.fold import FinishedTrials, fold_over
from haltune.log.history import History

from .belief.belief import SiteBelief, SiteSurrogate
from .belief.observations import data_keys
from .belief.prices import Prices
from .stages import Aim, Confidence, Stage


@dataclass(frozen=True, slots=True)
class Look:
    """A decision that was made: after how many observations, what they had cost, and the stage it found."""

    seen: int
    spent: float  # in units of the least cost of an observation
    stage: Stage


@dataclass(frozen=True)
class TruVaRState:
    """What the log says."""

    finished: FinishedTrials = ()
    looks: tuple[Look, ...] = ()

    @property
    def stage(self) -> Stage:
        """The stage that the last decision found."""
        return self.looks[-1].stage if self.looks else Stage()


def fold_state(state: TruVaRState, event: Event) -> TruVaRState:
    """The trials that ended, and the decisions that were made, in log order."""
    if isinstance(event, Started) and "stage" in event.evidence:
        e = event.evidence
        look = Look(int(e["seen"]), float(e["spent"]), Stage(int(e["stage"]), int(e["since"])))
        return replace(state, looks=(*state.looks, look))
    finished = fold_over(state.finished, event)
    return state if finished is state.finished else replace(state, finished=finished)


@dataclass(frozen=True, slots=True)
class Aims:
    """What is looked for, in units of the metric."""

    threshold: float | None = None
    implicit: float | None = None

    @property
    def sets(self) -> bool:
        """True for level sets."""
        return self.threshold is not None or self.implicit is not None

    def of(self, sign: float) -> Aim:
        """In units of the target sign * value. A loss is good below best / implicit."""
        threshold = None if self.threshold is None else sign * self.threshold
        share = None if self.implicit is None else self.implicit if sign > 0 else 1.0 / self.implicit
        return Aim(threshold, share)


@dataclass(eq=False)
class MemberSet:
    """Algorithm 2 over the beliefs of an surrogate."""

    confidence: Confidence
    aims: Aims
    surrogate: SiteSurrogate
    prices: Prices
    monotone: bool
    _sets: Memo[Mask] = field(default_factory=lambda: Memo(5))

    def aim_of(self, history: History) -> Aim:
        """What is looked for, in units of the target."""
        return self.aims.of(history.problem.goal.sign)

    def members(self, history: History, state: TruVaRState, belief: SiteBelief, spent: float) -> Mask:
        """M_t (n,), with the beta of the stage that the last decision found."""
        among = np.ones(len(belief.sites), dtype=np.bool_)
        if self.monotone and belief.sites.fixed:
            among = self._standing(history, state)
        return self._found(history, belief, state.stage, spent, among)

    def open(self, history: History, state: TruVaRState, belief: SiteBelief, spent: float) -> Mask:
        """The members that are not settled; under an implicit threshold others may set it."""
        every = self.members(history, state, belief, spent)
        width = self.root(state.stage, belief, spent) * np.sqrt(belief.field.variance)
        return self.aim_of(history).open(belief.field.mean, width, every)

    def vain(self, history: History, belief: SiteBelief) -> str | None:
        """Why no share of the best divides good from bad, if none does."""
        best, aim = float(belief.field.mean.max()), self.aim_of(history)
        if aim.share is None or aim.share * best <= best:
            return None
        return (
            f"implicit={self.aims.implicit} is a share of the best, and the best is about "
            f"{history.problem.goal.sign * best:.3g}: a share needs values above 0; give a threshold instead"
        )

    def towards(self, aims: Aims) -> MemberSet:
        """The same beliefs for another question."""
        confidence = Confidence(1.0 if aims.sets else 0.5)
        surrogate = self.surrogate.towards(
            aims.threshold, aims.sets, partial(may_matter, confidence, aims, self.surrogate.count)
        )
        return MemberSet(confidence, aims, surrogate, self.prices, monotone=False)

    def root(self, stage: Stage, belief: SiteBelief, spent: float) -> float:
        """sqrt(beta)."""
        return math.sqrt(self.confidence.beta_of(stage, self._size(belief), spent))

    def advance(self, stage: Stage, belief: SiteBelief, members: Mask, spent: float) -> Stage:
        """The stage that these members begin, or the same."""
        widest = float(np.sqrt(belief.field.variance[members].max())) / belief.scale
        return self.confidence.after(stage, widest, belief.seen, self._size(belief), spent)

    def spent(self, history: History, state: TruVaRState, belief: SiteBelief) -> float:
        """What the observations cost, in units of the least cost; their number where beta does not ask."""
        if self.confidence.beta_form != "theorem":
            return float(belief.seen)
        least = float(self.prices.of(history, state.finished, belief.sites.points).min())
        return self.prices.spent(history, state.finished, least)

    def remember(self, history: History, state: TruVaRState, look: Look, members: Mask) -> None:
        """Save the next decision the way back to these members."""
        if self.monotone:
            self._sets.put(_key(history, state.finished, (*state.looks, look)), members)

    def _size(self, belief: SiteBelief) -> int:
        """|D|, of which corollary 3.2 counts every level."""
        return len(belief.sites) * (
            len(self.surrogate.levels) if self.confidence.beta_form == "theorem" else 1
        )

    def _found(self, history: History, belief: SiteBelief, stage: Stage, spent: float, among: Mask) -> Mask:
        width = self.root(stage, belief, spent) * np.sqrt(belief.field.variance)
        return self.aim_of(history).members(belief.field.mean, width, among)

    def _standing(self, history: History, state: TruVaRState) -> Mask:
        """The members that the decisions so far left: from the last of them that is in memory."""
        known, found = len(state.looks), None
        while known and (found := self._sets.get(_key(history, state.finished, state.looks[:known]))) is None:
            known -= 1
        every = np.ones(len(self.surrogate.sites_of(history.problem) or ()), dtype=np.bool_)
        among = every if found is None else found
        for number in range(known, len(state.looks)):
            look = state.looks[number]
            belief = self.surrogate.belief(history, state.finished[: look.seen])
            before = state.looks[number - 1].stage if number else Stage()
            if belief is not None:
                among = self._found(history, belief, before, look.spent, among)
        return among


def may_matter(
    confidence: Confidence, aims: Aims, size: int, posterior: Posterior, points: Array, seen: int, sign: float
) -> Mask:
    """Which points (m, dim) may be members after `seen` observations, as if a stage of `size` points began."""
    mean, variance = posterior.predict(points)
    width = np.sqrt(confidence.beta_of(Stage(1, seen + 1), size, seen + 1.0) * variance)
    return aims.of(sign).members(mean, width, np.ones(len(points), dtype=np.bool_))


def _key(history: History, finished: FinishedTrials, looks: tuple[Look, ...]) -> Any:
    return history.problem, history.seed, looks, data_keys(history, finished[: looks[-1].seen])
