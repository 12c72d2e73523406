"""What an audit counts, from logs whose counts are known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from rising import HORIZON, SOLVER, curve
from scipy.stats import binomtest
from worlds import problem, search, small_study

from haltune import Budget, Float, Maximize, Minimize, Problem, Space, Study, Verdict
from haltune.log.decisions import AUDIT, go_on, stop
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
from haltune.policies import BOBOS, Halting, RandomSearch
from haltune.study.explain import Audit, Rate, audit
from haltune.study.view import read_study

ONE = Problem(Space({"lr": Float(0, 1)}), Maximize("acc", (0, 1)), 10)
K1 = 500.0
SPEC = Halting(RandomSearch(), audit=0.2).spec


def numbers(p: float, incumbent: float = 0.8, go: float = 2.0, k1: float = K1, **more: Any) -> dict[str, Any]:
    """A decision's evidence, where going on is expected to cost `go`."""
    return {
        "p_win": p, "loss_stop": k1 * p, "loss_continue": go, "loss_win": 99.0 * (1.0 - p), "incumbent": incumbent,
        "K1": k1, "K2": 99.0, "c": 1.0, **more,
    }  # fmt: skip


def would_stop(epoch: float, p: float = 0.002, incumbent: float = 0.8, **more: Any) -> Verdict:
    """The verdict of a would-be stop."""
    return go_on("audit: would stop here", **numbers(p, incumbent, **more), audit=epoch)


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
                at=self.at, trial=id, config={"lr": 0.5}, until=10.0, resource=None, tags={}, reason="",
                evidence={AUDIT: 0.2} if drawn else {}, seen=len(self.events), deciding=0.0, worker="w",
            )
        )  # fmt: skip
        return id

    def report(self, id: int, epoch: float, value: float, verdict: Verdict | None = None) -> None:
        stored = verdict_from_json(verdict_to_json(verdict or go_on("on it goes")))
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
                at=self.at, trial=id, attempt=self.attempt(id) + 1, until=10.0, resource=None, tags={}, reason="",
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
    log.run(to(0.95), {5: go_on("", **numbers(0.5, 0.9))})  # a winner that would not have been stopped
    log.run(to(0.6), {5: go_on("", **numbers(0.5, 0.95))})  # a loser that would not
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


@pytest.mark.parametrize(
    ("goal", "values", "incumbent", "wrong"),
    [
        (Maximize("acc", (0, 1)), to(0.85), 0.8, True),
        (Maximize("acc", (0, 1)), to(0.85), 0.9, False),
        (Maximize("acc", (0, 1)), to(0.8), 0.8, False),  # a tie does not beat it
        (Maximize("acc", (0, 1)), to(math.nan), 0.8, False),
        (Maximize("acc", (0, 1), of="last"), [0.1, 0.1, 0.85, *[0.2] * 7], 0.8, False),
        (Maximize("acc", (0, 1), of="best"), [0.1, 0.1, 0.85, *[0.2] * 7], 0.8, True),
        (Minimize("loss"), [*[2.0] * 9, 0.5], 0.6, True),
        (Minimize("loss"), [*[2.0] * 9, 0.7], 0.6, False),
    ],
)
def test_a_stop_is_wrong_if_the_value_that_counts_beats_the_incumbent_of_its_time(
    goal: Any, values: list[float], incumbent: float, wrong: bool
) -> None:
    log = Log(Problem(Space({"lr": Float(0, 1)}), goal, 10))
    log.run(values, {4: would_stop(4, incumbent=incumbent)})
    assert [r.wrong for r in log.audit().runs] == [wrong]


def test_without_an_audit_there_is_nothing_to_count() -> None:
    log = Log(spec=Halting(RandomSearch()).spec)
    log.run(to(0.7), {})
    told = log.audit()
    assert (told.share, told.audited, told.stops, told.K1) == (0.0, 0, 0, None)
    assert "BOBOS(audit=0.05)" in str(told)
    assert str(small_study(RandomSearch()).audit()) == str(told)


# rates


