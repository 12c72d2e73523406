"""The coordinates of the cube: cells, one-hot choices, conditions and named bounds."""

import math

import numpy as np
import pytest

from haltune import Choice, Float, Int
from haltune.errors import InvalidInput, InvalidSpace
from haltune.space import Space


@pytest.mark.parametrize("domain", [Int(-3, 9), Choice(list("abcdefg"), ordered=True)])
def test_each_value_owns_a_cell_of_equal_width(domain):
    space = Space({"p": domain})
    values = [c["p"] for c in space.enumerate()]
    count = len(values)
    for index, value in enumerate(values):
        inside = np.array([[(index + 1e-12) / count], [(index + 1 - 1e-12) / count]])
        assert [c["p"] for c in space.decode_many(inside)] == [value, value]
        assert space.encode({"p": value})[0] == pytest.approx((index + 0.5) / count, abs=1e-15)


def test_a_logarithmic_int_owns_its_share_of_the_logarithmic_axis():
    space = Space({"k": Int(1, 6, log=True)})
    edges = np.log(np.arange(1, 8) - 0.5)
    cells = (edges - edges[0]) / (edges[-1] - edges[0])
    for value in range(1, 7):
        inside = np.array([[cells[value - 1] + 1e-9], [cells[value] - 1e-9]])
        assert space.decode_many(inside) == [{"k": value}] * 2


def test_true_and_one_and_their_texts_are_four_options():
    space = Space({"c": Choice([True, 1, "1", "true", None, (1, [2])])})
    for option in [True, 1, "1", "true", None, (1, [2])]:
        value = space.canonical({"c": option})["c"]
        assert value == option
        assert type(value) is type(option)
    assert len({space.key({"c": o}) for o in [True, 1, "1", "true", None, (1, [2])]}) == 6


def test_an_inactive_parameter_is_absent_and_sits_in_the_middle_of_the_cube():
    space = Space(
        {
            "kernel": Choice(["rbf", "poly"]),
            "degree": Int(2, 5, when={"kernel": "poly"}),
            "trick": Choice(["a", "b", "c", "d"], when={"kernel": "poly"}),
        }
    )
    np.testing.assert_array_equal(space.encode({"kernel": "rbf"}), [1, 0, 0.5, 0.25, 0.25, 0.25, 0.25])
    assert space.decode([0.9, 0.1, 0.8, 1, 0, 0, 0]) == {"kernel": "rbf"}
    assert space.decode([0.1, 0.9, 0.8, 1, 0, 0, 0]) == {"kernel": "poly", "degree": 5, "trick": "a"}


def test_several_conditions_must_all_hold_and_conditions_pass_on_inactivity():
    space = Space(
        {
            "deep": Choice([True, False]),
            "layers": Int(1, 4, when={"deep": True}),
            "skip": Choice(["no", "yes"], ordered=True, when={"layers": [(">", 2), 1], "deep": True}),
        }
    )
    found = {(c.get("deep"), c.get("layers"), "skip" in c) for c in space.enumerate()}
    assert found == {(False, None, False)} | {(True, n, n != 2) for n in (1, 2, 3, 4)}


def test_a_dependent_range_is_filled_from_end_to_end():
    space = Space({"k1": Int(5, "k2"), "k2": Int(5, 20)})
    assert space.decode([1.0, 0.5]) == {"k1": 13, "k2": 13}
    assert space.decode([0.0, 0.5]) == {"k1": 5, "k2": 13}
    assert space.decode([1.0, 0.0]) == {"k1": 5, "k2": 5}


def test_a_value_equal_to_its_bound_stays_equal_when_both_are_put_on_their_grids():
    space = Space({"top": Float(0, 1e6), "x": Float(0, "top")})
    for value in (0.1234561, 0.1234569):  # the grid's step is 1e-6: one is rounded down, one up
        settled = space.canonical({"top": value, "x": value})
        assert settled["top"] == pytest.approx(value, abs=1e-6)
        assert settled["x"] == settled["top"] == space.canonical(settled)["x"]


def test_bounds_that_cross_in_a_row_are_distinguished_from_configurations():
    space = Space({"a": Int(0, 9), "b": Int(0, 9), "k": Int("a", "b")})
    decoded = space.decode([0.95, 0.05, 0.5])
    assert not space.contains(decoded)
    with pytest.raises(InvalidSpace, match="no valid value"):
        space.canonical(decoded)
    sampled = space.sample(50, np.random.default_rng(0))
    assert all(c["a"] <= c["k"] <= c["b"] for c in sampled)


def test_points_of_another_shape_and_nan_are_refused_and_points_outside_moved_in():
    space = Space({"x": Float(0, 1), "y": Float(0, 1)})
    with pytest.raises(InvalidInput, match="2 coordinates"):
        space.decode([0.5])
    with pytest.raises(InvalidInput, match="NaN"):
        space.decode([0.5, math.nan])
    assert space.decode([-0.5, 1.5]) == {"x": 0.0, "y": 1.0}
