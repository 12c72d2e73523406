"""Bad spaces and bad configurations raise sentences that teach."""

import math

import numpy as np
import pytest

from haltune import Choice, Constant, Float, Int
from haltune.errors import InvalidSpace
from haltune.space import Space

DOMAINS = {
    "low = 3.0 above high = 2.0": lambda: Float(3, 2),
    "low = 3 above high = 2": lambda: Int(3, 2),
    "low must be above 0; got 0.0": lambda: Float(0, 1, log=True),
    "above 0; got -1": lambda: Float(-1, 1, log=True),
    "at least 1; got 0": lambda: Int(0, 5, log=True),
    "finite and within 1e300": lambda: Float(0, math.inf),
    "within 1e300 of zero; got 1000": lambda: Float(0, 10**400),
    "finite and within 1e300 of zero; got nan": lambda: Float(math.nan, 1),
    "must be a number or a parameter's name; got True": lambda: Float(True, 2),
    "must be a number or a parameter's name; got None": lambda: Float(None, 2),
    "whole number or a parameter's name; got 1.0": lambda: Int(1.0, 2),
    "whole number or a parameter's name; got False": lambda: Int(False, 2),
    "too wide to be exact": lambda: Int(-(2**52), 2**52),
    "within 2\\*\\*53": lambda: Int(0, 2**60),
    "high up to 2\\*\\*40": lambda: Int(1, 2**41, log=True),
    "no options": lambda: Choice([]),
    "needs a list of options": lambda: Choice("adam"),
    "in an order that stays": lambda: Choice({"a", "b"}),
    "lists 1.0 twice": lambda: Choice([1, 1.0]),
    "2001 options.*2000 are the most.*Int\\(low, high\\)": lambda: Choice(range(2001)),
    "which JSON cannot keep": lambda: Choice([object()]),
    "holds nan": lambda: Choice([math.nan]),
    "holds inf": lambda: Constant(math.inf),
    "when must map names": lambda: Int(1, 2, when="kernel"),
    "allows no value": lambda: Int(1, 2, when={"kernel": []}),
    "log='false'\\): log is True or False, without quotation marks": lambda: Float(1, 2, log="false"),
    "log=2\\): log is True or False": lambda: Int(1, 2, log=2),
    "ordered='no'\\): ordered is True or False": lambda: Choice([1, 2], ordered="no"),
    "low = '1e-4' is a text: write the number, 1e-4, without quotation marks": lambda: Float("1e-4", 1),
    "high = '8' is a text": lambda: Int(1, "8"),
}


@pytest.mark.parametrize("sentence", DOMAINS)
def test_a_bad_domain_is_refused_with_its_reason(sentence):
    with pytest.raises(InvalidSpace, match=sentence):
        DOMAINS[sentence]()


SPACES = {
    "'lr' is given twice": [("lr", Float(0, 1)), ("lr", Int(0, 1))],
    "condition on 'kernal', no parameter. Did you mean 'kernel'": {
        "kernel": Choice(["a"]),
        "d": Int(1, 2, when={"kernal": "a"}),
    },
    "'d' is active when 'kernel' is 'c', which 'kernel' never is": {
        "kernel": Choice(["a", "b"]),
        "d": Int(1, 2, when={"kernel": "c"}),
    },
    "'d' is active when 'k' is > 9, which 'k' never is": {"k": Int(1, 9), "d": Int(1, 2, when={"k": (">", 9)})},
    "'d' is active when 'k' is 1.5": {"k": Int(1, 9), "d": Int(1, 2, when={"k": 1.5})},
    "the signs are": {"k": Int(1, 9), "d": Int(1, 2, when={"k": ("=>", 9)})},
    "depends on the number 'k' by True": {"k": Int(1, 9), "d": Int(1, 2, when={"k": True})},
    "circle: a -> b -> a": {"a": Int(1, "b"), "b": Int(1, "a")},
    "circle: a -> a": {"a": Int(1, "a")},
    "circle: b -> c -> b": {"a": Int(1, 2, when={"b": 1}), "b": Int(1, 2, when={"c": 1}), "c": Int(1, "b")},
    "names 'k3', no parameter": {"k2": Int(1, 9), "k1": Int(1, "k3")},
    "which is a choice": {"c": Choice([1, 2]), "x": Float(0, "c")},
    "which is not a number": {"c": "text", "x": Float(0, "c")},
    "is an Int, so its bound 'x' must be an Int": {"x": Float(1, 2), "k": Int(1, "x")},
    "'k1' can never have a value": {"k2": Int(1, 4), "k1": Int(5, "k2")},
    "low must be above 0": {"x": Float(0, 1), "y": Float("x", 1, log=True)},
    "may mean several things": {"x": (0, 1)},
    "spaces do not nest: give each a name of its own, such as 'adam_lr'": {"adam": {"lr": Float(0, 1)}},
    "A space maps names": {"": 1},
    "without spaces around": {" x": 1},
    "got 3": {3: 1},
}


