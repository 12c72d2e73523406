"""A user's signal handler may call a study at any moment of a search, which stays correct."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from whims import PROBLEM, Whims

from haltune import Budget, Float, Maximize, Problem, Space, Study, Trial
from haltune.errors import NotSupported
from haltune.log.events import Reported, Started
from haltune.log.history import History
from haltune.policies import RandomSearch
from haltune.report import summary

pytestmark = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="a clock that interrupts is POSIX's")
EVERY = 0.002  # seconds from the end of a handler to the next
ASKED: dict[str, Callable[[Study], Any]] = {
    "trials": lambda s: [t.epoch for t in s.trials],
    "sync": lambda s: s.sync(),
    "summary": summary,
    "enqueue": lambda s: s.enqueue({"lr": 0.01}, again=True),
    "ask": lambda s: s.ask(),
}


def searched(study: Study, handler: Callable[[], object], calls: int) -> dict[tuple[int, float], float]:
    """Return the acknowledged reports while the handler is called repeatedly."""
    told: dict[tuple[int, float], float] = {}
    left = [calls]

    def called(number: int, frame: object) -> None:
        handler()
        left[0] -= 1
        signal.setitimer(signal.ITIMER_REAL, EVERY if left[0] > 0 else 0.0)

    before = signal.signal(signal.SIGALRM, called)
    signal.setitimer(signal.ITIMER_REAL, EVERY)
    try:
        for trial in study:
            for epoch in trial.epochs():
                stops = trial.report(0.1 * epoch).stops
                told[trial.id, float(epoch)] = 0.1 * epoch
                if stops:
                    break
            if left[0] <= 0:
                break
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert left[0] <= 0
    return told


@pytest.mark.parametrize(("asked", "store"), [(asked, "search.db") for asked in ASKED] + [("ask", None)])
def test_nothing_is_lost_or_doubled_and_the_search_continues(asked: str, store: str | None, tmp_path: Path) -> None:
    problem = Problem(Space({"lr": Float(1e-4, 1.0, log=True)}), Maximize("acc", (0, 1)), 5)
    kept = None if store is None else tmp_path / store
    study = Study(problem, RandomSearch(), kept, seed=0, budget=Budget(trials=10**6), verbose=0)
    refused: list[str] = []

    def handler() -> None:
        try:
            ASKED[asked](study)
        except NotSupported as error:  # within the policy's thinking
            refused.append(str(error))

    told = searched(study, handler, 60)
    log = list(study.events())
    assert {k: v for e in log if isinstance(e, Reported) for k, v in [((e.trial, e.epoch), e.value)]} == told
    begun = [e.trial for e in log if isinstance(e, Started)]
    assert begun == list(range(len(begun)))
    again = History(problem)
    for event in log:
        again.apply(event)
    assert len(again) == len(study.history)
    assert all("Set a flag in the handler" in text for text in refused)


def test_while_a_policy_thinks_a_handler_may_look_but_is_asked_to_set_a_flag_where_it_would_step() -> None:
    class Slow(Whims):
        def judge(self, *arguments: Any) -> Any:
            signal.raise_signal(signal.SIGUSR1)
            return super().judge(*arguments)

    study = Study(PROBLEM, Slow(), seed=1, budget=Budget(trials=3), verbose=0)
    seen: list[Any] = []

    def handler(number: int, frame: object) -> None:
        seen.append(len(study.trials))
        with pytest.raises(NotSupported, match="a signal handler"):
            study.ask()
        with pytest.raises(NotSupported, match="in memory is in use"):
            study.sync()

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        trial = study.ask()
        assert isinstance(trial, Trial)
        assert not trial.report(0.5).stops
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen == [1]
    assert list(study.trials[0].values) == [0.5]
