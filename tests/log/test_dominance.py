"""The front of vectors, and the volume below it, against enumeration."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from examples import many
from haltune.log.scores import hypervolume, non_dominated

SMALL = st.integers(0, 4).map(float)  # with ties


def vectors(goals: int, most: int = 9) -> st.SearchStrategy[np.ndarray]:
    return st.integers(0, most).flatmap(lambda n: arrays(np.float64, (n, goals), elements=SMALL))


@settings(max_examples=many(100))
@given(st.integers(1, 4).flatmap(vectors))
def test_the_front_is_what_no_other_dominates(points: np.ndarray) -> None:
    found = non_dominated(points)
    for i, one in enumerate(points):
        beaten = any((other >= one).all() and (other > one).any() for other in points)
        assert found[i] == (not beaten)


@settings(max_examples=many(100))
@given(st.integers(1, 3).flatmap(lambda m: vectors(m, 6)))
def test_the_hypervolume_is_the_unit_cubes_that_are_dominated(points: np.ndarray) -> None:
    """Whole coordinates: each cube of side 1 is dominated as a whole or not at all."""
    corners = np.array(np.meshgrid(*[range(1, 5)] * points.shape[1])).reshape(points.shape[1], -1).T
    dominated = sum(bool((points >= corner).all(axis=1).any()) for corner in corners)
    assert hypervolume(points, np.zeros(points.shape[1])) == pytest.approx(dominated)
