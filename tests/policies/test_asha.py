"""Asynchronous halving against ASHA's rule (Li et al. 2020), recomputed from the log by sorting."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laboratory import Lab, act, differences, happenings, rough

from haltune import Budget, Finish
from haltune.decisions import Action
from haltune.events import OVER, Ended, Event, Expired, Reported, Resumed, Started, Status
from haltune.policies import Hyperband, SuccessiveHalving
from haltune.schedules import Bracket


@dataclass
class Climbing:
    """A trial."""

    bracket: Bracket
    rung: int = 0
    attempt: int = 1
    held: bool = True
    last: float = -math.inf
    kept: float = -math.inf
    result: float | None = None  # at its rung
    paused: bool = False


@dataclass
class Rungs:
    """Who arrived where, with which value."""

    eta: float
    stops: bool
    trials: dict[int, Climbing] = field(default_factory=dict)
    arrived: dict[tuple[Bracket, int], dict[int, tuple[float, int]]] = field(default_factory=dict)
    position: int = 0  # in the log
    promotions: list[tuple[int, int]] = field(default_factory=list)

    def arrive(self, id: int, value: float) -> None:
        t = self.trials[id]
        t.result = value
        self.arrived.setdefault((t.bracket, t.rung), {})[id] = (value, self.position)

    def top(self, id: int, seen: float = math.inf) -> list[int]:
        """The best 1 / eta of those that had arrived before position `seen`, what has no value among them counted."""
        t = self.trials[id]
        arrived = self.arrived.get((t.bracket, t.rung), {})
        here = {i: v for i, (v, at) in arrived.items() if at < seen or i == id}
        many = math.floor(len(here) / self.eta)
        ranked = sorted((-v, i) for i, v in here.items() if math.isfinite(v))
        return [i for _, i in ranked[: max(many, int(self.stops))]]

    def climb(self, id: int, seen: int) -> None:
        t = self.trials[id]
        assert t.result is not None
        assert id in self.top(id, seen)
        assert t.rung + 1 < len(t.bracket.rungs)
        self.promotions.append((id, t.rung + 1))
        t.rung, t.result = t.rung + 1, None


def climbed(log: list[Event], plan: list[Bracket], eta: float, stops: bool, race: bool = False) -> Rungs:
    """Walk through a log; asserts that whoever goes on is in the top, and that whoever is in the top goes on."""
    r = Rungs(eta, stops)
    for r.position, e in enumerate(log):
        if isinstance(e, Started):
            if not stops and not race:  # a new configuration only when nobody may go on
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
            t.last = e.value if math.isfinite(e.value) else -math.inf
            reached = e.epoch >= t.bracket.rungs[t.rung].resource
            if reached and t.result is None and "policy" not in e.verdict.evidence:
                r.arrive(e.trial, t.last)
            if reached and t.result is not None and t.rung + 1 < len(t.bracket.rungs):
                if e.epoch >= t.bracket.rungs[-1].resource:
                    pass  # trained in full below its last rung, as its pauses could not be saved: nobody is asked
                elif e.verdict.action is Action.CONTINUE:
                    r.climb(e.trial, e.seen)
                elif math.isfinite(t.result):
                    assert e.trial not in r.top(e.trial, e.seen)
        elif type(e).__name__ == "Checkpointed":
            t.kept = t.last
        elif isinstance(e, (Ended, Expired)):
            t.held, t.paused = False, e.status is Status.PAUSED
            if e.status in OVER and t.result is None:
                r.arrive(e.trial, t.last if e.status is Status.COMPLETED else -math.inf)
    return r


@pytest.mark.parametrize("form", ["promote", "stop"])
@pytest.mark.parametrize("eta", [2, 3, 2.5])
@pytest.mark.parametrize("workers", [1, 6])
def test_who_goes_on_is_in_the_top_of_those_that_arrived(form: Any, eta: float, workers: int) -> None:
    policy = SuccessiveHalving(n=60, eta=eta, asynchronous=form)
    lab = Lab(lambda: policy, rough(3, 0.1), epochs=27, workers=workers).run()
    rungs = climbed(lab.log, list(policy.table(27).brackets), eta, stops=form == "stop")
    assert len(rungs.promotions) > 15
    assert len(lab.study.trials) == 60
    assert differences(lab) == []
    longest = max(t.epoch for t in lab.study.trials)
    assert longest == 27
    if form == "stop":
        assert not any(isinstance(e, Resumed) for e in lab.log)
        assert all(t.status is not Status.PAUSED for t in lab.study.trials)


def test_at_the_end_of_the_promotion_form_nobody_is_left_who_may_go_on() -> None:
    policy = Hyperband(asynchronous=True)
    lab = Lab(lambda: policy, rough(4), epochs=27, workers=3).run()
    rungs = climbed(lab.log, list(policy.table(27).brackets), 3, stops=False)
    for id, t in rungs.trials.items():
        assert not (t.paused and id in rungs.top(id))
    assert len(rungs.trials) == sum(b.rungs[0].n for b in policy.table(27).brackets)


def test_new_configurations_fill_one_bracket_after_the_other_and_equal_brackets_share_their_rungs() -> None:
    policy = Hyperband(asynchronous=True, rounds=2)
    lab = Lab(lambda: policy, rough(4), epochs=9).run()
    brackets = [e.tags["bracket"] for e in lab.log if isinstance(e, Started)]
    sizes = [b.rungs[0].n for b in policy.table(9).brackets]
    assert brackets == [b for b, n in enumerate(sizes * 2) for _ in range(n)]
    rungs = climbed(lab.log, list(policy.table(9).brackets) * 2, 3, stops=False)
    assert len(rungs.arrived[policy.table(9).brackets[0], 0]) == 2 * sizes[0]


def test_nobody_ever_waits_while_configurations_are_left() -> None:
    make = lambda: Hyperband(rounds=None, brackets="most_exploratory", asynchronous=True)  # noqa: E731
    lab = Lab(make, rough(4), epochs=9, workers=7, budget=Budget(epochs=300)).run()
    assert lab.waits == 0
    assert isinstance(lab.answers[-1], Finish)


def test_asha_in_seconds_counts_measured_time() -> None:
    policy = SuccessiveHalving(9, 1.2, 10.8, asynchronous=True, resource="seconds")

    class Slow(Lab):
        def seconds(self, trial: int, epoch: float) -> float:
            return 0.5 + 0.5 * (trial % 3)

    lab = Slow(lambda: policy, rough(6), epochs=1000).run()
    for t in lab.study.trials:
        had = np.cumsum(t.seconds)
        assert min(abs(had[-1] - r) for r in (1.2, 3.6, 10.8)) < 1.5
        assert had[-1] < 10.8 + 1.5
    assert sum(t.seconds.sum() >= 3.6 for t in lab.study.trials) >= 3


ACTIONS = ["step"] * 10 + ["race"] * 3 + ["save", "fail", "early", "kill", "interrupt", "stuck", "late"]


@pytest.mark.parametrize("form", ["promote", "stop"])
@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=happenings(ACTIONS, 150),
    seed=st.integers(0, 10**6),
    bad=st.sampled_from([0.0, 0.2]),
)
def test_whatever_happens_only_the_top_goes_on_and_the_search_ends(
    form: Any, steps: list[tuple[int, int, str]], seed: int, bad: float
) -> None:
    policy = SuccessiveHalving(n=12, eta=2, asynchronous=form)
    lab = Lab(lambda: policy, rough(seed, bad), epochs=8, workers=4)
    for number, other, action in steps:
        act(lab, number, other, action)
    for worker in lab.workers:
        worker.stuck = False
    lab.clock.now += 1e5
    lab.run()
    raced = any(action == "race" for _, _, action in steps)
    rungs = climbed(lab.log, list(policy.table(8).brackets), 2, form == "stop", race=raced)
    for id, t in rungs.trials.items():
        assert not (t.paused and id in rungs.top(id))
    assert len(lab.study.trials) == 12
    assert differences(lab) == []
