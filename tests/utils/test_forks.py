"""A process forked while other threads of its parent work: it finds nothing locked and nothing half done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from callback_fakes import FakeTrial
from whims import PROBLEM, Whims

from haltune import Budget, Study, Trial, load_study
from haltune._utils import forks, threads
from haltune._utils.signals import undisturbed
from haltune.callbacks.reporter import Reporter
from haltune.errors import NotSupported, StoreError
from haltune.store.open import open_sql

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
LONG = 60  # seconds: a child that takes so long hangs


def in_child(life: Callable[[], object]) -> str:
    """Return the result as text, from a process that is forked now."""
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(LONG)
        try:
            said = str(life())
        except BaseException:
            said = traceback.format_exc()
        os.write(theirs, said.encode()[-60_000:])
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    return said if status == 0 else f"killed by signal {status}: {said}"


@contextmanager
def meanwhile(work: Callable[[Callable[[], None]], object]) -> Iterator[None]:
    """Another thread is within `work`, at the point where that calls what it is given, until the block ends."""
    there, enough = threading.Event(), threading.Event()

    def pause() -> None:
        there.set()
        enough.wait(LONG)

    thread = threading.Thread(target=work, args=(pause,))
    thread.start()
    assert there.wait(LONG)
    try:
        yield
    finally:
        enough.set()
        thread.join(LONG)


def a_study(store: Any, policy: Any = None) -> Study:
    return Study(PROBLEM, policy or Whims(), store, seed=1, budget=Budget(trials=9))


def asked(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    return trial


def test_no_connection_to_sqlite_is_carried_into_a_fork(tmp_path: Path) -> None:
    study = a_study(tmp_path / "f.db")

    def open_files() -> list[str]:
        found = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return [path for path in found if "f.db" in path]

    if Path("/proc/self/fd").exists():
        assert in_child(open_files) == "[]"
    asked(study).report(0.5)  # and here all continues


def test_a_child_reports_for_its_parent_which_continues(tmp_path: Path) -> None:
    study = a_study(tmp_path / "f.db")
    trial = asked(study)
    trial.report(0.5)

    def life() -> float:
        trial.adopt()
        trial.report(0.5)
        return trial.epoch

    assert in_child(life) == "2"
    trial.report(0.5, epoch=3)
    assert list(study.trials[0].epochs) == [1, 2, 3]


def raises(trial: Trial, study: Study) -> None:
    with suppress(ZeroDivisionError):
        trial.__exit__(ZeroDivisionError, ZeroDivisionError("in the child"), None)


def comes_to_the_end_of_the_block(trial: Trial, study: Study) -> None:
    trial.__exit__(None, None, None)


def calls_every_end(trial: Trial, study: Study) -> None:
    for end in (trial.finish, trial.interrupt, lambda: trial.fail(ValueError("in the child")), trial.heartbeat):
        end()


def ends_a_fit(trial: Trial, study: Study) -> None:
    for end in (lambda: Reporter(trial).end(), lambda: Reporter(trial).fail(ValueError("in the child"))):
        end()


def reports(trial: Trial, study: Study) -> None:
    for work in (lambda: trial.report(0.5), lambda: trial.save(lambda path: path.touch()),
                 lambda: trial.checkpointed("mine"), lambda: study.tell(trial, 0.5)):  # fmt: skip
        with pytest.raises(NotSupported, match=r"forked from it.*`with trial:` in this process, or call trial.adopt"):
            work()


@pytest.mark.parametrize("act", [raises, comes_to_the_end_of_the_block, calls_every_end, ends_a_fit, reports])
def test_a_fork_that_did_not_take_the_trial_over_neither_ends_it_nor_reports(
    tmp_path: Path, act: Callable[[Trial, Study], None]
) -> None:
    study = a_study(tmp_path / "f.db")
    trial = asked(study)
    with trial:
        trial.report(0.5)
        assert in_child(lambda: act(trial, study)) == "None"
        assert not trial.report(0.5).stops
    assert [e.kind for e in study.events()][-4:] == ["started", "reported", "reported", "ended"]


LEAVES = """
import atexit, os, sys
from haltune import Float, Minimize, Study
from haltune.policies import RandomSearch
study = Study({"x": Float(0.0, 1.0)}, Minimize("loss"), "f.db", max_epochs=3, policy=RandomSearch(trials=1), verbose=0)
for trial in study:
    atexit.register(trial.finish)
    with trial:
        for epoch in trial.epochs():
            trial.report(0.5)
            if epoch == 2 and not (child := os.fork()):
                sys.exit(0)  # through the generators, the block and the handlers at exit
            if epoch == 2:
                os.waitpid(child, 0)
