"""The best value so far, against what it cost."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.words import duration, plural, short
from haltune.errors import InvalidInput
from haltune.log.problem import Problem
from haltune.log.records import Best
from haltune.study.results import Results

from ..digest import story_of
from ..palette import ACCENT, INK, MUTED
from ..sample import evenly
from ..story import NewBest, Story
from .drawing import Spec, axis, drawn, layout, nothing, time_unit
from .wording import plotly_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

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
    return drawn(progress_spec(story, study.history.problem, study.best))


def progress_spec(story: Story, problem: Problem, best: Best | None) -> Spec:
    """The same as plain data."""
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
    buttons = [_button(title, xs, [xs[i] for i in taken], label) for title, xs, label in views]
    menus: Any = (
        [{"type": "buttons", "direction": "right", "buttons": buttons}] if steps and len(views) > 1 else []
    )
    return {
        "data": [line, dots] if steps else [],
        "layout": layout(
            "Best so far", _told(steps, metric), order=20, showlegend=False,
            note="The best as it would have been told at the time: of full trainings, once there is one. At a dot "
            "another run took the lead.",
            logs=bool(steps) and min(ys) > 0,
            xaxis=axis(views[0][0], rangemode="tozero"), yaxis=axis(metric, range=_near(ys, problem.goal.sign)),
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


def _views(story: Story, steps: list[NewBest]) -> list[tuple[str, list[float], str]]:
    """(title, x of each step and of now, button): what progress is measured against."""
    elapsed = [s.seconds for s in steps] + ([story.now - story.begun] if steps else [])
    unit, name = time_unit(max(elapsed, default=0.0))
    found = [
        ("epochs trained", [s.epochs for s in steps] + ([story.epochs] if steps else []), "epochs"),
        (f"{name} since the first trial", [s / unit for s in elapsed], "time"),
    ]
    if story.cost:
        found.append(("cost", [*(s.cost for s in steps), story.cost], "cost"))
    return found


def _button(title: str, xs: list[float], dots: list[float], label: str) -> dict[str, Any]:
    return {"label": label, "method": "update", "args": [{"x": [xs, dots]}, {"xaxis.title.text": title}]}


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
