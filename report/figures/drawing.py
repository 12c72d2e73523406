"""Shared parts of all figures: colours, axes, layouts, and the conversion of plain data to a Plotly figure.

There are few colours, and colour-blind readers can distinguish them (Okabe and Ito): grey for trials that ended, one
accent for the best.
"""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune.display import short, visible
from haltune.errors import installing
from haltune.log.problem import Problem
from haltune.space import Space
from haltune.space.domains import Choice, Float, Int

from ..digest import Digest, Row

if TYPE_CHECKING:
    import plotly.graph_objects as go

Spec = dict[str, Any]  # {"data": [traces], "layout": {...}} in Plotly's JSON format
Trace = dict[str, Any]
INK, MUTED, RULE, PAPER = "#1c2530", "#5f6b78", "#e2e6ea", "#ffffff"
ACCENT = "#d55e00"
ACCENT_INK = "#a84a00"  # the accent dark enough for small text on paper
COOL, COOL_SOFT = "#3b6ea5", "#c9d8e8"  # predictions of models
FAINT, SOFT = "#b9c1c9", "#8d98a3"
COLOURS = {  # -> variables of the page's style sheet, which follow its theme
    INK: "var(--ink)", MUTED: "var(--muted)", RULE: "var(--rule)", PAPER: "var(--paper)", ACCENT: "var(--accent)",
    ACCENT_INK: "var(--accent-ink)", COOL: "var(--cool)", COOL_SOFT: "var(--cool-soft)", FAINT: "var(--faint)",
    SOFT: "var(--soft)",
}  # fmt: skip
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, 'Liberation Sans', sans-serif"
_MARKED_NUMBERS = 12  # up to this many whole numbers, each has a tick
_PANEL = 250  # pixels: default height of a panel
_BELOW = 70  # pixels between two rows, for an axis's ticks and title
_GUTTER = 0.08  # share of the width between two columns, for the same
_LINE = 34  # characters a line of an axis's title
_FAR = 3.0  # distances between quartiles (Tukey's outer fence)
SHARES: dict[str, Any] = {  # an axis of shares
    "tickformat": ".0%", "tickvals": [0, 0.25, 0.5, 0.75, 1.0], "ticktext": ["0%", "25%", "50%", "75%", "100%"],
}  # fmt: skip


@dataclass(frozen=True)
class GroupStyle:
    """Style of the trials of one group."""

    label: str
    line: str  # colour
    width: float  # px
    dash: str
    mark: str  # Plotly's name
    size: float  # px
    rich: str  # style in a terminal


GROUP_STYLES = {  # drawn in this order, the last on top
    "stopped": GroupStyle("stopped early", FAINT, 1.3, "solid", "x-thin", 7, "dim"),
    "paused": GroupStyle("paused", FAINT, 1.3, "solid", "square-open", 7, "dim"),
    "left": GroupStyle("not continued", FAINT, 1.3, "solid", "square-open", 7, "dim"),
    "failed": GroupStyle("failed", FAINT, 1.3, "dot", "triangle-down-open", 8, "red"),
    "interrupted": GroupStyle("interrupted", SOFT, 1.3, "dash", "circle-open", 7, "yellow"),
    "aside": GroupStyle("paused by you", SOFT, 1.3, "dash", "square-open", 7, "yellow"),
    "held": GroupStyle("stopped for now", SOFT, 1.3, "dash", "square-open", 7, "yellow"),
    "lost": GroupStyle("lost", SOFT, 1.3, "dash", "circle-open", 7, "yellow"),
    "running": GroupStyle("running", MUTED, 1.3, "dash", "circle-open", 7, "cyan"),
    "nothing": GroupStyle("ended without a value", FAINT, 1.3, "dot", "triangle-down-open", 8, "red"),
    "part": GroupStyle("trained in part", SOFT, 1.3, "solid", "circle-open", 6, "default"),
    "itself": GroupStyle("ended by itself", MUTED, 1.5, "solid", "diamond", 6, "default"),
    "schedule": GroupStyle("trained to the end of its schedule", MUTED, 1.5, "solid", "circle", 6, "default"),
    "completed": GroupStyle("trained in full", MUTED, 1.5, "solid", "circle", 6, "default"),
    "best": GroupStyle("best", ACCENT, 3.0, "solid", "circle", 11, "bold #e07b1f"),
}


