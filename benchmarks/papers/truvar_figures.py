"""What the figures of the TruVaR benchmarks share: panels of mean curves with bands of one standard error."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")  # Okabe and Ito


def panels(titles: list[str], **layout: Any) -> Any:
    """An empty figure of panels side by side, or None, said so, when Plotly is missing."""
    try:
        from plotly.subplots import make_subplots
    except ImportError:
        print("\nno figure: it needs Plotly, pip install 'haltune[report]'")
        return None
    figure = make_subplots(1, len(titles), subplot_titles=titles, horizontal_spacing=0.08)
    size = {"width": 200 + 440 * len(titles), "height": 500}
    figure.update_layout(template="plotly_white", legend={"orientation": "h", "y": -0.18}, **(size | layout))
    return figure


def curves(
    figure: Any, column: int, x: np.ndarray, runs: Mapping[str, np.ndarray], titles: tuple[str, str]
) -> None:
    """Means of (runs, points) values over x (points,), as lines with bands, in a panel with these axis titles."""
    for (name, values), colour in zip(runs.items(), COLOURS, strict=False):
        mean, error = (
            values.mean(axis=0),
            values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0,
        )
        edge = np.concatenate([mean + error, (mean - error)[::-1]])
        figure.add_scatter(
            x=[*x, *x[::-1]], y=edge.tolist(), fill="toself", fillcolor=colour, opacity=0.15, line={"width": 0},
            hoverinfo="skip", showlegend=False, row=1, col=column,
        )  # fmt: skip
        line(figure, column, x, mean, name, colour, legend=column == 1)
    axes(figure, column, titles)


def line(
    figure: Any, column: int, x: np.ndarray, y: np.ndarray, name: str, colour: str, legend: bool
) -> None:
    """One curve."""
    look = {"color": colour, "width": 2}
    figure.add_scatter(
        x=list(x), y=list(y), name=name, line=look, mode="lines", showlegend=legend, row=1, col=column
    )


def axes(figure: Any, column: int, titles: tuple[str, str]) -> None:
    """Titles of a panel's axes."""
    figure.update_xaxes(title=titles[0], row=1, col=column)
    figure.update_yaxes(title=titles[1], row=1, col=column)


def save(figure: Any, path: Path) -> None:
    """A page that needs nothing else, and the figure's JSON beside it."""
    figure.write_html(path, include_plotlyjs=True)
    figure.write_json(path.with_suffix(".json"))
    print(f"\nfigure: {path}")
