"""The learning curves of a search: where each run was stopped, and why (figure 7 of the BO-BOS paper)."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.words import clipped, counted, settings, short
from haltune.study.audit import WouldBeStop

from .digest import Digest, Row, Source, digest
from .palette import ACCENT_INK, FONT, INK, LOOKS, MUTED, PAPER, RULE
from .sample import MOST, points
from .wording import plotly_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

_HOVER_WIDTH = 64  # characters a line: Plotly does not wrap
_DIVERGED = (
    10.0  # typical curve heights below the typical start: what is worse is left outside the first view
)


def learning_curves(study: Source) -> go.Figure:
    """The curves of the trials, marked where they ended; hovering tells the reason. Of many, a sample: see `sample`.

    Args:
        study: A Study, or its history. A study is read up to its newest event.

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
        >>> type(learning_curves(study)).__name__
        'Figure'
    """
    return figure_of(digest(study, MOST))


def figure_of(facts: Digest) -> go.Figure:
    """`learning_curves` of facts already gathered."""
    graph = _plotly()
    figure = graph.Figure(layout=_layout(facts))
    groups = [(look, [r for r in facts.rows if r.group == name and r.ending]) for name, look in LOOKS.items()]
    metric = plotly_text(facts.problem.goal.metric)
    for look, rows in groups:
        figure.add_traces([graph.Scatter(_curve(facts, row, look, metric)) for row in rows])
    for look, rows in groups:
        if rows:
            figure.add_trace(graph.Scatter(_marks(facts, rows, look, metric)))
    if would_be_stops(facts):
        figure.add_trace(graph.Scatter(_would_be(facts, metric)))
    for row in facts.rows:
        if row.leads and row.ending:
            figure.add_annotation(_label(facts))
    if not any(row.ending for row in facts.rows):
        figure.add_annotation(_nothing(facts))
    return figure


def _plotly() -> Any:
    try:
        import plotly.graph_objects as graph
    except ImportError:
        raise ImportError("haltune.report draws with Plotly: pip install 'haltune[report]'") from None
    return graph


def _curve(facts: Digest, row: Row, look: Any, metric: str) -> dict[str, Any]:
    drawn = points(row.record, len(facts.rows))
    values = row.record.values[drawn]
    return {
        "uid": f"trial-{row.record.id}",  # also a class in the SVG, by which the page finds the curve
        "name": f"trial {row.record.id}",
        "x": row.record.epochs[drawn].tolist(),
        "y": [v if math.isfinite(v) else None for v in values.tolist()],
        "mode": "lines",
        "line": {"color": look.line, "width": look.width, "dash": look.dash},
        "legendgroup": look.label,
        "showlegend": False,
        "meta": [metric, _title(facts, row), _details(row)],
        "hovertemplate": "<b>%{meta[1]}</b><br>%{meta[0]} %{y:.4~g} at epoch %{x}<br>%{meta[2]}<extra></extra>",
    }


def _marks(facts: Digest, rows: list[Row], look: Any, metric: str) -> dict[str, Any]:
    """One trace for the ends of all curves of a group; its legend entry speaks for the curves too."""
    ends = [row.ending or (math.nan, math.nan) for row in rows]
    colour = look.line if look.label == "best" else INK if look.label == "trained in full" else MUTED
    return {
        "uid": f"ends-{rows[0].group}",
        "x": [epoch for epoch, _ in ends],
        "y": [value for _, value in ends],
        "mode": "markers",
        "marker": {
            "symbol": look.mark,
            "size": look.size,
            "color": colour,
            "line": {"width": 1.6, "color": colour},
        },
        "name": look.label if look.label == "best" else f"{look.label} ({_count(facts, rows)})",
        "legendgroup": look.label,
        "meta": [metric],
        "ids": [f"trial-{row.record.id}" for row in rows],
        "customdata": [[_title(facts, row), _details(row)] for row in rows],
        "hovertemplate": "<b>%{customdata[0]}</b><br>%{meta[0]} %{y:.4~g} at epoch %{x}"
        "<br>%{customdata[1]}<extra></extra>",
    }


def would_be_stops(facts: Digest) -> list[tuple[WouldBeStop, float]]:
    """Those of the audited runs that are shown, each with the run's value there."""
    shown = {row.record.id: row.record for row in facts.rows}
    found = []
    for run in facts.audit.runs if facts.audit else ():
        if (t := shown.get(run.trial)) is not None:
            value = t.values[t.epochs == run.epoch]
            found += [(run, float(v)) for v in value if math.isfinite(v)]
    return found


def _would_be(facts: Digest, metric: str) -> dict[str, Any]:
    """One trace for the would-be stops of audited runs, each with what it came to."""
    stops = would_be_stops(facts)
    return {
        "uid": "audited",
        "x": [run.epoch for run, _ in stops],
        "y": [value for _, value in stops],
        "mode": "markers",
        "marker": {"symbol": "circle-x-open", "size": 10, "color": INK, "line": {"width": 1.4}},
        "name": f"would have been stopped, audited ({len(stops)})",
        "meta": [metric],
        "ids": [f"trial-{run.trial}" for run, _ in stops],
        "customdata": [_wrapped(f"audit: {run}") for run, _ in stops],
        "hovertemplate": "%{meta[0]} %{y:.4~g} at epoch %{x}<br>%{customdata}<extra></extra>",
    }


