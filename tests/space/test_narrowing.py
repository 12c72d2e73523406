"""A space of a search that is narrowed: what was tried keeps its values and its points, what is new lies inside."""

import json

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from random_spaces import SEEDS, spaces

from examples import many
from haltune import Choice, Constant, Float, Int
from haltune.errors import InvalidSpace
from haltune.space import Space

FEW = settings(max_examples=many(80), deadline=None)
LONG = 1 / 3  # on no decimal grid


@st.composite
def changed(draw, space):
    """A space with smaller, shifted or single-valued domains; parameters that are never active are dropped."""
    found = {name: draw(_changed(domain)) for name, domain in space.parameters.items()}
    for name in [n for n, d in found.items() if d.when]:
        try:
            Space(found)
        except InvalidSpace:
            found.pop(name)
    try:
        return Space(found)
    except InvalidSpace:
        assume(False)


@st.composite
def _changed(draw, domain):
    if isinstance(domain, Choice):
        kept = [o for o in domain.options if draw(st.booleans())] or [domain.options[0]]
        if len(kept) == 1 and draw(st.booleans()):
            return Constant(kept[0], when=domain.when)
        return Choice([*["more"] * draw(st.booleans()), *kept], ordered=domain.ordered, when=domain.when)
    if not isinstance(domain, Float | Int) or isinstance(domain.low, str) or isinstance(domain.high, str):
        return domain
    values = Space({"x": type(domain)(domain.low, domain.high, log=domain.log)})
    low, high = sorted(values.decode([draw(st.floats(0.0, 1.0))])["x"] for _ in range(2))
    if draw(st.booleans()):
        return Constant(low, when=domain.when)
    shift = draw(st.sampled_from([0, 1]))
    high = min(high * (1 + shift), 1e300) if isinstance(domain, Float) and high > 0 else high + shift
    return type(domain)(low, high, log=domain.log, when=domain.when)


def sampled(space, n, seed):
    try:
        return space.sample(n, np.random.default_rng(seed))
    except InvalidSpace:  # bounds cross nearly everywhere
        assume(False)


def searched_in(new, old):
    """The space of a search in `old` that continues in `new`, as a study makes it."""
    whole = new if not new.lacking(old) else new.covering(old)
    lacks = whole.lacking(old)
    if any("is missing" in said for said in lacks):  # a number cannot be compared once it is a constant
        reject()
    assert lacks == []
    found = whole.widening(old)
    return found if whole == new else found.narrowed_to(new)


@FEW
@given(st.data(), SEEDS)
def test_earlier_configurations_keep_their_values_and_new_ones_lie_inside(data, seed):
    space = data.draw(spaces())
    new = data.draw(changed(space))
    before, fresh = sampled(space, 10, seed), sampled(new, 10, seed)
    now = searched_in(new, space)
    assert now.inside == new
    assert not now.whole.lacking(new)
    assert now.canonical_many(json.loads(json.dumps(before))) == now.whole.canonical_many(before)
    for old, same in zip(before, now.canonical_many(before), strict=True):
        assert {name: same[name] for name in old} == old
    points = now.encode_many(before)
    assert points.shape == (10, now.dim)
    for same, config in zip(now.canonical_many(fresh), fresh, strict=True):
        assert {name: same[name] for name in config} == config
        assert now.contains(config)
        np.testing.assert_allclose(now.encode(now.decode(now.encode(config))), now.encode(config), atol=1e-9)
    rng = np.random.default_rng(seed)
    for config in [*now.sample(10, rng), *now.sample_up_to(10, rng, "sobol")]:
        assert new.contains(config)
        assert now.canonical(config) == config
    anywhere = rng.uniform(size=(20, now.dim))
    for point in anywhere:
        if (config := now.decode_valid(point)) is not None:  # no bounds cross
            assert new.contains(config)
            assert now.canonical(config) == config
    snapped = now.snap(anywhere)
    np.testing.assert_allclose(now.snap(snapped), snapped, atol=1e-9)


@FEW
@given(st.data(), SEEDS)
def test_points_of_new_configurations_fill_the_box_and_points_in_it_are_not_moved(data, seed):
    space = data.draw(spaces())
    new = data.draw(changed(space))
    fresh = sampled(new, 20, seed)
    now = searched_in(new, space)
    low, high = now.box
    points = now.encode_many(fresh)
    for config, point in zip(fresh, points, strict=True):
        for name, columns in now.columns.items():
            if name in config:
                assert (low[columns] - 1e-9 <= point[columns]).all()
                assert (point[columns] <= high[columns] + 1e-9).all()
    for name, columns in now.columns.items():  # a number with bounds of its own is decoded as in the whole space
        domain = now.whole.parameters[name]
        if not isinstance(domain, Float) or isinstance(domain.low, str) or isinstance(domain.high, str):
            continue
        inside = low + np.random.default_rng(seed).random((5, now.dim)) * (high - low)
        for mine, theirs in zip(now.decode_many(inside), now.whole.decode_many(inside), strict=True):
            if name in mine and name in theirs and low[columns] < high[columns]:
                assert mine[name] == pytest.approx(theirs[name], rel=1e-6, abs=1e-9 * abs(domain.high - domain.low))


