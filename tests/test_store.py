"""One suite for all stores; then what only a file can do, and what only goes wrong with files."""

from __future__ import annotations

import os
import pickle
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from whims import PROBLEM, Whims
from workers import create, created, report_often, search_a_little, together, win_moves

from haltune import Budget, Study, Trial
from haltune.decisions import go_on
from haltune.errors import InvalidInput, NotSupported, StoreError, StudyMismatch
from haltune.events import OVER, Ended, Event, Expired, Finished, Reported, Rescaled, Started, Status
from haltune.sqlstore import SqlStore
from haltune.store import Conflict, Lease, MemoryStore, Release, Store, only_study, open_store


def report(trial: int, epoch: float = 1.0) -> Reported:
    return Reported(
        at=1.0, trial=trial, attempt=1, epoch=epoch, value=0.5, seconds=1.0, verdict=go_on("on"), seen=1, metrics={}
    )


def start(trial: int) -> Started:
    return Started(
        at=1.0, trial=trial, config={"x": 0.5}, until=None, resource=None, tags={}, reason="", evidence={}, seen=1,
        deciding=0.0, worker="w",
    )  # fmt: skip


def lease(trial: int, holder: str = "me", attempt: int = 1, expires: float = 9.0) -> Lease:
    return Lease(trial, attempt, holder, expires, renewed=1.0)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    store: Store = MemoryStore(lambda: 42.0)
    if request.param == "sqlite":
        store = SqlStore(f"sqlite:///{tmp_path}/store.db", lambda: 42.0)
    store.create("s", created())
    return store


def test_its_clock_is_the_one_given(store: Store) -> None:
    assert store.now() == 42.0


def test_a_study_is_created_once_and_names_come_in_order(store: Store) -> None:
    assert store.create("b", created())
    assert store.create("a", created())
    assert not store.create("b", created())
    assert store.names() == ["s", "b", "a"]


def test_studies_of_one_store_know_nothing_of_each_other(store: Store) -> None:
    store.create("other", created())
    store.append("s", [start(0)], seen=1, about=None, lease=lease(0))
    assert list(store.read("other")) == [created()]
    assert store.leases("other") == []
    assert store.append("other", [start(0)], seen=1, about=None) == 1


def test_positions_count_from_the_creation(store: Store) -> None:
    assert store.append("s", [start(0)], seen=1, about=None) == 1
    assert store.append("s", [report(0), report(0, 2.0)], seen=2, about=0) == 2
    assert list(store.read("s")) == [created(), start(0), report(0), report(0, 2.0)]
    assert list(store.read("s", 2)) == [report(0), report(0, 2.0)]
    assert list(store.read("s", 1, 3)) == [start(0), report(0)]
    assert list(store.read("s", 4)) == []


MOVES: list[Event] = [start(1), Rescaled(at=1.0, low=0.0, high=1.0), Finished(at=1.0, reason="", seen=1)]
OTHERS: list[Event] = [
    report(0), Ended(at=1.0, trial=0, attempt=1, status=Status.FAILED),
    Expired(at=1.0, trial=0, attempt=1, holder="h", last_alive=1.0, status=Status.INTERRUPTED),
]  # fmt: skip


@pytest.mark.parametrize("event", MOVES, ids=lambda e: e.kind)
def test_moves_conflict_with_moves_appended_since_and_reports_do_not(store: Store, event: Event) -> None:
    store.append("s", [event], seen=1, about=None)
    with pytest.raises(Conflict):
        store.append("s", [start(0)], seen=1, about=None)
    assert store.append("s", [report(0)], seen=1, about=0) == 2
    assert store.append("s", [start(2)], seen=2, about=None) == 3  # the report does not matter to it


@pytest.mark.parametrize("event", OTHERS, ids=lambda e: e.kind)
def test_reports_conflict_within_their_trial_only(store: Store, event: Event) -> None:
    store.append("s", [event], seen=1, about=0)
    with pytest.raises(Conflict):
        store.append("s", [report(0)], seen=1, about=0)
    assert store.append("s", [report(1)], seen=1, about=1) == 2
    assert store.append("s", [start(2)], seen=1, about=None) == 3


def test_what_conflicts_leaves_neither_events_nor_leases(store: Store) -> None:
    store.append("s", [start(0)], seen=1, about=None, lease=lease(0))
    with pytest.raises(Conflict):
        store.append("s", [start(0)], seen=1, about=None, lease=lease(0, "you"))
    with pytest.raises(Conflict):
        store.append("s", [report(0)], seen=1, about=0, lease=Release(0))
    assert list(store.read("s")) == [created(), start(0)]
    assert store.leases("s") == [lease(0)]


