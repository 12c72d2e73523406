"""The figure of learning curves."""

import math
import re
import sys

import pytest
from told import REASON, a_search, tell_trial, told

from haltune import Choice, Float, HaltuneError, Int, Maximize, Minimize, Problem, Space
from haltune.errors import installing
from haltune.log.events import Status
from haltune.report import learning_curves, metrics, parallel, slices
from haltune.report.digest import digest
from haltune.report.figures.drawing import drawn, layout


def curves(figure):
    return {t.name: t for t in figure.data if t.mode == "lines"}


def marks(figure):
    return {t.name: t for t in figure.data if t.mode == "markers"}


def test_every_trial_is_a_curve_of_its_reports():
    figure = learning_curves(a_search())
    drawn = curves(figure)
    assert set(drawn) == {"trial 0", "trial 1", "trial 2"}
    assert list(drawn["trial 1"].x) == [1, 2]
    assert list(drawn["trial 1"].y) == [0.2, 0.21]
    assert figure.layout.yaxis.title.text.startswith("acc")
    assert figure.layout.xaxis.title.text == "epoch"


def test_a_stop_is_marked_where_it_happened_and_says_why():
    crosses = marks(learning_curves(a_search()))["stopped early (1)"]
    assert (list(crosses.x), list(crosses.y)) == ([2], [0.21])
    title, details = crosses.customdata[0]
    assert title == "Trial 1: stopped early after 2 of 10 epochs"
    unwrapped = details.replace("<br>", " ")
    assert REASON.replace("<", "&lt;") in unwrapped
    assert "loss of stopping 1.25" in unwrapped
    assert "lr=0.5" in unwrapped
    assert "nan" not in unwrapped


def test_the_best_trial_stands_out_and_is_labelled_with_its_value():
    figure = learning_curves(a_search())
    drawn = curves(figure)
    assert drawn["trial 0"].line.width > max(drawn["trial 1"].line.width, drawn["trial 2"].line.width)
    assert drawn["trial 0"].line.color not in {drawn["trial 1"].line.color, drawn["trial 2"].line.color}
    assert [a.text for a in figure.layout.annotations] == ["<b>0.95</b>"]


def test_a_legend_counts_what_the_totals_count_the_best_too():
    history = tell_trial(a_search(), [0.5] * 10)
    figure = learning_curves(history)
    assert digest(history).states == "2 trained in full, 1 stopped early, 1 failed"
    assert {"best", "trained in full (2)", "stopped early (1)", "failed (1)"} == set(marks(figure))


def test_a_failure_shows_its_error():
    assert "RuntimeError: boom" in curves(learning_curves(a_search()))["trial 2"].meta[2]


def test_values_that_are_not_finite_are_gaps():
    history = tell_trial(told(), [0.1, math.nan, 0.3, math.inf])
    figure = learning_curves(history)
    assert list(curves(figure)["trial 0"].y) == [0.1, None, 0.3, None]
    assert list(marks(figure)["ended without a value (1)"].x) == [3]


def test_a_trial_without_a_finite_value_is_left_out():
    figure = learning_curves(tell_trial(tell_trial(told(), [math.nan, math.nan]), [0.5]))
    assert set(curves(figure)) == {"trial 1"}


@pytest.mark.parametrize("history", [told(), tell_trial(told(), [math.nan]), tell_trial(told(), [], None)])
def test_nothing_to_draw_is_said_in_the_figure(history):
    figure = learning_curves(history)
    assert not figure.data
    assert len(figure.layout.annotations) == 1


def test_one_report_of_one_epoch_is_seen():
    problem = Problem(Space({"lr": Float(0, 1)}), Minimize("loss"), 1)
    figure = learning_curves(tell_trial(told(problem), [0.7]))
    low, high = figure.layout.yaxis.range
    assert low < 0.7 < high
    assert list(marks(figure)["best"].y) == [0.7]


def test_a_diverging_run_does_not_flatten_the_others():
    history = told(Problem(Space({"lr": Float(0, 1)}), Minimize("loss"), 5))
    for start in (2.0, 2.1, 2.2):
        tell_trial(history, [start, 1.0, 0.5])
    tell_trial(history, [2.0, 1e6, 1e308], Status.STOPPED)
    low, high = learning_curves(history).layout.yaxis.range
    assert low < 0.5
    assert 2.2 < high < 40


