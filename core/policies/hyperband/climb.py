"""Ladders of rungs as they stand: who arrived where, who waits there, and who is on the way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from .brackets import Bracket
from .persistent import Key, SortedKeys, Sparse
from .plan import Begun
from .rungs import OUT, Member


@dataclass(frozen=True, slots=True)
class RungState:
    """One rung of a ladder."""

    arrived: SortedKeys = field(default_factory=SortedKeys)  # finite values
    count: int = 0  # all that arrived, what is not finite and what failed among them
    waiting: SortedKeys = field(default_factory=SortedKeys)  # paused here

    def arrive(self, key: Key | None) -> RungState:
        """One more; None: it can only be counted."""
        arrived = self.arrived if key is None else self.arrived.add(key)
        return replace(self, arrived=arrived, count=self.count + 1)

    def leading(self, top: int) -> Iterator[int]:
        """Those that wait among the best so many of all that arrived, best first."""
        return (key[1] for key in self.waiting.best(top) if self.arrived.rank(key) < top)


@dataclass(frozen=True, slots=True)
class OnRung:
    """A trial on a rung, or on the way to it."""

    bracket: Bracket
    rung: int
    member: Member

    @property
    def needed(self) -> float:
        """The resource of its rung."""
        return self.bracket.rungs[self.rung].resource

    @property
    def last(self) -> bool:
        """True on the last rung."""
        return self.rung == len(self.bracket.rungs) - 1

    def passing(self, had: float) -> Iterator[OnRung]:
        """Here, and at every further rung that a report of so much resource has passed at once, in their order."""
        yield self
        for rung in range(self.rung + 1, len(self.bracket.rungs)):
            if self.bracket.rungs[rung].resource > had:
                return
            yield replace(self, rung=rung)


RungStates = tuple[RungState, ...]


@dataclass(frozen=True, slots=True)
class Climb:
    """Everything that is known of rungs and trials."""

    sign: float  # of the goal
    peaks: bool = False  # runs count for their best epochs
    horizon: int | None = None  # epochs of a full training, as the problem says
    min_epochs: int = 0  # below which nobody is compared, as the problem says
    number: int = 0  # the bracket that new trials belong to
    started: int = 0  # of its configurations
    ladders: Mapping[Bracket, RungStates] = field(default_factory=lambda: MappingProxyType({}))
    trials: Sparse[OnRung] = field(default_factory=Sparse)
    begun: Begun = field(default_factory=Begun)

    def step(self, on: OnRung) -> RungState:
        """The rung at which a trial is."""
        return self.ladders[on.bracket][on.rung]

    def put(self, on: OnRung, step: RungState) -> Climb:
        """Another state of a rung."""
        steps = self.ladders[on.bracket]
        steps = (*steps[: on.rung], step, *steps[on.rung + 1 :])
        return replace(self, ladders=MappingProxyType({**self.ladders, on.bracket: steps}))

    def coming(self) -> set[tuple[Bracket, int]]:
        """The rungs that somebody is on the way to."""
        found = (self.trials.get(trial) for trial in self.trials)
        return {(p.bracket, p.rung) for p in found if p is not None and p.member.result is None}

    def at(self, trial: int, on: OnRung) -> Climb:
        """A trial on another rung, or another state of it."""
        return replace(self, trials=self.trials.put(trial, on))


def key_of(member: Member, trial: int) -> Key:
    """Where a trial ranks at its rung."""
    return (-(OUT if member.result is None else member.result), trial)
