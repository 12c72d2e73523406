"""Paths that learn from the runs beside: they go on as those did that stood alike, for as far as each was trained."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haltune.errors import InvalidInput
from haltune.policies.bobos.matched_curves import Beside, believed, matched_paths
from haltune.policies.bobos.power_law_curves import power_law_paths

HORIZON = 20
PLATEAU = np.full(8, 0.7)


def drawn(errors, others, count=4000, seed=0, own=False):
    beside = Beside.of([np.asarray(o, dtype=float) for o in others], HORIZON)
    return matched_paths(errors, HORIZON, beside, count, np.random.default_rng(seed), own=own)


def after_plateau(end, length=HORIZON):
    """Stays at 0.7 for ten epochs, then goes to `end` within four."""
    return np.interp(np.arange(1, length + 1), [1, 10, 14, 20], [0.7, 0.7, end, end])


def test_without_other_runs_they_are_those_of_the_power_law():
    falling = 0.2 + 0.7 / np.arange(1, 9)
    own = power_law_paths(falling, HORIZON, 500, np.random.default_rng(3)).values
    assert np.array_equal(drawn(falling, [], 500, 3).values, own)
    known_no_further = [falling + 0.01, falling[:5]]
    assert np.array_equal(drawn(falling, known_no_further, 500, 3).values, own)


def test_a_plateau_ends_as_it_ended_for_the_runs_beside():
    """A quarter of those that stood there fell; a power law of one curve alone would never."""
    others = [after_plateau(0.3)] * 6 + [after_plateau(0.7)] * 18
    ends = drawn(PLATEAU, others, own=True).values[-1]
    assert np.mean(ends < 0.5) == pytest.approx(0.25, abs=0.05)
    alone = power_law_paths(PLATEAU, HORIZON, 4000, np.random.default_rng(0)).values[-1]
    assert np.mean(alone < 0.5) < 0.02


def test_stopped_runs_tell_as_far_as_they_were_trained():
    """Of 24 runs 18 were stopped at epoch 9, before the fall: those that went on all fell, and that is no bias."""
    others = [after_plateau(0.3)] * 6 + [after_plateau(0.7)[:9]] * 18
    ends = drawn(PLATEAU, others).values[-1]
    assert np.mean(ends < 0.5) > 0.75


def test_who_stands_elsewhere_is_not_followed():
    others = [after_plateau(0.3)] * 20 + [0.2 + 0 * after_plateau(0.2)] * 20
    low = drawn(np.full(8, 0.2), others).values
    assert np.mean(np.abs(low[-1] - 0.2) < 0.1) > 0.9


def test_a_run_slightly_ahead_of_another_stays_about_as_far_ahead():
    curve = 0.3 + 0.5 / np.arange(1, HORIZON + 1) ** 0.5
    ends = drawn(0.97 * curve[:8], [curve] * 5).values[-1]
    assert np.quantile(ends, 0.25) < 0.97 * curve[-1] + 0.01
    assert np.quantile(ends, 0.75) > 0.97 * curve[-1] - 0.01
    assert abs(np.median(ends) - 0.97 * curve[-1]) < 0.02


curves = st.lists(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=HORIZON), max_size=8)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=HORIZON - 1), curves, st.booleans())
@settings(deadline=None)
def test_any_curves_give_finite_paths_within_bounds_to_the_horizon(errors, others, own):
    paths = drawn(np.array(errors), others, 50, own=own and len(errors) >= 3)
    assert paths.start == len(errors)
    assert paths.values.shape == (HORIZON - len(errors), 50)
    assert ((paths.values >= 0.0) & (paths.values <= 1.0)).all()


def test_more_runs_than_are_looked_at_change_nothing_but_time():
    rng = np.random.default_rng(0)
    others = [
        np.clip(after_plateau(e) + rng.normal(0, 0.01, HORIZON), 0, 1) for e in rng.uniform(0.2, 0.7, 300)
    ]
    few, many = (np.mean(drawn(PLATEAU, o).values[-1] < 0.45) for o in (others[:60], others))
    assert few == pytest.approx(many, abs=0.15)


def test_the_same_stream_gives_the_same_bits():
    others = [after_plateau(0.3), after_plateau(0.6)]
    assert np.array_equal(drawn(PLATEAU, others).values, drawn(PLATEAU, others).values)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_what_is_believed_rises_with_the_share_and_knows_none_and_all(a, b):
    assert (believed(0.0), believed(1.0)) == (0.0, 1.0)
    assert 0.0 <= believed(a) <= 1.0
    if a < b:
        assert believed(a) <= believed(b)


def test_paths_begin_before_the_horizon():
    with pytest.raises(InvalidInput):
        drawn(np.full(HORIZON, 0.5), [])
