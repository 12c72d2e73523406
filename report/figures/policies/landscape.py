"""Three panels of what AutoBCT believes of configurations: of their score, of their cost, and of training each next."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from haltune._utils.arrays import Array
from haltune._utils.words import settings, short
from haltune.policies.autobct.policy import Training

from ...metric_model import line_through
from ...palette import ACCENT, COOL, COOL_SOFT, FAINT, INK, MUTED, PAPER, RULE
from ..drawing import on_axis, plotly_text, time_unit
from .beliefs import Beliefs

_LINE, _SURFACE = 41, 21  # values of a parameter
_LABELLED = 16  # points, at most, beside which their numbers are written
_BETTER = [(0.0, FAINT), (0.5, COOL_SOFT), (1.0, COOL)]
_DEARER = [(0.0, RULE), (1.0, MUTED)]
Trace = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Landscape:
    """Beliefs by one parameter, or over two."""

    found: Beliefs
    across: str
    along: str | None  # None: by one

    @cached_property
    def metric(self) -> str:
        """As Plotly reads it."""
        return plotly_text(self.found.history.problem.goal.metric)

    @cached_property
    def numbered(self) -> list[tuple[int, Training]]:
        """The trainings with a value that are at a place, by their numbers."""
        done = enumerate(self.found.assessment.done, 1)
        return [(k, t) for k, t in done if math.isfinite(t.value) and self.there(self.config(t))]

    @cached_property
    def unit(self) -> tuple[float, str]:
        """That costs are drawn in, and its name."""
        if self.found.assessment.own:
            return 1.0, "cost"
        return time_unit(max((t.seconds for _, t in self.numbered), default=0.0))

    def config(self, training: Training) -> Mapping[str, Any]:
        """That was trained."""
        return self.found.history.trial(training.trials[0]).config

    def there(self, config: Mapping[str, Any]) -> bool:
        """Whether a configuration has a place: its parameters are active."""
        return all(config.get(name) is not None for name in (self.across, self.along) if name)

    def traces(self) -> list[Trace]:
        """All, panel by panel."""
        expected = self._lines() if self.along is None else self._surfaces(self.along)
        return [*expected, *self._limit(), self._worth()]

    def _lines(self) -> list[Trace]:
        xs, points = line_through(self.found.history.problem.space, self.across, _LINE, self.found.last)
        unit = self.unit[0]
        cost, sd = (v / unit for v in self.found.cost(points))
        panels = (
            ("", self.found.score(points), [t.value for _, t in self.numbered]),
            ("2", (cost, cost - sd, cost + sd), [t.seconds / unit for _, t in self.numbered]),
        )
        return [
            trace
            for number, (mean, low, high), ys in panels
            for trace in (
                *_banded([on_axis(x) for x in xs], mean, low, high, number),
                self._trainings(ys, number),
            )
        ]

    def _surfaces(self, along: str) -> list[Trace]:
        space = self.found.history.problem.space
        (xs, right), (ys, up) = (
            line_through(space, n, _SURFACE, self.found.last) for n in (self.across, along)
        )
        points = np.repeat(right[None], len(up), axis=0)
        points[:, :, space.columns[along]] = up[:, None, space.columns[along]]
        flat = points.reshape(-1, space.dim)
        mean, low, high = self.found.score(flat)
        cost, sd = self.found.cost(flat)
        unit, word = self.unit
        better = _BETTER if self.found.history.problem.goal.sign > 0 else _turned(_BETTER)
        places = [on_axis(self.config(t)[along]) for _, t in self.numbered]
        found: list[Trace] = []
        for number, z, spread, scale, said in (
            ("", mean, np.abs(high - low) / 2, better, f"{self.metric} %{{z:.4~g}} expected"),
            ("2", cost / unit, sd / unit, _DEARER, f"%{{z:.3~g}} {word} expected"),
        ):
            heat = {
                "x": [on_axis(x) for x in xs],
                "y": [on_axis(y) for y in ys],
                "z": z.reshape(len(ys), -1).tolist(),
            }
            texts = [
                [f"give or take {short(s, 2)}" for s in row] for row in spread.reshape(len(ys), -1).tolist()
            ]
            found.append({
                "type": "heatmap", **heat, "colorscale": scale, "showscale": False, "showlegend": False, "text": texts,
                "hovertemplate": f"{said}<br>%{{text}}<extra></extra>", **panel(number),
            })  # fmt: skip
            found.append(self._trainings(places, number))
        return found

    def _trainings(self, ys: Sequence[Any], number: str) -> Trace:
        """The trainings at these heights, each with its number; over two parameters with the path between them."""
        places = [
            (on_axis(self.config(t)[self.across]), y) for (_, t), y in zip(self.numbered, ys, strict=True)
        ]
        walk = {"mode": "lines+markers+text", "line": {"color": INK, "width": 0.8, "dash": "dot"}}
        return {
            **self.marks(), "mode": "markers+text", "cliponaxis": False, **(walk if self.along else {}),
            "x": [x for x, _ in places], "y": [y for _, y in places],
            "text": _numbers([k for k, _ in self.numbered], places), "textposition": "top right",
            "showlegend": False, **panel(number),
        }  # fmt: skip

    def marks(self) -> Trace:
        """Marks of the trainings, without places: the best in colour, and what is said of each."""
        best = self.found.history.best()
        leads = [best is not None and best.trial in t.trials for _, t in self.numbered]
        return {
            "type": "scatter", "name": "seen", "ids": [f"trial-{t.trials[0]}" for _, t in self.numbered],
            "marker": {"size": 8, "color": [ACCENT if led else INK for led in leads],
                       "line": {"color": PAPER, "width": 1}},
            "customdata": [
                [f"Training {k}, trial {t.trials[0]}", short(t.value), self.found.assessment.span(t.seconds),
                 plotly_text(settings(self.config(t)))]
                for k, t in self.numbered
            ],
            "meta": [self.metric],
            "hovertemplate": "<b>%{customdata[0]}</b><br>%{meta[0]} %{customdata[1]} for %{customdata[2]}"
            "<br>%{customdata[3]}<extra></extra>",
        }  # fmt: skip

    def _worth(self) -> Trace:
        """What training each control next is worth; those for which it does not pay are rings."""
        worth, configs = self.found.worth, self.found.assessment.controls.configs
        kept = [i for i in np.flatnonzero(np.isfinite(worth)).tolist() if self.there(configs[i])]
        last = -math.inf if self.found.now.last is None else self.found.now.last
        raw = self.found.raw(worth[kept]).tolist()
        xs = [on_axis(configs[i][self.across]) for i in kept]
        ys = raw if self.along is None else [on_axis(configs[i][self.along]) for i in kept]
        labels = {
            "mode": "markers+text",
            "cliponaxis": False,
            "text": [short(v) for v in raw],
            "textposition": "top right",
        }
        few = labels if self.along and len(kept) <= _LABELLED else {"mode": "markers"}
        coloured = {"color": worth[kept].tolist(), "colorscale": _BETTER} if self.along else {"color": COOL}
        return {
            "type": "scatter", **few, "name": "worth", "x": xs, "y": ys, "showlegend": False,
            "marker": {"size": 11 if self.along else 6, **coloured,
                       "symbol": ["circle" if worth[i] > last else "circle-open" for i in kept]},
            "customdata": [[short(v), plotly_text(settings(configs[i]))] for i, v in zip(kept, raw, strict=True)],
            "meta": [self.metric],
            "hovertemplate": "worth %{customdata[0]} of %{meta[0]}<br>%{customdata[1]}<extra></extra>", **panel("3"),
        }  # fmt: skip

    def _limit(self) -> list[Trace]:
        """By one parameter: the line that a training must be worth more than."""
        xs = line_through(self.found.history.problem.space, self.across, _LINE, self.found.last)[0]
        if self.found.now.last is None or self.along or not xs:
            return []
        y = float(self.found.raw(self.found.now.last)[0])
        return [{
            "type": "scatter", "mode": "lines", "name": "the last one", "showlegend": False, "hoverinfo": "skip",
            "x": [on_axis(xs[0]), on_axis(xs[-1])], "y": [y, y], "line": {"color": INK, "width": 1.5}, **panel("3"),
        }]  # fmt: skip


def panel(number: str) -> Trace:
    """The axes of a panel."""
    return {"xaxis": f"x{number}", "yaxis": f"y{number}"}


def _banded(xs: list[Any], mean: Array, low: Array, high: Array, number: str) -> list[Trace]:
    """A line within its band; diamonds with bars where a parameter has names for values."""
    shared = {"type": "scatter", "name": "expected", "showlegend": False, **panel(number)}
    said = "expected %{y:.4~g}<extra></extra>"
    if any(isinstance(x, str) for x in xs):
        bars = {"array": (np.abs(high - low) / 2).tolist(), "color": COOL, "thickness": 2, "width": 0}
        mark = {"symbol": "diamond", "size": 10, "color": COOL}
        return [{**shared, "mode": "markers", "x": xs, "y": mean.tolist(), "marker": mark,
                 "error_y": bars, "hovertemplate": said}]  # fmt: skip
    band = {
        **shared, "mode": "lines", "x": [*xs, *reversed(xs)], "y": [*high.tolist(), *low[::-1].tolist()],
        "fill": "toself", "fillcolor": COOL_SOFT, "line": {"width": 0, "color": COOL_SOFT}, "opacity": 0.6,
        "hoverinfo": "skip",
    }  # fmt: skip
    line = {**shared, "mode": "lines", "x": xs, "y": mean.tolist(), "line": {"color": COOL, "width": 2}}
    return [band, {**line, "hovertemplate": said}]


def _numbers(numbers: Sequence[int], places: Sequence[tuple[Any, Any]]) -> list[str]:
    """The number beside each place; those of several at one beside the last of them."""
    at: dict[tuple[Any, Any], list[int]] = {}
    for number, place in zip(numbers, places, strict=True):
        at.setdefault(place, []).append(number)
    return [
        ", ".join(map(str, at[p])) if at[p][-1] == n else "" for n, p in zip(numbers, places, strict=True)
    ]


def _turned(scale: list[tuple[float, str]]) -> list[tuple[float, str]]:
    return [(1.0 - at, colour) for at, colour in reversed(scale)]
