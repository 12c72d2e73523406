"""Events survive JSON and SQL to the bit."""

from __future__ import annotations

import json
import math
from itertools import count

import numpy as np
import pytest
from facts import image, some_event
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import many
from haltune.errors import InvalidInput
from haltune.log.events import (
    Created,
    Ended,
    Event,
    Status,
    from_json,
    plain,
    to_json,
    verdict_from_json,
    verdict_to_json,
)
from haltune.store.sqlite import SqliteStore


@given(some_event)
def test_an_event_comes_back_from_strict_json_as_it_was(event: Event) -> None:
    text = json.dumps(to_json(event), allow_nan=False)
    assert image(from_json(json.loads(text))) == image(event)


def test_an_end_without_marks_of_weights_can_be_read_by_versions_that_do_not_know_them() -> None:
    ends = [Ended(at=0.0, trial=0, attempt=1, status=Status.COMPLETED, weights=marks) for marks in ("", "a\nb")]
    assert [to_json(end).get("weights") for end in ends] == [None, "a\nb"]
    assert [from_json(to_json(end)) for end in ends] == ends


@pytest.fixture(scope="module")
def sql_store(tmp_path_factory: pytest.TempPathFactory) -> SqliteStore:
    return SqliteStore(f"sqlite:///{tmp_path_factory.mktemp('events')}/events.db")


numbers = count()
FIRST = Created(at=0.0, problem={}, policy={}, seed=0)


@settings(max_examples=many(60))
@given(st.lists(some_event, min_size=1, max_size=5))
def test_events_come_back_from_sql_as_they_were(sql_store: SqliteStore, events: list[Event]) -> None:
    name = f"study {next(numbers)}"
    assert sql_store.create(name, FIRST)
    sql_store.append(name, events, seen=1, about=None)
    assert image(list(sql_store.read(name))) == image([FIRST, *events])


def test_what_numpy_holds_is_recorded_as_plain_json() -> None:
    mixed = {
        "f32": np.float32(0.5), "i": np.int64(3), "b": np.bool_(True), "a": np.array([[1.0, math.inf]]),
        "s": np.str_("x"), "t": (1, np.float64(2)), 3: Status.FAILED, "nan": math.nan,
    }  # fmt: skip
    found = plain(mixed)
    assert found == {
        "f32": 0.5, "i": 3, "b": True, "a": [[1.0, "inf"]], "s": "x", "t": [1, 2.0], "3": "failed", "nan": "nan",
    }  # fmt: skip
    assert {type(v) for v in found.values()} == {float, int, bool, list, str}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_the_end_of_a_leg_is_recorded() -> None:
    body = {"action": "continue", "reason": "r", "pause_at": 9.0}
    assert verdict_from_json(body).pause_at == 9.0
    assert verdict_to_json(verdict_from_json(body)) == body
    assert verdict_from_json({"action": "continue", "reason": "r"}).pause_at is None
    move = {"trial": 0, "pause_at": 3.0, "resource": None, "tags": {}, "reason": "r", "evidence": {}, "seen": 1}
    started = {"kind": "started", "at": 1.0, "config": {}, "deciding": 0.0, "worker": "w", **move}
    assert to_json(from_json(started)).items() >= started.items()
    with pytest.raises(InvalidInput, match="pause_at = -3"):
        from_json({**started, "pause_at": -3.0})


def test_an_event_of_a_later_version_says_to_update() -> None:
    with pytest.raises(InvalidInput, match=r"'teleported'.*newer haltune.*update haltune"):
        from_json({"kind": "teleported", "at": 1.0})
