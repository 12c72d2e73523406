"""The learning curves of a search: where each run was stopped, and why (figure 7 of the BO-BOS paper)."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from haltune._utils.words import clipped, counted, plural, settings, short
from haltune.log.events import Status
from haltune.study.telling.audit import WouldBeStop

from ..digest import Digest, Row, Source, digest
from ..palette import ACCENT_INK, GROUP_STYLES, INK, MUTED, GroupStyle
from ..sample import MOST_TRIALS, points
from .drawing import axis, drawn, layout, nothing, plotly_text
from .forecast import Forecasts, bands

if TYPE_CHECKING:
    import plotly.graph_objects as go

_HOVER_WIDTH = 64  # characters a line: Plotly does not wrap
# typical curve heights below the typical start: what is worse is left outside the first view
_DIVERGED = 10.0


def learning_curves(study: Source) -> go.Figure:
    """The curves of the trials, marked where they ended; hovering tells the reason. Of many, a sample: see `sample`.

    The best eight that run or are paused have a band, which holds their rest in eight cases of ten, as their beginning
    and the other runs tell it.

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
    facts = digest(study, MOST_TRIALS)
    return drawn(
        {"data": [*lines(facts), *around(facts, Forecasts()), *marks(facts)], "layout": laid_out(facts)}
    )


Made = dict[int, tuple[object, dict[str, Any]]]  # trial -> what its curve was made of, and the curve


def lines(facts: Digest, made: Made | None = None) -> list[dict[str, Any]]:
    """A trace for each curve, in the order in which they are drawn: by `zorder`, then by number.

    made: those of an earlier moment, which are taken again while nothing changed.
    """
    metric, made = plotly_text(facts.problem.goal.metric), {} if made is None else made
    found = []
    for height, (style, rows) in enumerate(_groups(facts)):
        for row in rows:
            shown = points(row.record, len(facts.rows))
            said = (row.record, row.leads, row.kind, row.outcome, row.reason, row.saved, len(shown))
            known = made.get(row.record.id)
            if known is None or known[0] != said:
                known = said, {**_curve(facts, row, style, metric, shown), "zorder": height}
                made[row.record.id] = known
            found.append(known[1])
    return found


def around(facts: Digest, known: Forecasts) -> list[dict[str, Any]]:
    """What is drawn around the curves: forecasts of those that may go on."""
    return bands(known.of(facts), facts.problem.goal.metric)


def marks(facts: Digest, speaking: bool = True) -> list[dict[str, Any]]:
    """A trace for the ends of the curves of each group, and one for audited stops.

    speaking: an end tells what its curve does, too.
    """
    metric = plotly_text(facts.problem.goal.metric)
    found = [
        {
            **_marks(facts, rows, style),
            **(_said(facts, rows, metric) if speaking else {}),
            "zorder": len(GROUP_STYLES) + height,
        }
        for height, (style, rows) in enumerate(_groups(facts))
        if rows
    ]
    return [*found, _would_be(facts, metric)] if would_be_stops(facts) else found


def _groups(facts: Digest) -> list[tuple[GroupStyle, list[Row]]]:
    return [
        (style, [r for r in facts.rows if r.group == name and r.ending])
        for name, style in GROUP_STYLES.items()
    ]


def _curve(
    facts: Digest, row: Row, style: GroupStyle, metric: str, drawn: NDArray[np.int64]
) -> dict[str, Any]:
    values = row.record.values[drawn]
    return {
        "uid": f"trial-{row.record.id}",  # also a class in the SVG, by which the page finds the curve
        "name": f"trial {row.record.id}",
        "x": row.record.epochs[drawn].tolist(),
        "y": [v if math.isfinite(v) else None for v in values.tolist()],
        "mode": "lines",
        "line": {"color": style.line, "width": style.width, "dash": style.dash},
        "legendgroup": style.label,
        "showlegend": False,
        "meta": [metric, _title(facts, row), _details(row)],
        "hovertemplate": "<b>%{meta[1]}</b><br>%{meta[0]} %{y:.4~g} at epoch %{x}<br>%{meta[2]}<extra></extra>",
    }


