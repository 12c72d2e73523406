"""Ctrl-C at any moment of what a worker asks of its study: nothing is lost, doubled, half done or kept locked.

The log is the oracle: what a report acknowledged is there once, whatever was interrupted before; and what this process
knows is what a fresh one reads.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest

import haltune
from haltune import Budget, Float, Maximize, Problem, Space, Study, Trial
from haltune._utils.forks import doors
from haltune._utils.threads import _libraries, _one, one_thread
from haltune.log.decisions import Finish, Wait
from haltune.log.events import Reported
from haltune.policies import RandomSearch

STEP = 3  # places between two that are tried: a prime, so that each of a loop's is
ROOM = str(Path(haltune.__file__).parent)
T = TypeVar("T")


def opened(store: str | None) -> Study:
    problem = Problem(Space({"x": Float(0.0, 1.0)}), Maximize("acc", (0.0, 1.0)), max_epochs=100_000)
    return Study(problem, RandomSearch(), store, seed=0, budget=Budget(trials=9), max_retries=10_000)


@pytest.fixture
def default_ctrl_c() -> Iterator[None]:
    """Ctrl-C as in a terminal: in the background of a shell it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def uninterrupted(work: Callable[[], T], place: int) -> T | None:
    """What `work` returns, or None for Ctrl-C at that place in haltune, counted from 1.

    A place is where Python looks for signals: as a function begins, and after a call of one that is written in C.
    """
    left = place

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal left
        # what a generator that is closed raises is nobody's to catch
        closed = frame.f_code.co_name == "<genexpr>"
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(ROOM) and not closed:
            left -= 1
            if not left:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    try:
        sys.setprofile(profile)
        return work()
    except KeyboardInterrupt:
        return None
    finally:
        sys.setprofile(None)


def asked(study: Study) -> Trial:
    found = study.ask()
    assert not isinstance(found, Finish | Wait)
    return found


def gives_back(trial: Trial) -> bool:
    trial.interrupt()
    return True


@pytest.mark.filterwarnings("error::haltune.errors.HaltuneWarning")
@pytest.mark.parametrize("again", [True, False], ids=["made once more", "left at that"])
@pytest.mark.parametrize("file", [True, False], ids=["sqlite", "memory"])
@pytest.mark.usefixtures("default_ctrl_c")
def test_a_report_that_is_interrupted_anywhere_is_recorded_once_or_not_at_all(
    tmp_path: Path, file: bool, again: bool
) -> None:
    store = f"sqlite:///{tmp_path}/search.db" if file else None
    study = opened(store)
    trial, place, told, acknowledged = asked(study), 1, 0, set[float]()
    while uninterrupted(partial(trial.report, told / 1e6), place) is None:
        study.sync()
        before = len(study.trials[0].values)
        if not again:
            told += 1
        trial.report(told / 1e6)
        acknowledged.add(told / 1e6)
        assert len(study.trials[0].values) - before <= 1
        told, place = told + 1, place + STEP
    assert place > 20 * STEP  # so many places were tried
    assert doors._count == 0
    recorded = Counter(e.value for e in study.store.read(study.name) if isinstance(e, Reported))
    assert [v for v, n in recorded.items() if n > 1] == [], (told, place)
    assert acknowledged <= set(recorded)
    known = study.trials[0]
    assert list(known.epochs) == list(range(1, len(recorded) + 1))
    assert list(known.values) == list(recorded)
    if file:
        assert list(known.values) == list(opened(store).trials[0].values)


@pytest.mark.usefixtures("default_ctrl_c")
def test_asking_and_giving_back_may_be_interrupted_anywhere(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/search.db"
    study, place, more = opened(store), 1, True
    while more:
        found = uninterrupted(study.ask, place)
        trial = found if isinstance(found, Trial) else asked(study)
        trial.report(0.5)
        more = found is None or uninterrupted(partial(gives_back, trial), place) is None
        trial.interrupt()
        place += 5 * STEP
        study.sync()
        other = opened(store)  # no lock is left behind, and everybody reads the same
        assert [(t.status, t.attempt) for t in other.trials] == [(t.status, t.attempt) for t in study.trials]
        assert other.store.leases(other.name) == []
        other.store.close()
    assert place > 20 * STEP
    assert doors._count == 0


@pytest.mark.usefixtures("default_ctrl_c")
def test_a_decision_that_is_interrupted_anywhere_leaves_the_training_its_threads() -> None:
    def decided() -> bool:
        with one_thread():
            return True

    def threads() -> list[int]:
        return [get() for get, _ in _libraries()]

    before, place = threads(), 1
    while uninterrupted(decided, place) is None:
        assert threads() == before
        assert not _one._within
        place += 1
    assert place > 10