@FEW
@given(st.data(), SEEDS)
def test_it_is_narrowed_and_widened_again_and_again_without_moving_a_value(data, seed):
    space = now = data.draw(spaces())
    tried, told = [], []
    for _ in range(3):
        new = data.draw(changed(space))
        now = searched_in(new, now)
        tried += sampled(now, 5, seed)
        told.append(now)
    back = searched_in(now.whole, now)
    assert back.inside is back.whole is back
    for config, same in zip(tried, back.canonical_many(tried), strict=True):
        assert {name: same[name] for name in config} == config
    assert len(set(back.keys(tried))) == len(set(now.keys(tried)))


JOINED = [
    (Float(0.2, 0.4), Float(0.0, 1.0), Float(0.0, 1.0)),
    (Float(0.2, 2.0), Float(0.0, 1.0), Float(0.0, 2.0)),
    (Constant(0.5), Float(0.0, 1.0), Float(0.0, 1.0)),
    (Constant(3), Float(0.0, 1.0), Float(0.0, 3.0)),
    (Int(2, 3, log=True), Int(1, 9, log=True), Int(1, 9, log=True)),
    (Int(20, 30), Int(1, 9), Int(1, 30)),
    (Choice(["a"]), Choice(["b", "a"]), Choice(["a", "b"])),
    (Constant("a"), Choice(["b", "a"]), Choice(["a", "b"])),
    (Choice(["c", "a"]), Choice(["b", "a"]), Choice(["c", "a", "b"])),
    (Choice([1, 4], ordered=True), Choice([1, 2, 4], ordered=True), Choice([1, 2, 4], ordered=True)),
    (Choice([0, 4, 8], ordered=True), Choice([1, 2, 4], ordered=True), Choice([0, 1, 2, 4, 8], ordered=True)),
]
APART = [
    (Float(0.2, 0.4), Float(0.0, 1.0, log=False, when={"k": "a"})),
    (Float(0.2, 0.4, log=True), Float(0.0, 1.0)),
    (Constant("a"), Float(0.0, 1.0)),
    (Constant(0.5), Int(0, 1)),
    (Constant(True), Int(0, 1)),
    (Constant("b"), Constant("a")),
    (Int(1, 2), Float(0.0, 3.0)),
    (Int(1, 2), Choice([1, 2])),
    (Choice([4, 1], ordered=True), Choice([1, 2, 4], ordered=True)),
    (Choice([1, 4]), Choice([1, 2, 4], ordered=True)),
    (Choice([1.0]), Choice([1, 2])),
    (Int(1, 3), Int(1, "n")),
]


@pytest.mark.parametrize(("new", "old", "joined"), JOINED)
def test_the_smallest_space_that_contains_both(new, old, joined):
    others = {"k": Choice(["a", "b"]), "n": Int(1, 9)}
    found = Space({**others, "x": new}).covering(Space({**others, "x": old}))
    assert found.parameters["x"] == joined
    assert not found.lacking(Space({**others, "x": old}))
    assert not found.lacking(Space({**others, "x": new}))


@pytest.mark.parametrize(("new", "old"), APART)
def test_spaces_of_another_kind_have_none_and_the_reason_names_the_parameter(new, old):
    others = {"k": Choice(["a", "b"]), "n": Int(1, 9)}
    before = Space({**others, "x": old})
    assert any("'x' was" in said for said in Space({**others, "x": new}).covering(before).lacking(before))


def test_a_dropped_option_takes_its_parameters_along():
    old = Space({
        "kernel": Choice(["rbf", "poly"]), "degree": Int(2, 5, when={"kernel": "poly"}),
        "bias": Choice([True, False], when={"degree": (">", 3)}),
        "c": Float(0.0, 1.0, when={"kernel": ["rbf", "poly"]}),
    })  # fmt: skip
    new = Space({"kernel": "rbf", "c": Float(0.0, 0.5, when={"kernel": "rbf"})})
    now = searched_in(new, old)
    assert now.whole == old
    assert now.names == old.names
    assert {tuple(config) for config in now.sample(20, np.random.default_rng(0))} == {("kernel", "c")}
    tried = {"kernel": "poly", "degree": 4, "bias": True, "c": 0.75}
    assert now.canonical(tried) == tried
    assert not now.contains(tried)
    assert now.decode(now.encode(tried)) == {"kernel": "rbf", "c": 0.5}
    active = Space({"kernel": Choice(["rbf", "poly"]), "c": Float(0.0, 1.0, when={"kernel": ["rbf", "poly"]})})
    assert active.covering(old).lacking(old) == ["'degree' is missing", "'bias' is missing"]


def test_a_bound_on_no_grid_is_a_value_of_the_narrower_space_and_stays_one():
    old = Space({"x": Float(0.0, 1.0)})
    now = searched_in(Space({"x": Float(LONG, 0.5)}), old)
    assert now.decode([0.0]) == {"x": LONG} == now.canonical({"x": LONG})
    assert now.contains({"x": LONG})
    assert searched_in(old, now).canonical({"x": LONG}) == {"x": LONG}


def test_a_finite_space_lists_only_what_is_inside():
    old = Space({"layers": Int(1, 9), "act": Choice(["relu", "gelu", "tanh"])})
    now = searched_in(Space({"layers": Int(2, 3), "act": Choice(["gelu", "tanh"])}), old)
    assert now.size == len(now.enumerate()) == len(now.mesh(5)) == 4
    assert {c["layers"] for c in now.enumerate()} == {2, 3}
    np.testing.assert_allclose(now.box[:, now.columns["layers"]].ravel(), [1 / 9, 3 / 9])
    assert now.box[1, now.columns["act"]].tolist() == [1.0, 1.0, 0.0]
    assert now.whole.parameters["act"] == Choice(["gelu", "tanh", "relu"])
