"""Shared parts of the figures of docs/experiments: mean curves and their legend, in the style of the site's figures.

With `--svg` a script writes docs/experiments/figures/NAME.svg; NAME starts with the name of the script. Figures have
the axes of the paper's.
"""

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
INTO = ROOT / "docs" / "experiments" / "figures"
COLOURS = ("one", "two", "three", "four", "ink", "quiet")
DASHES = ("", "5 3", "1.5 2.5")  # further curves have the colours again, broken

sys.path.insert(0, str(ROOT / "docs" / "figures"))
from drawing import Panel, Sheet  # noqa: E402


def looks(names: Iterable[str]) -> dict[str, dict[str, str]]:
    """A colour and a dash for each name, in this order."""
    return {
        name: {"name": COLOURS[i % len(COLOURS)], "dash": DASHES[i // len(COLOURS) % len(DASHES)]}
        for i, name in enumerate(names)
    }


def means(panel: Panel, x: np.ndarray, runs: Mapping[str, np.ndarray]) -> None:
    """Means of (runs, points) values over x (points,), with bands of one standard error, inside the panel's axes.

    A point at which a run has no value yet (NaN) is left out.
    """
    for name, look in looks(runs).items():
        values = np.asarray(runs[name], dtype=float)
        mean = values.mean(axis=0)
        error = values.std(axis=0, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.zeros_like(mean)
        known = np.isfinite(mean) & (x >= panel.x[0]) & (x <= panel.x[1])
        low, middle, high = (np.clip(part[known], *panel.y) for part in (mean - error, mean, mean + error))
        if known.any():
            panel.band(x[known].tolist(), low.tolist(), high.tolist(), look["name"], 0.12)
            panel.line(x[known].tolist(), middle.tolist(), look["name"], 2, look["dash"])


def legend(sheet: Sheet, names: Iterable[str], left: float = 56) -> None:
    """The names beneath the panels, in as many rows as they need: see `rows` of `panel`."""
    looked = looks(names)
    room = sheet.width - left - 10
    rows: list[list[str]] = [[]]
    for name in looked:
        if sum(map(_wide, [*rows[-1], name])) > room and rows[-1]:
            rows.append([])
        rows[-1].append(name)
    panel = Panel(0, 0, sheet.width, sheet.height, (0, sheet.width), (0, sheet.height))
    for i, row in enumerate(rows):
        at, up = left, 10 + 18 * (len(rows) - 1 - i)
        for name in row:
            panel.line([at, at + 18], [up + 4, up + 4], looked[name]["name"], 2.5, looked[name]["dash"])
            panel.note(at + 24, up, name)
            at += _wide(name)
    sheet.panels.append(panel)


def _wide(name: str) -> float:
    return 24 + 7 * len(name) + 18


def panel(
    sheet: Sheet, left: float, wide: float, x: tuple[float, float], y: tuple[float, float], rows: int = 1, **more: Any
) -> Panel:
    """Return a panel as `Sheet.panel`, with space for a legend of so many rows below it."""
    made = sheet.panel(left, wide, x, y, **more)
    made.height -= 8 + 18 * rows
    return made


def write(sheet: Sheet) -> None:
    """Write the file, and print its path."""
    INTO.mkdir(parents=True, exist_ok=True)
    print(f"figure: {sheet.write(INTO).relative_to(ROOT)}")
