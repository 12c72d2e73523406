"""The subset kept of a long history, against a direct greedy search."""

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from haltune.errors import InvalidInput
from haltune.gp import subset


def history(n):
    rng = np.random.default_rng(0)
    return rng.random((n, 3)), rng.standard_normal(n)


def test_a_short_history_is_kept_whole():
    X, y = history(20)
    np.testing.assert_array_equal(subset(X, y, 20), np.arange(20))


def test_a_quarter_are_the_best_a_quarter_the_latest_and_the_rest_fill_the_space_greedily():
    X, y = history(300)
    kept = subset(X, y, 40)
    expected = set(np.argsort(-y)[:10]) | set(range(290, 300))
    while len(expected) < 40:
        expected.add(int(np.argmax(cdist(X, X[sorted(expected)]).min(axis=1))))
    assert set(kept) == expected
    assert (np.diff(kept) > 0).all()


def test_duplicates_and_tiny_limits_give_distinct_indices():
    X, y = np.zeros((50, 2)), np.zeros(50)
    for limit in (1, 2, 3, 17, 49):
        assert len(set(subset(X, y, limit))) == limit
    assert subset(*history(50), 1) == np.argmax(history(50)[1])


def test_a_limit_below_one_is_refused():
    with pytest.raises(InvalidInput, match="limit must keep 1"):
        subset(*history(5), 0)
