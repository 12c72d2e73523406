"""One file and several processes: forks, pickles, and moves that only one may win."""

from __future__ import annotations

import math
import os
import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from whims import PROBLEM, Whims
from workers import create, created, report_often, search_a_little, together, win_moves

from haltune import Budget, Study, Trial
from haltune.errors import NotSupported
from haltune.log.events import OVER, Reported, Started
from haltune.store.memory import MemoryStore
from haltune.store.open import open_store


def test_nothing_is_pickled_but_the_address(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/a.db")
    store.create("s", created())
    assert store.__getstate__() == {"url": f"sqlite:///{tmp_path}/a.db"}
    assert pickle.loads(pickle.dumps(store)).names() == ["s"]
    with pytest.raises(NotSupported, match="use a file"):
        pickle.dumps(MemoryStore())


def test_nothing_in_a_database_is_pickled_and_nan_is_null(tmp_path: Path) -> None:
    trial = Study(PROBLEM, Whims(), tmp_path / "a.db", budget=Budget(trials=1)).ask()
    assert isinstance(trial, Trial)
    trial.report(math.nan, metrics={"loss": math.nan})
    rows = sqlite3.connect(tmp_path / "a.db")
    tables = [name for (name,) in rows.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in tables:
        for row in rows.execute(f"SELECT * FROM {table}"):
            assert all(isinstance(v, int | float | str | None) for v in row)
    assert rows.execute("SELECT value FROM haltune_events WHERE kind = 'reported'").fetchall() == [(None,)]
    assert rows.execute("SELECT name, value FROM haltune_metrics").fetchall() == [("loss", None)]
    rows.close()


def in_a_fork(work: Callable[[], None]) -> str:
    """Return the error of `work` in a forked process, or 'done'."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work()
            text = "done"
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


@needs_fork
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_file_continues_after_a_fork_in_both_processes(tmp_path: Path) -> None:
    study = Study(PROBLEM, Whims(), tmp_path / "a.db", seed=1, budget=Budget(trials=9))
    mine = study.ask()
    assert isinstance(mine, Trial)
    mine.report(0.1)

    def work() -> None:
        theirs = study.ask()
        assert isinstance(theirs, Trial)
        with theirs:
            theirs.report(0.2)
            theirs.report(0.3)

    assert in_a_fork(work) == "done"
    mine.report(0.4)
    mine.finish()
    assert [(list(t.values), t.status) for t in study.trials] == [([0.1, 0.4], "completed"), ([0.2, 0.3], "completed")]
    workers = [e.worker for e in study.events() if isinstance(e, Started)]
    assert len(set(workers)) == 2


on_each = pytest.mark.parametrize("url", ["sqlite", pytest.param("postgres", marks=pytest.mark.slow)], indirect=True)


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/new.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.mark.slow
@on_each
def test_processes_that_create_the_same_study_at_once_make_one(url: str) -> None:
    made = together(create, *[(url, "s")] * 3)
    assert sorted(made) == [False, False, True]
    assert list(open_store(url).read("s")) == [created()]


@on_each
def test_two_processes_never_win_the_same_move_and_no_report_is_lost(url: str) -> None:
    store = open_store(url)
    store.create("s", created())
    won = together(win_moves, (url, 40), (url, 40))
    assert not set(won[0]) & set(won[1])
    moves = len(list(store.read("s"))) - 1
    assert moves == len(won[0]) + len(won[1])
    kept = together(report_often, (url, 0, 30), (url, 1, 30))
    reports = [e for e in store.read("s") if isinstance(e, Reported)]
    for trial in (0, 1):
        mine = [e for e in reports if e.trial == trial]
        assert [e.value for e in mine] == kept[trial]
        assert [e.metrics for e in mine] == [{"twice": 2 * v} for v in kept[trial]]


@on_each
def test_processes_share_one_search(url: str) -> None:
    trained = together(search_a_little, (url, 12), (url, 12))
    assert sorted(trained[0] + trained[1]) == list(range(12))
    study = Study(PROBLEM, Whims(), url, seed=1)
    assert all(t.status in OVER and len(t.values) == 5 for t in study.trials)
    assert [e.trial for e in study.events() if isinstance(e, Started)] == list(range(12))
