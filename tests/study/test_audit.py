"""Counts of an audit, from logs with known counts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from rising import HORIZON, SOLVER, curve
from scipy.stats import binomtest
from worlds import problem, small_study

from haltune import Float, Maximize, Problem, Space, Study, Verdict
from haltune.log.decisions import AUDIT, continue_, stop
from haltune.log.events import (
    Created,
    Ended,
    Event,
    Reported,
    Resumed,
    Started,
    Status,
    verdict_from_json,
    verdict_to_json,
)
from haltune.log.history import History
from haltune.policies import BOBOS, Halting, OptimalStopping, RandomSearch
from haltune.study.explain import Audit, Rate, audit
from haltune.study.view import read_study

ONE = Problem(Space({"lr": Float(0, 1)}), Maximize("acc", (0, 1)), 10)
K1 = 500.0
SPEC = Halting(RandomSearch(), OptimalStopping(K1=K1), audit=0.2).spec


def numbers(p: float, incumbent: float = 0.8, go: float = 2.0, k1: float = K1, **more: Any) -> dict[str, Any]:
    """Return a decision's evidence, with the expected cost `go` of continuing."""
    return {
        "p_win": p, "loss_stop": k1 * p, "loss_continue": go, "loss_win": 99.0 * (1.0 - p), "incumbent": incumbent,
        "K1": k1, "K2": 99.0, "c": 1.0, **more,
    }  # fmt: skip


def would_stop(epoch: float, p: float = 0.002, incumbent: float = 0.8, **more: Any) -> Verdict:
    """The verdict of a would-be stop."""
    return continue_("audit: would stop here", **numbers(p, incumbent, **more), audit=epoch)


class Log:
    """A log written by hand."""

    def __init__(self, problem: Problem = ONE, spec: Mapping[str, Any] = SPEC) -> None:
        self.history, self.events = History(problem), list[Event]()
        self.add(Created(at=0.0, problem={}, policy=dict(spec), seed=0))

    def add(self, event: Event) -> None:
        self.history.apply(event)
        self.events.append(event)

    @property
    def at(self) -> float:
        return float(len(self.events))

    def attempt(self, id: int) -> int:
        return self.history.trial(id).attempt

    def start(self, drawn: bool = True) -> int:
        id = len(self.history)
        self.add(
            Started(
                at=self.at, trial=id, config={"lr": 0.5}, pause_at=10.0, resource=None, tags={}, reason="",
                evidence={AUDIT: 0.2} if drawn else {}, seen=len(self.events), deciding=0.0, worker="w",
            )
        )  # fmt: skip
        return id

    def report(self, id: int, epoch: float, value: float, verdict: Verdict | None = None) -> None:
        stored = verdict_from_json(verdict_to_json(verdict or continue_("on it goes")))
        self.add(
            Reported(
                at=self.at, trial=id, attempt=self.attempt(id), epoch=epoch, value=value, seconds=1.0,
                verdict=stored, seen=len(self.events),
            )
        )  # fmt: skip

    def end(self, id: int, status: Status = Status.COMPLETED) -> None:
        self.add(Ended(at=self.at, trial=id, attempt=self.attempt(id), status=status))

    def resume(self, id: int, anew: bool = False) -> None:
        self.add(
            Resumed(
                at=self.at, trial=id, attempt=self.attempt(id) + 1, pause_at=10.0, resource=None, tags={}, reason="",
                evidence={}, seen=len(self.events), deciding=0.0, worker="w", by_policy=False, anew=anew,
            )
        )  # fmt: skip

    def run(
        self, values: Sequence[float], verdicts: Mapping[int, Verdict], drawn: bool = True,
        status: Status | None = Status.COMPLETED,
    ) -> int:  # fmt: skip
        """One trial, a report an epoch."""
        id = self.start(drawn)
        for epoch, value in enumerate(values, 1):
            self.report(id, float(epoch), value, verdicts.get(epoch))
        if status is not None:
            self.end(id, status)
        return id

    def audit(self, wanted: float = 0.02) -> Audit:
        return audit(self.history, self.events, wanted)


def to(end: float) -> list[float]:
    return [*[0.1] * 9, end]


# counting


