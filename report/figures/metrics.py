"""The curves of the other metrics that trials reported: a loss beside an accuracy, a latency, a learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from haltune._utils.arrays import Array
from haltune._utils.words import plural
from haltune.log.events import Status

from ..digest import Digest, Row, Source, digest
from ..palette import GROUP_STYLES, GroupStyle
from ..sample import MOST_TRIALS, evenly
from .drawing import Spec, axis, drawn, layout, nothing, plotly_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

_PANELS = 6  # metrics
_TRIALS = 40  # the best
_POINTS = 100  # of a curve
_NO_METRIC = "No trial has reported another metric"


def metrics(study: Source) -> go.Figure:
    """The curves of the metrics that trials reported beside the goal's, a pair of axes each.

    The first six metrics, of the best forty trials and of those that run.

    Args:
        study: A Study, or its history. A study is read up to its newest event.

    Returns:
        A figure of Plotly's.

    Raises:
        ImportError: When Plotly is missing, saying how to get it.
        InvalidInput: For what is no study.

    Example:
        See docs/guide.md::

            metrics(study)
    """
    return drawn(metrics_spec(digest(study, MOST_TRIALS)))


def metrics_spec(facts: Digest) -> Spec:
    """`metrics` as plain data. The first pair of axes is left to the goal's metric, beside which a page shows them."""
    rows = _shown(facts)
    own = facts.problem.goal.metric  # callbacks record all that is logged
    known = list(dict.fromkeys(name for row in rows for name in row.record.metrics if name != own))
    names = [name for name in known if any(len(_points(row, name)) for row in rows)]
    data: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    logs = {}
    for k, name in enumerate(names[:_PANELS], 2):
        having = [(style, row) for style, row in _drawn(rows) if len(_points(row, name))]
        data += [_curve(row, style, name, k) for style, row in having]
        values = np.concatenate([row.record.metrics[name][_points(row, name)] for _, row in having])
        axes[f"xaxis{k}"] = axis("epoch", anchor=f"y{k}")
        axes[f"yaxis{k}"] = axis(plotly_text(name), anchor=f"x{k}", range=_range(values))
        if (values > 0.0).all():
            logs[f"yaxis{k}"] = values
    told = (
        f"The curves of {', '.join(names[:_PANELS])} of {plural(len(rows), 'trial')}."
        if names
        else f"{_NO_METRIC}."
    )
    return {
        "data": data,
        "layout": layout(
            "Other metrics", told, order=18, wide=True, height=280, note=_note(facts, rows, names), showlegend=False,
            annotations=[] if names else [nothing(_NO_METRIC)], updatemenus=_menus(logs, axes), **axes,
        ),
    }  # fmt: skip


def _shown(facts: Digest) -> list[Row]:
    rank = {id: n for n, id in enumerate(id for group in facts.history.ranked() for id in group)}
    rows = sorted(facts.rows, key=lambda row: rank.get(row.record.id, len(rank)))
    return [row for n, row in enumerate(rows) if n < _TRIALS or row.record.status is Status.RUNNING]


def _drawn(rows: list[Row]) -> list[tuple[GroupStyle, Row]]:
    """In the order in which they are drawn, the best on top."""
    return [(style, row) for group, style in GROUP_STYLES.items() for row in rows if row.group == group]


def _points(row: Row, name: str) -> NDArray[np.int64]:
    """The indices of the reports that are drawn of a metric."""
    column = row.record.metrics.get(name)
    if column is None:
        return np.arange(0)
    found = np.flatnonzero(np.isfinite(column))
    if len(found) <= _POINTS:
        return found
    return np.unique(np.concatenate([found[:1], found[evenly(len(found), _POINTS)], found[-1:]]))


def _curve(row: Row, style: GroupStyle, name: str, k: int) -> dict[str, Any]:
    at = _points(row, name)
    return {
        "type": "scatter", "mode": "lines" if len(at) > 1 else "markers",
        "uid": f"trial-{row.record.id}", "name": f"trial {row.record.id}",
        "x": row.record.epochs[at].tolist(), "y": row.record.metrics[name][at].tolist(),
        "xaxis": f"x{k}", "yaxis": f"y{k}", "showlegend": False,
        "line": {"color": style.line, "width": style.width, "dash": style.dash},
        "marker": {"color": style.line, "size": 5},
        "meta": [plotly_text(name), f"Trial {row.record.id}: {row.outcome}"],
        "hovertemplate": "<b>%{meta[1]}</b><br>%{meta[0]} %{y:.4~g} at epoch %{x}<extra></extra>",
    }  # fmt: skip


def _range(values: Array) -> list[float] | None:
    """Where nine tenths of the values are, and as far again: what diverged is left outside the first view."""
    values = np.clip(values, -1e300, 1e300)
    low, high = float(values.min()), float(values.max())
    few, most = (float(v) for v in np.quantile(values, [0.05, 0.95]))
    low, high = max(low, few - (most - few)), min(high, most + (most - few))
    if not low < high:
        return None
    pad = 0.06 * (high - low)
    return [low - pad, high + pad]


def _menus(logs: dict[str, Array], axes: dict[str, Any]) -> list[dict[str, Any]]:
    """Buttons for a logarithmic view of the metrics that are positive."""
    if not logs:
        return []
    linear: dict[str, Any] = {}
    logarithmic: dict[str, Any] = {}
    for name, values in logs.items():
        linear |= {f"{name}.type": "linear", f"{name}.range": axes[name]["range"]}
        logarithmic |= {f"{name}.type": "log", f"{name}.range": _range(np.log10(values))}
    views = (("linear", linear), ("log", logarithmic))
    buttons = [{"label": label, "method": "update", "args": [{}, change]} for label, change in views]
    return [
        {"type": "buttons", "direction": "right", "x": 1, "y": 1.12, "xanchor": "right", "buttons": buttons}
    ]


def _note(facts: Digest, rows: list[Row], names: list[str]) -> str:
    """What is not shown."""
    if not names:
        return ""
    of = (
        f"of the best {_TRIALS} trials and those that run" if len(rows) < len(facts.rows) else "of all trials"
    )
    left = (
        f"; {plural(len(names) - _PANELS, 'metric')} more are in `haltune export`"
        if len(names) > _PANELS
        else ""
    )
    return f"What runs reported beside {facts.problem.goal.metric}, {of}{left}. A line is a trial."
