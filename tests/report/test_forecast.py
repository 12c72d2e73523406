"""Forecasts of running curves, against what runs came to that stood alike."""

import numpy as np
import pytest
from told import tell_trial, told

from haltune import Float, Maximize, Minimize, Problem, Space
from haltune.log.events import Rescaled, Status
from haltune.report import learning_curves
from haltune.report.digest import digest
from haltune.report.figures import curves
from haltune.report.figures.curves import forecasts
from haltune.report.page.items import ToldSearch

EPOCHS = 10


def beside(goal=None, runs=24):
    """Runs that are alike for three epochs and then come to ends from 0.5 to 0.9."""
    history = told(Problem(Space({"lr": Float(0, 1)}), goal or Maximize("acc", (0, 1)), EPOCHS))
    for end in np.linspace(0.5, 0.9, runs):
        curve = [0.3, 0.4, 0.45, *np.linspace(0.45, end, EPOCHS - 3 + 1)[1:]]
        tell_trial(history, [c if goal is None else 1 - c for c in curve])
    return history


def test_a_band_holds_eight_in_ten_of_what_runs_that_stood_alike_came_to():
    history = tell_trial(beside(), [0.3, 0.4, 0.45], None)
    (found,) = forecasts(digest(history))
    assert found.trial == 24
    assert found.epochs == tuple(range(3, EPOCHS + 1))
    assert found.low[0] == found.high[0] == pytest.approx(0.45)
    assert (found.low[-1], found.middle[-1], found.high[-1]) == pytest.approx((0.54, 0.7, 0.86), abs=0.07)


def test_a_metric_that_falls_is_forecast_upside_down():
    history = tell_trial(beside(Minimize("loss", (0, 1))), [0.7, 0.6, 0.55], None)
    (found,) = forecasts(digest(history))
    assert (found.low[-1], found.middle[-1], found.high[-1]) == pytest.approx((0.14, 0.3, 0.46), abs=0.07)


def test_only_the_best_eight_that_may_go_on_have_a_band():
    history = beside(runs=4)
    for n in range(12):
        tell_trial(history, [0.3, 0.3 + n / 100], None if n % 2 else Status.PAUSED)
    tell_trial(history, [0.3, 0.9], Status.STOPPED)
    assert [f.trial for f in forecasts(digest(history))] == [4 + n for n in reversed(range(4, 12))]


def test_a_forecast_is_kept_until_its_trial_reports_again(monkeypatch):
    asked = []
    whole = curves.forecast
    monkeypatch.setattr(curves, "forecast", lambda history, t: asked.append(t.id) or whole(history, t))
    history = tell_trial(tell_trial(beside(runs=4), [0.3, 0.4], None), [0.3], None)
    page = ToldSearch(history)
    first = page.quick()["figure/curves"]["data"]
    tell_trial(history, [0.2], Status.STOPPED)
    page.read()
    assert page.quick()["figure/curves"]["data"] == first
    assert sorted(asked) == [4, 5]


def test_long_trainings_are_forecast_to_their_last_epoch():
    history = told(Problem(Space({"lr": Float(0, 1)}), Maximize("acc", (0, 1)), 1003))
    tell_trial(history, [0.5] * 500)
    tell_trial(history, [0.5] * 200, None)
    (found,) = forecasts(digest(history))
    assert found.epochs[-1] == 1003
    assert len(found.epochs) < 60


@pytest.mark.parametrize("values", [[], [float("nan")], [0.5, float("nan")], [0.5] * EPOCHS])
def test_nothing_is_forecast_where_nothing_tells_or_nothing_comes(values):
    assert forecasts(digest(tell_trial(told(), values, None))) == []


def test_the_curves_show_the_bands_and_the_middle_tells_both_ends():
    history = tell_trial(beside(), [0.3, 0.4, 0.45], None)
    (found,) = forecasts(digest(history))
    band, middle = (t for t in learning_curves(history).data if t.name == "forecast")
    assert band.fill == "toself"
    assert list(middle.y) == list(found.middle)
    assert list(middle.customdata[-1]) == [24, found.low[-1], found.high[-1]]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_curve_without_bounds_that_rises_above_all_that_was_known_is_forecast_where_curves_go(sign):
    """Its scale was learnt of one poor run before it began; the runs beside it came to 4.5 to 8.5 since."""
    goal = Maximize("gain") if sign > 0 else Minimize("loss")
    history = told(Problem(Space({"lr": Float(0, 1)}), goal, EPOCHS))
    tell_trial(history, [sign * v for v in (0.1, 0.15, 0.2)])
    poor = history.learnt_scale()
    history.apply(Rescaled(at=1.0, low=poor.low, high=poor.high))
    tell_trial(history, [sign * v for v in (2.0, 3.0, 3.5)], None)
    for end in np.linspace(4.5, 8.5, 24):
        tell_trial(history, sign * np.array([2.0, 3.0, 3.5, *np.linspace(3.5, end, EPOCHS - 2)[1:]]))
    (found,) = forecasts(digest(history))
    assert (found.trial, found.epochs[0]) == (1, 3)
    assert found.low[0] == found.middle[0] == found.high[0] == pytest.approx(sign * 3.5)
    ends = sorted(sign * v for v in (4.9, 6.5, 8.1))
    assert (found.low[-1], found.middle[-1], found.high[-1]) == pytest.approx(ends, abs=0.8)


@pytest.mark.parametrize(
    ("goal", "curve", "begins"),
    [
        (Minimize("loss"), [900.0, 800.0, 700.0], 700.0),  # far worse than all others
        (Minimize("loss"), [0.9, float("nan"), 0.7], 0.7),
        (Minimize("loss", of="best"), [0.9, 0.7, 0.8], 0.7),  # for which it counts
    ],
)
def test_a_band_begins_at_the_last_value_of_its_curve(goal, curve, begins):
    history = told(Problem(Space({"lr": Float(0, 1)}), goal, EPOCHS))
    for end in np.linspace(0.2, 0.6, 6):
        tell_trial(history, [0.9, 0.8, *np.linspace(0.7, end, EPOCHS - 2)])
    tell_trial(history, curve, None)
    (found,) = forecasts(digest(history))
    assert found.epochs == tuple(range(3, EPOCHS + 1))
    assert (found.low[0], found.middle[0], found.high[0]) == pytest.approx((begins,) * 3)


def test_without_bounds_nothing_is_forecast_before_a_run_has_shown_how_far_curves_go():
    history = told(Problem(Space({"lr": Float(0, 1)}), Maximize("gain"), EPOCHS))
    tell_trial(history, [0.1, 0.5, 0.9], None)
    tell_trial(history, [0.1, 0.4], None)
    assert forecasts(digest(history)) == []
    tell_trial(history, [0.1, 0.4, 0.8, 1.6])
    assert [f.trial for f in forecasts(digest(history))] == [0, 1]
