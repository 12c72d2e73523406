"""Keras Tuner's hyperparameters as haltune's space; run by test_keras_tuner."""

import keras_tuner
import numpy as np
import pytest

from haltune import Choice, Constant, Float, Int, Space
from haltune.errors import InvalidSpace
from haltune.keras_tuner import explored, hyperparameter_values, space_of

SAME = [
    (lambda hp: hp.Float("x", 1e-4, 1e-1, sampling="log"), Float(1e-4, 1e-1, log=True)),
    (lambda hp: hp.Float("x", 0.0, 0.5, step=0.125), Choice([0.0, 0.125, 0.25, 0.375, 0.5], ordered=True)),
    (lambda hp: hp.Float("x", 1e-3, 1.0, step=10, sampling="log"), Choice([0.001, 0.01, 0.1, 1.0], ordered=True)),
    (lambda hp: hp.Int("x", 2, 64, sampling="log"), Int(2, 64, log=True)),
    (lambda hp: hp.Int("x", 32, 512, step=32), Choice(range(32, 513, 32), ordered=True)),
    (lambda hp: hp.Choice("x", ["relu", "tanh"]), Choice(["relu", "tanh"])),
    (lambda hp: hp.Choice("x", [1, 2, 4]), Choice([1, 2, 4], ordered=True)),
    (lambda hp: hp.Boolean("x"), Choice([False, True])),
    (lambda hp: hp.Fixed("x", 3), Constant(3)),
]


def known(ask):
    hp = keras_tuner.HyperParameters()
    ask(hp)
    return hp


@pytest.mark.parametrize(("ask", "ours"), SAME, ids=[str(ours) for _, ours in SAME])
def test_each_kind_has_its_counterpart(ask, ours):
    theirs = known(ask)
    space = space_of(theirs)
    assert space == Space({"x": ours})
    for prob in np.linspace(0.0, 0.999, 50):
        value = theirs.space[0].prob_to_value(prob) if not isinstance(ours, Constant) else 3
        space.canonical({"x": round(value, 9) if isinstance(value, float) else value})


def test_what_is_asked_for_in_scopes_and_loops_is_found_with_its_condition():
    def build(hp):
        kind = hp.Choice("kind", ["dense", "conv"])
        with hp.conditional_scope("kind", ["conv"]):
            if kind == "conv":
                hp.Int("filters", 4, 8)
        for i in range(hp.Int("layers", 1, 3)):
            hp.Int(f"units_{i}", 8, 16)
        if hp.Boolean("dropout"):
            hp.Float("rate", 0.0, 0.5)

    hp = keras_tuner.HyperParameters()
    build(hp)
    hp = explored(build, hp)
    space = space_of(hp)
    assert set(space.names) == {"kind", "filters", "layers", "units_0", "units_1", "units_2", "dropout", "rate"}
    for config in space.sample(50, np.random.default_rng(0)):
        assert ("filters" in config) == (config["kind"] == "conv")
        values = hyperparameter_values(config, hp)
        assert values == config
        found = hp.copy()
        found.values = dict(values)
        build(found)
        assert found.values == values


def test_a_combination_that_cannot_be_built_declares_what_came_before_its_error():
    def build(hp):
        layers = hp.Int("layers", 1, 3)
        if hp.Choice("padding", ["same", "valid"]) == "valid":
            hp.Int("crop", 1, 2)
            raise MemoryError("out of memory")
        for i in range(layers):
            hp.Int(f"units_{i}", 8, 16)

    assert set(space_of(explored(build, known(build))).names) == {
        "layers",
        "padding",
        "crop",
        *(f"units_{i}" for i in range(3)),
    }


def other_ranges(hp):
    hp.Choice("kind", ["a", "b"])
    for scope, high in (("a", 1.0), ("b", 2.0)):
        with hp.conditional_scope("kind", [scope]):
            hp.Float("rate", 0.0, high)


def other_parents(hp):
    hp.Choice("kind", ["a", "b"])
    hp.Boolean("deep")
    for name, value in (("kind", "a"), ("deep", True)):
        with hp.conditional_scope(name, [value]):
            hp.Float("rate", 0.0, 1.0)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda hp: None, "nothing to search"),
        (lambda hp: hp.Float("x", 0.1, 1.0, sampling="reverse_log"), "'x'.*reverse_log"),
        (lambda hp: hp.Float("x", 0.0, 1.0, step=1e-5), "more than 1000 steps"),
        (other_ranges, "'rate' has different ranges"),
        (other_parents, "'rate' is declared in scopes of several parameters, deep, kind"),
    ],
)
def test_what_has_no_counterpart_is_named(ask, said):
    with pytest.raises(InvalidSpace, match=said):
        space_of(known(ask))
