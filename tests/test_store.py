"""Stores: one suite over memory and SQLite, then what only a file can suffer."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from worlds import accuracy, problem, search, small_study, train

from haltune import Budget, Study, Trial
from haltune.decisions import Action, Verdict
from haltune.errors import InvalidInput, NotSupported, StoreError
from haltune.events import Created, Reported, Started, Status
from haltune.policies import RandomSearch
from haltune.store import Conflict, Lease, MemoryStore, Release, Store, open_store

CREATED = Created(at=1.0, problem={"space": {}}, policy={"policy": "none"}, seed=3)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    made = open_store(None if request.param == "memory" else f"sqlite:///{tmp_path}/log.db")
    assert made.create("s", CREATED)
    return made


def started(trial: int) -> Started:
    return Started(
        at=2.0, trial=trial, config={"lr": 0.1, "name": "ünï"}, until=5.0, resource=None, tags={"rung": 1},
        reason="drawn", evidence={"ucb": 0.5}, seen=1, deciding=0.1, worker="w",
    )  # fmt: skip


def reported(trial: int, epoch: float, value: float = 0.5, **more: Any) -> Reported:
    verdict = Verdict(Action.CONTINUE, "going on", {"p_win": 0.25}, None)
    return Reported(
        at=3.0, trial=trial, attempt=1, epoch=epoch, value=value, seconds=1.5, verdict=verdict, seen=2, **more
    )


def test_a_name_is_made_once(store: Store) -> None:
    assert not store.create("s", CREATED)
    assert store.create("t", replace(CREATED, seed=4))
    assert store.names() == ["s", "t"]
    assert [e.seed for e in store.read("t") if isinstance(e, Created)] == [4]


def test_positions_count_from_the_first_event(store: Store) -> None:
    assert store.append("s", [started(0), reported(0, 1)], seen=1, about=None) == 1
    assert store.append("s", [reported(0, 2)], seen=3, about=0) == 3
    assert [e.kind for e in store.read("s", 1, 3)] == ["started", "reported"]


def test_moves_conflict_with_moves_and_not_with_reports(store: Store) -> None:
    store.append("s", [started(0)], seen=1, about=None)
    store.append("s", [reported(0, 1)], seen=2, about=0)
    store.append("s", [started(1)], seen=2, about=None)
    with pytest.raises(Conflict):
        store.append("s", [started(2)], seen=3, about=None)
    assert len(list(store.read("s"))) == 4


def test_reports_conflict_only_within_their_trial(store: Store) -> None:
    store.append("s", [started(0), started(1)], seen=1, about=None)
    store.append("s", [reported(0, 1)], seen=3, about=0)
    store.append("s", [reported(1, 1)], seen=3, about=1)
    with pytest.raises(Conflict):
        store.append("s", [reported(0, 2)], seen=3, about=0)


def test_a_conflicting_append_changes_no_lease(store: Store) -> None:
    lease = Lease(0, 1, "me", 100.0, 50.0)
    store.append("s", [started(0)], seen=1, about=None, lease=lease)
    with pytest.raises(Conflict):
        store.append("s", [reported(0, 1)], seen=1, about=0, lease=Release(0))
    assert store.leases("s") == [lease]


def test_leases_are_taken_renewed_and_given_back(store: Store) -> None:
    store.append("s", [started(0)], seen=1, about=None, lease=Lease(0, 1, "me", 100.0, 50.0))
    store.renew("s", Lease(0, 1, "me", 200.0, 150.0))
    store.renew("s", Lease(7, 1, "me", 999.0, 150.0))  # nobody's: nothing to renew
    assert store.leases("s") == [Lease(0, 1, "me", 200.0, 150.0)]
    store.append("s", [reported(0, 1)], seen=2, about=0, lease=Release(0))
    assert store.leases("s") == []


def test_another_holders_lease_is_not_renewed(store: Store) -> None:
    store.append("s", [started(0)], seen=1, about=None, lease=Lease(0, 2, "them", 100.0, 50.0))
    store.renew("s", Lease(0, 1, "me", 200.0, 150.0))
    assert store.leases("s") == [Lease(0, 2, "them", 100.0, 50.0)]


def test_a_store_that_does_not_know_a_study_says_so(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no study 'x'"):
        open_store(tmp_path / "a.db").leases("x")


# files


def test_paths_and_urls_open_the_same_file(tmp_path: Path) -> None:
    search(small_study(RandomSearch(), tmp_path / "a.db", trials=2))
    assert len(small_study(RandomSearch(), f"sqlite:///{tmp_path}/a.db").trials) == 2


@pytest.mark.parametrize("where", ["search.txt", 7, object()])
def test_what_is_no_store_is_refused(where: Any) -> None:
    with pytest.raises(InvalidInput, match=r"sqlite:///search\.db"):
        open_store(where)


def test_a_missing_folder_and_a_file_that_is_no_database_are_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does the folder exist"):
        open_store(f"sqlite:///{tmp_path}/nowhere/a.db")
    (tmp_path / "notes.db").write_text("these are notes, not a database. " * 100)
    with pytest.raises(StoreError, match="not a database"):
        open_store(tmp_path / "notes.db")


def test_an_unknown_kind_of_database_is_named() -> None:
    with pytest.raises(StoreError, match="cannot open nosql"):
        open_store("nosql://somewhere/else")


def begun(study: Study) -> Trial:
    trial = study.ask()
    assert isinstance(trial, Trial)
    return trial


def test_a_full_disk_loses_nothing_that_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    study = small_study(RandomSearch(), path, trials=3)
    train(begun(study))
    trial = begun(study)
    trial.report(0.5)
    engine = study._replica.store._engine  # type: ignore[attr-defined]
    with engine.connect() as c:
        pages = c.exec_driver_sql("PRAGMA page_count").scalar()
        c.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreError, match="make room"):
        for epoch in range(2, 400):
            trial.report(0.5, epoch, metrics={f"m{i}": float(i) for i in range(200)})
    stored = len(list(study.events()))
    with engine.connect() as c:
        c.exec_driver_sql("PRAGMA max_page_count=100000")
    trial.report(0.6, 500)
    reopened = small_study(RandomSearch(), path, trials=3)
    assert len(list(reopened.events())) == stored + 1
    assert reopened.history.trial(1).epoch == 500
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_a_locked_database_is_waited_for(tmp_path: Path) -> None:
    study = small_study(RandomSearch(), tmp_path / "a.db")
    trial = begun(study)
    writer = multiprocessing.get_context("spawn").Process(
        target=_hold_the_lock, args=(str(tmp_path / "a.db"), 1.0)
    )
    writer.start()
    for epoch in range(1, 6):
        trial.report(accuracy(trial.config, epoch))
    writer.join()
    assert len(study.history.trial(0).epochs) == 5


def _hold_the_lock(path: str, seconds: float) -> None:
    import time

    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    time.sleep(seconds)
    connection.execute("COMMIT")


# forks and pickles


def in_a_fork(work: Callable[[], None]) -> int:
    """The exit status of `work` in a forked child: 0 when it raised nothing."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_memory_store_refuses_to_lose_reports_in_a_fork() -> None:
    study = small_study(RandomSearch())
    trial = begun(study)

    def child() -> None:
        with pytest.raises(NotSupported, match="sqlite:///"):
            trial.report(0.5)

    assert in_a_fork(child) == 0
    assert len(study.history.trial(0).epochs) == 0


