"""A history is a fold of any workers' events, at once or step by step, from memory or from SQL."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
from facts import folded, image, image_of
from hypothesis import given, settings
from hypothesis import strategies as st
from told import a_search, tell_trial, told
from whims import PROBLEM, UNBOUNDED, Whims
from worlds import Clock, search, small_study

from examples import many
from haltune import Budget, Study, Trial
from haltune.errors import HaltuneWarning, StoreError
from haltune.log import events as ev
from haltune.log.events import Event, Reported
from haltune.log.history import History
from haltune.log.policy import Fold
from haltune.policies import RandomSearch
from haltune.store.memory import MemoryStore
from haltune.study.redecide import redecide
from haltune.study.session import clocked

values = st.sampled_from([0.1, 0.2, 0.5, 0.25, 0.75, 0.9, math.nan, math.inf, -math.inf, -1e300])
acts = st.one_of(
    st.just(("ask", 0)),
    st.tuples(st.just("report"), values),
    st.tuples(st.just("report"), values),
    st.tuples(st.just("report half"), values),
    st.tuples(st.just("report late"), values),
    st.tuples(
        st.sampled_from(["checkpoint", "finish", "fail", "interrupt", "heartbeat", "repeat", "end", "forget"]),
        st.just(0),
    ),
    st.tuples(st.just("wait"), st.sampled_from([1, 5, 20, 599, 700])),
)
lives = st.lists(st.tuples(st.integers(0, 1), acts), min_size=20, max_size=60)


class Worker:
    """One of several that share a log; it keeps trials that it no longer holds, and reports to them."""

    def __init__(self, store: Any, clock: Clock) -> None:
        self.clock = clock
        with clocked(clock):
            self.study = Study(UNBOUNDED, Whims(wait_at=3), store, seed=5, budget=Budget(trials=30))
        self.trial: Trial | None = None
        self.past: list[Trial] = []

    def act(self, what: str, argument: float) -> None:
        if what == "wait":
            self.clock.now += argument
        elif what == "report late" and self.past:
            trial = self.past[-1]
            trial.report(argument, min(trial.epoch + 1, trial.max_epochs or 1), 1.0)
        elif what == "ask" or self.trial is None:
            self._keep()
            answer = self.study.ask()
            self.trial = answer if isinstance(answer, Trial) else None
        else:
            self._with_trial(self.trial, what, argument)

    def _keep(self) -> None:
        if self.trial is not None:
            self.past.append(self.trial)

    def _with_trial(self, trial: Trial, what: str, argument: float) -> None:
        whole = min(math.floor(trial.epoch) + 1.0, trial.max_epochs or 1)
        if what == "report":
            trial.report(argument, whole, 1.0, metrics={"m": argument} if whole % 2 else None, validation=0.25)
        elif what == "report half":
            trial.report(argument, min(trial.epoch + 0.25, trial.max_epochs or 1), 0.5)
        elif what == "repeat" and trial.epoch:
            trial.report(0.5, trial.epoch, 1.0)
        elif what == "checkpoint":
            trial.checkpointed(f"tmp/{trial.epoch}", 0.5)
        elif what == "heartbeat":
            trial.heartbeat()
        elif what in ("finish", "fail", "interrupt", "end", "forget"):
            ends = {
                "finish": lambda: trial.finish("completed"), "fail": lambda: trial.fail(ValueError("x")),
                "interrupt": trial.interrupt, "end": lambda: trial.epoch and trial.finish(),
                "forget": lambda: None,
            }  # fmt: skip
            ends[what]()
            self._keep()
            self.trial = None


def lived(life: list[tuple[int, tuple[str, float]]], store: Any, clock: Clock) -> list[Worker]:
    workers = [Worker(store, clock), Worker(store, clock)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HaltuneWarning)
        for who, (what, argument) in life:
            workers[who].act(what, argument)
    for worker in workers:
        worker.study.sync()
    return workers


# what the log says, told once more, slowly and by other means


def told_slowly(log: list[Event]) -> tuple[dict[int, list[tuple[float, float]]], int]:
    """The curve of each trial, and the whole seconds during which any trial was held."""
    curves: dict[int, list[tuple[float, float]]] = {}
    attempt: dict[int, int] = {}
    held: dict[int, list[float]] = {}  # trial -> [start, last alive], while it runs
    saved: dict[int, float] = {}
    seconds: set[int] = set()

    def let_go(trial: int, at: float) -> None:
        start, last = held.pop(trial)
        seconds.update(range(int(start), int(max(last, at))))

    for e in log:
        trial = getattr(e, "trial", None)
        if isinstance(e, ev.Started | ev.Resumed):
            assert trial is not None
            curves[trial] = [p for p in curves.get(trial, []) if p[0] <= saved.get(trial, 0.0)]
            attempt[trial] = attempt.get(trial, 0) + 1
            held[trial] = [e.at, e.at]
        elif trial is None or trial not in held or attempt[trial] != e.attempt:  # type: ignore[attr-defined]
            continue
        elif isinstance(e, ev.Reported) and e.epoch > max([p[0] for p in curves[trial]], default=saved.get(trial, 0.0)):
            curves[trial].append((e.epoch, e.value))
            held[trial][1] = e.at
        elif isinstance(e, ev.Checkpointed):
            saved[trial] = e.epoch
            held[trial][1] = e.at
        elif isinstance(e, ev.Ended):
            let_go(trial, e.at)
        elif isinstance(e, ev.Expired):
            let_go(trial, e.last_alive)
    for trial in list(held):
        let_go(trial, 0.0)
    return curves, len(seconds)


@settings(max_examples=many(80), deadline=None)
@given(lives)
def test_whatever_two_workers_do_both_hold_what_the_log_says(life: list[tuple[int, tuple[str, float]]]) -> None:
    clock = Clock()
    store = MemoryStore(clock)
    workers = lived(life, store, clock)
    log = list(store.read("study"))
    at_once = image_of(folded(UNBOUNDED, log))
    assert [image_of(w.study.history) for w in workers] == [at_once, at_once]
    curves, held = told_slowly(log)
    history = workers[0].study.history
    found = {t.id: list(zip(t.epochs, t.values, strict=True)) for t in history.trials}
    assert image(found) == image(curves)
    assert history.spent.time == held
    assert [d for d in redecide(UNBOUNDED, Whims(wait_at=3), log) if d[1] != d[2]] == []


@settings(max_examples=many(40), deadline=None)
@given(lives, st.integers(0, 60))
def test_folding_step_by_step_is_folding_at_once_wherever_one_looks_in_between(
    life: list[tuple[int, tuple[str, float]]], look: int
) -> None:
    clock = Clock()
    store = MemoryStore(clock)
    lived(life, store, clock)
    log = list(store.read("study"))
    history = History(UNBOUNDED)
    for n, event in enumerate(log):
        history.apply(event)
        if n == look:
            looked = image_of(history)  # fills every cache
            assert looked == image_of(folded(UNBOUNDED, log[: n + 1]))
    assert image_of(history) == image_of(folded(UNBOUNDED, log))


# what it hands out


def test_records_are_read_only_and_stay_what_they_were() -> None:
    history = a_search()
    before = history.trial(0)
    for array in (before.epochs, before.values, before.scores, before.seconds):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7.0
    with pytest.raises(TypeError):
        before.config["lr"] = 3.0  # type: ignore[index]
    taken = image(before)
    tell_trial(history, [0.1])
    assert image(before) == taken
    assert history.trial(0) is before  # nothing happened to it


def test_streams_of_randomness_depend_on_seed_purpose_and_count() -> None:
    history = told()
    draws = {
        (purpose, k): history.rng(purpose, k).random() for purpose in ("propose", "judge", "fit") for k in range(3)
    }
    assert len(set(draws.values())) == 9
    assert history.rng("judge", 2).random() == np.random.default_rng([0, 2, 2]).random()


class Trips(Whims):
    """Cannot fold the second report."""

    def fold(self, state: int, event: Event) -> int:
        if isinstance(event, Reported) and event.epoch == 2:
            raise ZeroDivisionError("by its own doing")
        return super().fold(state, event)


@pytest.fixture(scope="module")
def log() -> list[Event]:
    return list(search(small_study(RandomSearch(), problem=PROBLEM, trials=2)).events())


def test_what_a_policy_raises_moves_nothing_and_is_reported_with_its_position(log: list[Event]) -> None:
    fold = Fold(PROBLEM, Trips(), "the study 's'")
    second = next(n for n, e in enumerate(log) if isinstance(e, Reported) and e.epoch == 2)
    with pytest.raises(StoreError, match=rf"event {second} of the study 's': Trips cannot fold it"):
        fold.read(log)
    assert (fold.history.position, fold.last) == (second, log[second - 1])
    with pytest.raises(ZeroDivisionError):
        fold.take(log[second])


def test_a_damaged_log_is_reported_as_damage_and_not_as_an_error_of_the_policy(log: list[Event]) -> None:
    class Strict(Whims):
        def fold(self, state: int, event: Any) -> int:
            if isinstance(event, Reported) and event.trial > 0:
                raise KeyError(event.trial)
            return super().fold(state, event)

    reports = [e for e in log if isinstance(e, Reported) and e.trial == 1]
    fold = Fold(PROBLEM, Strict())
    with pytest.raises(StoreError, match="event 1 of the study: reported of trial 1, but there are only 0 trials"):
        fold.read([log[0], reports[0]])