"""


def test_a_fork_that_leaves_the_loops_of_its_parent_by_sys_exit_ends_nothing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", LEAVES], cwd=tmp_path, check=True, timeout=LONG)
    (trial,) = load_study(tmp_path / "f.db").trials
    assert (trial.attempt, trial.status, trial.epoch) == (1, "completed", 3.0)


def test_a_fork_that_enters_the_trial_trains_it(tmp_path: Path) -> None:
    study = a_study(tmp_path / "f.db")
    trial = asked(study)

    def life() -> str:
        with trial:
            trial.report(0.5)
        return str(trial.ended)

    assert in_child(life) == "completed"
    trial.finish()
    assert study.trials[0].status.value == "completed"


def test_a_fork_that_asks_is_another_worker(tmp_path: Path) -> None:
    study = a_study(tmp_path / "f.db")
    trial = asked(study)

    def life() -> int:
        other = asked(study)
        other.report(0.5)
        other.finish()
        return other.id

    assert in_child(life) == "1"
    assert not trial.report(0.5).stops


def test_a_fork_waits_for_a_transaction_of_another_thread(tmp_path: Path) -> None:
    store = open_sql(f"sqlite:///{tmp_path}/f.db")
    done = []

    def transaction(c: Any) -> None:
        c.exec_driver_sql("SELECT 1")
        started.set()
        enough.wait(0.2)
        done.append(1)

    started, enough = threading.Event(), threading.Event()
    thread = threading.Thread(target=store._run, args=(transaction,))
    thread.start()
    started.wait(LONG)
    assert in_child(lambda: (done, store.names(), forks.held_off.torn)) == "([1], [], False)"
    thread.join()


def test_where_a_fork_could_not_wait_the_child_says_so_and_does_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "LONGEST_WAIT", 0.01)
    store = open_sql(f"sqlite:///{tmp_path}/f.db")

    def refused(work: Callable[[], object]) -> str:
        with pytest.raises(StoreError, match=r"forked while another thread was writing.*'spawn'"):
            work()
        return "refused"

    with meanwhile(lambda pause: store._run(lambda c: pause())):
        assert in_child(lambda: refused(store.names)) == "refused"
        assert in_child(lambda: refused(lambda: open_sql(f"sqlite:///{tmp_path}/f.db"))) == "refused"
    assert store.names() == []


class Slow(Whims):
    """Waits within a fold, on request."""

    pause: Callable[[], None] | None = None

    def fold(self, state: int, event: Any) -> int:
        if self.pause is not None:
            pause, self.pause = self.pause, None
            pause()
        return super().fold(state, event)


@pytest.mark.parametrize("kind", ["a file", "memory"])
def test_what_another_thread_was_folding_is_folded_again(tmp_path: Path, kind: str) -> None:
    policy = Slow()
    study = a_study(tmp_path / "f.db" if kind == "a file" else None, policy)
    trial = asked(study)

    def report(pause: Callable[[], None]) -> None:
        policy.pause = pause
        trial.report(0.5)

    def life() -> Any:
        return study.trials[0].values.tolist(), study.history.position, study.outcome.over

    before = study.history.position
    with meanwhile(report):
        assert in_child(life) == f"([0.5], {before + 1}, False)"
        assert study.history.position == before  # here it is not folded yet
    assert study.history.position == before + 1


def test_a_heartbeat_of_the_parent_is_not_waited_for() -> None:
    reporter = Reporter(FakeTrial())
    reporter.begin()
    event = reporter._enough

    def hold(pause: Callable[[], None]) -> None:
        with event._cond:
            pause()

    def life() -> str:
        reporter.release()
        return "stopped"

    with meanwhile(hold):
        assert in_child(life) == "stopped"
    reporter.release()


# -- one thread for linear algebra


class Library:
    """Stands for a BLAS library."""

    def __init__(self) -> None:
        self.threads = 8

    def put(self, threads: int) -> None:
        self.threads = threads


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    monkeypatch.setattr(threads, "_libraries", lambda: [(lambda: found.threads, found.put)])
    return found


def decide(pause: Callable[[], None]) -> None:
    with undisturbed, threads.one_thread, undisturbed.heard:
        pause()


def test_threads_that_decide_at_the_same_time_leave_the_number_as_it_was(library: Library) -> None:
    with undisturbed, threads.one_thread, undisturbed.heard:
        with meanwhile(decide):
            with undisturbed, threads.one_thread, undisturbed.heard:
                assert library.threads == 1
            assert library.threads == 1
        assert library.threads == 1
    assert library.threads == 8


def test_a_child_computes_with_all_threads_while_its_parent_decides(library: Library) -> None:
    with meanwhile(decide):
        assert in_child(lambda: library.threads) == "8"

    def deeper() -> list[int]:
        seen = [library.threads]
        with undisturbed, threads.one_thread, undisturbed.heard:
            seen.append(library.threads)
        return [*seen, library.threads]

    with undisturbed, threads.one_thread, undisturbed.heard:
        assert in_child(deeper) == "[1, 1, 1]"
    assert library.threads == 8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::haltune.HaltuneWarning")  # so the load continues
def test_three_hundred_forks_under_load_hang_nowhere(tmp_path: Path) -> None:
    trial, enough = asked(study := a_study(tmp_path / "f.db")), threading.Event()
    children = 300

    def loop(*work: Callable[[], object]) -> None:
        while not enough.is_set():
            [w() for w in work]

    threads = [
        threading.Thread(target=loop, args=work)
        for work in ((trial.heartbeat, study.sync), (lambda: trial.report(0.5, epoch=1),))
    ]
    [thread.start() for thread in threads]

    def life() -> str:
        trial.adopt()
        trial.report(0.4, epoch=3)
        return "reported"

    try:
        said = [in_child(life) for _ in range(children)]
    finally:
        enough.set()
        [thread.join() for thread in threads]
    assert said == ["reported"] * children
