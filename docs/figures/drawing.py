"""A few lines, bands and points between two axes, as an SVG file that is small and takes the colours of the page.

Colours are names: "ink", "quiet", "faint", and "one" to "four". Alone the file stands on white paper. A script
that is called with `--into FOLDER` writes there.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

Numbers = Sequence[float]
FOLDER = Path(sys.argv[2]) if sys.argv[1:2] == ["--into"] else Path(__file__).parent
STYLE = """
.sheet { font: 13px system-ui, sans-serif; }
.sheet text { fill: var(--ink, #1f2430); } .sheet .quiet { fill: var(--quiet, #5b6472); }
.paper { fill: var(--paper, #fff); }
"""
COLOURS = {
    "ink": "#1f2430", "quiet": "#5b6472", "faint": "#e3e6eb", "paper": "#fff",
    "one": "#2f6fbf", "two": "#c2571a", "three": "#2e8b57", "four": "#8a4fa3",
}  # fmt: skip


def colour(name: str) -> str:
    """Return the colour of the page, or its own."""
    return f"var(--{name}, {COLOURS[name]})"


@dataclass
class Panel:
    """Two axes and what is drawn between them."""

    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    log_x: bool = False
    log_y: bool = False
    parts: list[str] = field(default_factory=list)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the position of a point on the sheet."""
        across = _share(x, *self.x, self.log_x)
        up = _share(y, *self.y, self.log_y)
        return round(self.left + across * self.width, 1), round(self.top + (1 - up) * self.height, 1)

    def axes(
        self, title: str, x: str, y: str, xs: Numbers, ys: Numbers, show: Callable[[float], str] = "{:g}".format
    ) -> None:
        """Frame, ticks and words."""
        bottom = self.top + self.height
        for value in xs:
            px, _ = self.at(value, self.y[0])
            self.parts.append(_path([(px, bottom), (px, bottom + 4)], "quiet", 1))
            self.parts.append(_text(px, bottom + 17, show(value), "middle", quiet=True))
        for value in ys:
            _, py = self.at(self.x[0], value)
            self.parts.insert(0, _path([(self.left, py), (self.left + self.width, py)], "faint", 1))
            self.parts.append(_text(self.left - 6, py + 4, show(value), "end", quiet=True))
        self.parts.append(_path([(self.left, bottom), (self.left + self.width, bottom)], "quiet", 1))
        self.parts.append(_text(self.left, self.top - 24, title, weight=600))
        self.parts.append(_text(self.left, self.top - 8, y, quiet=True))
        self.parts.append(_text(self.left + self.width / 2, bottom + 34, x, "middle", quiet=True))

    def line(
        self, xs: Numbers, ys: Numbers, name: str, width: float = 1.5, dash: str = "", opacity: float = 1.0
    ) -> None:
        """A line through points."""
        self.parts.append(_path([self.at(x, y) for x, y in zip(xs, ys, strict=True)], name, width, dash, opacity))

    def steps(self, xs: Numbers, ys: Numbers, name: str, width: float = 1.5) -> None:
        """A line that keeps each value until the next."""
        points = [self.at(xs[0], ys[0])]
        for x, before, y in zip(xs[1:], ys, ys[1:], strict=False):
            points += [self.at(x, before), self.at(x, y)]
        self.parts.append(_path(points, name, width))

    def band(self, xs: Numbers, low: Numbers, high: Numbers, name: str, opacity: float = 0.2) -> None:
        """Draw the area between two lines."""
        there = [self.at(x, y) for x, y in zip(xs, low, strict=True)]
        back = [self.at(x, y) for x, y in zip(xs, high, strict=True)][::-1]
        outline = _moves([*there, *back])
        self.parts.append(f'<path d="{outline}Z" fill="{colour(name)}" fill-opacity="{opacity}"/>')

    def dots(self, xs: Numbers, ys: Numbers, name: str, radius: float = 3.5) -> None:
        """Points."""
        for x, y in zip(xs, ys, strict=True):
            px, py = self.at(x, y)
            self.parts.append(f'<circle cx="{px}" cy="{py}" r="{radius}" fill="{colour(name)}"/>')

    def cross(self, x: float, y: float, name: str = "ink") -> None:
        """Draw a cross at an end."""
        px, py = self.at(x, y)
        self.parts.append(f'<path d="M{px - 3} {py - 3}l6 6m0-6l-6 6" stroke="{colour(name)}" stroke-width="1.5"/>')

    def cell(self, x: tuple[float, float], y: tuple[float, float], name: str, opacity: float) -> None:
        """A rectangle without an edge."""
        (a, b), (c, d) = self.at(x[0], y[1]), self.at(x[1], y[0])
        size = f'x="{a}" y="{b}" width="{round(c - a, 1)}" height="{round(d - b, 1)}"'
        self.parts.append(f'<rect {size} fill="{colour(name)}" fill-opacity="{opacity}"/>')

    def note(self, x: float, y: float, text: str, name: str = "ink", anchor: str = "start", dy: float = 0) -> None:
        """Words at a point."""
        px, py = self.at(x, y)
        self.parts.append(_text(px, py + dy, text, anchor, fill=name))


@dataclass
class Sheet:
    """Panels side by side, on paper."""

    name: str
    alt: str  # the alternative text
    width: float = 760
    height: float = 320
    panels: list[Panel] = field(default_factory=list)

    def panel(
        self, left: float, width: float, x: tuple[float, float], y: tuple[float, float], *,
        log_x: bool = False, log_y: bool = False,
    ) -> Panel:  # fmt: skip
        """Another one."""
        made = Panel(left, 46, width, self.height - 46 - 46, x, y, log_x, log_y)
        self.panels.append(made)
        return made

    def write(self, into: Path | None = None) -> Path:
        """Write the file, in this folder or in that of `--into`."""
        parts = "\n".join(part for panel in self.panels for part in panel.parts)
        size = f'viewBox="0 0 {self.width:g} {self.height:g}" role="img" aria-label="{escape(self.alt)}"'
        text = (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="sheet" {size}>\n'
            f'<style>{STYLE}</style>\n<rect class="paper" width="100%" height="100%"/>\n{parts}\n</svg>\n'
        )
        path = (into or FOLDER) / f"{self.name}.svg"
        path.write_text(text, encoding="utf-8")
        return path


def _share(value: float, low: float, high: float, log: bool) -> float:
    if log:
        return (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)


def _moves(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in points)


def _path(points: Sequence[tuple[float, float]], name: str, width: float, dash: str = "", opacity: float = 1.0) -> str:
    more = (f' stroke-dasharray="{dash}"' if dash else "") + (f' stroke-opacity="{opacity}"' if opacity < 1 else "")
    return f'<path d="{_moves(points)}" fill="none" stroke="{colour(name)}" stroke-width="{width:g}"{more}/>'


def _text(
    x: float, y: float, text: str, anchor: str = "start", quiet: bool = False, weight: int = 0, fill: str = ""
) -> str:
    more = (' class="quiet"' if quiet else "") + (f' font-weight="{weight}"' if weight else "")
    if fill and fill != "ink":
        more += f' style="fill:{colour(fill)}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'
