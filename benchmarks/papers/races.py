"""Searches side by side: the error of the best configuration so far by cost.

The incumbent is the configuration with the smallest validation error at any resource (line 11 of Hyperband), and
its test error is what the figures of the paper show. Errors are steps: they hold from a report to the next.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from drawn import Sheet, legend, means, panel, write
from numpy.typing import NDArray

Array = NDArray[np.float64]
Measure = Literal["validation", "test"]
COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#cc79a7", "#1c2530", "#8a949e")
BOLD = {"Hyperband": "#d55e00"}
TICKS = (0.5, 1, 2, 3, 5, 10, 20, 30, 50, 100)  # %


@dataclass
class Progress:
    """One search: after each report what was spent, and the errors of the incumbent."""

    spent: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    test: list[float] = field(default_factory=list)

    def add(self, spent: float, error: float, test: float | Callable[[], float]) -> None:
        """Add a validation error; if it is the smallest, call `test`."""
        best = self.validation[-1] if self.validation else float("inf")
        better = error < best  # NaN never is
        self.spent.append(spent)
        self.validation.append(error if better else best)
        tested = test() if better and callable(test) else test
        self.test.append(float(tested) if better else self.test[-1] if self.test else float("nan"))

    def at(self, spent: Array, measure: Measure) -> Array:
        """The incumbent's error when so much was spent; NaN before there is one."""
        after = np.searchsorted(self.spent, np.asarray(spent) * (1 + 1e-12), side="right")
        values = np.array([np.nan, *getattr(self, measure)])[after]
        return np.where(np.isfinite(values), values, np.nan)

    def until(self, spent: float) -> Progress:
        """Return the progress at this cost."""
        n = int(np.searchsorted(self.spent, spent * (1 + 1e-12), side="right"))
        return Progress(self.spent[:n], self.validation[:n], self.test[:n])

    def reaches(self, level: float, measure: Measure) -> float | None:
        """Return the cost from which on the error stays at `level` or below; None if it never does."""
        above = np.flatnonzero(~(np.array(getattr(self, measure)) <= level + 1e-12))
        first = int(above[-1]) + 1 if len(above) else 0
        return self.spent[first] if first < len(self.spent) else None


Runs = Mapping[str, Sequence[Progress]]  # method -> a search a seed


def mean_of(runs: Sequence[Progress], spent: Array, measure: Measure) -> tuple[Array, Array]:
    """Mean and standard error over seeds; NaN until all have an incumbent."""
    errors = np.array([run.at(spent, measure) for run in runs])
    spread = errors.std(axis=0, ddof=1) / np.sqrt(len(errors)) if len(errors) > 1 else 0.0 * errors[0]
    return errors.mean(axis=0), spread


def mean_reaches(runs: Sequence[Progress], level: float, measure: Measure) -> float | None:
    """Return the same as Progress.reaches, for the mean over seeds."""
    spent = np.unique(np.concatenate([run.spent for run in runs]))
    mean, _ = mean_of(runs, spent, measure)
    whole = Progress(list(spent), **{"validation": [], "test": [], measure: list(mean)})
    return whole.reaches(level, measure)


def table(runs: Runs, marks: Sequence[float], unit: str, measure: Measure) -> str:
    """Mean errors in % where so much was spent, with their standard errors."""
    seeds = max(len(of) for of in runs.values())
    head = "".join(f"{f'{mark:g} {unit}':>14s}" for mark in marks)
    lines = [f"{measure} error of the incumbent in %, {seeds} seeds", f"{'':26s}{head}"]
    for name, of in runs.items():
        mean, spread = mean_of(of, np.array(marks), measure)
        cells = (f"{100 * m:8.2f} ± {100 * s:3.2f}" if m == m else " " * 14 for m, s in zip(mean, spread, strict=True))
        lines.append(f"{name:26s}" + "".join(cells))
    return "\n".join(lines)


def draw(runs: Runs, path: Path, title: str, axis: str, scale: Literal["linear", "log"] = "linear") -> None:
    """Mean test errors with a band of one standard error, on one page. Says so when Plotly is missing."""
    try:
        import plotly.graph_objects as go
    except ImportError:
        print("no figure: it needs Plotly, pip install 'haltune[report]'", file=sys.stderr)
        return
    figure = go.Figure()
    colours = iter(COLOURS)
    for name, of in runs.items():
        colour = BOLD.get(name) or next(colours)
        spent = _grid(of, scale)
        mean, spread = (100 * part for part in mean_of(of, spent, "test"))
        known = np.isfinite(mean)
        spent, mean, spread = (part[known].tolist() for part in (spent, mean, spread))
        low, high = ([max(0.1, m + sign * s) for m, s in zip(mean, spread, strict=True)] for sign in (-1, 1))
        figure.add_scatter(
            x=spent + spent[::-1], y=low + high[::-1], fill="toself", mode="none", fillcolor=colour, opacity=0.12,
            hoverinfo="skip", showlegend=False, legendgroup=name,
        )  # fmt: skip
        line = {"color": colour, "width": 3.5 if name in BOLD else 1.8}
        figure.add_scatter(x=spent, y=mean, name=name, line=line, legendgroup=name, mode="lines")
    figure.update_layout(
        template="plotly_white", width=900, height=560, title=title, hovermode="x unified",
        xaxis={"title": axis, "type": scale, "dtick": 1 if scale == "log" else None},
        yaxis={"title": "test error of the best so far, %", "type": "log", "tickvals": TICKS},
        legend={"x": 0.99, "y": 0.99, "xanchor": "right"},
    )  # fmt: skip
    figure.write_html(path, include_plotlyjs=True)
    print(f"figure: {path}")


@dataclass(frozen=True)
class Axes:
    """Axes of a figure for docs/experiments."""

    x: str  # what was spent
    xs: Sequence[float]  # ticks; the first and the last are the ends
    ys: Sequence[float]  # likewise, test errors in %
    scale: Literal["linear", "log"] = "linear"


def figure(runs: Runs, name: str, title: str, axes: Axes) -> None:
    """Mean test errors with a band of one standard error, until the first search of a method ended."""
    ends = (axes.xs[0], axes.xs[-1])
    spent = np.geomspace(*ends, 160) if axes.scale == "log" else np.linspace(*ends, 160)
    errors = {}
    for method, of in runs.items():
        over = spent > min(run.spent[-1] for run in of) * (1 + 1e-9)
        errors[method] = np.where(over, np.nan, 100.0 * np.array([run.at(spent, "test") for run in of]))
    alt = f"{title}: the test error of {', '.join(runs)} by cost."
    sheet = Sheet(name, alt, width=760, height=420)
    made = panel(sheet, 56, 680, ends, (axes.ys[0], axes.ys[-1]), rows=2, log_x=axes.scale == "log", log_y=True)
    made.axes(title, axes.x, "test error of the best so far, %", axes.xs, axes.ys)
    means(made, spent, errors)
    legend(sheet, runs)
    write(sheet)


def _grid(runs: Sequence[Progress], scale: str, points: int = 400) -> Array:
    """Return the range of a mean curve: from the epoch at which all have a report to the last report."""
    first, last = min(run.spent[0] for run in runs), max(run.spent[-1] for run in runs)
    return np.geomspace(first, last, points) if scale == "log" else np.linspace(first, last, points)
