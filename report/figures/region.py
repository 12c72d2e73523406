"""The level set of a search in two of its parameters: the region, its boundary, and what is undecided."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.words import plural
from haltune.errors import InvalidInput
from haltune.policies.truvar.answers.answers import LevelSet

from ..palette import ACCENT, FONT, INK, MUTED, PAPER, RULE
from .drawing import plotly
from .wording import plotly_text

if TYPE_CHECKING:
    import plotly.graph_objects as go

_KINDS = ((False, "settled", "circle"), (True, "undecided", "circle-open"))
_SCALE = [[0.0, "#c3cad1"], [0.5, "#f2c49b"], [1.0, ACCENT]]  # probability


def region(found: LevelSet, across: str | None = None, along: str | None = None) -> go.Figure:
    """Configurations by two parameters (by default the first two), coloured by their probability to reach it.

    Of those that differ in other parameters alone the likeliest; undecided ones are rings. On a mesh the boundary,
    probability 1/2, is a line. By the only parameter there is: what is expected of each, give or take a deviation.

    Args:
        found: What `study.level_set()` or `study.level_set(threshold)` told.
        across: The parameter from left to right. Default: None, the first.
        along: The one upwards. Default: None, the second, where there are two.

    Returns:
        A figure of Plotly's.

    Raises:
        InvalidInput: For names that are not two of the parameters.
        ImportError: When Plotly is missing.

    Example:
        See examples/08_levelset_lightning.py::

            region(study.level_set(), "width", "dropout").write_html("region.html")
    """
    graph = plotly()
    across, along = _axes(found, across, along)
    figure = graph.Figure(layout=_layout(found, across, along))
    if along is None:
        return _profile(graph, figure, found, across)
    xs, ys, field = found.boundary(across, along)
    if field.size and not np.isnan(field).any() and min(field.shape) > 1:
        line = {"start": 0.5, "end": 0.5, "size": 1, "coloring": "none"}
        figure.add_trace(graph.Contour(
            x=xs.tolist(), y=ys.tolist(), z=field.tolist(), contours=line, line={"color": INK, "width": 2},
            showscale=False, name="boundary", hoverinfo="skip",
        ))  # fmt: skip
    shown = _likeliest(found, across, along)
    for open_, name, symbol in _KINDS:
        chosen = [i for i in shown if found.open[i] == open_]
        figure.add_trace(graph.Scatter(_points(found, across, along, chosen, name, symbol)))
    return figure


def _axes(found: LevelSet, across: str | None, along: str | None) -> tuple[str, str | None]:
    """The parameters of the two axes; one that is not given is the first other there is."""
    names = [name for name in found.space.parameters if name in found.space.columns]
    if not {across, along} <= {*names, None} or (across is not None and across == along):
        raise InvalidInput(f"region({across!r}, {along!r}): two of the parameters {', '.join(names)}")
    if not names:
        raise InvalidInput("the space has no parameter that varies: there is no region to draw")
    across = across or next((name for name in names if name != along), names[0])
    others = [along, *names] if along else names
    return across, next((name for name in others if name != across), None)


def _profile(graph: Any, figure: go.Figure, found: LevelSet, across: str) -> go.Figure:
    """The mean and deviation by one parameter, and the threshold."""
    for open_, name, symbol in _KINDS:
        chosen = [i for i in range(len(found.configs)) if found.open[i] == open_]
        drawn = _points(found, across, None, chosen, name, symbol)
        bars = {"array": found.sd[chosen].tolist(), "color": MUTED, "thickness": 1, "width": 0}
        figure.add_trace(graph.Scatter({**drawn, "error_y": bars}))
    figure.add_hline(found.threshold, line={"color": INK, "width": 2})
    return figure


def _likeliest(found: LevelSet, across: str, along: str) -> list[int]:
    """Of the configurations at each point of the figure the one of highest probability."""
    best: dict[tuple[Any, Any], int] = {}
    for i in np.argsort(found.probability, kind="stable").tolist():
        config = found.configs[i]
        if across in config and along in config:
            best[(config[across], config[along])] = i
    return sorted(best.values())


def _points(
    found: LevelSet, across: str, along: str | None, chosen: list[int], name: str, symbol: str
) -> dict[str, Any]:
    hollow = symbol.endswith("open")
    marker = {
        "color": found.probability[chosen].tolist(), "cmin": 0.0, "cmax": 1.0, "colorscale": _SCALE,
        "symbol": symbol, "size": 8,
        "line": {"width": 2.0 if hollow else 0.5, **({} if hollow else {"color": MUTED})},
        "colorbar": {"title": "P(reaches it)", "thickness": 12}, "showscale": not hollow,
    }  # fmt: skip
    return {
        "x": [found.configs[i][across] for i in chosen],
        "y": [found.configs[i][along] if along else float(found.mean[i]) for i in chosen],
        "mode": "markers", "name": name, "marker": marker,
        "customdata": np.stack([found.probability, found.mean, found.sd], axis=1)[chosen].tolist(),
        "hovertemplate": "P = %{customdata[0]:.2f}, %{customdata[1]:.4g} ± %{customdata[2]:.2g}<extra></extra>",
    }  # fmt: skip


def _layout(found: LevelSet, across: str, along: str | None) -> dict[str, Any]:
    side = "at least" if found.larger else "at most"
    others = len(set(found.space.columns) - {across, along})
    more = f", at the likeliest of {plural(others, 'other parameter')}" if others else ""
    axes = {
        f"{axis}axis": {
            "title": plotly_text(name or found.metric), "gridcolor": RULE, "zeroline": False,
            "exponentformat": "power", **_scale(found, name),
        }
        for axis, name in (("x", across), ("y", along))
    }  # fmt: skip
    return {
        **axes, "title": {"text": f"Where {plotly_text(found.metric)} is {side} {found.threshold:.4g}{more}"},
        "paper_bgcolor": PAPER, "plot_bgcolor": PAPER, "font": {"family": FONT, "color": INK},
        "width": 760, "height": 560, "legend": {"orientation": "h", "y": -0.18, "font": {"color": MUTED}},
    }  # fmt: skip


def _scale(found: LevelSet, name: str | None) -> dict[str, Any]:
    """A logarithmic axis for a parameter that is, with plain numbers where it spans less than two decades."""
    if name is None or not getattr(found.space.parameters[name], "log", False):
        return {}
    values = [config[name] for config in found.configs if name in config]
    low, high = min(values), max(values)
    if high >= 100 * low:
        return {"type": "log"}
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**k for k in decades for m in (1, 2, 5) if low <= m * 10.0**k <= high]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