def drawn(spec: Spec) -> go.Figure:
    try:
        import plotly.graph_objects as graph
    except ImportError:
        raise ImportError(f"haltune.report draws with Plotly: {installing('report')}") from None
    data = [
        trace  # marks on the page may share a trial's id, but Plotly draws only one mark for each id
        if len(set(ids := trace.get("ids", ()))) == len(ids)
        else {name: v for name, v in trace.items() if name != "ids"}
        for trace in spec["data"]
    ]
    made: go.Figure = graph.Figure({"data": data, "layout": _side_by_side(spec["layout"])})
    return made


def _side_by_side(laid: dict[str, Any]) -> dict[str, Any]:
    """Return the layout with a place for each panel, at most three in a row, each as high as on the page.

    If some panels have their own heights, each panel has its own row. The page arranges its panels itself.
    """
    panels = [name.removeprefix("xaxis") for name in laid if name.startswith("xaxis")]
    if len(panels) < 2:
        return laid
    own = laid["meta"].get("heights", {})
    columns = 1 if own else 2 if len(panels) == 4 else min(3, len(panels))
    high = [own.get(f"x{number}", laid.get("height", _PANEL)) for number in panels[::columns]]
    inside = sum(high) + _BELOW * (len(high) - 1)
    found = laid | {"height": inside + laid["margin"]["t"] + laid["margin"]["b"]}
    for k, number in enumerate(panels):
        row, column = divmod(k, columns)
        across = [column / columns + _GUTTER * (column > 0), (column + 1) / columns]
        top = 1 - (sum(high[:row]) + _BELOW * row) / inside
        along = [max(0.0, top - high[row] / inside), top]
        y = laid[f"yaxis{number}"]
        title = y.get("title", {})  # wrapped, so that no line is longer than the panel is high
        lines = textwrap.wrap(title.get("text", ""), _LINE, break_long_words=False, break_on_hyphens=False)
        named = {**title, "text": "<br>".join(lines), "font": {"size": 13}}
        found[f"xaxis{number}"] = {**laid[f"xaxis{number}"], "domain": across}
        found[f"yaxis{number}"] = {**y, "title": named, "domain": along, "automargin": True}
    return found


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit for an axis that is this long: (seconds in the unit, its name)."""
    return (3600.0, "hours") if seconds > 7200 else (60.0, "minutes") if seconds > 180 else (1.0, "seconds")


def on(number: int | str) -> Trace:
    """Return the axes of a panel: "" is the first panel, "2" the second."""
    return {"xaxis": f"x{number}", "yaxis": f"y{number}"}


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """Return an axis. The title is Plotly markup."""
    return {
        "gridcolor": RULE, "zeroline": False, "linecolor": RULE, "ticks": "", "tickfont": {"color": MUTED},
        "title": {"text": title, "standoff": 10}, **more,
    }  # fmt: skip


def positions(problem: Problem, span: Sequence[float] | None = None, **more: Any) -> dict[str, Any]:
    """Return an axis of positions within a training, in the study's unit."""
    whole = {"dtick": 1} if problem.every in (None, 1.0) and span is not None and span[1] <= _MARKED_NUMBERS + 1 else {}
    return axis(plotly_text(problem.unit), **({} if span is None else {"range": span}), **whole, **more)


def at_point(problem: Problem) -> str:
    """Return the hover text of a mark: its value, and its position x."""
    return f"%{{meta[0]}} %{{y:.4~g}} at {plotly_text(problem.unit)} %{{x:,}}"


def scale_of(space: Space, name: str) -> dict[str, Any]:
    """Return the axis settings of a parameter: logarithmic, options in their order, or whole numbers."""
    domain = space.whole.parameters[name]  # of all trials
    if isinstance(domain, Choice) and any(isinstance(on_axis(option), str) for option in domain.options):
        return {"type": "category", "categoryarray": [on_axis(option) for option in domain.options]}
    if isinstance(domain, Float | Int) and domain.log:
        return {"type": "log", "exponentformat": "e"}
    if not isinstance(domain, Int) or isinstance(domain.low, str) or isinstance(domain.high, str):
        return {}
    return {"dtick": 1} if domain.high - domain.low <= _MARKED_NUMBERS else {}


def plotly_text(text: object) -> str:
    """Escape text for Plotly, which reads a few HTML tags and entities but not &quot;."""
    return html.escape(visible(text), quote=False)