def _count(facts: Digest, rows: list[Row]) -> str:
    """How many a legend speaks of; where not all are shown, of how many in all."""
    whole = len(facts.rows) == facts.trials
    return f"{len(rows)}" if whole else f"{len(rows)} of {counted(facts.counts[rows[0].kind])}"


def _title(facts: Digest, row: Row) -> str:
    horizon = facts.problem.max_epochs
    after = f" after {row.record.epoch:g}{f' of {horizon}' if horizon else ''} epochs" if row.saved else ""
    return f"Trial {row.record.id}: {row.outcome}{after}{', the best' * row.leads}"


def _details(row: Row) -> str:
    """Reason, key numbers and configuration, wrapped and escaped."""
    numbers = ", ".join(f"{name} {value}" for name, value in row.evidence.items())
    paragraphs = [_wrapped(p) for p in (row.reason, numbers, settings(row.record.config)) if p]
    return "<br>".join([paragraphs[0], *(f"<span style='color:{MUTED}'>{p}</span>" for p in paragraphs[1:])])


def _wrapped(text: str) -> str:
    return "<br>".join(plotly_text(line) for line in textwrap.wrap(clipped(text), _HOVER_WIDTH, max_lines=6))


def _label(facts: Digest) -> dict[str, Any]:
    """The best value, written at its point: no need to look it up in a legend."""
    best = facts.best
    assert best is not None  # only called when a row leads
    up = _sign(facts) > 0  # outside the other curves
    return {
        "x": best.epoch, "y": best.value, "text": f"<b>{short(best.value)}</b>", "showarrow": False,
        "xanchor": "right", "yanchor": "bottom" if up else "top", "xshift": 8, "yshift": 5 if up else -5,
        "font": {"color": ACCENT_INK, "size": 15},
    }  # fmt: skip


def _nothing(facts: Digest) -> dict[str, Any]:
    text = "No trial has reported a finite value yet" if facts.rows else "No trial has begun yet"
    return {
        "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "text": text, "showarrow": False,
        "font": {"color": MUTED, "size": 16},
    }  # fmt: skip


def _layout(facts: Digest) -> dict[str, Any]:
    axis = {
        "gridcolor": RULE,
        "zeroline": False,
        "linecolor": RULE,
        "ticks": "",
        "tickfont": {"color": MUTED},
    }
    metric = plotly_text(facts.problem.goal.metric)
    better = "larger" if _sign(facts) > 0 else "smaller"
    return {
        "template": "none",
        "font": {"family": FONT, "size": 13, "color": INK},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "margin": {"l": 68, "r": 24, "t": 46, "b": 56},
        "hovermode": "closest",
        "hoverlabel": {
            "bgcolor": PAPER,
            "bordercolor": MUTED,
            "align": "left",
            "font": {"family": FONT, "size": 13, "color": INK},
        },
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "reversed"},
        "xaxis": {
            **axis,
            "title": {"text": "epoch", "standoff": 10},
            "range": _epochs_shown(facts),
            **_whole_ticks(facts),
        },
        "yaxis": {
            **axis,
            "title": {"text": f"{metric} ({better} is better)", "standoff": 12},
            "range": _values_shown(facts),
        },
    }


def _sign(facts: Digest) -> float:
    return facts.problem.goal.sign


def _last_epoch(facts: Digest) -> float:
    return float(facts.problem.max_epochs or max((r.record.epoch for r in facts.rows), default=1.0) or 1.0)


def _epochs_shown(facts: Digest) -> list[float]:
    last = _last_epoch(facts)
    return [0.0, last + max(0.5, 0.02 * last)]


def _whole_ticks(facts: Digest) -> dict[str, Any]:
    return {"dtick": 1} if _last_epoch(facts) <= 12 else {}


def _values_shown(facts: Digest) -> list[float] | None:
    """The first view: every finite value, but not what diverged (a double click shows all); None without data."""
    curves = [r.record.values[np.isfinite(r.record.values)] for r in facts.rows if r.ending]
    if not curves:
        return None
    sign = _sign(facts)
    heights = np.clip(sign * np.concatenate(curves), -1e300, 1e300)  # so that differences are finite
    top, worst = float(heights.max()), float(heights.min())
    start = float(np.median([sign * np.clip(curve[0], -1e300, 1e300) for curve in curves]))
    if facts.problem.goal.bounds is None and top > start:
        worst = max(worst, start - _DIVERGED * (top - start))
    pad = 0.08 * (top - worst) or 0.05 * abs(top) or 1.0
    return sorted([sign * (worst - pad), sign * (top + pad)])
