"""What another hour would gain: never beyond what can be, and never for less than a training takes."""

import numpy as np
import pytest
from virtual import hill, search, slope, study

from haltune import Budget, Choice, Float, Maximize, Minimize, Space
from haltune.errors import InvalidInput
from haltune.policies import AutoBCT, RandomSearch

WIDE = Space({"a": Float(0.0, 1.0), "b": Float(0.0, 1.0), "c": Choice(["x", "y"]), "d": Float(0.0, 1.0)})


def steep(config):
    """Almost 1 on a ridge, which a parabola overshoots."""
    return 0.99 - 0.9 * (abs(config["a"] - 0.8) > 0.25)


@pytest.mark.parametrize("trials", [8, 25])
def test_nothing_beyond_the_goals_bounds_is_expected(trials):
    found = search(study(RandomSearch(trials=trials), Budget(trials=trials), space=WIDE), value=steep)
    told = found.outlook(policy=AutoBCT(), time="10min", worlds=40)
    assert told.now < 1.0
    assert (told.now + told.high < 1.0).all()
    least = min(slope(t.config) for t in found.trials)
    assert told.training >= least * (1 - 1e-9)
    assert (told.high[told.seconds < least] == 0.0).all()  # no training ends sooner than any has


SIX = Space({name: Float(0.0, 1.0) for name in "abcdef"})


def near_the_top(config):
    """Accuracies as a network reaches them: most near .98, few bad; a parabola through them passes 1."""
    a, b, c = config["a"], config["b"], config["c"]
    return (
        0.985
        - 1.2 * max(0.0, abs(a - 0.6) - 0.2) ** 2
        - 0.3 * max(0.0, 0.3 - b) ** 2
        - 0.4 * max(0.0, c - 0.5) ** 2
    )


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("sign", [1, -1])
def test_near_a_bound_something_is_expected_still_and_nothing_is_certain(seed, sign):
    goal = Maximize("acc", (0, 1)) if sign > 0 else Minimize("loss", (0, 1))
    height = near_the_top if sign > 0 else lambda config: 1.0 - near_the_top(config)
    found = search(study(RandomSearch(), Budget(trials=20), goal=goal, space=SIX, seed=seed), value=height)
    told = found.outlook(policy=AutoBCT(), time="1h", worlds=40)
    truth = max(near_the_top(t.config) for t in found.trials)
    expected = told.now if sign > 0 else 1.0 - told.now
    assert abs(expected - truth) < 0.02
    assert 0.0 < told.gain[-1] < 0.985 - expected + 0.02
    assert told.high[-1] > told.low[-1]
    assert expected + told.high[-1] < 1.0


def test_a_loss_cannot_fall_below_its_bound():
    found = study(RandomSearch(), Budget(trials=6), goal=Minimize("loss", (0, 1)), space=WIDE)
    search(found, value=lambda config: 1.0 - steep(config))
    told = found.outlook(policy=AutoBCT(), time="10min", worlds=40)
    assert told.now >= 0.0
    assert (told.now - told.high >= -1e-12).all()


def test_more_time_than_is_simulated_is_said_to_be_a_lower_bound():
    found = search(study(RandomSearch(), Budget(trials=6)))
    short, long = (
        found.outlook(policy=AutoBCT(), time=25.0, worlds=30),
        found.outlook(policy=AutoBCT(), time="30d", worlds=30),
    )
    assert short.most is None
    assert "at least" not in str(short)
    assert long.most == 8
    assert "would gain at least" in str(long)
    assert "by the next 8 trainings alone: there is time for more" in str(long)
    assert (np.diff(long.gain) >= -1e-12).all()


@pytest.fixture(scope="module")
def quick():
    """A search whose trainings take no time that counts."""
    return search(study(RandomSearch(), Budget(trials=6)), seconds=lambda config: 1e-9)


@pytest.mark.parametrize("time", [1e308, "9999999999999999999999d", 1e-300, 5e-324])
def test_the_shortest_time_and_the_longest_have_an_outlook(quick, time):
    told = quick.outlook(policy=AutoBCT(), time=time, worlds=10)
    assert np.isfinite(told.gain).all()
    assert (told.most, told.gain[-1] > 0) == ((None, False) if told.seconds[-1] < 1 else (8, True))


@pytest.mark.parametrize(
    ("wrong", "allowed"),
    [
        *(({"time": time}, "or seconds, more than 0 and finite") for time in (0, -1, np.nan, np.inf, "soon")),
        *(({"worlds": worlds}, "a whole number, at least 1") for worlds in (0, -1, 2.5, "many", None)),
        *(({"seed": seed}, "a whole number, 0 or more") for seed in (-1, 0.5)),
        *(({"policy": policy}, "a policy such as AutoBCT()") for policy in (RandomSearch, "autobct")),
    ],
)
def test_an_outlook_of_what_is_none_is_refused_with_what_is_allowed(quick, wrong, allowed):
    with pytest.raises(InvalidInput) as refused:
        quick.outlook(**wrong)
    assert allowed in str(refused.value)


def test_costs_in_units_of_the_users_are_no_seconds():
    found = search(study(RandomSearch(), Budget(trials=6)), cost=lambda config: 2.0 + config["a"], value=hill)
    with pytest.raises(InvalidInput, match="give a number, in the same units"):
        found.outlook(policy=AutoBCT(), time="1h")
    told = found.outlook(policy=AutoBCT(), time=5, worlds=30)
    assert told.own
    assert 2.0 <= told.training <= 3.5
    assert "Another 5 of cost would gain" in str(told)
