"""The best value so far, against what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.words import duration, plural, short
from haltune.log.problem import Problem
from haltune.log.records import Best
from haltune.study.results import Results

from ..digest import story_of
from ..palette import ACCENT, INK, MUTED
from ..story import Step, Story
from .drawing import Spec, axis, drawn, layout, nothing, time_unit
from .wording import plotly_text

if TYPE_CHECKING:
    import plotly.graph_objects as go


def progress(study: Results) -> go.Figure:
    """The best value seen so far against epochs trained, and against time, and cost where there is one, by a button.

    Args:
        study: A Study, or one opened to look at. It is read up to its newest event.

    Returns:
        A figure of Plotly's.

    Raises:
        ImportError: When Plotly is missing, saying how to get it.
        InvalidInput: For what is no study.

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
        [0.817, 0.408, 0.067, 0.067]
    """
    story = story_of(study)
    return drawn(progress_spec(story, study.history.problem, study.best))


def progress_spec(story: Story, problem: Problem, best: Best | None) -> Spec:
    """The same as plain data."""
    metric = plotly_text(problem.goal.metric)
    steps = story.steps
    views = _views(story)
    ys = [s.value for s in steps] + ([steps[-1].value] if steps else [])
    line = {
        "type": "scatter", "mode": "lines", "name": "best so far", "showlegend": False, "x": views[0][1], "y": ys,
        "line": {"color": INK, "width": 2, "shape": "hv"}, "hoverinfo": "skip",
    }  # fmt: skip
    data = [line, _improvements(steps, views[0][1], metric, best)] if steps else []
    buttons = [_button(*view) for view in views]
    menus: Any = (
        [{"type": "buttons", "direction": "right", "buttons": buttons}] if steps and len(views) > 1 else []
    )
    return {
        "data": data,
        "layout": layout(
            "Best so far", _told(steps, metric), order=20, showlegend=False,
            note="What had been seen until then; each dot is an improvement.",
            logs=bool(steps) and min(ys) > 0,
            xaxis=axis(views[0][0], rangemode="tozero"), yaxis=axis(metric),
            annotations=[] if steps else [nothing("No trial has reported a finite value yet")],
            updatemenus=menus,
        ),
    }  # fmt: skip


def _views(story: Story) -> list[tuple[str, list[float], str]]:
    """(title, x of each step and of now, button): what progress is measured against."""
    steps = story.steps
    elapsed = [s.seconds for s in steps] + ([story.now - story.begun] if steps else [])
    unit, name = time_unit(max(elapsed, default=0.0))
    found = [
        ("epochs trained", [s.epochs for s in steps] + ([story.epochs] if steps else []), "epochs"),
        (f"{name} since the first trial", [s / unit for s in elapsed], "time"),
    ]
    if story.cost:
        found.append(("cost", [*(s.cost for s in steps), story.cost], "cost"))
    return found


def _button(title: str, xs: list[float], label: str) -> dict[str, Any]:
    return {"label": label, "method": "update", "args": [{"x": [xs, xs[:-1]]}, {"xaxis.title.text": title}]}


def _improvements(steps: list[Step], xs: list[float], metric: str, best: Best | None) -> dict[str, Any]:
    leads = np.array([best is not None and s.trial == best.trial for s in steps])
    return {
        "type": "scatter", "mode": "markers", "name": "an improvement", "x": xs[:-1], "y": [s.value for s in steps],
        "ids": [f"trial-{s.trial}" for s in steps], "meta": [metric],
        "marker": {"size": 7, "color": [ACCENT if led else MUTED for led in leads.tolist()]},
        "customdata": [
            [f"Trial {s.trial}", f"after {plural(round(s.epochs, 2), 'epoch')} of all trials, {duration(s.seconds)}"]
            for s in steps
        ],
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{meta[0]} %{y:.4~g}<br>%{customdata[1]}<extra></extra>",
    }  # fmt: skip


def _told(steps: list[Step], metric: str) -> str:
    if not steps:
        return "No value yet."
    last = steps[-1]
    return (
        f"The best {metric} seen went from {short(steps[0].value)} to {short(last.value)} in "
        f"{plural(len(steps), 'improvement')}, the last after {plural(round(last.epochs, 2), 'epoch')} of training."
    )
