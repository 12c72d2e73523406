"""Reading a store changes nothing and does not wait; a file that is empty without its journal is an error."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from locking import END, linux, locked
from whims import PROBLEM, Whims
from workers import created

from haltune import Budget, Float, Study, Trial
from haltune.errors import StoreError
from haltune.log.events import Event
from haltune.store.memory import MemoryStore
from haltune.store.open import open_sql, open_store
from haltune.study.view import follow_study, read_study


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


def searched(path: Path, ended: bool = False) -> Study:
    """A study that has reported once, and trains unless it has ended."""
    study = Study(PROBLEM, Whims(), path, seed=1, budget=Budget(trials=3))
    trial = study.ask()
    assert isinstance(trial, Trial)
    trial.report(0.5)
    if ended:
        trial.finish()
    return study


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


# -- nothing is written -----------------------------------------------------------------------------


def test_a_search_that_is_over_is_read_and_its_folder_left_as_it_is(path: Path) -> None:
    searched(path).store.close()
    before = contents(path.parent)
    assert list(before) == ["a.db"]
    history = read_study(path).history
    assert list(history.trial(0).values) == [0.5]
    assert contents(path.parent) == before


def test_a_search_that_runs_is_read_while_another_keeps_its_file_locked(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = searched(path)
    monkeypatch.setattr("haltune.store.sql.BUSY_TIMEOUT", 0.0)
    with locked(path):
        store = open_store(path, reading=True)
        assert list(read_study(store).history.trial(0).values) == [0.5]
    assert len(study.trials) == 1
    with pytest.raises(StoreError, match="needs to write there"):
        store.append("study", [END], seen=99, about=0)


@pytest.mark.skipif(not hasattr(os, "fork") or os.getuid() != 0, reason="needs to be another user")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_who_may_only_read_can_read() -> None:
    folder = Path(tempfile.mkdtemp())
    try:
        folder.chmod(0o755)
        study = searched(folder / "a.db", ended=True)
        assert len(read_study(folder / "a.db").history) == 1  # and all that this imports
        for closes in (False, True):
            if closes:
                study.store.close()
            pid = os.fork()
            if pid == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
                try:
                    os._exit(0 if len(read_study(folder / "a.db").history) == 1 else 1)
                except BaseException as error:
                    os.write(2, repr(error).encode())
                    os._exit(2)
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        shutil.rmtree(folder)


def test_a_server_is_read_without_a_table_made_or_a_row_written(postgres_url: str) -> None:
    with pytest.raises(StoreError, match="is not a store of haltune: it contains nothing"):
        open_store(postgres_url, reading=True)
    store = open_sql(postgres_url)
    store.create("s", created())
    reading = open_store(postgres_url, reading=True)
    assert list(reading.read("s")) == [created()]
    with pytest.raises(StoreError, match="read-only"):
        reading.append("s", [END], seen=1, about=None)
    with pytest.raises(StoreError, match="read-only"):
        reading.create("t", created())
    assert store.names() == ["s"]


class CountedStore(MemoryStore):
    """Counts the events that are read."""

    count = 0

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Iterator[Event]:
        for event in super().read(name, start, stop):
            self.count += 1
            yield event


def test_who_follows_a_search_of_steps_reads_a_new_event_twice_and_no_other() -> None:
    store = CountedStore()
    study = Study({"x": Float(0.0, 1.0)}, "acc", store, max_steps=300, seed=0, budget="1 trial", verbose=0)
    trial = study.ask()
    assert isinstance(trial, Trial)
    trial.report(0.5, step=10)
    found = follow_study(store)
    assert found.judged.trial(0).epochs.tolist() == [1]
    for point in range(2, 20):
        trial.report(0.5, step=10 * point)
        store.count = 0
        found.sync()
        assert found.judged.trial(0).epochs.tolist() == list(range(1, point + 1))
        assert store.count == 2


# -- a journal that is missing ----------------------------------------------------------------------


@linux
def test_a_process_that_looks_at_what_it_writes_keeps_its_locks(path: Path) -> None:
    """Opening and closing a file outside of SQLite loses the locks of the whole process."""
    store = open_sql(f"sqlite:///{path}")
    store.create("s", created())
    mine = f" {os.getpid()} "
    number = f":{path.stat().st_ino} "

    def locks() -> list[str]:
        lines = Path("/proc/locks").read_text().splitlines()
        return sorted(line.partition(": ")[2] for line in lines if mine in line and number in line)

    before = locks()
    assert before
    assert list(open_store(path, reading=True).read("s")) == [created()]
    assert locks() == before
    assert open_sql(f"sqlite:///{path}").names() == ["s"]
    assert locks() == before
