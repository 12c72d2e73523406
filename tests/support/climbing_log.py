"""Trials that may be promoted in asynchronous halving, recomputed from a log by sorting."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from haltune.log.decisions import Action
from haltune.log.events import OVER, Ended, Event, Expired, Reported, Resumed, Started, Status
from haltune.policies.hyperband.brackets import Bracket


@dataclass
class Climbing:
    """A trial."""

    bracket: Bracket
    rung: int = 0
    attempt: int = 1
    held: bool = True
    last: float = -math.inf
    at: float = 0.0  # epochs of its last report
    kept: float = -math.inf
    result: float | None = None  # at its rung
    paused: bool = False


@dataclass
class Rungs:
    """The trials that arrived at each rung, with their values."""

    eta: float
    stops: bool
    first: float | None = None  # of the first rung; None: eta
    patience: int = 1
    trials: dict[int, Climbing] = field(default_factory=dict)
    arrived: dict[tuple[Bracket, int], dict[int, tuple[float, int]]] = field(default_factory=dict)
    position: int = 0  # in the log
    promotions: list[tuple[int, int]] = field(default_factory=list)

    def arrive(self, id: int, value: float) -> None:
        t = self.trials[id]
        t.result = value
        self.arrived.setdefault((t.bracket, t.rung), {})[id] = (value, self.position)

    def top(self, id: int, seen: float = math.inf) -> list[int]:
        """Return the best 1 / eta of the trials that arrived before position `seen`, counting those without a value.

        Where trials stop, those equal to the last of these belong to them.
        """
        t = self.trials[id]
        arrived = self.arrived.get((t.bracket, t.rung), {})
        here = {i: v for i, (v, at) in arrived.items() if at < seen or i == id}
        if t.rung == 0 and len(here) < self.patience:
            return []
        many = math.floor(len(here) / (self.first if t.rung == 0 and self.first else self.eta))
        ranked = sorted((-v, i) for i, v in here.items() if math.isfinite(v))
        best = ranked[: max(many, int(self.stops))]
        return [i for v, i in ranked if best and v <= best[-1][0]] if self.stops else [i for _, i in best]

    def climb(self, id: int, seen: int) -> None:
        t = self.trials[id]
        assert t.result is not None
        assert math.isfinite(t.result)
        assert id in self.top(id, seen)
        assert t.rung + 1 < len(t.bracket.rungs)
        self.promotions.append((id, t.rung + 1))
        t.rung, t.result = t.rung + 1, None


def climbed(log: list[Event], plan: list[Bracket], eta: float, stops: bool, race: bool = False) -> Rungs:
    """Read a log; assert that the promoted trials are those in the top."""
    return walked(Rungs(eta, stops), log, plan, race)


def walked(r: Rungs, log: list[Event], plan: list[Bracket], race: bool) -> Rungs:
    """The same from given rules."""
    for r.position, e in enumerate(log):
        if isinstance(e, Started):
            if not r.stops and not race:  # a new configuration only if no trial may be promoted
                for id, t in r.trials.items():
                    assert not (t.paused and t.result is not None and id in r.top(id)), (id, e)
            r.trials[e.trial] = Climbing(plan[e.tags["bracket"]])
            continue
        t = r.trials.get(getattr(e, "trial", -1))
        if t is None:
            continue
        if isinstance(e, Resumed):
            t.attempt, t.held, t.last, t.paused = e.attempt, True, t.kept, False
            if e.by_policy:
                r.climb(e.trial, e.seen)
        elif getattr(e, "attempt", t.attempt) != t.attempt:
            continue
        elif isinstance(e, Reported) and t.held:
            t.last, t.at = e.value if math.isfinite(e.value) else -math.inf, e.epoch
            reached = e.epoch >= t.bracket.rungs[t.rung].resource
            if reached and t.result is None and "policy" not in e.verdict.evidence:
                r.arrive(e.trial, t.last)
                while t.rung + 1 < len(t.bracket.rungs) and t.bracket.rungs[t.rung + 1].resource <= e.epoch:
                    t.rung += 1  # a report may pass several rungs, if an earlier pause was not carried out
                    r.arrive(e.trial, t.last)
            if reached and t.result is not None and t.rung + 1 < len(t.bracket.rungs):
                if e.epoch >= t.bracket.rungs[-1].resource:
                    pass  # trained in full below its last rung, as its pauses could not be saved: nobody is asked
                elif e.verdict.action is Action.CONTINUE:
                    assert math.isfinite(t.last), e
                    r.climb(e.trial, e.seen)
                elif e.verdict.action is not Action.UNJUDGED and math.isfinite(min(t.result, t.last)):
                    assert e.trial not in r.top(e.trial, e.seen)
        elif type(e).__name__ == "Checkpointed":
            t.kept = t.last
        elif isinstance(e, (Ended, Expired)):
            t.held, t.paused = False, e.status is Status.PAUSED
            whole = e.status is Status.COMPLETED and math.isfinite(t.last)
            if e.status in OVER and t.result is None:
                r.arrive(e.trial, t.last if whole else -math.inf)
            while whole and t.rung + 1 < len(t.bracket.rungs):  # a training that ended by itself counts to the end
                t.rung += 1
                if t.rung + 1 == len(t.bracket.rungs) or t.bracket.rungs[t.rung].resource > t.at:
                    r.arrive(e.trial, t.last)
    return r