@pytest.mark.parametrize("sentence", SPACES)
def test_a_bad_space_is_refused_with_its_reason(sentence):
    with pytest.raises(InvalidSpace, match=sentence):
        Space(SPACES[sentence])


SPACE = Space(
    {
        "lr": Float(1e-4, 0.1, log=True),
        "kernel": Choice(["rbf", "poly"]),
        "degree": Int(2, 5, when={"kernel": "poly"}),
        "top": Int(5, 20),
        "k": Int(5, "top"),
        "optimizer": "adam",
    }
)
GOOD = {"lr": 0.01, "kernel": "rbf", "top": 9, "k": 7, "optimizer": "adam"}
CONFIGS = {
    "'momentum' is no parameter of this space": GOOD | {"momentum": 0.9},
    "Did you mean 'kernel'": GOOD | {"kernal": "rbf"},
    "'lr' is missing": {k: v for k, v in GOOD.items() if k != "lr"},
    "'degree' is missing": GOOD | {"kernel": "poly"},
    "'degree' is given as 3, but it is active only when 'kernel' is 'poly'": GOOD | {"degree": 3},
    "'lr' is 0.5, but must lie in \\[0.0001, 0.1\\]": GOOD | {"lr": 0.5},
    "'k' is 10, but must lie in \\[5, 9\\]": GOOD | {"k": 10},
    "'lr' must be a number; got '0.1' \\(str\\)": GOOD | {"lr": "0.1"},
    "'lr' must be a number; got True": GOOD | {"lr": True},
    "'lr' must be finite": GOOD | {"lr": math.nan},
    "'lr' must be finite; got inf": GOOD | {"lr": 10**400},
    "'top' must be an int; got 9.0 \\(float\\)": GOOD | {"top": 9.0},
    "'top' must be an int; got True": GOOD | {"top": True},
    "'top' is 1267650600228229401496703205376": GOOD | {"top": 2**100},
    "'kernel' must be one of 'rbf', 'poly'; got 'linear'": GOOD | {"kernel": "linear"},
    "'kernel' must be one of 'rbf', 'poly'; got <object": GOOD | {"kernel": object()},
    "'kernel' must be one of .* got \\['rbf'\\]": GOOD | {"kernel": ["rbf"]},
    "'optimizer' must be one of 'adam'; got 'sgd'": GOOD | {"optimizer": "sgd"},
    "like a dict; got 3": 3,
}


@pytest.mark.parametrize("sentence", CONFIGS)
def test_a_configuration_outside_the_space_is_refused_with_its_reason(sentence):
    assert SPACE.contains(GOOD)
    with pytest.raises(InvalidSpace, match=sentence):
        SPACE.canonical(CONFIGS[sentence])
    assert not SPACE.contains(CONFIGS[sentence])


def test_a_truth_of_numpy_is_one():
    assert Float(1, 2, log=np.bool_(True)) == Float(1, 2, log=True) == Float(1, 2, log=1)
    assert Choice([1, 2], ordered=np.True_).ordered is True


def test_a_constant_may_be_left_out_of_a_configuration():
    assert SPACE.canonical({k: v for k, v in GOOD.items() if k != "optimizer"}) == GOOD


@pytest.mark.parametrize("given", [Float, range(3), {"min": 0.0, "max": 1.0}, {1, 2}, (0.1, 1.0), [1, 2]])
def test_what_may_be_meant_as_a_domain_is_asked_for(given: object) -> None:
    with pytest.raises(InvalidSpace, match=r"'lr' is given as .*Choice\(\[...\]\).*Float\(low, high\)"):
        Space({"lr": given})
