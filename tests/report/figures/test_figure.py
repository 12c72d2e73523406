"""The figure of learning curves."""

import math
import re
import sys

import pytest
from told import REASON, a_search, tell_trial, told

from haltune import Choice, Float, HaltuneError, Maximize, Minimize, Problem, Space, Study
from haltune.errors import installing
from haltune.log.events import Status
from haltune.policies import RandomSearch
from haltune.report import learning_curves, metrics, parallel, slices
from haltune.report.digest import digest
from haltune.report.page import page


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


def test_a_legend_counts_what_the_totals_count_the_best_too():
    history = tell_trial(a_search(), [0.5] * 10)
    figure = learning_curves(history)
    assert digest(history).states == "2 trained in full, 1 stopped early, 1 failed"
    assert {"best", "trained in full (2)", "stopped early (1)", "failed (1)"} == set(marks(figure))


def test_values_that_are_not_finite_are_gaps():
    history = tell_trial(told(), [0.1, math.nan, 0.3, math.inf])
    figure = learning_curves(history)
    assert list(curves(figure)["trial 0"].y) == [0.1, None, 0.3, None]
    assert list(marks(figure)["ended without a value (1)"].x) == [3]


@pytest.mark.parametrize("history", [told(), tell_trial(told(), [math.nan]), tell_trial(told(), [], None)])
def test_nothing_to_draw_is_said_in_the_figure(history):
    figure = learning_curves(history)
    assert not figure.data
    assert len(figure.layout.annotations) == 1


def test_a_diverging_run_does_not_flatten_the_others():
    history = told(Problem(Space({"lr": Float(0, 1)}), Minimize("loss"), 5))
    for start in (2.0, 2.1, 2.2):
        tell_trial(history, [start, 1.0, 0.5])
    tell_trial(history, [2.0, 1e6, 1e308], Status.STOPPED)
    low, high = learning_curves(history).layout.yaxis.range
    assert low < 0.5
    assert 2.2 < high < 40


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


def test_without_plotly_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(ImportError, match=re.escape(installing("report"))):
        learning_curves(told())


def test_something_else_than_a_study_is_refused():
    with pytest.raises(HaltuneError, match="Study or its history"):
        learning_curves("digits.db")


def test_options_stand_in_their_order_and_who_lacks_a_parameter_at_a_place_that_says_so():
    space = Space({"kind": Choice(["b", "a", None, True]), "depth": Float(1.0, 3.0, when={"kind": "a"})})
    history = told(Problem(space, Maximize("acc"), 1))
    for n in range(8):
        kind = ["a", "b", None, True][n % 4]
        tell_trial(history, [n / 8], config={"kind": kind} | ({"depth": 1.0 + n / 4} if kind == "a" else {}))
    figure = slices(history)
    (axis,) = (a for a in figure.select_xaxes() if a.title.text == "kind")
    assert list(axis.categoryarray) == ["b", "a", "None", "True"]
    assert ("b", "a", "None", "True") in [tuple(trace.x) for trace in figure.data]
    assert '<td data-of="kind">None</td>' in page(history)
    kind, depth, _ = parallel(history).data[0].dimensions
    assert list(kind.ticktext) == ["b", "a", "None", "True"]
    assert depth.ticktext[0] == "none"
    assert [v == depth.tickvals[0] for v in depth["values"]] == [n % 4 != 0 for n in range(8)]
    assert depth.tickvals[0] < 1.0 == depth.tickvals[1]


def test_of_a_hundred_options_an_axis_names_a_few():
    history = told(Problem(Space({"kind": Choice([f"option {n}" for n in range(100)])}), Maximize("acc"), 1))
    for n in range(4):
        tell_trial(history, [n / 4], config={"kind": f"option {30 * n}"})
    kind = parallel(history).data[0].dimensions[0]
    assert list(kind["values"]) == [0, 30, 60, 90]
    assert [(kind.tickvals[k], kind.ticktext[k]) for k in (0, 6)] == [(0, "option 0"), (30, "option 30")]
    assert len(kind.ticktext) == 20


def test_trials_beyond_the_axis_of_values_are_named_and_the_best_is_on_it():
    history = told(Problem(Space({"lr": Float(0.0, 1.0)}), Minimize("loss"), 1))
    for n, value in enumerate([1.0, 1.1, 1.2, 1.3, 1.4, 1e3, *[1e4] * 6, -50.0, *[1.25] * 20]):
        tell_trial(history, [value], config={"lr": n / 40})
    *_, ends = parallel(history).data[0].dimensions
    assert min(ends["values"]) == -50.0
    assert max(ends["values"]) == ends.range[1] < 1e3
    note = parallel(history).layout.meta["note"]
    assert note.endswith(
        "Worse than the axis of loss reaches: trial 5, trial 6, trial 7, trial 8, trial 9 and 2 others."
    )


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


def test_a_curve_that_leaves_the_first_view_carries_a_mark_and_others_do_not():
    study = Study({"x": Float(0.0, 1.0)}, Minimize("loss"), max_epochs=3, seed=0, budget="9 trials", verbose=0,
                  policy=RandomSearch())  # fmt: skip
    for trial in study:
        with trial:
            for epoch in trial.epochs():
                trial.report(1e6 if (trial.id, epoch) == (4, 2) else trial.config["x"] + 1 / epoch, seconds=1.0)
    figure = learning_curves(study)
    marked = [t for t in figure.data if t.uid == "cropped"]
    assert [list(t.ids) for t in marked] == [["trial-4"]]
    assert marked[0].y[0] == figure.layout.yaxis.range[1] < 1e6
    assert "reaches 1000000" in marked[0].customdata[0]
