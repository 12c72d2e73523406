"""The front of a search for several goals: what its runs came to in one goal against another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from haltune._utils.words import plural, settings, short
from haltune.errors import InvalidInput
from haltune.log.problem import Goal

from ..digest import Digest, Row, Source, digest
from ..palette import ACCENT, FAINT, MUTED
from ..sample import MOST_TRIALS
from .drawing import Spec, axis, drawn, layout, nothing, plotly_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

_CUT = "not trained in full"


def front(study: Source) -> go.Figure:
    """What every run came to in the first goal, against each other goal; those on the front in colour.

    Args:
        study: A Study for several goals, or its history. A study is read up to its newest event.

    Returns:
        A figure of Plotly's.

    Raises:
        ImportError: When Plotly is missing, saying how to get it.
        InvalidInput: For what is no study, and for a study of one goal.

    Example:
        >>> from haltune import Float, Maximize, Minimize, Study
        >>> goals = [Maximize("acc"), Minimize("ms")]
        >>> study = Study({"width": Float(1, 9)}, goals, max_epochs=1, seed=0, budget="4 trials")
        >>> for trial in study:
        ...     width = trial.config["width"]
        ...     verdict = trial.report({"acc": 1 - 1 / width, "ms": 3 * width})
        >>> [trace.name for trace in front(study).data]
        ['other runs', 'the front']
    """
    facts = digest(study, MOST_TRIALS)
    if not facts.problem.further:
        raise InvalidInput(
            f"front(study) draws several goals against each other, and this study has one, "
            f"{facts.problem.goal.metric}: progress(study) draws its best"
        )
    return drawn(front_spec(facts))


def front_spec(facts: Digest) -> Spec:
    """The same as plain data: a panel for each goal beyond the first."""
    first, *others = facts.problem.goals
    names = [goal.metric for goal in facts.problem.goals]
    came = [(r, r.record.results(facts.problem)) for r in facts.rows]
    rows = [r for r, found in came if all(math.isfinite(found[name]) for name in names)]
    data: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    for k, other in enumerate(others):
        number = "" if k == 0 else str(k + 1)
        for name, kept in (
            (_CUT, [r for r in rows if not r.leads and not r.record.complete]),
            ("other runs", [r for r in rows if not r.leads and r.record.complete]),
            ("the front", _front(facts, rows, other)),
        ):
            if kept:
                data.append(_trace(facts, kept, other, name, number, shown=k == 0))
        axes |= {f"xaxis{number}": axis(_title(other)), f"yaxis{number}": axis(_title(first))}
        if number:
            axes[f"yaxis{number}"]["anchor"], axes[f"xaxis{number}"]["anchor"] = f"x{number}", f"y{number}"
    return {
        "data": data,
        "layout": layout(
            "The front", f"{plural(len(facts.front), 'run')} on the front of {plotly_text(' against '.join(names))}.",
            order=5, wide=True,
            note="A point is what a run came to by its last epoch. Nothing betters those on the front in all goals; "
            "runs that were not trained in full, or are beyond a constraint, are not on it, wherever they lie.",
            annotations=[] if rows else [nothing("No run has a value in every goal yet")],
            **axes,
        ),
    }  # fmt: skip


def _front(facts: Digest, rows: list[Row], other: Goal) -> list[Row]:
    return sorted((r for r in rows if r.leads), key=lambda r: r.record.results(facts.problem)[other.metric])


def _title(goal: Goal) -> str:
    return f"{plotly_text(goal.metric)} ({'larger' if goal.sign > 0 else 'smaller'} is better)"


def _trace(
    facts: Digest, rows: list[Row], other: Goal, name: str, number: str, shown: bool
) -> dict[str, Any]:
    first, leads = facts.problem.goal, rows[0].leads
    results = [r.record.results(facts.problem) for r in rows]
    colour = ACCENT if leads else FAINT if name == _CUT else MUTED
    line = {"line": {"color": ACCENT, "width": 1}} if leads and len(facts.problem.goals) == 2 else {}
    return {
        "type": "scatter", "mode": "lines+markers" if line else "markers", "name": name, "showlegend": shown,
        "legendgroup": name, "x": [r[other.metric] for r in results], "y": [r[first.metric] for r in results],
        "xaxis": f"x{number}", "yaxis": f"y{number}", "ids": [f"trial-{r.record.id}" for r in rows],
        "marker": {"size": 9 if leads else 6, "color": colour}, **line,
        "customdata": [_said(r, found) for r, found in zip(rows, results, strict=True)],
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{customdata[1]}<br>%{customdata[2]}<extra></extra>",
    }  # fmt: skip


def _said(row: Row, results: dict[str, float]) -> list[str]:
    values = ", ".join(f"{plotly_text(name)} {short(value)}" for name, value in results.items())
    return [
        f"Trial {row.record.id}: {row.outcome}{row.praise}",
        values,
        plotly_text(settings(row.record.config)),
    ]