def on_axis(value: Any) -> Any:
    """Return a parameter's value as a coordinate: a number or a text."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else plotly_text(value)


def valued(facts: Digest) -> list[Row]:
    return [row for row in facts.rows if row.value is not None and math.isfinite(row.value)]


def trial_ids(rows: Sequence[Row]) -> list[str]:
    return [f"trial-{row.record.id}" for row in rows]


def explained(rows: Sequence[Row], metric: str) -> Trace:
    """Return the hover text of a mark for each trial."""
    values = (math.nan if row.value is None else row.value for row in rows)
    return {
        "ids": trial_ids(rows), "meta": [metric],
        "customdata": [[row.record.id, row.outcome, short(value)] for row, value in zip(rows, values, strict=True)],
        "hovertemplate": "<b>Trial %{customdata[0]}</b>: %{customdata[1]}"
        "<br>%{meta[0]} %{customdata[2]}<extra></extra>",
    }  # fmt: skip


_EXPECTED = "expected %{y:.4~g}<extra></extra>"


def band(xs: Sequence[Any], low: Sequence[float], high: Sequence[float]) -> Trace:
    return {
        "type": "scatter", "mode": "lines", "x": [*xs, *reversed(xs)], "y": [*high, *reversed(low)], "fill": "toself",
        "fillcolor": COOL_SOFT, "line": {"width": 0, "color": COOL_SOFT}, "opacity": 0.6, "hoverinfo": "skip",
    }  # fmt: skip


def middle(xs: Sequence[Any], mean: Sequence[float]) -> Trace:
    line = {"color": COOL, "width": 2}
    return {"type": "scatter", "mode": "lines", "x": xs, "y": mean, "line": line, "hovertemplate": _EXPECTED}


def diamonds(xs: Sequence[Any], mean: Sequence[float], reach: Sequence[float]) -> Trace:
    return {
        "type": "scatter", "mode": "markers", "x": xs, "y": mean, "hovertemplate": _EXPECTED,
        "marker": {"symbol": "diamond", "size": 10, "color": COOL},
        "error_y": {"array": reach, "color": COOL, "thickness": 2, "width": 0},
    }  # fmt: skip


def padded(low: float, high: float, share: float, least: float | None = None) -> list[float]:
    """Return the range of an axis from low to high, padded by this share; by `least` if they are equal."""
    pad = share * (high - low)
    if not pad:
        pad = least if least is not None else abs(high) * 0.05 or 1.0
    return [low - pad, high + pad]


def first_view(values: Any, sign: float = 0.0, near: Sequence[float] = ()) -> list[float] | None:
    """Return the range of an axis that shows most values and all of `near`, but not diverged ones. None without values.

    If `sign` is that of the goal, only values that are much worse than most are left out. A double click on a figure
    shows all values.
    """
    seen = np.asarray(values, dtype=np.float64)
    seen = np.clip(seen[np.isfinite(seen)], -1e300, 1e300)  # so that differences are finite
    if not len(seen):
        return None
    quarter, three = np.quantile(seen, [0.25, 0.75])
    reach, low, high = _FAR * (three - quarter), seen.min(), seen.max()
    if reach and sign >= 0:
        low = max(low, quarter - reach)
    if reach and sign <= 0:
        high = min(high, three + reach)
    return padded(float(min([low, *near])), float(max([high, *near])), 0.06)


def layout(
    title: str, alt: str, *, order: int, note: str = "", wide: bool = False, tall: bool = False, logs: bool = False,
    heights: Mapping[str, int] | None = None, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """Return a layout. title: the heading on the page. alt: what the figure shows, in words. order: its position there.

    note: the text above it. wide: over the whole page. tall: as high on a narrow page. logs: with a button for a
    logarithmic axis. heights: pixels of the panels that differ from the default, by their x axes. more: other parts of
    a Plotly layout.
    """
    font = {"family": FONT, "size": 13, "color": INK}
    return {
        "template": "none", "font": font, "paper_bgcolor": PAPER, "plot_bgcolor": PAPER,
        "margin": {"l": 68, "r": 24, "t": 46, "b": 56}, "hovermode": "closest",
        "hoverlabel": {"bgcolor": PAPER, "bordercolor": MUTED, "align": "left", "font": font},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "meta": {
            "title": title, "alt": alt, "note": note, "order": order, "wide": wide, "tall": tall, "logs": logs,
            **({"heights": heights} if heights else {}),
        },
        **more,
    }  # fmt: skip


def nothing(text: str) -> dict[str, Any]:
    return {
        "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "text": text, "showarrow": False,
        "font": {"color": MUTED, "size": 16},
    }  # fmt: skip


def figure(data: list[Trace], title: str, alt: str, **laid: Any) -> Spec:
    """Return a figure of these traces as plain data. The other arguments are those of `layout`."""
    return {"data": data, "layout": layout(title, alt, **laid)}


def empty(title: str, text: str, order: int) -> Spec:
    return figure([], title, text, order=order, annotations=[nothing(text)])
