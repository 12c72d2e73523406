"""The rungs of synchronous successive halving, recomputed from a log by a simple method."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from haltune.log.decisions import Action
from haltune.log.events import (  # fmt: skip
    Budgeted,
    Checkpointed,
    Ended,
    Event,
    Expired,
    Reported,
    Resumed,
    Started,
    Status,
)
from haltune.policies import Hyperband, SuccessiveHalving
from haltune.policies.hyperband.brackets import Bracket, Rung


@dataclass
class Seen:
    """A trial."""

    bracket: int
    attempt: int = 1
    held: bool = True
    last: float = -math.inf
    kept: float = -math.inf
    had: float = 0.0  # epochs
    had_kept: float = 0.0
    whole: bool = False


@dataclass
class Filling:
    """A bracket: the rung that fills."""

    bracket: Bracket
    rung: int = 0
    places: int = 0
    entered: list[int] = field(default_factory=list)
    results: dict[int, float] = field(default_factory=dict)  # trial -> value at the rung, -inf: out
    winners: list[int] = field(default_factory=list)  # of the rung before, not entered yet
    closed: bool = False
    promoted: list[list[int]] = field(default_factory=list)  # by rung
    planned: Bracket | None = None  # before it was cut to those that started

    def bound(self, no_more: bool, trials: dict[int, Seen], resume: bool) -> None:
        """The same share of the started trials is promoted if no more may start."""
        self.planned = self.planned or self.bracket
        if self.rung or self.closed or (no_more and len(self.entered) == self.places):
            return
        whole = self.planned.rungs[0].n
        self.places = len(self.entered) if no_more else whole
        sizes = [max(1, math.floor(r.n * self.places / whole)) for r in self.planned.rungs]
        rungs = [Rung(n, r.resource) for n, r in zip(sizes, self.planned.rungs, strict=True)]
        self.bracket = Bracket(tuple(rungs), self.planned.s)
        self.check(trials, resume)

    def enter(self, trial: int) -> None:
        assert trial not in self.entered
        self.entered.append(trial)
        assert len(self.entered) <= self.places <= self.bracket.rungs[self.rung].n
        if trial in self.winners:
            self.winners.remove(trial)

    def check(self, trials: dict[int, Seen], resume: bool) -> None:
        """Go on to the next rung when all places are taken and all have arrived."""
        while not self.closed and len(self.entered) == self.places and set(self.results) == set(self.entered):
            ranked = sorted((-v, t) for t, v in self.results.items() if math.isfinite(v))
            last = self.rung + 1 == len(self.bracket.rungs)
            best = [] if last else [t for _, t in ranked[: self.bracket.rungs[self.rung + 1].n]]
            self.promoted.append(best)
            self.closed = not best
            self.rung, self.places = self.rung + 1, len(best)

            def beyond(t: int) -> bool:
                more = self.bracket.rungs[self.rung].resource
                return trials[t].whole or (resume and trials[t].had >= more)

            self.entered = [t for t in best if beyond(t)]
            self.results = {t: trials[t].last for t in self.entered}
            self.winners = [t for t in best if not beyond(t)]


def recomputed(log: Iterable[Event], plan: list[Bracket], resume: bool = True) -> dict[int, Filling]:
    """Return the brackets of a search in epochs by their numbers; assert that only promoted trials entered a rung."""
    brackets: dict[int, Filling] = {}
    trials: dict[int, Seen] = {}
    limit = math.inf
    for e in log:
        if isinstance(e, Budgeted):
            limit = e.budget.get("trials", math.inf)
            for f in brackets.values():
                f.bound(len(trials) >= limit, trials, resume)
        if isinstance(e, Started):
            number = e.tags["bracket"]
            f = brackets.setdefault(number, Filling(plan[number], places=plan[number].rungs[0].n))
            trials[e.trial] = Seen(number)
            assert f.rung == e.tags["rung"]
            assert e.resource == f.bracket.rungs[f.rung].resource
            if f.rung:
                f.winners.remove(e.tags["of"])  # raises when it had not won, or was replaced before
            f.enter(e.trial)
            assert f.rung or len(trials) <= limit  # only what won continues when nothing new may start
            for other in brackets.values():
                other.bound(len(trials) >= limit, trials, resume)
            continue
        t = trials.get(getattr(e, "trial", -1))
        if t is None:
            continue
        f = brackets[t.bracket]
        if isinstance(e, Resumed):
            t.attempt, t.held, t.last, t.had = e.attempt, True, t.kept, t.had_kept
            if e.by_policy:
                assert resume
                assert e.trial in f.winners
                assert f.rung == e.tags["rung"]
                f.enter(e.trial)
        elif getattr(e, "attempt", t.attempt) != t.attempt:
            continue
        elif isinstance(e, Reported) and t.held:
            _reported(f, t, e, trials, resume)
        elif isinstance(e, Checkpointed):
            t.kept, t.had_kept = t.last, t.had
        elif isinstance(e, (Ended, Expired)):
            t.held = False
            _ended(f, t, e, trials, resume)
    return brackets


def _reported(f: Filling, t: Seen, e: Reported, trials: dict[int, Seen], resume: bool) -> None:
    t.had = e.epoch
    t.last = e.value if math.isfinite(e.value) else -math.inf
    on = resume and e.verdict.action is Action.CONTINUE
    if on and e.trial in f.winners:
        f.enter(e.trial)
    cut = "policy" in e.verdict.evidence
    if e.trial not in f.entered or e.trial in f.results or cut:
        return
    reached, stopped = e.epoch >= f.bracket.rungs[f.rung].resource, e.verdict.action is Action.STOP
    if reached or stopped:
        out = stopped and (resume or not reached)
        f.results[e.trial] = -math.inf if out else t.last
        f.check(trials, resume)
        if on and e.trial in f.winners:
            f.enter(e.trial)


def _ended(f: Filling, t: Seen, e: Ended | Expired, trials: dict[int, Seen], resume: bool) -> None:
    id = e.trial
    if e.status is Status.COMPLETED:
        if id in f.winners and resume:
            f.enter(id)
        t.whole = True  # a new trial with its configuration would end by itself, too
        if id in f.entered:
            f.results.setdefault(id, t.last)
    elif e.status is Status.FAILED or (e.status is Status.STOPPED and (resume or id not in f.results)):
        if id in f.entered:
            f.results[id] = -math.inf
        elif id in f.winners and resume:
            f.winners.remove(id)
            f.places -= 1
    f.check(trials, resume)


def plan_of(policy: Hyperband | SuccessiveHalving, R: float, rounds: int = 1) -> list[Bracket]:
    return list(policy.table(R).brackets) * rounds
