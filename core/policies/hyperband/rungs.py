"""Successive halving as a fold: which trials are in which rung, what they came to, and who goes on.

A bracket fills one rung at a time. A trial arrives when it has had the rung's resource; what is not
finite, failed or was stopped arrives as the worst and never goes on. When all have arrived the best
n_{i+1} go on, equal ones by their number. Trials that are trained in full carry their value along, and so
do those whose last report was beyond the next rung already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from haltune._utils.words import amount
from haltune.log.decisions import Verdict, stop
from haltune.log.history import History
from haltune.log.problem import Goal
from haltune.log.records import TrialRecord

from .brackets import Bracket, Rung
from .persistent import Key, SortedKeys, Sparse

OUT = -math.inf  # the score of what never goes on


@dataclass(frozen=True, slots=True)
class Member:
    """A trial in a rung."""

    attempt: int
    last: float = OUT  # sign * the value that it counts for so far, OUT when there is none
    had: float = 0.0  # resource so far
    saved: float = 0.0  # resource at its last checkpoint
    kept: float = OUT  # `last` at its last checkpoint
    result: float | None = None  # sign * value at the rung; None until it arrives
    whole: bool = False  # trained in full: it cannot go on, and need not
    held: bool = True  # by a worker: what is reported after that is not in its curve
    before: float = OUT  # its result at the rung before
    idle: bool = False  # see asynchronous.Climber: at its rung it is only counted

    def after(self, unit: str, epoch: float, seconds: float) -> float:
        """The resource it has had after a report, counted in epochs or seconds."""
        return epoch if unit == "epochs" else self.had + seconds

    def again(self, attempt: int, anew: bool) -> Member:
        """A later attempt, from the checkpoint or from the beginning."""
        saved, kept = (0.0, OUT) if anew else (self.saved, self.kept)
        return replace(self, attempt=attempt, last=kept, kept=kept, had=saved, saved=saved, held=True)

    def checkpointed(self) -> Member:
        """A later attempt begins here."""
        return replace(self, saved=self.had, kept=self.last)


@dataclass(frozen=True, slots=True)
class Open:
    """A bracket under way: the rung that fills, and who may enter it."""

    number: int
    bracket: Bracket
    carries: bool = True  # False: another trial goes on in the place of a winner
    rung: int = 0
    places: int = 0  # how many enter this rung in all
    members: Sparse[Member] = field(default_factory=Sparse)
    arrived: int = 0  # of the members
    ranked: SortedKeys = field(default_factory=SortedKeys)  # those that arrived with a finite value
    queue: tuple[int, ...] = ()  # winners of the rung before that have not entered yet, best first
    past: Sparse[Member] = field(default_factory=Sparse)  # what those in the queue were in the rung before
    planned: Bracket | None = None  # what the bracket was before it was cut to those that began

    @classmethod
    def new(cls, number: int, bracket: Bracket, carries: bool = True) -> Open:
        """A bracket before its first trial."""
        return cls(number, bracket, carries, places=bracket.rungs[0].n)

    @property
    def at(self) -> Rung:
        """The rung that fills."""
        return self.bracket.rungs[self.rung]

    @property
    def last(self) -> bool:
        """True in the rung that ends the bracket."""
        return self.rung == len(self.bracket.rungs) - 1

    @property
    def going_on(self) -> int:
        """How many of this rung enter the next."""
        return 0 if self.last else min(self.places, self.bracket.rungs[self.rung + 1].n)

    @property
    def free(self) -> int:
        """Places of the first rung that wait for new configurations."""
        return self.places - self.members.size if self.rung == 0 else 0

    def member(self, trial: int) -> Member | None:
        """The trial in this rung, or in the queue for it."""
        return self.members.get(trial) or self.past.get(trial)

    def enter(self, trial: int, member: Member, of: int | None = None) -> Open:
        """`trial` trains towards this rung; `of`: the winner in whose place it does, when not its own."""
        return self._without(trial if of is None else of)._with(trial, member)

    def update(self, trial: int, member: Member) -> Open:
        """Another state of a trial, which stays where it is."""
        if self.members.get(trial) is not None:
            return self._with(trial, member)
        return replace(self, past=self.past.put(trial, member))

    def report(self, trial: int, score: float, had: float, out: bool) -> Open | None:
        """A trial of this rung has had so much resource; None when that closes the bracket."""
        member = self.members.get(trial)
        assert member is not None
        member = replace(member, last=score, had=had)
        if member.result is None and (out or had >= self.at.resource):
            member = replace(member, result=OUT if out else score)
        return self._with(trial, member).settled()

    def leave(self, trial: int) -> Open | None:
        """A trial will never go on; None when that closes the bracket."""
        member = self.members.get(trial)
        if member is not None:
            return self._with(trial, replace(member, result=OUT)).settled()
        return replace(self._without(trial), places=self.places - 1).settled()

    def done(self, trial: int) -> Open | None:
        """A trial was trained in full: its value counts, in the rungs to come as well if it is carried."""
        member = self.member(trial)
        assert member is not None
        result = member.last if member.result is None else member.result
        return self.enter(trial, replace(member, result=result, whole=self.carries)).settled()

    def settled(self) -> Open | None:
        """The next rung once this one is complete; None when there is nobody to enter it."""
        if self.members.size < self.places or self.arrived < self.members.size:
            return self
        winners = self.winners()
        if not winners:
            return None
        following = Open(self.number, self.bracket, self.carries, self.rung + 1, len(winners))
        queue, past = [], following.past
        for trial in winners:
            member = self.members.get(trial)
            assert member is not None
            if member.whole or (self.carries and member.had >= following.at.resource):
                following = following._with(trial, replace(member, result=member.last))
            else:
                queue.append(trial)
                past = past.put(trial, replace(member, result=None))
        return replace(following, queue=tuple(queue), past=past).settled()

    def bounded(self, no_more: bool) -> Open | None:
        """Cut to those that began when no more may, whole again when they may; None when that closes the bracket.

        Only while the first rung fills: later ones are made of those that arrived there.
        """
        if self.rung == 0 and no_more and self.free:
            planned, began = self.planned or self.bracket, self.members.size
            return replace(self, planned=planned, bracket=planned.cut(began), places=began).settled()
        if self.rung == 0 and not no_more and self.planned is not None:
            return replace(self, planned=None, bracket=self.planned, places=self.planned.rungs[0].n)
        return self

    def winners(self) -> list[int]:
        """The best n_{i+1} that are finite, best first; all that are left when they are fewer."""
        return [trial for _, trial in self.ranked.best(self.going_on)]

    def rank(self, trial: int, score: float) -> int:
        """1 for the best of those that have arrived; `score` is the trial's."""
        return 1 + self.ranked.rank((-score, trial))

    def _with(self, trial: int, member: Member) -> Open:
        before = self.members.get(trial)
        old, new = _key(trial, before), _key(trial, member)
        ranked = self.ranked
        if old != new:
            ranked = ranked if old is None else ranked.drop(old)
            ranked = ranked if new is None else ranked.add(new)
        was_there = before is not None and before.result is not None
        arrived = self.arrived + (member.result is not None) - was_there
        return replace(self, members=self.members.put(trial, member), arrived=arrived, ranked=ranked)

    def _without(self, trial: int) -> Open:
        if self.past.get(trial) is None:
            return self
        queue = tuple(t for t in self.queue if t != trial)
        return replace(self, queue=queue, past=self.past.drop(trial))