def test_leases_are_set_with_events_and_given_back_with_events(store: Store) -> None:
    store.append("s", [start(0)], seen=1, about=None, lease=lease(0))
    store.append("s", [start(1)], seen=2, about=None, lease=lease(1))
    store.append("s", [report(0)], seen=3, about=0, lease=lease(0, expires=99.0))
    assert sorted(store.leases("s"), key=lambda x: x.trial) == [lease(0, expires=99.0), lease(1)]
    store.append("s", [report(0, 2.0)], seen=4, about=0)
    store.append("s", [report(1)], seen=4, about=1, lease=Release(1))
    assert store.leases("s") == [lease(0, expires=99.0)]


def test_a_heartbeat_renews_the_lease_of_its_own_attempt_only(store: Store) -> None:
    store.append("s", [start(0)], seen=1, about=None, lease=lease(0))
    store.renew("s", lease(0, expires=50.0))
    store.renew("s", lease(0, "you", expires=60.0))
    store.renew("s", lease(0, attempt=2, expires=70.0))
    store.renew("s", lease(1))
    assert store.leases("s") == [lease(0, expires=50.0)]


def test_a_study_that_is_not_there_is_an_error_with_its_name(store: Store) -> None:
    for use in (
        lambda: list(store.read("nope")),
        lambda: store.leases("nope"),
        lambda: store.append("nope", [report(0)], seen=0, about=0),
        lambda: store.renew("nope", lease(0)),
    ):
        with pytest.raises(StoreError, match="no study 'nope'"):
            use()


def test_the_only_study_is_found_without_its_name(store: Store) -> None:
    assert only_study(store, None) == "s"
    store.create("t", created())
    assert only_study(store, "t") == "t"
    with pytest.raises(StoreError, match="it holds: 's', 't'"):
        only_study(store, None)
    with pytest.raises(StoreError, match="no study 'x'"):
        only_study(store, "x")


def test_two_studies_are_searched_in_one_store(store: Store) -> None:
    for name in ("one", "two", "one"):
        for trial in Study(PROBLEM, Whims(), store, name, seed=1, budget=Budget(trials=2)):
            trial.report(0.5)
    for name in ("one", "two"):
        assert len(Study(PROBLEM, Whims(), store, name).trials) == 2


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"problem": type(PROBLEM)(PROBLEM.space, PROBLEM.goal, 11)}, ["max_epochs: recorded 10, given 11"]),
        ({"policy": Whims(option=2)}, ["policy.option: recorded 1, given 2"]),
        ({"seed": 2}, ["seed: recorded 1, given 2"]),
        ({"policy": Whims(option=3), "seed": 4}, ["policy.option: recorded 1, given 3", "seed: recorded 1, given 4"]),
    ],
)
def test_reopening_with_other_settings_lists_what_differs(store: Store, given: dict[str, Any], says: list[str]) -> None:
    Study(PROBLEM, Whims(), store, "mine", seed=1)
    arguments = {"problem": PROBLEM, "policy": Whims(), "seed": 1} | given
    with pytest.raises(StudyMismatch) as caught:
        Study(arguments["problem"], arguments["policy"], store, "mine", seed=arguments["seed"])
    for sentence in [*says, "'mine'", store.url, "another name"]:
        assert sentence in str(caught.value)
    assert str(caught.value).count("\n  - ") == len(says)
    assert len(list(store.read("mine"))) == 1


# where the log is


@pytest.mark.parametrize("where", ["search", "search.txt", 7, object()])
def test_what_is_no_store_is_refused_with_what_is(where: Any) -> None:
    with pytest.raises(InvalidInput, match="sqlite:///search.db"):
        open_store(where)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_sqlite_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="store=None"):
        open_store(url)


def test_a_path_and_its_url_are_the_same_store(tmp_path: Path) -> None:
    open_store(tmp_path / "a.db").create("s", created())
    assert open_store(f"sqlite:///{tmp_path}/a.db").names() == ["s"]


@pytest.mark.parametrize("url", ["nonsense://x", "sqlite+nothing:///a.db", "://"])
def test_an_address_that_no_driver_knows_is_a_clear_error(url: str) -> None:
    with pytest.raises(StoreError, match="sqlite:///search.db"):
        open_store(url)


def test_a_password_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = sa.create_engine("sqlite:///" + os.devnull)
    monkeypatch.setattr("haltune.sqlstore._engine", lambda url: engine)
    with pytest.raises(StoreError) as caught:
        SqlStore("postgresql://me:secret@host/db")
    assert "me:***@host" in str(caught.value)
    assert "secret" not in str(caught.value)


# what goes wrong with files


def test_a_missing_folder_asks_whether_it_exists(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"none/a\.db.*does the folder exist"):
        open_store(tmp_path / "none" / "a.db")


def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "letter.db"
    path.write_text("Dear reader, " * 100)
    with pytest.raises(StoreError, match="written by something else"):
        open_store(path)
    assert path.read_text() == "Dear reader, " * 100


def test_a_file_that_may_not_be_written_can_be_read_and_says_so_when_written(tmp_path: Path) -> None:
    open_store(tmp_path / "a.db").create("s", created())
    read_only = open_store(f"sqlite:///file:{tmp_path}/a.db?mode=ro&uri=true")
    assert list(read_only.read("s")) == [created()]
    with pytest.raises(StoreError, match="needs to write there; check the permissions"):
        read_only.append("s", [start(0)], seen=1, about=None)


