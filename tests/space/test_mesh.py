"""Meshes of a space: what a level-set search looks at."""

import numpy as np
import pytest

from haltune import Choice, Float, HaltuneError, Int, Space


def test_continuous_parameters_take_evenly_spaced_values_ends_included():
    found = Space({"x": Float(0.0, 1.0), "y": Float(1e-3, 1e1, log=True)}).mesh(5)
    assert len(found) == 25
    assert sorted({c["x"] for c in found}) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert sorted({c["y"] for c in found}) == pytest.approx([1e-3, 1e-2, 1e-1, 1.0, 10.0])
    assert [c["y"] for c in found[:3]] == pytest.approx([1e-3, 1e-2, 1e-1])  # the last parameter is fastest


def test_all_values_of_short_ranges_and_choices_are_there():
    space = Space({"n": Int(2, 5, log=True), "o": Choice(["a", "b"]), "k": Choice([1, 2, 4], ordered=True), "c": 7})
    found = space.mesh(4)
    assert len(found) == 4 * 2 * 3
    assert {c["n"] for c in found} == {2, 3, 4, 5}
    assert {c["o"] for c in found} == {"a", "b"}
    assert {c["k"] for c in found} == {1, 2, 4}
    assert {c["c"] for c in found} == {7}


def test_long_ranges_are_thinned_and_log_scales_stay_log():
    found = sorted({c["n"] for c in Space({"n": Int(1, 1000, log=True)}).mesh(4)})
    assert found[0] == 1
    assert found[-1] == 1000
    assert len(found) <= 4
    assert found[1] < 20


def test_conditions_and_constraints_hold_and_nothing_comes_twice():
    space = Space(
        {"kind": Choice(["a", "b"]), "p": Float(0, 1, when={"kind": "a"}), "q": Int(1, 3)},
        constraints=[lambda c: c["q"] != 2],
    )
    found = space.mesh(3)
    assert all(space.contains(c) for c in found)
    assert len(set(space.keys(found))) == len(found) == (3 + 1) * 2


def test_meshes_that_are_too_fine_or_too_coarse_are_refused():
    space = Space({f"x{i}": Float(0, 1) for i in range(4)})
    with pytest.raises(HaltuneError, match="10,000 fit"):
        space.mesh(20, most=10_000)
    with pytest.raises(HaltuneError, match="2 levels"):
        space.mesh(1)


def test_a_mesh_is_made_of_canonical_configurations():
    space = Space({"lr": Float(1e-5, 1.0, log=True), "w": Float(-0.3, 0.7)})
    found = space.mesh(7)
    assert np.array_equal(space.encode_many(found), space.encode_many(space.canonical_many(found)))
