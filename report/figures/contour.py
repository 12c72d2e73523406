"""How good two parameters are together, by the model of the search: any two of those that matter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np

from haltune._utils.words import short
from haltune.errors import InvalidInput

from ..digest import Digest, Source, digest
from ..metric_model import MetricModel
from ..palette import COOL, COOL_SOFT, RULE
from ..sample import MOST_TRIALS, shown_trials
from .drawing import Spec, axis, drawn, layout, nothing, on_axis, plotly_text, scale_of
from .importance import TOO_FEW, floor_of, place_of, trial_dots

if TYPE_CHECKING:
    import plotly.graph_objects as go

_PARAMETERS = 5  # of which any two are shown: ten pairs
_LEVELS = 12  # of each: ten pairs are to be made in half a second
_DOTS = 200  # trials that are shown where there are several pairs
_HEAT: list[tuple[float, str]] = [(0.0, RULE), (0.5, COOL_SOFT), (1.0, COOL)]  # the worst, between, the best


def contour(study: Source, across: str | None = None, along: str | None = None) -> go.Figure:
    """What is expected over two parameters, the others averaged, and where the trials were.

    Without names every pair of the five parameters that matter most, to choose from by a list.

    Args:
        study: A Study, or its history. A study is read up to its newest event.
        across: The parameter from left to right. Default: None, any of the most important ones, that first.
        along: The one upwards. Default: None, the most important other.

    Returns:
        A figure of Plotly's.

    Raises:
        ImportError: When Plotly is missing, saying how to get it.
        InvalidInput: For what is no study, and for names that are not two of its parameters.

    Example:
        See docs/guide.md::

            contour(study)
    """
    facts = digest(study, MOST_TRIALS)
    known = list(facts.problem.space.columns)
    given = [name for name in (across, along) if name is not None]
    if not set(given) <= set(known) or len(set(given)) < len(given):
        raise InvalidInput(f"contour({across!r}, {along!r}): two of the parameters {', '.join(known)}")
    model = MetricModel.of(facts.history)
    ranked = model.importance().names if model else tuple(known)
    if not given:
        return drawn(contour_spec(facts, model, ranked))
    other = next((name for name in ranked if name not in given), None)
    return drawn(contour_spec(facts, model, [across or other, along or other]))


def contour_spec(facts: Digest, model: MetricModel | None, names: Sequence[str | None]) -> Spec:
    """`contour` as plain data: the pairs of the first few of these parameters, that of the first two first."""
    known = [name for name in names[:_PARAMETERS] if name is not None]
    pairs = list(combinations(known, 2))
    if len(pairs) > 1 and len(facts.rows) > _DOTS:  # each pair has its own places for them
        shown = set(shown_trials(facts.history, _DOTS))
        facts = replace(facts, rows=tuple(row for row in facts.rows if row.record.id in shown))
    if model is None or not pairs:
        return _empty(
            "Two parameters", TOO_FEW if len(known) > 1 or model is None else "There is one parameter alone"
        )
    views = [_Pair(facts, model, *pair) for pair in pairs if _have_both(facts, *pair)]
    if not views:
        apart = " and ".join(pairs[0])
        return _empty("Two parameters", f"no trial with a value has both {apart}")
    first = views[0]
    metric, goal = plotly_text(facts.problem.goal.metric), facts.problem.goal
    heat = {
        "type": "heatmap", "x": first.places[0][0], "y": first.places[1][0], "z": first.z, "text": first.interval,
        "colorscale": _HEAT if goal.sign > 0 else [(1 - at, colour) for at, colour in reversed(_HEAT)],
        "showscale": False, "name": "expected", "meta": [metric],
        "hovertemplate": "%{meta[0]} %{z:.4~g} expected<br>90% interval: %{text}<extra></extra>",
    }  # fmt: skip
    buttons = [view.button() for view in views]
    menus = [{"type": "dropdown", "name": "two parameters", "buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02,
              "yanchor": "bottom"}]  # fmt: skip
    return {
        "data": [heat, trial_dots(facts, first.across, first.along, metric)],
        "layout": layout(
            "Two parameters", first.alt, order=35, showlegend=False,
            note=f"The {goal.metric} expected of a full training, by two parameters, with the others averaged: the "
            f"bluer, the better.{' The two that matter most come first.' * (len(views) > 1)} A cell is empty if one of "
            f"them has no value there, or if its 90% interval covers all that the map shows.{floor_of(model)}",
            xaxis=axis(plotly_text(first.across), **scale_of(facts.problem.space, first.across)),
            yaxis=axis(plotly_text(first.along), **scale_of(facts.problem.space, first.along)),
            updatemenus=menus if len(views) > 1 else [],
        ),
    }  # fmt: skip


class _Pair:
    """A pair of parameters."""

    def __init__(self, facts: Digest, model: MetricModel, across: str, along: str) -> None:
        found = model.contour(across, along, _LEVELS)
        self.across, self.along = across, along
        self.alt = f"The {facts.problem.goal.metric} expected over {across} and {along}."
        shown = np.where(found.known, found.mean, np.nan)
        self.z = [[float(f"{z:.4g}") if math.isfinite(z) else None for z in row] for row in shown.tolist()]
        ends = zip(found.low.tolist(), found.high.tolist(), strict=True)
        self.interval = [
            [f"{short(a, 3)} to {short(b, 3)}" for a, b in zip(*row, strict=True)] for row in ends
        ]
        rows = [r for r in facts.rows if r.value is not None and math.isfinite(r.value)]
        self.places = [
            ([on_axis(value) for value in cells], [place_of(r, name) for r in rows])
            for cells, name in ((found.across, across), (found.along, along))
        ]
        self.scales = [scale_of(facts.problem.space, name) for name in (across, along)]

    def button(self) -> dict[str, Any]:
        """What shows it instead of another."""
        changed = {"x": self.places[0], "y": self.places[1], "z": [self.z], "text": [self.interval]}
        laid: dict[str, Any] = {"meta.alt": self.alt}
        for which, name, scale, (cells, _) in zip(
            "xy", (self.across, self.along), self.scales, self.places, strict=True
        ):
            words = any(isinstance(cell, str) for cell in cells)
            told = {"type": "category" if words else "linear", "categoryarray": None, "dtick": None, **scale}
            told |= {"title.text": plotly_text(name), "autorange": True}
            laid |= {f"{which}axis.{key}": value for key, value in told.items()}
        return {
            "label": plotly_text(f"{self.across} and {self.along}"), "method": "update", "args": [changed, laid],
        }  # fmt: skip


def _have_both(facts: Digest, across: str, along: str) -> bool:
    """Whether a trial with a value has both."""
    valued = (r for r in facts.rows if r.value is not None and math.isfinite(r.value))
    return any(place_of(r, across) is not None and place_of(r, along) is not None for r in valued)


def _empty(title: str, why: str) -> Spec:
    return {
        "data": [],
        "layout": layout(title, plotly_text(why), order=35, annotations=[nothing(plotly_text(why))]),
    }
