"""Sampling, constraints, counting, JSON and the differences between spaces."""

import json
import math
from collections import Counter

import numpy as np
import pytest

from haltune import Choice, Constant, Float, Int
from haltune.errors import InvalidInput, InvalidSpace
from haltune.space import Space
from haltune.space.space import batches

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


def test_sobol_batches_keep_the_number_of_points_a_power_of_two():
    drawn = batches("sobol", 10, 2, rng())
    points = np.vstack([next(drawn) for _ in range(3)])
    assert len(points) == 64
    assert set(Counter(np.floor(points[:, 0] * 64).tolist()).values()) == {1}


def test_an_unknown_design_is_refused_naming_those_there_are():
    with pytest.raises(InvalidInput, match="'uniform', 'sobol', 'lhs'"):
        Space({"x": Float(0, 1)}).sample(1, rng(), "grid")


def test_no_sample_at_all_is_an_empty_list():
    assert Space({"x": Float(0, 1)}).sample(0, rng(), "sobol") == []


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
    with pytest.raises(InvalidSpace, match=r"Of 1\d\d,\d{3} points of the space, nothing passed \('above two'\)"):
        space.sample(1, rng())


def test_too_few_that_pass_are_counted_too():
    calls = iter([True, True])
    space = Space({"x": Float(0, 1)}, constraints=[("twice", lambda c: next(calls, False))])
    with pytest.raises(InvalidSpace, match="only 2 of 5 wanted passed"):
        space.sample(5, rng())


def test_a_constraint_that_raises_is_named_with_the_likely_cause():
    space = Space({"c": Choice([1, 2]), "d": Int(1, 2, when={"c": 2})}, constraints=[("d small", lambda c: c["d"] < 2)])
    with pytest.raises(InvalidSpace, match=r"'d small' raised KeyError.*config.get\(name\)"):
        space.contains({"c": 1})


def test_constraints_are_functions_with_names_of_their_own():
    with pytest.raises(InvalidSpace, match="Two constraints are called"):
        Space({"x": Float(0, 1)}, constraints=[lambda c: True, lambda c: False])
    with pytest.raises(InvalidSpace, match="function of a configuration"):
        Space({"x": Float(0, 1)}, constraints=["x < 1"])


def test_a_predicate_cannot_change_the_configuration_it_judges():
    space = Space({"x": Float(0, 1)}, constraints=[("greedy", lambda c: c.pop("x") >= 0)])
    assert all("x" in c for c in space.sample(3, rng()))


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


def test_listing_brings_every_configuration_once_in_order():
    space = Space({"k1": Int(1, "k2"), "k2": Int(1, 3), "x": Float(0.5, 0.5)})
    pairs = [(c["k1"], c["k2"]) for c in space.enumerate()]
    assert pairs == [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3)]


def test_constraints_travel_by_name_and_must_be_supplied_again():
    space = Space({"x": Float(0, 1)}, constraints=[("small", lambda c: c["x"] < 0.5)])
    data = json.loads(json.dumps(space.to_json()))
    back = Space.from_json(data, constraints={"small": lambda c: c["x"] < 0.5})
    assert back == space
    assert not back.contains({"x": 0.7})
    for supplied in (None, {"large": lambda c: True}):
        with pytest.raises(InvalidSpace, match="recorded with the constraints \\['small'\\]"):
            Space.from_json(data, constraints=supplied)


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


def test_equal_spaces_and_domains_are_equal_and_hash_alike():
    def build():
        return Space({"x": Float(0, 1, when={"c": {"b", "a"}}), "c": Choice(["a", "b"]), "f": Constant((1, 2))})

    assert build() == build()
    assert hash(build()) == hash(build())
    assert Float(0, 1) == Float(0.0, 1.0)
    assert Choice([1]) != Choice([True])


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


def test_logarithmic_floats_are_uniform_over_magnitudes():
    space = Space({"x": Float(1e-4, 1, log=True)})
    decades = [math.floor(math.log10(c["x"])) for c in space.sample(256, rng(), "sobol")]
    assert set(Counter(decades).values()) == {64}
