"""The learning curves of a search: where each trial was stopped, and why (figure 7 of the BO-BOS paper).

Curves of running and paused trials have a forecast: a band around the simulated paths of optimal stopping.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune.display import clipped, counted, plural, settings, short
from haltune.log.events import Status
from haltune.log.history import History
from haltune.log.records import TrialRecord
from haltune.log.scores import measured
from haltune.models.curves import errors_of, reference_curves, reference_trials
from haltune.policies.bobos.optimal_stopping import OptimalStopping
from haltune.study.explain import WouldBeStop

from ..digest import MOST_TRIALS, Digest, Row, Source, digest, most_points, points

# isort: off
from .drawing import (
    ACCENT_INK, COOL, GROUP_STYLES, INK, MUTED, GroupStyle, Trace, at_point, axis, band, drawn, first_view, layout,
    middle, nothing, plotly_text, positions, trial_ids,
)  # fmt: skip

if TYPE_CHECKING:
    import plotly.graph_objects as go

Keep = Callable[[str, object, Callable[[], Any]], Any]  # a cache: (key, inputs, make) -> the value for these inputs
_HOVER_WIDTH = 64  # characters a line: Plotly does not wrap
_MOST_FORECASTS = 8  # curves
_PATHS = 400
_FINEST_FORECAST = 60  # steps of a forecast at most
_BAND = (0.1, 0.5, 0.9)
_ROOM = 0.1  # below a curve that is worse than all others: optimal stopping reads the worst error as a paused trial


def learning_curves(study: Source) -> go.Figure:
    """Draw the curves of the trials, with a mark at each end; the hover text gives the reason.

    If there are many trials, the figure shows a sample. The best eight running or paused trials have a band. It
    contains the rest of the curve with 80% probability, predicted from its first reports and from the other trials.

    Args:
        study: A Study, or its history. A study is read up to its newest event.

    Returns:
        A Plotly figure.

    Raises:
        ImportError: If Plotly is not installed.
        InvalidInput: If `study` is not a study.

    Example:
        >>> from haltune import Budget, Float, Minimize, Problem, Space, Study
        >>> from haltune.policies import RandomSearch
        >>> problem = Problem(Space({"lr": Float(0.01, 1.0)}), Minimize("loss"), max_epochs=2)
        >>> study = Study(problem, RandomSearch(), seed=0, budget=Budget(trials=3))
        >>> type(learning_curves(study)).__name__
        'Figure'
    """
    facts = digest(study, MOST_TRIALS)
    return drawn({"data": [*lines(facts), *bands(facts), *marks(facts)], "layout": laid_out(facts)})


def _no_cache(key: str, made_of: object, make: Callable[[], Any]) -> Any:
    return make()


def lines(facts: Digest, keep: Keep = _no_cache) -> list[Trace]:
    found, most = [], most_points(len(facts.rows))
    for height, (style, rows) in enumerate(_groups(facts)):
        for row in rows:
            whole = len(row.record.values) <= most
            made_of = (row.record, row.leads, row.kind, row.outcome, row.reason, row.saved, whole or most)
            found.append(keep(f"curve {row.record.id}", made_of, partial(_curve, facts, row, style, height)))
    return found


def _curve(facts: Digest, row: Row, style: GroupStyle, height: int) -> Trace:
    shown = points(row.record, len(facts.rows))
    return {
        "uid": f"trial-{row.record.id}",  # also a class in the SVG: the page finds the curve by it
        "name": f"trial {row.record.id}", "x": row.record.epochs[shown].tolist(),
        "y": [v if math.isfinite(v) else None for v in row.record.values[shown].tolist()],
        "mode": "lines", "line": {"color": style.line, "width": style.width, "dash": style.dash},
        "legendgroup": style.label, "showlegend": False,
        "meta": [plotly_text(facts.problem.goal.metric), _title(facts, row), _details(row)],
        "hovertemplate": f"<b>%{{meta[1]}}</b><br>{at_point(facts.problem)}<br>%{{meta[2]}}<extra></extra>",
        "zorder": height,
    }  # fmt: skip


def marks(facts: Digest, speaking: bool = True) -> list[Trace]:
    """Return a trace with the ends of each group's curves, and one with audited stops and their outcomes.

    The legend entry of the ends also stands for the curves. speaking: the ends have hover texts, as their curves do.
    """
    metric, found = plotly_text(facts.problem.goal.metric), []
    for height, (style, rows) in enumerate(_groups(facts)):
        if not rows:
            continue
        ends = [row.ending or (math.nan, math.nan) for row in rows]
        colour = style.line if style.label == "best" else INK if style.label == "trained in full" else MUTED
        mark: Trace = {
            "uid": f"ends-{rows[0].group}", "x": [epoch for epoch, _ in ends], "y": [value for _, value in ends],
            "mode": "markers",
            "marker": {"symbol": style.mark, "size": style.size, "color": colour,
                       "line": {"width": 1.6, "color": colour}},
            "name": _entry(facts, rows, style), "legendgroup": style.label, "ids": trial_ids(rows),
        }  # fmt: skip
        if speaking:
            mark |= {
                "meta": [metric], "customdata": [[_title(facts, row), _details(row)] for row in rows],
                "hovertemplate": f"<b>%{{customdata[0]}}</b><br>{at_point(facts.problem)}<br>%{{customdata[1]}}"
                "<extra></extra>",
            }  # fmt: skip
        found.append({**mark, "zorder": len(GROUP_STYLES) + height})
    if stops := would_be_stops(facts):
        found.append({
            "uid": "audited", "zorder": 2 * len(GROUP_STYLES), "mode": "markers",
            "x": [run.epoch for run, _ in stops], "y": [value for _, value in stops],
            "marker": {"symbol": "circle-x-open", "size": 10, "color": INK, "line": {"width": 1.4}},
            "name": f"would have been stopped, audited ({len(stops)})", "meta": [metric],
            "ids": [f"trial-{run.trial}" for run, _ in stops],
            "customdata": [_wrapped(f"audit: {run}") for run, _ in stops],
            "hovertemplate": f"{at_point(facts.problem)}<br>%{{customdata}}<extra></extra>",
        })  # fmt: skip
    if beyond := cropped(facts):
        found.append({
            "uid": "cropped", "zorder": 2 * len(GROUP_STYLES), "mode": "markers", "cliponaxis": False,
            "x": [epoch for _, epoch, _, _ in beyond], "y": [edge for _, _, edge, _ in beyond],
            "marker": {"symbol": ["triangle-up" if value > edge else "triangle-down" for _, _, edge, value in beyond],
                       "size": 7, "color": MUTED},
            "name": f"goes beyond this view ({len(beyond)})", "ids": [f"trial-{id}" for id, _, _, _ in beyond],
            "customdata": [f"Trial {id} reaches {short(value)}. Double-click to show all values"
                           for id, _, _, value in beyond],
            "hovertemplate": "%{customdata}<extra></extra>",
        })  # fmt: skip
    return found


def cropped(facts: Digest) -> list[tuple[int, float, float, float]]:
    """Return each shown trial whose curve leaves the first view: its number, epoch, the edge, and its extreme value."""
    if (view := _values_shown(facts)) is None:
        return []
    found = []
    for row in facts.rows:
        values, epochs = row.record.values, row.record.epochs
        outside = np.flatnonzero(np.isfinite(values) & ((values < view[0]) | (values > view[1])))
        if row.ending and len(outside):
            away = np.abs(values[outside] - np.clip(values[outside], view[0], view[1]))
            at = outside[int(away.argmax())]
            edge = view[1] if values[at] > view[1] else view[0]
            found.append((row.record.id, float(epochs[outside[0]]), edge, float(values[at])))
    return found


def _groups(facts: Digest) -> list[tuple[GroupStyle, list[Row]]]:
    return [(style, [r for r in facts.rows if r.group == name and r.ending]) for name, style in GROUP_STYLES.items()]


def would_be_stops(facts: Digest) -> list[tuple[WouldBeStop, float]]:
    """Return the audited stops of the shown trials, each with the trial's value there."""
    shown = {row.record.id: row.record for row in facts.rows}
    found = []
    for run in facts.audit.runs if facts.audit else ():
        if (t := shown.get(run.trial)) is not None:
            found += [(run, float(v)) for v in t.values[t.epochs == run.epoch] if math.isfinite(v)]
    return found