def test_a_log_whose_counts_are_known() -> None:
    log = Log()
    log.run(to(0.8), {}, drawn=False)
    log.run(to(0.7), {4: would_stop(4)})  # right: 6 epochs
    log.run(to(0.9), {3: would_stop(3)})  # wrong: 7
    log.run(to(0.95), {5: continue_("", **numbers(0.5, 0.9))})  # a winner that would not have been stopped
    log.run(to(0.6), {5: continue_("", **numbers(0.5, 0.95))})  # a losing trial that would not
    log.run([0.1] * 4, {2: would_stop(2)}, status=Status.FAILED)  # unknown: 2
    log.run([0.1] * 5, {2: would_stop(2)}, status=Status.PAUSED)  # unknown: 3
    log.run([0.1] * 6, {2: would_stop(2)}, status=None)  # runs: 4
    log.run([0.1] * 3, {3: stop("", **numbers(0.0, 0.95))}, drawn=False, status=Status.STOPPED)  # saved 7
    log.run([0.1] * 2, {2: stop("last of its rung", rank=3)}, drawn=False, status=Status.STOPPED)  # not the rule's
    log.run([0.1] * 4, {2: would_stop(2), 4: stop("its rung")}, status=Status.STOPPED)  # cut by another: 2
    told = log.audit()
    assert (told.share, told.audited, told.stops, told.wrong, told.unknown) == (0.2, 8, 6, 1, 4)
    assert (told.of_stops, told.of_winners) == (Rate(1, 2), Rate(1, 2))
    assert (told.cost, told.saved) == (6 + 7 + 2 + 3 + 4 + 2, 7)
    assert [(r.trial, r.epoch, r.wrong) for r in told.runs] == [
        (1, 4.0, False), (2, 3.0, True), (5, 2.0, None), (6, 2.0, None), (7, 2.0, None), (10, 2.0, None)
    ]  # fmt: skip


# rates


def test_an_interval_is_the_exact_one() -> None:
    for of in (1, 5, 30, 200):
        for count in {0, 1, of // 3, of - 1, of}:
            known = binomtest(count, of).proportion_ci(0.95, method="exact")
            assert Rate(count, of).interval == pytest.approx((known.low, known.high), abs=1e-9)
    assert Rate(0, 0).interval == (0.0, 1.0)
    assert math.isnan(Rate(0, 0).value)


# the K1 of a wanted rate


def test_the_k1_is_the_least_of_all_that_reach_the_rate() -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        log, runs = Log(), []
        for _ in range(int(rng.integers(3, 12))):
            p = float(rng.choice([0.0005, 0.001, 0.002, 0.003, 0.004]))
            wins = bool(rng.random() < 0.3)
            log.run(to(0.9 if wins else 0.7), {4: would_stop(4, p=p)})
            runs.append((p, wins))
        wanted = float(rng.choice([0.0, 0.1, 0.3]))
        tried = [K1, *[k for k in range(500, 5000, 1) if k > K1]]

        def fits(k1: float, runs: Any = runs, wanted: float = wanted) -> bool:
            stopped = [wins for p, wins in runs if k1 * p <= 2.0]
            return sum(stopped) <= wanted * len(stopped)

        least = next(k for k in tried if fits(k))
        found = log.audit(wanted).K1
        assert found is not None
        assert least <= found <= least * 1.01 + 1  # of three digits
        assert fits(found)


# words


# of real searches


def searched(policy: Any, **options: Any) -> Study:
    rng = np.random.default_rng(4)
    ends = rng.uniform(0.2, 0.95, 40)
    study = small_study(policy, problem=problem(epochs=HORIZON), trials=12, **options)
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(curve(ends[trial.id], epoch), seconds=1.0)
    return study


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(Halting(RandomSearch(), SOLVER, audit=0.5), id="halting"),
        pytest.param(BOBOS(initial=3, stopping=SOLVER, audit=0.5), id="bobos", marks=pytest.mark.slow),
    ],
)
def test_a_search_is_counted_as_its_curves_show(policy: Any, tmp_path: Any) -> None:
    study = searched(policy, store=str(tmp_path / "audited.db"))
    told, drawn = study.audit(), set[int]()
    stops, best = dict[int, tuple[float, float]](), -math.inf
    for event in study.events():
        if isinstance(event, Started) and AUDIT in event.evidence:
            drawn.add(event.trial)
        if isinstance(event, Reported) and "would stop here" in event.verdict.reason:
            stops[event.trial] = event.epoch, best
        if isinstance(event, Ended):
            best = max(best, float(study.trials[event.trial].values[-1]))
    assert told.audited == len(drawn)
    assert 0 < told.stops == len(stops)
    assert told.wrong == sum(study.trials[i].values[-1] > then for i, (_, then) in stops.items())
    assert told.cost == sum(HORIZON - epoch for epoch, _ in stops.values())
    assert told.saved == sum(HORIZON - t.epoch for t in study.trials if t.status is Status.STOPPED)
    assert {t.status for t in study.trials if t.id in drawn} == {Status.COMPLETED}
    assert read_study(str(tmp_path / "audited.db")).audit() == told  # without its program
