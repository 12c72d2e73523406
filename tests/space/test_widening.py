"""Spaces that contain others: what is canonical in the narrower one stays as it is in the wider one."""

import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_spaces import SEEDS, spaces

from examples import many
from haltune import Choice, Constant, Float, Int
from haltune.errors import InvalidSpace
from haltune.space import Space

FEW = settings(max_examples=many(80), deadline=None)
LONG = 1 / 3  # on no decimal grid


@st.composite
def widened(draw, space):
    """A space that contains it."""
    try:
        return Space({name: draw(_wider(domain)) for name, domain in space.parameters.items()})
    except InvalidSpace:  # too wide
        assume(False)


@st.composite
def _wider(draw, domain):
    if isinstance(domain, Choice):
        options = list(domain.options)
        for number in range(draw(st.integers(0, 3))):
            options.insert(draw(st.integers(0, len(options))), f"more {number}")
        return Choice(options, ordered=domain.ordered, when=domain.when)
    if not isinstance(domain, Float | Int):
        return domain
    low, high = domain.low, domain.high
    if isinstance(domain, Float):
        by = draw(st.floats(1.0, 1e3))
        low = low if isinstance(low, str) else low / by if domain.log else low - (by - 1.0)
        high = high if isinstance(high, str) else min(high * by if domain.log else high + (by - 1.0), 1e300)
        assume(isinstance(low, str) or abs(low) <= 1e300)
    else:
        low = low if isinstance(low, str) else max(low - draw(st.integers(0, 50)), 1 if domain.log else -(2**50))
        high = high if isinstance(high, str) else high + draw(st.integers(0, 50))
    return type(domain)(low, high, log=domain.log, when=domain.when)


@FEW
@given(st.data(), SEEDS)
def test_configurations_of_the_narrower_space_keep_their_values(data, seed):
    space = data.draw(spaces())
    wider = data.draw(widened(space))
    assert not wider.lacking(space)
    try:
        configs = space.sample(20, np.random.default_rng(seed))
    except InvalidSpace:
        assume(False)
    told = json.loads(json.dumps(configs))  # as a log has them
    wider = wider.widening(space)
    assert wider.canonical_many(told) == configs
    assert wider.keys(configs) == space.keys(configs)
    assert all(map(wider.contains, configs))
    assert wider.encode_many(configs).shape == (20, wider.dim)
    assert wider.canonical_many(wider.canonical_many(told)) == configs


@FEW
@given(st.data(), SEEDS)
def test_they_keep_them_through_several_widenings_and_points_decode_as_ever(data, seed):
    space = data.draw(spaces())
    twice, plain = [space], space
    for _ in range(2):
        plain = data.draw(widened(plain))
        twice.append(plain.widening(twice[-1]))
    rng = np.random.default_rng(seed)
    for narrower in twice[:2]:
        try:
            configs = narrower.sample(5, rng)
        except InvalidSpace:
            assume(False)
        assert twice[-1].canonical_many(configs) == configs
    points = rng.uniform(size=(20, plain.dim))
    assert twice[-1].decode_many(points) == plain.decode_many(points)


def test_a_bound_that_is_on_no_grid_stays_a_value_of_the_wider_space():
    old, new = Space({"x": Float(0.0, LONG)}), Space({"x": Float(0.0, 1.0)})
    assert new.canonical({"x": LONG}) == {"x": 0.333333333333}
    assert new.widening(old).canonical({"x": LONG}) == {"x": LONG}
    assert new.widening(old).canonical({"x": LONG + 1e-14}) == {"x": 0.333333333333}
    log = Space({"x": Float(LONG, 1.0, log=True)})
    wider = Space({"x": Float(0.1, 1.0, log=True)}).widening(log)
    assert wider.canonical({"x": LONG}) == {"x": LONG}


YES = [
    (Float(0.1, 1.0), Float(0.0, 1.0)),
    (Float(0.1, 1.0, log=True), Float(0.01, 10.0, log=True)),
    (Int(2, 4), Int(1, 9)),
    (Int(2, 4, log=True), Int(1, 9, log=True)),
    (Choice(["a", "b"]), Choice(["c", "b", "a"])),
    (Choice([1, 4], ordered=True), Choice([1, 2, 4, 8], ordered=True)),
    (Constant("a"), Choice(["b", "a"])),
    (Constant(3), Int(1, 4)),
    (Constant(0.5), Float(0.0, 1.0)),
    (Constant(0), Float(0.0, 1.0)),
    (Int(1, 4, when={"k": "a"}), Int(1, 9, when={"k": "a"})),
]
MORE = [  # a condition gains what its parent could not be before
    (Int(1, 4, when={"k": "a"}), Int(1, 4, when={"k": ["a", "c"]})),
    (Int(1, 4, when={"n": (">", 4)}), Int(1, 4, when={"n": [(">", 4), ("<", 1)]})),
]
NO = [
    *((new, old) for old, new in YES),
    (Float(0.1, 1.0), Float(0.2, 2.0)),
    (Float(0.1, 1.0), Float(0.1, 1.0, log=True)),
    (Int(1, 4), Float(0.0, 9.0)),
    (Choice([1, 2]), Int(1, 2)),
    (Choice([1, 2]), Choice([1.0, 2.0, 3])),
    (Choice([True]), Choice([1, 2])),
    (Choice([1, 2]), Choice([1, 2, 3], ordered=True)),
    (Choice([1, 2], ordered=True), Choice([2, 1, 3], ordered=True)),
    (Constant("a"), Choice(["b", "c"])),
    (Constant("a"), Constant("b")),
    (Constant(True), Int(0, 4)),
    (Constant(0.5), Float(0.6, 1.0)),
    (Constant(0.5), Int(0, 4)),
    (Constant("a"), Float(0.0, 1.0)),
    (Int(1, 4, when={"k": "a"}), Int(1, 9)),
    (Int(1, 4, when={"k": "a"}), Int(1, 9, when={"k": ["a", "b"]})),
    (Int(1, 4, when={"n": (">", 4)}), Int(1, 4, when={"n": [(">", 4), (">", 3)]})),
    (Int(1, 4, when={"n": (">", 4)}), Int(1, 4, when={"k": "a"})),
    (Int(1, "n"), Int(1, 9)),
]