def until(resource: float, unit: str, history: History) -> float | None:
    """The epoch to which a resource takes a trial, at most the horizon; None when it counts otherwise."""
    if unit != "epochs":
        return None
    horizon = history.problem.max_epochs
    return resource if horizon is None else min(resource, float(horizon))


def comparison(bracket: Bracket, first: int, unit: str) -> str:
    """In words, when a new run is first held against others: at the rung `first`, if its bracket has one beyond."""
    if first >= len(bracket.rungs) - 1:
        return "compared with other runs only at its end"
    return f"compared with other runs from {amount(bracket.rungs[first].resource, unit)} on"


def score_of(sign: float, value: float) -> float:
    """Higher is better; OUT for what is not finite."""
    return sign * value if math.isfinite(value) else OUT


def judged(sign: float, trial: TrialRecord, goal: Goal) -> float:
    """sign * the value that a run counts for at its last report; OUT where that report is not finite."""
    return sign * trial.result(goal) if math.isfinite(trial.values[-1]) else OUT


def refused(score: float, member: Member) -> Verdict | None:
    """STOP for what is OUT at its rung now, or was when it arrived there, an attempt ago; else None."""
    if OUT not in (score, member.result):
        return None
    return stop("its value is not finite where runs are compared: it never continues")


def score_counted(before: float, score: float, peaks: bool) -> float:
    """The score that a run counts for after a report: its last, or its best where the goal says so (peaks)."""
    return max(before, score) if peaks else score


def _key(trial: int, member: Member | None) -> Key | None:
    """Where a trial ranks; None when it has not arrived, or never goes on."""
    result = None if member is None else member.result
    return None if result is None or result == OUT else (-result, trial)
