"""Each parameter has one counterpart, and values survive the way there and back."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_spaces import SEEDS, spaces

optuna = pytest.importorskip("optuna", reason="Optuna is not installed")

from optuna.distributions import (  # noqa: E402
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from haltune import Choice, Constant, Float, Int  # noqa: E402
from haltune.errors import InvalidSpace  # noqa: E402
from haltune.optuna.spaces import (  # noqa: E402
    Translated,
    inward,
)
from haltune.space import Space  # noqa: E402


@given(space=spaces(), seed=SEEDS)
def test_a_configuration_of_any_space_survives_the_way_to_optuna_and_back(space, seed):
    translated = Translated.of_space(space)
    for config in space.decode_many(np.random.default_rng(seed).random((4, space.dim))):
        if not space.contains(config):  # bounds that cross
            continue
        there = translated.outward(config)
        for name, value in there.items():
            distribution = translated.counterparts[name].distribution
            assert distribution._contains(distribution.to_internal_repr(value))
        assert space.key(translated.inward(there)) == space.key(config)


@st.composite
def distributions(draw):
    kind = draw(st.sampled_from(["float", "log", "int", "log int", "float step", "int step", "choice"]))
    low, wide = draw(st.integers(-20, 20)), draw(st.integers(1, 40))
    if kind == "choice":
        options = st.one_of(st.none(), st.booleans(), st.integers(2, 9), st.text("abc", max_size=2))
        return CategoricalDistribution(draw(st.lists(options, min_size=1, max_size=4, unique_by=repr)))
    if kind == "int":
        return IntDistribution(low, low + wide)
    if kind == "log int":
        return IntDistribution(1 + abs(low), 1 + abs(low) + wide, log=True)
    if kind == "int step":
        step = draw(st.integers(2, 5))
        return IntDistribution(low, low + step * wide, step=step)
    if kind == "float step":
        step = draw(st.sampled_from([0.1, 0.25, 0.05, 3.0]))
        return FloatDistribution(low, round(low + step * wide, 10), step=step)
    return FloatDistribution(
        abs(low) / 7 + 0.001, abs(low) / 7 + wide / 3 + 0.001, log=draw(st.just(kind == "log"))
    )


@given(distribution=distributions(), seed=SEEDS)
def test_a_distribution_of_any_kind_survives_the_way_here_and_back(distribution, seed):
    found = inward("x", distribution)
    assert Translated.of_space(Space({"x": found.domain})).counterparts["x"].distribution == distribution
    sampler, study = optuna.samplers.RandomSampler(seed=seed), optuna.create_study()
    value = sampler.sample_independent(study, None, "x", distribution)
    again = found.outward(found.inward(value))
    same = math.isclose(again, value, rel_tol=1e-9) if isinstance(value, float) else again == value
    assert same
    assert type(again) is type(value)


def test_what_optuna_cannot_keep_is_its_text_there():
    options = [(3, 3), "(3, 3)", True, 1, None, 2.5]
    found = Translated.of_space(Space({"kernel": Choice(options)})).counterparts["kernel"]
    assert found.distribution == CategoricalDistribution(["(3, 3)'", "(3, 3)", "True", "1", None, 2.5])
    assert [found.inward(found.outward(o)) for o in options] == options
    assert [type(found.inward(found.outward(o))) for o in options[2:4]] == [bool, int]


def test_a_constant_is_the_only_choice_and_a_named_bound_the_outermost():
    space = Space({"k2": Int(5, 20), "k1": Int(3, "k2"), "optimizer": Constant("adam")})
    found = {name: c.distribution for name, c in Translated.of_space(space).counterparts.items()}
    assert found == {
        "k2": IntDistribution(5, 20),
        "k1": IntDistribution(3, 20),
        "optimizer": CategoricalDistribution(["adam"]),
    }


def test_steps_are_listed_unless_they_are_too_many():
    assert inward("x", IntDistribution(8, 32, step=8)).domain == Choice([8, 16, 24, 32], ordered=True)
    assert inward("x", FloatDistribution(0, 0.3, step=0.1)).domain == Choice(
        [0.0, 0.1, 0.2, 0.3], ordered=True
    )
    fine = inward("x", FloatDistribution(0, 1, step=0.0001))
    assert fine.domain == Float(0, 1)
    assert fine.outward(0.12344) == pytest.approx(0.1234)


def test_a_distribution_of_nobodys_is_an_error_that_names_its_parameter():
    class Odd(BaseDistribution):
        def to_internal_repr(self, value): ...
        def single(self): ...
        def _contains(self, value): ...

    with pytest.raises(InvalidSpace, match=r"'depth'.*haltune knows"):
        inward("depth", Odd())
    with pytest.raises(InvalidSpace, match=r"'depth'.*Choice"):
        inward("depth", CategoricalDistribution([1.0, 1]))
