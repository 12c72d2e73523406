"""The probability that a search finds a better configuration, against the law of records and Monte Carlo."""

import numpy as np
import pytest
from told import tell_trial, told

from haltune import Float, Maximize, Minimize, Problem, Space
from haltune.errors import InvalidInput
from haltune.study.explain import outlook

RNG = np.random.default_rng(0)


def searched(values, goal=None, seconds=2.0):
    """One trial of an epoch a value."""
    history = told(Problem(Space({"lr": Float(0, 1)}), goal or Maximize("gain"), 1))
    for value in values:
        tell_trial(history, [float(value)], seconds=seconds)
    return history


@pytest.mark.parametrize(
    "draw",
    [
        lambda n: RNG.exponential(size=n), lambda n: RNG.normal(size=n), lambda n: RNG.uniform(size=n),
        lambda n: RNG.standard_cauchy(size=n), lambda n: RNG.binomial(1000, 0.9, size=n) / 1000,
    ],
)  # fmt: skip
@pytest.mark.parametrize("trials", [5, 40])
def test_among_values_in_random_order_a_better_one_follows_as_often_as_stated(draw, trials):
    worlds = [draw(2 * trials) for _ in range(2000)]
    came = np.mean([w[trials:].max() > w[:trials].max() for w in worlds])
    assert outlook(searched(worlds[0][:trials]), predicts=False).probability == pytest.approx(came, abs=0.1)


@pytest.mark.parametrize("predicts", [True, False])
def test_units_and_the_sign_of_the_goal_change_nothing(predicts):
    for values in RNG.normal(size=(20, 9)):
        expected = outlook(searched(values), predicts).probability
        assert outlook(searched(1e6 * values - 3.0), predicts).probability == expected
        assert outlook(searched(-values, Minimize("gain")), predicts).probability == expected


@pytest.mark.parametrize(
    ("goal", "best"),
    [
        (Maximize("gain", (0, 1)), 1.0),
        (Minimize("pain", (0, 1)), 0.0),
        (Maximize("val_acc"), 1.0),
        (Minimize("rmse"), 0.0),
    ],
)
def test_what_stands_at_its_bound_cannot_be_improved(goal, best):
    found = outlook(searched([0.3, 0.4, 0.5, 0.6, best], goal), predicts=True)
    assert found.probability == 0.0
    assert str(found) == f"{goal.metric} {best:g} is the best possible value: it cannot be improved."


def test_nothing_is_stated_of_fewer_or_more_trials_with_a_value_than_were_measured():
    for trials in (0, 4, 201):
        with pytest.raises(InvalidInput, match="for 5 to 200 trials"):
            outlook(searched(np.arange(float(trials))), predicts=True)
    values = [0.1, 0.2, 0.3, 0.4, float("nan"), float("inf")]
    with pytest.raises(InvalidInput, match="has 4 trials with a value"):
        outlook(searched(values), predicts=True)
    assert outlook(searched([*values, 0.05]), predicts=True).probability == 0.5