def _entry(facts: Digest, rows: list[Row], style: GroupStyle) -> str:
    """Return a legend entry with the number of trials, the best included, and the total if not all are shown."""
    if rows[0].leads:
        return f"on the front ({len(rows)} trials)" if rows[0].several else style.label
    shown = sum(row.kind == rows[0].kind and row.ending is not None for row in facts.rows)
    of = "" if len(facts.rows) == facts.trials else f" of {counted(facts.counts[rows[0].kind])}"
    return f"{style.label} ({shown}{of})"


def _title(facts: Digest, row: Row) -> str:
    after = f" after {facts.problem.reached(row.record.epoch)} {facts.problem.units}" if row.saved else ""
    return f"Trial {row.record.id}: {row.outcome}{after}{row.praise}"


def _details(row: Row) -> str:
    """Return the reason, the key numbers and the configuration, wrapped and escaped."""
    numbers = ", ".join(f"{name} {value}" for name, value in row.evidence.items())
    first, *others = [_wrapped(p) for p in (row.reason, numbers, settings(row.record.config)) if p]
    return "<br>".join([first, *(f"<span style='color:{MUTED}'>{p}</span>" for p in others)])


def _wrapped(text: str) -> str:
    return "<br>".join(plotly_text(line) for line in textwrap.wrap(clipped(text), _HOVER_WIDTH, max_lines=6))