def _spaces(old, new):
    """Two of which the second has more of what conditions name."""
    narrow = Space({"k": Choice(["a", "b"]), "n": Int(1, 9), "x": old})
    return narrow, Space({"k": Choice(["a", "b", "c"]), "n": Int(0, 9), "x": new})


@pytest.mark.parametrize(("old", "new"), YES + MORE)
def test_a_wider_domain_widens_a_space(old, new):
    narrow, wide = _spaces(old, new)
    assert wide.lacking(narrow) == wide.lacking(wide) == []


@pytest.mark.parametrize(("old", "new"), NO)
def test_what_lacks_a_configuration_or_has_another_shape_does_not(old, new):
    narrow, wide = _spaces(old, new)
    assert any("'x' was" in said for said in wide.lacking(narrow))


def test_parameters_their_order_and_constraints_stay():
    space = Space({"a": Int(1, 4), "b": Int(1, 4)}, {"even": lambda c: c["a"] % 2 == 0})
    wide, same = {"a": Int(1, 9), "b": Int(1, 4)}, {"even": lambda c: c["a"] % 2 == 0}
    assert Space(wide, same).lacking(space) == []
    assert Space(wide).lacking(space) == ["the constraints differ"]
    assert Space({"a": Int(1, 9)}, same).lacking(space) == ["'b' is missing"]
    assert Space({"b": Int(1, 4), "a": Int(1, 9)}, same).lacking(space) == ["the order was a, b"]
    [said] = Space({**wide, "c": Int(1, 2)}, same).lacking(space)
    assert "'c' is new, and its value in earlier trials is unknown" in said
    assert "such as Study(space | {'c': 1}, ...)" in said


def test_what_is_new_is_a_constant_or_was_never_active():
    old = {"k": Choice(["a", "b"]), "layers": Int(1, 2), "fixed": 3}
    more = {**old, "k": Choice(["a", "b", "c"]), "layers": Int(1, 4), "fixed": Int(1, 9)}
    idle = [
        Constant(7),
        Int(1, 9, when={"k": "c"}),
        Int(1, 9, when={"layers": (">", 2)}),
        Int(1, 9, when={"layers": [3, 4]}),
        Int(1, 9, when={"fixed": (">", 3)}),
        Int(1, 9, when={"k": "a", "layers": 3}),
    ]
    busy = [
        Int(1, 9),
        Int(1, 9, when={"k": ["b", "c"]}),
        Int(1, 9, when={"layers": (">", 1)}),
        Int(1, 9, when={"fixed": (">", 2)}),
        Int(1, 9, when={"k": "a", "layers": 1}),
    ]
    space = Space(old)
    assert [Space({"x": x, **more}).lacking(space) for x in idle] == [[]] * len(idle)
    assert all("'x' is new" in Space({**more, "x": x}).lacking(space)[0] for x in busy)
    child = {"x": Choice(["u"], when={"k": "c"}), "y": Int(1, 2, when={"x": "u"})}
    assert Space({**more, **child}).lacking(space) == []


def test_what_was_a_constant_is_filled_in_as_that():
    """Also where the constant came with a widening, so that older configurations of the log have none."""
    m, o = Float(-5.0, 1e3), Choice([(3, 4), (1, 2)])
    wide, *more = [
        Space({"x": Int(1, 4)}),
        Space({"x": Int(1, 4), "m": LONG}),
        Space({"x": Int(1, 4), "m": Float(0.0, 1.0)}),
        Space({"x": Int(1, 9), "m": m, "o": Constant((1, 2))}),
        Space({"x": Int(1, 9), "m": m, "o": o}),
    ]
    for space in more:
        assert space.lacking(wide) == []
        wide = space.widening(wide)
    assert wide.canonical({"x": 2}) == {"x": 2, "m": LONG, "o": (1, 2)}
    assert wide.canonical({"x": 2, "o": [3, 4]}) == {"x": 2, "m": LONG, "o": (3, 4)}
    with pytest.raises(InvalidSpace, match="has no 'm'"):
        more[-1].canonical({"x": 2})
