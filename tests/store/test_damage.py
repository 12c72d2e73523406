"""Logs changed by a disk, a copy or another program: an error that says where and what, or the true content."""

from __future__ import annotations

import json
import math
import os
import shutil
import sqlite3
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from facts import image
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from worlds import problem

from examples import many
from haltune import Budget, Choice, Minimize, Problem, Space, Study
from haltune.errors import HaltuneError, HaltuneWarning, StoreError
from haltune.policies import RandomSearch
from haltune.report import summary
from haltune.report.page import page, write
from haltune.store.open import open_store
from haltune.study.view import read_study

PROBLEM = problem(9)
BAD = os.fsdecode(b"/data/img_\xff.png")  # a path that is not UTF-8
STARTED = {
    "kind": "started", "at": 1e9, "trial": 3, "pause_at": 9.0, "resource": None, "tags": {}, "reason": "r",
    "evidence": {}, "seen": 3, "deciding": 0.0, "worker": "w",
}  # fmt: skip


def searched(path: Path, policy: Any = None) -> Study:
    """Two trials in full, one that runs."""
    study = Study(PROBLEM, policy or RandomSearch(), path, seed=1, budget=Budget(trials=4))
    for _ in range(2):
        with study.ask() as trial:
            for epoch in trial.epochs():
                trial.report(1 / epoch, seconds=1.0, metrics={"loss": float(epoch)})
    study.ask().report(0.3, seconds=1.0)
    return study


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a sound study, whole in itself."""
    path = tmp_path_factory.mktemp("sound") / "sound.db"
    study = searched(path)
    study.store.close()
    with sqlite3.connect(path) as c:
        c.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        c.execute("PRAGMA journal_mode=DELETE")
    c.close()
    return path


def copied(sound: Path, folder: Path) -> Path:
    for ending in ("", "-wal", "-shm"):
        (folder / f"copy.db{ending}").unlink(missing_ok=True)
    return Path(shutil.copy(sound, folder / "copy.db"))


def put(path: Path, row: dict[str, Any], gap: int = 0) -> int:
    """Append a row as a stranger would, with the right checksum; its position."""
    with sqlite3.connect(path) as c:
        position = int(c.execute("SELECT max(seq) FROM haltune_events").fetchone()[0]) + 1 + gap
        row = {"study": 1, "seq": position, **row, "checksum": checksum(row)}
        c.execute(
            f"INSERT INTO haltune_events ({','.join(row)}) VALUES ({','.join('?' * len(row))})", list(row.values())
        )
    c.close()
    return position


def checksum(row: dict[str, Any]) -> int:
    if row["kind"] != "reported":
        return crc32(f"{row['kind']}\0{row['body']}".encode())
    names = "at trial attempt epoch value seconds seen validation cost deciding pause_at"
    numbers = [row.get(name, math.nan) for name in names.split()]
    if not all(isinstance(number, int | float) for number in numbers):
        return 0
    return crc32(f"{row['action']}\0{row['reason']}\0".encode(), crc32(struct.pack("<dqqdddqdddd", *numbers)))


def body(kind: str, **fields: Any) -> dict[str, Any]:
    trial = fields.get("trial")
    told = {"kind": kind, "at": 1e9, **fields}
    return {
        "kind": kind, "at": 1e9, "trial": trial if isinstance(trial, int) else None, "body": json.dumps(told),
    }  # fmt: skip


def report(**fields: Any) -> dict[str, Any]:
    return {
        "kind": "reported", "at": 1e9, "trial": 2, "attempt": 1, "epoch": 2.0, "value": 0.2, "seconds": 1.0, "seen": 5,
        "action": "continue", "reason": "r", "deciding": 0.0, **fields,
    }  # fmt: skip


def started(**fields: Any) -> dict[str, Any]:
    return body(**{**STARTED, "config": {"lr": 0.1, "layers": 2, "kernel": "rbf"}, **fields})


def ended(**fields: Any) -> dict[str, Any]:
    return body("ended", **{"trial": 2, "attempt": 1, "status": "failed", **fields})


def resumed(**fields: Any) -> dict[str, Any]:
    return body(**{**STARTED, "kind": "resumed", "trial": 2, "by_policy": False, **fields})


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "JSON cut short": ({"kind": "ended", "at": 1.0, "body": '{"kind": "ended", '}, "its JSON cannot be read"),
    "JSON without end": (
        {"kind": "ended", "at": 1.0, "body": '{"kind":"ended","error":' + "[" * 99_999 + "]" * 99_999 + "}"},
        "its JSON cannot be read",
    ),
    "a kind of a later version": (body("teleported"), "newer haltune wrote this log; update"),
    "a field of a later version": (ended(surprise=1), "'surprise'.*newer haltune wrote this log; update"),
    "trial 99": (ended(trial=99), "there are only 3 trials"),
    "an epoch beyond the last": (report(epoch=1e300), "but max_epochs is 9"),
    "a value that is a blob": (report(value=b"\x80\x04cos\nsystem\n"), "wrong types"),
    "a second beginning": (body("created", problem={}, policy={}, seed=3), "only the first event can create a study"),
}  # fmt: skip


@pytest.mark.parametrize("row", HOSTILE.values(), ids=HOSTILE.keys())
def test_an_event_that_no_haltune_writes_is_a_sentence_that_says_where(
    row: tuple[dict[str, Any], str], sound: Path, tmp_path: Path
) -> None:
    path = copied(sound, tmp_path)
    position = put(path, row[0])
    for use in (
        lambda: read_study(open_store(path)),
        lambda: Study(PROBLEM, RandomSearch(), path, seed=1, budget=Budget(trials=9)),
    ):
        with pytest.raises(StoreError, match=row[1]) as caught:
            use()
        assert f"event {position} of the study 'study' in sqlite:///{path}" in str(caught.value)
        assert "Restore a copy of the store" in str(caught.value)


def test_a_gap_in_the_log_is_said(sound: Path, tmp_path: Path) -> None:
    path = copied(sound, tmp_path)
    missing = put(path, report(), 1) - 1
    with pytest.raises(StoreError, match=f"event {missing} of the study .* it is missing"):
        read_study(open_store(path))


COLUMNS = {
    "at": 5.0, "attempt": 2, "epoch": 1.5, "value": 0.25, "seconds": 2.0, "deciding": 9.0, "seen": 1,
    "action": "stop", "reason": "because", "pause_at": 3.0, "validation": 0.5, "cost": 1.0, "body": '{"p": 1}',
}  # fmt: skip


CHANGES = [
    *(f"UPDATE haltune_events SET {column} = {COLUMNS[column]!r} WHERE seq = 3" for column in ("at", "value", "body")),
    "UPDATE haltune_metrics SET value = 2.5 WHERE seq = 3",
    "INSERT INTO haltune_metrics VALUES (1, 3, 'more', 1.0)",
    "UPDATE haltune_events SET body = replace(body, '0.', '1.') WHERE kind = 'started' AND trial = 1",
]


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_changes_in_an_event_is_noticed(change: str, sound: Path, tmp_path: Path) -> None:
    path = copied(sound, tmp_path)
    with sqlite3.connect(path) as c:
        c.execute(change)
    c.close()
    with pytest.raises(StoreError, match=r"event \d+ .*it was changed after it was written"):
        list(open_store(path).read("study"))


def use(path: Path) -> list[Any]:
    """Call everything on a log; return the log as it was read."""
    store = open_store(path)
    read = read_study(store)
    name, history = read.name, read.history
    study = Study(PROBLEM, RandomSearch(), path, name, seed=1, budget=Budget(trials=9))
    _ = history.trials, history.best(), history.ranked(), history.spent, summary(history)
    page(history)
    _ = study.ask(), study.outcome
    return [image(e) for e in store.read(name)]


@settings(max_examples=many(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bits_give_the_truth_or_a_sentence(data: st.DataObject, sound: Path, tmp_path: Path) -> None:
    path = copied(sound, tmp_path)
    truth = [image(e) for e in open_store(sound).read("study")]
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.sampled_from([1, 1, 1, 2, 64]))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(raw)
    with suppress(HaltuneError):
        assert use(path)[: len(truth)] == truth


# -- text that is none -------------------------------------------------------------------------------


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "postgresql":
        return request.getfixturevalue("postgres_url")
    return tmp_path / "a.db" if request.param == "sqlite" else None


def test_text_that_no_encoding_holds_breaks_no_search_no_page_and_no_export(where: Any, tmp_path: Path) -> None:
    one = Problem(Space({"file": Choice([BAD, "b"])}), Minimize(f"loss of {BAD}"), 3)
    study = Study(one, RandomSearch(), where, seed=1, budget=Budget(trials=4))
    with study.ask() as trial:
        for _ in trial.epochs():
            trial.report(0.5, metrics={f"m\udcff\0{BAD}": 1.0})
    failed = study.ask()
    failed.report(0.1)
    with pytest.warns(HaltuneWarning, match="nothing exists at this path"):
        failed.checkpointed(BAD)
    failed.fail(FileNotFoundError(2, "No such file", BAD))
    again = study if where is None else Study(one, RandomSearch(), where, seed=1, budget=Budget(trials=4))
    assert f"m\udcff\0{BAD}" in again.trials[0].metrics
    assert "img_" in (again.trials[1].error or "")
    assert {t.config["file"] for t in again.trials} <= {BAD, "b"}
    text = write(again, tmp_path / "page.html").read_text(encoding="utf-8")
    assert r"img_\udcff.png" in text
    summary(again).encode()
    for trial in again:
        with trial:
            trial.report(0.5)
    assert len(again.trials) == 4
