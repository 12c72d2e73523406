"""What more would bring: chances against runs that come in no order, gains against tails that are known."""

import numpy as np
import pytest
from told import tell_trial, told

from haltune import Float, Maximize, Minimize, Problem, Space, Study
from haltune.errors import InvalidInput
from haltune.policies import RandomSearch
from haltune.policies.prospect import prospect, spent

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


@pytest.mark.parametrize("runs", [4, 8, 20])
def test_among_values_that_tie_a_better_one_comes_as_often_as_is_said(runs):
    """Values of a small validation set: draws of which many share the best."""
    chances, gains, came = [], [], []
    for _ in range(600):
        values = RNG.binomial(12, 0.7, size=2 * runs) / 12
        found = prospect(searched(values[:runs]), float(runs), so_far=float(runs))
        chances.append(float(found.chance))
        gains.append(float(found.gain))
        came.append(max(0.0, values[runs:].max() - values[:runs].max()))
    assert np.mean(chances) == pytest.approx(np.mean(np.array(came) > 0.0), abs=0.08)
    assert 0.3 < np.mean(gains) / np.mean(came) < 3.0


def test_runs_that_all_came_to_one_value_tell_nothing():
    history = searched([0.5] * 12)
    found = prospect(history, [1.0, 1e6], so_far=12.0)
    assert (found.chance.tolist(), found.gain.tolist(), found.high.tolist()) == ([0, 0], [0, 0], [0, 0])


@pytest.mark.parametrize(
    ("goal", "values", "limit"),
    [
        (Maximize("val_acc"), [0.3, 0.5, 0.8756], 1.0),
        (Maximize("val/f1_macro"), [31.0, 55.0, 87.56], 100.0),
        (Minimize("val_rmse"), [3.0, 2.0, 0.5], 0.0),
        (Maximize("val_acc", of="best"), [0.3, 0.5, 1.0], 1.0),
    ],
)
def test_a_metric_that_is_known_by_its_name_is_promised_no_further_than_it_goes(goal, values, limit):
    found = prospect(searched(values, goal), [1.0, 1e3, 1e7], so_far=3.0)
    room = abs(limit - values[-1])
    assert (found.gain <= found.chance * room).all()
    assert (found.high <= room).all()


@pytest.mark.parametrize(
    ("goal", "values"),
    [
        (Maximize("reward"), [0.3, 0.5, 0.9]),
        (Maximize("acc"), [150.0, 200.0, 400.0]),  # no share
        (Maximize("acc"), [-3.0, -2.0, -1.0]),
        (Minimize("acc"), [0.9, 0.5, 0.2]),
        (Minimize("val_loss"), [3.0, 2.0, 0.5]),
        (Maximize("acc_gain"), [0.3, 0.5, 0.9]),
    ],
)
def test_a_name_that_does_not_say_so_bounds_nothing(goal, values):
    found = prospect(searched(values, goal), 1e7, so_far=3.0)
    assert float(found.high) > abs(values[-1])


def test_an_outlook_tells_of_four_times_what_was_spent_at_most_and_says_so():
    from virtual import search, study

    from haltune import Budget

    found = search(study(RandomSearch(), Budget(trials=8)))
    told_of, far = found.outlook("30d"), 4.0 * spent(found.history)
    expected = prospect(found.history, far)
    assert (told_of.farthest, told_of.chance) == (far, float(expected.chance)) == (far, pytest.approx(0.8))
    assert told_of.gain[-1] == float(expected.gain)
    assert "4 times what was spent, beats it with a chance of 80%" in str(told_of)
    assert "in 720 h, so short a search does not tell" in str(told_of)
    near = found.outlook(far / 2)
    assert near.farthest is None
    assert "times what was spent" not in str(near)


def test_an_outlook_of_equal_runs_says_that_nothing_tells():
    study = Study({"x": Float(0, 1)}, "val_acc", max_epochs=1, policy=RandomSearch(trials=12), verbose=0)
    study.optimize(lambda trial: 0.5)
    assert "all runs came to it: nothing tells what another 1 h would bring" in str(study.outlook("1h"))


def test_a_smaller_value_is_promised_as_much_as_a_larger_one():
    values, more = [0.3, 0.5, 0.6, 0.9], [1.0, 10.0]
    up = prospect(searched(values), more, so_far=4.0)
    down = prospect(searched([-v for v in values], Minimize("gain")), more, so_far=4.0)
    assert (down.chance.tolist(), down.gain.tolist(), down.high.tolist()) == (
        up.chance.tolist(), up.gain.tolist(), up.high.tolist(),
    )  # fmt: skip
    assert down.gain[0] > 0.0
