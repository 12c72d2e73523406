"""What all figures share: plain data in Plotly's form, axes, and the step to a figure of Plotly's own."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from haltune.display.terminal import visible
from haltune.errors import installing
from haltune.space import Space
from haltune.space.domains import Choice, Float, Int

from ..palette import FONT, INK, MUTED, PAPER, RULE

if TYPE_CHECKING:
    import plotly.graph_objects as go

Spec = dict[str, Any]  # {"data": [traces], "layout": {...}}, as Plotly's JSON has them
_MARKED_NUMBERS = 12  # whole numbers, each of which has its mark on an axis
_PANEL = 250  # pixels that a panel is high among others, where nothing else is said
_BELOW = 70  # pixels for the marks and the name of an axis between two rows
_BESIDE = 0.08  # of the width, for those between two columns
_LINE = 34  # letters of an axis's name
AXIS = {"gridcolor": RULE, "zeroline": False, "linecolor": RULE, "ticks": "", "tickfont": {"color": MUTED}}


def plotly() -> Any:
    """Plotly's graph objects. Raises ImportError saying how to get them."""
    try:
        import plotly.graph_objects as graph
    except ImportError:
        raise ImportError(f"haltune.report draws with Plotly: {installing('report')}") from None
    return graph


def drawn(spec: Spec) -> go.Figure:
    """The figure that a specification describes. Raises ImportError without Plotly."""
    data = [_told_apart(trace) for trace in spec["data"]]
    figure: go.Figure = plotly().Figure({"data": data, "layout": _side_by_side(spec["layout"])})
    return figure


def _told_apart(trace: dict[str, Any]) -> dict[str, Any]:
    """A trace whose marks Plotly draws all: of those with one id, as a page has for a trial, it draws one."""
    ids = trace.get("ids", ())
    return trace if len(set(ids)) == len(ids) else {name: v for name, v in trace.items() if name != "ids"}


def _side_by_side(laid: dict[str, Any]) -> dict[str, Any]:
    """A layout with places for its panels, at most three a row, each as high as on the page; the page has its own.

    Where some have heights of their own each stands on a row.
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
        across = [column / columns + _BESIDE * (column > 0), (column + 1) / columns]
        top = 1 - (sum(high[:row]) + _BELOW * row) / inside
        along = [max(0.0, top - high[row] / inside), top]
        found[f"xaxis{number}"] = {**laid[f"xaxis{number}"], "domain": across}
        found[f"yaxis{number}"] = {**_folded(laid[f"yaxis{number}"]), "domain": along, "automargin": True}
    return found


def _folded(laid: dict[str, Any]) -> dict[str, Any]:
    """An axis whose title is in lines that are no longer than a panel is high."""
    title = laid.get("title", {})
    lines = textwrap.wrap(title.get("text", ""), _LINE, break_long_words=False, break_on_hyphens=False)
    return {**laid, "title": {**title, "text": "<br>".join(lines), "font": {"size": 13}}}


def time_unit(seconds: float) -> tuple[float, str]:
    """(its length in seconds, its name) of the unit that an axis of so much time is in."""
    return (3600.0, "hours") if seconds > 7200 else (60.0, "minutes") if seconds > 180 else (1.0, "seconds")


def axis(title: str = "", **more: Any) -> dict[str, Any]:
    """An axis; its title is markup as Plotly reads it."""
    return {**AXIS, "title": {"text": title, "standoff": 10}, **more}


def scale_of(space: Space, name: str) -> dict[str, Any]:
    """Of the axis of a parameter: a logarithmic one where that is, options in their order, whole numbers whole."""
    domain = space.parameters[name]
    if isinstance(domain, Choice) and all(isinstance(on_axis(option), str) for option in domain.options):
        return {"type": "category", "categoryarray": [on_axis(option) for option in domain.options]}
    if isinstance(domain, Float | Int) and domain.log:
        return {"type": "log", "exponentformat": "e"}
    if not isinstance(domain, Int) or isinstance(domain.low, str) or isinstance(domain.high, str):
        return {}
    return {"dtick": 1} if domain.high - domain.low <= _MARKED_NUMBERS else {}


def plotly_text(text: object) -> str:
    """Text for Plotly, which reads a few HTML tags and entities but not &quot;."""
    return html.escape(visible(text), quote=False)


def on_axis(value: Any) -> Any:
    """A parameter's value as a place on an axis: a number, or a text."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else plotly_text(value)


def layout(
    title: str, alt: str, *, order: int, note: str = "", wide: bool = False, tall: bool = False, logs: bool = False,
    heights: Mapping[str, int] | None = None, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """A layout. title, note: what a page writes above it; alt: what it shows, in words; order: its place on a page.

    wide: over the whole width of a page. tall: as high as it says, however narrow. logs: with a button for logarithms.
    heights: of panels, by their first axes, that are not as high as the others.
    """
    meta = {
        "title": title,
        "alt": alt,
        "note": note,
        "order": order,
        "wide": wide,
        "tall": tall,
        "logs": logs,
        **({"heights": heights} if heights else {}),
    }
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
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},
        "meta": meta,
        **more,
    }


def nothing(text: str) -> dict[str, Any]:
    """An annotation for a figure that has nothing to show."""
    return {
        "x": 0.5, "y": 0.5, "xref": "paper", "yref": "paper", "text": text, "showarrow": False,
        "font": {"color": MUTED, "size": 16},
    }  # fmt: skip
