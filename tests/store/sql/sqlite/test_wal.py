"""Journals that a disk has changed: what SQLite passes over without a word is counted, and said."""

from __future__ import annotations

import shutil
import sqlite3
import warnings
from pathlib import Path

import pytest
from filled import fill
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples import many
from haltune.errors import HaltuneWarning
from haltune.store.open import open_store
from haltune.store.sql.sqlite.store import SqliteStore
from haltune.store.sql.sqlite.wal import lost

ROWS = 30


@pytest.fixture(scope="module", params=[512, 4096])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database and its journal of ROWS transactions, copied while it was in use."""
    folder = tmp_path_factory.mktemp("sound")
    c = sqlite3.connect(folder / "live.db", isolation_level=None)
    c.execute(f"PRAGMA page_size={request.param}")
    c.execute("PRAGMA journal_mode=WAL")
    c.execute("PRAGMA wal_autocheckpoint=0")
    c.execute("CREATE TABLE t (x TEXT)")
    for n in range(ROWS):
        c.execute("INSERT INTO t VALUES (?)", (f"{n} " * 40 * (1 + n % 3),))
    for ending in ("", "-wal"):
        shutil.copy(folder / f"live.db{ending}", folder / f"a.db{ending}")
    c.close()
    return folder / "a.db"


def readable(path: Path) -> int:
    """What SQLite itself reads: transactions in the table, of ROWS."""
    with sqlite3.connect(path) as c:
        found = int(c.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
        found = found and int(c.execute("SELECT count(*) FROM t").fetchone()[0])
    c.close()
    return found


def test_a_sound_journal_has_lost_nothing(sound: Path, tmp_path: Path) -> None:
    assert lost(f"{sound}-wal") == 0
    assert lost(f"{sound}") == 0  # which is no journal
    assert lost(f"{sound}-none") == 0
    (tmp_path / "empty").write_bytes(b"")
    assert lost(str(tmp_path / "empty")) == 0


@settings(max_examples=many(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whenever_sqlite_reads_less_for_a_changed_bit_it_is_counted(
    data: st.DataObject, sound: Path, tmp_path: Path
) -> None:
    raw = bytearray(Path(f"{sound}-wal").read_bytes())
    bit = data.draw(st.integers(8 * 32, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    for ending in ("", "-wal", "-shm"):
        (tmp_path / f"b.db{ending}").unlink(missing_ok=True)
    shutil.copy(sound, tmp_path / "b.db")
    (tmp_path / "b.db-wal").write_bytes(raw)
    counted, read = lost(str(tmp_path / "b.db-wal")), readable(tmp_path / "b.db")
    if counted == 0:  # the last commit of all may have lost its salt
        assert read >= ROWS - 1
    else:
        assert read + counted == ROWS if read else counted >= ROWS  # what made the table is lost, too


@settings(max_examples=many(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_journal_that_ends_anywhere_is_what_a_crash_leaves(
    data: st.DataObject, sound: Path, tmp_path: Path
) -> None:
    raw = Path(f"{sound}-wal").read_bytes()
    (tmp_path / "cut-wal").write_bytes(raw[: data.draw(st.integers(0, len(raw)))])
    assert lost(str(tmp_path / "cut-wal")) == 0


@pytest.mark.parametrize("reading", [True, False])
def test_it_is_said_when_a_study_is_opened(tmp_path: Path, reading: bool) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}/a.db")
    fill(store, 20)
    for ending in ("", "-wal"):
        shutil.copy(tmp_path / f"a.db{ending}", tmp_path / f"b.db{ending}")
    raw = bytearray((tmp_path / "b.db-wal").read_bytes())
    raw[len(raw) // 2] ^= 1
    (tmp_path / "b.db-wal").write_bytes(raw)
    with pytest.warns(HaltuneWarning, match=r"b\.db-wal is damaged: \d+ of the last changes .* are lost"):
        damaged = open_store(tmp_path / "b.db", reading=reading)
    assert len(list(damaged.read("s"))) < 21
    with warnings.catch_warnings():
        warnings.simplefilter("error", HaltuneWarning)
        assert len(list(open_store(tmp_path / "a.db", reading=reading).read("s"))) == 21
