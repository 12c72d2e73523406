"""One suite for all stores."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from facts import image
from workers import created

from haltune.errors import StoreError
from haltune.log.decisions import continue_
from haltune.log.events import Ended, Event, Expired, Finished, Reported, Rescaled, Started, Status
from haltune.store.base import Conflict, Lease, Release, Store
from haltune.store.memory import MemoryStore
from haltune.store.open import only_study, open_sql
from haltune.store.sql import SqlStore


def report(trial: int, epoch: float = 1.0) -> Reported:
    return Reported(
        at=1.0, trial=trial, attempt=1, epoch=epoch, value=0.5, seconds=1.0, verdict=continue_("on"), seen=1, metrics={}
    )


def start(trial: int) -> Started:
    return Started(
        at=1.0, trial=trial, config={"x": 0.5}, pause_at=None, resource=None, tags={}, reason="", evidence={}, seen=1,
        deciding=0.0, worker="w",
    )  # fmt: skip


def lease(trial: int, holder: str = "me", attempt: int = 1, expires: float = 9.0) -> Lease:
    return Lease(trial, attempt, holder, expires, renewed=1.0)


def own_store(path: Path) -> Store:
    """Return the store of the example."""
    spec = importlib.util.spec_from_file_location("own_store", Path(__file__).parents[2] / "examples/11_own_store.py")
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
    store: Store = module.JsonLinesStore(path)
    return store


@pytest.fixture(params=["memory", "sqlite", "postgres", "json lines"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    store: Any = MemoryStore(lambda: 42.0)
    if request.param == "sqlite":
        store = open_sql(f"sqlite:///{tmp_path}/store.db", lambda: 42.0)
    elif request.param == "postgres":
        store = open_sql(request.getfixturevalue("postgres_url"), lambda: 42.0)
    elif request.param == "json lines":
        store = own_store(tmp_path / "store.jsonl")
    store.create("s", created())
    yield store
    if isinstance(store, SqlStore):
        store.close()


def test_a_study_is_created_once_and_names_come_in_order(store: Store) -> None:
    assert store.create("b", created())
    assert store.create("a", created())
    assert not store.create("b", created())
    assert store.names() == ["s", "b", "a"]


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


def test_any_text_and_any_number_come_back_as_they_were(store: Store) -> None:
    texts = ["", "\x00", "a\x00b", "\x1b", "\x1b0", "\x1be\x00", "%s %(x)s", "'; --", "\u00e9\U0001f600", "\\N", "{}"]
    numbers = [0.1, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, -1e-300]
    sent: list[Event] = [start(0)]
    for n, text in enumerate(texts):
        verdict = replace(continue_("on"), reason=text, evidence={"text": text})
        values = {f"{text}{i}": value for i, value in enumerate(numbers)}
        sent.append(replace(report(0, n + 1.0), value=numbers[n % 6], verdict=verdict, metrics=values))
    sent.append(Ended(at=2.0, trial=0, attempt=1, status=Status.FAILED, error=texts[2], traceback=texts[5]))
    assert store.append("s", sent, seen=1, about=None) == 1
    assert [image(e) for e in store.read("s", 1)] == [image(e) for e in sent]
    assert store.append("s", [replace(report(0, 99.0), value=math.nan)], seen=99, about=0) == len(sent) + 1
    last = next(store.read("s", len(sent) + 1))
    assert isinstance(last, Reported)
    assert math.isnan(last.value)


def test_a_long_log_comes_in_order_from_any_position(store: Store) -> None:
    sent = [replace(report(0, n + 1.0), metrics={"n": float(n)}) for n in range(3200)]
    assert store.append("s", sent, seen=1, about=0) == 1
    for begin in (1, 149, 150, 1500, 1501, 3199, 3200, 3201):
        found = [e.metrics["n"] for e in store.read("s", begin) if isinstance(e, Reported)]
        assert found == [float(n) for n in range(begin - 1, 3200)]
    assert len(list(store.read("s", 100, 1700))) == 1600


def test_leases_are_set_with_events_and_given_back_with_events(store: Store) -> None:
    store.append("s", [start(0)], seen=1, about=None, lease=lease(0))
    store.append("s", [start(1)], seen=2, about=None, lease=lease(1))
    store.append("s", [report(0)], seen=3, about=0, lease=lease(0, expires=99.0))
    assert sorted(store.leases("s"), key=lambda x: x.trial) == [lease(0, expires=99.0), lease(1)]
    store.append("s", [report(0, 2.0)], seen=4, about=0)
    store.append("s", [report(1)], seen=4, about=1, lease=Release(1))
    assert store.leases("s") == [lease(0, expires=99.0)]
    assert store.append("s", [], seen=6, about=0, lease=lease(0, "you")) == 6  # a lease alone
    with pytest.raises(Conflict):
        store.append("s", [], seen=4, about=0, lease=lease(0))
    assert store.leases("s") == [lease(0, "you")]
    assert len(list(store.read("s"))) == 6


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
    with pytest.raises(StoreError, match=r"has 2 studies: 's', 't'. Choose one with --name or name="):
        only_study(store, None)
    with pytest.raises(StoreError, match=r"no study 'x' in .*: it has 's', 't'. Choose one with --name"):
        only_study(store, "x")
