"""What a page is told of an item that changed: applied to the old one it gives the new one, and it is short."""

import json

import pytest
from edited import edited
from hypothesis import given
from hypothesis import strategies as st

from haltune.report.watch.watched import Item, edit

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["a", "b", ""])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=30,
)


@given(values, values)
def test_an_edit_leads_from_any_value_to_any_other(old, new):
    found = edit(old, new)
    if found is None:
        assert old == new
    else:
        assert edited(old, json.loads(json.dumps(found))) == new


NUMBERS = [k / 7 for k in range(1000)]


@pytest.mark.parametrize(
    "new",
    [
        [*NUMBERS, 3.5],
        NUMBERS[1:],
        [*NUMBERS[:400], -1.0, *NUMBERS[400:]],
        [*NUMBERS[:20], *NUMBERS[21:900], -1.0, *NUMBERS[900:]],
        [*NUMBERS[:500], -1.0, *NUMBERS[501:]],
        [*NUMBERS[900:], *NUMBERS[:900]],
    ],
)
def test_a_column_is_not_told_again_for_a_number(new):
    told = edit({"x": NUMBERS}, {"x": new})
    assert edited({"x": NUMBERS}, told) == {"x": new}
    assert len(json.dumps(told)) < 2500  # of 19,000


def test_a_trace_is_known_again_by_its_name_when_another_comes_before_it():
    trace = {"name": "stopped", "x": NUMBERS}
    told = edit([trace], [{"name": "best", "x": [1]}, {**trace, "x": [*NUMBERS, 3.5]}])
    assert len(json.dumps(told)) < 200


def test_who_missed_more_than_is_kept_is_told_the_whole():
    item = Item({"x": []}, 1, True)
    for moment in range(2, 200):
        assert item.become({"x": [moment] * 500}, moment)
    assert item.after(1)[0] == "items"
    kind, text = item.after(198)
    assert kind == "edits"
    assert edited({"x": [198] * 500}, json.loads(text())[0]) == {"x": [199] * 500}
    assert item.after(199)[0] == ""
    assert item.become({"x": [199] * 500}, 200) is False


def test_names_that_a_user_chose_are_told_with_what_they_name():
    item = Item({"config": {"__proto__": 1}}, 1, False)
    item.become({"config": {"__proto__": 2}}, 2)
    assert item.after(1)[0] == "items"


def test_of_long_columns_is_told_what_came_to_each():
    old = [[float(n) for n in range(400)], [n / 7 for n in range(400)]]
    new = [[*old[0], 400.5], [*old[1][:200], -1.0, *old[1][200:]]]
    told = edit(old, new)
    assert edited(old, told) == new
    assert len(json.dumps(told)) < 120
