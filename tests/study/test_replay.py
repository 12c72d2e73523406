"""Replay finds every decision again, and finds the ones that another policy would not have made."""

from __future__ import annotations

from dataclasses import replace

from whims import PROBLEM, STOP, Whims

from haltune import Budget, Study, Verdict
from haltune.log.events import Event, Reported
from haltune.store.memory import MemoryStore
from haltune.study.replay import replay


def searched(store: MemoryStore) -> list[Event]:
    """Two workers that take turns, so that decisions are appended out of the order of what they had seen."""
    workers = [
        Study(PROBLEM, Whims(finish_after=4), store, seed=1, budget=Budget(trials=6)) for _ in range(2)
    ]
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
    decisions = list(replay(PROBLEM, Whims(finish_after=4), log))
    assert len(decisions) == 4 + 1 + 2 * 3 + 2 * 2
    assert [d for d in decisions if d[1] != d[2]] == []


def test_a_decision_that_was_tampered_with_is_pointed_at() -> None:
    log = searched(MemoryStore())
    position = next(i for i, e in enumerate(log) if isinstance(e, Reported))
    event = log[position]
    assert isinstance(event, Reported)
    log[position] = replace(event, verdict=Verdict(event.verdict.action, "I say so", event.verdict.evidence))
    wrong = [d for d in replay(PROBLEM, Whims(finish_after=4), log) if d[1] != d[2]]
    assert [d[0] for d in wrong] == [position]
    assert wrong[0][1]["reason"] == "I say so"


def test_what_the_policy_was_not_asked_is_not_replayed() -> None:
    store = MemoryStore()
    study = Study(PROBLEM, Whims(), store, seed=1, budget=Budget(epochs=3))
    for trial in study:
        trial.report(0.1, epoch=0.5)
        trial.report(0.1)
        trial.report(0.1, judge=False)
        trial.report(0.1)  # the budget stops it
    found = [log[1] for log in replay(PROBLEM, Whims(), store.read("study"))]
    assert [f[0] if isinstance(f, list) else f["action"] for f in found] == ["start", "continue"]