def test_with_bounds_every_value_is_in_view():
    history = tell_trial(tell_trial(told(), [0.9, 0.91]), [0.0, 0.0], Status.STOPPED)
    low, high = learning_curves(history).layout.yaxis.range
    assert low < 0.0
    assert high > 0.91


def test_what_a_user_typed_is_not_markup():
    evil = "<b>x</b> %{y}"
    history = told(Problem(Space({evil: Choice(["plain", evil])}), Minimize(evil), 4))
    tell_trial(history, [1.0], Status.STOPPED, {evil: evil}, evil)
    figure = learning_curves(history)
    escaped = "&lt;b&gt;x&lt;/b&gt; %{y}"
    assert figure.layout.yaxis.title.text.startswith(escaped)
    trace = curves(figure)["trial 0"]
    assert trace.meta[0] == escaped
    assert f"{escaped}={escaped}" in trace.meta[2].replace("<br>", " ")
    assert evil not in trace.hovertemplate  # Plotly fills in what stands in meta once, and never again


def test_the_same_history_gives_the_same_figure():
    assert learning_curves(a_search()).to_json() == learning_curves(a_search()).to_json()


def test_without_plotly_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(ImportError, match=re.escape(installing("report"))):
        learning_curves(told())


def test_something_else_than_a_study_is_refused():
    with pytest.raises(HaltuneError, match="Study or its history"):
        learning_curves("digits.db")


def test_whole_numbers_have_whole_marks():
    history = told(Problem(Space({"layers": Int(1, 4), "width": Int(8, 512)}), Maximize("acc"), 1))
    for n in range(8):
        tell_trial(history, [n / 8], config={"layers": 1 + n % 4, "width": 8 + 60 * n})
    marks = {a.title.text: a.dtick for a in slices(history).select_xaxes()}
    assert (marks["layers"], marks["width"]) == (1, None)
    layers, width = parallel(history).data[0].dimensions[:2]
    assert list(layers.ticktext) == ["1", "2", "3", "4"]
    assert list(width.ticktext) == ["8", "134", "260", "386", "512"]


def test_options_stand_in_their_order_and_who_lacks_a_parameter_at_a_place_that_says_so():
    space = Space({"kind": Choice(["b", "a", None, True]), "depth": Float(1.0, 3.0, when={"kind": "a"})})
    history = told(Problem(space, Maximize("acc"), 1))
    for n in range(8):
        kind = ["a", "b", None, True][n % 4]
        tell_trial(history, [n / 8], config={"kind": kind} | ({"depth": 1.0 + n / 4} if kind == "a" else {}))
    figure = slices(history)
    (axis,) = (a for a in figure.select_xaxes() if a.title.text == "kind")
    assert list(axis.categoryarray) == ["b", "a", "None", "True"]
    depth = parallel(history).data[0].dimensions[1]
    assert depth.ticktext[0] == "none"
    assert [v == depth.tickvals[0] for v in depth["values"]] == [n % 4 != 0 for n in range(8)]
    assert depth.tickvals[0] < 1.0 == depth.tickvals[1]


def test_what_is_expected_of_an_option_stands_where_its_trials_do_whatever_its_name():
    space = Space({"kind": Choice(["<a>", "b & c"])})
    history = told(Problem(space, Maximize("acc"), 1))
    for n in range(8):
        tell_trial(history, [n / 8], config={"kind": ["<a>", "b & c"][n % 2]})
    dots, expected = slices(history).data
    assert set(dots.x) == set(expected.x)


def test_small_powers_of_ten_are_written_as_on_other_axes():
    history = told(Problem(Space({"decay": Float(1e-6, 1e-3, log=True)}), Maximize("acc"), 1))
    tell_trial(history, [0.5], config={"decay": 1e-5})
    assert list(parallel(history).data[0].dimensions[0].ticktext) == ["1e-6", "1e-5", "0.0001", "0.001"]


def test_parallel_coordinates_without_a_value_say_so():
    assert [a.text for a in parallel(told()).layout.annotations] == ["No trial has a value yet"]
    assert not parallel(a_search()).layout.annotations


