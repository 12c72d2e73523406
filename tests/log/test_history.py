"""A history is a fold: whatever workers do, in one go or step by step, from memory or from SQL."""

from __future__ import annotations

import math
import warnings
from itertools import count
from typing import Any

import numpy as np
import pytest
from facts import folded, image, image_of
from hypothesis import given, settings
from hypothesis import strategies as st
from told import a_search, tell_trial, told
from whims import UNBOUNDED, Whims
from worlds import Clock

from examples import many
from haltune import Budget, Study, Trial, Verdict
from haltune.errors import HaltuneWarning, InvalidInput
from haltune.log import events as ev
from haltune.log.decisions import Action
from haltune.log.events import Event, Status
from haltune.log.history import History
from haltune.store.memory import MemoryStore
from haltune.store.sqlite import SqliteStore
from haltune.study.replay import replay
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
    assert [d for d in replay(UNBOUNDED, Whims(wait_at=3), log) if d[1] != d[2]] == []


studies = count()


@pytest.fixture(scope="module")
def sql_store(tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    return SqliteStore(f"sqlite:///{tmp_path_factory.mktemp('history')}/lives.db")


@settings(max_examples=many(20), deadline=None)
@given(lives)
def test_a_log_in_sql_folds_to_what_the_process_held_that_wrote_it(
    sql_store: SqliteStore, life: list[tuple[int, tuple[str, float]]]
) -> None:
    clock = Clock()
    memory = MemoryStore(clock)
    worker = lived(life, memory, clock)[0]
    name = f"life {next(studies)}"
    first, *rest = memory.read("study")
    sql_store.create(name, first)
    for event in rest:
        sql_store.append(name, [event], seen=10**6, about=None)
    assert image_of(folded(UNBOUNDED, sql_store.read(name))) == image_of(worker.study.history)


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


def test_a_metric_that_comes_late_is_nan_before() -> None:
    history = told()
    tell_trial(history, [], status=None)
    for n in (1, 2, 3):
        history.apply(
            ev.Reported(
                at=float(n), trial=0, attempt=1, epoch=float(n), value=0.5, seconds=1.0,
                verdict=Verdict(Action.CONTINUE, ""), seen=n, metrics={"f1": 0.5} if n == 2 else {},
            )
        )  # fmt: skip
    np.testing.assert_array_equal(history.trial(0).metrics["f1"], [math.nan, 0.5, math.nan])


def test_a_trial_that_does_not_exist_is_named_with_those_that_do() -> None:
    with pytest.raises(InvalidInput, match="no trial 3: this study has trials 0 to 2"):
        a_search().trial(3)
    with pytest.raises(InvalidInput, match="none yet"):
        told().trial(0)


def test_trials_of_a_status_come_in_order() -> None:
    history = tell_trial(a_search(), [0.1, 0.2])
    assert [t.id for t in history.with_status(Status.FAILED, Status.COMPLETED, Status.FAILED)] == [0, 2, 3]
    assert history.with_status(Status.PAUSED) == []


def test_streams_of_randomness_depend_on_seed_purpose_and_count() -> None:
    history = told()
    draws = {
        (purpose, k): history.rng(purpose, k).random() for purpose in ("propose", "judge", "fit") for k in range(3)
    }
    assert len(set(draws.values())) == 9
    assert history.rng("judge", 2).random() == np.random.default_rng([0, 2, 2]).random()


def test_a_trial_whose_worker_was_lost_says_which_in_words_that_a_person_can_read() -> None:
    history = tell_trial(told(), [0.5], status=None)
    lost = ev.Expired(
        at=9.0, trial=0, attempt=1, holder="node7/boot/1/4242/99/ab", last_alive=2.0, status=Status.INTERRUPTED
    )
    history.apply(lost)
    assert history.trial(0).error == "process 4242 on node7 was lost"