def _marks(facts: Digest, rows: list[Row], style: GroupStyle) -> dict[str, Any]:
    """One trace for the ends of all curves of a group; its legend entry speaks for the curves too."""
    ends = [row.ending or (math.nan, math.nan) for row in rows]
    colour = style.line if style.label == "best" else INK if style.label == "trained in full" else MUTED
    return {
        "uid": f"ends-{rows[0].group}",
        "x": [epoch for epoch, _ in ends],
        "y": [value for _, value in ends],
        "mode": "markers",
        "marker": {
            "symbol": style.mark,
            "size": style.size,
            "color": colour,
            "line": {"width": 1.6, "color": colour},
        },
        "name": _entry(facts, rows, style),
        "legendgroup": style.label,
        "ids": [f"trial-{row.record.id}" for row in rows],
    }


def _said(facts: Digest, rows: list[Row], metric: str) -> dict[str, Any]:
    return {
        "meta": [metric],
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
        "zorder": 2 * len(GROUP_STYLES),
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


def _entry(facts: Digest, rows: list[Row], style: GroupStyle) -> str:
    """A legend's entry, with how many there are, the best among them; where not all are shown, of how many in all."""
    if rows[0].leads:
        return f"on the front ({len(rows)} of them)" if rows[0].several else style.label
    shown = sum(row.kind == rows[0].kind and row.ending is not None for row in facts.rows)
    of = "" if len(facts.rows) == facts.trials else f" of {counted(facts.counts[rows[0].kind])}"
    return f"{style.label} ({shown}{of})"


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


def laid_out(facts: Digest) -> dict[str, Any]:
    """Its layout."""
    goal = facts.problem.goal
    metric, better = plotly_text(goal.metric), "larger" if _sign(facts) > 0 else "smaller"
    led = [_label(facts) for row in facts.rows if row.leads and row.ending and not row.several]
    empty = "No trial has reported a finite value yet" if facts.rows else "No trial has begun yet"
    return layout(
        "Learning curves", _told(facts), note=f"{_legend(facts)}{_shown(facts)}", order=10, wide=True,
        logs=not any((r.record.values <= 0).any() for r in facts.rows) and any(r.ending for r in facts.rows),
        annotations=led if any(row.ending for row in facts.rows) else [nothing(empty)],
        xaxis=axis("epoch", range=_epochs_shown(facts), **_whole_ticks(facts)),
        yaxis=axis(f"{metric} ({better} is better)", range=_values_shown(facts)),
    ) | {"legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "reversed"}}  # fmt: skip


def _told(facts: Digest) -> str:
    """What the figure shows, in words."""
    best = None if facts.front else facts.best
    led = (
        f"; the best, trial {best.trial}, reaches {short(best.value)} at epoch {best.epoch:g}" if best else ""
    )
    return f"Learning curves of {plural(len(facts.rows), 'trial')}: {facts.states or 'none yet'}{led}."


def _legend(facts: Digest) -> str:
    audited = " A circled cross is where an audited run would have been." if would_be_stops(facts) else ""
    if any(row.record.status is Status.STOPPED for row in facts.rows):
        return f"A line is a trial and a cross is where it was stopped; point at one for the reason.{audited}"
    if audited:
        return "A line is a trial; a circled cross is where an audited run would have been stopped."
    return "A line is a trial; point at one for its numbers."


def _shown(facts: Digest) -> str:
    """What is said where not all trials are shown."""
    count = len(facts.rows)
    if count == facts.trials:
        return ""
    return (
        f" Of {facts.trials:,} trials {count:,} are shown: the best {MOST_TRIALS // 2:,}, and of all others as many "
        "spread over their numbers. Totals are of all."
    )


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
