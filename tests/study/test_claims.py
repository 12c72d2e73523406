"""Workers decide one at a time where a decision takes long, and reports never wait for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from numpy.random import Generator
from whims import PROBLEM, Whims
from worlds import Clock, Crash, MortalStore

from haltune import Budget, Finish, Study, Trial
from haltune.log.decisions import Move
from haltune.log.events import Reported, Started
from haltune.log.history import History
from haltune.store.base import CLAIM, Lease, Store
from haltune.store.memory import MemoryStore
from haltune.store.open import open_sql
from haltune.study.proposing import TERM, WORTH
from haltune.study.redecide import redecide
from haltune.study.session import clocked

GONE = "elsewhere/boot/1/1/1/ab"


class Slow(Whims):
    """Whims whose proposals can be held up, and are counted."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.proposals = 0
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def propose(self, state: int, history: History, rng: Generator) -> Move:
        self.proposals += 1
        self.begun.set()
        assert self.go_on.wait(30.0)
        return super().propose(state, history, rng)


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryStore()
        return
    url = f"sqlite:///{tmp_path}/a.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    store = open_sql(url)
    yield store
    store.close()


def study(store: Any, policy: Slow, **options: Any) -> Study:
    return Study(PROBLEM, policy, store, seed=1, budget=Budget(trials=9), **options)


def slow_study(store: Any, policy: Slow | None = None) -> Study:
    """A study whose one logged decision took long, by its clock."""
    laps = iter(range(10**6))
    with clocked(lambda: float(next(laps))):
        made = study(store, policy or Slow())
    asked(made).report(0.5)
    assert made.history.deciding >= WORTH
    return made


def asked(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    return trial


def claim(holder: str = "me", expires: float = 9.0) -> Lease:
    return Lease(CLAIM, 0, holder, expires, renewed=1.0)


def test_a_claim_is_set_only_in_the_place_of_the_one_that_was_seen(store: Store) -> None:
    study(store, Slow())
    assert store.claimed("study") is None
    assert store.claim("study", claim(), None)
    assert not store.claim("study", claim("you"), None)
    assert store.claimed("study") == claim()
    assert store.claim("study", claim("you", 99.0), claim())
    assert not store.claim("study", None, claim())
    assert store.claimed("study") == claim("you", 99.0)
    assert store.claim("study", None, claim("you", 99.0))
    assert store.claimed("study") is None
    assert store.leases("study") == []


def test_while_one_worker_decides_another_waits_and_reports_pass(store: Store) -> None:
    reporting = asked(study(store, Slow()))
    mine, theirs = Slow(), Slow()
    slow = slow_study(store, mine)
    other = study(store, theirs)
    mine.begun.clear()
    mine.go_on.clear()
    got: list[Any] = []
    deciding = threading.Thread(target=lambda: got.append(slow.ask()))
    deciding.start()
    assert mine.begun.wait(30.0)
    waiting = threading.Thread(target=lambda: got.append(other.ask()))
    waiting.start()
    for value in (0.1, 0.2, 0.3):
        reporting.report(value)
    assert got == []
    mine.go_on.set()
    deciding.join(30.0)
    waiting.join(30.0)
    assert sorted(trial.id for trial in got) == [2, 3]
    assert theirs.proposals == 1  # made once, and not in vain
    log = list(other.events())
    moves = [n for n, e in enumerate(log) if isinstance(e, Started)]
    assert sum(isinstance(e, Reported) for e in log[moves[1] : moves[2]]) == 1 + 3
    assert [d for d in redecide(PROBLEM, Whims(), log) if d[1] != d[2]] == []


@pytest.mark.parametrize(("holder", "seconds"), [("of a process that is gone", 0.0), (GONE, TERM + 1.0)])
def test_the_claim_of_a_worker_that_died_is_taken_over(holder: str, seconds: float) -> None:
    clock = Clock()
    made = slow_study(MemoryStore(clock))
    store = made.store
    if holder != GONE:
        parts = made.session.holder.split("/")
        parts[3], parts[4] = "4194303", "1"  # no process has such a number
        holder = "/".join(parts)
    store.claim("study", claim(holder, clock.now + TERM), None)
    clock.now += seconds
    assert asked(made).id == 1


def test_a_policy_that_raises_ends_its_claim(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = slow_study(store)
    with monkeypatch.context() as patch:
        patch.setattr(made.policy, "propose", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            made.ask()
    assert store.claimed("study") is None
    assert asked(made).id == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the dead process's generator
def test_a_search_with_claims_that_dies_at_any_append_reaches_its_end() -> None:
    for life in range(1, 9):
        for after in (True, False):
            clock, laps = Clock(), iter(range(10**6))
            store = MortalStore(life, after, clock)

            def worker(store: Any = store, laps: Any = laps) -> Study:
                with clocked(lambda: float(next(laps))):
                    return Study(PROBLEM, Slow(), store, seed=1, budget=Budget(trials=3))

            with pytest.raises(Crash):
                for trial in worker():
                    trial.report(0.5, seconds=1.0)
            store.revive()
            clock.now += 1e6
            last = worker()
            for trial in last:
                trial.report(0.5, seconds=1.0)
            assert len(last.trials) == 3
            assert isinstance(last.ask(), Finish)
            assert store.claimed("study") is None