def test_a_file_store_works_on_both_sides_of_a_fork(tmp_path: Path) -> None:
    study = small_study(RandomSearch(), tmp_path / "a.db")
    trial = begun(study)
    assert in_a_fork(lambda: train(begun(study))) == 0
    trial.report(0.5)
    study.sync()
    assert [len(t.epochs) for t in study.trials] == [1, 6]
    assert study.trials[1].status is Status.COMPLETED


def test_stores_pickle_as_their_url_or_not_at_all(tmp_path: Path) -> None:
    study = search(small_study(RandomSearch(), tmp_path / "a.db", trials=2))
    copy = pickle.loads(pickle.dumps(study._replica.store))
    assert [e.kind for e in copy.read("study")] == [e.kind for e in study.events()]
    with pytest.raises(NotSupported, match="sqlite:///"):
        pickle.dumps(MemoryStore())


def test_nothing_in_a_database_is_pickled_and_nan_is_null(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    study = Study(problem(), RandomSearch(), path, budget=Budget(trials=1))
    begun(study).report(math.nan, metrics={"loss": math.nan})
    rows = sqlite3.connect(path)
    types = {t for (t,) in rows.execute("SELECT DISTINCT typeof(body) FROM haltune_events")}
    assert types <= {"text", "null"}
    assert rows.execute("SELECT value FROM haltune_events WHERE kind = 'reported'").fetchall() == [(None,)]
    assert rows.execute("SELECT name, value FROM haltune_metrics").fetchall() == [("loss", None)]
