"""Sampling, constraints, counting, JSON and the differences between spaces."""

import json
from collections import Counter

import numpy as np
import pytest

from haltune import Choice, Constant, Float, Int, Space
from haltune.errors import InvalidSpace

DESIGNS = ["uniform", "sobol", "lhs"]


def rng(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize("design", DESIGNS)
def test_samples_are_configurations_of_the_space_and_repeat_with_the_seed(design):
    space = Space({"lr": Float(1e-5, 1, log=True), "c": Choice(["a", "b"]), "k": Int(1, 9, when={"c": "a"})})
    sampled = space.sample(33, rng(), design)
    assert len(sampled) == 33
    assert all(space.contains(c) and space.canonical(c) == c for c in sampled)
    assert sampled == space.sample(33, rng(), design)
    assert sampled != space.sample(33, rng(1), design)


@pytest.mark.parametrize("design", ["sobol", "lhs"])
def test_designs_give_every_cell_of_every_parameter_the_same_number_of_points(design):
    space = Space({"c": Choice(list("abcd")), "k": Int(0, 7), "o": Choice([1, 2], ordered=True)})
    sampled = space.sample(64, rng(), design)
    assert set(Counter(c["c"] for c in sampled).values()) == {16}
    assert set(Counter(c["k"] for c in sampled).values()) == {8}
    assert set(Counter(c["o"] for c in sampled).values()) == {32}


@pytest.mark.parametrize("design", DESIGNS)
def test_every_sample_passes_the_constraints(design):
    def narrow(config):
        return config["a"] + config["b"] <= 3

    space = Space({"a": Int(0, 9), "b": Int(0, 9)}, constraints=[narrow])
    sampled = space.sample(40, rng(), design)
    assert len(sampled) == 40
    assert all(c["a"] + c["b"] <= 3 for c in sampled)
    assert not space.contains({"a": 2, "b": 2})
    assert space.decode(space.encode({"a": 9, "b": 9})) == {"a": 9, "b": 9}
    assert space.size == 10 == len(space.enumerate())


def test_a_constraint_that_nothing_passes_is_an_error_that_counts():
    space = Space({"x": Float(0, 1)}, constraints=[("above two", lambda c: c["x"] > 2)])
    with pytest.raises(InvalidSpace, match=r"Of 1\d\d,\d{3} points of the space, none are valid \('above two'\)"):
        space.sample(1, rng())


def test_a_constraint_that_raises_is_named_with_the_likely_cause():
    space = Space({"c": Choice([1, 2]), "d": Int(1, 2, when={"c": 2})}, constraints=[("d small", lambda c: c["d"] < 2)])
    with pytest.raises(InvalidSpace, match=r"'d small' raised KeyError.*config.get\(name\)"):
        space.contains({"c": 1})


def test_sizes_are_counted_where_that_is_finite_and_cheap():
    assert Space({"a": Int(1, 10**6), "c": Choice([1, 2])}).size == 2 * 10**6
    assert Space({"x": Float(0, 1)}).size is None
    assert Space({"x": Float(2, 2), "c": Choice(["ab"])}).size == 1
    assert Space({"k2": Int(5, 20), "k1": Int(5, "k2")}).size == sum(range(1, 17))
    assert Space({"c": Choice(["a", "b"]), "d": Int(2, 5, when={"c": "b"})}).size == 1 + 4
    assert Space({"a": Int(1, 10**6), "b": Int(1, "a")}).size is None


def test_a_space_too_large_to_list_says_so():
    with pytest.raises(InvalidSpace, match="up to 1,000,000 configurations"):
        Space({"a": Int(1, 10**6)}).enumerate()
    with pytest.raises(InvalidSpace, match="continuous"):
        Space({"x": Float(0, 1)}).enumerate()


def test_constraints_travel_by_name_and_must_be_supplied_again():
    space = Space({"x": Float(0, 1)}, constraints=[("small", lambda c: c["x"] < 0.5)])
    data = json.loads(json.dumps(space.to_json()))
    back = Space.from_json(data, constraints={"small": lambda c: c["x"] < 0.5})
    assert back == space
    assert not back.contains({"x": 0.7})
    for supplied in (None, {"large": lambda c: True}):
        with pytest.raises(InvalidSpace, match="recorded with the constraints \\['small'\\]"):
            Space.from_json(data, constraints=supplied)


def test_a_function_in_place_of_the_list_of_constraints_is_an_error_that_says_what_to_use():
    parameters, small = {"x": Float(0, 1)}, lambda c: c["x"] < 0.5
    for make in (lambda: Space(parameters, small), lambda: Space.from_json(Space(parameters).to_json(), small)):
        with pytest.raises(InvalidSpace, match=r"is not a list\. Use a list of functions of a configuration"):
            make()


def test_differences_between_spaces_are_sentences():
    old = Space({"lr": Float(0.1, 1), "c": Choice([1]), "gone": 1}, constraints=[("a", lambda c: True)])
    new = Space({"c": Choice([True]), "lr": Float(0.1, 2), "new": Int(1, 2)}, constraints=[("b", lambda c: True)])
    said = old.diff(new)
    assert "The parameter 'gone' is gone; it was Constant(1)." in said
    assert "The parameter 'new' is new: Int(1, 2)." in said
    assert "'lr' was Float(0.1, 1.0) and is Float(0.1, 2.0)." in said
    assert "'c' was Choice((1,)) and is Choice((True,))." in said
    assert "The order was lr, c, gone and is c, lr, new." in said
    assert "The constraint 'a' is gone." in said
    assert "The constraint 'b' is new." in said
    assert old != new
    assert old.diff(old) == []


def test_the_text_of_a_domain_is_the_code_that_makes_it():
    names = {"Float": Float, "Int": Int, "Choice": Choice, "Constant": Constant, "Space": Space}
    space = Space(
        {
            "x": Float(1e-3, 1, log=True),
            "c": Choice(["a", None, True], ordered=True),
            "k": Int(1, 5, when={"c": ["a", None]}),
            "j": Int(1, "k", log=True, when={"k": (">", 2), "c": True and "a"}),
            "f": Constant("adam"),
        }
    )
    assert eval(repr(space), names) == space


def test_continuous_parameters_take_evenly_spaced_values_ends_included():
    found = Space({"x": Float(0.0, 1.0), "y": Float(1e-3, 1e1, log=True)}).mesh(5)
    assert len(found) == 25
    assert sorted({c["x"] for c in found}) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert sorted({c["y"] for c in found}) == pytest.approx([1e-3, 1e-2, 1e-1, 1.0, 10.0])
    assert [c["y"] for c in found[:3]] == pytest.approx([1e-3, 1e-2, 1e-1])  # the last parameter is fastest


def test_conditions_and_constraints_hold_and_nothing_comes_twice():
    space = Space(
        {"kind": Choice(["a", "b"]), "p": Float(0, 1, when={"kind": "a"}), "q": Int(1, 3)},
        constraints=[lambda c: c["q"] != 2],
    )
    found = space.mesh(3)
    assert all(space.contains(c) for c in found)
    assert len(set(space.keys(found))) == len(found) == (3 + 1) * 2
