"""Texts as a page takes them."""

from __future__ import annotations

import html

from haltune.terminal import visible


def plotly_text(text: object) -> str:
    """Text for Plotly, which reads a few HTML tags and entities but not &quot;."""
    return html.escape(visible(text), quote=False)