def limited(store: SqlStore, pages: int) -> None:
    """Let the database grow no further, as on a full disk."""
    sa.event.listen(store._engine, "connect", lambda dbapi, _: dbapi.execute(f"PRAGMA max_page_count={pages}"))
    store._engine.dispose()


def test_a_full_disk_loses_nothing_recorded_and_the_search_goes_on_when_there_is_room(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/full.db"
    store = SqlStore(url)
    study = Study(PROBLEM, Whims(), store, seed=1, budget=Budget(trials=3))
    limited(store, 40)
    kept = []
    with pytest.raises(StoreError, match="disk is full.*make room.*nothing recorded is lost"):
        for _ in range(1000):
            trial = study.ask()
            assert isinstance(trial, Trial)
            with trial:
                trial.report(0.5, metrics={f"{'m' * 500}{i}": 1.0 for i in range(10)})
                kept.append(trial.id)
            study.budget = Budget(trials=10**6)
    roomy = Study(PROBLEM, Whims(), SqlStore(url), seed=1, budget=Budget(trials=len(kept) + 2))
    assert [t.id for t in roomy.trials if len(t.values)] == kept
    for trial in roomy:
        trial.report(0.5)
    assert len(roomy.trials) == len(kept) + 2


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_FSIZE"), reason="no file size limits here")
def test_a_write_that_the_system_refuses_is_a_sentence(tmp_path: Path) -> None:
    script = (
        "import resource, sys, warnings\n"
        "from whims import *\n"
        "from haltune import Budget, Study\n"
        "from haltune.errors import StoreError\n"
        "study = Study(PROBLEM, Whims(), sys.argv[1], budget=Budget(trials=10**6))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n"
        "try:\n"
        "    for trial in study:\n"
        "        trial.report(0.5, metrics={'m' * 2000: 1.0})\n"
        "except StoreError as error:\n"
        "    print(error)\n"
    )
    paths = os.pathsep.join(sys.path)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "a.db")], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert "othing recorded is lost" in done.stdout
    assert len(open_store(tmp_path / "a.db").names()) == 1


def test_a_locked_file_is_an_error_after_some_patience(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("haltune.sqlstore._BUSY_TIMEOUT", 0.0)
    waits: list[float] = []
    monkeypatch.setattr("haltune.sqlstore.time.sleep", waits.append)
    store = SqlStore(f"sqlite:///{tmp_path}/a.db")
    store.create("s", created())
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="database is locked; another process"):
        store.append("s", [start(0)], seen=1, about=None)
    assert len(waits) == 4
    other.execute("COMMIT")
    assert store.append("s", [start(0)], seen=1, about=None) == 1
    other.close()


# other processes


def test_nothing_is_pickled_but_the_address(tmp_path: Path) -> None:
    store = SqlStore(f"sqlite:///{tmp_path}/a.db")
    store.create("s", created())
    assert store.__getstate__() == {"url": f"sqlite:///{tmp_path}/a.db"}
    assert pickle.loads(pickle.dumps(store)).names() == ["s"]
    with pytest.raises(NotSupported, match="give the study a file"):
        pickle.dumps(MemoryStore())


def in_a_fork(work: Callable[[], None]) -> str:
    """What `work` raises in a forked process, or 'done'."""
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
def test_a_store_in_memory_does_not_cross_a_fork() -> None:
    study = Study(PROBLEM, Whims(), None, budget=Budget(trials=3))
    trial = study.ask()
    assert isinstance(trial, Trial)
    for work in (lambda: trial.report(0.5), study.ask, trial.finish, trial.heartbeat):
        assert in_a_fork(work).startswith("NotSupported: this process was forked")  # type: ignore[arg-type]
        assert "store='sqlite:///search.db'" in in_a_fork(work)  # type: ignore[arg-type]
    assert in_a_fork(lambda: Study(PROBLEM, Whims(), None).sync()) == "done"  # one of its own is no matter
    trial.report(0.5)


@needs_fork
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_file_goes_on_after_a_fork_in_both_processes(tmp_path: Path) -> None:
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


def test_processes_that_create_the_same_study_at_once_make_one(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    made = together(create, *[(url, "s")] * 3)
    assert sorted(made) == [False, False, True]
    assert list(SqlStore(url).read("s")) == [created()]


def test_two_processes_never_win_the_same_move_and_no_report_is_lost(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"
    store = SqlStore(url)
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


def test_processes_share_one_search(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/search.db"
    trained = together(search_a_little, (url, 12), (url, 12))
    assert sorted(trained[0] + trained[1]) == list(range(12))
    study = Study(PROBLEM, Whims(), url, seed=1)
    assert all(t.status in OVER and len(t.values) == 5 for t in study.trials)
    assert [e.trial for e in study.events() if isinstance(e, Started)] == list(range(12))
