"""Configurations to the unit cube and back, over random spaces of every kind."""

import json

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_spaces import SEEDS, floats, ints, spaces

from examples import many
from haltune import Float
from haltune.space import Space

FEW = settings(max_examples=many(120), deadline=None)


@FEW
@given(spaces(), SEEDS)
def test_every_configuration_comes_back_from_the_cube_exactly(space, seed):
    points = np.random.default_rng(seed).random((20, space.dim))
    points[:4] = np.round(points[:4])  # the corners, where the bounds are
    configs = space.decode_many(points)
    encoded = space.encode_many(configs)
    assert encoded.shape == (20, space.dim)
    assert ((encoded >= 0) & (encoded <= 1)).all()
    again = space.decode_many(encoded)
    assert again == configs
    assert [_types(c) for c in again] == [_types(c) for c in configs]
    np.testing.assert_array_equal(space.encode_many(again), encoded)


@FEW
@given(spaces(), SEEDS)
def test_decoded_configurations_are_canonical_plain_and_contained(space, seed):
    for config in space.decode_many(np.random.default_rng(seed).random((10, space.dim))):
        assert space.canonical(config) == config
        assert list(space.canonical(config)) == [name for name in space.names if name in config]
        assert space.contains(config)
        assert set(_types(config)) <= {int, float, bool, str, tuple, type(None)}
        assert space.key(json.loads(json.dumps(config))) == space.key(config)


@FEW
@given(spaces(), SEEDS)
def test_a_space_comes_back_from_json_text_and_decodes_alike(space, seed):
    back = Space.from_json(json.loads(json.dumps(space.to_json(), sort_keys=True)))
    assert back == space
    assert back.names == space.names
    points = np.random.default_rng(seed).random((5, space.dim))
    assert back.decode_many(points) == space.decode_many(points)


@FEW
@given(floats())
def test_the_bounds_of_a_float_are_members_and_its_corners(domain):
    space = Space({"x": domain})
    for end, corner in ((domain.low, 0.0), (domain.high, 1.0)):
        assert space.canonical({"x": end}) == {"x": end}
        assert space.decode([corner]) == {"x": end}
        assert space.decode(space.encode({"x": end})) == {"x": end}


@pytest.mark.parametrize("value", [0.001, 0.1, 0.3, 3e-4, 0.123456789, 0.07])
@pytest.mark.parametrize("log", [True, False])
def test_decimal_values_as_people_write_them_stay_as_they_are(value, log):
    assert Space({"x": Float(1e-4, 1, log=log)}).canonical({"x": value}) == {"x": value}


@pytest.mark.parametrize(
    ("low", "high", "log"),
    [
        (1e6, 1e6 + 1e-9, False),
        (1.0, 1.0 + 1e-11, True),
        (5e-324, 1e-322, False),
        (5e-324, 1e300, True),
        (-1e300, 1e300, False),
        (999.999999999995, 1000.000000000005, True),
    ],
)
def test_extreme_ranges_of_floats_round_trip_exactly(low, high, log):
    space = Space({"x": Float(low, high, log=log)})
    u = np.concatenate([np.linspace(0, 1, 4001), np.geomspace(1e-17, 1, 500), 1 - np.geomspace(1e-17, 1, 500)])
    configs = space.decode_many(u[:, None])
    assert all(low <= c["x"] <= high for c in configs)
    assert space.decode_many(space.encode_many(configs)) == configs
    assert space.canonical_many(configs) == configs


@FEW
@given(ints(), st.data())
def test_every_int_of_any_range_round_trips_at_the_edges_and_inside(domain, data):
    space = Space({"k": domain})
    values = {domain.low, domain.high, data.draw(st.integers(domain.low, domain.high))}
    values |= {min(domain.low + 1, domain.high), max(domain.high - 1, domain.low)}
    for value in values:
        assert space.decode(space.encode({"k": value})) == {"k": value}


@FEW
@given(spaces())
def test_listing_a_finite_space_agrees_with_sampling_it(space):
    assume(space.size is not None and space.size <= 60)
    listed = {space.key(c) for c in space.enumerate()}
    assert len(listed) == space.size == len(space.enumerate())
    sampled = space.sample(200, np.random.default_rng(0))
    assert {space.key(c) for c in sampled} <= listed


def _types(config):
    return [type(value) for value in config.values()]
