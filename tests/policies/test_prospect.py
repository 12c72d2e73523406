"""What more would bring: chances against runs that come in no order, gains against tails that are known."""

import numpy as np
import pytest
from told import tell_trial, told

from haltune import Float, Maximize, Minimize, Problem, Space
from haltune.errors import InvalidInput
from haltune.policies import RandomSearch
from haltune.policies.prospect import prospect

RNG = np.random.default_rng(0)


def searched(values, goal=None):
    """One run of an epoch a value."""
    history = told(Problem(Space({"lr": Float(0, 1)}), goal or Maximize("gain"), 1))
    for value in values:
        tell_trial(history, [float(value)])
    return history


@pytest.mark.parametrize("draw", [RNG.exponential, RNG.normal, RNG.uniform])
def test_the_chance_is_that_of_a_record_and_the_gain_close_to_what_tails_give(draw):
    """20 runs, then 10: one in three of such worlds finds a better one, whatever the distribution."""
    chances, gains, came = [], [], []
    for _ in range(400):
        values = draw(size=30)
        found = prospect(searched(values[:20]), 10.0, so_far=20.0)
        chances.append(float(found.chance))
        gains.append(float(found.gain))
        came.append(max(0.0, values[20:].max() - values[:20].max()))
    assert np.mean(chances) == pytest.approx(1 / 3)
    assert np.mean(np.array(came) > 0.0) == pytest.approx(1 / 3, abs=0.07)
    assert 0.5 < np.mean(gains) / np.mean(came) < 2.5


def test_one_case_in_ten_gains_as_much_as_is_said():
    above = []
    for _ in range(600):
        values = RNG.exponential(size=40)
        found = prospect(searched(values[:20]), 20.0, so_far=20.0)
        above.append(values[20:].max() > values[:20].max() + float(found.high))
    assert np.mean(above) == pytest.approx(0.1, abs=0.07)


@pytest.mark.parametrize(
    ("goal", "values"),
    [
        (Maximize("acc", (0, 1)), [0.1, 0.2, 0.5, 0.98]),
        (Minimize("loss", (0, 9)), [9.0, 8.0, 4.0, 0.01]),
        (Maximize("acc", (0, 1)), [0.1, 0.2, 0.5, 1.0]),
    ],
)
def test_nothing_is_promised_beyond_a_bound(goal, values):
    found = prospect(searched(values, goal), [1.0, 10.0, 1e6], so_far=8.0)
    room = abs(values[-1] - (1.0 if goal.sign > 0 else 0.0))
    assert (found.high <= room + 1e-12).all()
    assert (found.gain <= found.chance * room + 1e-12).all()
    assert (np.diff(found.gain) >= 0.0).all()


def test_time_is_what_the_log_tells_and_more_of_it_brings_more():
    """Three runs of 2 s: another 6 s are as much again."""
    found = prospect(searched([0.1, 0.2, 0.3]), [0.0, 6.0])
    assert found.chance.tolist() == [0.0, 0.5]
    assert found.gain[0] == 0.0 < found.gain[1]


@pytest.mark.parametrize("values", [[], [0.5, 0.6], [0.5, 0.6, float("nan")]])
def test_too_few_runs_promise_nothing(values):
    assert prospect(searched(values), 1.0) is None


def test_runs_that_went_wrong_say_nothing_of_what_may_be_gained():
    sane = prospect(searched([0.1, 0.2, 0.3, 0.4]), 1.0, so_far=8.0)
    wrong = prospect(searched([0.1, 0.2, 0.3, 0.4, -1e150, float("nan")]), 1.0, so_far=8.0)
    assert float(wrong.gain) == pytest.approx(float(sane.gain))


def test_among_values_as_large_as_numbers_get_the_gain_is_a_number():
    found = prospect(searched([1.7e308, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), [0.0, 1.0, 1e6], so_far=8.0)
    assert np.isfinite([found.gain, found.high]).all()
    assert found.high[0] == 0.0 < found.gain[1]


def test_the_outlook_of_a_search_that_is_no_autobcts_tells_the_same():
    from virtual import search, study

    from haltune import Budget

    found = search(study(RandomSearch(), Budget(trials=8)))
    told_of = found.outlook(60.0)
    expected = prospect(found.history, 60.0)
    assert told_of.gain[-1] == float(expected.gain)
    assert told_of.now == found.best_value
    assert f"chance of {float(expected.chance):.0%}" in str(told_of)
    with pytest.raises(InvalidInput, match="too few to expect"):
        search(study(RandomSearch(), Budget(trials=2))).outlook()
