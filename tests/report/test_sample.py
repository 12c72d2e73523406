"""Of long curves what is drawn is bounded, and no peak, end or gap is lost."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from haltune.report.sample import FINEST, POINTS, points


def drawn(values, curves=1):
    return points(SimpleNamespace(values=np.asarray(values, dtype=float)), curves)


@pytest.mark.parametrize("count", [1, 50, FINEST])
def test_what_is_few_is_drawn_whole(count):
    assert drawn(np.arange(count)).tolist() == list(range(count))


@pytest.mark.parametrize("count", [FINEST + 1, 5_000, 99_999, 100_000])
@pytest.mark.parametrize("curves", [1, 100, 3000])
def test_of_more_no_more_than_the_share_is_drawn_each_peak_and_both_ends_among_it(count, curves):
    rng = np.random.default_rng(count)
    values = rng.standard_normal(count)
    peaks = np.unique(rng.integers(0, count, 4))
    values[peaks] = [50.0, -60.0, 70.0, -80.0][: len(peaks)]
    found = drawn(values, curves)
    assert len(found) <= min(FINEST, max(20, POINTS // curves))
    assert {0, count - 1, int(np.argmax(values)), int(np.argmin(values))} <= set(found.tolist())
    if curves == 1:
        assert set(peaks.tolist()) <= set(found.tolist())
    assert np.all(np.diff(found) > 0)


def test_where_nothing_was_finite_there_is_a_gap_and_the_ends_of_what_was_are_drawn():
    values = np.sin(np.arange(50_000.0))
    values[:1_234] = values[20_000:30_000] = values[49_000:] = math.nan
    found = drawn(values)
    assert {1_234, 48_999} <= set(found.tolist())
    assert np.isnan(values[found[(found > 20_100) & (found < 29_900)]]).all()
    assert ((found > 20_100) & (found < 29_900)).any()
