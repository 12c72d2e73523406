"""A search within a trial: of the same study it is refused at once, and a wait within a trial hears signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from unittest.mock import Mock

import pytest
from locking import locked
from whims import PROBLEM, Whims

from haltune import Budget, Study, Trial
from haltune.errors import NotSupported, StoreAway
from haltune.store.base import CLAIM, Lease
from haltune.study.session import clocked


def a_study(store: Path | None, name: str = "study", trials: int = 2) -> Study:
    return Study(PROBLEM, Whims(), store, name=name, seed=1, budget=Budget(trials=trials))


def loops(study: Study) -> None:
    for trial in study:
        trial.finish()


def half(trial: Trial) -> float:
    return 0.5


def optimizes(study: Study) -> None:
    study.optimize(half)


def launches(study: Study) -> None:
    study.optimize(half, workers=2)


@pytest.mark.parametrize("search", [loops, optimizes, launches])
@pytest.mark.parametrize("anew", [False, True], ids=["the same object", "opened again"])
def test_a_search_within_its_own_trial_is_refused_at_once(
    search: Callable[[Study], None], anew: bool, tmp_path: Path
) -> None:
    study = a_study(tmp_path / "s.db")
    with pytest.raises(NotSupported, match=r"within trial 0 of the same study.*another name="):
        for trial in study:
            with trial:
                trial.report(0.5)
                search(a_study(tmp_path / "s.db") if anew else study)
    trial = a_study(tmp_path / "other.db").ask()
    assert isinstance(trial, Trial)
    with trial, pytest.raises(NotSupported, match="within trial 0"):
        trial.report(0.5)
        loops(a_study(tmp_path / "other.db"))


def test_another_study_or_thread_searches_within_a_trial_and_the_same_study_after_it(tmp_path: Path) -> None:
    study, inner = a_study(tmp_path / "s.db", trials=4), a_study(tmp_path / "s.db", "inner")
    with study.ask() as trial:
        trial.report(0.5)
        inner.optimize(half)
        worker = threading.Thread(target=lambda: study.ask().finish("interrupted"))
        worker.start()
        worker.join()
    study.optimize(half)
    assert (len(inner.trials), len(study.trials)) == (2, 4)


def another_trial(outer: Study, inner: Study, ends: ExitStack) -> Callable[[Trial], object]:
    """Other workers train all trials of an inner search."""
    for held in (inner.ask(), inner.ask()):
        assert isinstance(held, Trial)
        ends.callback(held.finish, "interrupted")
    return lambda trial: loops(inner)


def decision(outer: Study, inner: Study, ends: ExitStack) -> Callable[[Trial], object]:
    """Another worker decides what an inner search trains next: the last decision took a second."""
    first = inner.ask()
    assert isinstance(first, Trial)
    inner.tell(first, 0.5)
    now = inner.store.now()
    inner.store.claim("study", Lease(CLAIM, 0, "another worker", now + 60.0, now), None)
    return lambda trial: inner.ask()


def server(outer: Study, inner: Study, ends: ExitStack) -> Callable[[Trial], object]:
    """The server of the trial's own study does not answer."""
    patch = ends.enter_context(pytest.MonkeyPatch.context())
    patch.setattr(outer.store, "append", Mock(side_effect=StoreAway("no answer")))
    return lambda trial: trial.report(0.5)


def locked_file(outer: Study, inner: Study, ends: ExitStack) -> Callable[[Trial], object]:
    """Another program keeps the file of the trial's own study locked."""
    ends.enter_context(locked(Path(outer.store.url.removeprefix("sqlite:///"))))
    return lambda trial: trial.report(0.5)


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.filterwarnings("ignore:waiting up to:haltune.errors.HaltuneWarning")
@pytest.mark.parametrize("waits_for", [another_trial, decision, server, locked_file])
def test_a_wait_within_an_epoch_ends_at_a_signal_and_the_trial_is_given_back(
    waits_for: Callable[..., Callable[[Trial], object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, seconds, ends = list[float](), count(), ExitStack()

    def sleep(pause: float) -> None:
        waits.append(pause)
        ends.close()  # the end of the trial finds its store again
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("haltune.store.sql.time", Mock(monotonic=lambda: 9.0 * next(seconds), sleep=sleep))
    with clocked(lambda: float(next(seconds)), sleep):
        outer, inner = a_study(tmp_path / "s.db"), a_study(tmp_path / "other.db")
    trial = outer.ask()
    assert isinstance(trial, Trial)
    with pytest.raises(SystemExit) as left, trial:
        for _ in trial.epochs():
            waits_for(outer, inner, ends)(trial)
    assert (left.value.code, len(waits), trial.ended) == (128 + signal.SIGTERM, 1, "interrupted")