def test_every_other_metric_has_its_curves():
    history, values = told(), [0.1, 0.2, 0.3]
    own = history.problem.goal.metric  # as callbacks record it with all that is logged
    other = {"loss": [3.0, math.nan, 1.0], "params": [7.0, 7.0, 7.0]}
    tell_trial(history, values, metrics={own: values, **other})
    tell_trial(history, [0.4], metrics={"loss": [0.5]})
    figure = metrics(history)
    assert sorted((len(curve.x), curve.mode) for curve in figure.data if curve.yaxis == "y2")[0] == (1, "markers")
    assert {curve.mode for curve in figure.data if len(curve.x) > 1} == {"lines"}
    drawn = {(t.yaxis, t.name): (list(t.x), list(t.y)) for t in figure.data}
    assert drawn == {
        ("y2", "trial 0"): ([1, 3], [3.0, 1.0]),
        ("y2", "trial 1"): ([1], [0.5]),
        ("y3", "trial 0"): ([1, 2, 3], [7.0] * 3),
    }
    assert (figure.layout.yaxis2.title.text, figure.layout.yaxis3.title.text) == ("loss", "params")
    assert [a.text for a in metrics(a_search()).layout.annotations] == ["No trial has reported another metric"]


def test_of_many_trials_the_best_and_those_that_run_have_curves_of_other_metrics():
    history = told()
    for n in range(60):
        tell_trial(history, [n / 100], metrics={"loss": [1.0]})
    tell_trial(history, [0.001], None, metrics={"loss": [9.0]})
    figure = metrics(history)
    assert {t.name for t in figure.data} == {f"trial {n}" for n in [*range(20, 60), 60]}
    assert "best 40" in figure.layout.meta["note"]


def test_a_metric_that_diverged_in_one_run_leaves_the_others_to_be_seen():
    history = told()
    for n in range(30):
        tell_trial(history, [0.5] * 2, metrics={"loss": [1.0 + n / 100, 0.5]})
    tell_trial(history, [0.1] * 2, metrics={"loss": [1e20, 1e200]})
    low, high = metrics(history).layout.yaxis2.range
    assert low < 0.5
    assert 1.29 < high < 5.0


def test_a_logarithmic_view_is_offered_of_metrics_that_are_positive():
    history = tell_trial(told(), [0.1, 0.2], metrics={"loss": [10.0, 1e-3], "gain": [-1.0, 2.0]})
    (menu,) = metrics(history).layout.updatemenus
    change = dict(menu.buttons[1].args[1])
    assert change["yaxis2.type"] == "log"
    assert change["yaxis2.range"][0] < -3.0
    assert change["yaxis2.range"][1] > 1.0
    assert not any(name.startswith("yaxis3") for name in change)


def test_panels_of_an_image_are_as_high_as_on_the_page_and_apart():
    history = told(Problem(Space({n: Float(1e-4, 1.0, log=True) for n in "abcd"}), Maximize("acc"), 1))
    for n in range(8):
        tell_trial(history, [n / 8], config=dict.fromkeys("abcd", 10 ** (-n / 2)))
    laid = slices(history).layout
    inside = laid.height - laid.margin.t - laid.margin.b
    above, below = laid.yaxis.domain, laid.yaxis3.domain
    assert (above[1], below[0]) == pytest.approx((1.0, 0.0))
    assert (above[0] - below[1]) * inside == pytest.approx(70)
    assert (above[1] - above[0]) * inside == pytest.approx((below[1] - below[0]) * inside) == pytest.approx(250)
    assert laid.xaxis2.domain[0] > laid.xaxis.domain[1]


def test_a_long_name_of_an_axis_is_in_lines_that_are_no_longer_than_its_panel():
    long = "the share of " + "all that was " * 5 + "seen"
    figure = metrics(of_metrics({long: 0.5, "short": 0.25}))
    titles = [axis.title.text for axis in figure.select_yaxes() if axis.title.text]
    assert sorted(t.replace("<br>", " ") for t in titles) == sorted([long, "short"])
    assert max(len(line) for t in titles for line in t.split("<br>")) <= 34


def of_metrics(told_besides):
    history = told()
    tell_trial(history, [0.5, 0.75], metrics={name: [value, value] for name, value in told_besides.items()})
    return history


def test_every_mark_of_a_trial_is_drawn():
    """Plotly draws one of those that have one id."""
    spec = {"data": [{"type": "scatter", "x": [1, 2, 3], "y": [1, 2, 3], "ids": ["trial-0", "trial-0", "trial-1"]}],
            "layout": layout("", "", order=1)}  # fmt: skip
    assert drawn(spec).data[0].ids is None
    spec["data"][0]["ids"] = ["trial-0", "trial-1", "trial-2"]
    assert drawn(spec).data[0].ids == ("trial-0", "trial-1", "trial-2")
