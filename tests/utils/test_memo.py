"""What is kept of what was made."""

from __future__ import annotations

import pickle

from haltune._utils.memo import Memo


def test_a_value_is_made_once_while_it_is_kept() -> None:
    memo, made = Memo[str | None](2), []

    def make(key: str) -> str | None:
        made.append(key)
        return None if key == "none" else key.upper()

    asked = ["a", "none", "a", "none", "b", "none", "a"]
    assert [memo(key, lambda key=key: make(key)) for key in asked] == ["A", None, "A", None, "B", None, "A"]
    assert made == ["a", "none", "b", "a"]  # b took the place of a, which came first


def test_a_value_that_is_made_while_another_is_may_take_its_place() -> None:
    memo = Memo[int](1)
    assert memo("outer", lambda: memo("inner", lambda: 1) + 1) == 2
    assert memo.get("outer") == 2


def test_a_copy_for_another_process_is_empty() -> None:
    memo = Memo[object](1)
    memo.put("kept", iter(()))
    arrived = pickle.loads(pickle.dumps(memo))
    arrived.put("a", 1)
    arrived.put("b", 2)
    assert (arrived.get("kept"), arrived.get("a"), arrived.get("b")) == (None, None, 2)
