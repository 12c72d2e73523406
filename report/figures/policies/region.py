"""TruVaR's sets in two of the parameters: what reaches a threshold and what is undecided, or what may be the best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.words import plural
from haltune.errors import InvalidInput
from haltune.log.policy import in_words
from haltune.policies.truvar.answers import LevelSet, Maximisers
from haltune.policies.truvar.members import MemberSet
from haltune.study.results import Results

from ...palette import COOL, COOL_SOFT, FAINT, INK, MUTED
from ..drawing import Spec, axis, drawn, layout, on_axis, plotly_text, scale_of

if TYPE_CHECKING:
    import plotly.graph_objects as go

_KINDS = ((False, "settled", "circle"), (True, "undecided", "circle-open"))
_SCALE = [[0.0, FAINT], [0.5, COOL_SOFT], [1.0, COOL]]  # probability
_CANDIDATES = [[0.0, COOL_SOFT], [1.0, COOL]]  # likewise: over points that are faint
_LEGEND = {"legend": {"orientation": "h", "y": -0.18, "font": {"color": MUTED}}}


def region(
    found: LevelSet | Maximisers | Results, across: str | None = None, along: str | None = None
) -> go.Figure:
    """Configurations by two parameters (by default the first two), coloured by their probability.

    Of a level set by that to reach the threshold; undecided ones are rings, and on a mesh the boundary, probability
    1/2, is a line. Of what may be the best by that to be it; what cannot be any more is faint. Of those that differ in
    other parameters alone the likeliest is shown. By the only parameter there is: what is expected of each, give or
    take a deviation.

    Args:
        found: What `study.level_set()`, `study.level_set(threshold)` or `study.maximisers()` returned; or a study by
            TruVaR, for what it searches.
        across: The parameter from left to right. Default: None, the first.
        along: The one upwards. Default: None, the second, where there are two.

    Returns:
        A figure of Plotly's.

    Raises:
        InvalidInput: For names that are not two of the parameters, and for a study by another policy.
        ImportError: When Plotly is missing.

    Example:
        See examples/08_levelset_lightning.py::

            region(study.level_set(), "width", "dropout").write_html("region.html")
    """
    spec = region_spec(answer_of(found) if isinstance(found, Results) else found, across, along)
    figure = drawn(spec)
    figure.update_layout(title={"text": spec["layout"]["meta"]["title"]}, width=760, height=560)
    return figure


def answer_of(study: Results) -> LevelSet | Maximisers:
    """What a study's own policy searches. Raises InvalidInput where it searches neither, or it is too early to say."""
    searches = study.policy.part(MemberSet)
    if searches is None:
        raise InvalidInput(
            f"region(study) draws what TruVaR searches, and this one is by {in_words(study.policy)}: "
            "region(study.level_set(0.9)) draws where any reaches 0.9, region(study.maximisers()) what may be the best"
        )
    return study.level_set() if searches.sets else study.maximisers()


def region_spec(found: LevelSet | Maximisers, across: str | None = None, along: str | None = None) -> Spec:
    """The same as plain data. Raises InvalidInput for names that are not two of the parameters."""
    across, along = _axes(found, across, along)
    if isinstance(found, Maximisers):
        return {
            "data": _candidates(found, across, along),
            "layout": _layout_of_the_best(found, across, along),
        }
    if along is None:
        traces = [_with_bars(found, across, *kind) for kind in _KINDS]
    else:
        shown = _likeliest(found, across, along)
        traces = _boundary(found, across, along)
        for open_, name, symbol in _KINDS:
            chosen = [i for i in shown if found.open[i] == open_]
            traces.append(_points(found, across, along, chosen, name, symbol))
    return {"data": traces, "layout": _layout(found, across, along, traces[0]["type"] == "contour")}


def _boundary(found: LevelSet, across: str, along: str) -> list[dict[str, Any]]:
    """Where the probability is a half, on a mesh."""
    xs, ys, field = found.boundary(across, along)
    if not field.size or np.isnan(field).any() or min(field.shape) < 2:
        return []
    return [{
        "type": "contour", "x": xs.tolist(), "y": ys.tolist(), "z": np.round(field, 4).tolist(), "showscale": False,
        "contours": {"start": 0.5, "end": 0.5, "size": 1, "coloring": "none"}, "name": "boundary",
        "showlegend": False,
        "line": {"color": INK, "width": 2}, "hoverinfo": "skip",
    }]  # fmt: skip


def _axes(found: LevelSet | Maximisers, across: str | None, along: str | None) -> tuple[str, str | None]:
    """The parameters of the two axes; one that is not given is the first other there is."""
    names = [name for name in found.space.parameters if name in found.space.columns]
    if not {across, along} <= {*names, None} or (across is not None and across == along):
        raise InvalidInput(f"region({across!r}, {along!r}): two of the parameters {', '.join(names)}")
    if not names:
        raise InvalidInput("the space has no parameter that varies: there is no region to draw")
    across = across or next((name for name in names if name != along), names[0])
    others = [along, *names] if along else names
    return across, next((name for name in others if name != across), None)


