"""Where runs are first compared."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples import many
from haltune.policies.multifidelity.policy import first_rung

EPOCHS = (1, 3, 9, 27, 50)
told = st.lists(st.floats(0.01, 1.0), min_size=5, max_size=5)


@pytest.mark.parametrize(
    ("foretells", "rung"),
    [
        ((1.0, 1.0, 1.0, 1.0, 1.0), 0),  # nothing is gained by waiting
        ((0.1, 0.85, 0.9, 0.95, 1.0), 1),  # the first epoch says nothing
        ((0.1, 0.1, 0.2, 0.3, 1.0), 4),  # only the end tells: trained in full
    ],
)
def test_it_is_as_early_as_runs_can_be_told_apart(foretells: tuple[float, ...], rung: int) -> None:
    assert first_rung(np.array(foretells), EPOCHS) == rung


@pytest.mark.parametrize("rung", range(4))
def test_it_finds_what_a_simulated_search_finds_best(rung: int) -> None:
    """The rung of best expected end, by Monte Carlo: n runs seen there, the one that leads trained on."""
    rng = np.random.default_rng(rung)
    foretells = np.where(np.arange(5) < rung, 0.15, 0.9)
    foretells[-1] = 1.0
    found = []
    for told, epochs in zip(foretells, EPOCHS, strict=True):
        n = int(8 * EPOCHS[-1] / epochs)
        end = rng.standard_normal((4000, n))
        seen = told * end + np.sqrt(1 - told**2) * rng.standard_normal((4000, n))
        found.append(end[np.arange(4000), seen.argmax(axis=1)].mean())
    assert first_rung(foretells, EPOCHS) == int(np.argmax(found)) == rung


@settings(max_examples=many(100), deadline=None)
@given(foretells=told, rung=st.integers(0, 4), more=st.floats(0.0, 1.0))
def test_a_rung_that_tells_more_is_not_given_up_for_it(foretells: list[float], rung: int, more: float) -> None:
    before = np.array(foretells)
    chosen = first_rung(before, EPOCHS)
    after = before.copy()
    after[rung] = min(1.0, after[rung] + more)
    assert first_rung(after, EPOCHS) in (chosen, rung)