def test_an_interval_is_the_exact_one() -> None:
    for of in (1, 5, 30, 200):
        for count in {0, 1, of // 3, of - 1, of}:
            known = binomtest(count, of).proportion_ci(0.95, method="exact")
            assert Rate(count, of).interval == pytest.approx((known.low, known.high), abs=1e-9)
    assert Rate(0, 0).interval == (0.0, 1.0)
    assert math.isnan(Rate(0, 0).value)


# the K1 of a wanted rate


def losers(count: int) -> list[Any]:
    """Trials that K1 from 200 on stops at epoch 4, and the present one at epoch 6."""
    return [(0.7, {4: go_on("", **numbers(0.01)), 6: would_stop(6, p=0.001)})] * count


FORBIDDEN = {4: go_on("", **numbers(0.0001, sd_end=3.0, sd_now=1.0, kappa=2.0)), 5: would_stop(5, p=0.003)}
DIVERGED = (math.nan, {4: go_on("audit: would stop here", incumbent=0.8, audit=4.0)})
WRONG = (0.9, {4: would_stop(4, p=0.003)})  # stopped up to K1 = 2 / 0.003 = 667


@pytest.mark.parametrize(
    ("runs", "wanted", "K1", "advice"),
    [
        ([(0.9, {4: would_stop(4, p=0.0)})], 0.02, None, "no K1 gives at most 2% of stops wrong"),
        ([(0.9, {4: go_on("", **numbers(0.3))})], 0.02, None, "no trial that would have been stopped has ended"),
        ([(0.9, {4: go_on("", **numbers(0.04))}), *losers(5)], 0.2, K1, ""),  # fewer stops need many trials
        ([(0.9, {4: go_on("", **numbers(0.04))}), *losers(60)], 0.2, 100.0, ""),  # K2 + c, no less: theorem 2
        ([(0.9, FORBIDDEN), (0.7, {4: would_stop(4, p=0.0)})], 0.02, 667.0, ""),  # what the surrogate forbade
        ([DIVERGED, WRONG], 0.5, K1, ""),  # a diverged trial is stopped at any K1
        ([DIVERGED, WRONG], 0.02, 667.0, ""),
        ([WRONG, *losers(1)], 0.6, K1, "among these trials 1 of 2"),
        (losers(6), 0.02, K1, "0 of 6: 0%, 95% interval 0% to 45.9%; at least 183 stops"),
        (losers(182), 0.02, K1, "too few stops"),
        (losers(183), 0.02, 100.0, "K1=100 gives at most 2% of stops wrong: "),
    ],
)
def test_the_advice_names_a_k1_and_whether_the_stops_are_enough(
    runs: list[Any], wanted: float, K1: float | None, advice: str
) -> None:
    log = Log()
    for end, verdicts in runs:
        log.run(to(end), verdicts)
    found = log.audit(wanted)
    assert found.K1 == K1
    assert advice in found.advice
    assert found.advice in str(found) or not found.stops


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


def test_it_reads_as_sentences() -> None:
    log = Log()
    log.run(to(0.7), {4: would_stop(4)})
    log.run(to(0.9), {3: would_stop(3, p=0.003)})
    log.run([0.1] * 4, {2: would_stop(2)}, status=Status.FAILED)
    log.run([0.1] * 3, {3: stop("", **numbers(0.0))}, drawn=False, status=Status.STOPPED)
    lines = str(log.audit()).splitlines()
    assert "3 drawn so far, 3 of them would have been stopped (the end of 1 is not known)" in lines[0]
    assert lines[0].endswith("; wrong stops 1 of 2: 50%, 95% interval 1.26% to 98.7%")
    assert lines[1].endswith(": 1 of 1: 100%, 95% interval 2.5% to 100%")
    assert lines[2] == "the audit cost 15 epochs; stopping saved 7 epochs in the other trials"
    assert lines[3] == log.audit().advice
    assert [str(r) for r in log.audit().runs] == [
        "trial 0, at epoch 4 with P(beats 0.8) = 0.002; final value 0.7: a right stop",
        "trial 1, at epoch 3 with P(beats 0.8) = 0.003; final value 0.9: a wrong stop",
        "trial 2, at epoch 2 with P(beats 0.8) = 0.002; its end is not known",
    ]


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
    [Halting(RandomSearch(), SOLVER, audit=0.5), BOBOS(initial=3, stopping=SOLVER, audit=0.5)],
    ids=["halting", "bobos"],
)
def test_a_search_is_counted_as_its_curves_tell(policy: Any, tmp_path: Any) -> None:
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
    assert read_study(str(tmp_path / "audited.db")).audit() == told  # by whoever has not its program


def test_a_search_goes_on_with_its_audit_where_it_was(tmp_path: Any) -> None:
    policy = Halting(RandomSearch(), SOLVER, audit=0.5)
    whole = searched(policy)
    store = str(tmp_path / "audited.db")
    search(small_study(policy, store, problem=problem(epochs=HORIZON), budget=Budget(trials=1)))
    parts = [t.config for t in search(small_study(policy, store, problem=problem(epochs=HORIZON), trials=3)).trials]
    assert parts == [t.config for t in whole.trials[:3]]
    assert read_study(store).audit().audited == sum("audit of" in t.proposed for t in whole.trials[:3])