def _candidates(found: Maximisers, across: str, along: str | None) -> list[dict[str, Any]]:
    """What may be the best, over what cannot be any more."""
    there = [
        (c, m) for c, m in zip(found.others, found.others_mean, strict=True) if {across, along} <= {*c, None}
    ]
    cannot = {
        "type": "scatter", "mode": "markers", "name": "not the best", "showlegend": bool(there), "hoverinfo": "skip",
        "x": [on_axis(config[across]) for config, _ in there],
        "y": [on_axis(config[along]) if along else float(mean) for config, mean in there],
        "marker": {"size": 4, "color": MUTED, "opacity": 0.5},
    }  # fmt: skip
    chosen = _likeliest(found, across, along)
    may = _points(found, across, along, chosen, "may be the best", "circle")
    return [cannot, may if along else {**may, "error_y": _bars(found, chosen)}]


def _with_bars(found: LevelSet, across: str, open_: bool, name: str, symbol: str) -> dict[str, Any]:
    """The mean and deviation by one parameter."""
    chosen = [i for i in range(len(found.configs)) if found.open[i] == open_]
    return {**_points(found, across, None, chosen, name, symbol), "error_y": _bars(found, chosen)}


def _bars(found: LevelSet | Maximisers, chosen: Sequence[int]) -> dict[str, Any]:
    return {"array": found.sd[list(chosen)].tolist(), "color": MUTED, "thickness": 1, "width": 0}


def _likeliest(found: LevelSet | Maximisers, across: str, along: str | None) -> list[int]:
    """Of the configurations at each point of the figure the one of highest probability."""
    best: dict[tuple[Any, Any], int] = {}
    for i in np.argsort(found.probability, kind="stable").tolist():
        config = found.configs[i]
        if {across, along} <= {*config, None}:
            best[(config[across], config[along] if along else None)] = i
    return sorted(best.values())


def _points(
    found: LevelSet | Maximisers, across: str, along: str | None, chosen: list[int], name: str, symbol: str
) -> dict[str, Any]:
    hollow, best = symbol.endswith("open"), isinstance(found, Maximisers)
    most = float(found.probability.max(initial=1e-9)) if best else 1.0
    marker = {
        "color": found.probability[chosen].tolist(), "cmin": 0.0, "cmax": most,
        "colorscale": _CANDIDATES if best else _SCALE,
        "symbol": symbol, "size": 8,
        "line": {"width": 2.0 if hollow else 0.5, **({} if hollow else {"color": MUTED})},
        "colorbar": {"title": "P(is the best)" if best else "P(reaches it)", "thickness": 12},
        "showscale": not hollow,
    }  # fmt: skip
    return {
        "type": "scatter", "x": [on_axis(found.configs[i][across]) for i in chosen],
        "y": [on_axis(found.configs[i][along]) if along else float(found.mean[i]) for i in chosen],
        "mode": "markers", "name": name, "marker": marker, "showlegend": bool(chosen),
        "customdata": np.stack([found.probability, found.mean, found.sd], axis=1)[chosen].tolist(),
        "hovertemplate": "P = %{customdata[0]:.2f}, %{customdata[1]:.4g} ± %{customdata[2]:.2g}<extra></extra>",
    }  # fmt: skip


def _layout_of_the_best(found: Maximisers, across: str, along: str | None) -> dict[str, Any]:
    count = plural(len(found.configs), "configuration")
    told = f"{count} of {len(found.configs) + len(found.others)} may be the best"
    close = f"the first is within {found.epsilon_at(0.95):.2g} of it with probability 0.95"
    return layout(
        "What may be the best", f"{told}; {close}.", order=5, wide=True,
        note=f"{told}, the others are faint; {close}. The bluer, the likelier to be the best.",
        **_named_axes(found, across, along),
    ) | _LEGEND  # fmt: skip


def _layout(found: LevelSet, across: str, along: str | None, bounded: bool) -> dict[str, Any]:
    side = "at least" if found.larger else "at most"
    others = len(set(found.space.columns) - {across, along})
    more = f", at the likeliest of {plural(others, 'other parameter')}" if others else ""
    line = {"type": "line", "xref": "x domain", "x0": 0.0, "x1": 1.0, "y0": found.threshold, "y1": found.threshold,
            "line": {"color": INK, "width": 2}}  # fmt: skip
    counts = f"{len(found.high)} configurations reach it, {len(found.low)} do not, {len(found.undecided)} are undecided"
    told = " The bluer, the likelier to reach it." if along else " The line is the threshold."
    told += " The line is where that is a half." if bounded else ""
    return layout(
        f"Where {plotly_text(found.metric)} is {side} {found.threshold:.4g}{more}", f"{counts}.", order=5, wide=True,
        note=f"{counts}, the rings.{told}",
        shapes=[] if along else [line], **_named_axes(found, across, along),
    ) | _LEGEND  # fmt: skip


def _named_axes(found: LevelSet | Maximisers, across: str, along: str | None) -> dict[str, Any]:
    return {
        f"{name}axis": axis(
            plotly_text(of or found.metric), **{"exponentformat": "power", **_scale(found, of)}
        )
        for name, of in (("x", across), ("y", along))
    }


def _scale(found: LevelSet | Maximisers, name: str | None) -> dict[str, Any]:
    """As `scale_of`, but with plain numbers on a logarithmic axis that spans less than two decades."""
    usual = {} if name is None else scale_of(found.space, name)
    if name is None or usual.get("type") != "log":
        return usual
    others = found.others if isinstance(found, Maximisers) else ()
    values = [config[name] for config in (*found.configs, *others) if name in config]
    low, high = min(values), max(values)
    if high >= 100 * low:
        return usual
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**k for k in decades for m in (1, 2, 5) if low <= m * 10.0**k <= high]
    return {"type": "log", "tickvals": ticks, "ticktext": [f"{tick:g}" for tick in ticks]}
