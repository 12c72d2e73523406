"""Bad spaces and bad configurations raise sentences that teach."""

import math

import pytest

from haltune import Choice, Constant, Float, Int
from haltune.errors import InvalidSpace
from haltune.space import Space

DOMAINS = {
    "low = 3.0 above high = 2.0": lambda: Float(3, 2),
    "low must be above 0; got 0.0": lambda: Float(0, 1, log=True),
    "at least 1; got 0": lambda: Int(0, 5, log=True),
    "finite and within 1e300": lambda: Float(0, math.inf),
    "within 1e300 of zero; got 1000": lambda: Float(0, 10**400),
    "must be a number or a parameter's name; got True": lambda: Float(True, 2),
    "whole number or a parameter's name; got 1.0": lambda: Int(1.0, 2),
    "too wide to be exact": lambda: Int(-(2**52), 2**52),
    "no options": lambda: Choice([]),
    "needs a list of options": lambda: Choice("adam"),
    "their order must not change": lambda: Choice({"a", "b"}),
    "contains 1.0 twice": lambda: Choice([1, 1.0]),
    "2001 options.*the limit is 2000.*Int\\(low, high\\)": lambda: Choice(range(2001)),
    "which JSON cannot store": lambda: Choice([object()]),
    "contains inf": lambda: Constant(math.inf),
    "allows no value": lambda: Int(1, 2, when={"kernel": []}),
    "log='false'\\) is not valid. Use True or False, without quotation marks": lambda: Float(1, 2, log="false"),
    "low = '1e-4' is text. Write the number 1e-4 without quotation marks": lambda: Float("1e-4", 1),
}


@pytest.mark.parametrize("sentence", DOMAINS)
def test_a_bad_domain_is_refused_with_its_reason(sentence):
    with pytest.raises(InvalidSpace, match=sentence):
        DOMAINS[sentence]()


SPACES = {
    "'lr' is given twice": [("lr", Float(0, 1)), ("lr", Int(0, 1))],
    "depends on 'kernal', which is no parameter. Did you mean 'kernel'": {
        "kernel": Choice(["a"]),
        "d": Int(1, 2, when={"kernal": "a"}),
    },
    "condition of 'd' never holds: 'kernel' is never 'c'": {
        "kernel": Choice(["a", "b"]),
        "d": Int(1, 2, when={"kernel": "c"}),
    },
    "'kernel' is never \\('a', 'b'\\). Several values are a list: \\['a', 'b'\\]": {
        "kernel": Choice(["a", "b", "c"]),
        "d": Int(1, 2, when={"kernel": ("a", "b")}),
    },
    "with one of": {"k": Int(1, 9), "d": Int(1, 2, when={"k": ("=>", 9)})},
    "circle: a -> b -> a": {"a": Int(1, "b"), "b": Int(1, "a")},
    "bound 'k3', no parameter": {"k2": Int(1, 9), "k1": Int(1, "k3")},
    "which is a choice": {"c": Choice([1, 2]), "x": Float(0, "c")},
    "is an Int, but its bound 'x' is not": {"x": Float(1, 2), "k": Int(1, "x")},
    "'k1' may have no valid value": {"k2": Int(1, 4), "k1": Int(5, "k2")},
    "can mean several things": {"x": (0, 1)},
    "spaces cannot nest. Give each its own name, such as 'adam_lr'": {"adam": {"lr": Float(0, 1)}},
    "name must be text": {"": 1},
    "'lr' is not a space. Write a dict": "lr",
    "None is not a space. Write a dict": None,
    "Float.0.0, 1.0. is not a space. Write a dict": Float(0, 1),
    "\\['lr', 'width'\\] is not a space. Write a dict": ["lr", "width"],
    "\\[Float.0.0, 1.0.\\] is not a space. Write a dict": [Float(0, 1)],
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
    "no parameter 'momentum'": GOOD | {"momentum": 0.9},
    "has no 'lr'": {k: v for k, v in GOOD.items() if k != "lr"},
    "'degree' is 3, but it is active only when 'kernel' is 'poly'": GOOD | {"degree": 3},
    "'lr' is 0.5. Use a value in \\[0.0001, 0.1\\]": GOOD | {"lr": 0.5},
    "'k' is 10. Use a value in \\[5, 9\\]": GOOD | {"k": 10},
    "'lr' must be a number; got '0.1' \\(str\\)": GOOD | {"lr": "0.1"},
    "'lr' must be finite": GOOD | {"lr": math.nan},
    "'top' must be an int; got 9.0 \\(float\\)": GOOD | {"top": 9.0},
    "'kernel' must be one of 'rbf', 'poly'; got 'linear'": GOOD | {"kernel": "linear"},
    "'optimizer' must be one of 'adam'; got 'sgd'": GOOD | {"optimizer": "sgd"},
    "is a dict of names and values; got 3": 3,
}


@pytest.mark.parametrize("sentence", CONFIGS)
def test_a_configuration_outside_the_space_is_refused_with_its_reason(sentence):
    assert SPACE.contains(GOOD)
    with pytest.raises(InvalidSpace, match=sentence):
        SPACE.canonical(CONFIGS[sentence])
    assert not SPACE.contains(CONFIGS[sentence])


@pytest.mark.parametrize("given", [Float, range(3), {"min": 0.0, "max": 1.0}, {1, 2}, (0.1, 1.0), [1, 2]])
def test_what_may_be_meant_as_a_domain_is_asked_for(given: object) -> None:
    with pytest.raises(InvalidSpace, match=r"'lr' is .*Choice\(\[...\]\).*Float\(low, high\)"):
        Space({"lr": given})
