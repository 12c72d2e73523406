"""A log decided again: by its own policy, which decides the same, and by another, which does as it would have done."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from curves import accuracy
from hypothesis import given, settings
from hypothesis import strategies as st
from laboratory import Lab, act, happenings, rough
from whims import PROBLEM, STOP, Whims
from worlds import EPOCHS, problem, quick, search, small_study

from examples import many, quickly
from haltune import Budget, Study, Verdict
from haltune.log.events import Event, Reported
from haltune.log.history import History
from haltune.policies import BOBOS, Halting, Hyperband, RandomSearch, SuccessiveHalving
from haltune.report.replay import Replayed
from haltune.store.memory import MemoryStore
from haltune.study.redecide import redecide


def searched(store: MemoryStore) -> list[Event]:
    """Two workers that take turns, so that decisions are appended out of the order of what they had seen."""
    workers = [Study(PROBLEM, Whims(finish_after=4), store, seed=1, budget=Budget(trials=6)) for _ in range(2)]
    iterators = [iter(w) for w in workers]
    for _ in range(2):
        trials = [next(i) for i in iterators]
        for epoch in range(1, 4):
            for trial in trials:
                if not (trial.verdict and trial.verdict.stops):
                    trial.report(STOP if epoch == 2 and trial.id % 2 else 0.1, seconds=1.0)
    assert [next(i, None) for i in iterators] == [None, None]
    return list(store.read("study"))


def test_every_decision_of_a_log_is_found_again() -> None:
    log = searched(MemoryStore())
    decisions = list(redecide(PROBLEM, Whims(finish_after=4), log))
    assert len(decisions) == 4 + 1 + 2 * 3 + 2 * 2
    assert [d for d in decisions if d[1] != d[2]] == []


def test_a_decision_that_was_tampered_with_is_pointed_at() -> None:
    log = searched(MemoryStore())
    position = next(i for i, e in enumerate(log) if isinstance(e, Reported))
    event = log[position]
    assert isinstance(event, Reported)
    log[position] = replace(event, verdict=Verdict(event.verdict.action, "I say so", event.verdict.evidence))
    wrong = [d for d in redecide(PROBLEM, Whims(finish_after=4), log) if d[1] != d[2]]
    assert [d[0] for d in wrong] == [position]
    assert wrong[0][1]["reason"] == "I say so"


# by another policy


def told(history: History) -> list[Any]:
    """Return all data of a log's trials as texts, in which NaN equals NaN."""
    return [
        (
            t.status,
            t.attempt,
            t.epochs.tolist(),
            repr(t.values.tolist()),
            repr(t.scores.tolist()),
            t.verdict,
            t.pause_at,
        )
        for t in history.trials
    ]


def lived_again(study: Study, policy: Any) -> Replayed:
    study.sync()
    return Replayed(study.problem, list(study.events()), policy)


def assert_the_same(study: Study, policy: Any) -> None:
    lived = lived_again(study, policy)
    log = Replayed(study.problem, list(study.events()))
    assert told(lived.history) == told(study.history)
    assert lived.trained == log.trained
    assert lived.ended == log.ended
    assert repr(lived.incumbents) == repr(log.incumbents)
    assert lived.history.best() == log.history.best()


HALTING: dict[str, tuple[Any, Any]] = {  # the same configurations in the same order, without stopping and with it
    "random": (lambda: RandomSearch(trials=8), lambda p: Halting(p, quick())),
    "kappa": (lambda: RandomSearch(trials=12), lambda p: Halting(p, quick(), kappa=1.5)),
    "bobos": (lambda: BOBOS(initial=8, wrong_stop=0.001), lambda p: BOBOS(initial=8, stopping=quick())),
    "audited": (
        lambda: Halting(RandomSearch(trials=8), quick(), audit=1.0),  # which trains all in full
        lambda p: Halting(p.policy, quick()),
    ),
}


@pytest.mark.parametrize("bounded", [pytest.param(True, marks=pytest.mark.slow), False], ids=["bounds", "learnt"])
@pytest.mark.parametrize("name", quickly(HALTING, "random", "bobos"))
def test_a_study_trained_in_full_shows_what_a_study_under_the_rule_would_have_done(name: str, bounded: bool) -> None:
    make, halt = HALTING[name]
    full = search_in_full(small_study(make(), trials=8, problem=problem(bounded=bounded)))
    lived = search(small_study(halt(make()), trials=8, problem=problem(bounded=bounded)))
    again = lived_again(full, halt(make()))
    assert told(again.history) == told(lived.history)
    assert again.ended
    assert again.ended.keys() == {t.id for t in lived.trials if t.epoch < EPOCHS}
    assert again.history.best() == lived.best


def search_in_full(study: Study) -> Study:
    """Train every trial to its end, against all verdicts."""
    for trial in study:
        with trial:
            for epoch in range(1, EPOCHS + 1):
                trial.report(accuracy(trial.config, epoch), epoch, seconds=1.0 + trial.id % 3)
    return study


WORKED: dict[str, Any] = {
    "rungs": lambda: Hyperband(eta=3, rounds=1),
    "asha": lambda: Hyperband(eta=3, rounds=1, asynchronous=True),
    "halting": lambda: Halting(SuccessiveHalving(n=9, rounds=1), quick()),
}


@pytest.mark.parametrize("name", quickly(WORKED, "rungs", "halting"))
@pytest.mark.filterwarnings("ignore::haltune.errors.HaltuneWarning")
@settings(max_examples=many(20), deadline=None)
@given(
    steps=happenings(["step", "race", "save", "early", "interrupt", "fail", "late", "stuck"], 100),
    seed=st.integers(0, 10**6),
)
def test_workers_that_decide_at_the_same_time_are_asked_again_on_what_each_had_seen(
    name: str, steps: list[tuple[int, int, str]], seed: int
) -> None:
    make = WORKED[name]
    lab = Lab(make, rough(seed), epochs=9, workers=4, seed=seed, budget=Budget(trials=12))
    for number, other, action in steps:
        act(lab, number, other, action)
    for worker in lab.workers:
        worker.stuck = False
    lab.clock.now += 1e7
    lab.run()
    assert_the_same(lab.study, make())
