"""Forecasts of running curves, against the final values of similar trials."""

import numpy as np
import pytest
from told import tell_trial, told

from haltune import Float, Maximize, Minimize, Problem, Space
from haltune.log.events import Status
from haltune.report import learning_curves
from haltune.report.digest import digest
from haltune.report.figures.curves import forecasts

EPOCHS = 10


def beside(goal=None, runs=24):
    """Return trials that are similar for three epochs, with final values from 0.5 to 0.9."""
    history = told(Problem(Space({"lr": Float(0, 1)}), goal or Maximize("acc", (0, 1)), EPOCHS))
    for end in np.linspace(0.5, 0.9, runs):
        curve = [0.3, 0.4, 0.45, *np.linspace(0.45, end, EPOCHS - 3 + 1)[1:]]
        tell_trial(history, [c if goal is None else 1 - c for c in curve])
    return history


def test_a_band_holds_80_percent_of_the_final_values_of_similar_trials():
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


def test_only_the_best_eight_that_may_continue_have_a_band():
    history = beside(runs=4)
    for n in range(12):
        tell_trial(history, [0.3, 0.3 + n / 100], None if n % 2 else Status.PAUSED)
    tell_trial(history, [0.3, 0.9], Status.STOPPED)
    assert [f.trial for f in forecasts(digest(history))] == [4 + n for n in reversed(range(4, 12))]


@pytest.mark.parametrize("values", [[], [float("nan")], [0.5, float("nan")], [0.5] * EPOCHS])
def test_nothing_is_forecast_without_reference_curves_or_further_epochs(values):
    assert forecasts(digest(tell_trial(told(), values, None))) == []


def test_the_curves_show_the_bands_and_the_middle_states_both_ends():
    history = tell_trial(beside(), [0.3, 0.4, 0.45], None)
    (found,) = forecasts(digest(history))
    band, middle = (t for t in learning_curves(history).data if t.name == "forecast")
    assert band.fill == "toself"
    assert list(middle.y) == list(found.middle)
    assert list(middle.customdata[-1]) == [24, found.low[-1], found.high[-1]]


def test_without_bounds_nothing_is_forecast_before_a_run_has_shown_how_far_curves_go():
    history = told(Problem(Space({"lr": Float(0, 1)}), Maximize("gain"), EPOCHS))
    tell_trial(history, [0.1, 0.5, 0.9], None)
    tell_trial(history, [0.1, 0.4], None)
    assert forecasts(digest(history)) == []
    tell_trial(history, [0.1, 0.4, 0.8, 1.6])
    assert [f.trial for f in forecasts(digest(history))] == [0, 1]


def test_a_band_starts_at_the_last_value_of_a_curve_that_is_far_worse_than_all_others():
    history = told(Problem(Space({"lr": Float(0, 1)}), Minimize("loss"), EPOCHS))
    for end in np.linspace(0.2, 0.6, 6):
        tell_trial(history, [0.9, 0.8, *np.linspace(0.7, end, EPOCHS - 2)])
    tell_trial(history, [900.0, 800.0, 700.0], None)
    (found,) = forecasts(digest(history))
    assert (found.epochs[0], found.low[0], found.middle[0], found.high[0]) == (3, *[pytest.approx(700.0)] * 3)