def laid_out(facts: Digest) -> dict[str, Any]:
    """Return the layout. The best value is written at its point, so that no legend is needed."""
    goal, best, up = facts.problem.goal, facts.best, facts.problem.goal.sign > 0
    shown = f"{best.metric} " * (best.metric != goal.metric) + short(best.value) if best else ""
    last = float(facts.problem.max_epochs or max((r.record.epoch for r in facts.rows), default=1.0) or 1.0)
    texts = [nothing(f"No trial has {'reported a finite value' if facts.rows else 'started'} yet")]
    if any(row.ending for row in facts.rows):
        texts = []
        led = next((row for row in facts.rows if row.leads and row.ending and not row.several), None)
        if led and best:
            at = (best.epoch, best.value)
            if best.metric != goal.metric:  # its own curve is of the goal's metric
                at = led.ending or at
            texts = [{
                "x": at[0], "y": at[1], "text": f"<b>{plotly_text(shown)}</b>", "showarrow": False,
                "xanchor": "right", "yanchor": "bottom" if up else "top", "xshift": 8, "yshift": 5 if up else -5,
                "font": {"color": ACCENT_INK, "size": 15},
            }]  # fmt: skip
    reached = f"; the best, trial {best.trial}, reaches {shown} at {facts.problem.at(best.epoch)}" if best else ""
    return layout(
        "Learning curves",
        f"Learning curves of {plural(len(facts.rows), 'trial')}: {facts.states or 'none yet'}"
        f"{'' if facts.front else reached}.",
        note=_note(facts), order=10, wide=True,
        logs=not any((r.record.values <= 0).any() for r in facts.rows) and any(r.ending for r in facts.rows),
        annotations=texts,
        xaxis=positions(facts.problem, [0.0, last + max(0.5 * (facts.problem.every or 1.0), 0.02 * last)]),
        yaxis=axis(f"{plotly_text(goal.metric)} ({'larger' if up else 'smaller'} is better)",
                   range=_values_shown(facts)),
    ) | {"legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "traceorder": "reversed"}}  # fmt: skip


def _note(facts: Digest) -> str:
    """Return the note: what the marks mean, and which trials are shown."""
    audited, count = bool(would_be_stops(facts)), len(facts.rows)
    if any(row.record.status is Status.STOPPED for row in facts.rows):
        note = "Each line is a trial; a cross marks where it was stopped. Point at one to see the reason."
        note += " A circled cross marks where an audited trial would have been stopped." * audited
    elif audited:
        note = "Each line is a trial; a circled cross marks where an audited trial would have been stopped."
    else:
        note = "Each line is a trial. Point at one to see its numbers."
    if count < facts.trials:
        note += (
            f" {count:,} of {facts.trials:,} trials are shown: the best {MOST_TRIALS // 2:,}, and an evenly spaced "
            "sample of as many others. Totals count all trials."
        )
    return note


def _values_shown(facts: Digest) -> list[float] | None:
    """Return the range of the values: all if the metric has bounds; otherwise most values, first and best included."""
    curves = [r.record.values[np.isfinite(r.record.values)] for r in facts.rows if r.ending]
    if not curves:
        return None
    every, sign = np.concatenate(curves), facts.problem.goal.sign
    near = [sign * (sign * every).max(), *(every if facts.problem.goal.bounds else [np.median([c[0] for c in curves])])]
    return first_view(every, sign, near)


@dataclass(frozen=True)
class Forecast:
    """Predicted rest of a curve, in the metric's units; each sequence starts with the last reported value."""

    trial: int
    epochs: tuple[float, ...]
    low: tuple[float, ...]  # 10% of the paths are below
    middle: tuple[float, ...]
    high: tuple[float, ...]


def forecasts(facts: Digest, keep: Keep = _no_cache) -> list[Forecast]:
    """Return forecasts of the best eight running or paused trials, the best first; none without max_epochs.

    Each is cached until its trial reports again.
    """
    judged = facts.judged
    if facts.over or judged is None or judged.problem.max_epochs is None:
        return []
    sign = facts.problem.goal.sign
    going = [r for r in facts.rows if r.record.status in (Status.RUNNING, Status.PAUSED) and r.ending]
    going.sort(key=lambda r: -sign * (r.ending or (0.0, 0.0))[1])
    found = [
        keep(f"forecast {t.id}", (t.attempt, t.epoch), partial(forecast, judged, judged.trial(t.id)))
        for t in (row.record for row in going[:_MOST_FORECASTS])
    ]
    return [f for f in found if f is not None]


def forecast(history: History, record: TrialRecord) -> Forecast | None:
    """Predict the rest of a curve from its reports and the reference curves. None if there are too few data.

    history and record are in points, see haltune.log.points.
    """
    end, goal = history.problem.max_epochs or 0, history.problem.goal
    stride = math.ceil(end / _FINEST_FORECAST)
    horizon, before = divmod(end, stride) if end else (0, 0)
    steps = slice(before + stride - 1, None, stride)
    # the present scale: on the trial's own scale, which is fixed, later improvements would be cut off at the top
    scale = history.learnt_scale() or history.scale_of(record.id)
    seen = goal.sign * measured(record.values[record.whole])
    if scale is None or not len(seen) or math.isnan(last := float(seen[-1])):
        return None
    if last < scale.low:
        scale = replace(scale, low=last - _ROOM * (scale.high - last))
    if scale.high == scale.low:
        return None
    peaks = goal.of == "best"
    errors = errors_of(record, peaks, scale)[steps]
    if not 1 <= len(errors) < horizon:
        return None
    others = reference_curves(reference_trials(history.trials, record), peaks, scale, horizon, steps)
    if goal.bounds is None and not others.beyond(len(errors)):
        return None  # nothing shows how high curves rise
    rng = np.random.default_rng([history.seed, record.id, len(errors)])
    paths = OptimalStopping().paths_of(errors, horizon, _PATHS, rng, others)
    ends = np.quantile(paths.values, _BAND, axis=1)
    first = float(scale.raw(1.0 - errors[-1]))
    found = np.column_stack([np.full(3, first), np.sort(scale.raw(1.0 - ends), axis=0)])
    epochs = [history.problem.in_unit(n) for n in (before + stride * np.arange(len(errors), horizon + 1.0)).tolist()]
    low, middle, high = (tuple(band) for band in found.tolist())
    return Forecast(record.id, tuple(epochs), low, middle, high)


def bands(facts: Digest, keep: Keep = _no_cache) -> list[Trace]:
    traces: list[Trace] = []
    for f in reversed(found := forecasts(facts, keep)):
        ids = [f"trial-{f.trial}"] * len(f.epochs)
        shared = {"name": "forecast", "legendgroup": "forecast", "zorder": -1}
        whole = {"ids": [*ids, *ids], "showlegend": f is found[0], "opacity": 0.5}
        traces.append(band(f.epochs, f.low, f.high) | shared | whole)
        traces.append({
            **middle(list(f.epochs), list(f.middle)), **shared, "ids": ids, "showlegend": False,
            "line": {"color": COOL, "width": 1.4, "dash": "dot"}, "meta": [plotly_text(facts.problem.goal.metric)],
            "customdata": [[f.trial, low, high] for low, high in zip(f.low, f.high, strict=True)],
            "hovertemplate": f"<b>Trial %{{customdata[0]}}</b>, forecast<br>{at_point(facts.problem)}"
            "<br>%{customdata[1]:.4~g} to %{customdata[2]:.4~g} with 80% probability<extra></extra>",
        })  # fmt: skip
    return traces
