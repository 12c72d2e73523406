"""Numbers and configurations in words a person reads at a glance."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from typing import Any

from haltune.terminal import visible


def short(value: Any, digits: int = 4) -> str:
    """A value with few digits: 0.9134, 1.2e-05, True, adam."""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.{digits}g}" if math.isfinite(value) else str(value)


def settings(config: Mapping[str, Any], digits: int = 3) -> str:
    """A configuration on one line: lr=0.01, width=32."""
    return (
        ", ".join(f"{name}={short(value, digits)}" for name, value in config.items())
        or "the only one there is"
    )


def duration(seconds: float) -> str:
    """Seconds as 0.4 s, 48 s, 3 min 20 s, 34 min or 2 h 5 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def clipped(text: str, most: int = 2000) -> str:
    """A text of at most so many characters: an error may be as long as it likes, a page may not."""
    return text if len(text) <= most else f"{text[: most - 1]}\N{HORIZONTAL ELLIPSIS}"


def escaped(text: object) -> str:
    """Text for HTML, attribute values included."""
    return html.escape(visible(text), quote=True)


def plotly_text(text: object) -> str:
    """Text for Plotly, which reads a few HTML tags and entities but not &quot;."""
    return html.escape(visible(text), quote=False)
