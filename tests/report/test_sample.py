"""Long curves are drawn with a limited number of points, which keep each peak, end and gap."""

import math
from types import SimpleNamespace

import numpy as np
import pytest

from haltune.report.digest import FINEST, POINTS, points, shown_trials


def drawn(values, curves=1):
    return points(SimpleNamespace(values=np.asarray(values, dtype=float)), curves)


@pytest.mark.parametrize("count", [FINEST + 1, 100_000])
@pytest.mark.parametrize("curves", [1, 3000])
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


class Ranked:
    """A history of trials whose ranks are drawn, later ones in between."""

    def __init__(self, count):
        self._ranks = np.random.default_rng(0).random(4000)[:count]

    def __len__(self):
        return len(self._ranks)

    def ranked(self):
        return [[id] for id in np.argsort(-self._ranks).tolist()]


def test_those_that_are_not_the_best_are_shown_from_all_of_the_search():
    history = Ranked(4000)
    best = {id for (id,) in history.ranked()[:500]}
    others = [id for id in shown_trials(history, 1000) if id not in best]
    counts, _ = np.histogram(others, bins=20, range=(0, 4000))
    assert len(others) == 500
    assert counts.min() >= 20
    assert counts.max() <= 30
