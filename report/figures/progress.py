"""What a search came to: the best value so far against what it cost, and how the results of its runs are spread."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from haltune._utils.words import duration, plural, short
from haltune.errors import InvalidInput
from haltune.log.problem import Goal
from haltune.log.records import Best
from haltune.study.results import Results

from ..digest import Digest, Row, Source, digest, story_of
from ..palette import ACCENT, INK, MUTED, SOFT
from ..sample import MOST_TRIALS, evenly
from ..story import Cost, NewBest, Story
from .drawing import Spec, axis, drawn, layout, nothing, plotly_text, time_unit

if TYPE_CHECKING:
    import plotly.graph_objects as go


class _Measure(NamedTuple):
    """What progress is measured against."""

    title: str
    xs: list[float]  # of each step, and of now
    label: str  # of its button
    at: Callable[[Cost], float]  # x of a cost


_MOST = 2000  # steps that are told apart
_ABSURD = 100.0  # times as far below the last as the median: left outside the first view


def progress(study: Results) -> go.Figure:
    """The best so far, as it would have been told, against epochs trained; against time, and cost, by a button.

    Args:
        study: A Study, or one opened to look at. It is read up to its newest event.

    Returns:
        A figure of Plotly's.

    Raises:
        ImportError: When Plotly is missing, saying how to get it.
        InvalidInput: For what is no study, and for one of several goals, which `front` draws.

    Example:
        >>> from haltune import Budget, Float, Minimize, Problem, Space, Study
        >>> from haltune.policies import RandomSearch
        >>> problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=2)
        >>> study = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=3))
        >>> for trial in study:
        ...     with trial:
        ...         for epoch in trial.epochs():
        ...             _ = trial.report(trial.config["lr"] / epoch)
        >>> [round(float(y), 3) for y in progress(study).data[0].y]
        [0.891, 0.445, 0.425, 0.425]
    """
    story = story_of(study)
    if study.history.problem.further:
        raise InvalidInput("progress(study) draws the best in one goal: front(study) draws several")
    return drawn(progress_spec(story, digest(study, MOST_TRIALS)))


def edf(study: Source) -> go.Figure:
    """The empirical distribution of what runs came to: the share of them whose value is at most so much.

    A line of all runs that ended with a value, and one of those that haltune did not cut where that are others. Of two
    searches the better one's line lies to the right where larger is better, to the left where smaller is.

    Args:
        study: A Study, or its history. A study is read up to its newest event.

    Returns:
        A figure of Plotly's; of several goals, the first one's.

    Raises:
        ImportError: When Plotly is missing, saying how to get it.
        InvalidInput: For what is no study.

    Example:
        >>> from haltune import Budget, Float, Minimize, Problem, Space, Study
        >>> from haltune.policies import RandomSearch
        >>> problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=1)
        >>> study = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=4))
        >>> for trial in study:
        ...     with trial:
        ...         _ = trial.report(trial.config["lr"])
        >>> list(edf(study).data[0].y)
        [0.25, 0.5, 0.75, 1.0]
    """
    return drawn(edf_spec(digest(study, MOST_TRIALS)))


def progress_spec(story: Story, facts: Digest) -> Spec:
    """`progress` as plain data."""
    problem, best = facts.problem, facts.best
    metric = plotly_text(problem.goal.metric)
    steps = _drawn(story.steps)
    taken = [i for i, s in enumerate(steps) if i == 0 or s.trial != steps[i - 1].trial or i == len(steps) - 1]
    views = _views(story, steps)
    ys = [s.value for s in steps] + ([steps[-1].value] if steps else [])
    line = {
        "type": "scatter", "mode": "lines", "name": "best so far", "showlegend": False, "x": views[0][1], "y": ys,
        "line": {"color": INK, "width": 2, "shape": "hv"}, "hoverinfo": "skip",
    }  # fmt: skip
    dots = _leaders([steps[i] for i in taken], [views[0][1][i] for i in taken], metric, best)
    came = [row for row in _came(facts) if row.record.id in story.ends]
    results = _results(came, [views[0][3](story.ends[row.record.id]) for row in came], metric)
    buttons = [
        _button(title, [[at(story.ends[row.record.id]) for row in came], xs, [xs[i] for i in taken]], label)
        for title, xs, label, at in views
    ]
    menus: Any = (
        [{"type": "buttons", "direction": "right", "buttons": buttons}] if steps and len(views) > 1 else []
    )
    return {
        "data": [results, line, dots] if steps else [],
        "layout": layout(
            "Best so far", _told(steps, metric), order=20, showlegend=False,
            note="The line is the best as it would have been told at the time, of full trainings once there is one; at "
            "a large dot another run took the lead. Small dots are what each run came to, hollow where it was cut.",
            logs=bool(steps) and min(ys) > 0,
            xaxis=axis(views[0][0], rangemode="tozero"),
            yaxis=axis(metric, range=_range(ys, [_value(row) for row in came], problem.goal.sign)),
            annotations=[] if steps else [nothing("No trial has reported a finite value yet")],
            updatemenus=menus,
        ),
    }  # fmt: skip


def _drawn(steps: list[NewBest]) -> list[NewBest]:
    """All of them, or so many as are told apart: where another run took the lead, and others at even distances."""
    if len(steps) <= _MOST:
        return steps
    led = [i for i in range(1, len(steps)) if steps[i].trial != steps[i - 1].trial]
    kept = {0, len(steps) - 1, *evenly(len(steps), _MOST // 2).tolist(), *led[-(_MOST // 2) :]}
    return [steps[i] for i in sorted(kept)]


def _near(ys: list[float], sign: float) -> list[float] | None:
    """Of values that begin absurdly far below the rest, those near the last; None: all."""
    heights = np.clip(sign * np.array(ys), -1e300, 1e300)
    gaps = (heights[-1:] - heights)[:-1]
    reach = _ABSURD * float(np.median(gaps)) if len(gaps) > 1 else 0.0
    if not 0.0 < reach < gaps.max():
        return None
    low, high = float(heights[-1]) - reach, float(heights.max())
    pad = 0.06 * (high - low)
    return sorted([sign * (low - pad), sign * (high + pad)])


def _range(steps: list[float], results: list[float], sign: float) -> list[float] | None:
    """Where the best was, and all results but those far below the others (Tukey's fence); None: everything."""
    near = _near(steps, sign)
    if not steps or not results:
        return near
    heights = np.clip(sign * np.array(results), -1e300, 1e300)
    low, high = sorted(sign * v for v in (near or (min(steps), max(steps))))
    quarter, three = np.quantile(heights, [0.25, 0.75])
    fence = float(max(heights.min(), quarter - 1.5 * (three - quarter)))
    if fence <= heights.min() and near is None:
        return None
    low, high = min(low, fence), max(high, float(heights.max()))
    pad = 0.06 * (high - low)
    return sorted([sign * (low - pad), sign * (high + pad)]) if high > low else near


def _views(story: Story, steps: list[NewBest]) -> list[_Measure]:
    """What progress is measured against."""
    elapsed = [s.seconds for s in steps] + ([story.now - story.begun] if steps else [])
    unit, name = time_unit(max(elapsed, default=0.0))
    found = [
        _Measure(
            "epochs trained", [s.epochs for s in steps] + ([story.epochs] if steps else []), "epochs", _epochs
        ),
        _Measure(
            f"{name} since the first trial", [s / unit for s in elapsed], "time", lambda c: c.seconds / unit
        ),
    ]
    if story.cost:
        found.append(_Measure("cost", [*(s.cost for s in steps), story.cost], "cost", lambda c: c.cost))
    return found


def _button(title: str, xs: list[list[float]], label: str) -> dict[str, Any]:
    return {"label": label, "method": "update", "args": [{"x": xs}, {"xaxis.title.text": title}]}


def _came(facts: Digest) -> list[Row]:
    """What ended with a value."""
    return [row for row in facts.rows if row.kind != "running" and math.isfinite(_value(row))]


def _value(row: Row) -> float:
    return math.nan if row.value is None else row.value


def _results(came: list[Row], xs: list[float], metric: str) -> dict[str, Any]:
    return {
        "type": "scatter", "mode": "markers", "name": "a run", "x": xs, "y": [_value(row) for row in came],
        **_told_of(came, metric),
        "marker": {"size": 5, "color": SOFT, "symbol": [_symbol(row) for row in came]},
    }  # fmt: skip


def _told_of(rows: list[Row], metric: str) -> dict[str, Any]:
    return {
        "ids": [f"trial-{row.record.id}" for row in rows], "meta": [metric],
        "customdata": [[row.record.id, row.outcome, short(_value(row))] for row in rows],
        "hovertemplate": "<b>Trial %{customdata[0]}</b>: %{customdata[1]}"
        "<br>%{meta[0]} %{customdata[2]}<extra></extra>",
    }  # fmt: skip


def _symbol(row: Row) -> str:
    return "circle" if row.record.complete else "circle-open"


def edf_spec(facts: Digest) -> Spec:
    """`edf` as plain data."""
    goal, metric = facts.problem.goal, plotly_text(facts.problem.goal.metric)
    came = sorted(_came(facts), key=_value)
    full, values = [row for row in came if row.record.complete], [_value(row) for row in came]
    lines = [_steps(full, metric, "runs in full", INK, "solid")] if full else []
    if len(full) < len(came):
        lines.insert(0, _steps(came, metric, "all runs", SOFT, "dot"))
    return {
        "data": lines,
        "layout": layout(
            "What runs came to", _spread(came, goal), order=26,
            note="The share of runs with a value of at most so much"
            + (", cut ones by their last; in full, those that were not cut." if len(lines) > 1 else "."),
            annotations=[] if came else [nothing("No run has ended with a finite value yet")],
            xaxis=axis(metric, range=_range(values[-1:] if goal.sign > 0 else values[:1], values, goal.sign)),
            yaxis=axis("share of runs", range=[0.0, 1.03], tickformat=".0%", tickvals=[0, 0.25, 0.5, 0.75, 1.0],
                       ticktext=["0%", "25%", "50%", "75%", "100%"]),
        ),
    }  # fmt: skip


def _steps(rows: list[Row], metric: str, name: str, colour: str, dash: str) -> dict[str, Any]:
    """A line that rises by an equal share at each run."""
    return {
        "type": "scatter", "mode": "lines+markers", "name": name, "x": [_value(row) for row in rows],
        "y": [(k + 1) / len(rows) for k in range(len(rows))], **_told_of(rows, metric),
        "line": {"color": colour, "width": 2, "shape": "hv", "dash": dash}, "marker": {"size": 4, "color": colour},
    }  # fmt: skip


def _spread(came: list[Row], goal: Goal) -> str:
    if not came:
        return "No run has ended with a finite value yet."
    heights = goal.sign * np.array([_value(row) for row in came])
    half, tenth = (short(float(goal.sign * np.quantile(heights, q, method="lower"))) for q in (0.5, 0.9))
    half_of = f"Half of {plural(len(came), 'run')} came to {goal.metric} {half} or better"
    return f"{half_of}, the best tenth to {tenth} or better."


def _epochs(cost: Cost) -> float:
    return cost.epochs


def _leaders(steps: list[NewBest], xs: list[float], metric: str, best: Best | None) -> dict[str, Any]:
    leads = [best is not None and s.trial == best.trial for s in steps]
    return {
        "type": "scatter", "mode": "markers", "name": "a new leader", "x": xs, "y": [s.value for s in steps],
        "ids": [f"trial-{s.trial}" for s in steps], "meta": [metric],
        "marker": {"size": 7, "color": [ACCENT if led else MUTED for led in leads]},
        "customdata": [
            [f"Trial {s.trial}", f"after {plural(round(s.epochs, 2), 'epoch')} of all trials, {duration(s.seconds)}"]
            for s in steps
        ],
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{meta[0]} %{y:.4~g}<br>%{customdata[1]}<extra></extra>",
    }  # fmt: skip


def _told(steps: list[NewBest], metric: str) -> str:
    if not steps:
        return "No value yet."
    last, led = steps[-1], sum(a.trial != b.trial for a, b in pairwise(steps))
    return (
        f"The best {metric} went from {short(steps[0].value)} to {short(last.value)}; another run took the lead "
        f"{plural(led, 'time')}, and nothing is better since {plural(round(last.epochs, 2), 'epoch')} of training."
    )
