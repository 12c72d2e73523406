"""A search within a trial: of the same study it is refused at once, and a wait within a trial hears signals."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from whims import PROBLEM, Whims

from haltune import Budget, Study, Trial
from haltune.errors import NotSupported
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


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_wait_within_an_epoch_ends_at_a_signal_and_the_trial_is_given_back(tmp_path: Path) -> None:
    outer, other = a_study(tmp_path / "s.db"), a_study(tmp_path / "other.db", trials=1)
    held = other.ask()  # the inner search waits for it
    waits = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        assert len(waits) < 9
        os.kill(os.getpid(), signal.SIGTERM)

    with clocked(lambda: 0.0, sleep):
        inner = a_study(tmp_path / "other.db", trials=1)
    trial = outer.ask()
    with pytest.raises(SystemExit) as left, trial:
        for _ in trial.epochs():
            loops(inner)
    assert (left.value.code, len(waits), trial.ended) == (128 + signal.SIGTERM, 1, "interrupted")
    held.finish("interrupted")
